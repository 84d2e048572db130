"""Find and read gpuboard.conf as scripts/lib/settings.sh does, and load the settings in force."""

from __future__ import annotations

import difflib
import os
import pwd
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from site_builder.config.schema import ENVIRONMENT_ONLY, HOST_SETTINGS, SETTINGS
from site_builder.config.settings import (
    Settings,
    SettingsError,
    SettingValue,
    build_settings,
    resolve_setting_values,
    sanitize_setting_text,
)

CONF_FILE_NAME = "gpuboard.conf"
MAX_CONF_BYTES = 64 * 1024
MAX_WARNINGS = 20
SETTING_PREFIXES = ("GPUBOARD_", "CONSUL_")
KNOWN_SETTINGS = (*SETTINGS, *HOST_SETTINGS)


@dataclass(frozen=True)
class ConfFile:
    """What the file sets, also for GPU hosts; without a path there is no file."""

    path: Path | None
    values: Mapping[str, SettingValue]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedSettings:
    """The settings, and where each value came from."""

    settings: Settings
    given: dict[str, SettingValue]
    conf: ConfFile


def load_settings(path: str | None, flags: Mapping[str, str], environment: Mapping[str, str]) -> LoadedSettings:
    """Load the settings in force; raise SettingsError for wrong ones."""
    file = load_conf_file(path, environment)
    values = resolve_setting_values(flags, environment, file.values)
    settings = drop_foreign_conf_secrets(build_settings(values, environment), values, file)
    return LoadedSettings(settings, values, file)


def drop_foreign_conf_secrets(settings: Settings, values: Mapping[str, SettingValue], file: ConfFile) -> Settings:
    """Use a login and a token from the file only for the board that the file names, not for one given elsewhere."""
    url_in_file = file.values.get("GPUBOARD_URL")
    if url_in_file is None or not url_in_file.text:
        return settings
    server_in_file = url_in_file.text.lower().split("/")[:3]  # scheme, name and port
    if server_in_file == values["GPUBOARD_URL"].text.lower().split("/")[:3]:
        return settings
    login = None if values["GPUBOARD_LOGIN"].line else settings.login
    return replace(settings, login=login, token=None if values["GPUBOARD_TOKEN"].line else settings.token)


def load_conf_file(
    conf: str | None, environment: Mapping[str, str], candidates: Sequence[Path | None] = ()
) -> ConfFile:
    """Load the file named by `--conf` or GPUBOARD_CONF, else the first that is found, else none."""
    name = environment.get("GPUBOARD_CONF") if conf is None else conf
    warnings = find_misspelt_variables(environment)
    path = Path(name) if name else find_conf_file(candidates or list_conf_paths(environment), warnings)
    if path is None:
        return ConfFile(None, {}, tuple(warnings))
    data, mode = read_conf_file(path)
    values, file_warnings = parse_conf_file(data, str(path))
    has_secret = any(value.text for key, value in values.items() if key in SETTINGS and SETTINGS[key].is_secret)
    if has_secret and mode & stat.S_IROTH:
        name = sanitize_setting_text(str(path))
        file_warnings.append(f"{name} has a token or a password in it, and everybody here can read it: chmod o-r")
    return ConfFile(path, values, (*warnings, *file_warnings))


def list_conf_paths(environment: Mapping[str, str]) -> tuple[Path | None, ...]:
    """Return where the file may be: in the working folder, the home folder, /etc; None where that is unknown."""
    try:
        here: Path | None = Path.cwd() / CONF_FILE_NAME
    except OSError:  # it was removed
        here = None
    home = environment.get("HOME")
    if not home:  # cron and containers may leave it out
        with suppress(KeyError):
            home = pwd.getpwuid(os.geteuid()).pw_dir
    return here, Path(home, ".config/gpuboard", CONF_FILE_NAME) if home else None, Path("/etc/gpuboard", CONF_FILE_NAME)


def find_conf_file(candidates: Sequence[Path | None], warnings: list[str]) -> Path | None:
    """Return the first file; skip another user's in the working folder, whose path is the first."""
    for path in filter(None, candidates):
        try:
            status = path.stat()
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        if path == candidates[0] and status.st_uid != os.geteuid():
            warnings.append(f"{sanitize_setting_text(str(path))} is another user's, and left alone")
            continue
        return path
    return None


def read_conf_file(path: Path) -> tuple[bytes, int]:
    """Return content and mode."""
    try:
        with path.open("rb") as file:
            data, mode = file.read(MAX_CONF_BYTES + 1), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is not the name of a file"
        raise SettingsError(f"cannot read the settings file {sanitize_setting_text(str(path))}: {reason}") from error
    if len(data) > MAX_CONF_BYTES:
        name = sanitize_setting_text(str(path))
        raise SettingsError(f"the settings file {name} has more than {MAX_CONF_BYTES // 1024} KB, and is not read")
    return data, mode


def parse_conf_file(data: bytes, path: str) -> tuple[dict[str, SettingValue], list[str]]:
    """Return the values, and warnings that never quote a value: it may be a token."""
    name = sanitize_setting_text(path)
    if b"\0" in data:
        raise SettingsError(f"the settings file {name} is not a text file")
    values: dict[str, SettingValue] = {}
    warnings: list[str] = []
    # bytes that are not UTF-8 are kept, as in sh: the name of a folder may have them
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        where = f"{name}, line {number}"
        key, equals, value = line.partition("=")
        if (not key.strip() and not equals) or key.lstrip().startswith("#"):
            continue
        if key.startswith(SETTING_PREFIXES) and key.endswith((" ", "\t")):
            raise build_conf_blanks_error(where, key)
        if len(warnings) >= MAX_WARNINGS and key not in KNOWN_SETTINGS:
            continue  # nobody reads more warnings
        if key not in KNOWN_SETTINGS:
            warnings.append(f"{where}: {describe_unknown_conf_line(key, equals)}")
        elif key in values:
            warnings.append(f"{where}: {key} stands in line {values[key].line} already, and the first one counts")
        elif not equals:
            raise SettingsError(f"{where}: {key} has no =; write {key}=value")
        elif value.startswith((" ", "\t")):
            raise build_conf_blanks_error(where, key)
        else:
            values[key] = SettingValue(value[:-1] if value.endswith("\r") else value, path, number)
            value = values[key].text
            if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
                warnings.append(f"{where}: the quotes around {key} are part of its value; leave them out")
            if value.endswith((" ", "\t", "\r")):
                warnings.append(f"{where}: the blank at the end of {key} is part of its value; leave it out")
    return values, warnings[:MAX_WARNINGS]


def build_conf_blanks_error(where: str, key: str) -> SettingsError:
    key = sanitize_setting_text(key.split(maxsplit=1)[0])
    return SettingsError(f"{where}: blanks around = are not allowed; write {key}=value")


def describe_unknown_conf_line(key: str, equals: str) -> str:
    """Explain why a line is ignored."""
    if key in ENVIRONMENT_ONLY:
        return f"{key} counts in the environment only, and is left out"
    if not equals or not key.startswith(SETTING_PREFIXES):
        return "it is no KEY=value line of ours, and is left out"
    similar = difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1)
    return f"there is no setting {sanitize_setting_text(key)}" + (f"; is it {similar[0]}?" if similar else "")


def find_misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Warn of variables that resemble a setting: one meant to hide something would go unnoticed."""
    return [
        f"the environment has {sanitize_setting_text(key)}, which is no setting; is it {similar}?"
        for key in sorted(environment)
        if key.startswith("GPUBOARD_") and key not in KNOWN_SETTINGS and key not in ENVIRONMENT_ONLY
        for similar in difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1, 0.85)
    ]
