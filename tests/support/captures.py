"""The recorded machines in ../shared, where they are; and golden files of what we understand of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("GPUBOARD_SHARED", ROOT.parent / "shared"))
CAPTURES = SHARED / "captures"
GOLDEN = Path(__file__).parents[1] / "golden"

needs_shared = pytest.mark.skipif(not CAPTURES.is_dir(), reason="../shared/captures is not here")


def snapshot(task: str, body: bytes, rc: int = 0) -> bytes:
    """A file of a snapshot, as the host scripts write it."""
    first = f"# gpuboard 1 task={task} host=gpu1 time=1700000000 every=20 took_ms=70 rc={rc}\n".encode()
    return first + body + (b"" if body.endswith(b"\n") or not body else b"\n") + b"# end\n"


def replay(bundle: Path, *arguments: str, **settings: str) -> bytes:
    """What nvidia-smi said on a recorded machine."""
    environment = {**os.environ, "REPLAY_BUNDLE": str(bundle), **settings}
    command = [str(SHARED / "tools/replay-nvidia-smi"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False).stdout


def check_golden(name: str, understood: DataclassInstance) -> None:
    """Compare with the golden file of that name; GPUBOARD_UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / f"{name}.json"
    content = asdict(understood)
    content["rows"] = [row._asdict() if hasattr(row, "_asdict") else row for row in content["rows"]]
    content["header"] = content["header"] and content["header"]._asdict()
    del content["has_missing_gpu"]  # the problems say so
    if not content["unreported"]:
        del content["unreported"]
    content["tool_results"] = [result._asdict() for result in content["tool_results"]]
    for row in content["rows"]:
        if "cells" in row:  # what we understood, not what we were told
            row["told"] = len(row.pop("cells"))
            del row["columns"]
            health = {"fan_speed": row.pop("fan_speed"), "temperature_margin": row.pop("temperature_margin")}
            health |= {"bus_id": row.pop("bus_id"), **row.pop("health")._asdict()}
            health |= health.pop("error_counts")._asdict()
            row["health"] = {name: value for name, value in health.items() if value is not None and value is not False}
            if row["error"] is None:
                del row["error"]
            row["parent"] = row["parent"] and row["parent"].label
        elif re.match(r"/|[A-Z]:\\", str(row.get("name"))):  # nor where a stranger keeps his programs
            row["name"] = re.split(r"[/\\]", row["name"])[-1]
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if os.environ.get("GPUBOARD_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"tests/golden/{name}.json is not there: GPUBOARD_UPDATE_GOLDEN=1 writes it; then read it"
    assert text == path.read_text()
