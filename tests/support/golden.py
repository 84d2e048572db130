"""Golden files: what gpuboard concludes from an answer of a tool, for a person to read and for a test to compare."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

GOLDEN = Path(__file__).parents[1] / "golden"


def describe_parsed_file(parsed_file: DataclassInstance) -> dict[str, Any]:
    """Return what was understood, without the cells as they were printed."""
    content = asdict(parsed_file)
    content["rows"] = [row._asdict() if hasattr(row, "_asdict") else row for row in content["rows"]]
    content["header"] = content["header"] and content["header"]._asdict()
    del content["has_missing_gpu"]  # the problems say so
    if not content["unreported"]:
        del content["unreported"]
    content["tool_results"] = [result._asdict() for result in content["tool_results"]]
    for row in content["rows"]:
        if "cells" in row:
            row["told"] = len(row.pop("cells"))
            del row["columns"]
            health = {"fan_speed": row.pop("fan_speed"), "temperature_margin": row.pop("temperature_margin")}
            health |= {"bus_id": row.pop("bus_id"), **row.pop("health")._asdict()}
            health |= health.pop("error_counts")._asdict()
            row["health"] = {name: value for name, value in health.items() if value is not None and value is not False}
            for name in ("error", "other_error"):
                if row[name] is None:
                    del row[name]
            shared_memory = row.pop("shared_memory")
            if shared_memory is not None:
                row["shared_memory"] = {
                    name: value for name, value in shared_memory._asdict().items() if value is not None
                }
            row["parent"] = row["parent"] and row["parent"].label
        elif re.match(r"/|[A-Z]:\\", str(row.get("name"))):  # where a stranger keeps his programs is nobody's business
            row["name"] = re.split(r"[/\\]", row["name"])[-1]
    return content


def check_golden(name: str, content: object) -> None:
    """Compare with the golden file of that name; GPUBOARD_UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / f"{name}.json"
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if os.environ.get("GPUBOARD_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"tests/golden/{name}.json is not there: GPUBOARD_UPDATE_GOLDEN=1 writes it; then read it"
    assert text == path.read_text()
