"""What can be set, what each setting may be, and which of its values is in force. Files are read in sources/conf."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import tzinfo
from itertools import combinations
from pathlib import Path
from typing import Any

from site_builder.kinds import (
    FILE,
    FOLDER,
    PERCENT,
    TRUTH,
    ZONE_NAME,
    Kind,
    address_of,
    choice,
    duration,
    matching,
    number,
)
from site_builder.model import ConsulAccess, Limits, Shown

MASK = "•••"
FOLDERS = ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
DAY = 86400
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TOKEN = re.compile(r"[!-~]{1,4096}")
USER_AND_PASSWORD = re.compile(r"//[^/]*@")

# Those that scripts/lib/settings.sh takes from the file: they count on the GPU hosts, docs/hosts.md tells of them.
HOST_SETTINGS = (
    "GPUBOARD_DEST",
    "GPUBOARD_GPUS_EVERY",
    "GPUBOARD_PROCESSES_EVERY",
    "GPUBOARD_PS_EVERY",
    "GPUBOARD_LIMIT",
    "GPUBOARD_SSH_CONFIG",
    "GPUBOARD_DISK_USE",
    "GPUBOARD_SPOOL",
)
# Those that neither side takes from the file.
ENVIRONMENT_ONLY = ("GPUBOARD_CONF", "GPUBOARD_PROC")


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
class Setting:
    """One thing that can be set; `prevents` is the failure that it prevents."""

    name: str
    default: str
    kind: Kind
    what: str
    prevents: str
    flag: str | None = None
    secret: bool = False


@dataclass(frozen=True)
class Settings:
    """What is in force. `consul` is None unless a service is set; relative folders count from where we are started."""

    data: Path
    www: Path
    state: Path
    zone: tzinfo
    limits: Limits
    shown: Shown
    consul: ConsulAccess | None


SETTINGS = (
    Setting(
        "GPUBOARD_DATA",
        "data",
        FOLDER,
        "the shared folder that the GPU hosts push to, with bookings and host list",
        "a board of the wrong fleet",
        flag="--data",
    ),
    Setting(
        "GPUBOARD_WWW",
        "www",
        FOLDER,
        "the folder that the web server serves, and that is written anew at each build",
        "a site where nobody looks",
        flag="--www",
    ),
    Setting(
        "GPUBOARD_STATE",
        "state",
        FOLDER,
        "what the builder remembers: last good snapshots, history, tokens; on a local disk, outside www",
        "a database on a network share, and tokens that are served",
        flag="--state",
    ),
    Setting(
        "GPUBOARD_ZONE",
        "",
        ZONE_NAME,
        "the time zone of dates without an offset, such as Europe/Paris; by default this machine's",
        "bookings that end hours early or late where the web host runs in UTC",
    ),
    Setting(
        "GPUBOARD_SHOW_COMMANDS",
        "full",
        choice(full="full", program="program", none="none"),
        "what is shown of commands: full, program (its name only) or none",
        "arguments, file names and project names on a page that others can read",
    ),
    Setting(
        "GPUBOARD_SHOW_USERS",
        "yes",
        choice(yes=True, no=False),
        "whether users are named: yes or no",
        "a public list of who works when",
    ),
    Setting(
        "GPUBOARD_STALE_AFTER",
        "30s",
        duration(0, DAY),
        "how much later than three intervals a snapshot may come before its host is stale",
        "old numbers that look like new ones; a longer one, hosts that flicker on a slow network",
    ),
    Setting(
        "GPUBOARD_DOWN_AFTER",
        "10m",
        duration(1, 30 * DAY),
        "how old a host's last word may be before it is down",
        "a dead host that is only called stale; a longer one, an alarm at each reboot",
    ),
    Setting(
        "GPUBOARD_CLOCK_OFF",
        "60s",
        duration(1, DAY),
        "how far a host's clock may be off before the board warns",
        "times of processes that are wrong, and nobody knows why",
    ),
    Setting(
        "GPUBOARD_IDLE_PERCENT",
        "5",
        PERCENT,
        "below this use, in percent, a GPU with memory taken counts as idle",
        "a forgotten notebook that passes for work",
    ),
    Setting(
        "GPUBOARD_HELD_AFTER",
        "2h",
        duration(0, 30 * DAY),
        "how long a GPU is idle with memory taken before it is held",
        "somebody blamed during a lunch break or a slow start",
    ),
    Setting(
        "GPUBOARD_FREE_PERCENT",
        "5",
        PERCENT,
        "below this share of memory in use, in percent, a GPU without a process is free",
        "memory that no process explains, and that would fail the next job",
    ),
    Setting(
        "GPUBOARD_FREE_MIB",
        "1024",
        number(0, 1024 * 1024),
        "the same limit in MiB; both must hold",
        "a large GPU called free while some GB of it are taken",
    ),
    Setting(
        "GPUBOARD_SOON",
        "1d",
        duration(0, 30 * DAY),
        "a free GPU that is promised within this time says until when it is free",
        "a long job begun an hour before somebody else's booking",
    ),
    Setting(
        "GPUBOARD_CONSUL_SERVICE",
        "",
        matching(NAME, "the name of a service: letters, digits and . _ -"),
        "the service that GPU hosts register in Consul; without it Consul is not asked",
        "a host that never pushed, and that nobody misses",
    ),
    Setting(
        "GPUBOARD_CONSUL_DATACENTER",
        "",
        matching(NAME, "the name of a datacenter: letters, digits and . _ -"),
        "the datacenter that is asked; by default the agent's own",
        "hosts of another site on the board, or none",
    ),
    Setting(
        "CONSUL_HTTP_ADDR",
        "127.0.0.1:8500",
        Kind("but must be host:port, with http:// or https:// before it or not", address_of),
        "where Consul answers, as host:port; https:// before it turns TLS on",
        "questions to an agent that is not there",
    ),
    Setting(
        "CONSUL_HTTP_TOKEN",
        "",
        matching(TOKEN, "a token without blanks"),
        "the ACL token; in a file that only the builder can read",
        "an empty host list where Consul shows nothing to strangers",
        secret=True,
    ),
    Setting(
        "CONSUL_HTTP_SSL",
        "false",
        TRUTH,
        "whether Consul is asked over TLS: true or false",
        "a token that crosses the network in the clear",
    ),
    Setting(
        "CONSUL_HTTP_SSL_VERIFY",
        "true",
        TRUTH,
        "whether its certificate is checked: true or false",
        "a token told to whoever answers",
    ),
    Setting(
        "CONSUL_CACERT",
        "",
        FILE,
        "the file with the authority that signed it; by default the system's",
        "a check turned off because the authority is your own",
    ),
    Setting(
        "CONSUL_CLIENT_CERT",
        "",
        FILE,
        "the file with our own certificate, where Consul wants one",
        "a refusal by Consul where it checks both sides",
    ),
    Setting(
        "CONSUL_CLIENT_KEY",
        "",
        FILE,
        "the file with its key",
        "the same",
    ),
)
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
    limits = Limits(**{field.name: read[f"GPUBOARD_{field.name.upper()}"] for field in fields(Limits)})
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
    )


def consul_of(given: Mapping[str, Given], service: str | None, datacenter: str | None) -> ConsulAccess | None:
    """How Consul is asked. Without a service, the CONSUL_ variables of the environment are somebody else's business."""
    if service is None:
        return None
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
