"""Addresses of `gpuboard serve` that users of other systems know, and that are not simply files of www/."""

from __future__ import annotations

import re
from collections.abc import Iterator

from site_builder.board.outputs import host_json

INDEX_FILE = "index.html"
# Folders that are answered with the file of all hosts.
STATES_FOLDER = "states"
FOLDER_INDEXES = {STATES_FOLDER: "index.json", "nodes": "index.json", "nvgpu": "cluster_status"}
# By GET the address of all nodes, by POST that of one, whose clients send a password along.
NODE_PATH, NODE_FILE = "/get-status", "get-status"
MAX_BODY_BYTES = 1024  # that they may send
AGENT_PATH = "/gpu_status"  # of nvgpu, for one host
FLEET_PATHS = {NODE_PATH: ("nodes", "index.json"), "/cluster_status": ("nvgpu", "cluster_status")}
TRUE_WORDS = frozenset({"true", "1"})
FETCH_NUM_PATTERN = re.compile(r"[1-9][0-9]{0,8}")
TEXT_ROUTES = ((("term", "detail"), "detail.txt"), (("term", "color"), "term-ansi.txt"), (("term",), "term.txt"))


class CompatQueryError(Exception):
    """Why a query has no answer, in one sentence."""


def find_compat_index_file(folder_parts: list[str]) -> str:
    """Return the file that answers for this folder."""
    if folder_parts[:1] == ["nvgpu"] and len(folder_parts) > 1:
        return "gpu_status"
    return FOLDER_INDEXES.get(folder_parts[0], INDEX_FILE) if folder_parts else INDEX_FILE


def resolve_compat_path(path: str, path_parts: list[str], query: str) -> list[str]:
    """Return the path of the file that is meant; `path_parts` are those of the path alone."""
    if path in FLEET_PATHS:
        return list(FLEET_PATHS[path])
    node = find_compat_node_name(path_parts)
    if node:
        return host_json.build_host_json_node_path(node).split("/")
    if path == "/" and query:
        text_file = find_compat_text_file(query)
        return [text_file] if text_file else path_parts
    numbers = iterate_compat_query_values(query, "fetch_num")
    if path_parts[0] == STATES_FOLDER and not all(map(FETCH_NUM_PATTERN.fullmatch, numbers)):
        raise CompatQueryError("fetch_num must be a whole number of at least 1.")
    return [*path_parts[:-1], find_compat_index_file(path_parts[:-1])] if path.endswith("/") else path_parts


def find_compat_text_file(query: str) -> str | None:
    """Return the text file that `?term=true` and its like ask for."""
    for flags, file in TEXT_ROUTES:
        if all(next(iterate_compat_query_values(query, flag), "").lower() in TRUE_WORDS for flag in flags):
            return file
    return None


def parse_compat_entry_count(path_parts: list[str], query: str) -> int:
    """Return how many entries of a host `fetch_num` asks for; the first value counts."""
    has_entries = path_parts[0] == STATES_FOLDER and path_parts[-1] == "index.json" and len(path_parts) < 4
    return int(next(iterate_compat_query_values(query, "fetch_num"), "1")) if has_entries else 1


def is_compat_route(path: str, path_parts: list[str] | None, query: str) -> bool:
    if path in {*FLEET_PATHS, AGENT_PATH} or (path == "/" and find_compat_text_file(query)):
        return True
    return path_parts is not None and path_parts[0] in FOLDER_INDEXES


def is_compat_node_path(path: str, path_parts: list[str] | None) -> bool:
    """Return True for the addresses that also take a POST."""
    return path == NODE_PATH or find_compat_node_name(path_parts) is not None


def find_compat_node_name(path_parts: list[str] | None) -> str | None:
    """Return the host in `/nodes/HOST/get-status`."""
    if path_parts is None or len(path_parts) != 3 or (path_parts[0], path_parts[2]) != ("nodes", NODE_FILE):
        return None
    return path_parts[1]


def iterate_compat_query_values(query: str, name: str) -> Iterator[str]:
    """Yield all values of a name as nginx reads them: nothing is decoded, and names are in any case."""
    for word in query.split("&"):
        key, equals, value = word.partition("=")
        if equals and key.lower() == name:
            yield value
