"""What somebody said to the bot, in plain words: Slack escapes it, and makes links of what looks like one."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, NamedTuple

from site_builder.core.terminal_text import one_line
from site_builder.snapshots.envelope import clean

COMMANDS = ("hosts", "all", "where", "free", "book", "release", "help")
# What people write instead.
SAME = {
    "host": "hosts",
    "gpus": "all",
    "list": "all",
    "who": "where",
    "available": "free",
    "reserve": "book",
    "?": "help",
    "hi": "help",
    "hello": "help",
}
POLITE = {"please", "pls", "thanks"}
LONGEST = 1000
# `<http://atlas.lab|atlas.lab>`, `<@U0123>`, `<#C0123|gpus>`, `<!here>`, `<mailto:a@b|a@b>`.
MARKUP = re.compile(r"<([^<>]*)>")
MEMBER = re.compile(r"@([UW][A-Z0-9]{2,30})(?:\|.*)?")
ID = re.compile(r"[A-Z0-9]{3,40}")
TIMESTAMP = re.compile(r"[0-9]{1,12}\.[0-9]{1,9}")
QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "’": "'", "‘": "'", "\u00a0": " "})  # noqa: RUF001


class Question(NamedTuple):
    """What was said, by whom and where; `thread` is where the answer belongs, if not below the question.

    `late` is that Slack tells it not for the first time, `shared` that people of another company can read the channel.
    """

    channel: str
    user: str
    ts: str
    text: str
    thread: str = ""
    direct: bool = False
    late: bool = False
    shared: bool = False


class Ask(NamedTuple):
    """The command, and what stands behind it; without a command, `words` has what was not understood."""

    command: str
    words: tuple[str, ...] = ()
    near: str = ""


def question(message: dict[str, Any], own: str, own_bot: str = "") -> Question | None:
    """What an envelope asks of us; None where nobody does: it is our own, of another bot, or of some other kind."""
    payload = message.get("payload")
    event = payload.get("event") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(event, dict):
        return None
    direct = event.get("type") == "message" and event.get("channel_type") == "im"
    if not (direct or event.get("type") == "app_mention"):
        return None
    if event.get("subtype") or event.get("bot_id") or event.get("bot_profile") or event.get("hidden"):
        return None
    channel, user, ts, text = (event.get(key) for key in ("channel", "user", "ts", "text"))
    if not (is_text(channel, ID) and is_text(user, ID) and is_text(ts, TIMESTAMP) and isinstance(text, str)):
        return None
    if user in {own, own_bot, "USLACKBOT"}:
        return None
    thread = event.get("thread_ts")
    return Question(
        str(channel),
        str(user),
        str(ts),
        plain(text[:LONGEST], own),
        str(thread) if is_text(thread, TIMESTAMP) else "",
        direct,
        bool(message.get("retry_attempt")),
        payload.get("is_ext_shared_channel") is True,
    )


def is_text(value: object, form: re.Pattern[str]) -> bool:
    """Whether it is a text of that form."""
    return isinstance(value, str) and form.fullmatch(value) is not None


def plain(text: str, own: str) -> str:
    """The words as they were typed; `@U0123` stays for a member, and our own name goes."""

    def written(found: re.Match[str]) -> str:
        inside = found[1]
        member = MEMBER.fullmatch(inside)
        if member:
            return " " if member[1] == own else f"@{member[1]}"
        link, bar, label = inside.partition("|")
        return label if bar else link.lstrip("#!").removeprefix("mailto:")

    text = MARKUP.sub(written, text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return one_line(clean(text.translate(QUOTES).replace("\n", " ").replace("`", " ")))


def meant(command: str, rest: list[str]) -> tuple[str, tuple[str, ...]]:
    """As people ask people: `free gpus?`, `where is alice`, `who is on atlas`; an order is taken by its letters."""
    if command in {"book", "release"}:
        return command, tuple(rest)
    words = [one.rstrip("?!,") for one in rest]
    words = [one for one in words if one and one.lower() not in POLITE]
    if command != "where":
        return command, tuple(words)
    while words and words[0].lower() in {"is", "are", "uses"}:
        words = words[1:]
    return ("all", tuple(words[1:])) if words[1:] and words[0].lower() == "on" else (command, tuple(words))


def ask(text: str) -> Ask:
    """The command of a text; one that there is not may be a slip of the finger."""
    first, *rest = text.split() or [""]
    word = first.lower().strip("/!:,.")
    if first == "?":
        word = first
    word = SAME.get(word, word)
    if not first:
        return Ask("help")
    if word in COMMANDS:
        return Ask(*meant(word, rest))
    near = get_close_matches(word, COMMANDS, 1, 0.6)
    return Ask("", (first, *rest), near[0] if near else "")
