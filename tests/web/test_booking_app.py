"""The desk on the web: who is believed to be whom, what another page cannot do, and what each refusal says."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from site_builder.bookings.tokens import TokenStore
from site_builder.config import schema
from site_builder.core import locks
from site_builder.core.locks import LockedFileError
from site_builder.core.model import BookingPolicy, PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.web import booking_app, identity
from site_builder.web.static_files import SECURITY_HEADERS
from tests.support.board_fixture import Lab, soon
from tests.support.booking_app_fixtures import BOOK, LOGIN, NOW, Web
from tests.support.command_line import run_gpuboard

ROOT = Path(__file__).parents[2]


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


# What is answered


def test_somebody_whom_the_server_knows_books_and_it_stands_in_the_file_and_the_log(web: Web) -> None:
    got = web.post(**LOGIN)
    assert got.status == 200
    assert got.said["said"].startswith("atlas:0 for alice from now until ")
    assert got.said["bookings"][0]["where"] == "atlas:0"
    assert web.names() == ["alice"]
    assert [(line["who"], line["via"]) for line in web.log()] == [("alice", "web, server")]


def test_a_check_says_what_would_be_done_and_does_nothing(web: Web) -> None:
    assert web.post({**BOOK, "check": True}, **LOGIN).said["said"].startswith("atlas:0 for alice")
    assert web.names() == []


def test_what_is_booked_is_refused_with_409_and_released_with_200(web: Web) -> None:
    booking = web.post(**LOGIN).said["bookings"][0]["id"]
    refused = web.post(AUTH_TYPE="Basic", REMOTE_USER="bob")
    assert (refused.status, refused.error.startswith("atlas:0 is booked by alice")) == (409, True)
    theirs = web.post({"do": "release", "id": booking}, AUTH_TYPE="Basic", REMOTE_USER="bob")
    assert (theirs.status, theirs.error) == (
        403,
        f"booking {booking} is alice's: only they or an admin may change it",
    )
    assert web.post({"do": "release", "id": booking}, **LOGIN).status == 200
    assert web.names() == []


def test_the_list_names_the_caller_how_they_were_identified_and_the_zone(web: Web) -> None:
    web.post(**LOGIN)
    answer = web.get(**LOGIN).said
    assert {key: answer[key] for key in answer if key != "bookings"} == {
        "who": "alice",
        "how": "server",
        "admin": False,
        "zone": "UTC",
        "viewer_zone": False,
        "for_others": True,
        "watches": [],
    }
    assert [(booking["where"], booking["mine"]) for booking in answer["bookings"]] == [("atlas:0", True)]


def test_a_list_is_for_everybody_who_can_read_the_board(web: Web) -> None:
    web.post(**LOGIN)
    answer = web.get("host=atlas&x=1").said
    assert (answer["who"], answer["how"]) == (None, None)
    assert [(booking["name"], booking["mine"]) for booking in answer["bookings"]] == [("alice", False)]
    assert web.get("host=zeus").said["bookings"] == []


def test_where_users_are_hidden_only_ones_own_bookings_have_a_name(web: Web) -> None:
    web.set(shown=PrivacySettings(users=False), admins=frozenset({"root"}))
    web.post({**BOOK, "comment": "secret"}, **LOGIN)
    for environ, seen in (
        ({}, False),
        ({"AUTH_TYPE": "Basic", "REMOTE_USER": "bob"}, False),
        (LOGIN, True),
        ({"AUTH_TYPE": "Basic", "REMOTE_USER": "Root"}, True),
    ):
        (booking,) = web.get(**environ).said["bookings"]
        assert (booking["name"] == "alice", booking["comment"] == "secret", booking["id"] is not None) == (
            seen,
            seen,
            seen,
        )


def test_where_users_are_hidden_who_booked_for_another_is_hidden_too(web: Web) -> None:
    web.set(shown=PrivacySettings(users=False))
    web.post({**BOOK, "name": "bob"}, **LOGIN)
    for name, by in (("alice", "alice"), ("bob", "alice"), ("carol", None)):
        (booking,) = web.get(AUTH_TYPE="Basic", REMOTE_USER=name).said["bookings"]
        assert booking["by"] == by
    assert "alice" not in json.dumps(web.get().said)


def test_a_query_of_many_fields_is_no_failure_of_ours(web: Web) -> None:
    got = web.get("&".join(["a=1"] * 21))
    assert (got.status, web.told) == (400, [])
    assert got.error == "too many fields in the address: only ?host=NAME and ?person=NAME are allowed"
    assert web.get("&".join(["a=1"] * 20)).status == 200


def test_where_users_are_hidden_no_refusal_names_one(web: Web) -> None:
    web.set(shown=PrivacySettings(users=False))
    booking = web.post(**LOGIN).said["bookings"][0]["id"]
    for request in (BOOK, {"do": "release", "id": booking}, {"do": "release", "gpus": ["atlas:0"]}):
        got = web.post(request, AUTH_TYPE="Basic", REMOTE_USER="bob")
        assert got.status in (403, 409)
        assert "alice" not in got.error


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "X"])
def test_nothing_but_get_and_post_is_answered(web: Web, method: str) -> None:
    got = web.ask(method, **LOGIN)
    assert (got.status, got.headers["Allow"]) == (405, "GET, POST")
    assert got.said == ({} if method == "HEAD" else {"error": "only GET and POST are allowed here"})


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_every_answer_has_the_security_headers_is_kept_nowhere_and_shared_with_no_other_page(
    web: Web, method: str
) -> None:
    headers = web.ask(method, HTTP_ORIGIN="https://evil.example").headers
    assert dict(SECURITY_HEADERS).items() <= headers.items()
    assert (headers["Cache-Control"], headers["Content-Type"]) == ("no-store", "application/json")
    assert [name for name in headers if name.lower().startswith("access-control")] == []


# Who is whom


def test_a_name_without_a_login_at_the_server_is_not_believed(web: Web) -> None:
    got = web.post(REMOTE_USER="alice")
    assert (got.status, got.headers["WWW-Authenticate"]) == (401, 'Bearer realm="gpuboard"')
    assert "or use a token, which the admin creates with `gpuboard token NAME`" in got.error


@pytest.mark.parametrize(
    "header", ["HTTP_REMOTE_USER", "HTTP_X_REMOTE_USER", "HTTP_X_FORWARDED_USER", "HTTP_AUTH_TYPE"]
)
def test_no_header_says_who_somebody_is(web: Web, header: str) -> None:
    assert web.get(**{header: "alice"}).said["who"] is None
    assert web.post(**{header: "alice"}).status == 401


def test_the_proxy_says_who_somebody_is_and_nobody_else(web: Web) -> None:
    web.set(proxy="192.0.2.1", proxy_header="X-Login")
    assert web.get(HTTP_X_LOGIN="alice").said["how"] is None
    answer = web.get(HTTP_X_LOGIN="alice", REMOTE_ADDR="192.0.2.1").said
    assert (answer["who"], answer["how"]) == ("alice", "proxy")
    assert web.get(HTTP_X_LOGIN="alice", REMOTE_ADDR="::ffff:192.0.2.1").said["who"] == "alice"
    assert web.get(HTTP_X_LOGIN="", REMOTE_ADDR="192.0.2.1").said["who"] is None


def test_a_proxy_that_adds_to_what_somebody_sent_is_refused(web: Web) -> None:
    web.set(proxy="192.0.2.1")
    got = web.get(HTTP_X_REMOTE_USER="root, alice", REMOTE_ADDR="192.0.2.1")
    assert got.status == 403
    assert got.error == "the proxy sends several names in X-Remote-User: it must set this header, not add to it"


@pytest.mark.parametrize("proxy", [None, "", "::::", "1"])
def test_without_a_proxy_nobody_is_the_proxy(web: Web, proxy: str | None) -> None:
    web.set(proxy=proxy)
    for address in ("", "::::", "unix:", None):
        assert web.get(HTTP_X_REMOTE_USER="alice", REMOTE_ADDR=address).said["who"] is None


def test_admins_are_known_by_their_login_in_any_case_and_never_by_their_own_word(web: Web) -> None:
    web.set(admins=frozenset({"root"}), is_open=True)
    assert web.get(AUTH_TYPE="Basic", REMOTE_USER="Root").said["admin"] is True
    web.set(admins=frozenset({"root"}), is_open=True, max_gpus=1)
    request = {"do": "book", "gpus": ["atlas:0,1"], "for": "1h", "name": "root"}
    assert "this would make 2" in web.post(request).error
    assert web.post(request, AUTH_TYPE="Basic", REMOTE_USER="root").status == 200


def test_a_token_makes_nobody_an_admin_who_is_none(web: Web) -> None:
    web.set(admins=frozenset({"root"}))
    tokens = TokenStore(web.lab.state)
    booking = web.post(**LOGIN).said["bookings"][0]["id"]
    for name, admin, status in (("bob", False, 403), ("Root", True, 200)):
        bearer = {"HTTP_AUTHORIZATION": f"Bearer {tokens.create_token(name, NOW)}"}
        assert web.get(**bearer).said["admin"] is admin
        assert web.post({"do": "release", "id": booking}, **bearer).status == status


KELVIN = "\u212a"  # in lower case, a k as any other


@pytest.mark.parametrize("name", [f"mi{KELVIN}e", "al\u200bice", "al\u00adice", "\uff41lice", "\ufb01ona", "zoe\u0308"])
def test_a_name_that_only_looks_like_anothers_is_refused(web: Web, name: str) -> None:
    web.set(admins=frozenset({"mike"}))
    for environ in ({"AUTH_TYPE": "Basic", "REMOTE_USER": name.encode().decode("latin-1")},):
        got = web.get(**environ)
        assert got.status == web.post(**environ).status == 403
        assert got.error == "this name cannot be used: it has invisible or look-alike characters"
    web.set(is_open=True)
    assert web.post({**BOOK, "name": name}).status == 403
    assert web.names() == []


def test_only_the_case_of_ascii_letters_makes_no_difference_to_a_login() -> None:
    people = PeopleDirectory({})
    assert people.resolve_person("Mike") == people.resolve_person(" mike ") == "mike"
    assert people.resolve_person(f"mi{KELVIN}e") != "mike"
    assert people.resolve_person("ZO\xcb") != people.resolve_person("zo\xeb")
    aliases = PeopleDirectory({"mike": "Michael", "zo\xeb": "Zo\xeb K.", "zo\xeb k.": "Zo\xeb K."})
    assert aliases.display_name("ZO\xcb") == "Zo\xeb K."
    assert aliases.resolve_person("ZO\xcb") == aliases.resolve_person("zo\xeb K.")
    assert aliases.display_name(f"mi{KELVIN}e") == f"mi{KELVIN}e"
    assert schema.parse_logins_setting(f"Root,mi{KELVIN}e") == {"root", f"mi{KELVIN}e"}
    assert identity.build_web_caller(
        "Root", "server", BookingPolicy(admins=schema.parse_logins_setting("ROOT"))
    ).user.is_admin


def test_a_token_is_revoked_by_its_own_name_alone(web: Web) -> None:
    tokens = TokenStore(web.lab.state)
    tokens.create_token("mike", NOW)
    assert (tokens.revoke_tokens(f"mi{KELVIN}e"), tokens.revoke_tokens("MIKE")) == (0, 1)


def test_a_realm_is_a_part_of_the_name_for_elsewhere_somebody_else_may_have_the_same(web: Web) -> None:
    web.set(admins=frozenset({"root"}))
    for name in ("root@EVIL", "EVIL\\root"):
        answer = web.get(AUTH_TYPE="Negotiate", REMOTE_USER=name).said
        assert (answer["who"], answer["admin"]) == (name, False)


def test_a_name_beyond_ascii_is_read_as_it_was_meant(web: Web) -> None:
    assert web.get(AUTH_TYPE="Basic", REMOTE_USER="zoë".encode().decode("latin-1")).said["who"] == "zoë"
    assert web.get(AUTH_TYPE="Basic", REMOTE_USER="zo\xeb").said["who"] == "zoë"


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a" * 81, "a  b", "a\tb", "a\u202eb".encode().decode("latin-1")])
def test_a_name_that_would_have_to_be_changed_is_refused(web: Web, name: str) -> None:
    got = web.post(AUTH_TYPE="Basic", REMOTE_USER=name)
    assert (got.status, web.names()) == (403, [])
    assert got.error == "this name cannot be used: it must be one line of at most 80 characters"


# Tokens


def test_a_token_says_who_somebody_is_until_it_is_revoked(web: Web) -> None:
    tokens = TokenStore(web.lab.state)
    mine, bobs_token = tokens.create_token("alice", NOW), tokens.create_token("bob", NOW)
    assert len({mine, bobs_token, tokens.create_token("alice", NOW)}) == 3
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {mine}"}
    assert (web.get(**bearer).said["who"], web.get(**bearer).said["how"]) == ("alice", "token")
    assert web.post(**bearer).status == 200
    assert web.log()[0]["via"] == "web, token"
    assert (tokens.revoke_tokens("Alice"), tokens.revoke_tokens("alice")) == (2, 0)
    assert web.post(**bearer).status == 401
    assert web.get(HTTP_AUTHORIZATION=f"bearer  {bobs_token}").said["who"] == "bob"


def test_only_a_private_hash_of_a_token_is_stored(web: Web) -> None:
    token = TokenStore(web.lab.state).create_token("alice", NOW)
    path = web.lab.state / "tokens.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.partition("_")[2] not in path.read_text()
    assert len(token) > 43


@pytest.mark.parametrize("token", ["", "gpuboard_", "x" * 5000, "\xff", "é"])
@pytest.mark.parametrize("open_desk", [False, True])
def test_a_wrong_token_is_refused_even_where_none_is_needed(web: Web, token: str, open_desk: bool) -> None:
    web.set(is_open=open_desk)
    TokenStore(web.lab.state).create_token("alice", NOW)
    for got in (
        web.post({**BOOK, "name": "a"}, HTTP_AUTHORIZATION=f"Bearer {token}"),
        web.get(HTTP_AUTHORIZATION="Bearer"),
    ):
        assert got.status == 401
        assert got.error == "unknown or revoked token: ask the admin for a new one"
        assert "WWW-Authenticate" in got.headers
    assert web.names() == []


def test_another_kind_of_authorization_is_the_servers_business(web: Web) -> None:
    assert web.get(HTTP_AUTHORIZATION="Basic YWxpY2U6eA==").said["who"] is None


def test_the_word_of_the_server_counts_more_than_a_token(web: Web) -> None:
    token = TokenStore(web.lab.state).create_token("bob", NOW)
    assert web.get(HTTP_AUTHORIZATION=f"Bearer {token}", **LOGIN).said["who"] == "alice"


def test_a_damaged_list_of_tokens_is_reported_and_never_written_over(web: Web) -> None:
    path = web.lab.state / "tokens.json"
    path.write_text("[{]")
    got = web.get(HTTP_AUTHORIZATION="Bearer x")
    assert (got.status, got.headers["Retry-After"]) == (503, "10")
    assert got.error == "state/tokens.json is damaged: repair it, or remove it and create all tokens again"
    assert web.told == [f"{path} is damaged: repair it, or remove it and create all tokens again"]
    with pytest.raises(LockedFileError):
        TokenStore(web.lab.state).create_token("alice", NOW)
    assert path.read_text() == "[{]"


def test_tokens_made_at_the_same_time_all_count(web: Web) -> None:
    tokens = TokenStore(web.lab.state)
    threads = [threading.Thread(target=tokens.create_token, args=(f"user{number}", NOW)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {thread.name for thread in tokens.list_tokens()} == {f"user{number}" for number in range(12)}


# An open desk


def test_an_open_board_believes_the_name_that_is_given(web: Web) -> None:
    web.set(is_open=True)
    assert web.get().said["how"] == "open"
    booking = web.post({**BOOK, "name": "carol"}).said["bookings"][0]
    assert (booking["name"], booking["by"]) == ("carol", None)
    assert web.post({"do": "change", "id": booking["id"], "name": "dave", "as": "erin"}).status == 200
    assert web.post({"do": "undo", "as": "erin"}).status == 200
    assert web.names() == ["carol"]
    assert web.post({"do": "release", "id": booking["id"], "as": "frank"}).status == 200
    assert [line["who"] for line in web.log()] == ["carol", "erin", "erin", "frank"]
    assert {line["via"] for line in web.log()} == {"web, open"}


@pytest.mark.parametrize(
    "request_",
    [
        BOOK,
        {**BOOK, "name": " "},
        {**BOOK, "name": 7},
        {"do": "undo"},
        {"do": "release", "gpus": ["atlas:1"]},
        {"do": "release", "id": "b1"},
        {"do": "release", "id": "b1", "as": " "},
        {"do": "release", "id": "b1", "check": True},
        {"do": "change", "id": "b1", "comment": "mine now"},
        {"do": "change", "id": "b1", "name": "dave"},
    ],
)
def test_on_an_open_board_nobody_is_nobody(web: Web, request_: Mapping[str, object]) -> None:
    web.set(is_open=True)
    web.lab.book({"atlas": {"1": {"name": "bob", "date": "2031-01-01", "id": "b1"}}})
    got = web.post(request_)
    assert (got.status, got.error) == (400, "no name: give `name`, or `as` for a request that books nothing")
    assert web.names() == ["bob"]


def test_whom_we_know_cannot_say_to_be_another(web: Web) -> None:
    assert web.post({**BOOK, "as": "root"}, **LOGIN).error == "book does not take `as`"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("web:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("localhost", 200),
        ("gpus.lan", 200),
        ("rebound.example:8080", 403),
        ("127.0.0.1.example", 403),
        ("[", 200),
    ],
)
def test_on_an_open_board_no_page_elsewhere_books_by_a_name_that_leads_here(web: Web, host: str, status: int) -> None:
    web.set(is_open=True)
    got = web.post({**BOOK, "name": "carol"}, HTTP_HOST=host)
    assert got.status == status
    if status == 403:
        assert got.error == "the board does not know this address as its own: the admin must set GPUBOARD_URL to it"
        web.set(is_open=True, url=f"https://{host.partition(':')[0]}/gpus/")
        assert web.post({**BOOK, "name": "carol"}, HTTP_HOST=host).status == 200


# When something is wrong here


def test_a_file_that_cannot_be_read_is_reported_without_our_folders_and_once_in_the_log(web: Web) -> None:
    web.lab.book("{")
    for got in (web.get(), web.post(**LOGIN), web.get()):
        assert (got.status, got.headers["Retry-After"]) == (503, "10")
        assert got.error.startswith("data/comments.json cannot be read and was not changed: line 1")
        assert str(web.lab.data) not in got.error
    assert [str(web.lab.data / "comments.json") in log_line for log_line in web.told] == [True]
    assert (web.lab.data / "comments.json").read_text() == "{"


def test_what_nobody_foresaw_is_reported_to_the_admin_once_and_to_nobody_else(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        message = "secret"
        raise ZeroDivisionError(message)

    monkeypatch.setattr("site_builder.bookings.service.handle_service_request", fail)
    for _ in range(3):
        got = web.post(**LOGIN)
        assert (got.status, got.error) == (
            500,
            "internal error: the server's log has the reason for the admin",
        )
    assert web.told == ["a booking failed: ZeroDivisionError: secret; this is a bug"]


def test_without_a_state_folder_of_ours_nothing_is_booked_and_the_reason_is_shown(web: Web) -> None:
    web.lab.state.rmdir()
    web.lab.state.write_text("")
    got = web.post(**LOGIN)
    assert (got.status, web.names()) == (503, [])
    assert got.error.endswith("its folder must belong to the user who runs this")


def test_somebody_who_holds_the_count_for_ever_is_not_waited_for(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCK_TIMEOUT_S", 0.05)
    with locks.hold_file_lock(web.lab.state / "attempts.json"):
        got = web.post(**LOGIN)
    assert (got.status, got.error) == (503, "another process has been writing state/attempts.json for 0 s: try again")


# The command, the board, and the settings of a process


def test_the_command_makes_a_token_that_counts_lists_whose_there_are_and_revokes_them(web: Web) -> None:
    folder = web.lab.state.parent
    made = run_gpuboard(folder, "token", "alice")
    assert (made.returncode, made.stderr) == (
        0,
        "gpuboard: alice sets GPUBOARD_TOKEN to this token; it is not shown again\n",
    )
    assert web.get(HTTP_AUTHORIZATION=f"Bearer {made.stdout.strip()}").said["who"] == "alice"
    listed = run_gpuboard(folder, "token", "--list").stdout
    assert listed.startswith("alice  20")
    assert [
        token_entry["name"] for token_entry in json.loads(run_gpuboard(folder, "token", "--list", "--json").stdout)
    ] == ["alice"]
    assert made.stdout.strip() not in listed + (web.lab.state / "tokens.json").read_text()
    gone = run_gpuboard(folder, "token", "--revoke", "alice")
    assert (gone.returncode, gone.stderr) == (0, "gpuboard: revoked 1 token of alice\n")
    again = run_gpuboard(folder, "token", "--revoke", "alice")
    assert (again.returncode, again.stderr) == (1, "gpuboard: alice has no token\n")


@pytest.mark.parametrize("words", [(), ("alice", "--list"), ("--list", "--revoke", "bob")])
def test_the_command_does_one_thing_at_a_time(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_gpuboard(tmp_path, "token", *words)
    assert done.returncode == 2
    assert "use either NAME, --list or --revoke NAME" in done.stderr


def test_the_command_refuses_a_name_under_which_nobody_can_book(tmp_path: Path) -> None:
    done = run_gpuboard(tmp_path, "token", "a\nb")
    assert (done.returncode, done.stdout) == (2, "")
    assert "this name cannot be used" in done.stderr


def test_the_board_and_its_json_say_where_to_book(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    pages = [lab.www / "index.html", lab.www / "hosts/atlas.html"]
    lab.build()
    assert (lab.status()["book"], ["data-book" in page.read_text() for page in pages]) == (None, [False, False])
    lab.build(1, booking_policy=BookingPolicy(url="book"))
    assert lab.status()["book"] == "book"
    assert [f' data-book="{where}">' in page.read_text() for where, page in zip(("book", "../book"), pages)] == [
        True,
        True,
    ]
    lab.build(2, booking_policy=BookingPolicy(url="/cgi-bin/book.cgi"))
    assert lab.status()["book"] == "/cgi-bin/book.cgi"
    assert [' data-book="/cgi-bin/book.cgi">' in page.read_text() for page in pages] == [True, True]


def test_settings_that_are_wrong_are_reported_to_the_admin_alone_and_read_again(
    web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, folder in (("DATA", web.lab.data), ("STATE", web.lab.state), ("WWW", web.lab.www)):
        monkeypatch.setenv(f"GPUBOARD_{name}", str(folder))
    monkeypatch.setenv("GPUBOARD_CONF", "/dev/null")
    monkeypatch.setenv("GPUBOARD_BOOK_OPEN", "maybe")
    booking_app.load_booking_application.cache_clear()
    web.app = booking_app.application  # type: ignore[assignment] # it is called in the same way
    got = web.get()
    assert (got.status, got.error) == (503, booking_app.BAD_SETTINGS_MESSAGE)
    assert "GPUBOARD_BOOK_OPEN is 'maybe'" in capsys.readouterr().err
    monkeypatch.setenv("GPUBOARD_BOOK_OPEN", "yes")
    assert web.get().said["how"] == "open"
    web.lab.book({"atlas": {"0": {"name": "bob", "date": soon(3600)}}})
    assert [booking["name"] for booking in web.get().said["bookings"]] == ["bob"]
