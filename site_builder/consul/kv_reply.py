"""Consul's answer to a recursive get of its KV store: what stands below a prefix, and when each moved."""

from __future__ import annotations

import binascii
from typing import NamedTuple

import orjson

from site_builder.core.model import Dump
from site_builder.snapshots.envelope import clean

MOST_ENTRIES = 20_000
LONGEST_KEY = 80
# Consul itself takes no longer value.
LONGEST_VALUE = 512 * 1024


class Entry(NamedTuple):
    """One key below the prefix; `value` is as it came, in base64, and `moved` another whenever somebody wrote it."""

    name: str
    moved: int
    value: str

    def content(self) -> bytes | None:
        """The value itself; None where it is not what Consul writes."""
        try:
            return binascii.a2b_base64(self.value)
        except (binascii.Error, ValueError):
            return None


def read(body: bytes | bytearray, prefix: str) -> Dump[Entry]:
    """Every entry; not `whole` if it is not such an answer at all. The prefix itself, and folders, are none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Dump(whole=False, problems=("answers with what is not JSON",))
    if not isinstance(answer, list):
        return Dump(whole=False, problems=("answers with what is not a list of keys",))
    found: list[Entry] = []
    odd = 0
    for told in answer[:MOST_ENTRIES]:
        key, moved, value = map(told.get, ("Key", "ModifyIndex", "Value")) if isinstance(told, dict) else (None,) * 3
        if not isinstance(key, str) or not key.startswith(prefix) or type(moved) is not int:
            odd += 1
        elif value is None and (key == prefix or key.endswith("/")):
            continue
        else:
            found.append(Entry(key[len(prefix) :], moved, value if isinstance(value, str) else ""))
    problems = []
    if odd:
        problems.append(f"{odd} entries of its answer are not those of keys below {prefix}, and do not count")
    if len(answer) > MOST_ENTRIES:
        problems.append(f"{prefix} has {len(answer)} keys; only the first {MOST_ENTRIES} count")
    return Dump(tuple(found), problems=tuple(problems))


def shown(name: str) -> str:
    """A key that anybody may have written, within a sentence."""
    return ascii(clean(name[:LONGEST_KEY]))
