"""Understand a message: who wrote it, and what it asks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from difflib import get_close_matches
from threading import Lock
from typing import Any, NamedTuple

from site_builder.alerts.config_files import MAIL_KIND, SLACK_KIND, load_contacts
from site_builder.alerts.slack_client import SlackMember, SlackRequestError
from site_builder.client import loader
from site_builder.client.model import Fleet
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.clock import Now
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import clean_text, flatten_text
from site_builder.fleet.gpu_models import NameFiles
from site_builder.slack.answers import AnswerContext

BOT_COMMANDS = ("hosts", "all", "where", "free", "book", "release", "help")
# What people write instead.
COMMAND_SYNONYMS = {
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
POLITE_WORDS = {"please", "pls", "thanks"}
MAX_TEXT_CHARACTERS = 1000
# `<http://atlas.lab|atlas.lab>`, `<@U0123>`, `<#C0123|gpus>`, `<!here>`, `<mailto:a@b|a@b>`.
SLACK_MARKUP = re.compile(r"<([^<>]*)>")
MEMBER_MENTION = re.compile(r"@([UW][A-Z0-9]{2,30})(?:\|.*)?")
SLACK_ID = re.compile(r"[A-Z0-9]{3,40}")
SLACK_TIMESTAMP = re.compile(r"[0-9]{1,12}\.[0-9]{1,9}")
QUOTE_CHARACTERS = str.maketrans({"“": '"', "”": '"', "„": '"', "’": "'", "‘": "'", "\u00a0": " "})  # noqa: RUF001


class SlackQuestion(NamedTuple):
    """What was said, by whom and where; `thread` is where the answer belongs, if not below the question.

    `late` is that Slack tells it not for the first time, `shared` that people of another company can read the channel.
    """

    channel: str
    user: str
    ts: str
    text: str
    thread: str = ""
    is_direct: bool = False
    is_redelivered: bool = False
    is_shared_channel: bool = False


class BotCommand(NamedTuple):
    """The command, and what stands behind it; without a command, `words` has what was not understood."""

    name: str
    words: tuple[str, ...] = ()
    suggestion: str = ""


def parse_question(message: dict[str, Any], own: str, own_bot: str = "") -> SlackQuestion | None:
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
    if not (
        is_matching_text(channel, SLACK_ID)
        and is_matching_text(user, SLACK_ID)
        and is_matching_text(ts, SLACK_TIMESTAMP)
        and isinstance(text, str)
    ):
        return None
    if user in {own, own_bot, "USLACKBOT"}:
        return None
    thread = event.get("thread_ts")
    return SlackQuestion(
        str(channel),
        str(user),
        str(ts),
        decode_slack_text(text[:MAX_TEXT_CHARACTERS], own),
        str(thread) if is_matching_text(thread, SLACK_TIMESTAMP) else "",
        direct,
        bool(message.get("retry_attempt")),
        payload.get("is_ext_shared_channel") is True,
    )


def is_matching_text(value: object, form: re.Pattern[str]) -> bool:
    """Whether it is a text of that form."""
    return isinstance(value, str) and form.fullmatch(value) is not None


def decode_slack_text(text: str, own: str) -> str:
    """The words as they were typed; `@U0123` stays for a member, and our own name goes."""

    def written(found: re.Match[str]) -> str:
        inside = found[1]
        member = MEMBER_MENTION.fullmatch(inside)
        if member:
            return " " if member[1] == own else f"@{member[1]}"
        link, bar, label = inside.partition("|")
        return label if bar else link.lstrip("#!").removeprefix("mailto:")

    text = SLACK_MARKUP.sub(written, text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return flatten_text(clean_text(text.translate(QUOTE_CHARACTERS).replace("\n", " ").replace("`", " ")))


def interpret_words(command: str, rest: list[str]) -> tuple[str, tuple[str, ...]]:
    """As people ask people: `free gpus?`, `where is alice`, `who is on atlas`; an order is taken by its letters."""
    if command in {"book", "release"}:
        return command, tuple(rest)
    words = [one.rstrip("?!,") for one in rest]
    words = [one for one in words if one and one.lower() not in POLITE_WORDS]
    if command != "where":
        return command, tuple(words)
    while words and words[0].lower() in {"is", "are", "uses"}:
        words = words[1:]
    return ("all", tuple(words[1:])) if words[1:] and words[0].lower() == "on" else (command, tuple(words))


def parse_bot_command(text: str) -> BotCommand:
    """The command of a text; one that there is not may be a slip of the finger."""
    first, *rest = text.split() or [""]
    word = first.lower().strip("/!:,.")
    if first == "?":
        word = first
    word = COMMAND_SYNONYMS.get(word, word)
    if not first:
        return BotCommand("help")
    if word in BOT_COMMANDS:
        return BotCommand(*interpret_words(word, rest))
    near = get_close_matches(word, BOT_COMMANDS, 1, 0.6)
    return BotCommand("", (first, *rest), near[0] if near else "")


STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 256 << 20
MEMBER_CACHE_S, MAX_CACHED_MEMBERS = 600.0, 10_000
NO_BOARD_MESSAGE = "the board has not been built yet, so I know nothing"
CONTACTS_UNREADABLE_MESSAGE = "the contacts or aliases.csv cannot be read just now, so I do not know who anybody is"
UNKNOWN_PERSON_MESSAGE = "I do not know who you are"


class BoardReader:
    """Reads the board anew for each question: it is what the page shows, and names whom the page names."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Whose board."""
        self.settings = settings
        self.clock = clock
        self.lock = Lock()
        self.cached_fleet: tuple[files.FileSignature, Fleet] | None = None

    def build_context(self) -> AnswerContext:
        """The fleet at this moment; `FleetUnavailableError` where the builder stands, for then nobody knows."""
        fleet = self.load_fleet()
        loader.check_board_age(fleet, self.settings.url or "www/", self.clock())
        built = Now(fleet.built, self.settings.zone)
        return AnswerContext(fleet, built, self.load_people(), self.settings.privacy.users, self.settings.url)

    def load_fleet(self) -> Fleet:
        """As the file tells it; read again only if it changed, since a large one takes a while."""
        with self.lock:
            try:
                folder = os.open(self.settings.www, files.ROOT_FOLDER_FLAGS)
                try:
                    if self.cached_fleet and files.read_signature(STATUS_FILE, folder) == self.cached_fleet[0]:
                        return self.cached_fleet[1]
                    signature, content = files.read_file(STATUS_FILE, folder, MAX_STATUS_BYTES)
                finally:
                    os.close(folder)
            except (OSError, files.FileRefusedError):
                raise FleetUnavailableError(NO_BOARD_MESSAGE) from None
            fleet, wrong = loader.parse_status(content)
            if fleet is None:
                message = f"what the builder wrote {wrong}"
                raise FleetUnavailableError(message)
            self.cached_fleet = signature, fleet
            return fleet

    def load_people(self) -> PeopleDirectory:
        """Whom names mean."""
        return PeopleDirectory(NameFiles(self.settings.data, None).read_names()[0])


class MemberDirectory:
    """Who a member of the workspace is here: by the contacts, or by the address that their workspace confirmed."""

    def __init__(
        self, settings: Settings, ask: Callable[[str], SlackMember], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` looks a member up in Slack, which is remembered for some minutes."""
        self.settings = settings
        self.fetch_member = ask
        self.clock = clock
        self.cached_members: dict[str, tuple[float, SlackMember]] = {}

    def find_login(self, member: str) -> str | None:
        """The login of a member; None where nobody knows it. `NotDone` if Slack does not answer."""
        contacts = load_contacts(self.settings)
        if not contacts.is_complete:
            raise FleetUnavailableError(CONTACTS_UNREADABLE_MESSAGE)
        found = contacts.find_person(SLACK_KIND, member)
        if not found and (mail := self.find_member(member).mail):
            found = contacts.find_person(MAIL_KIND, mail)
        return contacts.find_login(found) if found else None

    def find_member(self, member: str) -> SlackMember:
        """As Slack told lately."""
        now = self.clock()
        at, found = self.cached_members.get(member, (0.0, None))
        if found is None or now - at > MEMBER_CACHE_S:
            found = self.fetch_member(member)
            if len(self.cached_members) >= MAX_CACHED_MEMBERS:
                self.cached_members.clear()
            self.cached_members[member] = (now, found)
        return found

    def explain_unknown(self, member: str) -> tuple[str, ...]:
        """What helps somebody whom we do not know."""
        try:
            mail = self.find_member(member).mail
        except SlackRequestError:
            mail = None
        domain = self.settings.alerts.mail_domain
        if mail and domain:
            return (
                f"the address of your profile is not one at {domain}, nor in the contacts",
                format_contact_hint(member),
            )
        return (format_contact_hint(member),)


def format_contact_hint(member: str) -> str:
    """What makes a member known."""
    return f"the admin can add a line to the contacts (GPUBOARD_CONTACTS): `LOGIN,slack:{member}`"
