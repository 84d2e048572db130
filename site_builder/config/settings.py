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
from site_builder.core.model import AlertSettings, BookingRules, ConsulAccess, KvAccess, Limits, Shown, SlackAccess

MASK = "•••"
FOLDERS = ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
BOOK = ("url", "open", "for_others", "gpus", "hours", "longest", "ahead", "keep")
USER_AND_PASSWORD = re.compile(r"//[^/]*@")


class Wrong(Exception):
    """What is wrong with the settings, in one sentence: which one, from where, and what is allowed."""


@dataclass(frozen=True)
class Given:
    """A value as it was written, and where: `origin` is `default`, `environment`, a flag, or the path of the file."""

    text: str
    origin: str
    line: int | None = None
    empty: bool = False  # it was written as nothing, so the text is the default

    @property
    def where(self) -> str:
        """For a message that must stand alone."""
        words = self.origin if self.line is None else f"{self.origin}, line {self.line}"
        return f"{words}, empty" if self.empty else words

    @property
    def where_short(self) -> str:
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
    limits: Limits
    shown: Shown
    consul: ConsulAccess | None
    kv: KvAccess | None = None
    notice: str | None = None
    listen: tuple[str, int] = ("127.0.0.1", 8080)
    rules: BookingRules = field(default_factory=BookingRules)
    url: str | None = None
    token: str | None = None
    htpasswd: str | None = None
    server_names: frozenset[str] = frozenset()
    login: str | None = None
    alerts: AlertSettings = field(default_factory=AlertSettings)
    snapshot_bytes: int = 1024 * 1024  # of each file that a host sends


BY_NAME = {setting.name: setting for setting in SETTINGS}


def resolve(flags: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, Given]) -> dict[str, Given]:
    """For each setting what is in force: flag over environment over file over default; nothing means the default.

    An empty environment variable hides the file, as in sh.
    """
    found = {}
    for setting in SETTINGS:
        if setting.flag and setting.name in flags:
            given = Given(flags[setting.name], setting.flag)
        elif setting.name in environment:
            given = Given(environment[setting.name], "environment")
        else:
            given = file.get(setting.name, Given(setting.default, "default"))
        if not given.text and given.origin not in ("default", setting.flag):
            given = Given(setting.default, given.origin, given.line, empty=True)
        found[setting.name] = given
    return found


def settings_of(
    given: Mapping[str, Given], zone_of: Callable[[str], tzinfo], place_of: Callable[[Path], Path]
) -> Settings:
    """What is in force, parsed; `zone_of` knows the zones (else ValueError), `place_of` where a folder really is."""
    read = {name: value_of(BY_NAME[name], given[name]) for name in given if not name.startswith("CONSUL_")}
    try:
        zone = zone_of(read["GPUBOARD_ZONE"] or "")
    except ValueError as error:
        raise refused(BY_NAME["GPUBOARD_ZONE"], given["GPUBOARD_ZONE"]) from error
    check_folders(given, {name: place_of(read[name]) for name in FOLDERS})
    limits = Limits(**{one.name: read[f"GPUBOARD_{one.name.upper()}"] for one in fields(Limits)})
    if limits.down_after <= limits.stale_after:
        first, then = (told(given, name) for name in ("GPUBOARD_STALE_AFTER", "GPUBOARD_DOWN_AFTER"))
        message = f"{then} must be longer than {first}: a host is first stale, then down"
        raise Wrong(message)
    return Settings(
        data=read["GPUBOARD_DATA"],
        www=read["GPUBOARD_WWW"],
        state=read["GPUBOARD_STATE"],
        zone=zone,
        limits=limits,
        shown=Shown(read["GPUBOARD_SHOW_COMMANDS"], read["GPUBOARD_SHOW_USERS"]),
        consul=consul_of(given, read["GPUBOARD_CONSUL_SERVICE"], read["GPUBOARD_CONSUL_DATACENTER"]),
        kv=kv_of(given, read["GPUBOARD_KV"], read["GPUBOARD_CONSUL_DATACENTER"]),
        notice=read["GPUBOARD_NOTICE"],
        listen=read["GPUBOARD_LISTEN"],
        rules=BookingRules(
            **{name: read[f"GPUBOARD_BOOK_{name.upper()}"] for name in BOOK},
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


def consul_of(given: Mapping[str, Given], service: str | None, datacenter: str | None) -> ConsulAccess | None:
    """How Consul is asked. Without a service, the CONSUL_ variables of the environment are somebody else's business."""
    return None if service is None else access_of(given, service, datacenter)


def kv_of(given: Mapping[str, Given], place: tuple[str, str] | None, datacenter: str | None) -> KvAccess | None:
    """The same for the KV store, which has an address of its own."""
    if place is None:
        return None
    address, prefix = place
    access = access_of(given, "", datacenter)
    return KvAccess(replace(access, address=address, named_by="GPUBOARD_KV"), prefix)


def access_of(given: Mapping[str, Given], service: str, datacenter: str | None) -> ConsulAccess:
    """As Consul's own variables say."""
    read = {name: value_of(BY_NAME[name], given[name]) for name in given if name.startswith("CONSUL_")}
    if (read["CONSUL_CLIENT_CERT"] is None) != (read["CONSUL_CLIENT_KEY"] is None):
        names = ("CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY")
        has, lacks = names if read[names[0]] else names[::-1]
        message = f"{told(given, has)} is of no use without {lacks}: set both, or none"
        raise Wrong(message)
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


def check_folders(given: Mapping[str, Given], places: Mapping[str, Path]) -> None:
    """No two folders may be one, and nothing but the site may be served."""
    for name, other in combinations(places, 2):
        if places[name] == places[other]:
            message = f"{told(given, name)} and {told(given, other)} are one folder, but must be two"
            raise Wrong(message)
    for name, why in (("GPUBOARD_STATE", "it holds tokens"), ("GPUBOARD_DATA", "it names people and what they run")):
        if places["GPUBOARD_WWW"] in places[name].parents:
            message = f"{told(given, name)} lies inside {told(given, 'GPUBOARD_WWW')} and would be served: {why}"
            raise Wrong(message)


def told(given: Mapping[str, Given], name: str) -> str:
    """A setting, its value and its origin, within a sentence."""
    return f"{name}={masked(given[name].text)} ({shown_text(given[name].where)})"


def value_of(setting: Setting, given: Given) -> Any:  # noqa: ANN401 # each kind has its own
    """The value, or why it is wrong."""
    try:
        return setting.kind.parse(given.text)
    except ValueError:
        raise refused(setting, given) from None


def refused(setting: Setting, given: Given) -> Wrong:
    """The sentence; a secret is not repeated in it."""
    what = "is set" if setting.secret else f"is '{masked(given.text)}'"
    return Wrong(f"{setting.name} {what} ({shown_text(given.where)}), {setting.kind.refusal}")


def shown_text(text: str) -> str:
    """For a terminal: nothing in it that moves the cursor, and no end of screens."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 200 else f"{text[:199]}…"


def masked(text: str) -> str:
    """The same, without the password of an address."""
    return USER_AND_PASSWORD.sub(f"//{MASK}@", shown_text(text))


def shown_value(setting: Setting, given: Given) -> str:
    """What a person may see of a value that was found right."""
    if setting.secret:
        return MASK if given.text else ""
    return masked(setting.kind.show(given.text))
