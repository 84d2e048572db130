"""All settings, read from settings.ini: default, purpose, and type, with the words that refuse any other value."""

from __future__ import annotations

import re
from collections.abc import Callable
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from site_builder.core.clock import ZONE_PATTERN
from site_builder.core.people import fold_login

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION_PATTERN = re.compile(r"([0-9]{1,9})([smhd]?)")
NUMBER_PATTERN = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
ADDRESS_PATTERN = re.compile(r"(?:(https?)://)?((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5}))/?")
KV_PATTERN = re.compile(
    r"consul://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?)"
    r"/(?=.{1,200}\Z)(?!.*\.\.)(\w[\w.-]*(?:/\w[\w.-]*)*)/?",
    re.A,
)
URL_PATTERN = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9/._~%-]*)?")
LISTEN_PATTERN = re.compile(r"(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})")
DEFAULT_CONSUL_PORT = 8500
CHANNEL_PATTERN = re.compile(r"(?:([a-z][a-z0-9-]{0,31})=)?([a-z][a-z0-9+.-]{0,31}://[!-~]{1,2000})")
NAME_IN_CONSUL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
FOLDER_REFUSAL = "but must be a folder without ~ or $, which are not expanded"
# An unencrypted token is sent to this machine only.
SLACK_PATTERN = re.compile(r"(?:https://[A-Za-z0-9.-]+|http://127\.0\.0\.1)(?::[0-9]{1,5})?/[A-Za-z0-9/._~-]*")
SERVER_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
MOST_SERVER_NAMES = 50
# Settings of GPU hosts, which scripts/lib/settings.sh reads from the file; see docs/hosts.md.
HOST_SETTINGS = (
    *("GPUBOARD_DEST", "GPUBOARD_GPUS_EVERY", "GPUBOARD_PROCESSES_EVERY", "GPUBOARD_PS_EVERY", "GPUBOARD_LIMIT"),
    *("GPUBOARD_NVIDIA", "GPUBOARD_AMD", "GPUBOARD_SSH_CONFIG", "GPUBOARD_SSH_KEY", "GPUBOARD_DISK_USE"),
    "GPUBOARD_SPOOL",
)
# Read from the environment only.
ENVIRONMENT_ONLY = ("GPUBOARD_CONF", "GPUBOARD_PROC", "GPUBOARD_USER")
# Words with another meaning in rules.
RESERVED_CHANNEL_NAMES = frozenset({"all", "person", "hooks", "none"})


@dataclass(frozen=True)
class SettingType:
    """What a value may be: `parse` raises ValueError for any other, and `refusal` then ends the sentence."""

    refusal: str
    parse: Callable[[str], Any]
    format_value: Callable[[str], str] = str


def match_setting_text(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if not match:
        raise ValueError(text)
    return match


def parse_seconds_setting(text: str) -> int:
    """Parse `90`, `90s`, `10m`, `2h` or `1d`."""
    match = match_setting_text(DURATION_PATTERN, text)
    return int(match[1]) * DURATION_UNITS[match[2] or "s"]


def format_duration_setting(seconds: int) -> str:
    """Format in the largest unit that divides the seconds, but a minute stays 60s."""
    unit = "s"
    for larger, size in DURATION_UNITS.items():
        if seconds > 60 and not seconds % size:
            unit = larger
    return f"{seconds // DURATION_UNITS[unit]}{unit}"


def check_setting_range(value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def build_duration_type(least: int, most: int) -> SettingType:
    return SettingType(
        f"but must be a time from {format_duration_setting(least)} to {format_duration_setting(most)}, "
        "such as 30s, 10m, 2h or 1d",
        lambda text: check_setting_range(parse_seconds_setting(text), least, most),
        lambda text: format_duration_setting(parse_seconds_setting(text)),
    )


def build_number_type(least: int, most: int) -> SettingType:
    return SettingType(
        f"but must be a number from {least} to {most}",
        # float() itself accepts nan, inf, 1e3 and 1_0
        lambda text: check_setting_range(float(match_setting_text(NUMBER_PATTERN, text)[0]), least, most),
    )


def build_choice_type(**values: object) -> SettingType:
    """Accept some words, each with its value."""

    def parse(text: str) -> object:
        if text not in values:
            raise ValueError(text)
        return values[text]

    *words, last = values
    return SettingType(f"but must be {', '.join(words)} or {last}", parse)


def build_text_type(pattern: re.Pattern[str], allowed: str) -> SettingType:
    """Accept a text of a certain form; empty is None."""
    return SettingType(f"but must be {allowed}", lambda text: match_setting_text(pattern, text)[0] if text else None)


def parse_folder_setting(text: str) -> Path:
    """Accept a folder as written; `~` and `$` would never be expanded."""
    if not parse_file_setting(text) or text[0] in "~$":
        raise ValueError(text)
    return Path(text)


def parse_file_setting(text: str) -> str | None:
    """Accept a path; empty is None."""
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(text)
    return text or None


def parse_consul_address_setting(text: str) -> tuple[str, bool]:
    """Return `host:port`, and whether it begins with https://."""
    match = match_setting_text(ADDRESS_PATTERN, text)
    check_setting_range(int(match[3]), 1, 65535)
    return match[2], match[1] == "https"


def parse_kv_setting(text: str) -> tuple[str, str] | None:
    """Return `host:port` and prefix of `consul://host:port/prefix`; None if empty."""
    if not text:
        return None
    match = match_setting_text(KV_PATTERN, text)
    check_setting_range(int(match[2] or DEFAULT_CONSUL_PORT), 1, 65535)
    return match[1] if match[2] else f"{match[1]}:{DEFAULT_CONSUL_PORT}", match[3]


def parse_listen_setting(text: str) -> tuple[str, int]:
    """Return address and port of `address:port`, or of a port on this machine; IPv6 loses its brackets."""
    match = match_setting_text(LISTEN_PATTERN, text)
    check_setting_range(int(match[2]), 1, 65535)
    return (match[1] or "127.0.0.1").strip("[]"), int(match[2])


def parse_channels_setting(text: str) -> tuple[tuple[str, str], ...]:
    """Return names and URLs of `name=url name=url`; a URL without a name is called lab."""
    channels: dict[str, str] = {}
    for word in text.split():
        match = CHANNEL_PATTERN.fullmatch(word)
        if not match or (name := match[1] or "lab") in channels or name in RESERVED_CHANNEL_NAMES:
            raise ValueError(word)
        channels[name] = match[2]
    return tuple(channels.items())


def parse_logins_setting(text: str) -> frozenset[str]:
    """Split at commas or blanks, in lower case."""
    return frozenset(fold_login(text).replace(",", " ").split())


def parse_server_names_setting(text: str) -> frozenset[str]:
    """Split at commas or blanks, in lower case without a dot at the end."""
    names = frozenset(name.rstrip(".") for name in text.lower().replace(",", " ").split())
    if len(names) > MOST_SERVER_NAMES or not all(map(SERVER_NAME.fullmatch, names)):
        raise ValueError(text)
    return names


def parse_boolean_setting(text: str) -> bool:
    """Accept what Consul's own programs accept, since it may be in the environment already."""
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "t", "1")


LISTEN = SettingType(
    "but must be address:port or a port, such as 0.0.0.0:8080, [::1]:8080 or 8080", parse_listen_setting
)
# The types that settings.ini names.
SETTING_TYPES = {
    "yes or no": build_choice_type(yes=True, no=False),
    "commands shown": build_choice_type(full="full", program="program", none="none"),
    "boolean": SettingType("but must be true or false", parse_boolean_setting),
    "folder": SettingType(FOLDER_REFUSAL, parse_folder_setting),
    "optional folder": SettingType(FOLDER_REFUSAL, lambda text: parse_folder_setting(text) if text else None),
    "file": SettingType("but must be the path of a file", parse_file_setting),
    "zone": SettingType("but must be a time zone such as Europe/Paris", build_text_type(ZONE_PATTERN, "").parse),
    "sentence": build_text_type(re.compile(r"[^\x00-\x1f\x7f]{1,500}"), "one line of at most 500 characters"),
    "listen address": LISTEN,
    "server names": SettingType(
        f"but must be at most {MOST_SERVER_NAMES} names without ports, separated by commas, such as gpus.lab.org",
        parse_server_names_setting,
    ),
    "server path": build_text_type(
        # no scheme, no host, no `..`
        re.compile(r"(?!//)(?!.*\.\.)[A-Za-z0-9/][A-Za-z0-9/._~-]{0,199}"),
        "a path on the board's own server, such as book or /cgi-bin/book.cgi",
    ),
    "board URL": SettingType(
        "but must be an address such as https://gpus.lab.org/; a name and password for it go into GPUBOARD_LOGIN",
        lambda text: match_setting_text(URL_PATTERN, text)[0].rstrip("/") + "/" if text else None,
    ),
    "token": build_text_type(re.compile(r"[!-~]{1,4096}"), "a token without blanks"),
    "password": build_text_type(re.compile(r"[^\x00-\x1f\x7f]{1,500}"), "a password of at most 500 letters"),
    "name and password": build_text_type(
        re.compile(r"[^:\x00-\x20\x7f][^:\x00-\x1f\x7f]{0,99}:[^\x00-\x1f\x7f]{1,500}"),
        "a name, a colon and a password",
    ),
    "logins": SettingType("but must be logins separated by commas", parse_logins_setting),
    "IP address": build_text_type(re.compile(r"[0-9A-Fa-f.:]{2,45}"), "the IP address of a proxy"),
    "header name": build_text_type(re.compile(r"[A-Za-z0-9-]{1,64}"), "the name of an HTTP header"),
    "channels": SettingType(
        "but must be URLs such as slack://… separated by spaces, with names if there are several: "
        "lab=slack://… ops=mailto://…",
        parse_channels_setting,
    ),
    "mail URL": SettingType(
        "but must be the address of a mail server such as mailtos://user:password@smtp.lab.org?from=gpus@lab.org",
        build_text_type(re.compile(r"mailtos?://[!-~]{1,2000}"), "").parse,
    ),
    "domain": build_text_type(
        re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*"), "a domain such as lab.org"
    ),
    "Slack URL": SettingType(
        "but must be an address such as https://slack.com/api/",
        lambda text: match_setting_text(SLACK_PATTERN, text)[0].rstrip("/") + "/",
    ),
    "Slack bot token": build_text_type(
        re.compile(r"xoxb-[A-Za-z0-9-]{1,500}"), "the bot token of a Slack app, which begins with xoxb-"
    ),
    "Slack app token": build_text_type(
        re.compile(r"xapp-[A-Za-z0-9-]{1,500}"), "the app-level token of a Slack app, which begins with xapp-"
    ),
    "Consul service": build_text_type(NAME_IN_CONSUL, "the name of a service: letters, digits and . _ -"),
    "Consul datacenter": build_text_type(NAME_IN_CONSUL, "the name of a datacenter: letters, digits and . _ -"),
    "Consul address": SettingType(
        "but must be host:port, http://host:port or https://host:port", parse_consul_address_setting
    ),
    "KV URL": SettingType(
        "but must be an address and a prefix such as consul://127.0.0.1:8500/gpuboard", parse_kv_setting
    ),
}


@dataclass(frozen=True)
class Setting:
    default: str
    value_type: SettingType
    description: str
    prevented_failure: str
    flag: str | None = None
    is_secret: bool = False


def load_settings_schema() -> dict[str, Setting]:
    table = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    table.read(Path(__file__).with_name("settings.ini"), "utf-8")
    settings = {}
    for name in table.sections():
        row = {key: " ".join(value.split()) for key, value in table[name].items()}
        kind, *bounds = row["type"].split()
        if kind == "time":
            value_type = build_duration_type(*map(parse_seconds_setting, bounds))
        elif kind == "number":
            value_type = build_number_type(*map(int, bounds))
        else:
            value_type = SETTING_TYPES[row["type"]]
        settings[name] = Setting(
            default=row.get("default", ""),
            value_type=value_type,
            description=row["purpose"],
            prevented_failure=row.get("prevents", ""),
            flag=row.get("flag"),
            is_secret="secret" in row,
        )
    return settings


SETTINGS = load_settings_schema()
