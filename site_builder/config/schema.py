"""Table of all settings, read from settings.ini: default, type, purpose, and which failure each prevents."""

from __future__ import annotations

from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

from site_builder.config import setting_types

# Settings of GPU hosts, which scripts/lib/settings.sh reads from the file; see docs/hosts.md.
HOST_SETTINGS = (
    *("GPUBOARD_DEST", "GPUBOARD_GPUS_EVERY", "GPUBOARD_PROCESSES_EVERY", "GPUBOARD_PS_EVERY", "GPUBOARD_LIMIT"),
    *("GPUBOARD_NVIDIA", "GPUBOARD_AMD", "GPUBOARD_SSH_CONFIG", "GPUBOARD_SSH_KEY", "GPUBOARD_DISK_USE"),
    "GPUBOARD_SPOOL",
)
# Read from the environment only.
ENVIRONMENT_ONLY = ("GPUBOARD_CONF", "GPUBOARD_PROC", "GPUBOARD_USER")


@dataclass(frozen=True)
class Setting:
    default: str
    value_type: setting_types.SettingType
    description: str
    prevented_failure: str
    flag: str | None = None
    is_secret: bool = False


def load_settings_schema() -> dict[str, Setting]:
    table = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    table.read(Path(__file__).with_name("settings.ini"), "utf-8")
    settings = {}
    for name in table.sections():
        row = {key: " ".join(value.split()) for key, value in table[name].items()}
        kind, *bounds = row["type"].split()
        if kind == "time":
            value_type = setting_types.build_duration_type(*map(setting_types.parse_seconds_setting, bounds))
        elif kind == "number":
            value_type = setting_types.build_number_type(*map(int, bounds))
        else:
            value_type = setting_types.SETTING_TYPES[row["type"]]
        settings[name] = Setting(
            row.get("default", ""), value_type, row["purpose"], row["prevents"], row.get("flag"), "secret" in row
        )
    return settings


SETTINGS = load_settings_schema()
