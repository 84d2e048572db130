"""Settings as a process has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from site_builder.config.schema import (
    HOST_SETTINGS,
)
from site_builder.config.settings import (
    Settings,
    build_settings,
    parse_conf_file,
    resolve_setting_values,
)

ROOT = Path(__file__).parents[2]


EXAMPLE = ROOT / "gpuboard.conf.example"


def parsed(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str = "",
) -> Settings:
    values, _ = parse_conf_file(file.encode(), "gpuboard.conf")
    setting_values = resolve_setting_values(flags or {}, environment or {}, values)
    return build_settings(setting_values, environment or {})


def python(code: str, **environment: str) -> str:
    """What it prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout


AS_SH = """set -eu; LIB=scripts/lib; . scripts/lib/common.sh; load_settings
for key in $KEYS; do eval "[ -z \\"\\${$key:+set}\\" ] || printf '%s=%s\\\\000' $key \\"\\$$key\\""; done"""


def as_sh_reads(file: Path, shell: str = "dash", **environment: str) -> dict[str, bytes] | str:
    """What the host scripts take from the file; or their refusal."""
    if not shutil.which(shell.split(maxsplit=1)[0]) and not os.environ.get("CI"):
        pytest.skip(f"{shell} is not here")
    settings = {"PATH": os.environ["PATH"], "GPUBOARD_CONF": str(file), "KEYS": " ".join(HOST_SETTINGS), **environment}
    result = subprocess.run([*shell.split(), "-c", AS_SH], env=settings, cwd=ROOT, capture_output=True, check=False)
    if result.returncode:
        return result.stderr.decode()
    pairs = (pair.partition(b"=") for pair in result.stdout.split(b"\0") if pair)
    return {key.decode(): value for key, _, value in pairs}
