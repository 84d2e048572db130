"""The Slack bot: understands each message once, answers a few at a time, and never itself or another bot."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import get_close_matches
from threading import BoundedSemaphore, Event, Lock
from typing import Any, NamedTuple

from site_builder.alerts.contacts import MAIL_KIND, SLACK_KIND, load_contacts
from site_builder.alerts.model import FAILED, REFUSED
from site_builder.alerts.slack_client import SlackClient, SlackClientIdentity, SlackRequestError, SlackSocketClient
from site_builder.bookings.service import BookingService
from site_builder.client import loader
from site_builder.client.model import Fleet
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.command_options import CommandError, print_command_message
from site_builder.core.faults import limit_fault_reports
from site_builder.core.formatting import HOUR
from site_builder.core.model import FleetUnavailableError
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import clean_text, flatten_terminal_text
from site_builder.fleet.gpu_models import NameFiles
from site_builder.slack import answers
from site_builder.slack.answers import AnswerContext, BookingAnswers
from site_builder.slack.blocks import RenderedBlocks, SlackAnswer, render_answer_blocks

FLEET_ANSWERS = {"hosts": answers.answer_hosts, "all": answers.answer_all, "free": answers.answer_free}
BOT_COMMANDS = ("hosts", "all", "where", "free", "book", "release", "help")
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
STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 256 << 20
MEMBER_CACHE_S, MAX_CACHED_MEMBERS = 600.0, 10_000
CONTACTS_UNREADABLE_MESSAGE = "the contacts or aliases.csv cannot be read right now, so I cannot recognise anybody"
WORKER_COUNT, MAX_QUEUED_QUESTIONS = 4, 40
MAX_QUESTIONS_PER_MINUTE, MINUTE_S = 20, 60.0  # of one person
MAX_REMEMBERED = 10_000
# Slack sends again what nobody took, for up to an hour; whoever asked that long ago no longer waits.
MAX_DELAY_S = 600.0
MAX_ATTEMPTS, RETRY_DELAY_S, MAX_RETRY_DELAY_S = 4, 2.0, 60
# Errors after which an answer is sent as plain text. Slack counts a table among the attachments, and at times failed
# over one that was right (https://github.com/soxtoby/SlackNet/issues/246).
BLOCK_ERROR = re.compile(
    "invalid_(blocks|blocks_format|attachments|arguments)|msg_blocks_too_long|internal_error|fatal_error"
)
RATE_LIMIT_ANSWER = SlackAnswer("Too many messages in a minute: please wait a moment")
# How long a connection may be lost before we open another; the library tries by itself every few seconds.
RECONNECT_AFTER_S = 60.0
POLL_INTERVAL_S = 0.5
FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 1.0, 60.0
# The last error, in state/, and after what time the same one is printed again.
LAST_ERROR_FILE, REPEAT_ERROR_AFTER_S = "slack.said", 6 * HOUR


class SlackQuestion(NamedTuple):
    """A message to the bot; `thread` is where the answer belongs, if not below the question.

    People of another company can read a shared channel.
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
    """A command and its words; without a name, `words` is what was not understood."""

    name: str
    words: tuple[str, ...] = ()
    suggestion: str = ""


class SlackBot:
    """Answers questions, and prints a sentence about everything that an admin must fix."""

    def __init__(self, settings: Settings, slack_api: SlackClient, identity: SlackClientIdentity) -> None:
        self.settings, self.slack_api, self.identity = settings, slack_api, identity
        self.board = BotBoardReader(settings)
        self.members = MemberDirectory(settings, slack_api)
        self.bookings = BookingAnswers(settings, BookingService(settings))
        self.seen_messages: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.question_times: dict[str, deque[float]] = {}
        self.report_once = limit_fault_reports(print_command_message)
        self.lock = Lock()
        self.closing = Event()
        self.free_slots = BoundedSemaphore(WORKER_COUNT + MAX_QUEUED_QUESTIONS)
        self.pool = ThreadPoolExecutor(WORKER_COUNT)

    def handle_envelope(self, source: SlackSocketClient, envelope: str, kind: str, message: dict[str, Any]) -> None:
        """Confirm an envelope at once, and let another thread answer its question."""
        if self.closing.is_set() or not source.acknowledge(envelope):
            return  # Slack sends it again, and to another bot
        if kind != "events_api":
            return
        question = parse_bot_question(message, self.identity.user_id, self.identity.bot_id)
        if question is None:
            return
        key = (question.channel, question.ts)  # the same in whichever envelope a message comes
        with self.lock:
            if key in self.seen_messages:
                return
            self.seen_messages[key] = None
            while len(self.seen_messages) > MAX_REMEMBERED:
                self.seen_messages.popitem(last=False)
        if question.is_redelivered and time.time() - float(question.ts) > MAX_DELAY_S:
            return
        if not self.free_slots.acquire(blocking=False):
            self.report_once("too many requests at once: some got no answer")
            return
        try:
            self.pool.submit(self.process_question, question)
        except RuntimeError:  # the pool has just been shut down
            self.free_slots.release()

    def process_question(self, question: SlackQuestion) -> None:
        """Answer a question; the first one of a minute that is too many gets a hint, and further ones nothing."""
        try:
            now = time.monotonic()
            with self.lock:
                if len(self.question_times) > MAX_REMEMBERED:
                    self.question_times.clear()
                times = self.question_times.setdefault(question.user, deque(maxlen=MAX_QUESTIONS_PER_MINUTE + 2))
                while times and times[0] < now - MINUTE_S:
                    times.popleft()
                times.append(now)
                count = len(times)
            if count <= MAX_QUESTIONS_PER_MINUTE:
                self.send_reply(question, self.answer_question(question))
            elif count == MAX_QUESTIONS_PER_MINUTE + 1:
                self.send_reply(question, RATE_LIMIT_ANSWER)
        except SlackRequestError as error:
            self.report_once(f"an answer could not be sent: {error}")
        except Exception as error:  # one question must not cost the others
            self.report_once(f"a question failed: {type(error).__name__}: {error}; this is a bug")
        finally:
            self.free_slots.release()

    def answer_question(self, question: SlackQuestion) -> SlackAnswer:
        if question.is_shared_channel:
            return SlackAnswer("People outside your company can read this channel: send me a direct message")
        try:
            return self.run_command(parse_bot_command(question.text), question)
        except FleetUnavailableError as error:
            return SlackAnswer("I cannot read the board", (str(error),), link=self.settings.url)
        except SlackRequestError as error:
            self.report_once(str(error))
            return SlackAnswer("I could not find out who you are", (str(error),))
        except Exception as error:
            self.report_once(f"a question failed: {type(error).__name__}: {error}; this is a bug")
            return SlackAnswer("Something went wrong; the bot's log has the details for the admin")

    def run_command(self, command: BotCommand, question: SlackQuestion) -> SlackAnswer:
        words = [self.resolve_mention(word) for word in command.words]
        if command.name == "all" and words and words[0].lower() in {"detail", "details"}:
            return answers.answer_detail(self.board.build_context(), words[1:])
        if command.name in FLEET_ANSWERS:
            return FLEET_ANSWERS[command.name](self.board.build_context(), words)
        if command.name not in {"where", "book", "release"}:
            return answers.answer_help("" if command.name else " ".join(words[:1]), command.suggestion)
        name = " ".join(words)
        if command.name == "where" and MEMBER_MENTION.fullmatch(name):
            return SlackAnswer("I do not know who that is", (format_bot_contact_hint(name[1:]),))
        if command.name == "where" and name and name.lower() not in {"me", "i", "am i"}:
            return answers.answer_where(self.board.build_context(), name)
        login = self.members.find_login(question.user)
        if not login:
            hint = format_bot_contact_hint(question.user)
            return SlackAnswer("I do not know who you are", (*self.members.explain_unknown(question.user), hint))
        if command.name == "where":
            return answers.answer_where(self.board.build_context(), login)
        return self.bookings.answer(command.name, login, words)

    def resolve_mention(self, word: str) -> str:
        """Replace `@U0123` by the login of that member, if known."""
        if not MEMBER_MENTION.fullmatch(word):
            return word
        try:
            return self.members.find_login(word[1:]) or word
        except SlackRequestError as error:
            if error.status == REFUSED:  # there is no such member
                return word
            raise

    def send_reply(self, question: SlackQuestion, answer: SlackAnswer) -> None:
        """Reply where it was asked; in a channel below the question, so that a table is in nobody's way."""
        rendered = render_answer_blocks(answer)
        thread = question.thread or ("" if question.is_direct else question.ts)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            is_last = attempt == MAX_ATTEMPTS
            try:
                self.post_answer(question.channel, rendered, thread, is_last)
                return
            except SlackRequestError as error:
                delay: float | None = error.retry_after_s
                if delay is None and error.status == FAILED and not error.code:
                    delay = RETRY_DELAY_S
                if delay is None or delay > MAX_RETRY_DELAY_S or is_last or self.closing.wait(delay):
                    raise

    def post_answer(self, channel: str, rendered: RenderedBlocks, thread: str, is_last: bool) -> None:
        """Post blocks, or plain text where Slack refuses them or failed each time."""
        try:
            if not is_last:
                self.slack_api.post_message(channel, rendered.text, rendered.blocks, thread)
                return
        except SlackRequestError as error:
            if not BLOCK_ERROR.fullmatch(error.code):
                raise
            self.report_once(f"Slack refused the formatting of an answer, which was sent as text: {error.code}")
        self.slack_api.post_message(channel, rendered.plain_text, None, thread)

    def close(self) -> None:
        """Take no more questions, and finish those that are being answered."""
        self.closing.set()
        self.pool.shutdown(wait=True, cancel_futures=True)


# Messages


def parse_bot_question(message: dict[str, Any], own_user_id: str, own_bot_id: str = "") -> SlackQuestion | None:
    """Parse an envelope; return None for messages of bots, our own ones, and everything else that asks nothing."""
    payload = message.get("payload")
    event = payload.get("event") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(event, dict):
        return None
    is_direct = event.get("type") == "message" and event.get("channel_type") == "im"
    if not (is_direct or event.get("type") == "app_mention"):
        return None
    if event.get("subtype") or event.get("bot_id") or event.get("bot_profile") or event.get("hidden"):
        return None
    values = (event.get(key) for key in ("channel", "user", "ts", "thread_ts"))
    channel, user, ts, thread = (value if isinstance(value, str) else "" for value in values)
    text = event.get("text")
    if not (SLACK_ID.fullmatch(channel) and SLACK_ID.fullmatch(user) and SLACK_TIMESTAMP.fullmatch(ts)):
        return None
    if not isinstance(text, str) or user in {own_user_id, own_bot_id, "USLACKBOT"}:
        return None
    return SlackQuestion(
        channel=channel,
        user=user,
        ts=ts,
        text=decode_bot_message(text[:MAX_TEXT_CHARACTERS], own_user_id),
        thread=thread if SLACK_TIMESTAMP.fullmatch(thread) else "",
        is_direct=is_direct,
        is_redelivered=bool(message.get("retry_attempt")),
        is_shared_channel=payload.get("is_ext_shared_channel") is True,
    )


def decode_bot_message(text: str, own_user_id: str) -> str:
    """Return the words as they were typed, with `@U0123` for a member, and without our own name."""

    def decode_markup(markup: re.Match[str]) -> str:
        member = MEMBER_MENTION.fullmatch(markup[1])
        if member:
            return " " if member[1] == own_user_id else f"@{member[1]}"
        link, bar, label = markup[1].partition("|")
        return label if bar else link.lstrip("#!").removeprefix("mailto:")

    text = SLACK_MARKUP.sub(decode_markup, text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return flatten_terminal_text(clean_text(text.translate(QUOTE_CHARACTERS).replace("\n", " ").replace("`", " ")))


def parse_bot_command(text: str) -> BotCommand:
    """Parse a command, or suggest one for a word that may be a typing error.

    `free gpus?`, `where is alice` and `who is on atlas` are understood; the words of a booking stay as they are.
    """
    first, *rest = text.split() or ["help"]
    command = first.lower().strip("/!:,.")
    command = COMMAND_SYNONYMS.get(command, command)
    if command not in BOT_COMMANDS:
        close = get_close_matches(command, BOT_COMMANDS, 1, 0.6)
        return BotCommand("", (first, *rest), close[0] if close else "")
    if command in {"book", "release"}:
        return BotCommand(command, tuple(rest))
    words = [word.rstrip("?!,") for word in rest]
    words = [word for word in words if word and word.lower() not in POLITE_WORDS]
    if command == "where":
        while words and words[0].lower() in {"is", "are", "uses"}:
            words = words[1:]
        if words[1:] and words[0].lower() == "on":
            return BotCommand("all", tuple(words[1:]))
    return BotCommand(command, tuple(words))


# The board, and who asks


class BotBoardReader:
    """Reads status.json for each question: it says what the page says, and names whom the page names."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = Lock()
        self.cached_fleet: tuple[files.FileSignature, Fleet] | None = None

    def build_context(self) -> AnswerContext:
        """Load the fleet; raise FleetUnavailableError if the builder has stopped."""
        fleet = self.load_fleet()
        loader.check_loaded_board_age(fleet.built, fleet.every, self.settings.url or "www/", time.time())
        people = PeopleDirectory(NameFiles(self.settings.data, None).read_names()[0])
        built = Now(fleet.built, self.settings.zone)
        return AnswerContext(fleet, built, people, self.settings.privacy.users, self.settings.url)

    def load_fleet(self) -> Fleet:
        """Read the file, again only if it changed: a large one takes a while."""
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
                raise FleetUnavailableError("the board has not been built yet") from None
            fleet, problem = loader.parse_status(content)
            if fleet is None:
                raise FleetUnavailableError(f"what the builder wrote {problem}")
            self.cached_fleet = signature, fleet
            return fleet


class MemberDirectory:
    """Finds the login of a Slack member, by the contacts or by the confirmed address of their profile."""

    def __init__(self, settings: Settings, slack_api: SlackClient) -> None:
        self.settings, self.slack_api = settings, slack_api
        self.cached_mails: dict[str, tuple[float, str | None]] = {}

    def find_login(self, member: str) -> str | None:
        """Return the login of a member, if known; raise SlackRequestError if Slack does not answer."""
        contacts = load_contacts(self.settings)
        if not contacts.is_complete:
            raise FleetUnavailableError(CONTACTS_UNREADABLE_MESSAGE)
        person = contacts.find_person(SLACK_KIND, member)
        if not person and (mail := self.find_member_mail(member)):
            person = contacts.find_person(MAIL_KIND, mail)
        return contacts.find_login(person) if person else None

    def find_member_mail(self, member: str) -> str | None:
        """Ask Slack for the address of a member; its answers are kept for some minutes."""
        now = time.monotonic()
        fetched_at, mail = self.cached_mails.get(member, (-math.inf, None))
        if now - fetched_at > MEMBER_CACHE_S:
            mail = self.slack_api.fetch_member_mail(member)
            if len(self.cached_mails) >= MAX_CACHED_MEMBERS:
                self.cached_mails.clear()
            self.cached_mails[member] = (now, mail)
        return mail

    def explain_unknown(self, member: str) -> tuple[str, ...]:
        """Explain why the address of a member's profile does not say who they are, if they have one."""
        domain = self.settings.alerts.mail_domain
        with suppress(SlackRequestError):
            if self.find_member_mail(member) and domain:
                return (f"your profile's mail address is not at {domain} and not in the contacts",)
        return ()


def format_bot_contact_hint(member: str) -> str:
    return f"the admin can add a line to the contacts (GPUBOARD_CONTACTS): `LOGIN,slack:{member}`"


def run_bot(settings: Settings) -> None:
    """Keep a connection open until a signal, or until Slack refuses; open another one if it stays lost."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    bot, pause = None, FIRST_RECONNECT_DELAY_S
    try:
        client = SlackClient(settings.alerts.slack)
        while not stop.is_set():
            try:
                if bot is None:
                    bot = SlackBot(settings, client, client.fetch_identity())
                    socket = SlackSocketClient(client, bot.handle_envelope)
                    pause = FIRST_RECONNECT_DELAY_S
                socket.open()
            except SlackRequestError as error:
                if error.is_permanent:
                    raise
                if pause == FIRST_RECONNECT_DELAY_S:
                    print_command_message(f"{error}; retrying until it works")
                stop.wait(error.retry_after_s or pause)
                pause = min(pause * 2, MAX_RECONNECT_DELAY_S)
                continue
            if sys.stderr.isatty():
                print_command_message("the bot answers in Slack; stop it with Ctrl-C")
            pause, open_at = FIRST_RECONNECT_DELAY_S, time.monotonic()
            while not stop.wait(POLL_INTERVAL_S) and time.monotonic() - open_at < RECONNECT_AFTER_S:
                if socket.is_open():
                    open_at = time.monotonic()
            if not stop.is_set():
                bot.report_once("the connection to Slack was lost for a minute and is being reopened")
    except SlackRequestError as error:
        if was_bot_error_recently_reported(settings, str(error)):
            sys.exit(2)
        raise CommandError(str(error)) from None
    finally:
        if bot:
            socket.stop_reconnecting()
            bot.close()


def was_bot_error_recently_reported(settings: Settings, message: str) -> bool:
    """Return True if cron, which starts the bot every minute, has mailed the same message not long ago."""
    if sys.stderr.isatty():
        return False
    path = settings.state / LAST_ERROR_FILE
    with suppress(OSError):
        is_recent = 0 <= time.time() - path.stat().st_mtime < REPEAT_ERROR_AFTER_S
        if is_recent and path.read_text("utf-8") == message:
            return True
    with suppress(OSError):
        files.write_atomically(path, message.encode(), 0o600)
    return False
