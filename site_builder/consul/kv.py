"""Consul's KV store."""

from __future__ import annotations

import binascii
from typing import Any, NamedTuple

import orjson

from site_builder.consul import client
from site_builder.consul.client import ConsulCall, ConsulRequest, ConsulUnavailableError, call_consul
from site_builder.core.model import KvAccess, ParsedFile
from site_builder.core.terminal_text import clean_text

MAX_KEYS = 20_000
MAX_KEY_CHARACTERS = 80
# Consul itself takes no longer value.
MAX_VALUE_BYTES = 512 * 1024


class KvEntry(NamedTuple):
    """One key below the prefix; `value` is as it came, in base64, and `moved` another whenever somebody wrote it."""

    name: str
    modify_index: int
    encoded_value: str

    def decode_value(self) -> bytes | None:
        """The value itself; None where it is not what Consul writes."""
        try:
            return binascii.a2b_base64(self.encoded_value)
        except (binascii.Error, ValueError):
            return None


def parse_kv_entries(body: bytes | bytearray, prefix: str) -> ParsedFile[KvEntry]:
    """Every entry; not `whole` if it is not such an answer at all. The prefix itself, and folders, are none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ParsedFile(is_complete=False, problems=("answers with what is not JSON",))
    if not isinstance(answer, list):
        return ParsedFile(is_complete=False, problems=("answers with what is not a list of keys",))
    found: list[KvEntry] = []
    odd = 0
    for told in answer[:MAX_KEYS]:
        key, moved, value = map(told.get, ("Key", "ModifyIndex", "Value")) if isinstance(told, dict) else (None,) * 3
        if not isinstance(key, str) or not key.startswith(prefix) or type(moved) is not int:
            odd += 1
        elif value is None and (key == prefix or key.endswith("/")):
            continue
        else:
            found.append(KvEntry(key[len(prefix) :], moved, value if isinstance(value, str) else ""))
    problems = []
    if odd:
        problems.append(f"{odd} entries of its answer are not those of keys below {prefix}, and do not count")
    if len(answer) > MAX_KEYS:
        problems.append(f"{prefix} has {len(answer)} keys; only the first {MAX_KEYS} count")
    return ParsedFile(tuple(found), problems=tuple(problems))


def format_kv_key(name: str) -> str:
    """A key that anybody may have written, within a sentence."""
    return ascii(clean_text(name[:MAX_KEY_CHARACTERS]))


# One recursive get of a thousand hosts is some 8 MB, of five thousand some 40.
MAX_KV_BYTES = 64 * 1024 * 1024


class KvValue(NamedTuple):
    """What stands at a key, when it moved, and the session that holds it."""

    content: bytes
    modify_index: int
    session: str | None


class KvStore:
    """Each call is one question, with its time limit; `Unusable` says why there is no answer."""

    def __init__(self, access: KvAccess) -> None:
        """Whose store, and below which prefix."""
        self.access = access
        self.data_prefix = f"{access.prefix}/data/"

    def request_all(self) -> ConsulRequest:
        """Begin to ask for all of data/; the answer is the body as it comes."""
        # by the leader alone, which is what Consul does by default: another server may lag behind what it told before
        ask: ConsulCall = lambda client: client.kv.get(self.data_prefix, recurse=True)  # noqa: E731 for its type
        return ConsulRequest(self.access.consul, ask, client.ENTRIES_RESPONSE, raw=True, most=MAX_KV_BYTES)

    def get(self, key: str) -> KvValue | None:
        """What stands at a key below the prefix; None if there is none."""
        path = f"{self.access.prefix}/{key}"
        found = call_consul(self.access.consul, lambda client: client.kv.get(path)[1], client.ENTRIES_RESPONSE)
        if found is None:
            return None
        try:
            return KvValue(found["Value"] or b"", int(found["ModifyIndex"]), found.get("Session"))
        except (KeyError, TypeError, ValueError, AttributeError):
            message = "answers with what is not a key"
            raise ConsulUnavailableError(message) from None

    def put(self, key: str, content: bytes, **how: Any) -> bool:  # noqa: ANN401 the library's own: cas, acquire, release
        """Write a key; whether it was written, as `cas`, `acquire` and `release` have it."""
        path = f"{self.access.prefix}/{key}"
        return (
            call_consul(self.access.consul, lambda client: client.kv.put(path, content, **how), client.WRITE_RESPONSE)
            is True
        )

    def delete(self, key: str) -> None:
        """Take a key away, if it is there."""
        path = f"{self.access.prefix}/{key}"
        call_consul(self.access.consul, lambda client: client.kv.delete(path), client.WRITE_RESPONSE)

    def create_session(self, name: str, ttl: int) -> str:
        """A session that lives as long as somebody renews it; what it held is free at once when it ends."""
        found = call_consul(
            self.access.consul,
            # without a check of the agent's health, by which Consul would end it while its owner still counts on it
            lambda client: client.session.create(name, checks=[], lock_delay=0, ttl=ttl),
            client.SESSION_RESPONSE,
        )
        return str(found)

    def renew_session(self, session: str) -> None:
        """Let it live on."""
        call_consul(self.access.consul, lambda client: client.session.renew(session), client.SESSION_RESPONSE)

    def destroy_session(self, session: str) -> None:
        """End it, whoever made it."""
        call_consul(self.access.consul, lambda client: client.session.destroy(session), client.SESSION_RESPONSE)
