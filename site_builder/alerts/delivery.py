"""Deliver a notification by HTTP, mail or a hook program."""

from __future__ import annotations

import email.utils
import errno
import hashlib
import json
import math
import os
import pwd
import re
import selectors
import signal
import smtplib
import socket
import ssl
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, Protocol, cast

from site_builder.alerts.model import DeliveryOutcome, Message
from site_builder.core.terminal_text import clean_excerpt

# For one connection, for one answer, and for all that one letter takes.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, DELIVERY_TIMEOUT_S = 10.0, 20.0, 60.0
MAX_BODY_BYTES = 1024 * 1024
CHUNK_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 86400
STATUS_MEANINGS = {
    400: "does not understand the letter",
    401: "does not accept its token or password",
    403: "does not accept its token, or forbids it",
    404: "knows no such address",
    410: "has nothing at this address any more",
    413: "finds the letter too large",
    429: "wants fewer letters",
}


class RequestObserver:
    """All requests of one letter; once we gave up waiting, no further one is begun."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.outcomes: list[DeliveryOutcome] = []
        self.has_begun = False
        self.is_abandoned = False

    def send_request(self, send: Callable[..., Any], adapter: object, request: object, **more: object) -> Any:  # noqa: ANN401 of requests
        """Let one request pass, and note how it went; what the library would wait for or follow fails instead."""
        from requests import RequestException  # noqa: PLC0415 slow to import

        self.has_begun = True
        if self.is_abandoned:
            raise RequestException
        try:
            response = send(
                adapter, request, **{**more, "timeout": more.get("timeout") or (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)}
            )
        except Exception as error:
            self.outcomes.append(judge_request_error(error))
            raise
        body, status = read_response_body(response), response.status_code
        outcome = judge_response(status, response.headers, body)
        self.outcomes.append(outcome)
        # apprise would sleep and ask again after a 429, for as long as the receiver likes
        if status == 429 or outcome.retry_after_s or 300 <= status < 400:
            raise RequestException
        return response

    def summarize_outcomes(self, several: bool) -> DeliveryOutcome:
        """What a letter's requests come to, where the library says that it failed; `several` if for many receivers."""
        doubtful = [one for one in self.outcomes if one.status == "unsure"]
        if doubtful:
            return doubtful[-1]
        if several and any(one.status == "sent" for one in self.outcomes):
            return DeliveryOutcome("unsure", "some of the receivers in its address took it, and others did not")
        bad = [one for one in self.outcomes if one.status == "failed"]
        if bad:
            return bad[-1]
        # it was answered well, but in words that mean no; or nothing was asked at all
        return (
            DeliveryOutcome("unsure", "was answered in words that nobody understands")
            if self.outcomes
            else DeliveryOutcome("failed")
        )


CURRENT_OBSERVER: ContextVar[RequestObserver | None] = ContextVar("watch", default=None)
PATCH_LOCK = threading.Lock()


def install_observer() -> None:
    """Have every request of this process pass by the watch of its thread, if that has one."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 slow to import

    with PATCH_LOCK:
        send = HTTPAdapter.send
        if getattr(send, "is_watched", False):
            return

        def passing(adapter: HTTPAdapter, request: Any, *given: Any, **more: Any) -> Any:  # noqa: ANN401 as requests has it
            watch = CURRENT_OBSERVER.get()
            if watch is None:
                return send(adapter, request, *given, **more)
            return watch.send_request(send, adapter, request, **dict(zip(SEND_PARAMETERS, given)), **more)

        passing.is_watched = True  # type: ignore[attr-defined]
        HTTPAdapter.send = passing  # type: ignore[method-assign, assignment]


SEND_PARAMETERS = ("stream", "timeout", "verify", "cert", "proxies")


def read_response_body(response: Any) -> bytes:  # noqa: ANN401 of requests
    """The body of an answer, as far as it is read; one that breaks off does not change what the status says."""
    body = bytearray()
    try:
        for piece in response.iter_content(CHUNK_BYTES):
            body += piece
            if len(body) >= MAX_BODY_BYTES:
                break
    except Exception:  # whatever it is, the status has come
        body.clear()
    response.close()
    response._content, response._content_consumed = bytes(body[:MAX_BODY_BYTES]), True
    return bytes(body[:MAX_BODY_BYTES])


def judge_response(status: int, headers: Any, body: bytes) -> DeliveryOutcome:  # noqa: ANN401 of requests
    """What an answer means; a gateway that got no answer itself knows no more than we do."""
    if status == 504:
        return DeliveryOutcome("unsure", "answered 504: nobody knows whether it arrived behind that")
    if 200 <= status < 300:
        return (
            DeliveryOutcome("failed", "refused it in its answer", parse_retry_after(headers, body))
            if has_refusal(body)
            else DeliveryOutcome("sent")
        )
    if 300 <= status < 400:
        return DeliveryOutcome("failed", f"answered {status}: the address leads elsewhere, which is not followed")
    words = STATUS_MEANINGS.get(status) or ("has an error of its own" if status >= 500 else "did not take it")
    return DeliveryOutcome(
        "failed", f"{words} (HTTP {status})", parse_retry_after(headers, body) if status in (429, 503) else None
    )


def has_refusal(body: bytes) -> bool:
    """Whether an answer that is fine as HTTP says in JSON that nothing was taken, as Slack and others do."""
    told = parse_body_object(body)
    return told.get("ok") is False or told.get("success") is False or bool(told.get("errcode"))


def parse_body_object(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is none."""
    try:
        told = json.loads(body) if body[:1] == b"{" else None
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def parse_retry_after(headers: Any, body: bytes) -> int | None:  # noqa: ANN401 of requests
    """How many seconds we are to wait: by the header, or as Telegram and Matrix write it."""
    told = str(headers.get("Retry-After") or "").strip()
    found = parse_body_object(body)
    inner = found.get("parameters")
    several = [
        parse_retry_after_header(told),
        found.get("retry_after"),
        inner.get("retry_after") if isinstance(inner, dict) else None,
    ]
    millis = found.get("retry_after_ms")
    several.append(millis / 1000 if isinstance(millis, (int, float)) else None)
    seconds = next((one for one in several if isinstance(one, (int, float)) and math.isfinite(one)), None)
    return None if seconds is None else int(min(max(seconds, 1), MAX_RETRY_AFTER_S))


def parse_retry_after_header(told: str) -> float | None:
    """What Retry-After says: a number, or a date."""
    if told.isascii() and told.isdigit():
        return int(told[:9])
    try:
        return email.utils.parsedate_to_datetime(told).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def judge_request_error(error: Exception) -> DeliveryOutcome:
    """What it means that no answer came: before the connection stood nothing was sent, after that nobody knows."""
    from requests import exceptions as known  # noqa: PLC0415 slow to import

    reason = type(getattr(error.args[0] if error.args else None, "reason", None)).__name__
    if reason == "NameResolutionError":
        return DeliveryOutcome("failed", "is not known on this network")
    if reason == "NewConnectionError":
        return DeliveryOutcome("failed", "cannot be reached: nothing answers there")
    meanings: tuple[tuple[type[Exception], str, str], ...] = (
        (known.ReadTimeout, "unsure", "did not answer in time"),
        (known.ConnectTimeout, "failed", "cannot be reached in time"),
        (known.SSLError, "failed", "cannot be reached by TLS, or its certificate cannot be trusted"),
        (known.ProxyError, "failed", "cannot be reached by the proxy"),
        (known.ConnectionError, "unsure", "ended the connection without an answer"),
        (ValueError, "failed", "has an address that cannot be used"),  # all that requests finds wrong with one
    )
    for kind, how, why in meanings:
        if isinstance(error, kind):
            return DeliveryOutcome(how, why)
    return DeliveryOutcome("unsure", f"was sent to, and that broke off ({type(error).__name__})")


class SendProgress(Protocol):
    """A work that says whether it may have begun to send, and begins no more once it was given up."""

    has_begun: bool
    is_abandoned: bool


class UnknownProgress:
    """The same for what cannot say it: it may have begun at once."""

    has_begun = True
    is_abandoned = False


def run_with_timeout(seconds: float, work: Callable[[], DeliveryOutcome], sending: SendProgress) -> DeliveryOutcome:
    """What a work comes to, in a thread for which nobody waits longer: no limit of a library ends a drip of bytes."""
    done: list[DeliveryOutcome] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # a letter never costs the sender; the error's own words may hold an address
            how = "unsure" if sending.has_begun else "failed"
            done.append(DeliveryOutcome(how, f"could not be sent to ({type(error).__name__})"))

    thread = threading.Thread(target=run, name="send", daemon=True)
    thread.start()
    thread.join(seconds)
    sending.is_abandoned = True  # and only then looked at: either it has begun, or it sees this and never does
    return (
        done[0]
        if done
        else DeliveryOutcome("unsure" if sending.has_begun else "failed", f"did not end within {seconds:.0f} s")
    )


SMTP_TIMEOUT_S = 20.0
MAX_REPLY_BYTES = 256 * 1024
MAX_SUBJECT_CHARACTERS = 200


class MailServer(NamedTuple):
    """A mail server as its address tells it; never shown. `mode` is insecure, starttls or ssl."""

    host: str
    port: int
    security: str
    user: str | None
    password: str | None
    sender: tuple[str, str]
    is_verified: bool = True
    reply_to: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the password."""
        return f"MailServer({self.host}:{self.port})"


class MailDelivery:
    """One message on its way; `begun` once its first byte may have been given to the server."""

    def __init__(
        self, server: MailServer, to: tuple[str, ...], message: Message, name: str, hidden: tuple[str, ...] = ()
    ) -> None:
        """`to` stand in the head of it, and `hidden` get it too; `name` makes it the same message each time."""
        self.server, self.recipients, self.bcc_recipients, self.message, self.message_key = (
            server,
            to,
            hidden,
            message,
            name,
        )
        self.has_begun = self.is_abandoned = False

    def send(self) -> DeliveryOutcome:
        """Give it to the server."""
        try:
            smtp = connect_to_mail_server(self.server)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return DeliveryOutcome("failed", describe_smtp_error(error))
        try:
            smtp.data = self.track_data_command(smtp.data)  # type: ignore[method-assign, assignment]
            lost = smtp.sendmail(self.server.sender[1], [*self.recipients, *self.bcc_recipients], self.build_mail())
            with suppress(OSError, smtplib.SMTPException):
                smtp.putcmd("quit")  # it has the message: its farewell is not waited for
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return judge_smtp_error(error, self.has_begun)
        finally:
            smtp.close()
        return DeliveryOutcome("sent", f"refused {len(lost)} of its receivers" if lost else "")

    def track_data_command(self, data: Callable[[bytes], tuple[int, bytes]]) -> Callable[[bytes], tuple[int, bytes]]:
        """The command that gives it away, which from then on may have happened."""

        def given(content: bytes) -> tuple[int, bytes]:
            self.has_begun = True
            if self.is_abandoned:
                raise TimeoutError
            return data(content)

        return given

    def build_mail(self) -> bytes:
        """A message with its text and its HTML; tried again it has the same id, and is known by it."""
        mail = EmailMessage()
        mail["Subject"] = clean_excerpt(self.message.title, MAX_SUBJECT_CHARACTERS)
        who, address = self.server.sender
        mail["From"] = Address(clean_excerpt(who), addr_spec=address)
        mail["To"] = [Address(addr_spec=one) for one in self.recipients]
        if self.server.reply_to:
            mail["Reply-To"] = [Address(addr_spec=one) for one in self.server.reply_to]
        mail["Date"] = format_datetime(localtime())
        mail["Message-ID"] = (
            f"<{hashlib.sha256(self.message_key.encode()).hexdigest()[:32]}.gpuboard@{address.rpartition('@')[2]}>"
        )
        mail["Auto-Submitted"] = "auto-generated"  # no answer by a holiday responder
        mail.set_content(self.message.text.rstrip("\n") + "\n", cte="quoted-printable")
        if self.message.html:
            mail.add_alternative(self.message.html, subtype="html", cte="quoted-printable")
        return mail.as_bytes(policy=SMTP)


class BoundedReplyFile:
    """What a server says, up to a limit: the library would keep all lines of an answer that never ends."""

    def __init__(self, file: BinaryIO) -> None:
        """From the begin of a connection."""
        self.file, self.bytes_left = file, MAX_REPLY_BYTES

    def readline(self, most: int) -> bytes:
        """The next line."""
        if self.bytes_left <= 0:
            raise OSError(errno.EMSGSIZE, "talks for ever")
        line = self.file.readline(most)
        self.bytes_left -= len(line)
        return line

    def close(self) -> None:
        """As the library does."""
        self.file.close()


class BoundedSmtp(smtplib.SMTP):
    """A connection on which nobody talks for ever."""

    def getreply(self) -> tuple[int, bytes]:
        """The next answer."""
        if self.file is None and self.sock:
            self.file = BoundedReplyFile(self.sock.makefile("rb"))
        return super().getreply()


class BoundedSmtpTls(BoundedSmtp, smtplib.SMTP_SSL):
    """The same by TLS from the first byte on."""


def connect_to_mail_server(server: MailServer) -> smtplib.SMTP:
    """A connection on which we are known."""
    context = ssl.create_default_context()
    if not server.is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if server.security == "ssl":
        smtp: smtplib.SMTP = BoundedSmtpTls(server.host, server.port, timeout=SMTP_TIMEOUT_S, context=context)
    else:
        smtp = BoundedSmtp(server.host, server.port, timeout=SMTP_TIMEOUT_S)
    try:
        if server.security == "starttls":
            smtp.starttls(context=context)
        if server.user and server.password:
            smtp.login(server.user, server.password)
    except BaseException:
        smtp.close()
        raise
    return smtp


def describe_smtp_error(error: Exception) -> str:
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
        ((socket.timeout, TimeoutError), f"did not answer within {SMTP_TIMEOUT_S:.0f} s"),
        (socket.gaierror, "is not known on this network"),
        (ConnectionRefusedError, "cannot be reached: nothing answers there"),
    )
    return next((words for kind, words in known if isinstance(error, kind)), "cannot be reached")


def judge_smtp_error(error: Exception, begun: bool) -> DeliveryOutcome:
    """What it means that a message was not taken: a server that says so is sure, one that falls silent is not."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        how = "refused" if codes and all(code >= 500 for code in codes) else "failed"
        return DeliveryOutcome(how, f"knows no such receiver (SMTP {codes[0] if codes else '?'})")
    if isinstance(error, smtplib.SMTPResponseException):
        return DeliveryOutcome("failed", f"did not take it (SMTP {error.smtp_code})")
    if begun:
        return DeliveryOutcome("unsure", "fell silent after it was given the message")
    return DeliveryOutcome("failed", describe_smtp_error(error))


HOOK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What lies beside programs and is none: notes, what editors leave.
IGNORED_NAME = re.compile(r"\..*|README.*|.*~")
HOOK_TIMEOUT_S = 30.0
MAX_OUTPUT_BYTES = 16 * 1024
MAX_HOOKS = 100
MAX_LINKS = 40
POLL_INTERVAL_S = 0.05
KILL_TIMEOUT_S = 5.0  # one that even a kill does not end hangs in the kernel, and we do not
EXIT_RETRY_LATER = os.EX_TEMPFAIL
HOOK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_ERRORS = {
    errno.ENOENT: "the program that its first line names is not there",
    errno.ENOEXEC: "its first line must name its program, as #!/bin/sh does",
}
URL_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)\S+")


class Hook(NamedTuple):
    """A file in the folder of hooks, and why it may not be run."""

    name: str
    problem: str | None = None


class HookFolder:
    """The programs of GPUBOARD_HOOKS, looked at anew each time."""

    def __init__(self, folder: Path | None, never: tuple[Path, ...] = (), seconds: float = HOOK_TIMEOUT_S) -> None:
        """Nothing inside `never` (data/, www/) is run: others write there. Without a folder there are no hooks."""
        self.folder, self.forbidden_folders, self.timeout_s = folder, never, seconds

    def list_runnable_names(self) -> tuple[str, ...]:
        """The names of those that may run."""
        return tuple(hook.name for hook in self.check_hooks() if not hook.problem)

    def check_hooks(self) -> list[Hook]:
        """Every file there, and what is wrong with it; a folder that is wrong is one without a name."""
        if self.folder is None:
            return []
        try:
            place = self.folder.resolve(strict=True)
            if problem := self.find_folder_problem(place):
                return [Hook("", problem)]
            names = sorted(one.name for one in place.iterdir() if not IGNORED_NAME.fullmatch(one.name))
        except (OSError, RuntimeError) as error:  # of a link that leads to itself
            return [Hook("", f"cannot be read: {getattr(error, 'strerror', None) or 'its links lead nowhere'}")]
        return [Hook(clean_excerpt(name, 64), find_hook_problem(place / name)) for name in names[:MAX_HOOKS]]

    def find_folder_problem(self, place: Path) -> str | None:
        """Why nothing in this folder is run: somebody else could put or exchange a program there."""
        if not place.is_dir():
            return "is not a folder"
        for other in self.forbidden_folders:
            if (resolved := other.resolve()) == place or resolved in place.parents:
                return f"lies inside {other}, where others write: nothing in it is run"
        for one in dict.fromkeys(iterate_path_folders(self.folder or place)):
            if why := describe_foreign_access(one.lstat()):
                where = f"{one}, {'in which it lies' if one in place.parents else 'by which it is reached'}, "
                return f"{'' if one == place else where}{why}: nothing in it is run"
        return None

    def run_hook(self, name: str, data: bytes) -> DeliveryOutcome:
        """Run one, with an alert as JSON on its stdin; it is ended after its time, with all that it started."""
        if self.folder is None:
            return DeliveryOutcome("refused", "GPUBOARD_HOOKS is not set any more")
        found = {hook.name: hook.problem for hook in self.check_hooks()}
        if "" in found:
            return DeliveryOutcome("failed", f"the folder of hooks {found['']}")
        if name not in found:
            return DeliveryOutcome("refused", "there is no such hook any more")
        if found[name]:
            return DeliveryOutcome("failed", f"the hook {found[name]}")
        place = self.folder.resolve() / name
        try:
            with tempfile.TemporaryFile() as given:
                given.write(data)
                given.seek(0)
                program = subprocess.Popen(
                    [str(place)],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=place.parent,
                    env=build_hook_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            return DeliveryOutcome(
                "failed", f"the hook cannot be started: {START_ERRORS.get(error.errno or 0, str(error.strerror))}"
            )
        said = read_hook_output(program, time.monotonic() + self.timeout_s)
        return judge_exit_code(program.returncode, said, self.timeout_s)


def iterate_path_folders(path: Path) -> Iterator[Path]:
    """Every folder that is passed on the way to a place, by links too: who can write one of them leads us elsewhere."""
    here, ahead, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    yield here
    while ahead:
        part = ahead.pop()
        one = here.parent if part == ".." else here / part
        if not one.is_symlink():
            here = one
        elif (links := links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        else:
            target = one.readlink()
            here, parts = (Path("/"), target.parts[1:]) if target.is_absolute() else (here, target.parts)
            ahead += reversed(parts)
        yield here


def describe_foreign_access(status: os.stat_result) -> str | None:
    """Whether others than the builder's user and root may write; a sticky folder is open too: anybody adds a file."""
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    return "can be written by others than its owner" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def find_hook_problem(path: Path) -> str | None:
    """Why a file is not run."""
    if not HOOK_NAME.fullmatch(path.name):
        return "has a name with other letters than A-Z a-z 0-9 . _ -"
    try:
        status = path.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if stat.S_ISLNK(status.st_mode):
        return "is a link, and links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if why := describe_foreign_access(status):
        return why
    return None if os.access(path, os.X_OK) else "is not executable: chmod u+x makes it so"


def build_hook_environment() -> dict[str, str]:
    """What a hook may know of us: none of our settings, which hold secrets."""
    known = {"PATH": HOOK_PATH, "LANG": "C.UTF-8"}
    with suppress(KeyError):  # in a container a user need not have a name
        person = pwd.getpwuid(os.geteuid())
        known |= {"HOME": person.pw_dir, "USER": person.pw_name, "LOGNAME": person.pw_name}
    return known


def read_hook_output(program: subprocess.Popen[bytes], until: float) -> bytes:
    """What a program says until it ends or its time is over; what is too much is read and forgotten."""
    said = bytearray()
    with cast("IO[bytes]", program.stdout) as pipe, selectors.DefaultSelector() as ready:
        os.set_blocking(pipe.fileno(), False)
        ready.register(pipe, selectors.EVENT_READ)
        is_open = True
        while not has_child_ended(program.pid) and time.monotonic() < until:
            if not is_open:
                time.sleep(POLL_INTERVAL_S)
            elif ready.select(POLL_INTERVAL_S):
                is_open = read_available_output(pipe, said)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)  # also what it left behind; nobody else has this id before wait()
        read_available_output(pipe, said)
    with suppress(subprocess.TimeoutExpired):
        program.wait(KILL_TIMEOUT_S)
    return bytes(said)


def has_child_ended(pid: int) -> bool:
    """Whether our child has ended, which stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def read_available_output(pipe: IO[bytes], said: bytearray) -> bool:
    """Take what is there, once; whether there may be more."""
    with suppress(BlockingIOError):
        piece = os.read(pipe.fileno(), MAX_OUTPUT_BYTES)
        said += piece[: MAX_OUTPUT_BYTES - len(said)]
        return bool(piece)
    return True


def judge_exit_code(code: int | None, said: bytes, seconds: float) -> DeliveryOutcome:
    """What the end of a hook means: 0 is sent, 75 again later; one that was ended may have told somebody."""
    if code == 0:
        return DeliveryOutcome("sent")
    lines = said.decode("utf-8", "replace").strip().splitlines()
    words = f": {mask_urls(lines[-1])}" if lines else ""
    if code is None or code == -signal.SIGKILL:
        return DeliveryOutcome("unsure", f"the hook was ended after {seconds:.0f} s, or killed{words}")
    if code < 0:
        return DeliveryOutcome("unsure", f"the hook died of signal {-code}{words}")
    if code == EXIT_RETRY_LATER:
        return DeliveryOutcome("failed", f"the hook asks to be run again later{words}")
    return DeliveryOutcome("refused", f"the hook ended with {code}{words}")


def mask_urls(line: str) -> str:
    """What a program said, without the rest of any address: that is where tokens stand."""
    return URL_PATTERN.sub(r"\1…", clean_excerpt(line))
