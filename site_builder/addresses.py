"""Addresses of `gpuboard serve` that are not simply files of www/: those that users of other systems know."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

INDEX = "index.html"
# Folders that are answered with the file of all that is in them.
LISTS = {"states": "index.json", "nodes": "index.json"}
# Where all nodes are; its readers send a password along, which nobody asks for here.
ALL_NODES = "/get-status"
BODY = 1024  # bytes that they may send
FETCH_NUM = re.compile(r"[1-9][0-9]{0,8}")
TEXTS = ((("term", "detail"), "detail.txt"), (("term", "color"), "term-ansi.txt"), (("term",), "term.txt"))
MOST_WORDS = 50


class Unclear(Exception):
    """Why a query has no answer, in one sentence."""


def index_of(parts: list[str]) -> str:
    """The file that answers for the folder on this way."""
    return LISTS.get(parts[0], INDEX)


def file_of(path: str, parts: list[str], query: str) -> list[str]:
    """The way to the file that is meant; `parts` is the one that the path alone gives."""
    if path == ALL_NODES:
        return ["nodes", "index.json"]
    if path == "/" and query:
        words = words_of(query)
        return next(([name] for flags, name in TEXTS if all(words.get(flag) == "true" for flag in flags)), parts)
    if parts[0] == "states" and query:
        number = words_of(query).get("fetch_num")
        if number is not None and not FETCH_NUM.fullmatch(number):
            raise Unclear("fetch_num must be a whole number from 1 on.")
    return [*parts[:-1], index_of(parts)] if path.endswith("/") else parts


def words_of(query: str) -> dict[str, str]:
    """The words of a query, each with its last value; none where there are too many to be meant."""
    try:
        return {name: values[-1] for name, values in parse_qs(query, True, max_num_fields=MOST_WORDS).items()}
    except ValueError:
        return {}
