"""Real web servers with a desk behind them, set up as docs/webservers.md says."""

from __future__ import annotations

import base64
import configparser
import contextlib
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.bookings.tokens import TokenStore
from tests.support.board_fixture import Lab, gpu
from tests.support.docs import ROOT, blocks
from tests.support.missing import missing
from tests.support.ports import free_port

SYSTEM = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
MODULES = Path("/usr/lib/apache2/modules")
SCRIPT = ROOT / "scripts/book.cgi"
PASSWORD = "correct-horse"  # noqa: S105
NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {content}
}}
"""
APACHE = """
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
ServerRoot {folder}
DocumentRoot {www}
PidFile {folder}/apache.pid
ErrorLog {folder}/error.log
Mutex file:{folder} default
DefaultRuntimeDir {folder}
ScriptSock {folder}/cgi.socket
{modules}
DirectoryIndex index.html
<Directory />
    Require all granted
</Directory>
{content}
"""
APACHE_MODULES = (
    "mpm_event",
    "dir",
    "cgid",
    "alias",
    "env",
    "authn_core",
    "authn_file",
    "auth_basic",
    "authz_core",
    "authz_user",
)


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    said: dict[str, Any]


class Place:
    """A lab of a user who is not root, for Apache does not run as root: in a namespace root is somebody else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        is_root = os.geteuid() == 0
        self.become = (program("unshare"), "--user", "--map-user=1000", "--map-group=1000") if is_root else ()
        self.lab = Lab(folder / "lab")
        self.lab.www.mkdir()
        (self.lab.www / "index.html").write_text("the board")
        self.lab.host("atlas", gpu(0) + gpu(1))
        self.token = TokenStore(self.lab.state).create_token("alice", time.time())
        self.conf = folder / "gpuboard.conf"
        self.set()

    def set(self, **extra_settings: str) -> None:
        """Settings, for all who run here."""
        folders = {name: str(self.lab.data.parent / name.lower()) for name in ("DATA", "WWW", "STATE")}
        lines = {**folders, "BOOK_URL": "book", "ZONE": "Europe/Paris", **extra_settings}
        self.conf.write_text("".join(f"GPUBOARD_{key}={value}\n" for key, value in lines.items()))

    def environment(self, **extra_variables: str) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_", "PYTHON"))
        }
        return {**kept, "GPUBOARD_CONF": str(self.conf), "HOME": str(self.folder), **extra_variables}

    def start(self, *command: str, **extra_options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        """A program of that user."""
        with (self.folder / "log").open("ab") as log:
            plain = {"cwd": self.folder, "env": self.environment(), "stdout": log, "stderr": log}
            options: dict[str, Any] = {**plain, "start_new_session": True, **extra_options}
            return subprocess.Popen([*self.become, *command], **options)

    def words(self) -> str:
        """What all servers said."""
        logs = (self.folder / "log", self.folder / "error.log")
        return "\n".join(log.read_text(errors="replace") for log in logs if log.exists())

    def passwords(self) -> Path:
        """A file with the password of alice and bob."""
        command = ["openssl", "passwd", "-apr1", PASSWORD]
        secret = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        path = self.folder / "users"
        path.write_text("".join(f"{name}:{secret}\n" for name in ("alice", "bob")))
        return path

    def booked(self) -> list[tuple[str, str, str]]:
        """Who has booked what, by the file."""
        path = self.lab.data / "comments.json"
        hosts = json.loads(path.read_text()) if path.exists() else {}
        return [(host, key, booking["name"]) for host, gpus in hosts.items() for key, booking in gpus.items()]


class Served:
    """A desk on a port of 127.0.0.1, and how alice says there who she is."""

    def __init__(self, place: Place, port: int, login: str, path: str = "/book") -> None:
        self.place = place
        self.port = port
        self.login = login
        self.path = path

    def ask(self, method: str, body: bytes | None = None, /, path: str | None = None, **headers: str | None) -> Got:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            request_headers = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
            line.request(method, path or self.path, body, request_headers)
            answer = line.getresponse()
            content = answer.read()
        finally:
            line.close()
        is_json = answer.getheader("Content-Type") == "application/json"
        return Got(answer.status, dict(answer.getheaders()), json.loads(content) if is_json and content else {})

    def get(self, **headers: str | None) -> Got:
        return self.ask("GET", **{"Authorization": self.login, **headers})

    def post(self, content: object, **headers: str | None) -> Got:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        right = {"Authorization": self.login, "Content_Type": "application/json", "X_Gpuboard": "1"}
        return self.ask("POST", body, **{**right, **headers})


def basic(name: str, password: str = PASSWORD) -> str:
    """The header of a login by password."""
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def program(name: str) -> str:
    return shutil.which(name, path=SYSTEM) or missing(f"{name} is not here; ./install.sh test installs it")


def block(kind: str, **places: str) -> str:
    """A block of the docs, with the places of this test."""
    (block_text,) = (doc_block.text for doc_block in blocks(kind))
    for old, new in places.items():
        name = {"users": "gpuboard.users", "cgi": "book.cgi"}.get(old, old)
        words = [word for word in block_text.replace(";", " ").split() if word.endswith(name)]
        assert words, (kind, old)
        block_text = block_text.replace(words[0], new)
    return block_text


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """A folder that everybody can reach, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gpuboard-desk-"))
    try:
        yield Place(folder)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def running(where: Place, port: int, *command: str, **start_options: Any) -> Iterator[subprocess.Popen[bytes]]:  # noqa: ANN401
    """A server until the test is over."""
    process = where.start(*command, **start_options)
    try:
        end = time.monotonic() + 30
        while port:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < end, where.words()
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):  # the children of fcgiwrap would outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def serve(where: Place) -> Iterator[Served]:
    """`gpuboard serve`."""
    port = free_port()
    this = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from site_builder.cli import main; main()"
    command = (sys.executable, "-I", "-c", this, "serve", "--listen", f"127.0.0.1:{port}")
    with running(where, port, *command):
        yield Served(where, port, f"Bearer {where.token}")


@contextlib.contextmanager
def wsgi(where: Place) -> Iterator[Served]:
    """A WSGI server that knows nothing of gpuboard but the name of the application."""
    port = free_port()
    command = (
        sys.executable,
        "-I",
        "-m",
        "waitress",
        f"--listen=127.0.0.1:{port}",
        "site_builder.web.booking_app:application",
    )
    with running(where, port, *command):
        yield Served(where, port, f"Bearer {where.token}", "/anywhere")


@contextlib.contextmanager
def fcgiwrap(where: Place) -> Iterator[Path]:
    """fcgiwrap, as systemd starts it by the units of the docs."""
    texts = [systemd_block.text for systemd_block in blocks("systemd") if systemd_block.page == "docs/webservers.md"]
    units = configparser.ConfigParser()
    units.optionxform = str  # type: ignore[assignment,method-assign] # the names are written so
    units.read_string("\n".join(texts))
    assert (units["Service"]["StandardInput"], units["Service"]["User"]) == ("socket", "gpuboard")
    assert f"unix:{units['Socket']['ListenStream']};" in block("nginx-cgi")
    path = where.folder / "book.socket"
    program("fcgiwrap")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with running(where, 0, *shlex.split(units["Service"]["ExecStart"]), stdin=listening):
            yield path


@contextlib.contextmanager
def nginx(where: Place, content: str, port: int) -> Iterator[None]:
    """nginx with these settings."""
    conf = where.folder / "nginx.conf"
    conf.write_text(NGINX.format(folder=where.folder, content=content))
    words = (program("nginx"), "-p", str(where.folder), "-c", str(conf), "-e", str(where.folder / "error.log"))
    with running(where, port, *words):
        yield


@contextlib.contextmanager
def nginx_cgi(where: Place) -> Iterator[Served]:
    """nginx and fcgiwrap, with the login of the docs at /book and none at /token."""
    port = free_port()
    with fcgiwrap(where) as path:
        setting = f"    fastcgi_param GPUBOARD_CONF {where.conf};\n}}\n"
        places = {"users": str(where.passwords()), "cgi": str(SCRIPT), "/run/gpuboard-book.socket": f"unix:{path}"}
        mine = block("nginx-cgi", **places).rstrip().removesuffix("}") + setting
        lines = [line for line in mine.splitlines() if "auth_basic" not in line and "AUTH_TYPE" not in line]
        token_location = "\n".join(lines).replace("/book {", "/token {")
        server = f"server {{\nlisten 127.0.0.1:{port};\nroot {where.lab.www};\n{mine}\n{token_location}\n}}"
        with nginx(where, server, port):
            yield Served(where, port, basic("alice"))


@contextlib.contextmanager
def nginx_proxy(where: Place) -> Iterator[Served]:
    """nginx with a login before `gpuboard serve`."""
    where.set(PROXY="127.0.0.1", PROXY_HEADER="X-Remote-User")
    with serve(where) as behind:
        port = free_port()
        text = block("nginx-proxy", users=str(where.passwords())).replace("127.0.0.1:8080", f"127.0.0.1:{behind.port}")
        lines = [line for line in text.splitlines() if "ssl_" not in line]
        content = "\n".join(lines).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
        with nginx(where, content.replace("listen 80", f"listen 127.0.0.1:{free_port()}"), port):
            yield Served(where, port, basic("alice"))


@contextlib.contextmanager
def apache(where: Place, tokens: bool = False) -> Iterator[Served]:
    """Apache with mod_cgid."""
    port = free_port()
    places = {"users": str(where.passwords()), "cgi": str(SCRIPT), "/etc/gpuboard/book.conf": str(where.conf)}
    content = block("apache-cgi", **places)
    if tokens:
        start, end = content.index("    AuthType"), content.index("    LimitRequestBody")
        content = content[:start] + block("apache-token") + content[end:]
    modules = "\n".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in APACHE_MODULES)
    conf = where.folder / "apache.conf"
    facts = {"port": port, "folder": where.folder, "www": where.lab.www, "modules": modules}
    conf.write_text(APACHE.format(content=content, **facts))
    with running(where, port, program("apache2"), "-f", str(conf), "-D", "FOREGROUND"):
        yield Served(where, port, f"Bearer {where.token}" if tokens else basic("alice"))
