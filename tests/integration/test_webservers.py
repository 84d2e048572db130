"""nginx, Apache, Caddy and lighttpd, set up as docs/webservers.md says: what `gpuboard serve` sends, they send."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, HttpCredentials

from site_builder.core.model import BookingPolicy
from site_builder.web.static_files import REPORT_SECURITY_POLICY, SECURITY_HEADERS, find_content_type
from tests.support import booking_servers, web_servers
from tests.support.board_fixture import gpu
from tests.support.booking_servers import basic
from tests.support.docs import links
from tests.support.web_servers import Stage, Web

Start = Callable[[Stage], contextlib.AbstractContextManager[Web]]
FILES: dict[str, Start] = {
    "nginx": web_servers.nginx_all,
    "nginx at /gpus/": web_servers.nginx_gpus,
    "apache": web_servers.apache_all,
    "apache at /gpus/": web_servers.apache_gpus,
    "caddy": web_servers.caddy_files,
    "lighttpd": web_servers.lighttpd_files,
}
PROXIES: dict[str, Start] = {
    "nginx before serve": web_servers.nginx_proxy,
    "nginx and an organisation's login at /gpus/": web_servers.nginx_login,
    "apache before serve at /gpus/": web_servers.apache_proxy,
    "caddy before serve at /gpus/": web_servers.caddy_proxy,
    "caddy and an organisation's login at /gpus/": web_servers.caddy_login,
    "lighttpd before serve at /gpus/": web_servers.lighttpd_proxy,
}
FOREVER = "public, max-age=31536000, immutable"
OLD = ("/", "/live.json", "/status.json", "/metrics", "/cards/atlas.html", "/assets/board.css", "/bookings.ics")

# Some take it for the top of the server, which below a path is another site's.
UP = ("/..", "/../gpuboard.conf", "/%2e%2e/data/", "/..%2fdata/")
ELSE = (
    *UP,
    *(
        "/.hidden",
        "/data/",
        "/state/",
        "/reports/",
        "/hosts/",
        "/link.txt",
        "/reports/link/gpuboard.conf",
        "/assets/../.hidden",
        "/assets/..%2f.hidden",
    ),
)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One board for all servers."""
    with booking_servers.place() as place:
        lab = place.lab
        for number in range(16):
            lab.host(f"gpu{number:02}", gpu(0) + gpu(1))
        lab.build(booking_policy=BookingPolicy(url="book"))
        for name, text in {"reports/2026-W45.html": "a report", "odd.csv": "a,b", ".hidden": "secret"}.items():
            (lab.www / name).parent.mkdir(exist_ok=True)
            (lab.www / name).write_text(text)
        (lab.www / "link.txt").symlink_to(place.conf)
        (lab.www / "reports/link").symlink_to(place.folder)
        with web_servers.stage(place) as web_stage:
            yield web_stage


@pytest.fixture(scope="module", params=[*FILES, *PROXIES])
def web(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Web]:
    """Each server in turn."""
    with {**FILES, **PROXIES}[request.param](stage) as web_server:
        yield web_server._replace(kind=request.param)


def test_the_page_links_every_file_of_its_folder() -> None:
    linked = {link.partition("/")[2] for link in links("docs/webservers.md") if link.startswith("webservers/")}
    assert {path.name for path in web_servers.FILES.iterdir()} == linked


def test_every_answer_has_the_headers_of_gpuboard_serve_each_once(web: Web) -> None:
    for path in (*OLD, "/hosts/gpu00.html", "/assets/board.css?1", "/nothing-there", "/reports/2026-W45.html"):
        got = web.ask(path)
        assert got.status == (404 if "nothing" in path else 200), (path, got.status, web.place.words())
        for name, value in SECURITY_HEADERS:
            is_report = name == "Content-Security-Policy" and path.startswith("/reports/")
            assert got.header(name) == (REPORT_SECURITY_POLICY if is_report else value), path


def test_a_browser_asks_again_for_all_but_assets_with_their_version(web: Web) -> None:
    for path in (*OLD, "/?wall", "/status.json?x", "/reports/2026-W45.html"):
        got = web.ask(path)
        assert got.header("Cache-Control") == "no-cache", path
        for packed in (None, "gzip"):
            first_answer = web.ask(path, Accept_Encoding=packed)
            assert first_answer.header("ETag")
            again = web.ask(path, If_None_Match=first_answer.header("ETag"), Accept_Encoding=packed)
            assert (again.status, again.body) == (304, b""), (path, packed)
    forever = "max-age=31536000" if web.kind == "lighttpd" else FOREVER
    assert web.ask("/assets/board.css?0123").header("Cache-Control") == forever
    stranger = web.ask("/assets/board.css?0123", Authorization=None, Cookie=None)
    for refused in (web.ask("/assets/nothing.css?0123"), stranger):
        assert (refused.status != 200, refused.header("Cache-Control") in {"", "no-cache"}) == (True, True), refused


def test_texts_are_compressed_for_those_who_take_it(web: Web) -> None:
    for path in ("/", "/live.json", "/status.json", "/metrics", "/assets/board.css?1"):
        name = path.partition("?")[0].lstrip("/") or "index.html"
        plain, packed = web.ask(path), web.ask(path, Accept_Encoding="gzip")
        expected = (web.place.lab.www / name).read_bytes()
        assert (plain.header("Content-Encoding"), plain.body) == ("", expected)
        assert (packed.header("Content-Encoding"), gzip.decompress(packed.body)) == ("gzip", expected), path
        assert "accept-encoding" in packed.header("Vary").lower()


def test_each_file_has_the_type_that_gpuboard_serve_gives_it(web: Web) -> None:
    files = [
        file_path for file_path in web.place.lab.www.rglob("*") if file_path.is_file() and not file_path.is_symlink()
    ]
    endings = {file_path.suffix or file_path.name: file_path for file_path in files if file_path.name[0] != "."}
    assert {".html", ".css", ".js", ".json", ".txt", ".ics", ".csv", ".svg", "metrics"} <= endings.keys()
    for file_path in endings.values():
        got = web.ask(f"/{file_path.relative_to(web.place.lab.www)}")
        assert got.header("Content-Type").lower() == find_content_type(file_path.name)[0], file_path


def test_nothing_is_served_but_the_board(web: Web) -> None:
    for path in ELSE:
        got = web.ask(path)
        if web.kind == "caddy" and "link" in path:
            continue  # it follows them, as the docs say
        assert got.status in {301, 308, 400, 403, 404} or path in UP, (path, got)
        for secret in (b"GPUBOARD_", b"secret", b"Index of", b"tokens"):
            assert secret not in got.body, path


def test_nothing_is_shown_without_a_login(web: Web) -> None:
    opened = {"/bookings.ics"} if web.kind in ("nginx", "apache") else set()
    for path in (*OLD, "/book", "/reports/2026-W45.html", "/.hidden"):
        got = web.ask(path, Authorization=None, Cookie=None, X_Remote_User="alice")
        if path in opened:
            assert (got.status, got.header("X-Frame-Options")) == (200, "SAMEORIGIN")
            continue
        if "organisation" in web.kind:
            assert (got.status, got.header("Location").endswith(f"/oauth2/start?rd=/gpus{path}")) == (302, True), got
        else:
            assert got.status == 401 or (path == "/.hidden" and got.status in {403, 404}), path
        assert b"gpu00" not in got.body
    if "organisation" not in web.kind:
        assert web.ask("/", Authorization=basic("alice", "wrong")).status == 401


def test_whoever_comes_without_tls_is_sent_there(web: Web) -> None:
    if web.plain:
        plain = web._replace(port=web.plain, tls=False)
        got = plain.ask("/")
        assert got.status in {301, 308}
        assert got.header("Location").startswith("https://")


def test_the_path_without_its_slash_leads_to_the_board(web: Web) -> None:
    if web.path:
        got = web._replace(path="").ask(web.path)
        assert got.status in {301, 308}
        assert re.fullmatch(r"(https://127\.0\.0\.1(:\d+)?)?/gpus/", got.header("Location"))


def test_the_booking_service_knows_who_logged_in_and_believes_no_header(web: Web) -> None:
    if web.kind in ("caddy", "nginx at /gpus/", "apache at /gpus/"):
        assert web.ask("/book").status == 404
        return
    got = web.ask("/book", X_Remote_User="bob", Remote_User="bob")
    assert got.status == 200, (got, web.place.words())
    assert json.loads(got.body)["who"] == (None if web.kind.startswith("lighttpd before") else "alice")
    if web.kind.startswith("lighttpd before"):
        return  # it cannot tell, as the docs say
    assert got.header("Cache-Control") == "no-store"
    for name, value in SECURITY_HEADERS:
        assert got.header(name) == value
    host = f"127.0.0.1:{web.port}"
    own = {"Origin": f"https://{host}", "Content_Type": "application/json", "X_Gpuboard": "1"}
    body = json.dumps({"do": "book", "gpus": ["gpu00:0"], "for": "2h", "check": True}).encode()
    assert web.ask("/book", "POST", body, **own).status == 200
    assert web.ask("/book", "POST", body, **{**own, "Origin": "https://evil.example"}).status == 403


def test_before_gpuboard_serve_the_name_of_the_board_counts_and_no_header_stands_for_it(web: Web) -> None:
    if web.kind not in PROXIES:
        return
    assert web.ask("/", Host=f"web:{web.port}").status == 200
    for headers in ({}, {"X_Forwarded_Host": "web"}):
        got = web.ask("/", Host="evil.example", **headers)
        is_refused_by_caddy = web.kind.startswith("caddy") and (got.status, got.body) == (
            200,
            b"",
        )  # it knows no such site
        assert is_refused_by_caddy or (got.status, b"GPUBOARD_SERVER_NAMES" in got.body) == (421, True), got


def test_somebody_of_the_organisation_without_a_name_is_nobody_whatever_they_send(web: Web) -> None:
    if "organisation" in web.kind:
        got = web.ask("/book", Cookie="session=1", X_Remote_User="bob")
        assert (got.status, json.loads(got.body)["who"]) == (200, None)


def test_a_browser_shows_the_board_below_a_path_and_complains_of_nothing(web: Web, browser: Browser) -> None:
    if web.kind != "nginx at /gpus/":
        return
    login: HttpCredentials = {"username": "alice", "password": booking_servers.PASSWORD}
    context = browser.new_context(http_credentials=login, ignore_https_errors=True)
    complaints: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("response", lambda got: complaints.append(f"{got.status} {got.url}") if got.status >= 400 else None)
        for name in ("", "hosts/gpu00.html", "users.html", "bookings.html", "reports/2026-W45.html"):
            page.goto(f"{web.url}{name}")
        page.goto(web.url)
        assert page.locator("text=gpu00").count()
        assert page.evaluate("fetch('live.json').then((got) => got.status)") == 200
    finally:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("start", [web_servers.caddy_gpumonitor, web_servers.nginx_gpumonitor])
def test_what_gpumonitor_says_of_web_servers_works_with_gpuboard_serve(stage: Stage, start: Start) -> None:
    with start(stage) as web:
        board = web.ask("/")
        assert (board.status, b"gpu00" in board.body) == (200, True)
        linked = re.findall(rb'(?:href|src)="((?:assets|hosts)/[^"]+)"', board.body)
        assert len(linked) > 3
        for link in {link.decode() for link in linked}:
            assert web.ask(f"/{link}").status == 200, link
        assert web.ask("/live.json").status == 200
        redirect = web.ask("")
        assert redirect.status in {301, 302}
        assert redirect.header("Location").endswith("/gpus/")
