"""Consul over HTTP: the one module that imports its library; it keeps each question short, small, to one address."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder.core.model import ConsulAccess
from site_builder.core.terminal_text import clean_text

if TYPE_CHECKING:
    import socket

REQUEST_TIMEOUT_S = 3.0
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
TIMEOUT_MESSAGE = f"does not answer within {REQUEST_TIMEOUT_S:.0f} s"
# What is asked of the library's client, by calls that python-consul and py-consul both have.
ConsulCall = Callable[[Any], object]


class ConsulUnavailableError(Exception):
    """Why there is no answer that could be used, in words."""


class ConsulRequest:
    """One question to Consul, in a thread of its own, for which nobody waits longer than until its deadline.

    With `raw`, the answer is the body as it came: the library would hold a large one several times over.
    """

    def __init__(
        self,
        access: ConsulAccess,
        ask: ConsulCall,
        expected: ExpectedResponse,
        raw: bool = False,
        most: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """Ask at once."""
        self.access, self.call, self.expected, self.is_raw, self.max_bytes = access, ask, expected, raw, most
        self.deadline = time.monotonic() + REQUEST_TIMEOUT_S
        self.sent_at = time.time()
        self.response: object = None
        self.body: bytearray | None = None
        self.failure: str | None = None
        self.has_response = False
        self.received_at = 0.0
        self.is_cancelled = False
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []
        self.thread = threading.Thread(target=self.run, name="consul", daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Ask; whatever happens becomes words."""
        try:
            self.response = perform_request(self)
        except Exception as error:
            self.failure = describe_consul_error(error, self.has_response).replace(
                "CONSUL_HTTP_ADDR", self.access.address_setting
            )
        self.received_at = time.time()
        with self.lock:
            for line in self.connections:
                line.close()
            self.connections.clear()

    def wait(self) -> bool:
        """Whether it was answered, or failed, in time."""
        self.thread.join(max(0.0, self.deadline - time.monotonic()))
        return not self.thread.is_alive()

    def add_connection(self, line: socket.socket) -> None:
        """Remember a connection, so that it can be ended."""
        with self.lock:
            if self.is_cancelled:
                line.close()
                raise TimeoutError
            self.connections.append(line.dup())

    def cancel(self) -> None:
        """End the connection under the thread: a time limit of the library does not help against a byte a second."""
        with self.lock:
            self.is_cancelled = True
            for line in self.connections:
                from socket import SHUT_RDWR  # noqa: PLC0415 slow to import, and here already

                with suppress(OSError):
                    line.shutdown(SHUT_RDWR)


def call_consul(access: ConsulAccess, ask: ConsulCall, expected: ExpectedResponse) -> Any:  # noqa: ANN401 whatever the library makes of it
    """What Consul answers, waited for; `ConsulUnavailableError` says why there is nothing."""
    question = ConsulRequest(access, ask, expected)
    if not question.wait():
        question.cancel()
        raise ConsulUnavailableError(TIMEOUT_MESSAGE)
    if question.failure:
        raise ConsulUnavailableError(question.failure)
    return question.response


def perform_request(question: ConsulRequest) -> object:
    """What Consul says, by a client that asks as the settings tell it."""
    access = question.access
    scheme, host, port, problem = parse_agent_address(access.address)
    if problem:
        raise ConsulUnavailableError(problem)
    for path in (access.ca, access.cert, access.key):
        if path and not os.access(path, os.R_OK):
            message = f"cannot be asked: {path} cannot be read; correct the settings of its certificates"
            raise ConsulUnavailableError(message)
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
        return question.call(client)
    with session:
        restrict_session(session, question)
        found = question.call(client)
    return question.body if question.is_raw else found


def restrict_session(session: Any, question: ConsulRequest) -> None:  # noqa: ANN401 requests is slow to import, and not always typed
    """Keep the library's requests short, small, to this one address, and able to be ended."""
    request = session.request

    def short(*arguments: object, **more: object) -> object:
        return request(*arguments, **{**more, "timeout": REQUEST_TIMEOUT_S, "allow_redirects": False, "stream": True})

    def noting(pool: Any) -> type:  # noqa: ANN401 a class of urllib3
        def connect(connection: Any) -> socket.socket:  # noqa: ANN401 the same
            line: socket.socket = pool.ConnectionCls._new_conn(connection)
            question.add_connection(line)
            return line

        return type("Pool", (pool,), {"ConnectionCls": type("Noted", (pool.ConnectionCls,), {"_new_conn": connect})})

    session.request = short
    session.trust_env = False  # no proxy, no .netrc
    session.hooks["response"] = [lambda response, **_: read_whole_response(response, question)]
    session.headers["Accept-Encoding"] = "identity"
    if question.access.token:
        # as a header: python-consul would write it into the address, and so into logs and messages
        session.headers["X-Consul-Token"] = question.access.token
    for adapter in session.adapters.values():
        pools = adapter.poolmanager.pool_classes_by_scheme
        adapter.poolmanager.pool_classes_by_scheme = {scheme: noting(pool) for scheme, pool in pools.items()}


def read_whole_response(response: Any, question: ConsulRequest) -> object:  # noqa: ANN401 of requests
    """The response with its body read, if it is a good one and no longer than it may be."""
    status = response.status_code
    try:
        pieces = response.raw.stream(CHUNK_BYTES, decode_content=False)
        body = read_bounded_body(pieces, CHUNK_BYTES if status != 200 else None, question.max_bytes)
    finally:
        response.close()
    problem = describe_bad_response(status, response.headers, body, question.access, question.expected)
    if problem:
        raise ConsulUnavailableError(problem)
    question.has_response = True
    if question.is_raw and status == 200:
        question.body, body = body, bytearray(b"[]")
    read = type(response)()
    read.status_code, read.headers, read.url, read.raw = status, response.headers, response.url, BytesIO(body)
    return read


def read_bounded_body(pieces: Iterable[bytes], enough: int | None, most: int) -> bytearray:
    """A body, or as much of it as is enough; one that never ends is refused."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > most:
            message = f"sends more than the {most >> 20} MB that are read"
            raise ConsulUnavailableError(message)
        if enough and len(body) >= enough:
            break
    return body


# What the causes that we know mean; never a library's own text, which can hold anything. By their names, since the
# modules that they are in are slow to import, and loaded only where Consul is asked.
ERROR_MEANINGS: dict[str, Callable[[Any], str]] = {
    f"{__name__}.ConsulUnavailableError": str,
    "builtins.ImportError": lambda _: "cannot be asked: python-consul is missing; install it by pip",
    "ssl.SSLCertVerificationError": lambda error: (
        f"has a certificate that is not accepted ({error.verify_message}); set CONSUL_CACERT to the CA that signed it"
    ),
    "ssl.SSLError": lambda error: f"cannot be reached by TLS ({error.reason or 'no reason given'})",
    "socket.gaierror": lambda error: f"cannot be found ({error.strerror}); correct CONSUL_HTTP_ADDR",
    "socket.timeout": lambda _: TIMEOUT_MESSAGE,
    "builtins.TimeoutError": lambda _: TIMEOUT_MESSAGE,
    "http.client.RemoteDisconnected": lambda _: "ends the connection without an answer",
    "http.client.IncompleteRead": lambda _: "ends the connection in the middle of its answer",
    "http.client.HTTPException": lambda _: "does not speak HTTP; correct CONSUL_HTTP_ADDR",
}


def describe_consul_error(error: BaseException, heard: bool) -> str:
    """What happened, told by the first cause that we know; `heard` is whether there was an answer."""
    for cause in iterate_causes(error):
        for kind in type(cause).__mro__:
            meaning = ERROR_MEANINGS.get(f"{kind.__module__}.{kind.__name__}")
            if meaning:
                return meaning(cause)
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return f"does not answer ({cause.strerror.lower()})"
    if heard:
        return "answers with what is not JSON; correct CONSUL_HTTP_ADDR if that is not Consul"
    return f"cannot be asked, or not be understood ({type(error).__name__})"


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that led to it, wherever requests and urllib3 hide that."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        one = todo.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


# What agents and servers say while another leader is elected; one sentence for all, since it is soon over.
NO_LEADER_MESSAGE = re.compile(
    r"No cluster leader|failed to get conn|not the leader|leadership lost|No known Consul servers"
)


DEFAULT_AGENT_PORT = 8500
SERVICE_RIGHTS = "the token needs `service:read` and `node:read`"
KV_RIGHTS = "the token needs `key_prefix` with `write` for what stands below the prefix"
SESSION_RIGHTS = "the token needs `session_prefix` with `write`"


# As CONSUL_HTTP_ADDR has it.
AGENT_ADDRESS = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?")


class ExpectedResponse(NamedTuple):
    """What an answer begins with, whether it tells an index, what rights it takes, and whether there may be none."""

    first_characters: str
    has_index: bool
    rights: str
    can_be_missing: bool = False


NODES_RESPONSE = ExpectedResponse("[", True, SERVICE_RIGHTS)
ENTRIES_RESPONSE = ExpectedResponse("[", True, KV_RIGHTS, can_be_missing=True)
WRITE_RESPONSE = ExpectedResponse("tf", False, KV_RIGHTS)
SESSION_RESPONSE = ExpectedResponse("{[t", False, SESSION_RIGHTS)


def parse_agent_address(text: str) -> tuple[str, str, int, str]:
    """Scheme, host and port of an address, or why it is none."""
    if text.startswith("unix:"):
        return "", "", 0, "cannot be asked: a unix:// address is not supported; set CONSUL_HTTP_ADDR to host:port"
    found = AGENT_ADDRESS.fullmatch(text)
    port = int(found[3] or DEFAULT_AGENT_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        return "", "", 0, "cannot be asked: its address is not host:port, http://host:port or https://host:port"
    return found[1] or "http", found[2], port, ""


def format_agent_address(text: str) -> str:
    """An address without the name and password that somebody may have written into it."""
    return clean_json_value(text.rpartition("@")[2], 200)


def describe_bad_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes | bytearray,
    access: ConsulAccess,
    expected: ExpectedResponse = NODES_RESPONSE,
) -> str:
    """Why an answer is not one to the question; empty if it may be. The token never stands in it."""
    text = body[:10_000].decode("utf-8", "replace").lstrip()
    if access.token:
        text = text.replace(access.token, "(token)")
    said = "" if text.startswith("<") else clean_json_value(text, 100)
    has_index = "X-Consul-Index" in headers or not expected.has_index
    if 300 <= status < 400:
        return f"answers with a redirect ({status}), which is not followed; set CONSUL_HTTP_ADDR to where it leads"
    if status == 403:
        return f"refuses the question ({said or status}); {expected.rights}"
    if status == 500 and access.datacenter and "datacenter" in said:
        return f"does not know the datacenter {access.datacenter} ({said}); correct GPUBOARD_CONSUL_DATACENTER"
    if status == 500 and NO_LEADER_MESSAGE.search(text):
        return "has no leader just now, or does not reach it"
    lacks = status == 404 and expected.can_be_missing and not text
    if status != 200 and not lacks:
        return f"answers with an error ({status}{': ' if said else ''}{said})"
    if has_index and (lacks or (text and text[0] in expected.first_characters)):
        return ""
    kind = "a page in HTML" if text.startswith("<") else "what is not a list of Consul"
    return f"answers with {kind}; correct CONSUL_HTTP_ADDR if that is not Consul"


def clean_json_value(value: object, longest: int) -> str:
    """A text in one line, that can be written anywhere; nothing for what is no text."""
    if not isinstance(value, str):
        return ""
    # JSON can hold halves of characters, which no file can
    text = value[: 20 * longest].encode("utf-8", "replace").decode()
    return " ".join(clean_text(text).split())[:longest].rstrip()
