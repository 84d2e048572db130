"""Slack: what is asked of its Web API, how that went, and the socket by which it tells us what people say."""

from __future__ import annotations

import http.client
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import URLError

from site_builder.alerts.model import DeliveryOutcome, Message
from site_builder.core.model import SlackAccess
from site_builder.core.terminal_text import clean_excerpt

if TYPE_CHECKING:
    from slack_sdk.socket_mode import SocketModeClient  # noqa: TID251
    from slack_sdk.web import WebClient  # noqa: TID251

SLACK_TIMEOUT_S = 10
SLACK_SDK_MISSING = "slack-sdk is not installed here: pip install 'gpuboard[slack]'"
NO_TOKEN_MESSAGE = "GPUBOARD_SLACK_BOT_TOKEN is not set"  # noqa: S105 # a sentence
# Slack shortens what is longer than ten times this, and asks for no more than this.
MAX_TEXT_CHARACTERS = 4000
MAX_RETRY_AFTER_S = 3600
MAX_ENTITY_CHARACTERS = len("&amp;")
# Of these nobody can say whether the message was posted before.
UNSURE_CODES = frozenset({"fatal_error", "internal_error", "request_timeout"})
# Nobody is there who could get it, and that will be so tomorrow.
NO_RECEIVER_CODES = frozenset(
    {"channel_not_found", "user_not_found", "users_not_found", "user_disabled", "is_archived", "cannot_dm_bot"}
)
# What an admin can mend, in words that help.
ERROR_MEANINGS = {
    "invalid_auth": "Slack does not know the token: has it been taken back, or is it another app's?",
    "not_authed": "Slack got no token",
    "not_allowed_token_type": "Slack wants another kind of token here: xoxb- for the bot, xapp- for its socket",
    "account_inactive": "the app was removed from this workspace",
    "token_revoked": "the token was taken back",
    "token_expired": "the token has expired: switch token rotation off in the app's settings",
    "missing_scope": "the app lacks a permission: install it anew with the manifest of docs/slack.md",
    "not_in_channel": "the bot is not in this channel: invite it there",
    "user_not_found": "there is no such member",
    "channel_not_found": "there is no such member or channel",
    "user_disabled": "this member has left",
    "forbidden_team": "Slack does not let this workspace use sockets",
    "too_many_websockets": "this app has ten sockets open already: one bot is enough",
}


class SlackRequestError(Exception):
    """Why Slack did not do what was asked: `code` is its own word for it, `how` and `wait` as in an Outcome."""

    def __init__(self, how: str, why: str, code: str = "", wait: int | None = None) -> None:
        """`why` is one sentence without secrets."""
        super().__init__(why)
        self.status, self.reason, self.code, self.retry_after_s = how, why, code, wait

    @property
    def is_permanent(self) -> bool:
        """Whether Slack itself said no, so that only an admin can help."""
        return bool(self.code) and self.code not in UNSURE_CODES and self.retry_after_s is None


class BotIdentity(NamedTuple):
    """Who we are there."""

    user_id: str
    bot_id: str
    team_id: str


class SlackMember(NamedTuple):
    """A member of the workspace; `mail` is their address, where it is confirmed and we may see it."""

    mail: str | None
    is_person: bool


@lru_cache(maxsize=1)
def create_silent_logger() -> logging.Logger:
    """Where the library's words go: nowhere, for they repeat what people say."""
    logger = logging.getLogger("gpuboard.slack")
    logger.propagate = False
    logger.setLevel(logging.CRITICAL + 1)
    logger.addHandler(logging.NullHandler())
    return logger


class SlackClient:
    """The Web API with the token of the bot."""

    def __init__(self, access: SlackAccess, patience: int = SLACK_TIMEOUT_S) -> None:
        """`NotDone` if there is no token, or no library."""
        if not access.bot_token:
            raise SlackRequestError("failed", NO_TOKEN_MESSAGE)
        self.access = access
        try:
            self.web_client = create_web_client(access, patience)
        except ImportError:
            raise SlackRequestError("failed", SLACK_SDK_MISSING) from None

    def call_method(self, method: str, body: dict[str, Any] | None = None, form: bool = False) -> Mapping[str, Any]:
        """One call, and never a second one for it: whether the first was done, nobody could tell."""
        from slack_sdk.errors import SlackApiError  # noqa: PLC0415, TID251

        try:
            found = self.web_client.api_call(method, params=body if form else None, json=None if form else body).data
        except SlackApiError as error:
            raise build_request_error(error.response) from None
        except URLError as error:
            raise SlackRequestError("failed", describe_unreachable_slack(error)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # the words of others repeat headers, and the token is in one of them
            why = getattr(error, "strerror", None) or type(error).__name__
            raise SlackRequestError("unsure", f"Slack was asked, and its answer never came: {why}") from None
        return found if isinstance(found, dict) else {}

    def post_message(
        self, channel: str, text: str, blocks: list[dict[str, Any]] | None = None, thread: str = ""
    ) -> None:
        """A message; `text` is what a notification shows, and all of it where there are no blocks."""
        body: dict[str, Any] = {"channel": channel, "text": text, "unfurl_links": False, "unfurl_media": False}
        if blocks:
            body["blocks"] = blocks
        if thread:
            body["thread_ts"] = thread
        self.call_method("chat.postMessage", body)

    def fetch_identity(self) -> BotIdentity:
        """Who the token is."""
        found = self.call_method("auth.test")
        return BotIdentity(*(str(found.get(key) or "") for key in ("user_id", "bot_id", "team_id")))

    def fetch_member(self, user: str) -> SlackMember:
        """Somebody of the workspace."""
        found = self.call_method("users.info", {"user": user}, form=True).get("user")  # this one takes no JSON
        told: dict[str, Any] = found if isinstance(found, dict) else {}
        profile = told.get("profile")
        person = not any(told.get(key) for key in ("is_bot", "deleted", "is_stranger", "is_app_user"))
        known = person and told.get("is_email_confirmed") is not False
        mail = profile.get("email") if known and isinstance(profile, dict) else None
        return SlackMember(mail if isinstance(mail, str) else None, person)


def create_web_client(access: SlackAccess, patience: int) -> WebClient:
    """The library's client; it would by itself send again what may have arrived."""
    from slack_sdk.web import WebClient  # noqa: PLC0415, TID251 # slow to import

    return WebClient(access.bot_token, access.url, patience, logger=create_silent_logger(), retry_handlers=[])


def build_request_error(response: Any) -> SlackRequestError:  # noqa: ANN401 # the library's own
    """What Slack has against it."""
    status = getattr(response, "status_code", 200)
    headers = {str(key).lower(): value for key, value in (getattr(response, "headers", None) or {}).items()}
    data = getattr(response, "data", None)
    code = str(data.get("error") or "") if isinstance(data, dict) else ""
    if status == 429 or code in {"ratelimited", "rate_limited", "message_limit_exceeded"}:
        return SlackRequestError(
            "failed", "Slack wants us to wait: too many messages", "ratelimited", parse_slack_retry_after(headers)
        )
    if status != 200 or " " in code or not code:
        words = f"Slack answers {status}" if status != 200 else "what answers there is not Slack"
        return SlackRequestError("failed", words)
    why = ERROR_MEANINGS.get(code) or f"Slack says {clean_excerpt(code, 60)}"
    return SlackRequestError(
        "unsure" if code in UNSURE_CODES else "refused" if code in NO_RECEIVER_CODES else "failed", why, code
    )


def describe_unreachable_slack(error: Exception) -> str:
    """That nothing got there, and why."""
    reason = error.reason if isinstance(error, URLError) else error
    return f"Slack cannot be reached: {clean_excerpt(getattr(reason, 'strerror', None) or reason)}"


def parse_slack_retry_after(headers: Mapping[str, Any]) -> int:
    """How long Slack wants us to wait."""
    told = headers.get("retry-after")
    told = str(told[0] if isinstance(told, list) and told else told)
    return min(int(told), MAX_RETRY_AFTER_S) if told.isascii() and told.isdecimal() and len(told) < 9 else 30


# A message to one person


def send_direct_message(
    access: SlackAccess, member: str, message: Message, patience: int = SLACK_TIMEOUT_S
) -> DeliveryOutcome:
    """An alert as a direct message from the bot; `member` is an id such as U0123ABCD."""
    try:
        SlackClient(access, patience).post_message(member, format_direct_message(message))
    except SlackRequestError as why:
        return DeliveryOutcome(why.status, why.reason, why.retry_after_s)
    return DeliveryOutcome("sent")


def format_direct_message(message: Message) -> str:
    """A message as Slack writes it: the title stands out, and nothing in it calls anybody."""
    title, text = (escape_slack_text(one.strip()) for one in (message.title, message.short_text or message.text))
    rest = text[len(title) :].lstrip() if text.startswith(title) else text
    return truncate_escaped_text(f"*{title}*\n{rest}" if rest else f"*{title}*", MAX_TEXT_CHARACTERS)


def escape_slack_text(text: str) -> str:
    """As Slack wants it: a `<!channel>` in it is then these ten letters."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def truncate_escaped_text(text: str, most: int) -> str:
    """At most so many letters of an escaped text, and no half of an escape at its end."""
    if len(text) <= most:
        return text
    kept = text[: most - 1]
    begun = kept.rfind("&", -MAX_ENTITY_CHARACTERS)
    return f"{kept[:begun] if begun >= 0 and ';' not in kept[begun:] else kept}…"


# What people say


class SlackSocket:
    """The connection over which Slack tells what people say; it is opened from here, and opened again when it ends."""

    def __init__(self, slack: SlackClient, hear: Callable[[SlackSocket, str, str, dict[str, Any]], None]) -> None:
        """`hear` gets the id of each envelope, its type and all that is in it."""
        self.slack_client = slack
        self.on_envelope = hear
        self.socket_client: SocketModeClient | None = None

    def open(self) -> None:
        """Connect; `NotDone` says why not."""
        from slack_sdk.errors import SlackApiError  # noqa: PLC0415, TID251
        from slack_sdk.socket_mode import SocketModeClient  # noqa: PLC0415, TID251

        if not self.slack_client.access.app_token:
            raise SlackRequestError("failed", "GPUBOARD_SLACK_APP_TOKEN is not set")
        self.close()
        client = SocketModeClient(
            self.slack_client.access.app_token, create_silent_logger(), self.slack_client.web_client, concurrency=4
        )
        client.message_listeners.append(self.handle_message)
        self.socket_client = client
        try:
            client.connect()
        except SlackApiError as error:
            self.close()
            raise build_request_error(error.response) from None
        except Exception as error:
            self.close()
            raise SlackRequestError("failed", describe_unreachable_slack(error)) from None
        if not client.is_connected():
            self.close()
            raise SlackRequestError("failed", "Slack's socket cannot be reached")

    def handle_message(self, _client: object, message: dict[str, Any], _raw: str | None) -> None:
        """Something came; what has no envelope needs no answer."""
        envelope = message.get("envelope_id")
        if isinstance(envelope, str) and envelope:
            self.on_envelope(self, envelope, str(message.get("type")), message)

    def acknowledge(self, envelope: str) -> bool:
        """Tell Slack that it has arrived; False if that could not be told, and it will come again."""
        try:
            if self.socket_client is None:
                return False
            self.socket_client.send_socket_mode_response({"envelope_id": envelope})
        except Exception:  # the library has many ways to say that a line is cut
            return False
        return True

    def is_open(self) -> bool:
        """Whether there is a line at this moment.

        Where the other end is gone without a word, the library goes on reading nothing, as fast as it can, until a
        dozen of its questions had no answer: we look ourselves, and open another line.
        """
        client = self.socket_client
        session = client.current_session if client is not None else None
        if client is None or session is None:
            return False
        if is_peer_gone(session.sock):
            session.disconnect()
            with suppress(Exception):  # the library tries again by itself
                client.connect_to_new_endpoint()
        return client.is_connected()

    def stop_reconnecting(self) -> None:
        """Open it no more; the kernel closes it when we end, for to do that by hand takes some seconds."""
        if self.socket_client is not None:
            self.socket_client.closed = True
            self.socket_client.auto_reconnect_enabled = False

    def close(self) -> None:
        """At once, to open another."""
        client, self.socket_client = self.socket_client, None
        if client is not None:
            client.close()


def is_peer_gone(sock: Any) -> bool:  # noqa: ANN401 # of TLS or not
    """Whether the other end of a line is gone: there is an end to be read, and nothing before it."""
    try:
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            return same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, AttributeError):
        return False  # nothing to be read, or no line
    except (OSError, ValueError):
        return True
