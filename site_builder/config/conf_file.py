"""gpuboard.conf, found and read as scripts/lib/settings.sh does it; and what else of this machine the settings need."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path

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
MAX_WARNINGS = 20  # warnings
SETTING_PREFIXES = ("GPUBOARD_", "CONSUL_")
KNOWN_SETTINGS = (*SETTINGS_BY_NAME, *HOST_SETTINGS)
LOCALTIME_FILE = Path("/etc/localtime")


@dataclass(frozen=True)
class ConfFolders:
    """The folders in which the file is looked for, in this order; None is one that is not known."""

    working_folder: Path | None
    home_folder: Path | None
    system_folder: Path = Path("/etc")

    def list_candidates(self) -> list[Path]:
        """Where the file may be."""
        folders = (
            self.working_folder,
            self.home_folder and self.home_folder / ".config/gpuboard",
            self.system_folder / "gpuboard",
        )
        return [folder / CONF_FILE_NAME for folder in folders if folder]


@dataclass(frozen=True)
class ConfFile:
    """What the file sets, for both sides; no path means that there is no file."""

    path: Path | None
    values: Mapping[str, SettingValue]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedSettings:
    """The settings, and all that can be told of where they came from."""

    settings: Settings
    given: dict[str, SettingValue]
    conf: ConfFile


def load_settings(path: str | None, flags: Mapping[str, str], environment: Mapping[str, str]) -> LoadedSettings:
    """What is in force here and now; what is wrong is `Wrong`."""
    file = load_conf_file(path, environment)
    given = resolve_setting_values(flags, environment, file.values)
    settings = build_settings(given, lambda name: find_zone(name, environment), resolve_folder)
    return LoadedSettings(drop_foreign_secrets(settings, given, file), given, file)


def drop_foreign_secrets(settings: Settings, given: Mapping[str, SettingValue], file: ConfFile) -> Settings:
    """A login and a token that stand in the file are for the board that it names, not for one of the command line."""
    its = file.values.get("GPUBOARD_URL")
    if its is None or not its.text or parse_server(its.text) == parse_server(given["GPUBOARD_URL"].text):
        return settings
    login = None if given["GPUBOARD_LOGIN"].line else settings.login
    return replace(settings, login=login, token=None if given["GPUBOARD_TOKEN"].line else settings.token)


def parse_server(url: str) -> list[str]:
    """Scheme, name and port, as far as they are written."""
    return url.lower().split("/")[:3]


def find_conf_folders(environment: Mapping[str, str]) -> ConfFolders:
    """The folders of this machine, and of who runs this."""
    try:
        here: Path | None = Path.cwd()
    except OSError:  # it was removed under us
        here = None
    home = environment.get("HOME") or find_passwd_home()
    return ConfFolders(here, Path(home) if home else None)


def find_passwd_home() -> str | None:
    """Cron and containers may leave HOME out."""
    import pwd  # noqa: PLC0415 # hardly ever needed

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None


def load_conf_file(named: str | None, environment: Mapping[str, str], places: ConfFolders | None = None) -> ConfFile:
    """The file that `--conf` or GPUBOARD_CONF names, else the first that is found, else none."""
    name = environment.get("GPUBOARD_CONF") if named is None else named
    warnings = find_misspelt_variables(environment)
    path = Path(name) if name else find_conf_file(places or find_conf_folders(environment), warnings)
    if path is None:
        return ConfFile(None, {}, tuple(warnings))
    data, mode = read_conf_file(path)
    values, told = parse_conf_file(data, str(path))
    if mode & stat.S_IROTH and any(
        values[key].text for key in values if key in SETTINGS_BY_NAME and SETTINGS_BY_NAME[key].is_secret
    ):
        told.append(
            f"{sanitize_text(str(path))} has a token or a password in it, and everybody here can read it: chmod o-r"
        )
    return ConfFile(path, values, (*warnings, *told))


def find_conf_file(places: ConfFolders, warnings: list[str]) -> Path | None:
    """The first file that is there. In the folder where we happen to be, another user's is not ours to follow."""
    for path in places.list_candidates():
        try:
            status = path.stat()
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        if path.parent == places.working_folder and status.st_uid != os.geteuid():
            warnings.append(f"{sanitize_text(str(path))} is another user's, and left alone")
            continue
        return path
    return None


def read_conf_file(path: Path) -> tuple[bytes, int]:
    """The content of the file, and its mode."""
    try:
        with path.open("rb") as file:
            data, mode = file.read(MAX_CONF_BYTES + 1), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "that is not the name of a file"
        message = f"cannot read the settings file {sanitize_text(str(path))}: {why}"
        raise SettingsError(message) from error
    if len(data) > MAX_CONF_BYTES:
        message = (
            f"the settings file {sanitize_text(str(path))} has more than {MAX_CONF_BYTES // 1024} KB, and is not read"
        )
        raise SettingsError(message)
    return data, mode


def parse_conf_file(data: bytes, path: str) -> tuple[dict[str, SettingValue], list[str]]:
    """What the file sets, and what a person should know of it. Values are never told: one may be a token."""
    name = sanitize_text(path)
    if b"\0" in data:
        message = f"the settings file {name} is not a text file"
        raise SettingsError(message)
    values: dict[str, SettingValue] = {}
    warnings: list[str] = []
    # Bytes that are no UTF-8 stay what they are, as in sh: a folder may be named with them.
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        where = f"{name}, line {number}"
        key, equals, value = line.partition("=")
        if (not key.strip() and not equals) or key.lstrip().startswith("#"):
            continue
        if key.startswith(SETTING_PREFIXES) and key.endswith((" ", "\t")):
            raise build_blanks_error(where, key)
        if len(warnings) >= MAX_WARNINGS and key not in KNOWN_SETTINGS:
            continue  # whatever this file is, nobody reads on
        if key not in KNOWN_SETTINGS:
            warnings.append(f"{where}: {describe_unknown_line(key, equals)}")
        elif key in values:
            warnings.append(f"{where}: {key} stands in line {values[key].line} already, and the first one counts")
        elif not equals:
            message = f"{where}: {key} has no =; write {key}=value"
            raise SettingsError(message)
        elif value.startswith((" ", "\t")):
            raise build_blanks_error(where, key)
        else:
            values[key] = SettingValue(value[:-1] if value.endswith("\r") else value, path, number)
            warnings += (f"{where}: {words}" for words in find_value_warnings(key, values[key].text))
    return values, warnings[:MAX_WARNINGS]


def build_blanks_error(where: str, key: str) -> SettingsError:
    """The commonest mistake of all."""
    key = sanitize_text(key.split(maxsplit=1)[0])
    return SettingsError(f"{where}: blanks around = are not allowed; write {key}=value")


def describe_unknown_line(key: str, equals: str) -> str:
    """What to say of a line that sets nothing that we know."""
    if key in ENVIRONMENT_ONLY:
        return f"{key} counts in the environment only, and is left out"
    if not equals or not key.startswith(SETTING_PREFIXES):
        return "it is no KEY=value line of ours, and is left out"
    import difflib  # noqa: PLC0415 # some ms, and only for a mistake

    near = difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1)
    return f"there is no setting {sanitize_text(key)}" + (f"; is it {near[0]}?" if near else "")


def find_misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look much like a setting: one that was meant to hide something would be missed by nobody."""
    odd = [
        key
        for key in environment
        if key.startswith("GPUBOARD_") and key not in KNOWN_SETTINGS and key not in ENVIRONMENT_ONLY
    ]
    if not odd:
        return []
    import difflib  # noqa: PLC0415 # the same

    near = {key: difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1, 0.85) for key in sorted(odd)}
    return [
        f"the environment has {sanitize_text(key)}, which is no setting; is it {found[0]}?"
        for key, found in near.items()
        if found
    ]


def find_value_warnings(key: str, value: str) -> list[str]:
    """What is right as it stands, but hardly meant."""
    found = []
    if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
        found.append(f"the quotes around {key} are part of its value; leave them out")
    if value.endswith((" ", "\t", "\r")):
        found.append(f"the blank at the end of {key} is part of its value; leave it out")
    return found


def resolve_folder(folder: Path) -> Path:
    """Where a folder really is, so that no link hides that two are one."""
    try:
        return Path(os.path.realpath(folder))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "that is not the name of a folder"
        message = f"cannot tell where the folder {sanitize_text(str(folder))} is: {why}"
        raise SettingsError(message) from error


def find_zone(name: str, environment: Mapping[str, str], localtime: Path = LOCALTIME_FILE) -> tzinfo:
    """The zone of that name, ValueError if there is none; without a name this machine's own."""
    if name:
        return load_named_zone(name)
    machine = environment.get("TZ", "").lstrip(":")
    if machine and machine != str(localtime):
        try:
            return load_named_zone(machine)
        except ValueError:
            return load_system_zone()  # a rule as CET-1CEST: the C library understands it
    return read_localtime_zone(localtime) or load_system_zone()


def load_named_zone(name: str) -> tzinfo:
    """A zone of the system's database, or where it has none, of dateutil's."""
    if not ZONE_PATTERN.fullmatch(name):
        raise ValueError(name)
    from zoneinfo import ZoneInfo  # noqa: PLC0415 # some ms, and only here

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return load_dateutil_zone(name)


def load_dateutil_zone(name: str) -> tzinfo:
    """A zone of dateutil's own database; not what it makes of any word with a digit in it."""
    from dateutil import tz  # noqa: PLC0415 # some ms, and hardly ever needed

    found = tz.gettz(name)
    if not isinstance(found, (tz.tzfile, tz.tzutc)):
        raise ValueError(name)
    return found


def read_localtime_zone(localtime: Path) -> tzinfo | None:
    """The zone in the file of this machine's, under the name of the file that it links to."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=os.path.realpath(localtime).partition("/zoneinfo/")[2] or None)
    except (OSError, ValueError):
        return None


def load_system_zone() -> tzinfo:
    """What the C library takes for this machine's zone."""
    from dateutil import tz  # noqa: PLC0415

    return tz.tzlocal()
