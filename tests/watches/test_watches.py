"""Who waits for GPUs: data/watches.json, which anybody may have written, the desk that writes it, and whom is told."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts.model import AlertRule, AlertState, Condition
from site_builder.board.builder import Builder
from site_builder.board.host_pipeline import BuiltHost
from site_builder.bookings import api
from site_builder.bookings import store as booking_store
from site_builder.bookings.gpu_selection import UnclearRequestError
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.core.clock import Now
from site_builder.core.locks import StorageError
from site_builder.core.model import AlertSettings, BookingPolicy, PrivacySettings
from site_builder.watches import parser as watch_parser
from site_builder.watches import service as watch_service
from site_builder.watches.build import HOLD_S, WatchConditions
from site_builder.watches.parser import Watch, WatchRequest
from site_builder.watches.store import WatchStore
from tests.support.board_fixture import Lab, gpu, process
from tests.support.booking_fixtures import lab_of
from tests.support.receivers import Post, mail_server
from tests.support.sender_fixtures import waits_for

ALICE, BOB = BookingUser("alice", via="web, token"), BookingUser("bob", via="web, token")
TELLS = AlertSettings(mail_url="mailto://127.0.0.1:1", mail_domain="lab.example.org")
MADE = 1_790_000_000
ENTRY: dict[str, Any] = {
    "id": "k7m2xp",
    "name": "alice",
    "when": "2 A100 free on one host",
    "via": "mail",
    "made": "2026-11-16T10:00:00+00:00",
    "until": "2026-11-20T18:00:00+01:00",
}
RULE = AlertRule("watch", to=("person",))


def written(*several: object) -> bytes:
    return json.dumps(several).encode()


# The file


def test_a_watch_is_read_as_it_was_written() -> None:
    one = Watch("k7m2xp", "alice", WatchRequest(2, "A100", 40, ("atlas",), 7200), MADE, MADE + 3600, "mail")
    several = (one, one._replace(id="b", via="", request=WatchRequest(9, is_on_one_host=False)))
    found = watch_parser.parse_watches(watch_parser.serialize_watches(map(watch_parser.watch_to_entry, several)))
    assert (found.rows, found.problems) == (several, ())
    assert (
        watch_parser.parse_watches(watch_parser.serialize_watches([])).rows
        == watch_parser.parse_watches(b"").rows
        == watch_parser.parse_watches(b" \n").rows
        == ()
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{}", "it must be a list of watches: [ \u2026 ]"),
        (b"[", "line 1, column 2: a value should stand here"),
        (b'["\xff"]', "it is no JSON in UTF-8, or nested too deeply"),
        (b"[" * 100_000, "it is no JSON in UTF-8, or nested too deeply"),
        (b"[1" + b"0" * 10_000 + b"]", "it is no JSON in UTF-8, or nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content: bytes, why: str) -> None:
    found = watch_parser.parse_watches(content)
    if found.is_complete:  # a Python before 3.11 reads a number of any length
        assert found.rows == ()
    else:
        assert found.problems == (why,)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": "../x"}, "it has no id of letters and digits"),
        ({"id": 7}, "it has no id of letters and digits"),
        ({"name": ""}, "it names nobody"),
        ({"name": "al\nice"}, "it names nobody"),
        ({"name": " alice"}, "it names nobody"),
        ({"name": "a" * 81}, "it names nobody"),
        ({"name": ["alice"]}, "it names nobody"),
        ({"via": "mailto://x:y@evil.example"}, "its way is no word such as mail"),
        ({"via": {"a": 1}}, "its way is no word such as mail"),
        ({"until": "tomorrow"}, "it does not say since when and until when"),
        ({"until": "2026-11-20 18:00"}, "it does not say since when and until when"),
        ({"made": None}, "it does not say since when and until when"),
        ({"when": None}, "it does not say what for"),
        ({"when": "\x1b[31mred"}, '"?[31mred" is not understood at "[31mred": write "2 A100 free on one host"'),
    ],
)
def test_one_bad_entry_costs_that_entry(change: dict[str, object], why: str) -> None:
    found = watch_parser.parse_watches(written({**ENTRY, **change}, {**ENTRY, "id": "good", "unknown": 1}))
    assert [one.id for one in found.rows] == ["good"]
    assert found.problems[0].startswith(f"watch 1: {why}")


def test_nobody_waits_longer_than_a_month_and_an_id_counts_once() -> None:
    found = watch_parser.parse_watches(written({**ENTRY, "until": "2200-12-31T00:00:00+00:00"}, ENTRY, 7))
    assert [one.until - one.created_at for one in found.rows] == [30 * 86400]
    assert found.problems == (
        'watch 2: there are two with the id "k7m2xp"; the first counts',
        "watch 3: it is no object with id, name and when",
    )
    many = watch_parser.parse_watches(written(*({**ENTRY, "id": f"x{number}"} for number in range(1001))))
    assert (len(many.rows), many.problems) == (1000, ("there are more than 1000 watches; the rest does not count",))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENTRY, "x"]), inner, max_size=6),
    max_leaves=8,
)


@given(st.binary(max_size=200) | VALUES.map(lambda one: json.dumps(one).encode()) | VALUES.map(written))
def test_whatever_stands_there_is_read_or_told(content: bytes) -> None:
    found = watch_parser.parse_watches(content)
    assert found.is_complete or found.problems


# The file as it is written


def test_it_is_written_with_the_mode_of_the_bookings_and_then_its_own(tmp_path: Path) -> None:
    (tmp_path / "comments.json").write_text("{}")
    (tmp_path / "comments.json").chmod(0o664)
    one = WatchStore(tmp_path)
    one.change(lambda entries: [*entries, ENTRY])
    path = tmp_path / "watches.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    path.chmod(0o660)
    one.change(lambda entries: [*entries, "something of somebody else's"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert json.loads(path.read_bytes()) == [ENTRY, "something of somebody else's"]
    assert [one for one in tmp_path.iterdir() if ".new" in one.name] == []


def test_what_somebody_writes_by_hand_meanwhile_is_not_lost(tmp_path: Path) -> None:
    seen: list[int] = []

    def make(entries: list[object]) -> list[object]:
        seen.append(len(entries))
        if len(seen) == 1:
            (tmp_path / "watches.json").write_bytes(written(ENTRY))
        return [*entries, "mine"]

    WatchStore(tmp_path).change(make)
    assert seen == [0, 1]
    assert json.loads((tmp_path / "watches.json").read_bytes()) == [ENTRY, "mine"]


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    def work(number: int) -> None:
        WatchStore(tmp_path).change(lambda entries: [*entries, number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(json.loads((tmp_path / "watches.json").read_bytes())) == list(range(12))


def test_a_broken_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "watches.json"
    path.write_text("[{")
    with pytest.raises(
        StorageError, match=r"watches\.json cannot be read: line 1, column 3: .*; correct it, or remove it"
    ):
        WatchStore(tmp_path).change(lambda entries: [*entries, 1])
    assert path.read_text() == "[{"
    path.unlink()
    (tmp_path / "other").write_text("[]")
    path.symlink_to("other")
    with pytest.raises(StorageError, match="it is a link, and links are not followed"):
        WatchStore(tmp_path).change(lambda entries: [*entries, 1])
    assert WatchStore(tmp_path).read_local_or_empty() == b""


# At the desk


def desk_of(lab: Lab, **changes: Any) -> BookingService:  # noqa: ANN401
    return BookingService(lab.settings(**{"alerts": TELLS, **changes}))


def watch(desk: BookingService, who: BookingUser, when: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return api.handle_request(desk, {"do": "watch", "when": when, **more}, who)


def ids(desk: BookingService, who: BookingUser) -> list[str]:
    return [one["id"] for one in api.list_bookings(desk, who)["watches"]]


def test_what_was_understood_is_said_and_kept(tmp_path: Path) -> None:
    desk = desk_of(lab_of(tmp_path))
    asked = watch(desk, ALICE, "two h100s on the same machine for 4h", via="Mail", check=True)
    assert asked["said"].startswith(
        "alice is told by mail when there are 2 H100 free on one host for 4 h or longer, until "
    )
    assert (asked["watches"][0]["id"], ids(desk, ALICE)) == (None, [])
    made = watch(desk, ALICE, "3 H100", until="2d")["watches"][0]
    assert (made["name"], made["when"], made["via"], made["mine"]) == ("alice", "3 H100 free on one host", None, True)
    length = datetime.fromisoformat(made["until"]) - datetime.now(timezone.utc)
    assert timedelta(days=1.99) < length <= timedelta(days=2)
    assert ids(desk, ALICE) == [made["id"]]
    assert ids(desk, BOB) == []
    assert ids(desk, BookingUser("root", is_admin=True)) == [made["id"]]


@pytest.mark.parametrize(
    ("when", "note"),
    [
        ("2 H100", "that is so already: zeus:0,1"),
        ("1 V100", "no GPU of the board is called V100 now; there are A100 80 GB, H100 80 GB"),
        ("5 A100", "no host of the board has 5 GPUs now; the most that one has is 4"),
    ],
)
def test_what_to_know_beside_it_is_said(tmp_path: Path, when: str, note: str) -> None:
    assert watch(desk_of(lab_of(tmp_path)), ALICE, when, check=True)["warnings"] == [note]


def test_whoever_cannot_be_told_is_told_so_at_once(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    contacts = tmp_path / "contacts.csv"
    contacts.write_text("alice,slack:U0123ABCD\n")
    contacts.chmod(0o600)
    desk = desk_of(lab, alerts=AlertSettings(mail_url="mailto://127.0.0.1:1", contacts_file=str(contacts)))
    assert watch(desk, ALICE, "9 V100", via="mail")["warnings"][1:] == [
        "the board knows no way by mail to alice, but slack"
    ]
    assert watch(desk, BOB, "9 V100")["warnings"][1:] == [
        "the board knows no way to tell bob: its admin can add one to the contacts (GPUBOARD_CONTACTS)"
    ]


def test_where_the_admin_turned_it_off_whoever_asks_is_told_so(tmp_path: Path) -> None:
    rules = tmp_path / "alerts.conf"
    rules.write_text("[watch]\non = no\n")
    desk = desk_of(lab_of(tmp_path), alerts=AlertSettings(mail_url="mailto://127.0.0.1:1", rules_file=str(rules)))
    assert watch(desk, ALICE, "9 V100")["warnings"][1:] == [watch_service.RULE_OFF_MESSAGE]
    rules.write_text("[watch]\nto = none\n")
    assert watch(desk, BOB, "9 V100")["warnings"][1:] == [watch_service.RULE_OFF_MESSAGE]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"when": "hello"}, '"hello" is not understood at "hello": write "2 A100 free on one host"'),
        ({"when": ""}, 'for what? Give `when`, such as "2 A100 free on one host"'),
        ({"when": ["GPU"]}, "`when` must be a text"),
        ({"when": "GPU", "via": "mailto://me@evil.example"}, "`via` is longer than 20 letters"),
        ({"when": "GPU", "via": "a:b"}, '"a:b" is no way to tell somebody'),
        ({"when": "GPU", "until": "2020-01-01 10:00"}, '"2020-01-01 10:00" is over already'),
        ({"when": "GPU", "until": "8w"}, "nobody is told after more than 30 days"),
        ({"when": "GPU", "name": "bob"}, "watch knows no `name`"),
    ],
)
def test_what_cannot_be_understood_is_refused(tmp_path: Path, request_: dict[str, object], why: str) -> None:
    with pytest.raises(UnclearRequestError) as found:
        api.handle_request(desk_of(lab_of(tmp_path)), {"do": "watch", **request_}, ALICE)
    assert str(found.value).startswith(why)


def test_what_may_not_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    desk = desk_of(lab_of(tmp_path))
    with pytest.raises(BookingRefusedError, match="there is no host atlass; is it atlas"):
        watch(desk, ALICE, "1 GPU on atlass")
    with pytest.raises(BookingRefusedError, match="the board looks no further ahead than 1 d: ask for a shorter time"):
        watch(desk, ALICE, "1 GPU for 2d")
    with pytest.raises(BookingRefusedError, match="this board sends no mail and no messages"):
        watch(desk_of(Lab(tmp_path / "silent"), alerts=AlertSettings()), ALICE, "1 GPU")
    for number in range(1, 21):
        watch(desk, ALICE, f"{number} GPUs anywhere")
    for again in (False, True):
        with pytest.raises(BookingRefusedError, match=r"you wait for that already \(watch [a-z0-9]{6}\)"):
            watch(desk, ALICE, "3 gpus wherever", check=again)
    with pytest.raises(BookingRefusedError, match="you wait for 20 things already, and 20 are the most"):
        watch(desk, ALICE, "21 GPUs anywhere")
    assert watch(desk, BOB, "3 GPUs anywhere")["watches"]


def test_only_one_s_own_can_be_ended(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    desk = desk_of(lab)
    made = watch(desk, ALICE, "9 GPUs")["watches"][0]["id"]

    def end(who: BookingUser, one: str = made, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        return api.handle_request(desk, {"do": "unwatch", "id": one, **more}, who)

    for other in ("", "nobody"):
        with pytest.raises((BookingRefusedError, UnclearRequestError)):
            end(ALICE, other)
    with pytest.raises(
        BookingRefusedError, match=f"there is no watch {made} of yours: `gpuboard notify list` lists them"
    ):
        end(BOB)
    # at an open desk everybody is whom they say, and so sees all, and may end all
    with pytest.raises(BookingForbiddenError, match=f"watch {made} is alice's, and only they or an admin may end it"):
        api.handle_request(desk_of(lab, booking_policy=BookingPolicy(is_open=True)), {"do": "unwatch", "id": made}, BOB)
    assert end(ALICE, check=True)["said"] == "alice is not told of this any more: 9 GPUs free on one host"
    assert ids(desk, ALICE) == [made]
    assert end(BookingUser("carol", is_admin=True))["watches"][0]["id"] == made
    assert ids(desk, ALICE) == []


def test_where_people_are_not_named_an_open_desk_tells_of_nobody(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    rules = BookingPolicy(is_open=True)
    somebody = BookingUser("", via="web, open", is_open=True)
    watch(desk_of(lab), ALICE, "9 GPUs")
    assert len(ids(desk_of(lab, booking_policy=rules), somebody)) == 1
    assert ids(desk_of(lab, booking_policy=rules, privacy=PrivacySettings(users=False)), somebody) == []


# Whom is told


class Watched:
    """A board whose builds are looked at for watches, at moments that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.lab = lab_of(folder)
        self.busy("atlas", 4)
        self.busy("zeus", 2)
        self.desk = desk_of(self.lab)
        self.watches = WatchConditions(self.lab.settings(alerts=TELLS))
        self.now = time.time()

    def busy(self, host: str, count: int, free: tuple[int, ...] = ()) -> None:
        """A host all of whose GPUs are in use but for some."""
        name = "NVIDIA H100 80GB HBM3" if host == "zeus" else "NVIDIA A100-SXM4-80GB"
        rows = [gpu(one, 4 if one in free else 9000, 0, name, f"GPU-{host}-{one}") for one in range(count)]
        busy = [process(one + 9, f"GPU-{host}-{one}") for one in range(count) if one not in free]
        self.lab.host(host, "".join(rows), "".join(busy))

    def cards(self) -> Mapping[str, BuiltHost]:
        builder = Builder(self.lab.settings())
        builder.build(time.time())
        builder.close()
        return builder.pipeline.built_hosts

    def look(self, after: float = 0, rule: AlertRule = RULE, book: AlertState | None = None) -> list[Condition]:
        self.now += after
        found = self.watches.find_conditions(self.cards(), rule, Now(self.now, timezone.utc))
        told = AlertState(reported_once={one.key: MADE for one in found}) if book is None else book
        self.watches.remove_reported(found, told)
        return found

    def left(self) -> list[str]:
        path = self.lab.data / "watches.json"
        return [one["id"] for one in json.loads(path.read_bytes())] if path.exists() else []


@pytest.fixture
def board(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_who_waits_is_told_once_when_it_has_been_so_for_a_while(board: Watched) -> None:
    made = watch(board.desk, ALICE, "2 H100", via="mail")["watches"][0]["id"]
    other = watch(board.desk, BOB, "3 A100")["watches"][0]["id"]
    assert board.look() == []
    board.busy("zeus", 2, (1,))
    assert board.look(60) == []
    board.busy("zeus", 2, (0, 1))
    assert board.look(10) == []
    board.watches = WatchConditions(board.lab.settings(alerts=TELLS))  # the next builder takes up what this one saw
    (found,) = board.look(HOLD_S)
    assert (found.rule, found.host, found.about, found.gpus) == ("watch", "zeus", made, ("0", "1"))
    assert (found.owners, found.people, found.via, found.is_lasting) == (("alice",), ("alice",), "mail", False)
    assert found.what == "zeus:0,1 are free (H100 80 GB); you waited for 2 H100 free on one host"
    assert found.since == int(board.now - HOLD_S)
    assert board.left() == [other]
    assert board.look(10) == []


def test_what_is_so_for_a_moment_only_is_not_told(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    assert board.look() == []
    board.busy("zeus", 2)
    assert board.look(HOLD_S - 5) == []
    board.busy("zeus", 2, (0,))
    assert board.look(10) == []
    assert len(board.look(HOLD_S)) == 1


def test_in_quiet_hours_it_waits_and_is_told_after_them_if_it_is_still_so(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    board.now = board.now // 86400 * 86400 + 3 * 3600
    board.watches.file.read()
    quiet = RULE._replace(quiet_hours=(22 * 60, 7 * 60))
    assert board.look(0, quiet) == []
    assert board.look(HOLD_S, quiet) == []
    assert board.look(1, RULE._replace(on=False)) == []
    assert len(board.left()) == 1
    assert len(board.look(4 * 3600, quiet)) == 1


def test_on_several_hosts_it_says_where_each_is_and_is_the_same_watch_wherever_it_comes_true(board: Watched) -> None:
    watch(board.desk, ALICE, "3 GPUs anywhere")
    board.busy("zeus", 2, (1,))
    board.busy("atlas", 4, (0, 3))
    board.look()
    (found,) = board.look(HOLD_S, book=AlertState())
    assert (found.host, found.gpus) == ("", ())
    assert found.what.startswith(
        "atlas:0,3 and zeus:1 are free (A100 80 GB, H100 80 GB); you waited for 3 GPUs free anywhere"
    )
    assert found.key == found._replace(host="zeus").key
    assert len(board.left()) == 1  # nothing in the book says that it was told


def test_a_watch_that_is_over_is_taken_away_untold(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100", until="1h")
    board.busy("zeus", 2, (0,))
    board.watches.fulfilled_since = {}
    assert board.look(3601) == []
    assert board.left() == []


def test_what_cannot_be_taken_away_is_a_problem_and_a_broken_file_one_too(
    board: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    board.look()
    monkeypatch.setattr(booking_store, "replace_data_file", lambda *_: (_ for _ in ()).throw(StorageError("no room")))
    assert len(board.look(HOLD_S)) == 1
    assert [(one.where, one.what) for one in board.watches.problems] == [
        ("data/watches.json", "watches that are over stay there: no room")
    ]
    monkeypatch.undo()
    (board.lab.data / "watches.json").write_text("[")
    board.look(10, book=AlertState())
    assert [one.what[:40] for one in board.watches.problems] == ["not read: line 1, column 2: a value shou"]


def test_no_build_waits_for_somebody_who_writes(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    board.look()
    with booking_store.hold_data_lock(board.lab.data):
        assert len(board.look(HOLD_S)) == 1
        assert (len(board.left()), board.watches.problems) == (1, [])
    board.look(1)
    assert board.left() == []


def test_of_one_person_no_more_count_than_the_desk_takes(board: Watched) -> None:
    (board.lab.data / "watches.json").write_bytes(
        written(*({**ENTRY, "id": f"x{number}", "when": "1 GPU", **fresh()} for number in range(60)))
    )
    board.busy("zeus", 2, (0,))
    board.look()
    assert len(board.look(HOLD_S)) == 20


def fresh() -> dict[str, str]:
    """Times of a watch that still counts."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    return {"made": now.isoformat(), "until": (now + timedelta(days=1)).isoformat()}


def test_one_mail_comes_however_often_the_board_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_builder.watches.build.HOLD_S", 0)  # who sends goes by the clock of this machine
    board = Watched(tmp_path)
    post = Post()
    with mail_server(post) as port:
        mail = f"mailto://127.0.0.1:{port}?from=board@lab.example.org"
        alerts = AlertSettings(mail_url=mail, mail_domain="lab.example.org")
        settings = board.lab.settings(alerts=alerts, url="https://board.example.org/")
        watch(board.desk, ALICE, "2 H100", via="mail")
        before = (board.lab.data / "watches.json").read_bytes()
        builder = Builder(settings, 10)
        builder.build(time.time())
        board.busy("zeus", 2, (0, 1))
        builder.build(time.time())
        assert board.left() == []
        waits_for(lambda: post.came)
        (board.lab.data / "watches.json").write_bytes(before)  # as somebody does who edits an old copy
        for _ in range(2):
            builder.build(time.time())
        assert board.left() == []
        waits_for(
            lambda: (
                not builder.alert_engine
                or not builder.alert_engine.sender_process
                or builder.alert_engine.sender_process.poll() is not None
            )
        )
        builder.close()
    ((to, told),) = post.came
    assert to == ("alice@lab.example.org",)
    assert told["Subject"] == "alice: zeus:0,1 are free (H100 80 GB)"
    text = told.get_body(("plain",))
    assert text
    assert "zeus:0,1 are free (H100 80 GB); you waited for 2 H100 free on one host." in text.get_content()
    assert "https://board.example.org/hosts/zeus.html" in text.get_content()
