"""A stand-in of Slack on loopback: its Web API and its Socket Mode as they are documented, for tests alone.

An envelope that nobody accepts within some seconds is told again, on whatever line is open then; a line is opened by a
ticket that counts once; what is posted is looked at as Block Kit.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.support import block_kit

BOT_TOKEN, APP_TOKEN = "xoxb-1-2-secretbot", "xapp-1-A-2-secretapp"
ME, MY_BOT, TEAM = "UBOT00001", "BBOT00001", "T00000001"
GENERAL = "C00000001"
ACCEPTED_WITHIN = 20.0  # Slack itself waits for 3 s, but it tests no busy machine


class Slack:
    """The workspace: members, what was posted, and what goes wrong next."""

    def __init__(self) -> None:
        self.members: dict[str, dict[str, Any]] = {}
        self.posted: list[dict[str, Any]] = []
        self.asked: list[str] = []
        # what a method answers before it answers as it should: status, headers, body; None is to hang up
        self.next: dict[str, deque[tuple[int, dict[str, str], Any] | None]] = {}
        self.lines: list[ServerConnection] = []
        self.tickets: set[str] = set()
        self.accepted: set[str] = set()
        self.opened = 0
        self.patience = ACCEPTED_WITHIN
        self.news = threading.Condition()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.http.daemon_threads = True
        self.sockets = serve(self.line, "127.0.0.1", 0, ping_interval=None, close_timeout=1)
        self.threads = [
            threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self.sockets.serve_forever, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/api/"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.sockets.shutdown()
        for thread in self.threads:
            thread.join(10)

    def __enter__(self) -> Slack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The socket

    def line(self, connection: ServerConnection) -> None:
        """One line, as long as it lasts."""
        path = connection.request.path if connection.request else ""
        ticket = path.partition("ticket=")[2]
        with self.news:
            is_valid_ticket = ticket in self.tickets
            self.tickets.discard(ticket)
        if not is_valid_ticket:
            return
        connection.send(json.dumps({"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}}))
        with self.news:
            self.lines.append(connection)
            self.opened += 1
            self.news.notify_all()
        try:
            for text in connection:
                acknowledgement = json.loads(text)
                with self.news:
                    self.accepted.add(acknowledgement["envelope_id"])
                    self.news.notify_all()
        except ConnectionClosed:
            pass
        finally:
            with self.news:
                if connection in self.lines:
                    self.lines.remove(connection)
                self.news.notify_all()

    def wait(self, look: Callable[[], Any], seconds: float = 60) -> Any:  # noqa: ANN401 # whatever it looks for
        """What `look` finds, as soon as it does."""
        with self.news:
            if not self.news.wait_for(look, seconds):
                raise TimeoutError([self.asked[-10:], self.posted[-3:]])
            return look()

    def tell(self, message: dict[str, Any], times: int = 1) -> list[bool]:
        """An envelope, told again until somebody accepts it; `times` is how often it is told in any case."""
        accepted = []
        for attempt in range(max(times, 10)):
            envelope = f"envelope-{time.monotonic_ns()}"
            delivery = {**message, "envelope_id": envelope, "retry_attempt": attempt, "retry_reason": ""}
            line = self.wait(lambda: self.lines and self.lines[-1])
            try:
                line.send(json.dumps(delivery))
            except ConnectionClosed:
                accepted.append(False)
                continue
            with self.news:
                accepted.append(
                    self.news.wait_for(lambda envelope=envelope: envelope in self.accepted, self.patience)  # type: ignore[misc]
                )
            if accepted[-1] and len(accepted) >= times:
                break
        return accepted

    def disconnect(self) -> None:
        """As Slack renews a line: it warns, and a while later it closes."""
        line = self.wait(lambda: self.lines and self.lines[-1])
        line.send(json.dumps({"type": "disconnect", "reason": "refresh_requested", "debug_info": {}}))

    def cut(self) -> None:
        """The line breaks, and nobody says why."""
        for line in list(self.lines):
            line.socket.shutdown(socket.SHUT_RDWR)

    # What people do

    def says(self, user: str, text: str, channel: str = "", **overrides: Any) -> dict[str, Any]:  # noqa: ANN401
        """An envelope with what somebody says: to the bot alone, or with its name in a channel.

        `event` has what is other in it, and `outer` around it.
        """
        event = {
            "type": "app_mention" if channel else "message",
            "user": user,
            "text": f"<@{ME}> {text}" if channel else text,
            "ts": f"{time.time():.6f}",
            "channel": channel or f"D{user[1:]}",
            **({} if channel else {"channel_type": "im"}),
        }
        event.update(overrides.get("event", {}))
        about = {"type": "event_callback", "event_id": f"Ev{time.monotonic_ns()}", **overrides.get("outer", {})}
        payload = {**about, "event": event}
        return {"type": "events_api", "payload": payload, "accepts_response_payload": False}

    def ask(self, user: str, text: str, channel: str = "", **overrides: Any) -> dict[str, Any]:  # noqa: ANN401
        """The answer to what somebody says."""
        envelope = self.says(user, text, channel, **overrides)
        event = envelope["payload"]["event"]
        with self.news:
            before = len(self.posted)
        assert self.tell(envelope)[-1]

        def answers() -> list[dict[str, Any]]:
            channel_messages = [
                posted_message
                for posted_message in self.posted[before:]
                if posted_message["channel"] == event["channel"]
            ]
            return [
                posted_message
                for posted_message in channel_messages
                if not channel or posted_message.get("thread_ts") == event["ts"]
            ]

        replies: list[dict[str, Any]] = self.wait(answers)
        return replies[0]

    # The Web API

    def answer(self, method: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any] | None:
        """What a method answers."""
        with self.news:
            self.asked.append(method)
            scripted = self.next.get(method)
            scripted_answer = scripted.popleft() if scripted else (0, {}, None)
            if scripted_answer is None or scripted_answer[0]:
                self.news.notify_all()
                return scripted_answer
            return 200, {}, self.said(method, token, body)

    def said(self, method: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
        """The same, as it should."""
        wanted = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if token != wanted:
            is_own_token = token in {APP_TOKEN, BOT_TOKEN}
            return {"ok": False, "error": "not_allowed_token_type" if is_own_token else "invalid_auth"}
        if method == "auth.test":
            return {"ok": True, "user_id": ME, "bot_id": MY_BOT, "team_id": TEAM}
        if method == "apps.connections.open":
            ticket = f"t{time.monotonic_ns()}"
            self.tickets.add(ticket)
            port = self.sockets.socket.getsockname()[1]
            return {"ok": True, "url": f"ws://127.0.0.1:{port}/link/?ticket={ticket}"}
        if method == "users.info":
            member_record = self.members.get(str(body.get("user")))
            return {"ok": True, "user": member_record} if member_record else {"ok": False, "error": "user_not_found"}
        if method == "chat.postMessage":
            return self.post(body)
        return {"ok": False, "error": "unknown_method"}

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """A message, if there is a channel for it and its blocks are right."""
        if body.get("channel", "")[:1] not in {"C", "D", "U"} or body["channel"] == "U404":
            return {"ok": False, "error": "channel_not_found"}
        wrong = block_kit.faults(body)
        if wrong:
            # a table is counted among the attachments
            error = "invalid_attachments" if "only_one_table_allowed" in wrong else "invalid_blocks"
            return {"ok": False, "error": error, "response_metadata": {"messages": wrong}}
        self.posted.append(body)
        self.news.notify_all()
        return {"ok": True, "channel": body["channel"], "ts": f"{time.time():.6f}"}


def member(mail: str = "", **extra_fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Somebody as users.info tells them."""
    return {"is_bot": False, "deleted": False, "is_email_confirmed": True, "profile": {"email": mail}, **extra_fields}


def handler_of(slack: Slack) -> type[BaseHTTPRequestHandler]:
    """What answers HTTP for it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_json = "json" in self.headers.get("Content-Type", "")
            form = {key: values[0] for key, values in parse_qs(content.decode()).items()} if not is_json else {}
            body = json.loads(content) if is_json and content else form
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            reply = slack.answer(self.path.rpartition("/")[2], token, body)
            if reply is None:
                return
            status, headers, reply_body = reply
            data = reply_body if isinstance(reply_body, bytes) else json.dumps(reply_body).encode()
            self.send_response(status)
            for key, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
