"""The bot: takes each envelope once, answers few at a time, and never itself or another bot."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore, Event, Lock
from typing import Any, Protocol

from site_builder.alerts.slack_client import BotIdentity, SlackMember, SlackRequestError
from site_builder.bookings.service import BookingService
from site_builder.config.settings import Settings
from site_builder.core.board_client import FleetUnavailableError
from site_builder.slack import answers, lookup
from site_builder.slack.answers import SlackBookings
from site_builder.slack.blocks import RenderedAnswer, SlackAnswer, SlackBlock, render_answer
from site_builder.slack.lookup import (
    UNKNOWN_PERSON_MESSAGE,
    BoardReader,
    BotCommand,
    MemberDirectory,
    SlackQuestion,
    format_contact_hint,
)

WORKER_COUNT, MAX_QUEUED_QUESTIONS = 4, 40
# So many questions of one person are answered in a minute.
MAX_QUESTIONS_PER_MINUTE, MINUTE_S = 20, 60.0
MAX_REMEMBERED = 10_000
# Slack tells again what nobody took, for up to an hour; who asked so long ago no longer waits.
MAX_DELAY_S = 600.0
MAX_ATTEMPTS, RETRY_DELAY_S, MAX_RETRY_DELAY_S = 4, 2.0, 60
# What Slack calls blocks that it does not take: the same is then said in plain text. A table it counts among the
# attachments; and at times it failed over one that was right (https://github.com/soxtoby/SlackNet/issues/246).
BLOCK_ERROR_CODES = frozenset(
    {
        "invalid_blocks",
        "invalid_blocks_format",
        "invalid_attachments",
        "msg_blocks_too_long",
        "invalid_arguments",
        "internal_error",
        "fatal_error",
    }
)
SHARED_CHANNEL_ANSWER = SlackAnswer("people of another company can read this channel: ask me in a direct message")
RATE_LIMIT_ANSWER = SlackAnswer("that is a lot in a minute: I listen again in a moment")
ERROR_ANSWER = SlackAnswer("something went wrong here; the admin can read what in the bot's log")
MAX_LOGGED_MESSAGES = 100


class EnvelopeSource(Protocol):
    """Where envelopes come from."""

    def acknowledge(self, envelope: str) -> bool:
        """Tell Slack that one has arrived."""


class SlackApi(Protocol):
    """What of Slack the bot needs."""

    def post_message(self, channel: str, text: str, blocks: list[SlackBlock] | None = None, thread: str = "") -> None:
        """A message."""

    def fetch_member(self, user: str) -> SlackMember:
        """Somebody of the workspace."""


class SlackBot:
    """Answers what people ask; `tell` gets a sentence about each thing that an admin must mend."""

    def __init__(
        self,
        settings: Settings,
        slack: SlackApi,
        me: BotIdentity,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Whose board, and who we are in Slack."""
        self.settings = settings
        self.slack_api = slack
        self.identity = me
        self.log = tell
        self.clock = clock
        self.board = BoardReader(settings, clock)
        self.members = MemberDirectory(settings, slack.fetch_member)
        self.bookings = SlackBookings(settings, BookingService(settings, clock))
        self.seen_messages: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.question_times: dict[str, deque[float]] = {}
        self.logged_messages: set[str] = set()
        self.lock = Lock()
        self.closing = Event()
        self.free_slots = BoundedSemaphore(WORKER_COUNT + MAX_QUEUED_QUESTIONS)
        self.pool = ThreadPoolExecutor(WORKER_COUNT)

    # Envelopes

    def handle_envelope(self, line: EnvelopeSource, envelope: str, kind: str, message: dict[str, Any]) -> None:
        """One envelope: it is taken at once, and what it asks is answered by another thread."""
        if self.closing.is_set() or not line.acknowledge(envelope):
            return  # Slack tells it again, and to somebody else
        question = (
            lookup.parse_question(message, self.identity.user_id, self.identity.bot_id)
            if kind == "events_api"
            else None
        )
        if question is None or self.is_duplicate(question) or self.is_late(question):
            return
        if not self.free_slots.acquire(blocking=False):
            self.log_once("too many ask the bot at once: some got no answer")
            return
        try:
            self.pool.submit(self.process_question, question)
        except RuntimeError:  # it ends just now
            self.free_slots.release()

    def is_duplicate(self, question: SlackQuestion) -> bool:
        """Whether it was told before: a message has one time in its channel, whichever envelope it comes in."""
        key = (question.channel, question.ts)
        with self.lock:
            if key in self.seen_messages:
                return True
            self.seen_messages[key] = None
            while len(self.seen_messages) > MAX_REMEMBERED:
                self.seen_messages.popitem(last=False)
        return False

    def is_late(self, question: SlackQuestion) -> bool:
        """Whether it is told again after so long that it would surprise."""
        return question.is_redelivered and self.clock() - float(question.ts) > MAX_DELAY_S

    def process_question(self, question: SlackQuestion) -> None:
        """Answer one question."""
        try:
            over = self.count_over_limit(question.user)
            if over <= 1:
                self.send_reply(question, RATE_LIMIT_ANSWER if over else self.answer_question(question))
        except SlackRequestError as why:
            self.log_once(f"an answer could not be sent: {why}")
        except Exception as error:  # one question must not cost the others
            self.log_once(f"a question failed: {type(error).__name__}: {error}; this should not happen")
        finally:
            self.free_slots.release()

    def count_over_limit(self, user: str) -> int:
        """By how many questions somebody is over what is answered in a minute."""
        now = time.monotonic()
        with self.lock:
            if len(self.question_times) > MAX_REMEMBERED:
                self.question_times.clear()
            times = self.question_times.setdefault(user, deque(maxlen=MAX_QUESTIONS_PER_MINUTE + 2))
            while times and times[0] < now - MINUTE_S:
                times.popleft()
            times.append(now)
            return max(0, len(times) - MAX_QUESTIONS_PER_MINUTE)

    # Answers

    def answer_question(self, question: SlackQuestion) -> SlackAnswer:
        """What is said to a question."""
        if question.is_shared_channel:
            return SHARED_CHANNEL_ANSWER
        ask = lookup.parse_bot_command(question.text)
        try:
            return self.run_command(ask, question)
        except FleetUnavailableError as why:
            return SlackAnswer("I cannot tell", (str(why),), link=self.settings.url)
        except SlackRequestError as why:
            self.log_once(str(why))
            return SlackAnswer("Slack does not tell me who you are", (str(why),))
        except Exception as error:
            self.log_once(f"a question failed: {type(error).__name__}: {error}; this should not happen")
            return ERROR_ANSWER

    def run_command(self, ask: BotCommand, question: SlackQuestion) -> SlackAnswer:
        """The answer of each command."""
        words = [self.resolve_mention(one) for one in ask.words]
        if ask.name == "hosts":
            return answers.answer_hosts(self.board.build_context(), words)
        if ask.name == "all":
            return answers.answer_all(self.board.build_context(), words)
        if ask.name == "free":
            return answers.answer_free(self.board.build_context(), words)
        if ask.name == "where":
            return self.answer_where(words, question)
        if ask.name in {"book", "release"}:
            return self.handle_booking(ask.name, words, question)
        return answers.answer_help("" if ask.name else " ".join(words[:1]), ask.suggestion)

    def resolve_mention(self, word: str) -> str:
        """A word; `@U0123` is whom we know by that, or stays."""
        if not lookup.MEMBER_MENTION.fullmatch(word):
            return word
        try:
            return self.members.find_login(word[1:]) or word
        except SlackRequestError as why:
            if why.status == "refused":  # there is no such member
                return word
            raise

    def answer_where(self, words: list[str], question: SlackQuestion) -> SlackAnswer:
        """Where somebody is; without a name, who asks."""
        name = " ".join(words)
        if name.startswith("@") and lookup.MEMBER_MENTION.fullmatch(name):
            return SlackAnswer("I do not know who that is", (format_contact_hint(name[1:]),))
        if not name or name.lower() in {"me", "i", "am i"}:
            found = self.members.find_login(question.user)
            if not found:
                return self.answer_unknown_person(question)
            name = found
        return answers.answer_where(self.board.build_context(), name)

    def handle_booking(self, command: str, words: list[str], question: SlackQuestion) -> SlackAnswer:
        """A booking made or released, as the person who asks."""
        name = self.members.find_login(question.user)
        if not name:
            return self.answer_unknown_person(question)
        return self.bookings.book(name, words) if command == "book" else self.bookings.release(name, words)

    def answer_unknown_person(self, question: SlackQuestion) -> SlackAnswer:
        """How somebody becomes known."""
        return SlackAnswer(UNKNOWN_PERSON_MESSAGE, self.members.explain_unknown(question.user))

    # Sending

    def send_reply(self, question: SlackQuestion, answer: SlackAnswer) -> None:
        """Say it where it was asked: in a channel below the question, so that a table is in nobody's way."""
        ready = render_answer(answer)
        thread = question.thread or ("" if question.is_direct else question.ts)
        for tries in range(MAX_ATTEMPTS):
            try:
                self.post_answer(question.channel, ready, thread, tries == MAX_ATTEMPTS - 1)
            except SlackRequestError as why:
                again = (
                    why.retry_after_s
                    if why.retry_after_s is not None
                    else RETRY_DELAY_S
                    if why.status == "failed" and not why.code
                    else None
                )
                if again is None or again > MAX_RETRY_DELAY_S or tries == MAX_ATTEMPTS - 1 or self.closing.wait(again):
                    raise
            else:
                return

    def post_answer(self, channel: str, ready: RenderedAnswer, thread: str, last: bool) -> None:
        """With blocks, or without where Slack does not take them, or failed over them each time."""
        try:
            if not last:
                self.slack_api.post_message(channel, ready.text, ready.blocks, thread)
                return
        except SlackRequestError as why:
            if why.code not in BLOCK_ERROR_CODES:
                raise
            self.log_once(f"Slack did not take the blocks of an answer, which was sent as text: {why.code}")
        self.slack_api.post_message(channel, ready.plain_text, None, thread)

    def log_once(self, sentence: str) -> None:
        """Tell it the first time; nobody who asks can fill a log."""
        with self.lock:
            if sentence in self.logged_messages or len(self.logged_messages) >= MAX_LOGGED_MESSAGES:
                return
            self.logged_messages.add(sentence)
        self.log(sentence)

    def close(self) -> None:
        """Take nothing more; what is being answered is answered."""
        self.closing.set()
        self.pool.shutdown(wait=True, cancel_futures=True)
