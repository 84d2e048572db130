"""Find and read gpuboard.conf as scripts/lib/settings.sh does; and look up time zones and folders."""

from __future__ import annotations

import difflib
import os
import pwd
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from site_builder.config.schema import ENVIRONMENT_ONLY, HOST_SETTINGS
from site_builder.config.settings import (
    SETTINGS_BY_NAME,
    Settings,
    SettingsError,
    SettingValue,
    build_settings,
    resolve_setting_values,
    sanitize_text,
)
from site_builder.config.types import ZONE_PATTERN

CONF_FILE_NAME = "gpuboard.conf"
MAX_CONF_BYTES = 64 * 1024
MAX_WARNINGS = 20
SETTING_PREFIXES = ("GPUBOARD_", "CONSUL_")
KNOWN_SETTINGS = (*SETTINGS_BY_NAME, *HOST_SETTINGS)
LOCALTIME_FILE = Path("/etc/localtime")


@dataclass(frozen=True)
class ConfFolders:
    """Folders that may have the file, in this order; None if unknown."""

    working_folder: Path | None
    home_folder: Path | None
    system_folder: Path = Path("/etc")

    def list_candidates(self) -> list[Path]:
        folders = (
            self.working_folder,
            self.home_folder and self.home_folder / ".config/gpuboard",
            self.system_folder / "gpuboard",
        )
        return [folder / CONF_FILE_NAME for folder in folders if folder]


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
    settings = build_settings(values, lambda name: find_zone(name, environment), resolve_folder)
    return LoadedSettings(drop_foreign_secrets(settings, values, file), values, file)


def drop_foreign_secrets(settings: Settings, values: Mapping[str, SettingValue], file: ConfFile) -> Settings:
    """Use a login and a token from the file only for the board that the file names, not for one given elsewhere."""
    url_in_file = file.values.get("GPUBOARD_URL")
    if url_in_file is None or not url_in_file.text:
        return settings
    server_in_file = url_in_file.text.lower().split("/")[:3]  # scheme, name and port
    if server_in_file == values["GPUBOARD_URL"].text.lower().split("/")[:3]:
        return settings
    login = None if values["GPUBOARD_LOGIN"].line else settings.login
    return replace(settings, login=login, token=None if values["GPUBOARD_TOKEN"].line else settings.token)


def find_conf_folders(environment: Mapping[str, str]) -> ConfFolders:
    try:
        here: Path | None = Path.cwd()
    except OSError:  # it was removed
        here = None
    home = environment.get("HOME")
    if not home:  # cron and containers may leave it out
        with suppress(KeyError):
            home = pwd.getpwuid(os.geteuid()).pw_dir
    return ConfFolders(here, Path(home) if home else None)


def load_conf_file(conf: str | None, environment: Mapping[str, str], folders: ConfFolders | None = None) -> ConfFile:
    """Load the file named by `--conf` or GPUBOARD_CONF, else the first that is found, else none."""
    name = environment.get("GPUBOARD_CONF") if conf is None else conf
    warnings = find_misspelt_variables(environment)
    path = Path(name) if name else find_conf_file(folders or find_conf_folders(environment), warnings)
    if path is None:
        return ConfFile(None, {}, tuple(warnings))
    data, mode = read_conf_file(path)
    values, file_warnings = parse_conf_file(data, str(path))
    if mode & stat.S_IROTH and any(
        values[key].text for key in values if key in SETTINGS_BY_NAME and SETTINGS_BY_NAME[key].is_secret
    ):
        file_warnings.append(
            f"{sanitize_text(str(path))} has a token or a password in it, and everybody here can read it: chmod o-r"
        )
    return ConfFile(path, values, (*warnings, *file_warnings))


def find_conf_file(folders: ConfFolders, warnings: list[str]) -> Path | None:
    """Return the first file; skip another user's in the working folder."""
    for path in folders.list_candidates():
        try:
            status = path.stat()
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        if path.parent == folders.working_folder and status.st_uid != os.geteuid():
            warnings.append(f"{sanitize_text(str(path))} is another user's, and left alone")
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
        raise SettingsError(f"cannot read the settings file {sanitize_text(str(path))}: {reason}") from error
    if len(data) > MAX_CONF_BYTES:
        raise SettingsError(
            f"the settings file {sanitize_text(str(path))} has more than {MAX_CONF_BYTES // 1024} KB, and is not read"
        )
    return data, mode


def parse_conf_file(data: bytes, path: str) -> tuple[dict[str, SettingValue], list[str]]:
    """Return the values, and warnings that never quote a value: it may be a token."""
    name = sanitize_text(path)
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
            raise build_blanks_error(where, key)
        if len(warnings) >= MAX_WARNINGS and key not in KNOWN_SETTINGS:
            continue  # nobody reads more warnings
        if key not in KNOWN_SETTINGS:
            warnings.append(f"{where}: {describe_unknown_line(key, equals)}")
        elif key in values:
            warnings.append(f"{where}: {key} stands in line {values[key].line} already, and the first one counts")
        elif not equals:
            raise SettingsError(f"{where}: {key} has no =; write {key}=value")
        elif value.startswith((" ", "\t")):
            raise build_blanks_error(where, key)
        else:
            values[key] = SettingValue(value[:-1] if value.endswith("\r") else value, path, number)
            warnings += (f"{where}: {warning}" for warning in find_value_warnings(key, values[key].text))
    return values, warnings[:MAX_WARNINGS]


def build_blanks_error(where: str, key: str) -> SettingsError:
    key = sanitize_text(key.split(maxsplit=1)[0])
    return SettingsError(f"{where}: blanks around = are not allowed; write {key}=value")


def describe_unknown_line(key: str, equals: str) -> str:
    """Explain why a line is ignored."""
    if key in ENVIRONMENT_ONLY:
        return f"{key} counts in the environment only, and is left out"
    if not equals or not key.startswith(SETTING_PREFIXES):
        return "it is no KEY=value line of ours, and is left out"
    similar = difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1)
    return f"there is no setting {sanitize_text(key)}" + (f"; is it {similar[0]}?" if similar else "")


def find_misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Warn of variables that resemble a setting: one meant to hide something would go unnoticed."""
    unknown = [
        key
        for key in environment
        if key.startswith("GPUBOARD_") and key not in KNOWN_SETTINGS and key not in ENVIRONMENT_ONLY
    ]
    if not unknown:
        return []
    matches = {key: difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1, 0.85) for key in sorted(unknown)}
    return [
        f"the environment has {sanitize_text(key)}, which is no setting; is it {similar[0]}?"
        for key, similar in matches.items()
        if similar
    ]


def find_value_warnings(key: str, value: str) -> list[str]:
    """Warn of values that are valid but hardly intended."""
    warnings = []
    if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
        warnings.append(f"the quotes around {key} are part of its value; leave them out")
    if value.endswith((" ", "\t", "\r")):
        warnings.append(f"the blank at the end of {key} is part of its value; leave it out")
    return warnings


def resolve_folder(folder: Path) -> Path:
    """Resolve links, so that no link hides that two folders are one."""
    try:
        return Path(os.path.realpath(folder))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is not the name of a folder"
        raise SettingsError(f"cannot tell where the folder {sanitize_text(str(folder))} is: {reason}") from error


def find_zone(name: str, environment: Mapping[str, str], localtime: Path = LOCALTIME_FILE) -> tzinfo:
    """Return the zone of that name, by default this machine's; raise ValueError if there is none."""
    if name:
        return load_named_zone(name)
    tz_variable = environment.get("TZ", "").lstrip(":")
    if tz_variable and tz_variable != str(localtime):
        try:
            return load_named_zone(tz_variable)
        except ValueError:
            return load_system_zone()  # a rule such as CET-1CEST, which the C library understands
    return read_localtime_zone(localtime) or load_system_zone()


def load_named_zone(name: str) -> tzinfo:
    """Load a zone of the system's database, or else of dateutil's."""
    if not ZONE_PATTERN.fullmatch(name):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return load_dateutil_zone(name)


def load_dateutil_zone(name: str) -> tzinfo:
    """Load a zone of dateutil's own database; refuse what it makes of any word with a digit."""
    from dateutil import tz  # noqa: PLC0415 # slow to import, and rarely needed

    zone = tz.gettz(name)
    if not isinstance(zone, (tz.tzfile, tz.tzutc)):
        raise ValueError(name)
    return zone


def read_localtime_zone(localtime: Path) -> tzinfo | None:
    """Read the machine's zone file, under the name of the file that it links to."""
    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=os.path.realpath(localtime).partition("/zoneinfo/")[2] or None)
    except (OSError, ValueError):
        return None


def load_system_zone() -> tzinfo:
    """Return what the C library takes for this machine's zone."""
    from dateutil import tz  # noqa: PLC0415 # the same

    return tz.tzlocal()
