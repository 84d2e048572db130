"""Consul's KV store: the keys below our prefix, one by one, and the sessions that can hold one."""

from __future__ import annotations

from typing import Any, NamedTuple

from site_builder.consul import catalog
from site_builder.consul.client import Ask, Question, Unusable, call
from site_builder.core.model import KvAccess

# One recursive get of a thousand hosts is some 8 MB, of five thousand some 40.
MOST_READ = 64 * 1024 * 1024


class Value(NamedTuple):
    """What stands at a key, when it moved, and the session that holds it."""

    content: bytes
    moved: int
    session: str | None


class KvStore:
    """Each call is one question, with its time limit; `Unusable` says why there is no answer."""

    def __init__(self, access: KvAccess) -> None:
        """Whose store, and below which prefix."""
        self.access = access
        self.data = f"{access.prefix}/data/"

    def everything(self) -> Question:
        """Begin to ask for all of data/; the answer is the body as it comes."""
        # by the leader alone, which is what Consul does by default: another server may lag behind what it told before
        ask: Ask = lambda client: client.kv.get(self.data, recurse=True)  # noqa: E731 for its type
        return Question(self.access.consul, ask, catalog.ENTRIES, raw=True, most=MOST_READ)

    def get(self, key: str) -> Value | None:
        """What stands at a key below the prefix; None if there is none."""
        path = f"{self.access.prefix}/{key}"
        found = call(self.access.consul, lambda client: client.kv.get(path)[1], catalog.ENTRIES)
        if found is None:
            return None
        try:
            return Value(found["Value"] or b"", int(found["ModifyIndex"]), found.get("Session"))
        except (KeyError, TypeError, ValueError, AttributeError):
            message = "answers with what is not a key"
            raise Unusable(message) from None

    def put(self, key: str, content: bytes, **how: Any) -> bool:  # noqa: ANN401 the library's own: cas, acquire, release
        """Write a key; whether it was written, as `cas`, `acquire` and `release` have it."""
        path = f"{self.access.prefix}/{key}"
        return call(self.access.consul, lambda client: client.kv.put(path, content, **how), catalog.WRITTEN) is True

    def delete(self, key: str) -> None:
        """Take a key away, if it is there."""
        path = f"{self.access.prefix}/{key}"
        call(self.access.consul, lambda client: client.kv.delete(path), catalog.WRITTEN)

    def new_session(self, name: str, ttl: int) -> str:
        """A session that lives as long as somebody renews it; what it held is free at once when it ends."""
        found = call(
            self.access.consul,
            # without a check of the agent's health, by which Consul would end it while its owner still counts on it
            lambda client: client.session.create(name, checks=[], lock_delay=0, ttl=ttl),
            catalog.SESSION,
        )
        return str(found)

    def renew_session(self, session: str) -> None:
        """Let it live on."""
        call(self.access.consul, lambda client: client.session.renew(session), catalog.SESSION)

    def end_session(self, session: str) -> None:
        """End it, whoever made it."""
        call(self.access.consul, lambda client: client.session.destroy(session), catalog.SESSION)
