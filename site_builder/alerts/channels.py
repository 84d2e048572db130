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

from site_builder.alerts import delivery as alert_delivery
from site_builder.alerts.config_files import MAIL_KIND, Contact, Contacts
from site_builder.alerts.delivery import HookFolder
from site_builder.alerts.model import (
    CHANNEL_PREFIX,
    HOOK_PREFIX,
    PERSON_PREFIX,
    STEP_BEGUN,
    STEP_OVER,
    DeliveryOutcome,
    Message,
    Notification,
)
from site_builder.config.settings import Settings

# Tells a Slack member by the bot.
DirectMessageSender = Callable[[str, Message], DeliveryOutcome]
APPRISE_MISSING = "apprise is missing: pip install 'gpuboard[alerts]'"
# What an address may not have: paths of files that apprise would read.
FILE_PARAMETERS = frozenset({"keyfile", "subfile", "pgppub", "pgpprv", "pgp", "wkd"})
# One goes by other ways than HTTP, though it asks something by it; the other keeps keys in files.
NON_HTTP_SCHEMES = frozenset({"nostr", "vapid"})
# What apprise calls by the form in which they are told.
WEBHOOK_SCHEMES = frozenset({"json", "jsons", "xml", "xmls", "form", "forms"})
# Bytes that a letter in a chat may have: some services refuse more. And what may stand around a title.
MAX_TEXT_BYTES = 2800
TITLE_MARGIN_BYTES = 16
MORE_LINE = "… and more"
WORD_JOINER = "\N{WORD JOINER}"
WEB_ADDRESS = re.compile(r"https?://[^\s()<>\[\]]+", re.ASCII)
# What calls everybody in Slack, Discord, Mattermost, Matrix; not what stands inside of an address.
MENTION = re.compile(r"(?<!\w)@(?=\w)")
ANGLE_BRACKETS = str.maketrans(
    "<>", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
)


class CheckedReceiver(NamedTuple):
    """A receiver as it may be shown: `name` as in `Letter.to`, its address masked, and why it cannot be used."""

    name: str
    masked_address: str
    problem: str | None = None


class ChannelUnusableError(Exception):
    """Why an address cannot be used, in words that do not repeat it."""


class NotificationChannels:
    """Where letters go; addresses are looked up when one is sent, and stand in no message or log."""

    def __init__(
        self,
        settings: Settings,
        contacts: Contacts | None = None,
        direct: DirectMessageSender | None = None,
        seconds: float = alert_delivery.DELIVERY_TIMEOUT_S,
    ) -> None:
        """`direct` is of the Slack bot, where it is set up; no letter takes longer than `seconds`."""
        self.alert_settings = settings.alerts
        self.channel_urls = dict(settings.alerts.channels)
        self.contacts = contacts or Contacts(mail_domain=settings.alerts.mail_domain)
        self.send_direct, self.timeout_s = direct, seconds
        self.hooks = HookFolder(settings.alerts.hooks_folder, (settings.data, settings.www))

    def list_channel_names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(self.channel_urls)

    def check_receivers(self) -> list[CheckedReceiver]:
        """Every channel, the mail server and every hook, and whether it can be used; nothing is sent."""
        found = [
            CheckedReceiver(f"{CHANNEL_PREFIX}{name}", *describe_url(url)) for name, url in self.channel_urls.items()
        ]
        if self.alert_settings.mail_url:
            found.append(CheckedReceiver(MAIL_KIND, *describe_url(self.alert_settings.mail_url)))
        for hook in self.hooks.check_hooks():
            found.append(
                CheckedReceiver(
                    f"{HOOK_PREFIX}{hook.name}", hook.name or f"{self.alert_settings.hooks_folder}", hook.problem
                )
            )
        return found

    def check_person(self, person: str, via: str = "") -> list[CheckedReceiver]:
        """The same for the ways of one person, of which `via` picks one kind."""
        name = f"{PERSON_PREFIX}{person}"
        ways = self.contacts.find_contacts(person, via)
        return [CheckedReceiver(name, *self.describe_contact(contact)) for contact in ways] or [
            CheckedReceiver(name, "", self.explain_unknown_person(person))
        ]

    def describe_contact(self, contact: Contact) -> tuple[str, str | None]:
        """A way of a person as it may be shown, and why it cannot be used."""
        if contact.is_url:
            return describe_url(contact.address)
        if contact.kind == MAIL_KIND:
            return MAIL_KIND, describe_url(self.alert_settings.mail_url)[
                1
            ] if self.alert_settings.mail_url else "GPUBOARD_MAIL is not set"
        return contact.kind, None if self.send_direct else "the Slack bot is not set up"

    def send(self, letter: Notification, message: Message) -> DeliveryOutcome:
        """Send a letter, once, within a time; never raises."""
        try:
            if letter.to.startswith(HOOK_PREFIX):
                return self.hooks.run_hook(letter.to[len(HOOK_PREFIX) :], message.hook_json)
            return (
                self.send_to_person(letter, message)
                if letter.to.startswith(PERSON_PREFIX)
                else self.send_to_channel(letter, message)
            )
        except ChannelUnusableError as why:
            return DeliveryOutcome("failed", str(why))
        except Exception as error:  # its words may hold an address
            return DeliveryOutcome("unsure", f"could not be sent ({type(error).__name__})")

    def send_to_channel(self, letter: Notification, message: Message) -> DeliveryOutcome:
        """By the address of a channel, if that is still in the settings."""
        name = letter.to[len(CHANNEL_PREFIX) :]
        if not letter.to.startswith(CHANNEL_PREFIX) or name not in self.channel_urls:
            return DeliveryOutcome("refused", "there is no such channel any more")
        return self.send_to_url(self.channel_urls[name], letter, message)

    def send_to_person(self, letter: Notification, message: Message) -> DeliveryOutcome:
        """By the first of their ways that takes it; where one may have taken it, no other is tried."""
        person = letter.to[len(PERSON_PREFIX) :]
        ways = self.contacts.find_contacts(person, letter.via)
        if not ways:
            return DeliveryOutcome(
                "refused" if self.contacts.is_complete else "failed", self.explain_unknown_person(person)
            )
        failed = []
        for contact in ways:
            try:
                outcome = self.send_to_contact(contact, letter, message)
            except ChannelUnusableError as why:
                outcome = DeliveryOutcome("failed", str(why))
            if outcome.status in ("sent", "unsure"):
                return outcome
            failed.append(outcome)
        return next((one for one in failed if one.status == "failed"), failed[0])

    def explain_unknown_person(self, person: str) -> str:
        """Why somebody cannot be told."""
        if not self.contacts.is_complete:
            return "the contacts cannot be read"
        return f"nobody knows how to tell {person}: a line in the contacts says it, or GPUBOARD_MAIL_DOMAIN for all"

    def send_to_contact(self, contact: Contact, letter: Notification, message: Message) -> DeliveryOutcome:
        """By one way of a person."""
        if contact.is_url:
            return self.send_to_url(contact.address, letter, message)
        if contact.kind == MAIL_KIND:
            if not self.alert_settings.mail_url:
                raise ChannelUnusableError("GPUBOARD_MAIL is not set: no mail server is known")
            server = build_mail_server(build_service(self.alert_settings.mail_url))
            return self.send_mail(
                alert_delivery.MailDelivery(
                    server, (contact.address,), message, build_message_key(letter, contact.address)
                )
            )
        direct = self.send_direct
        if direct is None:
            raise ChannelUnusableError("the Slack bot is not set up")
        outcome = alert_delivery.run_with_timeout(
            self.timeout_s, lambda: direct(contact.address, message), alert_delivery.UnknownProgress()
        )
        return (
            outcome
            if outcome.status != "unsure" or outcome.reason.startswith("Slack")
            else prefix_outcome(outcome, "Slack")
        )

    def send_to_url(self, url: str, letter: Notification, message: Message) -> DeliveryOutcome:
        """By an address as apprise has them; mail goes our own way, which tells more of how it went."""
        service = build_service(url)
        if is_mail_service(service):
            to = tuple(address for _, address in service.targets)
            delivery = alert_delivery.MailDelivery(
                build_mail_server(service),
                (*to, *sorted(service.cc)),
                message,
                build_message_key(letter, letter.to),
                tuple(service.bcc),
            )
            return self.send_mail(delivery)
        watch = alert_delivery.RequestObserver()

        def work() -> DeliveryOutcome:
            alert_delivery.CURRENT_OBSERVER.set(watch)
            told = service.notify(
                **format_for_service(service, message), notify_type=choose_notify_type(letter), overflow="truncate"
            )
            return DeliveryOutcome("sent") if told else watch.summarize_outcomes(len(service) > 1)

        with silence_libraries():
            outcome = alert_delivery.run_with_timeout(self.timeout_s, work, watch)
        return prefix_outcome(
            outcome, "the webhook" if parse_scheme(url) in WEBHOOK_SCHEMES else f"{service.service_name}"
        )

    def send_mail(self, delivery: alert_delivery.MailDelivery) -> DeliveryOutcome:
        """By a mail server."""
        return prefix_outcome(
            alert_delivery.run_with_timeout(self.timeout_s, delivery.send, delivery), "the mail server"
        )


def prefix_outcome(outcome: DeliveryOutcome, receiver: str) -> DeliveryOutcome:
    """How it went, with the receiver before it."""
    return outcome._replace(reason=f"{receiver} {outcome.reason}") if outcome.reason else outcome


def build_service(url: str) -> Any:  # noqa: ANN401 a service of apprise
    """The service that an address is of, set up so that it reads no file, follows no other address and never waits."""
    scheme = parse_scheme(url)
    if problem := find_file_parameter(url):
        raise ChannelUnusableError(problem)
    try:
        with silence_libraries():
            service = instantiate_service(url)
    except ImportError:
        raise ChannelUnusableError(APPRISE_MISSING) from None
    except Exception as error:  # its words may hold the address
        message = f"its address {scheme}://… cannot be used ({type(error).__name__})"
        raise ChannelUnusableError(message) from None
    if service is None:
        message = f"its address {scheme}://… is not one that apprise understands"
        raise ChannelUnusableError(message)
    if not is_mail_service(service) and (scheme in NON_HTTP_SCHEMES or not is_http_service(type(service))):
        message = f"{scheme}:// is not used: it does not go by HTTP or mail; a hook can do it"
        raise ChannelUnusableError(message)
    if has_template_file(service):
        message = f"its address {scheme}://… names a template, and no file is read for a letter"
        raise ChannelUnusableError(message)
    if not service.enabled:
        message = f"{scheme}:// needs a library that is not there"
        raise ChannelUnusableError(message)
    service.retry, service.redirects = 0, False  # we try again ourselves
    service.socket_connect_timeout, service.socket_read_timeout = (
        alert_delivery.CONNECT_TIMEOUT_S,
        alert_delivery.READ_TIMEOUT_S,
    )
    return service


def instantiate_service(url: str) -> Any:  # noqa: ANN401 the same
    """What apprise makes of an address; None if it is none."""
    from apprise import Apprise, AppriseAsset  # noqa: PLC0415, TID251 slow to import

    alert_delivery.install_observer()
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


def parse_scheme(url: str) -> str:
    """What stands before `://`, which is no secret."""
    scheme, found, _ = url.partition("://")
    return scheme.lower() if found else ""


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Without the words of libraries: their logs have addresses in them, and Python prints what nobody listens to."""
    for name in ("apprise", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def find_file_parameter(url: str) -> str | None:
    """Why an address is refused that would have a file read."""
    for key, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if key.lower() in FILE_PARAMETERS:
            return f"its address has {key.lower()}=, and no file is read for a letter"
    return None


def has_template_file(service: Any) -> bool:  # noqa: ANN401 the same
    """Whether it would fetch a template for each letter, from a file or from elsewhere; the name of one is no such."""
    from apprise import AppriseAttachment  # noqa: PLC0415, TID251 here already

    return any(isinstance(value, AppriseAttachment) and len(value) for value in vars(service).values())


def is_http_service(service: type) -> bool:
    """Whether a service of apprise asks by the library that we watch."""
    own = [one.__module__ for one in service.__mro__ if one.__module__.startswith("apprise.plugins.")]
    return any("requests" in vars(sys.modules[name]) for name in own if name != "apprise.plugins.base")


def is_mail_service(service: Any) -> bool:  # noqa: ANN401 the same
    """Whether it is the one for mail servers."""
    return bool(service.protocol == "mailto")


def build_mail_server(service: Any) -> alert_delivery.MailServer:  # noqa: ANN401 the same
    """The mail server of an address."""
    if not is_mail_service(service):
        raise ChannelUnusableError("GPUBOARD_MAIL is not the address of a mail server")
    name, address = service.from_addr
    return alert_delivery.MailServer(
        service.smtp_host,
        service.port,
        str(getattr(service.secure_mode, "value", service.secure_mode)),
        service.user,
        service.password,
        (name or "gpuboard", address),
        service.verify_certificate,
        tuple(sorted(service.reply_to)),
    )


def describe_url(url: str) -> tuple[str, str | None]:
    """An address as it may be shown: only what service it is of, since tokens stand anywhere in it; and its problem."""
    scheme = parse_scheme(url)
    try:
        service = build_service(url)
        return f"{MAIL_KIND if is_mail_service(service) else service.service_name} ({scheme}://…)", None
    except ChannelUnusableError as why:
        return f"{scheme}://…", str(why)


def choose_notify_type(letter: Notification) -> str:
    """How services colour it."""
    steps = {alert.step for alert in letter.alerts}
    if steps == {STEP_OVER}:
        return "success"
    return "warning" if STEP_BEGUN in steps else "info"


def format_for_service(service: Any, message: Message) -> dict[str, str]:  # noqa: ANN401 the same
    """Title and body as a service shows them best: as plain text, or where it knows only Markdown, as that."""
    title, text = neutralize_mentions(message.title), neutralize_mentions(message.short_text or message.text)
    most = service.body_maxlen if service.protocol in WEBHOOK_SCHEMES else min(service.body_maxlen, MAX_TEXT_BYTES)
    room = most - len(title.encode()) - TITLE_MARGIN_BYTES  # for some the title is a part of it
    if getattr(service.resolve_format("text"), "value", "") != "markdown":
        return {"title": title, "body": "\n".join(fit_lines(text.split("\n"), room, 1)), "body_format": "text"}
    from apprise.conversion import text_to_markdown  # noqa: PLC0415, TID251 slow to import

    plain: Callable[[str], str] = text_to_markdown
    # each line on its own, and the address of a page whole: where it is escaped it leads nowhere
    lines = [f"[{plain(one)}]({one})" if WEB_ADDRESS.fullmatch(one) else plain(one) for one in text.split("\n")]
    title = title if service.title_maxlen > 0 else plain(title)
    body = "\n\n".join(fit_lines([one for one in lines if one], room, 2))
    return {"title": title, "body": body, "body_format": "markdown"}


def fit_lines(lines: list[str], room: int, between: int) -> list[str]:
    """As many lines as a service has room for; the last then says that there are more, and the title how many."""
    sizes = [len(one.encode()) + between for one in lines]
    if sum(sizes) <= room:
        return lines
    sums = accumulate(sizes)
    kept = sum(1 for size in sums if size + len(MORE_LINE.encode()) <= room)
    return [*lines[:kept], MORE_LINE] if kept else lines  # of one long line, apprise takes the begin


def neutralize_mentions(text: str) -> str:
    """A text in which nothing calls everybody or makes a link of its own, as a comment could mean to."""
    return MENTION.sub(f"@{WORD_JOINER}", text.translate(ANGLE_BRACKETS).replace("](", f"]{WORD_JOINER}("))


def build_message_key(letter: Notification, to: str) -> str:
    """What makes a message the same when it is tried again; two boards may count their letters alike."""
    return " ".join((letter.id, to, *(alert.title for alert in letter.alerts)))
