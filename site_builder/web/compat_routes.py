"""Addresses of `gpuboard serve` that users of other systems know, and that are not simply files of www/."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from threading import BoundedSemaphore
from typing import Any

import orjson

from site_builder.board.outputs import host_json
from site_builder.config.settings import Settings
from site_builder.core.formatting import MINUTE
from site_builder.history.reader import HistoryReader

INDEX_FILE = "index.html"
# Folders that are answered with the file of all hosts.
STATES_FOLDER = "states"
FOLDER_INDEXES = {STATES_FOLDER: "index.json", "nodes": "index.json"}
# The address of all nodes; its clients send a password along, which is ignored.
ALL_NODES_PATH = "/get-status"
MAX_BODY_BYTES = 1024  # that they may send
FETCH_NUM_PATTERN = re.compile(r"[1-9][0-9]{0,8}")
TEXT_ROUTES = ((("term", "detail"), "detail.txt"), (("term", "color"), "term-ansi.txt"), (("term",), "term.txt"))
# Entries in one response: a day of minutes.
MAX_ENTRIES = 1440
# Responses with history that are made at a time, or one client could keep the board from all others.
MAX_ACTIVE = 4


class CompatQueryError(Exception):
    """Why a query has no answer, in one sentence."""


def find_compat_index_file(path_parts: list[str]) -> str:
    """Return the file that answers for the folder on this path."""
    return FOLDER_INDEXES.get(path_parts[0], INDEX_FILE)


def resolve_compat_path(path: str, path_parts: list[str], query: str) -> list[str]:
    """Return the path of the file that is meant; `path_parts` are those of the path alone."""
    if path == ALL_NODES_PATH:
        return ["nodes", "index.json"]
    if path == "/" and query:
        text_file = find_compat_text_file(query)
        return [text_file] if text_file else path_parts
    numbers = iterate_compat_query_values(query, "fetch_num")
    if path_parts[0] == STATES_FOLDER and not all(map(FETCH_NUM_PATTERN.fullmatch, numbers)):
        raise CompatQueryError("fetch_num must be a whole number of at least 1.")
    return [*path_parts[:-1], find_compat_index_file(path_parts)] if path.endswith("/") else path_parts


def find_compat_text_file(query: str) -> str | None:
    """Return the text file that `?term=true` and its like ask for."""
    for flags, file in TEXT_ROUTES:
        if all(next(iterate_compat_query_values(query, flag), "") == "true" for flag in flags):
            return file
    return None


def parse_compat_entry_count(path_parts: list[str], query: str) -> int:
    """Return how many entries of a host `fetch_num` asks for; the first value counts."""
    is_host = path_parts[0] == STATES_FOLDER and path_parts[-1] == "index.json" and len(path_parts) == 3
    return int(next(iterate_compat_query_values(query, "fetch_num"), "1")) if is_host else 1


def is_compat_route(path: str, path_parts: list[str] | None, query: str) -> bool:
    if path == ALL_NODES_PATH or (path == "/" and find_compat_text_file(query)):
        return True
    return path_parts is not None and path_parts[0] in FOLDER_INDEXES


def iterate_compat_query_values(query: str, name: str) -> Iterator[str]:
    """Yield all values of a name as nginx reads them: nothing is decoded, and names are in any case."""
    for word in query.split("&"):
        key, equals, value = word.partition("=")
        if equals and key.lower() == name:
            yield value


class CompatHistory:
    """Answers `states/HOST/?fetch_num=N`: puts minutes of history before the one entry of the host's file."""

    def __init__(self, settings: Settings) -> None:
        self.state_folder, self.zone, self.are_users_shown = settings.state, settings.zone, settings.privacy.users
        self.active = BoundedSemaphore(MAX_ACTIVE)

    def __call__(self, content: bytes, entry_count: int) -> bytes:
        """Return the file with up to `entry_count` entries; raise OSError if too many clients ask at once."""
        if not self.active.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, "too many requests for the history of hosts at once")
        try:
            with suppress(ValueError, LookupError, TypeError, AttributeError):  # a file that is not ours stays as it is
                ((host, body),) = orjson.loads(content).items()
                entries = [*self.read_entries_before(host, body["data"], entry_count), *body["data"]]
                return orjson.dumps({host: {**body, "data": entries}}, option=orjson.OPT_APPEND_NEWLINE)
            return content
        finally:
            self.active.release()

    def read_entries_before(self, host: str, entries: list[dict[str, Any]], entry_count: int) -> list[dict[str, Any]]:
        """Return the minutes before these entries; none if there is no history that we may read."""
        last_entry = entries[-1]
        before = self.parse_timestamp(last_entry["timestamp"]) - MINUTE
        gpu_names = {gpu["uuid"]: gpu["gpu_name"] for gpu in last_entry["gpu_data"].values() if gpu["uuid"]}
        minute_count = min(entry_count, MAX_ENTRIES) - len(entries)
        with suppress(OSError), closing(HistoryReader(self.state_folder, self.zone)) as history:
            minutes = history.read_minutes(host, minute_count, before) if minute_count > 0 else []
            return [
                host_json.convert_sample_to_states_json(sample, epoch, gpu_names, self.zone, self.are_users_shown)
                for epoch, sample in minutes
            ]
        return []

    def parse_timestamp(self, timestamp: int) -> float:
        """Return seconds since 1970; in an hour that comes twice the later time, if that has come."""
        local = datetime.strptime(str(timestamp), host_json.TIMESTAMP_FORMAT).replace(tzinfo=self.zone)
        later = local.replace(fold=1).timestamp()
        return later if later <= time.time() + MINUTE else local.timestamp()
