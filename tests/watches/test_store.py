"""data/watches.json, which anybody may have written."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts.model import AlertRule
from site_builder.bookings.transaction import BookingUser
from site_builder.core.locks import LockedFileError
from site_builder.core.model import AlertSettings
from site_builder.watches import store as watch_store
from site_builder.watches.store import Watch, WatchedGpus, WatchStore

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


def written(*entries: object) -> bytes:
    return json.dumps(entries).encode()


# The file


def test_a_watch_is_read_as_it_was_written() -> None:
    first_watch = Watch("k7m2xp", "alice", WatchedGpus(2, "A100", 40, ("atlas",), 7200), MADE, MADE + 3600, "mail")
    watches = (first_watch, first_watch._replace(id="b", via="", request=WatchedGpus(9, is_on_one_host=False)))
    parsed_watches = watch_store.parse_watches(watch_store.serialize_watches(map(watch_store.watch_to_entry, watches)))
    assert (parsed_watches.rows, parsed_watches.problems) == (watches, ())
    assert (
        watch_store.parse_watches(watch_store.serialize_watches([])).rows
        == watch_store.parse_watches(b"").rows
        == watch_store.parse_watches(b" \n").rows
        == ()
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{}", "it must be a list of watches: [ \u2026 ]"),
        (b"[", "line 1, column 2: a value is missing here"),
        (b'["\xff"]', "it is not JSON in UTF-8, or nested too deeply"),
        (b"[" * 100_000, "it is not JSON in UTF-8, or nested too deeply"),
        (b"[1" + b"0" * 10_000 + b"]", "it is not JSON in UTF-8, or nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content: bytes, why: str) -> None:
    parsed_watches = watch_store.parse_watches(content)
    if parsed_watches.is_complete:  # a Python before 3.11 reads a number of any length
        assert parsed_watches.rows == ()
    else:
        assert parsed_watches.problems == (why,)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": "../x"}, "it has no id of letters and digits"),
        ({"id": 7}, "it has no id of letters and digits"),
        ({"name": ""}, "it has no valid name"),
        ({"name": "al\nice"}, "it has no valid name"),
        ({"name": " alice"}, "it has no valid name"),
        ({"name": "a" * 81}, "it has no valid name"),
        ({"name": ["alice"]}, "it has no valid name"),
        ({"via": "mailto://x:y@evil.example"}, "its `via` is not a word such as mail"),
        ({"via": {"a": 1}}, "its `via` is not a word such as mail"),
        ({"until": "tomorrow"}, "it has no valid `made` and `until`"),
        ({"until": "2026-11-20 18:00"}, "it has no valid `made` and `until`"),
        ({"made": None}, "it has no valid `made` and `until`"),
        ({"when": None}, "it has no valid `when`"),
        ({"when": "\x1b[31mred"}, '"?[31mred" is not understood at "[31mred": write "2 A100 free on one host"'),
    ],
)
def test_a_bad_entry_is_ignored(change: dict[str, object], why: str) -> None:
    parsed_watches = watch_store.parse_watches(written({**ENTRY, **change}, {**ENTRY, "id": "good", "unknown": 1}))
    assert [watch_row.id for watch_row in parsed_watches.rows] == ["good"]
    assert parsed_watches.problems[0].startswith(f"watch 1: {why}")


def test_a_watch_lasts_a_month_at_most_and_an_id_counts_once() -> None:
    parsed_watches = watch_store.parse_watches(written({**ENTRY, "until": "2200-12-31T00:00:00+00:00"}, ENTRY, 7))
    assert [watch_row.until - watch_row.created_at for watch_row in parsed_watches.rows] == [30 * 86400]
    assert parsed_watches.problems == (
        'watch 2: two watches have the id "k7m2xp"; the first is used',
        "watch 3: it is not an object with id, name and when",
    )
    many = watch_store.parse_watches(written(*({**ENTRY, "id": f"x{number}"} for number in range(1001))))
    assert (len(many.rows), many.problems) == (1000, ("there are more than 1000 watches; the rest is ignored",))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENTRY, "x"]), inner, max_size=6),
    max_leaves=8,
)


@given(st.binary(max_size=200) | VALUES.map(lambda json_value: json.dumps(json_value).encode()) | VALUES.map(written))
def test_any_content_is_read_or_reported(content: bytes) -> None:
    parsed_watches = watch_store.parse_watches(content)
    assert parsed_watches.is_complete or parsed_watches.problems


# The file as it is written


def test_a_new_file_has_the_mode_of_the_bookings_and_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "comments.json").write_text("{}")
    (tmp_path / "comments.json").chmod(0o664)
    store = WatchStore(tmp_path)
    store.change(lambda entries: [*entries, ENTRY])
    path = tmp_path / "watches.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    path.chmod(0o660)
    store.change(lambda entries: [*entries, "something of somebody else's"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert json.loads(path.read_bytes()) == [ENTRY, "something of somebody else's"]
    assert [store for store in tmp_path.iterdir() if ".new" in store.name] == []


def test_a_concurrent_edit_by_hand_is_not_lost(tmp_path: Path) -> None:
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
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(json.loads((tmp_path / "watches.json").read_bytes())) == list(range(12))


def test_a_broken_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "watches.json"
    path.write_text("[{")
    with pytest.raises(
        LockedFileError, match=r"watches\.json cannot be read: line 1, column 3: .*; correct it, or remove it"
    ):
        WatchStore(tmp_path).change(lambda entries: [*entries, 1])
    assert path.read_text() == "[{"
    path.unlink()
    (tmp_path / "other").write_text("[]")
    path.symlink_to("other")
    with pytest.raises(LockedFileError, match="it is a link, and links are not followed"):
        WatchStore(tmp_path).change(lambda entries: [*entries, 1])
