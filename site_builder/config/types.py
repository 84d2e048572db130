"""What a setting may be: times, numbers, folders, choices; each with the words that refuse any other value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from site_builder.core.names import folded

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"([0-9]{1,9})([smhd]?)")
NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
ADDRESS = re.compile(r"(?:(https?)://)?((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5}))/?")
KV = re.compile(
    r"consul://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?)/(?=.{1,200}\Z)(?!.*\.\.)(\w[\w.-]*(?:/\w[\w.-]*)*)/?",
    re.A,
)
URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9/._~%-]*)?")
WHERE = re.compile(r"(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})")
DEFAULT_PORT = 8500
CHANNEL = re.compile(r"(?:([a-z][a-z0-9-]{0,31})=)?([a-z][a-z0-9+.-]{0,31}://[!-~]{1,2000})")
WAY = re.compile(r"mailtos?://[!-~]{1,2000}")
# A token in the clear goes to this machine alone.
SLACK = re.compile(r"(?:https://[A-Za-z0-9.-]+|http://127\.0\.0\.1)(?::[0-9]{1,5})?/[A-Za-z0-9/._~-]*")
SERVER_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
MOST_SERVER_NAMES = 50
# What a rule calls somebody else by.
NO_CHANNELS = frozenset({"all", "person", "hooks", "none"})
# No dot and no slash at either end: such a name can never lead out of the folder of the zones.
ZONE = re.compile(r"(?=.{1,64}\Z)[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")


@dataclass(frozen=True)
class Kind:
    """What a value may be: `parse` raises ValueError for any other, and `refusal` then ends the sentence."""

    refusal: str
    parse: Callable[[str], Any]
    show: Callable[[str], str] = str


def seconds_of(text: str) -> int:
    """`90`, `90s`, `10m`, `2h` or `1d`, in seconds."""
    found = DURATION.fullmatch(text)
    if not found:
        raise ValueError(text)
    return int(found[1]) * UNITS[found[2] or "s"]


def duration_of(seconds: int) -> str:
    """Seconds as people write them: in the largest unit that takes them whole, but a minute stays 60s."""
    unit = "s"
    for larger, size in UNITS.items():
        if seconds > 60 and not seconds % size:
            unit = larger
    return f"{seconds // UNITS[unit]}{unit}"


def within(value: float, least: float, most: float) -> float:
    """The value, if it is in the range."""
    if not least <= value <= most:
        raise ValueError(value)
    return value


def duration(least: int, most: int) -> Kind:
    """A time from least to most."""
    return Kind(
        f"but must be a time from {duration_of(least)} to {duration_of(most)}, such as 30s, 10m, 2h or 1d",
        lambda text: within(seconds_of(text), least, most),
        lambda text: duration_of(seconds_of(text)),
    )


def number(least: int, most: int) -> Kind:
    """A plain number from least to most."""

    def parse(text: str) -> float:
        if not NUMBER.fullmatch(text):  # float() takes nan, inf, 1e3 and 1_0 too
            raise ValueError(text)
        return within(float(text), least, most)

    return Kind(f"but must be a number from {least} to {most}", parse)


def choice(**values: object) -> Kind:
    """One of some words, each with what it means."""

    def parse(text: str) -> object:
        if text not in values:
            raise ValueError(text)
        return values[text]

    *words, last = values
    return Kind(f"but must be {', '.join(words)} or {last}", parse)


def matching(pattern: re.Pattern[str], allowed: str) -> Kind:
    """A text of a certain form; nothing is None."""

    def parse(text: str) -> str | None:
        if text and not pattern.fullmatch(text):
            raise ValueError(text)
        return text or None

    return Kind(f"but must be {allowed}", parse)


def folder_of(text: str) -> Path:
    """A folder as it is written; one that waits for an expansion would be made under that very name."""
    if not file_of(text) or text[0] in "~$":
        raise ValueError(text)
    return Path(text)


def file_of(text: str) -> str | None:
    """A path; nothing is None."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise ValueError(text)
    return text or None


def address_of(text: str) -> tuple[str, bool]:
    """`host:port`, and whether https stands before it."""
    found = ADDRESS.fullmatch(text)
    if not found or not 1 <= int(found[3]) <= 65535:
        raise ValueError(text)
    return found[2], found[1] == "https"


def kv_of(text: str) -> tuple[str, str] | None:
    """`host:port` and prefix of `consul://host:port/prefix`; nothing is None."""
    found = KV.fullmatch(text)
    if text and (not found or not 1 <= int(found[2] or DEFAULT_PORT) <= 65535):
        raise ValueError(text)
    return (found[1] if found[2] else f"{found[1]}:{DEFAULT_PORT}", found[3]) if found else None


def listen_of(text: str) -> tuple[str, int]:
    """`address:port`, or a port of this machine alone; the brackets of an IPv6 address are taken away."""
    found = WHERE.fullmatch(text)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise ValueError(text)
    return (found[1] or "127.0.0.1").strip("[]"), int(found[2])


def url_of(text: str) -> str | None:
    """The address of a board, with the slash at its end by which all else is found; nothing is None."""
    if text and not URL.fullmatch(text):
        raise ValueError(text)
    return text.rstrip("/") + "/" if text else None


def channels_of(text: str) -> tuple[tuple[str, str], ...]:
    """Addresses with blanks between them, each with `name=` before it or not; one without is called lab."""
    found: dict[str, str] = {}
    for one in text.split():
        named = CHANNEL.fullmatch(one)
        if not named or (name := named[1] or "lab") in found or name in NO_CHANNELS:
            raise ValueError(one)
        found[name] = named[2]
    return tuple(found.items())


def way_of(text: str) -> str | None:
    """One such address, without a name; nothing is None."""
    if text and not WAY.fullmatch(text):
        raise ValueError(text)
    return text or None


def slack_of(text: str) -> str:
    """The address of an API, with a slash at its end."""
    if not SLACK.fullmatch(text):
        raise ValueError(text)
    return text.rstrip("/") + "/"


def names_of(text: str) -> frozenset[str]:
    """Logins, with commas or blanks between them, in lower case."""
    return frozenset(folded(text).replace(",", " ").split())


def server_names_of(text: str) -> frozenset[str]:
    """Parse names of a web server, with commas or blanks between them, to lower case without a dot at the end."""
    names = frozenset(name.rstrip(".") for name in text.lower().replace(",", " ").split())
    if len(names) > MOST_SERVER_NAMES or not all(map(SERVER_NAME.fullmatch, names)):
        raise ValueError(text)
    return names


def truth_of(text: str) -> bool:
    """As Consul's own programs take it, where it may be in the environment already."""
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "t", "1")


KV_PLACE = Kind("but must be an address and a prefix such as consul://127.0.0.1:8500/gpuboard", kv_of)
FOLDER = Kind("but must be a folder, without ~ or $: nothing is expanded in a setting", folder_of)
FILE = Kind("but must be the path of a file", file_of)
PERCENT = number(0, 100)
ZONE_NAME = Kind("which is not a time zone; write one as Europe/Paris", matching(ZONE, "").parse)
LISTEN = Kind("but must be address:port or a port, such as 0.0.0.0:8080, [::1]:8080 or 8080", listen_of)
SENTENCE = matching(re.compile(r"[^\x00-\x1f\x7f]{1,500}"), "one line of at most 500 letters")
BOARD_URL = Kind(
    "but must be an address such as https://gpus.lab.org/; a name and a password for it belong into GPUBOARD_LOGIN",
    url_of,
)
CHANNELS = Kind(
    "but must be addresses such as slack://…, each with a name before it where there are several: lab=slack://… ops=mailto://…",
    channels_of,
)
MAIL = Kind(
    "but must be the address of a mail server such as mailtos://user:password@smtp.lab.org?from=gpus@lab.org", way_of
)
SLACK_URL = Kind("but must be an address such as https://slack.com/api/", slack_of)
NAMES = Kind("but must be logins with commas between them", names_of)
SERVER_NAMES = Kind(
    f"but must be names such as gpus.lab.org, without a port, at most {MOST_SERVER_NAMES}, with commas between them",
    server_names_of,
)
TRUTH = Kind("but must be true or false", truth_of)
