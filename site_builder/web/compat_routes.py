"""Addresses of `gpuboard serve` that are not simply files of www/: those that users of other systems know."""

from __future__ import annotations

import re
from collections.abc import Iterator

INDEX_FILE = "index.html"
# Folders that are answered with the file of all that is in them.
STATES_FOLDER = "states"
FOLDER_INDEXES = {STATES_FOLDER: "index.json", "nodes": "index.json"}
# Where all nodes are; its readers send a password along, which nobody asks for here.
ALL_NODES_PATH = "/get-status"
MAX_BODY_BYTES = 1024  # bytes that they may send
FETCH_NUM_PATTERN = re.compile(r"[1-9][0-9]{0,8}")
TEXT_ROUTES = ((("term", "detail"), "detail.txt"), (("term", "color"), "term-ansi.txt"), (("term",), "term.txt"))


class InvalidQueryError(Exception):
    """Why a query has no answer, in one sentence."""


def find_index_file(parts: list[str]) -> str:
    """The file that answers for the folder on this way."""
    return FOLDER_INDEXES.get(parts[0], INDEX_FILE)


def resolve_file_path(path: str, parts: list[str], query: str) -> list[str]:
    """The way to the file that is meant; `parts` is the one that the path alone gives."""
    if path == ALL_NODES_PATH:
        return ["nodes", "index.json"]
    if path == "/" and query:
        return next(([name] for flags, name in TEXT_ROUTES if all(is_flag_set(query, flag) for flag in flags)), parts)
    if parts[0] == "states" and not all(map(FETCH_NUM_PATTERN.fullmatch, iterate_query_values(query, "fetch_num"))):
        raise InvalidQueryError("fetch_num must be a whole number from 1 on.")
    return [*parts[:-1], find_index_file(parts)] if path.endswith("/") else parts


def parse_entry_count(parts: list[str], query: str) -> int:
    """How many entries of a host are asked for; of several times that it is said, the first counts."""
    is_host = parts[0] == "states" and parts[-1] == FOLDER_INDEXES["states"] and len(parts) == 3
    return int(next(iterate_query_values(query, "fetch_num"), "1")) if is_host else 1


def is_compat_route(path: str, parts: list[str] | None, query: str) -> bool:
    """Return True for what only clients of other systems ask for; `parts` are those of the path."""
    is_text = path == "/" and any(all(is_flag_set(query, flag) for flag in flags) for flags, _ in TEXT_ROUTES)
    return path == ALL_NODES_PATH or is_text or (parts is not None and parts[0] in FOLDER_INDEXES)


def is_flag_set(query: str, flag: str) -> bool:
    """Whether a query says so; of several times that it is said, the first counts."""
    return next(iterate_query_values(query, flag), "") == "true"


def iterate_query_values(query: str, name: str) -> Iterator[str]:
    """All values of a word, as nginx reads them: nothing is decoded, and capital letters of a name are small ones."""
    for word in query.split("&"):
        found, equals, value = word.partition("=")
        if equals and found.lower() == name:
            yield value
