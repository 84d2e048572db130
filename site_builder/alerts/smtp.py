"""Mail: one message to all its receivers in one go, so that it arrives once or not at all."""

from __future__ import annotations

import errno
import hashlib
import smtplib
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from typing import BinaryIO, NamedTuple

from site_builder.alerts.model import Message, Outcome
from site_builder.snapshots.envelope import one_line

SECONDS = 20.0
MOST_HEARD = 256 * 1024
LONGEST_SUBJECT = 200


class Server(NamedTuple):
    """A mail server as its address tells it; never shown. `mode` is insecure, starttls or ssl."""

    host: str
    port: int
    mode: str
    user: str | None
    password: str | None
    sender: tuple[str, str]
    verify: bool = True
    reply_to: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the password."""
        return f"Server({self.host}:{self.port})"


class Delivery:
    """One message on its way; `begun` once its first byte may have been given to the server."""

    def __init__(
        self, server: Server, to: tuple[str, ...], message: Message, name: str, hidden: tuple[str, ...] = ()
    ) -> None:
        """`to` stand in the head of it, and `hidden` get it too; `name` makes it the same message each time."""
        self.server, self.to, self.hidden, self.message, self.name = server, to, hidden, message, name
        self.begun = self.given_up = False

    def send(self) -> Outcome:
        """Give it to the server."""
        try:
            smtp = connected(self.server)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return Outcome("failed", unconnected(error))
        try:
            smtp.data = self.noting(smtp.data)  # type: ignore[method-assign, assignment]
            lost = smtp.sendmail(self.server.sender[1], [*self.to, *self.hidden], self.letter())
            with suppress(OSError, smtplib.SMTPException):
                smtp.putcmd("quit")  # it has the message: its farewell is not waited for
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return ungiven(error, self.begun)
        finally:
            smtp.close()
        return Outcome("sent", f"refused {len(lost)} of its receivers" if lost else "")

    def noting(self, data: Callable[[bytes], tuple[int, bytes]]) -> Callable[[bytes], tuple[int, bytes]]:
        """The command that gives it away, which from then on may have happened."""

        def given(content: bytes) -> tuple[int, bytes]:
            self.begun = True
            if self.given_up:
                raise TimeoutError
            return data(content)

        return given

    def letter(self) -> bytes:
        """A message with its text and its HTML; tried again it has the same id, and is known by it."""
        mail = EmailMessage()
        mail["Subject"] = one_line(self.message.title, LONGEST_SUBJECT)
        who, address = self.server.sender
        mail["From"] = Address(one_line(who), addr_spec=address)
        mail["To"] = [Address(addr_spec=one) for one in self.to]
        if self.server.reply_to:
            mail["Reply-To"] = [Address(addr_spec=one) for one in self.server.reply_to]
        mail["Date"] = format_datetime(localtime())
        mail["Message-ID"] = (
            f"<{hashlib.sha256(self.name.encode()).hexdigest()[:32]}.gpuboard@{address.rpartition('@')[2]}>"
        )
        mail["Auto-Submitted"] = "auto-generated"  # no answer by a holiday responder
        mail.set_content(self.message.text.rstrip("\n") + "\n", cte="quoted-printable")
        if self.message.html:
            mail.add_alternative(self.message.html, subtype="html", cte="quoted-printable")
        return mail.as_bytes(policy=SMTP)


class Heard:
    """What a server says, up to a limit: the library would keep all lines of an answer that never ends."""

    def __init__(self, file: BinaryIO) -> None:
        """From the begin of a connection."""
        self.file, self.left = file, MOST_HEARD

    def readline(self, most: int) -> bytes:
        """The next line."""
        if self.left <= 0:
            raise OSError(errno.EMSGSIZE, "talks for ever")
        line = self.file.readline(most)
        self.left -= len(line)
        return line

    def close(self) -> None:
        """As the library does."""
        self.file.close()


class Line(smtplib.SMTP):
    """A connection on which nobody talks for ever."""

    def getreply(self) -> tuple[int, bytes]:
        """The next answer."""
        if self.file is None and self.sock:
            self.file = Heard(self.sock.makefile("rb"))
        return super().getreply()


class TlsLine(Line, smtplib.SMTP_SSL):
    """The same by TLS from the first byte on."""


def connected(server: Server) -> smtplib.SMTP:
    """A connection on which we are known."""
    context = ssl.create_default_context()
    if not server.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if server.mode == "ssl":
        smtp: smtplib.SMTP = TlsLine(server.host, server.port, timeout=SECONDS, context=context)
    else:
        smtp = Line(server.host, server.port, timeout=SECONDS)
    try:
        if server.mode == "starttls":
            smtp.starttls(context=context)
        if server.user and server.password:
            smtp.login(server.user, server.password)
    except BaseException:
        smtp.close()
        raise
    return smtp


def unconnected(error: Exception) -> str:
    """Why nothing was given to the server; its own words may repeat what it was told, and are not."""
    known: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        (smtplib.SMTPAuthenticationError, "does not accept its user and password"),
        (
            smtplib.SMTPNotSupportedError,
            "has no STARTTLS or no login: does its address say how it is meant?",
        ),
        (smtplib.SMTPException, "ended the connection, or speaks no SMTP"),
        (ssl.SSLCertVerificationError, "has a certificate that cannot be trusted"),
        (ssl.SSLError, "cannot be reached by TLS: is its port right?"),
        ((socket.timeout, TimeoutError), f"did not answer within {SECONDS:.0f} s"),
        (socket.gaierror, "is not known on this network"),
        (ConnectionRefusedError, "cannot be reached: nothing answers there"),
    )
    return next((words for kind, words in known if isinstance(error, kind)), "cannot be reached")


def ungiven(error: Exception, begun: bool) -> Outcome:
    """What it means that a message was not taken: a server that says so is sure, one that falls silent is not."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        how = "refused" if codes and all(code >= 500 for code in codes) else "failed"
        return Outcome(how, f"knows no such receiver (SMTP {codes[0] if codes else '?'})")
    if isinstance(error, smtplib.SMTPResponseException):
        return Outcome("failed", f"did not take it (SMTP {error.smtp_code})")
    if begun:
        return Outcome("unsure", "fell silent after it was given the message")
    return Outcome("failed", unconnected(error))
