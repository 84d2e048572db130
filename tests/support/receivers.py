"""Receivers of letters on this machine: a web server that answers as its path says, and mail servers."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.ports import free_port

LONG = 30.0


class Web:
    """What came, by path; `/500` answers 500, `/slow` not before `go`, `/cut` never, `/drip` for ever."""

    def __init__(self) -> None:
        self.came: list[tuple[str, dict[str, Any]]] = []
        self.go = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def url(self, path: str) -> str:
        """An address of it, as apprise has them."""
        return f"json://127.0.0.1:{self.port}/{path}"

    def at(self, path: str) -> list[dict[str, Any]]:
        return [body for where, body in self.came if where.strip("/") == path]

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


def handler(web: Web) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            web.came.append((path, json.loads(body or b"{}")))
            name = path.strip("/").split("/")[0]
            if name == "slow":
                web.go.wait(LONG)
            if name == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.answer(int(name) if name.isdigit() else 200, name)

        do_GET = do_POST

        def answer(self, status: int, name: str) -> None:
            self.send_response(status)
            if status in (429, 503):
                self.send_header("Retry-After", "120")
            if 300 <= status < 400:
                self.send_header("Location", "/200/elsewhere")
            self.end_headers()
            if name == "no":
                self.wfile.write(b'{"ok": false, "error": "channel_not_found"}')
            if name == "slack":
                self.wfile.write(b'{"ok": true}')
            if name == "services":
                self.wfile.write(b"ok")
            while name == "drip" and not web.go.wait(0.02):
                self.wfile.write(b".")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler


class Post:
    """A mail server's rules: who is not known, who later, and what came."""

    def __init__(self) -> None:
        self.came: list[tuple[tuple[str, ...], EmailMessage]] = []

    async def handle_RCPT(
        self,
        _server: SMTP,
        _session: Session,
        envelope: Envelope,
        address: str,
        options: list[str],
    ) -> str:
        if address.startswith("nobody@"):
            return "550 no such user"
        if address.startswith("later@"):
            return "451 try again later"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        mail = message_from_bytes(cast("bytes", envelope.content), policy=policy.default)
        self.came.append((tuple(envelope.rcpt_tos), mail))
        return "554 too large" if "refuse me" in str(mail["Subject"]) else "250 taken"


def check(_server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, credentials: object) -> AuthResult:
    """Whether a login is the only one that there is."""
    return AuthResult(success=credentials == LoginPassword(b"board", b"s3cret-word"), handled=False)


def certificate(folder: Path) -> Path:
    """A key and a certificate that nobody has signed."""
    made = folder / "mail.pem"
    asked = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    with made.open("wb") as file:
        command = ["openssl", *asked, "-keyout", "-", "-out", "-"]
        subprocess.run(command, check=True, stdout=file, stderr=subprocess.DEVNULL)
    return made


@contextmanager
def mail_server(post: Post, tls: Path | None = None) -> Iterator[int]:
    """A mail server on a free port; with a certificate it wants STARTTLS and a login."""
    port = free_port()
    security_options: dict[str, Any] = {}
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        security_options = {
            "tls_context": context,
            "require_starttls": True,
            "auth_required": True,
            "authenticator": check,
        }
    server = Controller(post, hostname="127.0.0.1", port=port, ready_timeout=LONG, **security_options)
    server.start()
    try:
        yield port
    finally:
        server.stop()


@contextmanager
def mute_server() -> Iterator[int]:
    """A mail server that takes a message, and ends the connection before it says so."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line, line.makefile("rb") as heard:
                line.sendall(b"220 here\r\n")
                for received_line in heard:
                    if received_line.strip() == b".":
                        break
                    if received_line.upper().startswith(b"DATA"):
                        line.sendall(b"354 go on\r\n")
                    elif received_line.split(b" ")[0].strip().upper() in (b"EHLO", b"HELO", b"MAIL", b"RCPT"):
                        line.sendall(b"250 well\r\n")

    threading.Thread(target=talk, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
