"""Ways to people: channels and contacts by apprise, which only this module imports; mail; Slack; hooks."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from site_builder.alerts import http_outcome, smtp
from site_builder.alerts.contacts import MAIL, Contact, Contacts
from site_builder.alerts.hooks import Hooks
from site_builder.alerts.model import BEGUN, CHANNEL, HOOK, OVER, PERSON, Letter, Message, Outcome
from site_builder.config.settings import Settings

# Tells a Slack member by the bot.
Direct = Callable[[str, Message], Outcome]
MISSING = "apprise is missing: pip install 'gpuboard[alerts]'"
# What an address may not have: paths of files that apprise would read.
FILES = frozenset({"keyfile", "subfile", "pgppub", "pgpprv", "pgp", "wkd"})
# One goes by other ways than HTTP, though it asks something by it; the other keeps keys in files.
OTHERWISE = frozenset({"nostr", "vapid"})
# What apprise calls by the form in which they are told.
WEBHOOKS = frozenset({"json", "jsons", "xml", "xmls", "form", "forms"})
# Bytes that a letter in a chat may have: some services refuse more. And what may stand around a title.
MOST_TEXT = 2800
AROUND = 16
MORE = "… and more"
JOINER = "\N{WORD JOINER}"
ADDRESS = re.compile(r"https?://[^\s()<>\[\]]+", re.ASCII)
# What calls everybody in Slack, Discord, Mattermost, Matrix; not what stands inside of an address.
CALLS = re.compile(r"(?<!\w)@(?=\w)")
LESS_MORE = str.maketrans(
    "<>", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
)


class Way(NamedTuple):
    """A receiver as it may be shown: `name` as in `Letter.to`, its address masked, and why it cannot be used."""

    name: str
    shown: str
    problem: str | None = None


class Unusable(Exception):
    """Why an address cannot be used, in words that do not repeat it."""


class Ways:
    """Where letters go; addresses are looked up when one is sent, and stand in no message or log."""

    def __init__(
        self,
        settings: Settings,
        contacts: Contacts | None = None,
        direct: Direct | None = None,
        seconds: float = http_outcome.LONGEST,
    ) -> None:
        """`direct` is of the Slack bot, where it is set up; no letter takes longer than `seconds`."""
        self.alerts = settings.alerts
        self.channels = dict(settings.alerts.channels)
        self.contacts = contacts or Contacts(domain=settings.alerts.mail_domain)
        self.direct, self.seconds = direct, seconds
        self.hooks = Hooks(settings.alerts.hooks, (settings.data, settings.www))

    def names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(self.channels)

    def check(self) -> list[Way]:
        """Every channel, the mail server and every hook, and whether it can be used; nothing is sent."""
        found = [Way(f"{CHANNEL}{name}", *looked_at(url)) for name, url in self.channels.items()]
        if self.alerts.mail:
            found.append(Way(MAIL, *looked_at(self.alerts.mail)))
        for hook in self.hooks.look():
            found.append(Way(f"{HOOK}{hook.name}", hook.name or f"{self.alerts.hooks}", hook.problem))
        return found

    def check_person(self, person: str, via: str = "") -> list[Way]:
        """The same for the ways of one person, of which `via` picks one kind."""
        name = f"{PERSON}{person}"
        ways = self.contacts.ways(person, via)
        return [Way(name, *self.contact_looked_at(contact)) for contact in ways] or [
            Way(name, "", self.unknown(person))
        ]

    def contact_looked_at(self, contact: Contact) -> tuple[str, str | None]:
        """A way of a person as it may be shown, and why it cannot be used."""
        if contact.url:
            return looked_at(contact.address)
        if contact.kind == MAIL:
            return MAIL, looked_at(self.alerts.mail)[1] if self.alerts.mail else "GPUBOARD_MAIL is not set"
        return contact.kind, None if self.direct else "the Slack bot is not set up"

    def send(self, letter: Letter, message: Message) -> Outcome:
        """Send a letter, once, within a time; never raises."""
        try:
            if letter.to.startswith(HOOK):
                return self.hooks.run(letter.to[len(HOOK) :], message.data)
            return self.to_person(letter, message) if letter.to.startswith(PERSON) else self.to_channel(letter, message)
        except Unusable as why:
            return Outcome("failed", str(why))
        except Exception as error:  # its words may hold an address
            return Outcome("unsure", f"could not be sent ({type(error).__name__})")

    def to_channel(self, letter: Letter, message: Message) -> Outcome:
        """By the address of a channel, if that is still in the settings."""
        name = letter.to[len(CHANNEL) :]
        if not letter.to.startswith(CHANNEL) or name not in self.channels:
            return Outcome("refused", "there is no such channel any more")
        return self.by_address(self.channels[name], letter, message)

    def to_person(self, letter: Letter, message: Message) -> Outcome:
        """By the first of their ways that takes it; where one may have taken it, no other is tried."""
        person = letter.to[len(PERSON) :]
        ways = self.contacts.ways(person, letter.via)
        if not ways:
            return Outcome("refused" if self.contacts.whole else "failed", self.unknown(person))
        failed = []
        for contact in ways:
            try:
                outcome = self.by_contact(contact, letter, message)
            except Unusable as why:
                outcome = Outcome("failed", str(why))
            if outcome.how in ("sent", "unsure"):
                return outcome
            failed.append(outcome)
        return next((one for one in failed if one.how == "failed"), failed[0])

    def unknown(self, person: str) -> str:
        """Why somebody cannot be told."""
        if not self.contacts.whole:
            return "the contacts cannot be read"
        return f"nobody knows how to tell {person}: a line in the contacts says it, or GPUBOARD_MAIL_DOMAIN for all"

    def by_contact(self, contact: Contact, letter: Letter, message: Message) -> Outcome:
        """By one way of a person."""
        if contact.url:
            return self.by_address(contact.address, letter, message)
        if contact.kind == MAIL:
            if not self.alerts.mail:
                raise Unusable("GPUBOARD_MAIL is not set: no mail server is known")
            server = server_of(understood(self.alerts.mail))
            return self.by_mail(smtp.Delivery(server, (contact.address,), message, identity(letter, contact.address)))
        direct = self.direct
        if direct is None:
            raise Unusable("the Slack bot is not set up")
        outcome = http_outcome.within(self.seconds, lambda: direct(contact.address, message), http_outcome.Asked())
        return outcome if outcome.how != "unsure" or outcome.why.startswith("Slack") else named(outcome, "Slack")

    def by_address(self, url: str, letter: Letter, message: Message) -> Outcome:
        """By an address as apprise has them; mail goes our own way, which tells more of how it went."""
        service = understood(url)
        if is_mail(service):
            to = tuple(address for _, address in service.targets)
            delivery = smtp.Delivery(
                server_of(service), (*to, *sorted(service.cc)), message, identity(letter, letter.to), tuple(service.bcc)
            )
            return self.by_mail(delivery)
        watch = http_outcome.Watch()

        def work() -> Outcome:
            http_outcome.WATCH.set(watch)
            told = service.notify(**worded(service, message), notify_type=kind_of(letter), overflow="truncate")
            return Outcome("sent") if told else watch.outcome(len(service) > 1)

        with quietly():
            outcome = http_outcome.within(self.seconds, work, watch)
        return named(outcome, "the webhook" if scheme_of(url) in WEBHOOKS else f"{service.service_name}")

    def by_mail(self, delivery: smtp.Delivery) -> Outcome:
        """By a mail server."""
        return named(http_outcome.within(self.seconds, delivery.send, delivery), "the mail server")


def named(outcome: Outcome, receiver: str) -> Outcome:
    """How it went, with the receiver before it."""
    return outcome._replace(why=f"{receiver} {outcome.why}") if outcome.why else outcome


def understood(url: str) -> Any:  # noqa: ANN401 a service of apprise
    """The service that an address is of, set up so that it reads no file, follows no other address and never waits."""
    scheme = scheme_of(url)
    if problem := local_file(url):
        raise Unusable(problem)
    try:
        with quietly():
            service = made(url)
    except ImportError:
        raise Unusable(MISSING) from None
    except Exception as error:  # its words may hold the address
        message = f"its address {scheme}://… cannot be used ({type(error).__name__})"
        raise Unusable(message) from None
    if service is None:
        message = f"its address {scheme}://… is not one that apprise understands"
        raise Unusable(message)
    if not is_mail(service) and (scheme in OTHERWISE or not by_http(type(service))):
        message = f"{scheme}:// is not used: it does not go by HTTP or mail; a hook can do it"
        raise Unusable(message)
    if has_files(service):
        message = f"its address {scheme}://… names a template, and no file is read for a letter"
        raise Unusable(message)
    if not service.enabled:
        message = f"{scheme}:// needs a library that is not there"
        raise Unusable(message)
    service.retry, service.redirects = 0, False  # we try again ourselves
    service.socket_connect_timeout, service.socket_read_timeout = http_outcome.CONNECT, http_outcome.READ
    return service


def made(url: str) -> Any:  # noqa: ANN401 the same
    """What apprise makes of an address; None if it is none."""
    from apprise import Apprise, AppriseAsset  # noqa: PLC0415, TID251 slow to import

    http_outcome.watched()
    asset = AppriseAsset(
        app_id="gpuboard",
        app_desc="gpuboard",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        storage_mode="memory",
        async_mode=False,
        pgp_autogen=False,
        pem_autogen=False,
        http_redirects=False,
        interpret_escapes=False,
        interpret_emojis=False,
    )
    return Apprise.instantiate(url, asset=asset, suppress_exceptions=True)


def scheme_of(url: str) -> str:
    """What stands before `://`, which is no secret."""
    scheme, found, _ = url.partition("://")
    return scheme.lower() if found else ""


@contextmanager
def quietly() -> Iterator[None]:
    """Without the words of libraries: their logs have addresses in them, and Python prints what nobody listens to."""
    for name in ("apprise", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def local_file(url: str) -> str | None:
    """Why an address is refused that would have a file read."""
    for key, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if key.lower() in FILES:
            return f"its address has {key.lower()}=, and no file is read for a letter"
    return None


def has_files(service: Any) -> bool:  # noqa: ANN401 the same
    """Whether it would fetch a template for each letter, from a file or from elsewhere; the name of one is no such."""
    from apprise import AppriseAttachment  # noqa: PLC0415, TID251 here already

    return any(isinstance(value, AppriseAttachment) and len(value) for value in vars(service).values())


def by_http(service: type) -> bool:
    """Whether a service of apprise asks by the library that we watch."""
    own = [one.__module__ for one in service.__mro__ if one.__module__.startswith("apprise.plugins.")]
    return any("requests" in vars(sys.modules[name]) for name in own if name != "apprise.plugins.base")


def is_mail(service: Any) -> bool:  # noqa: ANN401 the same
    """Whether it is the one for mail servers."""
    return bool(service.protocol == "mailto")


def server_of(service: Any) -> smtp.Server:  # noqa: ANN401 the same
    """The mail server of an address."""
    if not is_mail(service):
        raise Unusable("GPUBOARD_MAIL is not the address of a mail server")
    name, address = service.from_addr
    return smtp.Server(
        service.smtp_host,
        service.port,
        str(getattr(service.secure_mode, "value", service.secure_mode)),
        service.user,
        service.password,
        (name or "gpuboard", address),
        service.verify_certificate,
        tuple(sorted(service.reply_to)),
    )


def looked_at(url: str) -> tuple[str, str | None]:
    """An address as it may be shown: only what service it is of, since tokens stand anywhere in it; and its problem."""
    scheme = scheme_of(url)
    try:
        service = understood(url)
        return f"{MAIL if is_mail(service) else service.service_name} ({scheme}://…)", None
    except Unusable as why:
        return f"{scheme}://…", str(why)


def kind_of(letter: Letter) -> str:
    """How services colour it."""
    steps = {alert.step for alert in letter.alerts}
    if steps == {OVER}:
        return "success"
    return "warning" if BEGUN in steps else "info"


def worded(service: Any, message: Message) -> dict[str, str]:  # noqa: ANN401 the same
    """Title and body as a service shows them best: as plain text, or where it knows only Markdown, as that."""
    title, text = defused(message.title), defused(message.brief or message.text)
    most = service.body_maxlen if service.protocol in WEBHOOKS else min(service.body_maxlen, MOST_TEXT)
    room = most - len(title.encode()) - AROUND  # for some the title is a part of it
    if getattr(service.resolve_format("text"), "value", "") != "markdown":
        return {"title": title, "body": "\n".join(fitting(text.split("\n"), room, 1)), "body_format": "text"}
    from apprise.conversion import text_to_markdown  # noqa: PLC0415, TID251 slow to import

    plain: Callable[[str], str] = text_to_markdown
    # each line on its own, and the address of a page whole: where it is escaped it leads nowhere
    lines = [f"[{plain(one)}]({one})" if ADDRESS.fullmatch(one) else plain(one) for one in text.split("\n")]
    title = title if service.title_maxlen > 0 else plain(title)
    body = "\n\n".join(fitting([one for one in lines if one], room, 2))
    return {"title": title, "body": body, "body_format": "markdown"}


def fitting(lines: list[str], room: int, between: int) -> list[str]:
    """As many lines as a service has room for; the last then says that there are more, and the title how many."""
    sizes = [len(one.encode()) + between for one in lines]
    if sum(sizes) <= room:
        return lines
    sums = accumulate(sizes)
    kept = sum(1 for size in sums if size + len(MORE.encode()) <= room)
    return [*lines[:kept], MORE] if kept else lines  # of one long line, apprise takes the begin


def defused(text: str) -> str:
    """A text in which nothing calls everybody or makes a link of its own, as a comment could mean to."""
    return CALLS.sub(f"@{JOINER}", text.translate(LESS_MORE).replace("](", f"]{JOINER}("))


def identity(letter: Letter, to: str) -> str:
    """What makes a message the same when it is tried again; two boards may count their letters alike."""
    return " ".join((letter.id, to, *(alert.title for alert in letter.alerts)))
