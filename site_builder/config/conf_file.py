"""gpuboard.conf, found and read as scripts/lib/settings.sh does it; and what else of this machine the settings need."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path

from site_builder.config.schema import ENVIRONMENT_ONLY, HOST_SETTINGS
from site_builder.config.settings import BY_NAME, Given, Settings, Wrong, resolve, settings_of, shown_text
from site_builder.config.types import ZONE

NAME = "gpuboard.conf"
LIMIT = 64 * 1024
MOST = 20  # warnings
OURS = ("GPUBOARD_", "CONSUL_")
KNOWN = (*BY_NAME, *HOST_SETTINGS)
LOCALTIME = Path("/etc/localtime")


@dataclass(frozen=True)
class Places:
    """The folders in which the file is looked for, in this order; None is one that is not known."""

    here: Path | None
    home: Path | None
    system: Path = Path("/etc")

    def candidates(self) -> list[Path]:
        """Where the file may be."""
        folders = (self.here, self.home and self.home / ".config/gpuboard", self.system / "gpuboard")
        return [folder / NAME for folder in folders if folder]


@dataclass(frozen=True)
class Conf:
    """What the file sets, for both sides; no path means that there is no file."""

    path: Path | None
    values: Mapping[str, Given]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """The settings, and all that can be told of where they came from."""

    settings: Settings
    given: dict[str, Given]
    conf: Conf


def in_force(path: str | None, flags: Mapping[str, str], environment: Mapping[str, str]) -> Loaded:
    """What is in force here and now; what is wrong is `Wrong`."""
    file = load(path, environment)
    given = resolve(flags, environment, file.values)
    settings = settings_of(given, lambda name: zone_of(name, environment), place_of)
    return Loaded(without_secrets_of_another(settings, given, file), given, file)


def without_secrets_of_another(settings: Settings, given: Mapping[str, Given], file: Conf) -> Settings:
    """A login and a token that stand in the file are for the board that it names, not for one of the command line."""
    its = file.values.get("GPUBOARD_URL")
    if its is None or not its.text or server_of(its.text) == server_of(given["GPUBOARD_URL"].text):
        return settings
    login = None if given["GPUBOARD_LOGIN"].line else settings.login
    return replace(settings, login=login, token=None if given["GPUBOARD_TOKEN"].line else settings.token)


def server_of(url: str) -> list[str]:
    """Scheme, name and port, as far as they are written."""
    return url.lower().split("/")[:3]


def places_of(environment: Mapping[str, str]) -> Places:
    """The folders of this machine, and of who runs this."""
    try:
        here: Path | None = Path.cwd()
    except OSError:  # it was removed under us
        here = None
    home = environment.get("HOME") or home_in_passwd()
    return Places(here, Path(home) if home else None)


def home_in_passwd() -> str | None:
    """Cron and containers may leave HOME out."""
    import pwd  # noqa: PLC0415 # hardly ever needed

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None


def load(named: str | None, environment: Mapping[str, str], places: Places | None = None) -> Conf:
    """The file that `--conf` or GPUBOARD_CONF names, else the first that is found, else none."""
    name = environment.get("GPUBOARD_CONF") if named is None else named
    warnings = misspelt(environment)
    path = Path(name) if name else find(places or places_of(environment), warnings)
    if path is None:
        return Conf(None, {}, tuple(warnings))
    data, mode = read(path)
    values, told = parse(data, str(path))
    if mode & stat.S_IROTH and any(values[key].text for key in values if key in BY_NAME and BY_NAME[key].secret):
        told.append(
            f"{shown_text(str(path))} has a token or a password in it, and everybody here can read it: chmod o-r"
        )
    return Conf(path, values, (*warnings, *told))


def find(places: Places, warnings: list[str]) -> Path | None:
    """The first file that is there. In the folder where we happen to be, another user's is not ours to follow."""
    for path in places.candidates():
        try:
            status = path.stat()
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        if path.parent == places.here and status.st_uid != os.geteuid():
            warnings.append(f"{shown_text(str(path))} is another user's, and left alone")
            continue
        return path
    return None


def read(path: Path) -> tuple[bytes, int]:
    """The content of the file, and its mode."""
    try:
        with path.open("rb") as file:
            data, mode = file.read(LIMIT + 1), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "that is not the name of a file"
        message = f"cannot read the settings file {shown_text(str(path))}: {why}"
        raise Wrong(message) from error
    if len(data) > LIMIT:
        message = f"the settings file {shown_text(str(path))} has more than {LIMIT // 1024} KB, and is not read"
        raise Wrong(message)
    return data, mode


def parse(data: bytes, path: str) -> tuple[dict[str, Given], list[str]]:
    """What the file sets, and what a person should know of it. Values are never told: one may be a token."""
    name = shown_text(path)
    if b"\0" in data:
        message = f"the settings file {name} is not a text file"
        raise Wrong(message)
    values: dict[str, Given] = {}
    warnings: list[str] = []
    # Bytes that are no UTF-8 stay what they are, as in sh: a folder may be named with them.
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        where = f"{name}, line {number}"
        key, equals, value = line.partition("=")
        if (not key.strip() and not equals) or key.lstrip().startswith("#"):
            continue
        if key.startswith(OURS) and key.endswith((" ", "\t")):
            raise blanks(where, key)
        if len(warnings) >= MOST and key not in KNOWN:
            continue  # whatever this file is, nobody reads on
        if key not in KNOWN:
            warnings.append(f"{where}: {strange(key, equals)}")
        elif key in values:
            warnings.append(f"{where}: {key} stands in line {values[key].line} already, and the first one counts")
        elif not equals:
            message = f"{where}: {key} has no =; write {key}=value"
            raise Wrong(message)
        elif value.startswith((" ", "\t")):
            raise blanks(where, key)
        else:
            values[key] = Given(value[:-1] if value.endswith("\r") else value, path, number)
            warnings += (f"{where}: {words}" for words in doubts(key, values[key].text))
    return values, warnings[:MOST]


def blanks(where: str, key: str) -> Wrong:
    """The commonest mistake of all."""
    key = shown_text(key.split(maxsplit=1)[0])
    return Wrong(f"{where}: blanks around = are not allowed; write {key}=value")


def strange(key: str, equals: str) -> str:
    """What to say of a line that sets nothing that we know."""
    if key in ENVIRONMENT_ONLY:
        return f"{key} counts in the environment only, and is left out"
    if not equals or not key.startswith(OURS):
        return "it is no KEY=value line of ours, and is left out"
    import difflib  # noqa: PLC0415 # some ms, and only for a mistake

    near = difflib.get_close_matches(key[:64], KNOWN, 1)
    return f"there is no setting {shown_text(key)}" + (f"; is it {near[0]}?" if near else "")


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Variables that look much like a setting: one that was meant to hide something would be missed by nobody."""
    odd = [
        key for key in environment if key.startswith("GPUBOARD_") and key not in KNOWN and key not in ENVIRONMENT_ONLY
    ]
    if not odd:
        return []
    import difflib  # noqa: PLC0415 # the same

    near = {key: difflib.get_close_matches(key[:64], KNOWN, 1, 0.85) for key in sorted(odd)}
    return [
        f"the environment has {shown_text(key)}, which is no setting; is it {found[0]}?"
        for key, found in near.items()
        if found
    ]


def doubts(key: str, value: str) -> list[str]:
    """What is right as it stands, but hardly meant."""
    found = []
    if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
        found.append(f"the quotes around {key} are part of its value; leave them out")
    if value.endswith((" ", "\t", "\r")):
        found.append(f"the blank at the end of {key} is part of its value; leave it out")
    return found


def place_of(folder: Path) -> Path:
    """Where a folder really is, so that no link hides that two are one."""
    try:
        return Path(os.path.realpath(folder))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "that is not the name of a folder"
        message = f"cannot tell where the folder {shown_text(str(folder))} is: {why}"
        raise Wrong(message) from error


def zone_of(name: str, environment: Mapping[str, str], localtime: Path = LOCALTIME) -> tzinfo:
    """The zone of that name, ValueError if there is none; without a name this machine's own."""
    if name:
        return named_zone(name)
    machine = environment.get("TZ", "").lstrip(":")
    if machine and machine != str(localtime):
        try:
            return named_zone(machine)
        except ValueError:
            return own_zone()  # a rule as CET-1CEST: the C library understands it
    return zone_in(localtime) or own_zone()


def named_zone(name: str) -> tzinfo:
    """A zone of the system's database, or where it has none, of dateutil's."""
    if not ZONE.fullmatch(name):
        raise ValueError(name)
    from zoneinfo import ZoneInfo  # noqa: PLC0415 # some ms, and only here

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return dateutil_zone(name)


def dateutil_zone(name: str) -> tzinfo:
    """A zone of dateutil's own database; not what it makes of any word with a digit in it."""
    from dateutil import tz  # noqa: PLC0415 # some ms, and hardly ever needed

    found = tz.gettz(name)
    if not isinstance(found, (tz.tzfile, tz.tzutc)):
        raise ValueError(name)
    return found


def zone_in(localtime: Path) -> tzinfo | None:
    """The zone in the file of this machine's, under the name of the file that it links to."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=os.path.realpath(localtime).partition("/zoneinfo/")[2] or None)
    except (OSError, ValueError):
        return None


def own_zone() -> tzinfo:
    """What the C library takes for this machine's zone."""
    from dateutil import tz  # noqa: PLC0415

    return tz.tzlocal()
