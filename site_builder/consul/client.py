"""Consul over HTTP: the one module that imports its library; it keeps each question short, small, to one address."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from site_builder.consul import catalog
from site_builder.consul.catalog import Expected
from site_builder.core.model import ConsulAccess

if TYPE_CHECKING:
    import socket

SECONDS = 3.0
LONGEST_ANSWER = 16 * 1024 * 1024
PIECE = 64 * 1024
LATE = f"does not answer within {SECONDS:.0f} s"
# What is asked of the library's client, by calls that python-consul and py-consul both have.
Ask = Callable[[Any], object]


class Unusable(Exception):
    """Why there is no answer that could be used, in words."""


class Question:
    """One question to Consul, in a thread of its own, for which nobody waits longer than until its deadline.

    With `raw`, the answer is the body as it came: the library would hold a large one several times over.
    """

    def __init__(
        self, access: ConsulAccess, ask: Ask, expected: Expected, raw: bool = False, most: int = LONGEST_ANSWER
    ) -> None:
        """Ask at once."""
        self.access, self.ask, self.expected, self.raw, self.most = access, ask, expected, raw, most
        self.deadline = time.monotonic() + SECONDS
        self.asked = time.time()
        self.answer: object = None
        self.body: bytearray | None = None
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
            self.answer = answer(self)
        except Exception as error:
            self.failure = words(error, self.heard).replace("CONSUL_HTTP_ADDR", self.access.named_by)
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


def call(access: ConsulAccess, ask: Ask, expected: Expected) -> Any:  # noqa: ANN401 whatever the library makes of it
    """What Consul answers, waited for; `Unusable` says why there is nothing."""
    question = Question(access, ask, expected)
    if not question.wait():
        question.give_up()
        raise Unusable(LATE)
    if question.failure:
        raise Unusable(question.failure)
    return question.answer


def answer(question: Question) -> object:
    """What Consul says, by a client that asks as the settings tell it."""
    access = question.access
    scheme, host, port, problem = catalog.address(access.address)
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
        client.token = access.token
        return question.ask(client)
    with session:
        bound(session, question)
        found = question.ask(client)
    return question.body if question.raw else found


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
        pieces = response.raw.stream(PIECE, decode_content=False)
        body = read_bounded(pieces, PIECE if status != 200 else None, question.most)
    finally:
        response.close()
    problem = catalog.refusal(status, response.headers, body, question.access, question.expected)
    if problem:
        raise Unusable(problem)
    question.heard = True
    if question.raw and status == 200:
        question.body, body = body, bytearray(b"[]")
    read = type(response)()
    read.status_code, read.headers, read.url, read.raw = status, response.headers, response.url, BytesIO(body)
    return read


def read_bounded(pieces: Iterable[bytes], enough: int | None, most: int) -> bytearray:
    """A body, or as much of it as is enough; one that never ends is refused."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > most:
            message = f"sends more than the {most >> 20} MB that are read"
            raise Unusable(message)
        if enough and len(body) >= enough:
            break
    return body


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
    "socket.timeout": lambda _: LATE,
    "builtins.TimeoutError": lambda _: LATE,
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
