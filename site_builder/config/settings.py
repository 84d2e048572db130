"""Which value of each setting is in force, and what it means; conf_file reads the file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import tzinfo
from itertools import combinations
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from site_builder.config.schema import SETTINGS
from site_builder.config.types import ZONE_PATTERN
from site_builder.core.model import (
    AlertSettings,
    BookingPolicy,
    ConsulAccess,
    KvAccess,
    PrivacySettings,
    SlackAccess,
    StateLimits,
)
from site_builder.core.terminal_text import replace_unprintable

SECRET_MASK = "•••"  # noqa: S105
URL_CREDENTIALS = re.compile(r"//[^/]*@")


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
    limits: StateLimits
    privacy: PrivacySettings
    consul: ConsulAccess | None
    kv: KvAccess | None = None
    notice: str | None = None
    listen: tuple[str, int] = ("127.0.0.1", 8080)
    booking_policy: BookingPolicy = field(default_factory=BookingPolicy)
    url: str | None = None
    token: str | None = None
    htpasswd: str | None = None
    server_names: frozenset[str] = frozenset()
    login: str | None = None
    alerts: AlertSettings = field(default_factory=AlertSettings)
    snapshot_bytes: int = 1024 * 1024  # largest file of a host that is read


def resolve_setting_values(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """Choose the value in force: flag over environment over file over default; an empty value means the default.

    An empty environment variable hides the file, as in sh.
    """
    values = {}
    for name, setting in SETTINGS.items():
        if setting.flag and name in flags:
            value = SettingValue(flags[name], setting.flag)
        elif name in environment:
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
    folders = ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
    check_setting_folders(values, {name: resolve_conf_folder(parsed[name]) for name in folders})
    limits = StateLimits(**{limit.name: parsed[f"GPUBOARD_{limit.name.upper()}"] for limit in fields(StateLimits)})
    if limits.down_after <= limits.stale_after:
        stale, down = (describe_setting_value(values, name) for name in ("GPUBOARD_STALE_AFTER", "GPUBOARD_DOWN_AFTER"))
        raise SettingsError(f"{down} must be longer than {stale}: a host is first stale, then down")
    consul, kv = None, None
    # without a service or a KV store, CONSUL_ variables in the environment belong to other programs, and are not parsed
    if service := parsed["GPUBOARD_CONSUL_SERVICE"]:
        consul = parse_consul_variables(values, service, parsed["GPUBOARD_CONSUL_DATACENTER"])
    if parsed["GPUBOARD_KV"]:
        address, prefix = parsed["GPUBOARD_KV"]
        access = parse_consul_variables(values, "", parsed["GPUBOARD_CONSUL_DATACENTER"])
        kv = KvAccess(replace(access, address=address, address_setting="GPUBOARD_KV"), prefix)
    return Settings(
        data=parsed["GPUBOARD_DATA"],
        www=parsed["GPUBOARD_WWW"],
        state=parsed["GPUBOARD_STATE"],
        zone=zone,
        limits=limits,
        privacy=PrivacySettings(parsed["GPUBOARD_SHOW_COMMANDS"], parsed["GPUBOARD_SHOW_USERS"]),
        consul=consul,
        kv=kv,
        notice=parsed["GPUBOARD_NOTICE"],
        listen=parsed["GPUBOARD_LISTEN"],
        booking_policy=BookingPolicy(
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
        url=parsed["GPUBOARD_URL"],
        token=parsed["GPUBOARD_TOKEN"],
        htpasswd=parsed["GPUBOARD_HTPASSWD"],
        server_names=parsed["GPUBOARD_SERVER_NAMES"],
        login=parsed["GPUBOARD_LOGIN"],
        alerts=AlertSettings(
            channels=parsed["GPUBOARD_NOTIFY"],
            mail_url=parsed["GPUBOARD_MAIL"],
            mail_domain=parsed["GPUBOARD_MAIL_DOMAIN"],
            hooks_folder=parsed["GPUBOARD_HOOKS"],
            rules_file=parsed["GPUBOARD_ALERTS"],
            contacts_file=parsed["GPUBOARD_CONTACTS"],
            slack=SlackAccess(
                parsed["GPUBOARD_SLACK_BOT_TOKEN"], parsed["GPUBOARD_SLACK_APP_TOKEN"], parsed["GPUBOARD_SLACK_URL"]
            ),
        ),
        snapshot_bytes=int(parsed["GPUBOARD_SNAPSHOT_KIB"] * 1024),
    )


def parse_consul_variables(values: Mapping[str, SettingValue], service: str, datacenter: str | None) -> ConsulAccess:
    parsed = {name: parse_setting_value(name, values[name]) for name in values if name.startswith("CONSUL_")}
    if (parsed["CONSUL_CLIENT_CERT"] is None) != (parsed["CONSUL_CLIENT_KEY"] is None):
        names = ("CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY")
        present, absent = names if parsed[names[0]] else names[::-1]
        raise SettingsError(
            f"{describe_setting_value(values, present)} is of no use without {absent}: set both, or none"
        )
    address, is_https = parsed["CONSUL_HTTP_ADDR"]
    return ConsulAccess(
        service,
        datacenter,
        address,
        token=parsed["CONSUL_HTTP_TOKEN"],
        tls=is_https or parsed["CONSUL_HTTP_SSL"],
        verify=parsed["CONSUL_HTTP_SSL_VERIFY"],
        ca=parsed["CONSUL_CACERT"],
        cert=parsed["CONSUL_CLIENT_CERT"],
        key=parsed["CONSUL_CLIENT_KEY"],
    )


def check_setting_folders(values: Mapping[str, SettingValue], places: Mapping[str, Path]) -> None:
    """Refuse two folders that are one, and folders inside www that must not be served."""
    for name, other_name in combinations(places, 2):
        if places[name] == places[other_name]:
            both = f"{describe_setting_value(values, name)} and {describe_setting_value(values, other_name)}"
            raise SettingsError(f"{both} are one folder, but must be two")
    for name, reason in (("GPUBOARD_STATE", "it holds tokens"), ("GPUBOARD_DATA", "it names people and what they run")):
        if places["GPUBOARD_WWW"] in places[name].parents:
            inside = (
                f"{describe_setting_value(values, name)} lies inside {describe_setting_value(values, 'GPUBOARD_WWW')}"
            )
            raise SettingsError(f"{inside} and would be served: {reason}")


def resolve_conf_folder(folder: Path) -> Path:
    """Resolve links, so that no link hides that two folders are one."""
    try:
        return Path(os.path.realpath(folder))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is not the name of a folder"
        raise SettingsError(
            f"cannot tell where the folder {sanitize_setting_text(str(folder))} is: {reason}"
        ) from error


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


LOCALTIME_FILE = Path("/etc/localtime")


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
