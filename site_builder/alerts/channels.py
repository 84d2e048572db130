"""Channels: send a notification to a channel, a person or a hook. Only this module imports apprise."""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qsl

from site_builder.alerts import http_client, model, slack_client
from site_builder.alerts.contacts import MAIL_KIND, Contact, Contacts, load_contacts
from site_builder.alerts.hooks import HookFolder
from site_builder.alerts.http_client import AlertHttpClient, derive_http_apprise_class
from site_builder.alerts.mail import MailDelivery
from site_builder.alerts.model import AlertMessage, AlertReceiver, DeliveryOutcome, Notification
from site_builder.config.settings import Settings
from site_builder.health.model import CRITICAL, INFO, WARNING

DELIVERY_TIMEOUT_S = 60.0  # for everything that one notification takes
APPRISE_MISSING = "apprise is missing: pip install 'gpuboard[alerts]'"
# Parameters that name files which apprise would read.
FILE_PARAMETERS = frozenset({"keyfile", "subfile", "pgppub", "pgpprv", "pgp", "wkd"})
# nostr:// uses HTTP, but not to send; vapid:// keeps keys in files.
REFUSED_SCHEMES = frozenset({"nostr", "vapid"})
# Apprise's message types by severity, the worst first.
NOTIFY_TYPES = {CRITICAL: "failure", WARNING: "warning", INFO: "info"}
WEBHOOK_SCHEMES = frozenset({"json", "jsons", "xml", "xmls", "form", "forms"})
# Some chats refuse longer texts; the margin is for what a service puts around a title.
MAX_TEXT_BYTES = 2800
TITLE_MARGIN_BYTES = 16
MORE_LINE = "… and more"
WORD_JOINER = "\N{WORD JOINER}"
WEB_ADDRESS = re.compile(r"https?://[^\s()<>\[\]]+", re.ASCII)
# What calls everybody in Slack, Discord, Mattermost and Matrix, but not the @ in an address.
MENTION = re.compile(r"(?<!\w)@(?=\w)")
ANGLE_BRACKETS = str.maketrans(
    "<>", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
)


class ChannelUnusableError(Exception):
    """An address cannot be used; the message does not repeat it."""


class NotificationChannels:
    """All receivers that are set up; addresses appear in no message or log."""

    def __init__(self, settings: Settings, contacts: Contacts, timeout_s: float = DELIVERY_TIMEOUT_S) -> None:
        self.alert_settings, self.contacts, self.timeout_s = settings.alerts, contacts, timeout_s
        self.channel_urls = dict(settings.alerts.channels)
        self.hooks = HookFolder(settings.alerts.hooks_folder, (settings.data, settings.www))

    def check_receivers(self) -> list[AlertReceiver]:
        """Check every channel, the mail server and every hook, without sending anything."""
        receivers = [
            AlertReceiver(f"{model.CHANNEL_PREFIX}{name}", *describe_channel_url(url))
            for name, url in self.channel_urls.items()
        ]
        if self.alert_settings.mail_url:
            receivers.append(AlertReceiver(MAIL_KIND, *describe_channel_url(self.alert_settings.mail_url)))
        for hook in self.hooks.check_hooks():
            address = hook.name or str(self.hooks.folder)
            receivers.append(AlertReceiver(f"{model.HOOK_PREFIX}{hook.name}", address, hook.problem))
        return receivers

    def check_person(self, person: str, via: str = "") -> list[AlertReceiver]:
        """Check the contacts of a person, all or those of the kind `via`."""
        name = f"{model.PERSON_PREFIX}{person}"
        contacts = self.contacts.find_contacts(person, via)
        if not contacts:
            return [AlertReceiver(name, "", self.explain_unknown_person(person))]
        receivers = []
        for contact in contacts:
            address, problem, mail_url = contact.kind, None, self.alert_settings.mail_url
            if contact.is_url:
                address, problem = describe_channel_url(contact.address)
            elif contact.kind == MAIL_KIND:
                problem = describe_channel_url(mail_url)[1] if mail_url else "GPUBOARD_MAIL is not set"
            elif not self.alert_settings.slack.bot_token:
                problem = "the Slack bot is not set up"
            receivers.append(AlertReceiver(name, address, problem))
        return receivers

    def send(self, notification: Notification, message: AlertMessage) -> DeliveryOutcome:
        """Send a notification once, within a time; never raise."""
        kind, _, name = notification.to.partition(":")
        try:
            if f"{kind}:" == model.HOOK_PREFIX:
                return self.hooks.run_hook(name, message.hook_json)
            if f"{kind}:" == model.PERSON_PREFIX:
                return self.send_to_person(name, notification, message)
            if f"{kind}:" == model.CHANNEL_PREFIX and name in self.channel_urls:
                return self.send_to_url(self.channel_urls[name], notification, message)
            return DeliveryOutcome(model.REFUSED, "this channel no longer exists")
        except ChannelUnusableError as error:
            return DeliveryOutcome(model.FAILED, str(error))
        except Exception as error:  # its message may contain an address
            return DeliveryOutcome(model.UNSURE, f"could not be sent ({type(error).__name__})")

    def send_to_person(self, person: str, notification: Notification, message: AlertMessage) -> DeliveryOutcome:
        """Try a person's contacts in order until one takes the message, or may have taken it."""
        contacts = self.contacts.find_contacts(person, notification.via)
        if not contacts:
            status = model.REFUSED if self.contacts.is_complete else model.FAILED
            return DeliveryOutcome(status, self.explain_unknown_person(person))
        failures = []
        for contact in contacts:
            try:
                outcome = self.send_to_contact(contact, notification, message)
            except ChannelUnusableError as error:
                outcome = DeliveryOutcome(model.FAILED, str(error))
            if outcome.status in (model.SENT, model.UNSURE):
                return outcome
            failures.append(outcome)
        return next((outcome for outcome in failures if outcome.status == model.FAILED), failures[0])

    def explain_unknown_person(self, person: str) -> str:
        if not self.contacts.is_complete:
            return "the contacts cannot be read"
        return f"no contact for {person}: add a line to the contacts, or set GPUBOARD_MAIL_DOMAIN"

    def send_to_contact(self, contact: Contact, notification: Notification, message: AlertMessage) -> DeliveryOutcome:
        if contact.is_url:
            return self.send_to_url(contact.address, notification, message)
        if contact.kind == MAIL_KIND:
            if not self.alert_settings.mail_url:
                raise ChannelUnusableError("GPUBOARD_MAIL is not set, so there is no mail server")
            service = build_apprise_channel(self.alert_settings.mail_url)
            return self.send_mail(service, notification, message, contact.address, (contact.address,))
        slack = self.alert_settings.slack
        if not slack.bot_token:
            raise ChannelUnusableError("the Slack bot is not set up")
        return call_channel_with_timeout(
            lambda: slack_client.send_direct_message(slack, contact.address, message), "Slack", self.timeout_s
        )

    def send_to_url(self, url: str, notification: Notification, message: AlertMessage) -> DeliveryOutcome:
        """Send to an address as apprise writes them; mail is sent by our own code, which knows better how it ended."""
        service = build_apprise_channel(url)
        if is_mail_channel(service):
            recipients = (*(address for _, address in service.targets), *sorted(service.cc))
            return self.send_mail(service, notification, message, notification.to, recipients, tuple(service.bcc))
        client = AlertHttpClient()
        service.__class__ = derive_http_apprise_class(type(service), client)
        # services colour a message by its type
        severities = [alert.severity for alert in notification.alerts if alert.step != model.STEP_OVER]
        worst = next((severity for severity in NOTIFY_TYPES if severity in severities), INFO)
        notify_type = NOTIFY_TYPES[worst] if severities else "success"
        receiver = "the webhook" if parse_channel_scheme(url) in WEBHOOK_SCHEMES else str(service.service_name)

        def notify() -> DeliveryOutcome:
            content = format_for_channel(service, message)
            if service.notify(**content, notify_type=notify_type, overflow="truncate"):
                return DeliveryOutcome(model.SENT)
            return name_channel_in_outcome(client.summarize_outcomes(len(service) > 1), receiver)

        with silence_channel_libraries():
            return call_channel_with_timeout(notify, receiver, self.timeout_s, client)

    def send_mail(
        self,
        service: Any,  # noqa: ANN401 # of apprise, for mail
        notification: Notification,
        message: AlertMessage,
        to: str,
        recipients: tuple[str, ...],
        bcc_recipients: tuple[str, ...] = (),
    ) -> DeliveryOutcome:
        if not is_mail_channel(service):
            raise ChannelUnusableError("GPUBOARD_MAIL is not the address of a mail server")
        name, address = service.from_addr
        mail = MailDelivery(
            host=service.smtp_host,
            port=service.port,
            security=str(getattr(service.secure_mode, "value", service.secure_mode)),
            user=service.user,
            password=service.password,
            sender=(name or "gpuboard", address),
            recipients=recipients,
            message=message,
            # what identifies a mail when it is sent again; ids alone may be the same on two boards
            message_key=" ".join((notification.id, to, *(alert.title for alert in notification.alerts))),
            is_verified=service.verify_certificate,
            reply_to=tuple(sorted(service.reply_to)),
            bcc_recipients=bcc_recipients,
        )
        receiver = "the mail server"
        return call_channel_with_timeout(
            lambda: name_channel_in_outcome(mail.send(), receiver), receiver, self.timeout_s, mail
        )


def load_channels(settings: Settings) -> NotificationChannels:
    return NotificationChannels(settings, load_contacts(settings))


def call_channel_with_timeout(
    deliver: Callable[[], DeliveryOutcome],
    receiver: str,
    timeout_s: float,
    progress: AlertHttpClient | MailDelivery | None = None,
) -> DeliveryOutcome:
    """Run a delivery in a thread and stop waiting after a time: a library's timeout does not end a drip of bytes."""
    outcomes: list[DeliveryOutcome] = []

    def describe_end(reason: str) -> DeliveryOutcome:
        may_have_begun = progress is None or progress.has_begun
        return DeliveryOutcome(model.UNSURE if may_have_begun else model.FAILED, f"{receiver} {reason}")

    def run() -> None:
        try:
            outcomes.append(deliver())
        except Exception as error:  # its message may contain an address
            outcomes.append(describe_end(f"could not be sent to ({type(error).__name__})"))

    thread = threading.Thread(target=run, name="send", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if outcomes:
        return outcomes[0]
    if progress:  # set before has_begun is read: the delivery has begun by now, or sees this and never begins
        progress.is_abandoned = True
    return describe_end(f"did not finish within {timeout_s:.0f} s")


def name_channel_in_outcome(outcome: DeliveryOutcome, receiver: str) -> DeliveryOutcome:
    return outcome._replace(reason=f"{receiver} {outcome.reason}") if outcome.reason else outcome


def build_apprise_channel(url: str) -> Any:  # noqa: ANN401 # a service of apprise
    """Build the apprise service of an address, such that it reads no file, follows no redirect and never retries."""
    scheme = parse_channel_scheme(url)
    for parameter, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if parameter.lower() in FILE_PARAMETERS:
            raise ChannelUnusableError(f"its address has {parameter.lower()}=, but notifications read no files")
    try:
        with silence_channel_libraries():
            from apprise import Apprise, AppriseAsset, AppriseAttachment  # noqa: PLC0415, TID251 # slow to import

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
            service = Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    except ImportError:
        raise ChannelUnusableError(APPRISE_MISSING) from None
    except Exception as error:  # its message may contain the address
        raise ChannelUnusableError(f"its address {scheme}://… cannot be used ({type(error).__name__})") from None
    if service is None:
        raise ChannelUnusableError(f"its address {scheme}://… is not supported by apprise")
    if not is_mail_channel(service) and (scheme in REFUSED_SCHEMES or not is_http_channel(type(service))):
        raise ChannelUnusableError(f"{scheme}:// is not supported: it uses neither HTTP nor mail; use a hook instead")
    # a template would be read for each notification, from a file or a URL
    if any(isinstance(value, AppriseAttachment) and len(value) for value in vars(service).values()):
        raise ChannelUnusableError(f"its address {scheme}://… names a template, but notifications read no files")
    if not service.enabled:
        raise ChannelUnusableError(f"{scheme}:// needs a library that is not installed")
    service.retry, service.redirects = 0, False  # the queue retries
    service.socket_connect_timeout = http_client.CONNECT_TIMEOUT_S
    service.socket_read_timeout = http_client.READ_TIMEOUT_S
    return service


def parse_channel_scheme(url: str) -> str:
    """Return what is before `://`, which is not secret."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


@contextmanager
def silence_channel_libraries() -> Iterator[None]:
    """Suppress logs and warnings of libraries: they contain addresses."""
    for name in ("apprise", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def is_http_channel(plugin: type) -> bool:
    """Return True if a plugin of apprise sends by `requests`, which derive_http_apprise_class() replaces."""
    modules = {base.__module__ for base in plugin.__mro__ if base.__module__.startswith("apprise.plugins.")}
    return any("requests" in vars(sys.modules[name]) for name in modules - {"apprise.plugins.base"})


def is_mail_channel(service: Any) -> bool:  # noqa: ANN401 # a service of apprise
    return bool(service.protocol == "mailto")


def describe_channel_url(url: str) -> tuple[str, str | None]:
    """Return an address as it may be shown, and its problem; only the service is shown, as any part may be a token."""
    scheme = parse_channel_scheme(url)
    try:
        service = build_apprise_channel(url)
    except ChannelUnusableError as error:
        return f"{scheme}://…", str(error)
    return f"{MAIL_KIND if is_mail_channel(service) else service.service_name} ({scheme}://…)", None


def format_for_channel(service: Any, message: AlertMessage) -> dict[str, str]:  # noqa: ANN401 # a service of apprise
    """Format title and body as plain text, or as Markdown for services that know only that."""
    title = neutralize_channel_mentions(message.title)
    text = neutralize_channel_mentions(message.short_text or message.text)
    is_webhook = service.protocol in WEBHOOK_SCHEMES
    max_bytes = service.body_maxlen if is_webhook else min(service.body_maxlen, MAX_TEXT_BYTES)
    body_bytes = max_bytes - len(title.encode()) - TITLE_MARGIN_BYTES  # for some services the title is in the body
    if getattr(service.resolve_format("text"), "value", "") != "markdown":
        body = "\n".join(fit_channel_lines(text.split("\n"), body_bytes, 1))
        return {"title": title, "body": body, "body_format": "text"}
    from apprise.conversion import text_to_markdown  # noqa: PLC0415, TID251 # slow to import

    to_markdown: Callable[[str], str] = text_to_markdown
    # every line is a paragraph; an escaped URL would lead nowhere
    lines = [
        f"[{to_markdown(line)}]({line})" if WEB_ADDRESS.fullmatch(line) else to_markdown(line)
        for line in text.split("\n")
    ]
    title = title if service.title_maxlen > 0 else to_markdown(title)
    body = "\n\n".join(fit_channel_lines([line for line in lines if line], body_bytes, 2))
    return {"title": title, "body": body, "body_format": "markdown"}


def fit_channel_lines(lines: list[str], max_bytes: int, separator_bytes: int) -> list[str]:
    """Keep the lines that fit; the last then says that there are more, and the title how many."""
    sizes = [len(line.encode()) + separator_bytes for line in lines]
    if sum(sizes) <= max_bytes:
        return lines
    kept = sum(1 for size in accumulate(sizes) if size + len(MORE_LINE.encode()) <= max_bytes)
    return [*lines[:kept], MORE_LINE] if kept else lines  # apprise truncates a single long line


def neutralize_channel_mentions(text: str) -> str:
    """Break mentions and links that a comment or a name may contain."""
    return MENTION.sub(f"@{WORD_JOINER}", text.translate(ANGLE_BRACKETS).replace("](", f"]{WORD_JOINER}("))
