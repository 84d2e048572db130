"""The bot: takes each envelope once, answers few at a time, and never itself or another bot."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore, Event, Lock
from typing import Any, Protocol

from site_builder.alerts.slack_client import Me, Member, NotDone
from site_builder.bookings.service import Desk
from site_builder.client.model import Failed
from site_builder.config.settings import Settings
from site_builder.slack import answers, message_parser
from site_builder.slack.blocks import Answer, Block, Post, post
from site_builder.slack.booking_commands import Clerk
from site_builder.slack.context import WHO_ARE_YOU, Board, Members, line_of
from site_builder.slack.message_parser import Ask, Question

AT_ONCE, WAITING = 4, 40
# So many questions of one person are answered in a minute.
MOST_A_MINUTE, MINUTE = 20, 60.0
MOST_REMEMBERED = 10_000
# Slack tells again what nobody took, for up to an hour; who asked so long ago no longer waits.
TOO_LATE = 600.0
TRIES, PAUSE, LONGEST_PAUSE = 4, 2.0, 60
# What Slack calls blocks that it does not take: the same is then said in plain text. A table it counts among the
# attachments; and at times it failed over one that was right (https://github.com/soxtoby/SlackNet/issues/246).
NO_BLOCKS = frozenset(
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
SHARED = Answer("people of another company can read this channel: ask me in a direct message")
SLOWLY = Answer("that is a lot in a minute: I listen again in a moment")
BROKEN = Answer("something went wrong here; the admin can read what in the bot's log")
MOST_TOLD = 100


class Line(Protocol):
    """Where envelopes come from."""

    def accept(self, envelope: str) -> bool:
        """Tell Slack that one has arrived."""


class Api(Protocol):
    """What of Slack the bot needs."""

    def post(self, channel: str, text: str, blocks: list[Block] | None = None, thread: str = "") -> None:
        """A message."""

    def member(self, user: str) -> Member:
        """Somebody of the workspace."""


class Bot:
    """Answers what people ask; `tell` gets a sentence about each thing that an admin must mend."""

    def __init__(
        self,
        settings: Settings,
        slack: Api,
        me: Me,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Whose board, and who we are in Slack."""
        self.settings = settings
        self.slack = slack
        self.me = me
        self.tell = tell
        self.clock = clock
        self.board = Board(settings, clock)
        self.members = Members(settings, slack.member)
        self.clerk = Clerk(settings, Desk(settings, clock))
        self.seen: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.asked: dict[str, deque[float]] = {}
        self.told: set[str] = set()
        self.lock = Lock()
        self.ended = Event()
        self.room = BoundedSemaphore(AT_ONCE + WAITING)
        self.pool = ThreadPoolExecutor(AT_ONCE)

    # Envelopes

    def hear(self, line: Line, envelope: str, kind: str, message: dict[str, Any]) -> None:
        """One envelope: it is taken at once, and what it asks is answered by another thread."""
        if self.ended.is_set() or not line.accept(envelope):
            return  # Slack tells it again, and to somebody else
        question = message_parser.question(message, self.me.user, self.me.bot) if kind == "events_api" else None
        if question is None or self.is_known(question) or self.is_late(question):
            return
        if not self.room.acquire(blocking=False):
            self.tell_once("too many ask the bot at once: some got no answer")
            return
        try:
            self.pool.submit(self.work, question)
        except RuntimeError:  # it ends just now
            self.room.release()

    def is_known(self, question: Question) -> bool:
        """Whether it was told before: a message has one time in its channel, whichever envelope it comes in."""
        key = (question.channel, question.ts)
        with self.lock:
            if key in self.seen:
                return True
            self.seen[key] = None
            while len(self.seen) > MOST_REMEMBERED:
                self.seen.popitem(last=False)
        return False

    def is_late(self, question: Question) -> bool:
        """Whether it is told again after so long that it would surprise."""
        return question.late and self.clock() - float(question.ts) > TOO_LATE

    def work(self, question: Question) -> None:
        """Answer one question."""
        try:
            over = self.over(question.user)
            if over <= 1:
                self.reply(question, SLOWLY if over else self.answer(question))
        except NotDone as why:
            self.tell_once(f"an answer could not be sent: {why}")
        except Exception as error:  # one question must not cost the others
            self.tell_once(f"a question failed: {type(error).__name__}: {error}; this should not happen")
        finally:
            self.room.release()

    def over(self, user: str) -> int:
        """By how many questions somebody is over what is answered in a minute."""
        now = time.monotonic()
        with self.lock:
            if len(self.asked) > MOST_REMEMBERED:
                self.asked.clear()
            times = self.asked.setdefault(user, deque(maxlen=MOST_A_MINUTE + 2))
            while times and times[0] < now - MINUTE:
                times.popleft()
            times.append(now)
            return max(0, len(times) - MOST_A_MINUTE)

    # Answers

    def answer(self, question: Question) -> Answer:
        """What is said to a question."""
        if question.shared:
            return SHARED
        ask = message_parser.ask(question.text)
        try:
            return self.about(ask, question)
        except Failed as why:
            return Answer("I cannot tell", (str(why),), link=self.settings.url)
        except NotDone as why:
            self.tell_once(str(why))
            return Answer("Slack does not tell me who you are", (str(why),))
        except Exception as error:
            self.tell_once(f"a question failed: {type(error).__name__}: {error}; this should not happen")
            return BROKEN

    def about(self, ask: Ask, question: Question) -> Answer:
        """The answer of each command."""
        words = [self.named(one) for one in ask.words]
        if ask.command == "hosts":
            return answers.hosts(self.board.scene(), words)
        if ask.command == "all":
            return answers.every(self.board.scene(), words)
        if ask.command == "free":
            return answers.free(self.board.scene(), words)
        if ask.command == "where":
            return self.where(words, question)
        if ask.command in {"book", "release"}:
            return self.order(ask.command, words, question)
        return answers.usage("" if ask.command else " ".join(words[:1]), ask.near)

    def named(self, word: str) -> str:
        """A word; `@U0123` is whom we know by that, or stays."""
        if not message_parser.MEMBER.fullmatch(word):
            return word
        try:
            return self.members.person(word[1:]) or word
        except NotDone as why:
            if why.how == "refused":  # there is no such member
                return word
            raise

    def where(self, words: list[str], question: Question) -> Answer:
        """Where somebody is; without a name, who asks."""
        name = " ".join(words)
        if name.startswith("@") and message_parser.MEMBER.fullmatch(name):
            return Answer("I do not know who that is", (line_of(name[1:]),))
        if not name or name.lower() in {"me", "i", "am i"}:
            found = self.members.person(question.user)
            if not found:
                return self.unknown(question)
            name = found
        return answers.where(self.board.scene(), name)

    def order(self, command: str, words: list[str], question: Question) -> Answer:
        """A booking made or released, as the person who asks."""
        name = self.members.person(question.user)
        if not name:
            return self.unknown(question)
        return self.clerk.book(name, words) if command == "book" else self.clerk.release(name, words)

    def unknown(self, question: Question) -> Answer:
        """How somebody becomes known."""
        return Answer(WHO_ARE_YOU, self.members.how_to_be_known(question.user))

    # Sending

    def reply(self, question: Question, answer: Answer) -> None:
        """Say it where it was asked: in a channel below the question, so that a table is in nobody's way."""
        ready = post(answer)
        thread = question.thread or ("" if question.direct else question.ts)
        for tries in range(TRIES):
            try:
                self.send(question.channel, ready, thread, tries == TRIES - 1)
            except NotDone as why:
                again = why.wait if why.wait is not None else PAUSE if why.how == "failed" and not why.code else None
                if again is None or again > LONGEST_PAUSE or tries == TRIES - 1 or self.ended.wait(again):
                    raise
            else:
                return

    def send(self, channel: str, ready: Post, thread: str, last: bool) -> None:
        """With blocks, or without where Slack does not take them, or failed over them each time."""
        try:
            if not last:
                self.slack.post(channel, ready.text, ready.blocks, thread)
                return
        except NotDone as why:
            if why.code not in NO_BLOCKS:
                raise
            self.tell_once(f"Slack did not take the blocks of an answer, which was sent as text: {why.code}")
        self.slack.post(channel, ready.plain, None, thread)

    def tell_once(self, sentence: str) -> None:
        """Tell it the first time; nobody who asks can fill a log."""
        with self.lock:
            if sentence in self.told or len(self.told) >= MOST_TOLD:
                return
            self.told.add(sentence)
        self.tell(sentence)

    def close(self) -> None:
        """Take nothing more; what is being answered is answered."""
        self.ended.set()
        self.pool.shutdown(wait=True, cancel_futures=True)
