"""Read gpuboard.conf as scripts/lib/settings.sh does; choose the value in force of each setting, and parse it."""

from __future__ import annotations

import difflib
import os
import pwd
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import tzinfo
from itertools import combinations
from pathlib import Path
from typing import Any

from site_builder.config.schema import ENVIRONMENT_ONLY, HOST_SETTINGS, SETTINGS
from site_builder.core import model
from site_builder.core.clock import find_zone
from site_builder.core.terminal_text import replace_unprintable

SECRET_MASK = "•••"  # noqa: S105
URL_CREDENTIALS = re.compile(r"//[^/]*@")
CONF_FILE_NAME = "gpuboard.conf"
MAX_CONF_BYTES = 64 * 1024
MAX_WARNINGS = 20
SETTING_PREFIXES = ("GPUBOARD_", "CONSUL_")
KNOWN_SETTINGS = (*SETTINGS, *HOST_SETTINGS)


class SettingsError(Exception):
    """What is wrong with the settings, in one sentence: which one, from where, and what is allowed."""


@dataclass(frozen=True)
class SettingValue:
    """A value as written, and its `origin`: `default`, `environment`, a flag, or the path of the file."""

    text: str
    origin: str
    line: int | None = None
    was_empty: bool = False  # an empty value, for which the text is the default

    @property
    def where(self) -> str:
        """Return the origin for a message."""
        words = self.origin if self.line is None else f"{self.origin}, line {self.line}"
        return f"{words}, empty" if self.was_empty else words

    @property
    def short_where(self) -> str:
        """Return the origin for a table whose first line names the file."""
        return self.where if self.line is None else self.where.rpartition("/")[2]


@dataclass(frozen=True)
class Settings:
    """All settings in force; relative folders count from where we are started."""

    data: Path
    www: Path
    state: Path
    zone: tzinfo
    limits: model.StateLimits
    privacy: model.PrivacySettings
    consul: model.ConsulAccess | None
    kv: model.ConsulAccess | None = None
    notice: str | None = None
    listen: tuple[str, int] = ("127.0.0.1", 8080)
    booking_policy: model.BookingPolicy = field(default_factory=model.BookingPolicy)
    url: str | None = None
    token: str | None = None
    htpasswd: str | None = None
    node_password: str | None = field(default=None, repr=False)
    server_names: frozenset[str] = frozenset()
    login: str | None = None
    alerts: model.AlertSettings = field(default_factory=model.AlertSettings)
    snapshot_bytes: int = 1024 * 1024  # largest file of a host that is read


def resolve_setting_values(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """Choose the value in force: flag over environment over file over default; an empty value means the default."""
    values = {}
    for name, setting in SETTINGS.items():
        if setting.flag and name in flags:
            value = SettingValue(flags[name], setting.flag)
        elif name in environment:  # an empty one hides the file too, as in sh
            value = SettingValue(environment[name], "environment")
        else:
            value = file.get(name, SettingValue(setting.default, "default"))
        if not value.text and value.origin not in ("default", setting.flag):
            value = SettingValue(setting.default, value.origin, value.line, was_empty=True)
        values[name] = value
    return values


def build_settings(values: Mapping[str, SettingValue], environment: Mapping[str, str]) -> Settings:
    """Parse the values, and find the time zone; raise SettingsError for the first that is wrong."""
    parsed = {name: parse_setting_value(name, values[name]) for name in values if not name.startswith("CONSUL_")}
    try:
        zone = find_zone(parsed["GPUBOARD_ZONE"] or "", environment)
    except ValueError as error:
        raise build_settings_error("GPUBOARD_ZONE", values["GPUBOARD_ZONE"]) from error
    check_setting_folders(values, {name: parsed[name] for name in ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")})
    limits = model.StateLimits(
        **{limit.name: parsed[f"GPUBOARD_{limit.name.upper()}"] for limit in fields(model.StateLimits)}
    )
    if limits.down_after <= limits.stale_after:
        stale, down = (describe_setting_value(values, name) for name in ("GPUBOARD_STALE_AFTER", "GPUBOARD_DOWN_AFTER"))
        raise SettingsError(f"{down} must be longer than {stale}: a host is first stale, then down")
    consul, kv = None, None
    service = parsed["GPUBOARD_CONSUL_SERVICE"]
    # without a service or a KV store, CONSUL_ variables in the environment belong to other programs, and are not parsed
    if service or parsed["GPUBOARD_KV"]:
        access = parse_consul_settings(values, parsed["GPUBOARD_CONSUL_DATACENTER"])
        consul = replace(access, service=service) if service else None
        if parsed["GPUBOARD_KV"]:
            address, prefix = parsed["GPUBOARD_KV"]
            kv = replace(access, address=address, address_setting="GPUBOARD_KV", prefix=prefix)
    computed: dict[str, Any] = {
        "zone": zone,
        "limits": limits,
        "privacy": model.PrivacySettings(parsed["GPUBOARD_SHOW_COMMANDS"], parsed["GPUBOARD_SHOW_USERS"]),
        "consul": consul,
        "kv": kv,
        "booking_policy": model.BookingPolicy(
            url=parsed["GPUBOARD_BOOK_URL"],
            is_open=parsed["GPUBOARD_BOOK_OPEN"],
            can_book_for_others=parsed["GPUBOARD_BOOK_FOR_OTHERS"],
            max_gpus=parsed["GPUBOARD_BOOK_GPUS"],
            max_gpu_hours=parsed["GPUBOARD_BOOK_HOURS"],
            max_duration_s=parsed["GPUBOARD_BOOK_LONGEST"],
            max_ahead_s=parsed["GPUBOARD_BOOK_AHEAD"],
            retention_s=parsed["GPUBOARD_BOOK_KEEP"],
            admins=parsed["GPUBOARD_ADMINS"],
            proxy=parsed["GPUBOARD_PROXY"],
            proxy_header=parsed["GPUBOARD_PROXY_HEADER"],
        ),
        "alerts": model.AlertSettings(
            channels=parsed["GPUBOARD_NOTIFY"],
            mail_url=parsed["GPUBOARD_MAIL"],
            mail_domain=parsed["GPUBOARD_MAIL_DOMAIN"],
            hooks_folder=parsed["GPUBOARD_HOOKS"],
            rules_file=parsed["GPUBOARD_ALERTS"],
            contacts_file=parsed["GPUBOARD_CONTACTS"],
            slack=model.SlackAccess(
                parsed["GPUBOARD_SLACK_BOT_TOKEN"], parsed["GPUBOARD_SLACK_APP_TOKEN"], parsed["GPUBOARD_SLACK_URL"]
            ),
        ),
        "snapshot_bytes": int(parsed["GPUBOARD_SNAPSHOT_KIB"] * 1024),
    }
    # every other field has the name of its setting
    names = [field.name for field in fields(Settings) if field.name not in computed]
    return Settings(**computed, **{name: parsed[f"GPUBOARD_{name.upper()}"] for name in names})


def parse_consul_settings(values: Mapping[str, SettingValue], datacenter: str | None) -> model.ConsulAccess:
    parsed = {name: parse_setting_value(name, values[name]) for name in values if name.startswith("CONSUL_")}
    cert, key = parsed["CONSUL_CLIENT_CERT"], parsed["CONSUL_CLIENT_KEY"]
    if (cert is None) != (key is None):
        names = ("CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY")
        present, absent = names if cert else names[::-1]
        described = describe_setting_value(values, present)
        raise SettingsError(f"{described} has no effect without {absent}: set both, or neither")
    address, is_https = parsed["CONSUL_HTTP_ADDR"]
    return model.ConsulAccess(
        service="",
        datacenter=datacenter,
        address=address,
        token=parsed["CONSUL_HTTP_TOKEN"],
        tls=is_https or parsed["CONSUL_HTTP_SSL"],
        verify=parsed["CONSUL_HTTP_SSL_VERIFY"],
        ca=parsed["CONSUL_CACERT"],
        cert=cert,
        key=key,
    )


def check_setting_folders(values: Mapping[str, SettingValue], folders: Mapping[str, Path]) -> None:
    """Refuse two folders that are one, and folders inside www that must not be served."""
    places = {}  # without links, so that no link hides that two folders are one
    for name, folder in folders.items():
        try:
            places[name] = Path(os.path.realpath(folder))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "that is not a valid path"
            where = sanitize_setting_text(str(folder))
            raise SettingsError(f"the folder {where} cannot be resolved: {reason}") from error
    for name, other_name in combinations(places, 2):
        if places[name] == places[other_name]:
            both = " and ".join(describe_setting_value(values, setting) for setting in (name, other_name))
            raise SettingsError(f"{both} are the same folder: set two different ones")
    for name, reason in (("GPUBOARD_STATE", "it holds tokens"), ("GPUBOARD_DATA", "it names people and what they run")):
        if places["GPUBOARD_WWW"] in places[name].parents:
            inside, outside = (describe_setting_value(values, setting) for setting in (name, "GPUBOARD_WWW"))
            raise SettingsError(f"{inside} is inside {outside} and would be served: {reason}")


def parse_setting_value(name: str, value: SettingValue) -> Any:  # noqa: ANN401 # each type has its own
    try:
        return SETTINGS[name].value_type.parse(value.text)
    except ValueError:
        raise build_settings_error(name, value) from None


def build_settings_error(name: str, value: SettingValue) -> SettingsError:
    """Name the setting and its value, unless it is a secret."""
    setting = SETTINGS[name]
    what = "is set" if setting.is_secret else f"is '{mask_setting_credentials(value.text)}'"
    return SettingsError(f"{name} {what} ({sanitize_setting_text(value.where)}), {setting.value_type.refusal}")


def describe_setting_value(values: Mapping[str, SettingValue], name: str) -> str:
    """Describe a setting with its value and origin, for a sentence."""
    return f"{name}={mask_setting_credentials(values[name].text)} ({sanitize_setting_text(values[name].where)})"


def mask_setting_credentials(text: str) -> str:
    """Make text safe, and hide the password of a URL."""
    return URL_CREDENTIALS.sub(f"//{SECRET_MASK}@", sanitize_setting_text(text))


def sanitize_setting_text(text: str) -> str:
    """Make text safe for a terminal, and not too long."""
    text = replace_unprintable(text)
    return text if len(text) <= 200 else f"{text[:199]}…"


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
    settings = build_settings(values, environment)
    url_in_file = file.values.get("GPUBOARD_URL")
    if url_in_file and url_in_file.text:
        # a login and a token in the file are for the board that the file names, not for one given elsewhere
        server_in_file, server = (url.text.lower().split("/")[:3] for url in (url_in_file, values["GPUBOARD_URL"]))
        if server_in_file != server:
            login = None if values["GPUBOARD_LOGIN"].line else settings.login
            token = None if values["GPUBOARD_TOKEN"].line else settings.token
            settings = replace(settings, login=login, token=token)
    return LoadedSettings(settings, values, file)


def load_conf_file(
    conf: str | None, environment: Mapping[str, str], candidates: Sequence[Path | None] = ()
) -> ConfFile:
    """Load the file named by `--conf` or GPUBOARD_CONF, else the first that is found, else none."""
    name = environment.get("GPUBOARD_CONF") if conf is None else conf
    # a variable that resembles a setting may be meant to hide something, which would go unnoticed
    warnings = [
        f"{sanitize_setting_text(key)} in the environment is not a setting; did you mean {similar}?"
        for key in sorted(environment)
        if key.startswith("GPUBOARD_") and key not in KNOWN_SETTINGS and key not in ENVIRONMENT_ONLY
        for similar in difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1, 0.85)
    ]
    path = Path(name) if name else find_conf_file(candidates or list_conf_paths(environment), warnings)
    if path is None:
        return ConfFile(None, {}, tuple(warnings))
    shown_path = sanitize_setting_text(str(path))
    try:
        with path.open("rb") as file:
            data, mode = file.read(MAX_CONF_BYTES + 1), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is not a valid path"
        raise SettingsError(f"the settings file {shown_path} cannot be read: {reason}") from error
    if len(data) > MAX_CONF_BYTES:
        raise SettingsError(
            f"the settings file {shown_path} is larger than {MAX_CONF_BYTES // 1024} KB and is not read"
        )
    values, file_warnings = parse_conf_file(data, str(path))
    has_secret = any(value.text for key, value in values.items() if key in SETTINGS and SETTINGS[key].is_secret)
    if has_secret and mode & stat.S_IROTH:
        file_warnings.append(f"{shown_path} contains a token or password, and every user here can read it: chmod o-r")
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
            warnings.append(f"{sanitize_setting_text(str(path))} belongs to another user and is ignored")
            continue
        return path
    return None


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
        is_value_after_blank = key in KNOWN_SETTINGS and key not in values and value.startswith((" ", "\t"))
        if (key.startswith(SETTING_PREFIXES) and key.endswith((" ", "\t"))) or is_value_after_blank:
            shown_key = sanitize_setting_text(key.split(maxsplit=1)[0])
            raise SettingsError(f"{where}: spaces around = are not allowed; write {shown_key}=value")
        if len(warnings) >= MAX_WARNINGS and key not in KNOWN_SETTINGS:
            continue  # nobody reads more warnings
        if key not in KNOWN_SETTINGS:
            warnings.append(f"{where}: {describe_unknown_conf_line(key, equals)}")
        elif key in values:
            warnings.append(f"{where}: {key} is already set in line {values[key].line}; the first value counts")
        elif not equals:
            raise SettingsError(f"{where}: {key} has no =; write {key}=value")
        else:
            values[key] = SettingValue(value[:-1] if value.endswith("\r") else value, path, number)
            value = values[key].text
            if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
                warnings.append(f"{where}: the quotes around {key} are part of its value; remove them")
            if value.endswith((" ", "\t", "\r")):
                warnings.append(f"{where}: the space at the end of {key} is part of its value; remove it")
    return values, warnings[:MAX_WARNINGS]


def describe_unknown_conf_line(key: str, equals: str) -> str:
    """Explain why a line is ignored."""
    if key in ENVIRONMENT_ONLY:
        return f"{key} only counts in the environment; this line is ignored"
    if not equals or not key.startswith(SETTING_PREFIXES):
        return "not a KEY=value line; it is ignored"
    similar = difflib.get_close_matches(key[:64], KNOWN_SETTINGS, 1)
    return f"there is no setting {sanitize_setting_text(key)}" + (f"; did you mean {similar[0]}?" if similar else "")
