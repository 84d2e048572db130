"""Answer requests for hosts in the shapes of other systems from status.json, as fresh as that; vesta's with history."""

from __future__ import annotations

import errno
import hmac
import re
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from datetime import datetime
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

import orjson

from site_builder.board.outputs import host_json
from site_builder.board.outputs.host_json import JOINED_FILES
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.formatting import MINUTE
from site_builder.fleet.status_json import split_status_hosts
from site_builder.history.reader import HistoryReader
from site_builder.web.identity import find_client_address, parse_ip_address
from site_builder.web.rate_limit import InMemoryRateLimiter

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Entries of a host in one response, a day of minutes, and of all hosts together.
MAX_ENTRIES, MAX_FLEET_ENTRIES = 1440, 5000
# Responses with history that are made at a time, or one client could keep the board from all others.
MAX_ACTIVE = 4
HOST_NAME_PATTERN = re.compile(rb'\{"name":"([^"\\]+)"')
BUILT_PATTERN = re.compile(rb'\{"schema":[0-9]+,"built":([0-9]{1,12}),')
# As for logins: an address may have 60 requests a minute, and so 10 wrong passwords.
WRONG_PASSWORD_COST = 6
WRONG_PASSWORD_MESSAGE = "The password of this request is wrong."  # noqa: S105


class NodePasswordError(Exception):
    """Why a request for a node is refused; `wait_s` is 0 unless its address must wait."""

    def __init__(self, message: str, wait_s: int = 0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class CompatHosts:
    """Makes the files of states/, nodes/ and nvgpu/ from status.json."""

    def __init__(self, settings: Settings) -> None:
        self.zone = settings.zone
        self.history = CompatHistory(settings)
        self.password = settings.node_password
        self.booking_policy = settings.booking_policy
        self.rate_limiter = InMemoryRateLimiter(time.monotonic)

    def check_password(self, environ: WSGIEnvironment, body: bytes) -> None:
        """Raise NodePasswordError unless the request has the password, if there is one."""
        if self.password is None:
            return
        address = find_client_address(environ, self.booking_policy)
        if wait_s := self.rate_limiter.find_wait_s(address, WRONG_PASSWORD_COST):
            message = f"Too many wrong passwords came from your address: try again in {wait_s} s."
            raise NodePasswordError(message, wait_s)
        given = ""
        with suppress(ValueError, LookupError, TypeError):
            given = orjson.loads(body)["passwd"]
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self.password.encode()):
            self.rate_limiter.penalize(address, WRONG_PASSWORD_COST)
            raise NodePasswordError(WRONG_PASSWORD_MESSAGE)

    def render(self, path: str, status: bytes, entry_count: int = 1) -> bytes | None:
        """Make a file of the content of status.json; None if that is not ours, or has no such host."""
        built = BUILT_PATTERN.match(status)
        shape = next((shape for shape in JOINED_FILES if path.startswith(f"{shape.name.partition('/')[0]}/")), None)
        if built is None or shape is None:
            return None
        now, lines = Now(int(built[1]), self.zone), split_status_hosts(status)
        if path == shape.name:
            content = shape.render_fleet(map(orjson.loads, lines), now)
        else:
            names = read_status_host_names(lines)
            line = next((line for line, name in zip(lines, names) if shape.build_host_path(name) == path), None)
            if line is None:
                return None
            content = shape.render_host(orjson.loads(line), now) + b"\n"
        return self.history(content, entry_count) if entry_count > 1 else content

    def has_file(self, path: str, status: bytes) -> bool:
        """Return whether `render` can make this file."""
        names = read_status_host_names(split_status_hosts(status)) if BUILT_PATTERN.match(status) else None
        return names is not None and any(
            path == shape.name or any(shape.build_host_path(name) == path for name in names) for shape in JOINED_FILES
        )


def read_status_host_names(lines: Iterable[bytes]) -> list[str]:
    """Return the name of each host, without parsing the rest of it."""
    return [name[1].decode() if (name := HOST_NAME_PATTERN.match(line)) else "" for line in lines]


def find_requested_host(status: bytes, requested: str) -> str | None:
    """Return the host that the name or address in a Host header means, or else the only host there is.

    A name may have another domain than on the board, or none, if only one host can be meant.
    """
    lines = split_status_hosts(status)
    names = read_status_host_names(lines)
    for name in names:
        if name.lower() == requested:
            return name
    if parse_ip_address(requested):
        matches = [name for name, line in zip(names, lines) if has_status_address(line, requested)]
    else:
        short, _, domain = requested.partition(".")
        same_short = [name for name in names if name.lower().partition(".")[0] == short]
        matches = [name for name in same_short if not domain or "." not in name]
    return matches[0] if len(matches) == 1 else names[0] if len(names) == 1 else None


def has_status_address(line: bytes, address: str) -> bool:
    """Return whether a host has this address; only lines with the text of it are parsed."""
    return f'"{address}"'.encode() in line and any(
        own_address == address for _, own_address in orjson.loads(line).get("addresses", ())
    )


class CompatHistory:
    """Answers `?fetch_num=N`: puts minutes of history before the one entry of each host."""

    def __init__(self, settings: Settings) -> None:
        self.state_folder, self.zone, self.privacy = settings.state, settings.zone, settings.privacy
        self.active = BoundedSemaphore(MAX_ACTIVE)

    def __call__(self, content: bytes, entry_count: int) -> bytes:
        """Return the hosts with up to `entry_count` entries each; raise OSError if too many clients ask at once."""
        if not self.active.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, "too many requests for the history of hosts at once")
        try:
            with suppress(ValueError, LookupError, TypeError, AttributeError):  # a file that is not ours stays as it is
                hosts = orjson.loads(content)
                if not hosts:
                    return content
                count = min(entry_count, MAX_ENTRIES, max(1, MAX_FLEET_ENTRIES // max(1, len(hosts))))
                contents = []
                with closing(HistoryReader(self.state_folder, self.zone)) as history:
                    for host, body in hosts.items():
                        data = [*self.read_entries_before(history, host, body["data"], count), *body["data"]]
                        contents.append(orjson.dumps({host: {**body, "data": data}}))
                return host_json.join_host_states_json(contents)
            return content
        finally:
            self.active.release()

    def read_entries_before(
        self, history: HistoryReader, host: str, entries: list[dict[str, Any]], entry_count: int
    ) -> list[dict[str, Any]]:
        """Return the minutes before these entries; none if there is no history that we may read."""
        minute_count = entry_count - len(entries)
        if not entries or minute_count <= 0:
            return []
        last_entry = entries[-1]
        before = self.parse_timestamp(last_entry["timestamp"]) - MINUTE
        gpu_names = {gpu["uuid"]: gpu["gpu_name"] for gpu in last_entry["gpu_data"].values() if gpu["uuid"]}
        with suppress(OSError):
            return [
                host_json.convert_sample_to_states_json(sample, epoch, gpu_names, self.zone, self.privacy)
                for epoch, sample in history.read_minutes(host, minute_count, before)
            ]
        return []

    def parse_timestamp(self, timestamp: int) -> float:
        """Return seconds since 1970; in an hour that comes twice the later time, if that has come."""
        local = datetime.strptime(str(timestamp), host_json.TIMESTAMP_FORMAT).replace(tzinfo=self.zone)
        later = local.replace(fold=1).timestamp()
        return later if later <= time.time() + MINUTE else local.timestamp()
