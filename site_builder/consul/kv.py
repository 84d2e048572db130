"""Read and write Consul's KV store."""

from __future__ import annotations

import binascii
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from site_builder.consul import client
from site_builder.consul.client import ConsulCall, ConsulRequest, ConsulUnavailableError, ExpectedConsulResponse
from site_builder.core.model import ConsulAccess, ParsedFile
from site_builder.core.terminal_text import clean_text

MAX_KEYS = 20_000
MAX_KEY_CHARACTERS = 80
# Consul's own limit.
MAX_VALUE_BYTES = 512 * 1024


class KvEntry(NamedTuple):
    """A key below the prefix with its value in base64; `modify_index` changes with each write."""

    name: str
    modify_index: int
    encoded_value: str

    def decode_value(self) -> bytes | None:
        """Decode the value; None if it is invalid."""
        with suppress(ValueError):
            return binascii.a2b_base64(self.encoded_value)
        return None


class KvValue(NamedTuple):
    content: bytes
    modify_index: int
    session: str | None


class KvStore:
    """Each call is one request with its time limit; it raises ConsulUnavailableError."""

    def __init__(self, access: ConsulAccess) -> None:
        self.access = access
        self.data_prefix = f"{access.prefix}/data/"

    def request_all(self) -> ConsulRequest:
        """Start a request for all of data/; its response is the raw body."""
        # by Consul's default, only the leader answers: another server may lag behind an earlier response
        call: ConsulCall = lambda client: client.kv.get(self.data_prefix, recurse=True)  # noqa: E731 # for its type
        return ConsulRequest(self.access, call, client.ENTRIES_RESPONSE, is_raw=True)

    def call(self, call: ConsulCall, expected: ExpectedConsulResponse) -> Any:  # noqa: ANN401 # whatever the library returns
        request = ConsulRequest(self.access, call, expected)
        if failure := request.wait():
            raise ConsulUnavailableError(failure)
        return request.response

    def get(self, key: str) -> KvValue | None:
        """Return the value of a key below the prefix; None if there is none."""
        record = self.call(lambda library: library.kv.get(f"{self.access.prefix}/{key}")[1], client.ENTRIES_RESPONSE)
        if record is None:
            return None
        try:
            return KvValue(record["Value"] or b"", int(record["ModifyIndex"]), record.get("Session"))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConsulUnavailableError("does not answer with a key") from None

    def put(self, key: str, content: bytes, **conditions: Any) -> bool:  # noqa: ANN401 # cas, acquire, release of the library
        """Write a key; return False if `cas`, `acquire` or `release` prevented it."""
        path = f"{self.access.prefix}/{key}"
        return self.call(lambda library: library.kv.put(path, content, **conditions), client.WRITE_RESPONSE) is True

    def delete(self, key: str) -> None:
        self.call(lambda library: library.kv.delete(f"{self.access.prefix}/{key}"), client.WRITE_RESPONSE)

    def create_session(self, name: str, ttl: int) -> str:
        """Create a session that lives as long as it is renewed; what it held is then free at once."""
        # without a check of the agent's health, by which Consul could end it while its owner relies on it
        create: ConsulCall = lambda library: library.session.create(name, checks=[], lock_delay=0, ttl=ttl)  # noqa: E731
        return str(self.call(create, client.SESSION_RESPONSE))

    def renew_session(self, session: str) -> None:
        self.call(lambda library: library.session.renew(session), client.SESSION_RESPONSE)

    def destroy_session(self, session: str) -> None:
        """End a session, whoever created it."""
        self.call(lambda library: library.session.destroy(session), client.SESSION_RESPONSE)


def parse_kv_entries(body: bytes | bytearray, prefix: str) -> ParsedFile[KvEntry]:
    """Parse all entries except the prefix itself and folders; incomplete if the body is not such a list."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ParsedFile(is_complete=False, problems=("does not answer with JSON",))
    if not isinstance(answer, list):
        return ParsedFile(is_complete=False, problems=("does not answer with a list of keys",))
    entries: list[KvEntry] = []
    invalid_count = 0
    for record in answer[:MAX_KEYS]:
        fields = record if isinstance(record, dict) else {}
        key, modify_index, value = map(fields.get, ("Key", "ModifyIndex", "Value"))
        if not isinstance(key, str) or not key.startswith(prefix) or type(modify_index) is not int:
            invalid_count += 1
        elif value is None and (key == prefix or key.endswith("/")):
            continue
        else:
            entries.append(KvEntry(key[len(prefix) :], modify_index, value if isinstance(value, str) else ""))
    problems = []
    if invalid_count:
        problems.append(f"{invalid_count} entries of its answer are not keys under {prefix} and are ignored")
    if len(answer) > MAX_KEYS:
        problems.append(f"{prefix} has {len(answer)} keys; only the first {MAX_KEYS} count")
    return ParsedFile(tuple(entries), problems=tuple(problems))


def format_kv_key(name: str) -> str:
    """Quote a key, which anybody may have written, in a sentence."""
    return ascii(clean_text(name[:MAX_KEY_CHARACTERS]))
