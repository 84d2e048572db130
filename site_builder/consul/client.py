"""Send requests to Consul: short, small, to one address; the only module that imports its library."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace
from typing import Any, NamedTuple

from site_builder.config.schema import parse_consul_address_setting
from site_builder.core.faults import iterate_error_causes
from site_builder.core.model import ConsulAccess
from site_builder.core.terminal_text import clean_text

REQUEST_TIMEOUT_S = 3.0
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
# All entries of a thousand hosts in the KV store are some 8 MB, of five thousand some 40.
MAX_RAW_RESPONSE_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
TIMEOUT_MESSAGE = f"does not answer within {REQUEST_TIMEOUT_S:.0f} s"
# A request to the library's client, by calls that python-consul and py-consul both have.
ConsulCall = Callable[[Any], object]
# Messages by exception; never the library's own text, which can hold anything. By their names, because the modules
# of these classes are slow to import, and loaded only when Consul is used.
ERROR_MEANINGS: dict[str, Callable[[Any], str]] = {
    f"{__name__}.ConsulUnavailableError": str,
    "builtins.ImportError": lambda _: "cannot be queried: python-consul is missing; install it with pip",
    "ssl.SSLCertVerificationError": lambda error: (
        f"has an untrusted certificate ({error.verify_message}); set CONSUL_CACERT to the CA that signed it"
    ),
    "ssl.SSLError": lambda error: f"cannot be reached over TLS ({error.reason or 'no reason given'})",
    "socket.gaierror": lambda error: f"cannot be found ({error.strerror}); correct CONSUL_HTTP_ADDR",
    "socket.timeout": lambda _: TIMEOUT_MESSAGE,
    "builtins.TimeoutError": lambda _: TIMEOUT_MESSAGE,
    "http.client.RemoteDisconnected": lambda _: "closes the connection without an answer",
    "http.client.IncompleteRead": lambda _: "closes the connection in the middle of its answer",
    "http.client.HTTPException": lambda _: "does not speak HTTP; correct CONSUL_HTTP_ADDR",
}
# Errors while a new leader is elected; one message for all, since it is soon over.
NO_LEADER = re.compile(r"No cluster leader|failed to get conn|not the leader|leadership lost|No known Consul servers")
SERVICE_RIGHTS = "the token needs `service:read` and `node:read`"
KV_RIGHTS = "the token needs `key_prefix` with `write` for the keys under the prefix"
SESSION_RIGHTS = "the token needs `session_prefix` with `write`"


class ConsulUnavailableError(Exception):
    """Why there is no usable response, in words."""


class ExpectedConsulResponse(NamedTuple):
    """What a usable response looks like, and the rights that are needed for it."""

    first_characters: str
    has_index: bool
    rights: str
    can_be_missing: bool = False


NODES_RESPONSE = ExpectedConsulResponse("[", True, SERVICE_RIGHTS)
ENTRIES_RESPONSE = ExpectedConsulResponse("[", True, KV_RIGHTS, can_be_missing=True)
WRITE_RESPONSE = ExpectedConsulResponse("tf", False, KV_RIGHTS)
SESSION_RESPONSE = ExpectedConsulResponse("{[t", False, SESSION_RIGHTS)


class ConsulRequest:
    """A request to Consul in a thread of its own, so that nobody waits beyond its deadline."""

    def __init__(
        self, access: ConsulAccess, call: ConsulCall, expected: ExpectedConsulResponse, is_raw: bool = False
    ) -> None:
        """Send it at once; a raw response is the body as it came, which the library would hold several times over."""
        self.access, self.call, self.expected, self.is_raw = access, call, expected, is_raw
        self.max_bytes = MAX_RAW_RESPONSE_BYTES if is_raw else MAX_RESPONSE_BYTES
        self.deadline = time.monotonic() + REQUEST_TIMEOUT_S
        self.sent_at = time.time()
        self.response: object = None
        self.body: bytearray | None = None
        self.failure = ""
        self.has_response = False
        self.received_at = 0.0
        self.is_cancelled = False
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []
        self.thread = threading.Thread(target=self.run, name="consul", daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.response = perform_consul_request(self)
        except Exception as error:
            failure = describe_consul_error(error, self.has_response)
            self.failure = failure.replace("CONSUL_HTTP_ADDR", self.access.address_setting)
        self.received_at = time.time()
        with self.lock:
            for connection in self.connections:
                connection.close()
            self.connections.clear()

    def wait(self) -> str:
        """Return why there is no response by the deadline, or nothing."""
        self.thread.join(max(0.0, self.deadline - time.monotonic()))
        if not self.thread.is_alive():
            return self.failure
        # end the connection under the thread: the library's time limit does not stop a byte per second
        with self.lock:
            self.is_cancelled = True
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        return TIMEOUT_MESSAGE


def perform_consul_request(request: ConsulRequest) -> object:
    access = request.access
    try:
        address, is_https = parse_consul_address_setting(access.address)
    except ValueError:
        reason = "its address is not host:port, http://host:port or https://host:port"
        raise ConsulUnavailableError(f"cannot be queried: {reason}") from None
    for path in (access.ca, access.cert, access.key):
        if path and not os.access(path, os.R_OK):
            reason = f"{path} cannot be read; correct the certificate settings"
            raise ConsulUnavailableError(f"cannot be queried: {reason}")
    import consul  # noqa: PLC0415, TID251 # slow to import

    if not access.verify:
        import urllib3  # noqa: PLC0415 # the same

        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the admin chose it
    # Both libraries let CONSUL_HTTP_* override their arguments, and python-consul even fails on an https:// in it; both
    # read the environment by this name only.
    consul.base.os = SimpleNamespace(getenv=lambda _, default=None: default)
    client = consul.Consul(
        host=address.rpartition(":")[0],
        port=int(address.rpartition(":")[2]),
        scheme="https" if access.tls or is_https else "http",
        dc=access.datacenter,
        verify=(access.ca or True) if access.verify else False,
        cert=(access.cert, access.key) if access.cert and access.key else access.cert,
    )
    session = getattr(client.http, "session", None)
    if session is None:  # then only our deadline limits it
        client.token = access.token
        return request.call(client)
    # make the library's requests short, small, without redirects, and cancellable
    limits = {"timeout": REQUEST_TIMEOUT_S, "allow_redirects": False, "stream": True}
    send_request = session.request
    session.request = lambda *arguments, **options: send_request(*arguments, **{**options, **limits})
    session.trust_env = False  # no proxy, no .netrc
    session.hooks["response"] = [lambda response, **_: read_whole_consul_response(response, request)]
    session.headers["Accept-Encoding"] = "identity"
    if access.token:
        # as a header: python-consul would write it into the URL, and so into logs and messages
        session.headers["X-Consul-Token"] = access.token
    for adapter in session.adapters.values():
        pools = adapter.poolmanager.pool_classes_by_scheme = dict(adapter.poolmanager.pool_classes_by_scheme)
        for scheme, pool in pools.items():
            pools[scheme] = build_cancellable_consul_pool(pool, request)
    with session:
        response = request.call(client)
    return request.body if request.is_raw else response


def build_cancellable_consul_pool(pool: Any, request: ConsulRequest) -> type:  # noqa: ANN401 # a class of urllib3
    """Return a pool whose connections `ConsulRequest.wait` can end."""

    def connect(connection: Any) -> socket.socket:  # noqa: ANN401 # the same
        new_socket: socket.socket = pool.ConnectionCls._new_conn(connection)
        with request.lock:
            if request.is_cancelled:
                new_socket.close()
                raise TimeoutError
            request.connections.append(new_socket.dup())
        return new_socket

    return type("Pool", (pool,), {"ConnectionCls": type("Noted", (pool.ConnectionCls,), {"_new_conn": connect})})


def read_whole_consul_response(response: Any, request: ConsulRequest) -> object:  # noqa: ANN401 # of requests
    """Read the body and check it; return a response that holds it."""
    status, body = response.status_code, bytearray()
    try:
        for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > request.max_bytes:
                raise ConsulUnavailableError(f"sends more than {request.max_bytes >> 20} MB")
            if status != 200 and len(body) >= CHUNK_BYTES:  # enough to say what is wrong
                break
    finally:
        response.close()
    if problem := describe_bad_consul_response(status, response.headers, body, request.access, request.expected):
        raise ConsulUnavailableError(problem)
    request.has_response = True
    if request.is_raw and status == 200:
        request.body, body = body, bytearray(b"[]")
    new_response = type(response)()
    new_response.status_code, new_response.headers = status, response.headers
    new_response.url, new_response.raw = response.url, BytesIO(body)
    return new_response


def describe_bad_consul_response(
    status: int, headers: Mapping[str, str], body: bytearray, access: ConsulAccess, expected: ExpectedConsulResponse
) -> str:
    """Say why a response is unusable, without the token; empty if it is usable."""
    text = body[:10_000].decode("utf-8", "replace").lstrip()
    if access.token:
        text = text.replace(access.token, "(token)")
    message = "" if text.startswith("<") else clean_consul_json_value(text, 100)
    has_index = "X-Consul-Index" in headers or not expected.has_index
    if 300 <= status < 400:
        return f"answers with a redirect ({status}), which is not followed; set CONSUL_HTTP_ADDR to its target"
    if status == 403:
        return f"refuses the request ({message or status}); {expected.rights}"
    if status == 500 and access.datacenter and "datacenter" in message:
        return f"does not know the datacenter {access.datacenter} ({message}); correct GPUBOARD_CONSUL_DATACENTER"
    if status == 500 and NO_LEADER.search(text):
        return "has no leader at the moment, or cannot reach it"
    is_missing = status == 404 and expected.can_be_missing and not text
    if status != 200 and not is_missing:
        return f"answers with an error ({status}{': ' if message else ''}{message})"
    if has_index and (is_missing or (text and text[0] in expected.first_characters)):
        return ""
    content = "a page in HTML" if text.startswith("<") else "something other than a Consul list"
    return f"answers with {content}; correct CONSUL_HTTP_ADDR if that is not Consul"


def describe_consul_error(error: BaseException, has_response: bool) -> str:
    """Describe the first cause that has a message."""
    for cause in iterate_error_causes(error):
        for error_type in type(cause).__mro__:
            if meaning := ERROR_MEANINGS.get(f"{error_type.__module__}.{error_type.__name__}"):
                return meaning(cause)
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return f"does not answer ({cause.strerror.lower()})"
    if has_response:
        return "does not answer with JSON; correct CONSUL_HTTP_ADDR if that is not Consul"
    return f"cannot be queried, or its answer cannot be parsed ({type(error).__name__})"


def format_agent_address(text: str) -> str:
    """Remove a name and password from an address."""
    return clean_consul_json_value(text.rpartition("@")[2], 200)


def clean_consul_json_value(value: object, max_characters: int) -> str:
    """Return a text in one line, safe to write anywhere; empty for other types."""
    if not isinstance(value, str):
        return ""
    # JSON can hold lone surrogates, which no file can
    text = value[: 20 * max_characters].encode("utf-8", "replace").decode()
    return " ".join(clean_text(text).split())[:max_characters].rstrip()
