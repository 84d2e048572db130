"""Which value of each setting is in force, and what it means. Files are read in sources/conf."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import tzinfo
from itertools import combinations
from pathlib import Path
from typing import Any

from site_builder.config.schema import SETTINGS, Setting
from site_builder.core.model import (
    AlertSettings,
    BookingPolicy,
    ConsulAccess,
    KvAccess,
    PrivacySettings,
    SlackAccess,
    StateLimits,
)

SECRET_MASK = "•••"  # noqa: S105
FOLDER_SETTINGS = ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
URL_CREDENTIALS = re.compile(r"//[^/]*@")


class SettingsError(Exception):
    """What is wrong with the settings, in one sentence: which one, from where, and what is allowed."""


@dataclass(frozen=True)
class SettingValue:
    """A value as it was written, and where: `origin` is `default`, `environment`, a flag, or the path of the file."""

    text: str
    origin: str
    line: int | None = None
    was_empty: bool = False  # it was written as nothing, so the text is the default

    @property
    def where(self) -> str:
        """For a message that must stand alone."""
        words = self.origin if self.line is None else f"{self.origin}, line {self.line}"
        return f"{words}, empty" if self.was_empty else words

    @property
    def short_where(self) -> str:
        """For a table whose first line names the file."""
        return self.where if self.line is None else self.where.rpartition("/")[2]


@dataclass(frozen=True)
class Settings:
    """What is in force; relative folders count from where we are started.

    `consul` is None unless a service is set, and `kv` unless its place is.
    """

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
    snapshot_bytes: int = 1024 * 1024  # of each file that a host sends


SETTINGS_BY_NAME = {setting.name: setting for setting in SETTINGS}


def resolve_setting_values(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """For each setting what is in force: flag over environment over file over default; nothing means the default.

    An empty environment variable hides the file, as in sh.
    """
    found = {}
    for setting in SETTINGS:
        if setting.flag and setting.name in flags:
            given = SettingValue(flags[setting.name], setting.flag)
        elif setting.name in environment:
            given = SettingValue(environment[setting.name], "environment")
        else:
            given = file.get(setting.name, SettingValue(setting.default, "default"))
        if not given.text and given.origin not in ("default", setting.flag):
            given = SettingValue(setting.default, given.origin, given.line, was_empty=True)
        found[setting.name] = given
    return found


def build_settings(
    given: Mapping[str, SettingValue], zone_of: Callable[[str], tzinfo], place_of: Callable[[Path], Path]
) -> Settings:
    """What is in force, parsed; `zone_of` knows the zones (else ValueError), `place_of` where a folder really is."""
    read = {name: parse_value(SETTINGS_BY_NAME[name], given[name]) for name in given if not name.startswith("CONSUL_")}
    try:
        zone = zone_of(read["GPUBOARD_ZONE"] or "")
    except ValueError as error:
        raise build_settings_error(SETTINGS_BY_NAME["GPUBOARD_ZONE"], given["GPUBOARD_ZONE"]) from error
    check_folders(given, {name: place_of(read[name]) for name in FOLDER_SETTINGS})
    limits = StateLimits(**{one.name: read[f"GPUBOARD_{one.name.upper()}"] for one in fields(StateLimits)})
    if limits.down_after <= limits.stale_after:
        first, then = (describe_value(given, name) for name in ("GPUBOARD_STALE_AFTER", "GPUBOARD_DOWN_AFTER"))
        message = f"{then} must be longer than {first}: a host is first stale, then down"
        raise SettingsError(message)
    return Settings(
        data=read["GPUBOARD_DATA"],
        www=read["GPUBOARD_WWW"],
        state=read["GPUBOARD_STATE"],
        zone=zone,
        limits=limits,
        privacy=PrivacySettings(read["GPUBOARD_SHOW_COMMANDS"], read["GPUBOARD_SHOW_USERS"]),
        consul=build_consul_access(given, read["GPUBOARD_CONSUL_SERVICE"], read["GPUBOARD_CONSUL_DATACENTER"]),
        kv=build_kv_access(given, read["GPUBOARD_KV"], read["GPUBOARD_CONSUL_DATACENTER"]),
        notice=read["GPUBOARD_NOTICE"],
        listen=read["GPUBOARD_LISTEN"],
        booking_policy=BookingPolicy(
            url=read["GPUBOARD_BOOK_URL"],
            is_open=read["GPUBOARD_BOOK_OPEN"],
            can_book_for_others=read["GPUBOARD_BOOK_FOR_OTHERS"],
            max_gpus=read["GPUBOARD_BOOK_GPUS"],
            max_gpu_hours=read["GPUBOARD_BOOK_HOURS"],
            max_duration_s=read["GPUBOARD_BOOK_LONGEST"],
            max_ahead_s=read["GPUBOARD_BOOK_AHEAD"],
            retention_s=read["GPUBOARD_BOOK_KEEP"],
            admins=read["GPUBOARD_ADMINS"],
            proxy=read["GPUBOARD_PROXY"],
            proxy_header=read["GPUBOARD_PROXY_HEADER"],
        ),
        url=read["GPUBOARD_URL"],
        token=read["GPUBOARD_TOKEN"],
        htpasswd=read["GPUBOARD_HTPASSWD"],
        server_names=read["GPUBOARD_SERVER_NAMES"],
        login=read["GPUBOARD_LOGIN"],
        alerts=AlertSettings(
            read["GPUBOARD_NOTIFY"],
            read["GPUBOARD_MAIL"],
            read["GPUBOARD_MAIL_DOMAIN"],
            read["GPUBOARD_HOOKS"],
            read["GPUBOARD_ALERTS"],
            read["GPUBOARD_CONTACTS"],
            SlackAccess(read["GPUBOARD_SLACK_BOT_TOKEN"], read["GPUBOARD_SLACK_APP_TOKEN"], read["GPUBOARD_SLACK_URL"]),
        ),
        snapshot_bytes=int(read["GPUBOARD_SNAPSHOT_KIB"] * 1024),
    )


def build_consul_access(
    given: Mapping[str, SettingValue], service: str | None, datacenter: str | None
) -> ConsulAccess | None:
    """How Consul is asked. Without a service, the CONSUL_ variables of the environment are somebody else's business."""
    return None if service is None else parse_consul_variables(given, service, datacenter)


def build_kv_access(
    given: Mapping[str, SettingValue], place: tuple[str, str] | None, datacenter: str | None
) -> KvAccess | None:
    """The same for the KV store, which has an address of its own."""
    if place is None:
        return None
    address, prefix = place
    access = parse_consul_variables(given, "", datacenter)
    return KvAccess(replace(access, address=address, address_setting="GPUBOARD_KV"), prefix)


def parse_consul_variables(given: Mapping[str, SettingValue], service: str, datacenter: str | None) -> ConsulAccess:
    """As Consul's own variables say."""
    read = {name: parse_value(SETTINGS_BY_NAME[name], given[name]) for name in given if name.startswith("CONSUL_")}
    if (read["CONSUL_CLIENT_CERT"] is None) != (read["CONSUL_CLIENT_KEY"] is None):
        names = ("CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY")
        has, lacks = names if read[names[0]] else names[::-1]
        message = f"{describe_value(given, has)} is of no use without {lacks}: set both, or none"
        raise SettingsError(message)
    address, https = read["CONSUL_HTTP_ADDR"]
    return ConsulAccess(
        service,
        datacenter,
        address,
        token=read["CONSUL_HTTP_TOKEN"],
        tls=https or read["CONSUL_HTTP_SSL"],
        verify=read["CONSUL_HTTP_SSL_VERIFY"],
        ca=read["CONSUL_CACERT"],
        cert=read["CONSUL_CLIENT_CERT"],
        key=read["CONSUL_CLIENT_KEY"],
    )


def check_folders(given: Mapping[str, SettingValue], places: Mapping[str, Path]) -> None:
    """No two folders may be one, and nothing but the site may be served."""
    for name, other in combinations(places, 2):
        if places[name] == places[other]:
            message = (
                f"{describe_value(given, name)} and {describe_value(given, other)} are one folder, but must be two"
            )
            raise SettingsError(message)
    for name, why in (("GPUBOARD_STATE", "it holds tokens"), ("GPUBOARD_DATA", "it names people and what they run")):
        if places["GPUBOARD_WWW"] in places[name].parents:
            message = f"{describe_value(given, name)} lies inside {describe_value(given, 'GPUBOARD_WWW')} and would be served: {why}"
            raise SettingsError(message)


def describe_value(given: Mapping[str, SettingValue], name: str) -> str:
    """A setting, its value and its origin, within a sentence."""
    return f"{name}={mask_credentials(given[name].text)} ({sanitize_text(given[name].where)})"


def parse_value(setting: Setting, given: SettingValue) -> Any:  # noqa: ANN401 # each kind has its own
    """The value, or why it is wrong."""
    try:
        return setting.value_type.parse(given.text)
    except ValueError:
        raise build_settings_error(setting, given) from None


def build_settings_error(setting: Setting, given: SettingValue) -> SettingsError:
    """The sentence; a secret is not repeated in it."""
    what = "is set" if setting.is_secret else f"is '{mask_credentials(given.text)}'"
    return SettingsError(f"{setting.name} {what} ({sanitize_text(given.where)}), {setting.value_type.refusal}")


def sanitize_text(text: str) -> str:
    """For a terminal: nothing in it that moves the cursor, and no end of screens."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 200 else f"{text[:199]}…"


def mask_credentials(text: str) -> str:
    """The same, without the password of an address."""
    return URL_CREDENTIALS.sub(f"//{SECRET_MASK}@", sanitize_text(text))


def format_setting_value(setting: Setting, given: SettingValue) -> str:
    """What a person may see of a value that was found right."""
    if setting.is_secret:
        return SECRET_MASK if given.text else ""
    return mask_credentials(setting.value_type.format_value(given.text))
