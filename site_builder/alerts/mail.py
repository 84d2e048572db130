"""Send a notification by mail, and judge how that ended."""

from __future__ import annotations

import errno
import hashlib
import smtplib
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from io import BufferedReader

from site_builder.alerts.model import FAILED, REFUSED, SENT, UNSURE, AlertMessage, DeliveryOutcome
from site_builder.core.terminal_text import clean_excerpt

SMTP_TIMEOUT_S = 20.0
MAX_REPLY_BYTES = 256 * 1024
MAX_SUBJECT_CHARACTERS = 200


@dataclass(repr=False)
class MailDelivery:
    """Sends one mail; `has_begun` is True once the server may have got its first byte.

    `security` is insecure, starttls or ssl, and `sender` a name and an address. `message_key` makes the Message-ID: a
    mail that is sent again has the same one.
    """

    host: str
    port: int
    security: str
    user: str | None
    password: str | None
    sender: tuple[str, str]
    recipients: tuple[str, ...]
    message: AlertMessage
    message_key: str
    is_verified: bool = True
    reply_to: tuple[str, ...] = ()
    bcc_recipients: tuple[str, ...] = ()
    has_begun: bool = False
    is_abandoned: bool = False

    def send(self) -> DeliveryOutcome:
        try:
            smtp = self.connect()
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return DeliveryOutcome(FAILED, describe_smtp_error(error))
        send_data = smtp.data

        def send_data_once(content: bytes) -> tuple[int, bytes]:
            self.has_begun = True
            if self.is_abandoned:
                raise TimeoutError
            return send_data(content)

        smtp.data = send_data_once  # type: ignore[method-assign, assignment] # of this connection only
        try:
            refused = smtp.sendmail(self.sender[1], [*self.recipients, *self.bcc_recipients], self.build_mail())
            with suppress(OSError, smtplib.SMTPException):
                smtp.putcmd("quit")  # it has the mail: there is no need to wait for its answer
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            status = REFUSED if codes and all(code >= 500 for code in codes) else FAILED
            return DeliveryOutcome(status, f"does not know this recipient (SMTP {codes[0] if codes else '?'})")
        except smtplib.SMTPResponseException as error:  # a server that says so is sure
            return DeliveryOutcome(FAILED, f"did not accept it (SMTP {error.smtp_code})")
        except (OSError, smtplib.SMTPException, ValueError) as error:
            if self.has_begun:
                return DeliveryOutcome(UNSURE, "stopped answering after it received the message")
            return DeliveryOutcome(FAILED, describe_smtp_error(error))
        finally:
            smtp.close()
        return DeliveryOutcome(SENT, f"refused {len(refused)} of its recipients" if refused else "")

    def connect(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.security == "ssl":
            smtp: smtplib.SMTP = BoundedSmtpTls(self.host, self.port, timeout=SMTP_TIMEOUT_S, context=context)
        else:
            smtp = BoundedSmtp(self.host, self.port, timeout=SMTP_TIMEOUT_S)
        try:
            if self.security == "starttls":
                smtp.starttls(context=context)
            if self.user and self.password:
                smtp.login(self.user, self.password)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def build_mail(self) -> bytes:
        name, address = self.sender
        message_id = f"{hashlib.sha256(self.message_key.encode()).hexdigest()[:32]}.gpuboard"
        mail = EmailMessage()
        mail["Subject"] = clean_excerpt(self.message.title, MAX_SUBJECT_CHARACTERS)
        mail["From"] = Address(clean_excerpt(name), addr_spec=address)
        mail["To"] = [Address(addr_spec=recipient) for recipient in self.recipients]
        if self.reply_to:
            mail["Reply-To"] = [Address(addr_spec=reply_address) for reply_address in self.reply_to]
        mail["Date"] = format_datetime(localtime())
        mail["Message-ID"] = f"<{message_id}@{address.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"  # so that no holiday responder answers
        mail.set_content(self.message.text.rstrip("\n") + "\n", cte="quoted-printable")
        if self.message.html:
            mail.add_alternative(self.message.html, subtype="html", cte="quoted-printable")
        return mail.as_bytes(policy=SMTP)


class BoundedSmtpReplies(BufferedReader):
    """The replies of a server up to a limit: smtplib would store every line of a reply that never ends."""

    bytes_left = MAX_REPLY_BYTES

    def readline(self, limit: int | None = -1) -> bytes:
        if self.bytes_left <= 0:
            raise OSError(errno.EMSGSIZE, "sends an endless reply")
        line = super().readline(limit)
        self.bytes_left -= len(line)
        return line


class BoundedSmtp(smtplib.SMTP):
    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock:
            self.file = BoundedSmtpReplies(self.sock.makefile("rb", buffering=0))
        return super().getreply()


class BoundedSmtpTls(BoundedSmtp, smtplib.SMTP_SSL):
    pass


def describe_smtp_error(error: Exception) -> str:
    """Explain why the server got nothing, without its own words: they may repeat the password."""
    meanings: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        (smtplib.SMTPAuthenticationError, "does not accept its user and password"),
        (smtplib.SMTPNotSupportedError, "supports no STARTTLS or no login: check its address"),
        (smtplib.SMTPException, "closed the connection, or does not speak SMTP"),
        (ssl.SSLCertVerificationError, "has an untrusted certificate"),
        (ssl.SSLError, "cannot be reached over TLS: check its port"),
        ((socket.timeout, TimeoutError), f"did not answer within {SMTP_TIMEOUT_S:.0f} s"),
        (socket.gaierror, "is not known on this network"),
        (ConnectionRefusedError, "cannot be reached: nothing answers there"),
    )
    return next((reason for error_type, reason in meanings if isinstance(error, error_type)), "cannot be reached")
