"""Which hosts there are: those that Consul lists, those in hosts.txt and hosts.json, and those that stand in data/.

Each list is kept in state/ as it last was good, and that one serves while the list itself cannot be had.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from site_builder.model import ConsulAccess, KnownHost, ListedHost, Problem
from site_builder.readers import consul as consul_reader
from site_builder.readers import hosts_json, hosts_txt
from site_builder.readers.consul import ConsulNode
from site_builder.sources import files
from site_builder.sources.kept_file import KeptFile, minute, read_in

if TYPE_CHECKING:
    import socket

SECONDS = 3.0
LONGEST_ANSWER = 16 * 1024 * 1024
PIECE = 64 * 1024


class Unusable(Exception):
    """Why there is no answer that could be used, in words."""


class Question:
    """One question to Consul, in a thread of its own, for which nobody waits longer than until its deadline."""

    def __init__(self, access: ConsulAccess) -> None:
        """Ask at once."""
        self.access = access
        self.deadline = time.monotonic() + SECONDS
        self.answer: object = None
        self.failure: str | None = None
        self.heard = False
        self.arrived = 0.0
        self.given_up = False
        self.lock = threading.Lock()
        self.open: list[socket.socket] = []
        self.thread = threading.Thread(target=self.run, name="consul", daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Ask; whatever happens becomes words."""
        try:
            self.answer = ask(self)
        except Exception as error:
            self.failure = words(error, self.heard)
        self.arrived = time.time()
        with self.lock:
            for line in self.open:
                line.close()
            self.open.clear()

    def wait(self) -> bool:
        """Whether it was answered, or failed, in time."""
        self.thread.join(max(0.0, self.deadline - time.monotonic()))
        return not self.thread.is_alive()

    def note(self, line: socket.socket) -> None:
        """Remember a connection, so that it can be ended."""
        with self.lock:
            if self.given_up:
                line.close()
                raise TimeoutError
            self.open.append(line.dup())

    def give_up(self) -> None:
        """End the connection under the thread: a time limit of the library does not help against a byte a second."""
        with self.lock:
            self.given_up = True
            for line in self.open:
                from socket import SHUT_RDWR  # noqa: PLC0415 slow to import, and here already

                with suppress(OSError):
                    line.shutdown(SHUT_RDWR)


def ask(question: Question) -> object:
    """What Consul knows of the service. Without `passing`: a host that fails is the one that the board must show."""
    access = question.access
    scheme, host, port, problem = consul_reader.address(access.address)
    if problem:
        raise Unusable(problem)
    for path in (access.ca, access.cert, access.key):
        if path and not os.access(path, os.R_OK):
            message = f"cannot be asked: {path} cannot be read; correct the settings of its certificates"
            raise Unusable(message)
    import consul  # noqa: PLC0415, TID251 slow to import

    if not access.verify:
        import urllib3  # noqa: PLC0415 the same

        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # it was chosen
    # Both libraries let CONSUL_HTTP_* win over what they are told, python-consul even dies of an https:// in it; and
    # both read them by this name only.
    consul.base.os = SimpleNamespace(getenv=lambda _, default=None: default)
    client = consul.Consul(
        host=host,
        port=port,
        scheme="https" if access.tls else scheme,
        dc=access.datacenter,
        verify=(access.ca or True) if access.verify else False,
        cert=(access.cert, access.key) if access.cert and access.key else access.cert,
    )
    session = getattr(client.http, "session", None)
    if session is None:  # then only the deadline holds
        return client.health.service(access.service, token=access.token)[1]
    with session:
        bound(session, question)
        return client.health.service(access.service, dc=access.datacenter)[1]


def bound(session: Any, question: Question) -> None:  # noqa: ANN401 requests is slow to import, and not always typed
    """Keep the library's requests short, small, to this one address, and able to be ended."""
    request = session.request

    def short(*arguments: object, **more: object) -> object:
        return request(*arguments, **{**more, "timeout": SECONDS, "allow_redirects": False, "stream": True})

    def noting(pool: Any) -> type:  # noqa: ANN401 a class of urllib3
        def connect(connection: Any) -> socket.socket:  # noqa: ANN401 the same
            line: socket.socket = pool.ConnectionCls._new_conn(connection)
            question.note(line)
            return line

        return type("Pool", (pool,), {"ConnectionCls": type("Noted", (pool.ConnectionCls,), {"_new_conn": connect})})

    session.request = short
    session.trust_env = False  # no proxy, no .netrc
    session.hooks["response"] = [lambda response, **_: whole(response, question)]
    session.headers["Accept-Encoding"] = "identity"
    if question.access.token:
        # as a header: python-consul would write it into the address, and so into logs and messages
        session.headers["X-Consul-Token"] = question.access.token
    for adapter in session.adapters.values():
        pools = adapter.poolmanager.pool_classes_by_scheme
        adapter.poolmanager.pool_classes_by_scheme = {scheme: noting(pool) for scheme, pool in pools.items()}


def whole(response: Any, question: Question) -> object:  # noqa: ANN401 of requests
    """The response with its body read, if it is a good one and no longer than it may be."""
    status = response.status_code
    try:
        body = read_bounded(response.raw.stream(PIECE, decode_content=False), PIECE if status != 200 else None)
    finally:
        response.close()
    problem = consul_reader.refusal(status, response.headers, body, question.access)
    if problem:
        raise Unusable(problem)
    question.heard = True
    read = type(response)()
    read.status_code, read.headers, read.url, read.raw = status, response.headers, response.url, BytesIO(body)
    return read


def read_bounded(pieces: Iterable[bytes], enough: int | None) -> bytes:
    """A body, or as much of it as is enough; one that never ends is refused."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > LONGEST_ANSWER:
            message = f"sends more than the {LONGEST_ANSWER >> 20} MB that are read"
            raise Unusable(message)
        if enough and len(body) >= enough:
            break
    return bytes(body)


# What the causes that we know mean; never a library's own text, which can hold anything. By their names, since the
# modules that they are in are slow to import, and loaded only where Consul is asked.
MEANINGS: dict[str, Callable[[Any], str]] = {
    f"{__name__}.Unusable": str,
    "builtins.ImportError": lambda _: "cannot be asked: python-consul is missing; install it by pip",
    "ssl.SSLCertVerificationError": lambda error: (
        f"has a certificate that is not accepted ({error.verify_message}); set CONSUL_CACERT to the CA that signed it"
    ),
    "ssl.SSLError": lambda error: f"cannot be reached by TLS ({error.reason or 'no reason given'})",
    "socket.gaierror": lambda error: f"cannot be found ({error.strerror}); correct CONSUL_HTTP_ADDR",
    "socket.timeout": lambda _: f"does not answer within {SECONDS:.0f} s",
    "builtins.TimeoutError": lambda _: f"does not answer within {SECONDS:.0f} s",
    "http.client.RemoteDisconnected": lambda _: "ends the connection without an answer",
    "http.client.IncompleteRead": lambda _: "ends the connection in the middle of its answer",
    "http.client.HTTPException": lambda _: "does not speak HTTP; correct CONSUL_HTTP_ADDR",
}


def words(error: BaseException, heard: bool) -> str:
    """What happened, told by the first cause that we know; `heard` is whether there was an answer."""
    for cause in causes(error):
        for kind in type(cause).__mro__:
            meaning = MEANINGS.get(f"{kind.__module__}.{kind.__name__}")
            if meaning:
                return meaning(cause)
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return f"does not answer ({cause.strerror.lower()})"
    if heard:
        return "answers with what is not JSON; correct CONSUL_HTTP_ADDR if that is not Consul"
    return f"cannot be asked, or not be understood ({type(error).__name__})"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that led to it, wherever requests and urllib3 hide that."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        one = todo.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


class ConsulList:
    """The nodes that Consul lists: as it says now, or as it last said."""

    def __init__(self, state: Path, access: ConsulAccess) -> None:
        """Take up the last good list, if it is one of this service."""
        self.access = access
        self.where = f"Consul at {consul_reader.shown(access.address)}"
        self.store = state / "consul.json"
        self.nodes: tuple[ConsulNode, ...] | None = None
        self.stored: tuple[ConsulNode, ...] | None = None
        self.since = 0.0
        self.question: Question | None = None
        with suppress(OSError, files.Refused, ValueError, RecursionError):
            signature, content = read_in(state, "consul.json", LONGEST_ANSWER)
            kept = json.loads(content)
            if isinstance(kept, dict) and [kept.get("service"), kept.get("datacenter")] == self.asked:
                dump = consul_reader.read(kept.get("nodes"))
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
            self.question = Question(self.access)

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
            return self.nodes, [self.failed(f"does not answer within {SECONDS:.0f} s")]
        self.question = None
        if question.failure:
            return self.nodes, [self.failed(question.failure)]
        dump = consul_reader.read(question.answer)
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
        rights = consul_reader.RIGHTS
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
            content = {"service": service, "datacenter": datacenter, "nodes": consul_reader.written(nodes)}
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
            nodes, unclear = consul_reader.hosts(listed or (), names)
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
