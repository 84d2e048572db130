"""Deliver a notification by HTTP, mail or a hook program, and judge how that ended."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import math
import os
import pwd
import re
import signal
import smtplib
import socket
import ssl
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime, parsedate_to_datetime
from functools import partial
from io import BufferedReader
from pathlib import Path
from types import FunctionType
from typing import IO, Any, NamedTuple, cast

from site_builder.alerts.model import FAILED, REFUSED, SENT, UNSURE, AlertMessage, DeliveryOutcome
from site_builder.core.terminal_text import clean_excerpt

# HTTP, as apprise's services use it

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 20.0
MAX_BODY_BYTES = 1024 * 1024
CHUNK_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 86400
HTTP_FUNCTIONS = frozenset({"request", "get", "options", "head", "post", "put", "patch", "delete"})
STATUS_MEANINGS = {
    400: "does not understand the letter",
    401: "does not accept its token or password",
    403: "does not accept its token, or forbids it",
    404: "knows no such address",
    410: "has nothing at this address any more",
    413: "finds the letter too large",
    429: "wants fewer letters",
}


class AlertHttpClient:
    """Takes the place of the module `requests` in one service, and records how each of its requests ended.

    Nothing is sent twice: redirects are not followed, and a service that would wait and repeat a request gets an error.
    """

    def __init__(self) -> None:
        self.outcomes: list[DeliveryOutcome] = []
        self.has_begun = self.is_abandoned = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # requests.post, requests.codes, …
        import requests  # noqa: PLC0415 # slow to import

        attribute = getattr(requests, name)
        return partial(self.send_request, attribute) if name in HTTP_FUNCTIONS else attribute

    def send_request(self, function: Any, *arguments: object, **options: Any) -> Any:  # noqa: ANN401
        """Call a function of `requests` once, and return its response with a body of limited length."""
        from requests import RequestException  # noqa: PLC0415 # slow to import

        self.has_begun = True
        if self.is_abandoned:
            raise RequestException
        options["timeout"] = options.get("timeout") or (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        try:
            response = function(*arguments, **{**options, "allow_redirects": False, "stream": True})
        except Exception as error:
            self.outcomes.append(judge_alert_http_error(error))
            raise
        body = bytearray()
        with suppress(Exception):  # a body that breaks off does not change what the status says
            for chunk in response.iter_content(CHUNK_BYTES):
                body += chunk
                if len(body) >= MAX_BODY_BYTES:
                    break
        response.close()
        response._content, response._content_consumed = bytes(body[:MAX_BODY_BYTES]), True
        outcome = judge_alert_http_response(response.status_code, response.headers, response.content)
        self.outcomes.append(outcome)
        # apprise would sleep after a 429, for as long as the receiver likes, and send again
        if response.status_code == 429 or outcome.retry_after_s or 300 <= response.status_code < 400:
            raise RequestException
        return response

    def summarize_outcomes(self, has_many_receivers: bool) -> DeliveryOutcome:
        """Judge a notification that the service calls failed by the outcomes of its requests."""
        last_by_status = {outcome.status: outcome for outcome in self.outcomes}
        if UNSURE in last_by_status:
            return last_by_status[UNSURE]
        if has_many_receivers and SENT in last_by_status:
            return DeliveryOutcome(UNSURE, "some of the receivers in its address took it, and others did not")
        if FAILED in last_by_status or not self.outcomes:
            return last_by_status.get(FAILED, DeliveryOutcome(FAILED))
        # every answer looked fine to us but not to the service
        return DeliveryOutcome(UNSURE, "was answered in words that nobody understands")


def derive_http_apprise_class(plugin: type, client: AlertHttpClient) -> type:
    """Derive a class from a plugin of apprise whose methods send through `client`.

    Plugins call `requests.post()` and accept no session. The new class has copies of their methods that find `client`
    under the name `requests`; the plugin and `requests` stay as they are.
    """
    methods: dict[str, FunctionType] = {}
    for name in dir(plugin):
        method = inspect.getattr_static(plugin, name)
        if isinstance(method, FunctionType) and "requests" in method.__globals__:
            names = {**method.__globals__, "requests": client}
            copy = FunctionType(method.__code__, names, name, method.__defaults__, method.__closure__)
            copy.__kwdefaults__ = method.__kwdefaults__
            methods[name] = copy
    return type(plugin.__name__, (plugin,), methods)


def judge_alert_http_response(status: int, headers: Any, body: bytes) -> DeliveryOutcome:  # noqa: ANN401 # of requests
    if status == 504:  # a gateway that got no answer knows no more than we do
        return DeliveryOutcome(UNSURE, "answered 504: nobody knows whether it arrived behind that")
    if 200 <= status < 300:
        answer = parse_http_json_answer(body)  # Slack and others refuse with a status of 200
        if answer.get("ok") is False or answer.get("success") is False or answer.get("errcode"):
            return DeliveryOutcome(FAILED, "refused it in its answer", parse_http_retry_after(headers, body))
        return DeliveryOutcome(SENT)
    if 300 <= status < 400:
        return DeliveryOutcome(FAILED, f"answered {status}: the address leads elsewhere, which is not followed")
    meaning = STATUS_MEANINGS.get(status) or ("has an error of its own" if status >= 500 else "did not take it")
    retry_after_s = parse_http_retry_after(headers, body) if status in (429, 503) else None
    return DeliveryOutcome(FAILED, f"{meaning} (HTTP {status})", retry_after_s)


def parse_http_json_answer(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body) if body[:1] == b"{" else None
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def parse_http_retry_after(headers: Any, body: bytes) -> int | None:  # noqa: ANN401 # of requests
    """Return how many seconds to wait, by the header or as Discord, Telegram and Matrix write it."""
    header, from_header = str(headers.get("Retry-After") or "").strip(), None  # a number of seconds, or a date
    if header.isascii() and header.isdigit():
        from_header = float(header[:9])
    else:
        with suppress(TypeError, ValueError, IndexError, OverflowError):
            from_header = parsedate_to_datetime(header).timestamp() - time.time()
    answer = parse_http_json_answer(body)
    parameters, millis = answer.get("parameters"), answer.get("retry_after_ms")
    candidates = (
        from_header,
        answer.get("retry_after"),
        parameters.get("retry_after") if isinstance(parameters, dict) else None,
        millis / 1000 if isinstance(millis, (int, float)) else None,
    )
    for seconds in candidates:
        if isinstance(seconds, (int, float)) and math.isfinite(seconds):
            return int(min(max(seconds, 1), MAX_RETRY_AFTER_S))
    return None


def judge_alert_http_error(error: Exception) -> DeliveryOutcome:
    """Judge a request without an answer: nothing was sent before the connection stood; after that, nobody knows."""
    from requests import exceptions  # noqa: PLC0415 # slow to import

    cause = type(getattr(error.args[0] if error.args else None, "reason", None)).__name__
    if cause == "NameResolutionError":
        return DeliveryOutcome(FAILED, "is not known on this network")
    if cause == "NewConnectionError":
        return DeliveryOutcome(FAILED, "cannot be reached: nothing answers there")
    meanings: tuple[tuple[type[Exception], str, str], ...] = (
        (exceptions.ReadTimeout, UNSURE, "did not answer in time"),
        (exceptions.ConnectTimeout, FAILED, "cannot be reached in time"),
        (exceptions.SSLError, FAILED, "cannot be reached by TLS, or its certificate cannot be trusted"),
        (exceptions.ProxyError, FAILED, "cannot be reached by the proxy"),
        (exceptions.ConnectionError, UNSURE, "ended the connection without an answer"),
        (ValueError, FAILED, "has an address that cannot be used"),  # InvalidURL and its like
    )
    for error_type, status, reason in meanings:
        if isinstance(error, error_type):
            return DeliveryOutcome(status, reason)
    return DeliveryOutcome(UNSURE, f"was sent to, and that broke off ({type(error).__name__})")


# Mail

SMTP_TIMEOUT_S = 20.0
MAX_REPLY_BYTES = 256 * 1024
MAX_SUBJECT_CHARACTERS = 200


@dataclass
class MailDelivery:
    """Sends one mail; `has_begun` is True once the server may have got its first byte.

    `security` is insecure, starttls or ssl, and `sender` a name and an address. `message_key` makes the Message-ID: a
    mail that is sent again has the same one.
    """

    host: str
    port: int
    security: str
    user: str | None
    password: str | None = field(repr=False)
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
            return DeliveryOutcome(status, f"knows no such receiver (SMTP {codes[0] if codes else '?'})")
        except smtplib.SMTPResponseException as error:  # a server that says so is sure
            return DeliveryOutcome(FAILED, f"did not take it (SMTP {error.smtp_code})")
        except (OSError, smtplib.SMTPException, ValueError) as error:
            if self.has_begun:
                return DeliveryOutcome(UNSURE, "fell silent after it was given the message")
            return DeliveryOutcome(FAILED, describe_smtp_error(error))
        finally:
            smtp.close()
        return DeliveryOutcome(SENT, f"refused {len(refused)} of its receivers" if refused else "")

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
            raise OSError(errno.EMSGSIZE, "talks for ever")
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
        (smtplib.SMTPNotSupportedError, "has no STARTTLS or no login: does its address say how it is meant?"),
        (smtplib.SMTPException, "ended the connection, or speaks no SMTP"),
        (ssl.SSLCertVerificationError, "has a certificate that cannot be trusted"),
        (ssl.SSLError, "cannot be reached by TLS: is its port right?"),
        ((socket.timeout, TimeoutError), f"did not answer within {SMTP_TIMEOUT_S:.0f} s"),
        (socket.gaierror, "is not known on this network"),
        (ConnectionRefusedError, "cannot be reached: nothing answers there"),
    )
    return next((reason for error_type, reason in meanings if isinstance(error, error_type)), "cannot be reached")


# Hooks

HOOK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
IGNORED_NAME = re.compile(r"\..*|README.*|.*~")  # notes, and what editors leave
HOOK_TIMEOUT_S = 30.0
MAX_OUTPUT_BYTES = 16 * 1024
MAX_HOOKS = 100
MAX_LINKS = 40
POLL_INTERVAL_S = 0.02
KILL_TIMEOUT_S = 5.0  # a program that survives SIGKILL hangs in the kernel: do not wait for it
EXIT_RETRY_LATER = os.EX_TEMPFAIL
HOOK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_ERRORS = {
    errno.ENOENT: "the program that its first line names is not there",
    errno.ENOEXEC: "its first line must name its program, as #!/bin/sh does",
}
URL_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)\S+")


class Hook(NamedTuple):
    """A file in the hooks folder, and why it may not run; one without a name stands for the folder itself."""

    name: str
    problem: str | None = None


@dataclass(frozen=True)
class HookFolder:
    """The programs in GPUBOARD_HOOKS; nothing in a forbidden folder (data/, www/) runs, since others write there."""

    folder: Path | None
    forbidden_folders: tuple[Path, ...] = ()
    timeout_s: float = HOOK_TIMEOUT_S

    def list_runnable_names(self) -> tuple[str, ...]:
        return tuple(hook.name for hook in self.check_hooks() if not hook.problem)

    def check_hooks(self) -> list[Hook]:
        if self.folder is None:
            return []
        try:
            folder = self.folder.resolve(strict=True)
            if problem := self.find_folder_problem(folder):
                return [Hook("", problem)]
            names = sorted(path.name for path in folder.iterdir() if not IGNORED_NAME.fullmatch(path.name))
        except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
            return [Hook("", f"cannot be read: {getattr(error, 'strerror', None) or 'its links lead nowhere'}")]
        return [Hook(clean_excerpt(name, 64), find_hook_problem(folder / name)) for name in names[:MAX_HOOKS]]

    def find_folder_problem(self, folder: Path) -> str | None:
        """Explain why nothing in this folder may run: somebody else could put a program there."""
        if not folder.is_dir():
            return "is not a folder"
        for forbidden in self.forbidden_folders:
            if (resolved := forbidden.resolve()) == folder or resolved in folder.parents:
                return f"lies inside {forbidden}, where others write: nothing in it is run"
        for path in dict.fromkeys(iterate_hook_path_folders(self.folder or folder)):
            if reason := find_hook_permission_problem(path.lstat()):
                where = f"{path}, {'in which it lies' if path in folder.parents else 'by which it is reached'}, "
                return f"{'' if path == folder else where}{reason}: nothing in it is run"
        return None

    def run_hook(self, name: str, alert_json: bytes) -> DeliveryOutcome:
        """Run a hook with an alert on its stdin; end it after a time, with everything that it started."""
        if self.folder is None:
            return DeliveryOutcome(REFUSED, "GPUBOARD_HOOKS is not set any more")
        problems = {hook.name: hook.problem for hook in self.check_hooks()}
        if "" in problems:
            return DeliveryOutcome(FAILED, f"the folder of hooks {problems['']}")
        if name not in problems:
            return DeliveryOutcome(REFUSED, "there is no such hook any more")
        if problems[name]:
            return DeliveryOutcome(FAILED, f"the hook {problems[name]}")
        path = self.folder.resolve() / name
        try:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(alert_json)
                stdin.seek(0)
                program = subprocess.Popen(
                    [str(path)],
                    bufsize=0,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=path.parent,
                    env=build_hook_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            reason = START_ERRORS.get(error.errno or 0, str(error.strerror))
            return DeliveryOutcome(FAILED, f"the hook cannot be started: {reason}")
        output = read_hook_output(program, time.monotonic() + self.timeout_s)
        code = program.returncode
        if code == 0:
            return DeliveryOutcome(SENT)
        lines = output.decode("utf-8", "replace").strip().splitlines()
        # the rest of an address may be a token
        last_line = ": " + URL_PATTERN.sub(r"\1…", clean_excerpt(lines[-1])) if lines else ""
        # one that was killed may have told somebody
        if code is None or code == -signal.SIGKILL:
            return DeliveryOutcome(UNSURE, f"the hook was ended after {self.timeout_s:.0f} s, or killed{last_line}")
        if code < 0:
            return DeliveryOutcome(UNSURE, f"the hook died of signal {-code}{last_line}")
        if code == EXIT_RETRY_LATER:
            return DeliveryOutcome(FAILED, f"the hook asks to be run again later{last_line}")
        return DeliveryOutcome(REFUSED, f"the hook ended with {code}{last_line}")


def iterate_hook_path_folders(path: Path) -> Iterator[Path]:
    """Yield every folder on the way to a path, through links too: who can write in one can redirect us."""
    folder, parts_ahead, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    yield folder
    while parts_ahead:
        part = parts_ahead.pop()
        child = folder.parent if part == ".." else folder / part
        if not child.is_symlink():
            folder = child
        elif (links := links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        else:
            target = child.readlink()
            folder, parts = (Path("/"), target.parts[1:]) if target.is_absolute() else (folder, target.parts)
            parts_ahead += reversed(parts)
        yield folder


def find_hook_permission_problem(status: os.stat_result) -> str | None:
    """Explain who besides the builder's user and root may write; a sticky folder counts, since anybody adds files."""
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    return "can be written by others than its owner" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def find_hook_problem(path: Path) -> str | None:
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
    if reason := find_hook_permission_problem(status):
        return reason
    return None if os.access(path, os.X_OK) else "is not executable: chmod u+x makes it so"


def build_hook_environment() -> dict[str, str]:
    environment = {"PATH": HOOK_PATH, "LANG": "C.UTF-8"}
    with suppress(KeyError):  # in a container a user need not have a name
        user = pwd.getpwuid(os.geteuid())
        environment |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    return environment


def read_hook_output(program: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Read what a program prints until it ends or its time is over; then kill it, and drop what is too much."""
    output, has_ended = b"", False
    with cast("IO[bytes]", program.stdout) as pipe:
        os.set_blocking(pipe.fileno(), False)
        while not has_ended:
            # WNOWAIT: the process stays a zombie, so that nobody else gets its id before killpg
            status = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            has_ended = status is not None or time.monotonic() >= deadline
            if has_ended:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(program.pid, signal.SIGKILL)  # also what it left behind
            chunk = pipe.read(MAX_OUTPUT_BYTES)  # None if it has printed nothing new
            output = (output + (chunk or b""))[:MAX_OUTPUT_BYTES]
            if not chunk and not has_ended:
                time.sleep(POLL_INTERVAL_S)
    with suppress(subprocess.TimeoutExpired):
        program.wait(KILL_TIMEOUT_S)
    return output
