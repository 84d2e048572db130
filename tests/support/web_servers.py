"""Real web servers before a board, by docs/webservers.md and its files: what the docs say is what the tests run."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tests.support import booking_servers
from tests.support.booking_servers import PASSWORD, SCRIPT, Place, basic, program
from tests.support.docs import ROOT, blocks
from tests.support.missing import missing
from tests.support.ports import free_port

WWW = "/home/gpuboard/gpuboard/www"
FILES = ROOT / "docs/webservers"
CADDY_HASH = re.compile(r"\$2y\$\S+")
LIGHTTPD_MODULES = Path("/usr/lib/lighttpd")
NGINX_OF_GPUMONITOR = """
    location /gpus/ {
        auth_basic off;
        proxy_pass http://localhost:8042/;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Real-IP $remote_addr;
        proxy_set_header Host $http_host;
        proxy_http_version 1.1;
        proxy_redirect off;
        proxy_buffering off;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection "upgrade";
        proxy_read_timeout 86400;
    }
"""
ALICE = {"Cookie": "session=alice"}  # at her organisation
# Those that the docs name; dir and mime are always there.
APACHE_MODULES = (
    *booking_servers.APACHE_MODULES,
    *("mime", "rewrite", "headers", "filter", "deflate", "setenvif", "proxy", "proxy_http", "ssl", "socache_shmcb"),
)


class Got(NamedTuple):
    """An answer; its headers in small letters, each as often as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """All values of a header: a doubled one shows."""
        return " | ".join(value for key, value in self.headers if key == name.lower())


class Web(NamedTuple):
    """A board behind a web server; `kind` says which, `path` where in it."""

    kind: str
    place: Place
    port: int
    path: str = ""
    plain: int | None = None
    tls: bool = True
    login: Mapping[str, str] = {"Authorization": basic("alice")}

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, /, **headers: str | None) -> Got:
        """An answer to alice, or to whom the headers say."""
        all_headers = {**self.login, **headers}
        line: http.client.HTTPConnection
        if self.tls:
            trust = ssl.create_default_context(cafile=str(self.place.folder / "web.crt"))
            trust.check_hostname = False
            line = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=trust)
        else:
            line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = {name.replace("_", "-"): value for name, value in all_headers.items() if value is not None}
            line.request(method, f"{self.path}{path}", body, sent)
            answer = line.getresponse()
            return Got(answer.status, [(key.lower(), value) for key, value in answer.getheaders()], answer.read())
        finally:
            line.close()

    @property
    def url(self) -> str:
        """For a browser."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}{self.path}/"


class Stage(NamedTuple):
    """A board, the port of `gpuboard serve` before it, and that of an organisation's login."""

    place: Place
    behind: int = 0
    login: int = 0


class Docs:
    """The blocks and files of the docs, with the places of this test."""

    def __init__(self, stage: Stage, tls: bool = True) -> None:
        place, behind, login = stage
        self.place = place
        self.tls = tls
        users = str(place.passwords())
        self.places = {
            WWW: str(place.lab.www),
            "/etc/nginx/gpuboard.users": users,
            "/etc/apache2/gpuboard.users": users,
            "/etc/lighttpd/gpuboard.users": users,
            "/etc/ssl/gpuboard.crt": str(place.folder / "web.crt"),
            "/etc/ssl/gpuboard.key": str(place.folder / "web.key"),
            "/etc/nginx/snippets/gpuboard-files.conf": str(place.folder / "files.conf"),
            "/etc/gpuboard/book.conf": str(place.conf),
            "/home/gpuboard/clone/scripts/book.cgi": str(SCRIPT),
            "unix:/run/gpuboard-book.socket": f"unix:{place.folder}/book.socket",
            "fastcgi_param AUTH_TYPE": f"fastcgi_param GPUBOARD_CONF {place.conf};\n    fastcgi_param AUTH_TYPE",
            "127.0.0.1:8080": f"127.0.0.1:{behind}",
            '"port" => 8080': f'"port" => {behind}',
            "localhost:8042": f"127.0.0.1:{behind}",  # gpumonitor's port
            "127.0.0.1:4180": f"127.0.0.1:{login}",
        }

    def text(self, *names: str) -> str:
        """Files, and blocks by their kind, one after the other; a kind must stand in the docs once."""
        texts = []
        for name in names:
            if (FILES / name).exists():
                texts.append((FILES / name).read_text())
            else:
                (block,) = blocks(name)
                texts.append(block.text)
        text = "\n".join(texts)
        for old, new in self.places.items():
            text = text.replace(old, new)
        return text if self.tls else without_login(text)

    def nginx(self, port: int, *extra_blocks: str, location: str = "") -> tuple[str, int]:
        """A whole server with further blocks in it, and where it sends those away who come without TLS.

        `location` is a block that takes the place of `location /`.
        """
        self.place.folder.joinpath("files.conf").write_text(self.text("nginx-files.conf"))
        plain = free_port()
        text = self.text("nginx-maps.conf", "nginx-proxy").replace("listen 80;", f"listen 127.0.0.1:{plain};")
        if location:
            replacement = self.text(location)
            text = re.sub(r" *location / \{.*?\}\n", lambda _: replacement, text, count=1, flags=re.DOTALL)
        text = re.sub("listen 443( ssl)?;", rf"listen 127.0.0.1:{port}\1;", text)
        end = text.rindex("}")
        return f"{text[:end]}\n{self.text(*extra_blocks) if extra_blocks else ''}\n}}", plain

    def apache(self, port: int, *extra_blocks: str, whole: bool = True) -> tuple[str, int]:
        """The same for Apache; else the parts for files, and a VirtualHost that was there already."""
        plain, text = free_port(), self.text("apache-files.conf", "apache")
        if not whole:
            text = f"{text[: text.index('<VirtualHost')]}<VirtualHost *:443>\n{text[text.index('SSLEngine') :]}"
            text = re.sub(r'<Location "/">.*?</Location>', "", text, flags=re.DOTALL)
        text = text.replace("*:80>", f"127.0.0.1:{plain}>").replace("*:443>", f"127.0.0.1:{port}>")
        head, end = text.rsplit("</VirtualHost>", 1)
        return (
            f"Listen 127.0.0.1:{plain}\n{head}{self.text(*extra_blocks) if extra_blocks else ''}\n</VirtualHost>{end}",
            plain,
        )


def without_login(text: str) -> str:
    """For tests that are about neither TLS nor passwords."""
    text = re.sub(r'<Location "/">.*?</Location>\n', "", text, flags=re.DOTALL)
    return re.sub(r"^ *(?:ssl_|SSL|auth_basic).*\n| ssl(?=;)", "", text, flags=re.MULTILINE)


def certificate(place: Place) -> None:
    """One that signs itself."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=web")
    files = ("-keyout", str(place.folder / "web.key"), "-out", str(place.folder / "web.crt"))
    command = [program("openssl"), "req", "-x509", *curve, *files, "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)


def apache_conf(place: Place, port: int, content: str) -> Path:
    """A file of settings for Apache, with a table of types that knows as much as it must."""
    types = "text/html html\ntext/plain txt\ntext/css css\nimage/svg+xml svg\nimage/png png\napplication/xml xml\n"
    (place.folder / "mime.types").write_text(types)
    modules = "\n".join(f"LoadModule {name}_module {booking_servers.MODULES}/mod_{name}.so" for name in APACHE_MODULES)
    content = f"TypesConfig {place.folder}/mime.types\n{content}"
    conf = place.folder / "apache.conf"
    facts = {"port": port, "folder": place.folder, "www": place.lab.www, "modules": modules}
    conf.write_text(booking_servers.APACHE.format(content=content, **facts))
    return conf


@contextlib.contextmanager
def apache(place: Place, port: int, content: str) -> Iterator[None]:
    """Apache with this content."""
    conf = apache_conf(place, port, content)
    with booking_servers.running(place, port, program("apache2"), "-f", str(conf), "-D", "FOREGROUND"):
        yield


# Files


@contextlib.contextmanager
def nginx_files(stage: Stage, tls: bool = True, *extra_blocks: str) -> Iterator[Web]:
    """nginx over www/."""
    place, port = stage.place, free_port()
    content, plain = Docs(stage, tls).nginx(port, *extra_blocks, location="nginx")
    with booking_servers.nginx(place, content, port):
        yield Web("nginx", place, port, "", plain, tls)


@contextlib.contextmanager
def nginx_gpus(stage: Stage) -> Iterator[Web]:
    """The same below a path of another site; over all else there it has no say."""
    place, port = stage.place, free_port()
    content, _ = Docs(stage).nginx(port, "nginx-gpus", location="nginx")
    lines = content.splitlines()
    inner = next(number for number, line in enumerate(lines) if line.startswith("location = /gpus"))
    own = [line for line in lines[:inner] if not re.match(r" *(auth_basic|root|include)", line)]
    with booking_servers.nginx(place, "\n".join(own + lines[inner:]), port):
        yield Web("nginx", place, port, "/gpus")


@contextlib.contextmanager
def apache_files(stage: Stage, tls: bool = True, *extra_blocks: str) -> Iterator[Web]:
    """Apache over www/."""
    place, port = stage.place, free_port()
    content, plain = Docs(stage, tls).apache(port, *extra_blocks)
    with apache(place, port, content):
        yield Web("apache", place, port, "", plain, tls)


@contextlib.contextmanager
def apache_gpus(stage: Stage) -> Iterator[Web]:
    """The same below a path of another site."""
    place, port = stage.place, free_port()
    content, _ = Docs(stage).apache(port, "apache-gpus", whole=False)
    with apache(place, port, content):
        yield Web("apache", place, port, "/gpus")


def caddy_conf(place: Place, text: str, port: int) -> tuple[Path, int]:
    """A Caddyfile for this machine, and the port without TLS."""
    program("caddy")
    hashed = subprocess.run(
        [program("htpasswd"), "-nbB", "alice", PASSWORD], capture_output=True, text=True, check=True
    ).stdout.strip()
    text = CADDY_HASH.sub(lambda _: hashed.partition(":")[2], text)
    plain = free_port()
    head = f"{{\n\tadmin off\n\tdefault_bind 127.0.0.1\n\thttp_port {plain}\n\thttps_port {port}\n}}\n"
    conf = place.folder / "Caddyfile"
    names = f"https://127.0.0.1:{port}, https://web:{port}"
    conf.write_text(head + re.sub(r"^web \{", f"{names} {{", text, flags=re.MULTILINE))
    return conf, plain


@contextlib.contextmanager
def caddy(place: Place, text: str, path: str = "") -> Iterator[Web]:
    """Caddy with this content, found right by its own test before."""
    port = free_port()
    conf, plain = caddy_conf(place, text, port)
    words = ("--config", str(conf), "--adapter", "caddyfile")
    checked = subprocess.run(
        [program("caddy"), "validate", *words], capture_output=True, text=True, check=False, env=place.environment()
    )
    assert checked.returncode == 0, checked.stderr
    with booking_servers.running(place, port, program("caddy"), "run", *words):
        yield Web("caddy", place, port, path, plain)


@contextlib.contextmanager
def caddy_files(stage: Stage) -> Iterator[Web]:
    """Caddy over www/."""
    with caddy(stage.place, Docs(stage).text("Caddyfile")) as web:
        yield web


def lighttpd_conf(place: Place, text: str, port: int, plain: int) -> Path:
    """Settings as Debian's begin, for this machine."""
    for name in ("mod_openssl.so", "mod_deflate.so"):
        if not (LIGHTTPD_MODULES / name).exists():
            missing(f"{name} is not here; ./install.sh test installs it")
    head = f'server.port = {plain}\nserver.bind = "127.0.0.1"\nserver.document-root = "{place.folder}/none"\n'
    head += f'server.errorlog = "{place.folder}/error.log"\nserver.modules = ()\n'
    head += 'index-file.names = ( "index.php" )\nmimetype.assign = ( ".html" => "text/html" )\n'
    (place.folder / "none").mkdir(exist_ok=True)
    conf = place.folder / "lighttpd.conf"
    conf.write_text(head + text.replace('== ":443"', f'== "127.0.0.1:{port}"'))
    return conf


@contextlib.contextmanager
def lighttpd(place: Place, text: str, path: str = "") -> Iterator[Web]:
    """lighttpd with this content, found right by its own test before."""
    port, plain = free_port(), free_port()
    conf = lighttpd_conf(place, text, port, plain)
    words = (program("lighttpd"), "-m", str(LIGHTTPD_MODULES), "-f", str(conf))
    checked = subprocess.run([*words, "-tt"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, ""), checked
    with booking_servers.running(place, port, *words, "-D"):
        yield Web("lighttpd", place, port, path, plain)


@contextlib.contextmanager
def lighttpd_files(stage: Stage) -> Iterator[Web]:
    """lighttpd over www/, with the desk."""
    with lighttpd(stage.place, Docs(stage).text("lighttpd", "lighttpd-files.conf", "lighttpd-cgi")) as web:
        yield web


@contextlib.contextmanager
def nginx_all(stage: Stage) -> Iterator[Web]:
    """nginx over www/ with the desk, and one file that is open."""
    with booking_servers.fcgiwrap(stage.place), nginx_files(stage, True, "nginx-cgi", "nginx-open") as web:
        yield web


@contextlib.contextmanager
def apache_all(stage: Stage) -> Iterator[Web]:
    """Apache over www/ with the same."""
    with apache_files(stage, True, "apache-cgi", "apache-open") as web:
        yield web


# Before `gpuboard serve`


class Organisation(BaseHTTPRequestHandler):
    """A proxy for logins: whoever has its cookie is alice, or with another one somebody without a name."""

    def do_GET(self) -> None:
        cookie = self.headers.get("Cookie", "")
        is_question = self.path.partition("?")[0] == "/oauth2/auth"
        is_known = is_question and "session=" in cookie
        self.send_response(202 if is_known else 401 if is_question else 302)
        if self.path.startswith("/oauth2/start"):
            self.send_header("Location", f"https://login.example/?{self.path}")
        if is_known and "alice" in cookie:
            self.send_header("X-Auth-Request-Preferred-Username", "alice")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def organisation() -> Iterator[int]:
    """Its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Organisation)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def stage(place: Place) -> Iterator[Stage]:
    """All that stands behind a web server, for a board that is built; it believes a proxy on this machine."""
    certificate(place)
    place.set(PROXY="127.0.0.1", PROXY_HEADER="X-Remote-User", SERVER_NAMES="web")
    with booking_servers.serve(place) as served, organisation() as login:
        yield Stage(place, served.port, login)


@contextlib.contextmanager
def nginx_proxy(stage: Stage) -> Iterator[Web]:
    """nginx with a password."""
    port = free_port()
    content, plain = Docs(stage).nginx(port)
    with booking_servers.nginx(stage.place, content, port):
        yield Web("nginx", stage.place, port, "", plain)


@contextlib.contextmanager
def nginx_login(stage: Stage) -> Iterator[Web]:
    """nginx at /gpus/ with the login of an organisation."""
    port = free_port()
    content, plain = Docs(stage).nginx(port, location="nginx-login")
    with booking_servers.nginx(stage.place, re.sub(r" *auth_basic.*\n", "", content), port):
        yield Web("nginx", stage.place, port, "/gpus", plain, login=ALICE)


@contextlib.contextmanager
def apache_proxy(stage: Stage) -> Iterator[Web]:
    """Apache at /gpus/."""
    port = free_port()
    content, _ = Docs(stage).apache(port, "apache-proxy", whole=False)
    with apache(stage.place, port, content):
        yield Web("apache", stage.place, port, "/gpus")


@contextlib.contextmanager
def caddy_proxy(stage: Stage) -> Iterator[Web]:
    """Caddy at /gpus/."""
    with caddy(stage.place, Docs(stage).text("caddy-proxy"), "/gpus") as web:
        yield web


@contextlib.contextmanager
def caddy_login(stage: Stage) -> Iterator[Web]:
    """Caddy at /gpus/, with the login of an organisation."""
    with caddy(stage.place, Docs(stage).text("caddy-login"), "/gpus") as web:
        yield web._replace(login=ALICE)


@contextlib.contextmanager
def caddy_gpumonitor(stage: Stage) -> Iterator[Web]:
    """Caddy at /gpus/, without a login, as gpumonitor describes it."""
    text = Docs(stage).text("caddy-gpumonitor").replace("{\n", "{\n\ttls CERTIFICATE KEY\n", 1)
    folder = stage.place.folder
    text = text.replace("CERTIFICATE", str(folder / "web.crt")).replace("KEY", str(folder / "web.key"))
    with caddy(stage.place, re.sub(r"^\S+ \{", "web {", text), "/gpus") as web:
        yield web._replace(login={})


@contextlib.contextmanager
def nginx_gpumonitor(stage: Stage) -> Iterator[Web]:
    """nginx with the block of gpumonitor's README, word for word but for the port."""
    port = free_port()
    location = NGINX_OF_GPUMONITOR.replace("localhost:8042", f"127.0.0.1:{stage.behind}")
    with booking_servers.nginx(stage.place, f"server {{\nlisten 127.0.0.1:{port};\n{location}}}\n", port):
        yield Web("nginx", stage.place, port, "/gpus", tls=False, login={})


@contextlib.contextmanager
def lighttpd_proxy(stage: Stage) -> Iterator[Web]:
    """lighttpd at /gpus/."""
    with lighttpd(stage.place, Docs(stage).text("lighttpd", "lighttpd-proxy"), "/gpus") as web:
        yield web
