"""Slack: its Web API, direct messages, and the socket over which it sends what people write."""

from __future__ import annotations

import html
import http.client
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import URLError

from site_builder.alerts.model import FAILED, REFUSED, SENT, UNSURE, AlertMessage, DeliveryOutcome
from site_builder.core.model import SlackAccess
from site_builder.core.terminal_text import clean_excerpt

if TYPE_CHECKING:  # slow to import
    from slack_sdk.socket_mode import SocketModeClient  # noqa: TID251

SLACK_TIMEOUT_S = 10
SLACK_SDK_MISSING = "slack-sdk is not installed: pip install 'gpuboard[slack]'"
NO_TOKEN_MESSAGE = "GPUBOARD_SLACK_BOT_TOKEN is not set"  # noqa: S105 # a sentence
# Slack asks for no more than this, and cuts a text that is ten times as long.
MAX_TEXT_CHARACTERS = 4000
MAX_RETRY_AFTER_S = 3600
MAX_ENTITY_CHARACTERS = len("&amp;")
# After these errors the message may have been posted.
UNSURE_CODES = frozenset({"fatal_error", "internal_error", "request_timeout"})
# There is nobody who could get it, and will not be.
NO_RECEIVER_CODES = frozenset(
    {"channel_not_found", "user_not_found", "users_not_found", "user_disabled", "is_archived", "cannot_dm_bot"}
)
# What an admin can do about an error.
ERROR_MEANINGS = {
    "invalid_auth": "Slack does not know the token: it may have been revoked, or belong to another app",
    "not_authed": "Slack received no token",
    "not_allowed_token_type": "wrong kind of token: Slack needs xoxb- for the bot and xapp- for its socket",
    "account_inactive": "the app was removed from this workspace",
    "token_revoked": "the token was revoked",
    "token_expired": "the token has expired: switch token rotation off in the app's settings",
    "missing_scope": "the app lacks a permission: reinstall it with the manifest of docs/slack.md",
    "not_in_channel": "the bot is not in this channel: invite it there",
    "user_not_found": "unknown member",
    "channel_not_found": "unknown member or channel",
    "user_disabled": "this member has left",
    "forbidden_team": "Slack does not allow sockets for this workspace",
    "too_many_websockets": "this app already has ten sockets open: run only one bot",
}


class SlackRequestError(Exception):
    """Slack did not do what was asked; `code` is its own name of the error, `status` as in a DeliveryOutcome."""

    def __init__(self, status: str, reason: str, code: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.code, self.retry_after_s = status, reason, code, retry_after_s

    @property
    def is_permanent(self) -> bool:
        """Return True if Slack itself refused, so that only an admin can help."""
        return bool(self.code) and self.code not in UNSURE_CODES and self.retry_after_s is None


class SlackClientIdentity(NamedTuple):
    user_id: str
    bot_id: str


@lru_cache(maxsize=1)
def create_slack_client_logger() -> logging.Logger:
    """Create a logger that drops everything: the library logs what people write."""
    logger = logging.getLogger("gpuboard.slack")
    logger.propagate = False
    logger.setLevel(logging.CRITICAL + 1)
    logger.addHandler(logging.NullHandler())
    return logger


class SlackClient:
    """The Web API with the token of the bot."""

    def __init__(self, access: SlackAccess, timeout_s: int = SLACK_TIMEOUT_S) -> None:
        if not access.bot_token:
            raise SlackRequestError(FAILED, NO_TOKEN_MESSAGE)
        self.access = access
        try:
            from slack_sdk.web import WebClient  # noqa: PLC0415, TID251 # slow to import
        except ImportError:
            raise SlackRequestError(FAILED, SLACK_SDK_MISSING) from None
        # without retry_handlers the library would send again what may have arrived
        self.web_client = WebClient(
            access.bot_token, access.url, timeout_s, logger=create_slack_client_logger(), retry_handlers=[]
        )

    def call_method(self, method: str, body: dict[str, Any] | None = None, form: bool = False) -> Mapping[str, Any]:
        """Call a method once; a second call could do it twice."""
        from slack_sdk.errors import SlackApiError  # noqa: PLC0415, TID251 # slow to import

        try:
            data = self.web_client.api_call(method, params=body if form else None, json=None if form else body).data
        except SlackApiError as error:
            raise build_slack_request_error(error.response) from None
        except URLError as error:
            raise SlackRequestError(FAILED, describe_unreachable_slack(error)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # other messages repeat headers, and the token is in one of them
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SlackRequestError(UNSURE, f"Slack did not answer: {reason}") from None
        return data if isinstance(data, dict) else {}

    def post_message(
        self, channel: str, text: str, blocks: list[dict[str, Any]] | None = None, thread: str = ""
    ) -> None:
        """Post a message; `text` is what a notification shows, and everything if there are no blocks."""
        body = {"channel": channel, "text": text, "unfurl_links": False, "unfurl_media": False}
        optional = {"blocks": blocks, "thread_ts": thread}
        self.call_method("chat.postMessage", body | {key: value for key, value in optional.items() if value})

    def fetch_identity(self) -> SlackClientIdentity:
        answer = self.call_method("auth.test")
        return SlackClientIdentity(*(str(answer.get(key) or "") for key in SlackClientIdentity._fields))

    def fetch_member_mail(self, user: str) -> str | None:
        """Fetch the address of a person in the workspace, if it is confirmed and visible to us."""
        answer = self.call_method("users.info", {"user": user}, form=True).get("user")  # this method takes no JSON
        member: dict[str, Any] = answer if isinstance(answer, dict) else {}
        profile = member.get("profile")
        is_person = not any(member.get(key) for key in ("is_bot", "deleted", "is_stranger", "is_app_user"))
        has_mail = is_person and member.get("is_email_confirmed") is not False
        mail = profile.get("email") if has_mail and isinstance(profile, dict) else None
        return mail if isinstance(mail, str) else None


def build_slack_request_error(response: Any) -> SlackRequestError:  # noqa: ANN401 # of slack_sdk
    http_status = getattr(response, "status_code", 200)
    headers = {str(key).lower(): value for key, value in (getattr(response, "headers", None) or {}).items()}
    data = getattr(response, "data", None)
    code = str(data.get("error") or "") if isinstance(data, dict) else ""
    if http_status == 429 or code in {"ratelimited", "rate_limited", "message_limit_exceeded"}:
        value = headers.get("retry-after")
        text = str(value[0] if isinstance(value, list) and value else value)
        is_number = text.isascii() and text.isdecimal() and len(text) < 9
        retry_after_s = min(int(text), MAX_RETRY_AFTER_S) if is_number else 30
        return SlackRequestError(FAILED, "Slack refuses for now: too many messages", "ratelimited", retry_after_s)
    if http_status != 200:
        return SlackRequestError(FAILED, f"Slack answers {http_status}")
    if " " in code or not code:
        return SlackRequestError(FAILED, "the server is not Slack")
    reason = ERROR_MEANINGS.get(code) or f"Slack says {clean_excerpt(code, 60)}"
    status = UNSURE if code in UNSURE_CODES else REFUSED if code in NO_RECEIVER_CODES else FAILED
    return SlackRequestError(status, reason, code)


def describe_unreachable_slack(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return f"Slack cannot be reached: {clean_excerpt(getattr(reason, 'strerror', None) or reason)}"


def send_direct_message(
    access: SlackAccess, member: str, message: AlertMessage, timeout_s: int = SLACK_TIMEOUT_S
) -> DeliveryOutcome:
    """Send an alert as a direct message of the bot, in which nothing mentions anybody; `member` is like U0123ABCD."""
    title = escape_for_slack_api(message.title.strip())
    text = escape_for_slack_api((message.short_text or message.text).strip())
    rest = text[len(title) :].lstrip() if text.startswith(title) else text
    content = truncate_for_slack_api(f"*{title}*\n{rest}" if rest else f"*{title}*", MAX_TEXT_CHARACTERS)
    try:
        SlackClient(access, timeout_s).post_message(member, content)
    except SlackRequestError as error:
        return DeliveryOutcome(error.status, error.reason, error.retry_after_s)
    return DeliveryOutcome(SENT)


def escape_for_slack_api(text: str) -> str:
    """Escape a text, so that `<!channel>` in it mentions nobody."""
    return html.escape(text, quote=False)


def truncate_for_slack_api(text: str, max_characters: int) -> str:
    """Truncate an escaped text, without half an escape at its end."""
    if len(text) <= max_characters:
        return text
    kept = text[: max_characters - 1]
    escape_start = kept.rfind("&", -MAX_ENTITY_CHARACTERS)
    if escape_start >= 0 and ";" not in kept[escape_start:]:
        kept = kept[:escape_start]
    return f"{kept}…"


class SlackSocketClient:
    """The connection over which Slack sends what people write; we open it, and again when it ends.

    `on_envelope` gets the id of each envelope, its type and its content.
    """

    def __init__(
        self, slack_client: SlackClient, on_envelope: Callable[[SlackSocketClient, str, str, dict[str, Any]], None]
    ) -> None:
        self.slack_client, self.on_envelope = slack_client, on_envelope
        self.socket_client: SocketModeClient | None = None

    def open(self) -> None:
        from slack_sdk.errors import SlackApiError  # noqa: PLC0415, TID251 # slow to import
        from slack_sdk.socket_mode import SocketModeClient  # noqa: PLC0415, TID251

        token = self.slack_client.access.app_token
        if not token:
            raise SlackRequestError(FAILED, "GPUBOARD_SLACK_APP_TOKEN is not set")
        self.close()
        client = SocketModeClient(token, create_slack_client_logger(), self.slack_client.web_client, concurrency=4)
        client.message_listeners.append(self.handle_message)
        self.socket_client = client
        try:
            client.connect()
            failure = None if client.is_connected() else SlackRequestError(FAILED, "Slack's socket cannot be reached")
        except SlackApiError as error:
            failure = build_slack_request_error(error.response)
        except Exception as error:
            failure = SlackRequestError(FAILED, describe_unreachable_slack(error))
        if failure:
            self.close()
            raise failure

    def handle_message(self, _client: object, message: dict[str, Any], _raw: str | None) -> None:
        """Pass on a message; one without an envelope needs no answer."""
        envelope = message.get("envelope_id")
        if isinstance(envelope, str) and envelope:
            self.on_envelope(self, envelope, str(message.get("type")), message)

    def acknowledge(self, envelope: str) -> bool:
        """Confirm an envelope; return False if that failed, and Slack will send it again."""
        try:
            if self.socket_client is None:
                return False
            self.socket_client.send_socket_mode_response({"envelope_id": envelope})
        except Exception:  # the library raises many errors for a lost connection
            return False
        return True

    def is_open(self) -> bool:
        """Return True if connected; reconnect if the other end is gone.

        The library would go on reading nothing, as fast as it can, until a dozen of its pings had no answer.
        """
        client = self.socket_client
        session = client.current_session if client is not None else None
        if client is None or session is None:
            return False
        if is_slack_socket_gone(session.sock):
            session.disconnect()
            with suppress(Exception):  # the library tries again by itself
                client.connect_to_new_endpoint()
        return client.is_connected()

    def stop_reconnecting(self) -> None:
        """Let the connection end with the process; closing it takes some seconds."""
        if self.socket_client is not None:
            self.socket_client.closed = True
            self.socket_client.auto_reconnect_enabled = False

    def close(self) -> None:
        client, self.socket_client = self.socket_client, None
        if client is not None:
            client.close()


def is_slack_socket_gone(connection: Any) -> bool:  # noqa: ANN401 # with or without TLS
    """Return True if the other end has closed a connection, and nothing is left to read."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            return copy.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, AttributeError):
        return False  # nothing to read, or no connection
    except (OSError, ValueError):
        return True
