"""Which hosts there are: those that Consul lists, those in hosts.txt and hosts.json, and those that stand in data/.

Each list is kept in state/ as it last was good, and that one serves while the list itself cannot be had.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from site_builder.consul import catalog
from site_builder.consul.catalog import ConsulNode
from site_builder.consul.client import LATE, LONGEST_ANSWER, Question
from site_builder.core import files
from site_builder.core.cached_file import KeptFile, minute, read_in
from site_builder.core.model import ConsulAccess, KnownHost, ListedHost, Problem
from site_builder.discovery import hosts_json, hosts_txt


def ask_service(access: ConsulAccess) -> Question:
    """Which nodes have the service; without `passing`: a host that fails is the one that the board must show."""
    service, datacenter = access.service, access.datacenter
    return Question(access, lambda client: client.health.service(service, dc=datacenter)[1], catalog.NODES)


class ConsulList:
    """The nodes that Consul lists: as it says now, or as it last said."""

    def __init__(self, state: Path, access: ConsulAccess) -> None:
        """Take up the last good list, if it is one of this service."""
        self.access = access
        self.where = f"Consul at {catalog.shown(access.address)}"
        self.store = state / "consul.json"
        self.nodes: tuple[ConsulNode, ...] | None = None
        self.stored: tuple[ConsulNode, ...] | None = None
        self.since = 0.0
        self.question: Question | None = None
        with suppress(OSError, files.Refused, ValueError, RecursionError):
            signature, content = read_in(state, "consul.json", LONGEST_ANSWER)
            kept = json.loads(content)
            if isinstance(kept, dict) and [kept.get("service"), kept.get("datacenter")] == self.asked:
                dump = catalog.read(kept.get("nodes"))
                if dump.whole:
                    self.nodes = self.stored = dump.rows
                    self.since = signature.modified_ns / 1e9

    @property
    def asked(self) -> list[str | None]:
        """What a list is an answer to."""
        return [self.access.service, self.access.datacenter]

    def start(self) -> None:
        """Ask, unless an earlier question still hangs."""
        if self.question is None or not self.question.thread.is_alive():
            self.question = ask_service(self.access)

    def read(self) -> tuple[tuple[ConsulNode, ...] | None, list[Problem]]:
        """The nodes, or None if there was never a list; and what is wrong."""
        if self.question is None or self.question.given_up:
            self.start()
        question = self.question
        if question is None or question.given_up:
            failure = "does not answer, and still hangs on an earlier question, so that it was not asked again"
            return self.nodes, [self.failed(failure)]
        if not question.wait():
            question.give_up()
            return self.nodes, [self.failed(LATE)]
        self.question = None
        if question.failure:
            return self.nodes, [self.failed(question.failure)]
        dump = catalog.read(question.answer)
        if not dump.whole:
            return self.nodes, [self.failed(f"answers, but {'; '.join(dump.problems)}")]
        problems = [Problem(self.where, what) for what in dump.problems] + self.keep(dump.rows, question.arrived)
        if not dump.rows:
            problems.append(Problem(self.where, self.nobody()))
        return self.nodes, problems

    def failed(self, what: str) -> Problem:
        """The one sentence on a list that cannot be had."""
        if self.nodes is None:
            return Problem(self.where, f"{what}; there is no earlier list that could serve")
        return Problem(self.where, f"{what}; the list of {minute(self.since)} serves")

    def nobody(self) -> str:
        """The sentence on a list that is empty: without rights, Consul shows nothing rather than to refuse."""
        rights = catalog.RIGHTS
        may_be = rights if self.access.token else f"CONSUL_HTTP_TOKEN must be set, and {rights}"
        what = f"no host has the service {self.access.service}; correct GPUBOARD_CONSUL_SERVICE"
        return f"{what}, or if Consul has ACLs, {may_be}"

    def keep(self, nodes: tuple[ConsulNode, ...], now: float) -> list[Problem]:
        """Remember a good list; its file's time is when Consul last said so."""
        self.nodes, self.since = nodes, now
        try:
            if nodes == self.stored:
                with suppress(FileNotFoundError):
                    os.utime(self.store, (now, now))
                    return []
            service, datacenter = self.asked
            content = {"service": service, "datacenter": datacenter, "nodes": catalog.written(nodes)}
            self.stored = None
            files.replace(self.store, json.dumps(content).encode(), 0o600)
            self.stored = nodes
        except OSError as error:
            return [Problem("state/consul.json", f"the list of Consul could not be kept: {error.strerror}")]
        return []


class Discovery:
    """Joins all lists of hosts, again and again; asks Consul while others read."""

    def __init__(self, data: Path, state: Path | None, consul: ConsulAccess | None) -> None:
        """Take up the last good lists from state/; who has none may not ask Consul either."""
        self.consul = ConsulList(state, consul) if consul and state else None
        self.text = KeptFile(data, state, "hosts.txt", hosts_txt.read)
        self.json = KeptFile(data, state, "hosts.json", hosts_json.read)

    def start(self) -> None:
        """Begin to ask Consul, so that its answer comes while data/ is being read."""
        if self.consul:
            self.consul.start()

    def read(self, in_data: Iterable[str]) -> tuple[dict[str, KnownHost], list[Problem]]:
        """Every host that data/ has or a list names, in the order of their names; and what is wrong with the lists."""
        rows, problems = self.text.read()
        text = {host.name: host for host in rows}
        rows, more = self.json.read()
        full = {host.name: host for host in rows}
        problems += more
        names = dict.fromkeys([*in_data, *text, *full])
        nodes: dict[str, ConsulNode] = {}
        listed = None
        if self.consul:
            listed, more = self.consul.read()
            nodes, unclear = catalog.hosts(listed or (), names)
            problems += more + [Problem(self.consul.where, what) for what in unclear]
        return {
            name: known(name, nodes.get(name), text.get(name), full.get(name), listed is not None)
            for name in sorted({*names, *nodes})
        }, problems


def known(
    name: str, node: ConsulNode | None, text: ListedHost | None, full: ListedHost | None, has_list: bool
) -> KnownHost:
    """One host: what a person wrote in hosts.txt counts before what Consul says, and that before hosts.json."""
    told = text or ListedHost(name)
    full_name = full.title if full and full.title != name else None
    return KnownHost(
        name,
        title=told.title or (node.title if node else None) or full_name,
        tags=tuple(dict.fromkeys(told.tags + (node.tags if node else ()))),
        maintenance=told.maintenance or (node.maintenance if node else None),
        hidden=told.hidden,
        listed_by=tuple(who for who, one in (("Consul", node), ("hosts.txt", text), ("hosts.json", full)) if one),
        consul=node.status if node else None,
        consul_said=node.said if node else None,
        not_in_consul=has_list and node is None,
    )
