"""The alert state is written atomically, by one writer at a time, and a damaged one is reported."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from site_builder.alerts import sender
from site_builder.alerts import store as alert_store
from site_builder.alerts.model import Alert, AlertState, Condition, DeliveryRecord, Notification, TrackedCondition
from site_builder.alerts.store import AlertStateError, AlertStore, ConsulAlertStore, DamagedStateError
from site_builder.consul.client import ConsulUnavailableError
from site_builder.core import files
from tests.support import kv_fixtures
from tests.support.consul_server import ConsulServer
from tests.support.forked import start_forked, wait_forked
from tests.support.sender_fixtures import alert, build_notification, build_state

ROOT = Path(__file__).parents[2]
WORDS = some.text(some.characters(exclude_categories=["Cs"]), max_size=8)  # half a letter is none of ours
NUMBERS = some.integers(0, 2**40)
# By the types as alert.py writes them.
OF: dict[str, some.SearchStrategy[Any]] = {
    "str": WORDS,
    "str | None": WORDS | some.none(),
    "int": NUMBERS,
    "int | None": NUMBERS | some.none(),
    "bool": some.booleans(),
    "tuple[str, ...]": some.lists(WORDS, max_size=3).map(tuple),
}
WRITERS = 6
CHANGES = 10


def some_of(kind: type[Any]) -> some.SearchStrategy[Any]:
    """Any of our tuples."""
    types = [of if isinstance(of, str) else of.__forward_arg__ for of in kind.__annotations__.values()]
    return some.builds(kind, **{name: OF[of] for name, of in zip(kind._fields, types)})


OF["Condition"] = some_of(Condition)
OF["tuple[Alert, ...]"] = some.lists(some_of(Alert), max_size=2).map(tuple)
TIMES = some.dictionaries(WORDS, NUMBERS, max_size=3)
BOOKS = some.builds(
    AlertState,
    some.none() | NUMBERS,
    some.dictionaries(WORDS, some_of(TrackedCondition), max_size=3),
    TIMES,
    some.lists(some_of(Notification), max_size=3).map(tuple),
    TIMES,
    some.dictionaries(WORDS, some.lists(NUMBERS, max_size=3).map(tuple), max_size=2),
    some.lists(some_of(DeliveryRecord), max_size=3).map(tuple),
    NUMBERS,
)


def parse_state(data: bytes) -> AlertState:
    return alert_store.parse_alert_state(data, "alerts.json")


@given(BOOKS, some.booleans())
def test_a_state_is_read_as_it_was_written(written: AlertState, packed: bool) -> None:
    data = alert_store.serialize_alert_state(written, packed)
    assert parse_state(data) == written
    assert alert_store.serialize_alert_state(written, packed) == data


def test_every_field_of_the_state_is_stored() -> None:
    stored_state = orjson.loads(alert_store.serialize_alert_state(AlertState()))
    assert stored_state.keys() == {
        "gpuboard",
        "begun",
        "known",
        "once",
        "letters",
        "silences",
        "sent",
        "history",
        "number",
    }
    assert len(stored_state) == 1 + len(AlertState._fields)


def test_the_file_of_an_older_gpuboard_is_read_and_written_as_it_was() -> None:
    alert_text = b'{"id":"a1","rule":"host-down","step":"begun","title":"atlas is down","what":"","at":1000}'
    older = (
        b'{"gpuboard":1,"begun":900,"known":{"host-down atlas ":{"matter":{"rule":"host-down","host":"atlas",'
        b'"whose":["alice"],"lasting":false},"seen":950,"told":960,"gone":970,"unsaid":true}},"once":{"k":7},'
        b'"letters":[{"id":"l1","to":"channel:lab","alerts":[' + alert_text + b'],"made":1000,"due":1001,"via":"mail",'
        b'"tries":2,"claimed":"one 77.ab","claimed_at":1005,"why":"it is full","more":3}],"silences":{"atlas":5},'
        b'"sent":{"channel:lab":[1,2]},"history":[{"at":999,"to":"channel:lab","how":"given up","alerts":['
        + alert_text
        + b'],"why":"nobody there","tries":4}],"number":12}\n'
    )
    assert alert_store.serialize_alert_state(parse_state(older)) == older


@given(some.binary(max_size=200) | some.sampled_from([b"{}", b"[]", b"null", b"\x1f\x8b", b'{"gpuboard": true}']))
def test_any_content_is_an_empty_state_or_damaged(data: bytes) -> None:
    if not data:
        assert parse_state(data) == AlertState()
        return
    with pytest.raises(DamagedStateError):
        parse_state(data)


@given(some.data())
def test_a_damaged_state_is_not_read_in_part(data: some.DataObject) -> None:
    whole = alert_store.serialize_alert_state(
        build_state(build_notification(1), build_notification(2)), packed=data.draw(some.booleans())
    )
    cut = data.draw(some.integers(1, len(whole) - 2))
    with pytest.raises(DamagedStateError):
        parse_state(whole[:cut])
    stored_state = orjson.loads(alert_store.serialize_alert_state(build_state(build_notification(1))))
    part = data.draw(some.sampled_from(sorted(stored_state.keys() - {"gpuboard", "begun"})))
    stored_state[part] = data.draw(
        some.sampled_from([None, "text", [[]], {"a": "b"}, [1.5], [{"id": 5}], {"a": {"seen": "b"}}])
    )
    with pytest.raises(DamagedStateError):
        parse_state(orjson.dumps(stored_state))


def test_a_small_file_that_unpacks_to_a_huge_one_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_store, "MAX_STATE_BYTES", 1000)
    with pytest.raises(DamagedStateError):
        parse_state(gzip.compress(b" " * 100_000))


def test_a_damaged_state_is_kept_aside_and_reported(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_bytes(b'{"gpuboard": 1, "begu')
    store = AlertStore(tmp_path)
    assert store.read() == AlertState()
    assert store.problem == "is damaged: starting over; conditions that already exist are not reported"
    assert (tmp_path / alert_store.DAMAGED_FILE).read_bytes() == b'{"gpuboard": 1, "begu'
    store.change(lambda _: build_state(build_notification()))
    assert AlertStore(tmp_path).read() == build_state(build_notification())


def test_the_state_of_a_newer_gpuboard_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"
    path.write_bytes(b'{"gpuboard": 2, "more": 1}')
    with pytest.raises(AlertStateError, match=r"alerts\.json was written by a newer gpuboard: update this one"):
        AlertStore(tmp_path).change(lambda _: build_state())
    assert path.read_bytes() == b'{"gpuboard": 2, "more": 1}'


def test_the_state_file_is_private_and_no_link_or_pipe_is_read(tmp_path: Path) -> None:
    store = AlertStore(tmp_path)
    (tmp_path / ".alerts.json.new").touch(0o644)  # of a writer that was killed
    store.change(lambda _: build_state(build_notification()))
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("alerts.json", "alerts.lock")} == {0o600}
    (tmp_path / "alerts.json").rename(tmp_path / "elsewhere")
    (tmp_path / "alerts.json").symlink_to("elsewhere")
    with pytest.raises(AlertStateError, match="it is a link, and links are not followed"):
        store.read()
    (tmp_path / "alerts.json").unlink()
    os.mkfifo(tmp_path / "alerts.json")
    with pytest.raises(AlertStateError, match="it is not a plain file"):
        store.change(lambda _: build_state())


@pytest.mark.root
def test_root_leaves_nothing_in_the_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4712)
    with pytest.raises(AlertStateError, match="belongs to user 4711: run this as user 4711, with sudo -u '#4711'"):
        AlertStore(tmp_path).change(lambda _: build_state(build_notification()))
    lock = alert_store.try_alert_state_lock(tmp_path, sender.SENDER_LOCK, 0)
    with pytest.raises(AlertStateError, match="belongs to user 4711"), lock:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(AlertStateError, match=r"others can write to .*: chmod 700 "):
        AlertStore(tmp_path).read()


def test_an_emptied_state_is_restored_from_its_copy_and_reported(tmp_path: Path) -> None:
    AlertStore(tmp_path).change(lambda _: build_state(build_notification(1)))
    AlertStore(tmp_path).change(lambda _: build_state(build_notification(1), build_notification(2)))
    (tmp_path / "alerts.json").write_bytes(b"")
    again = AlertStore(tmp_path)
    assert again.read() == build_state(build_notification(1), build_notification(2))
    assert again.problem == "is empty: the last good copy is used"
    again.change(lambda _: build_state(build_notification(3)))
    assert (AlertStore(tmp_path).read(), AlertStore(tmp_path).problem) == (build_state(build_notification(3)), "")


def test_an_emptied_state_without_a_copy_is_reported(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_bytes(b"")
    store = AlertStore(tmp_path)
    assert store.read() == AlertState()
    assert store.problem.startswith("is empty, and there is no good copy: starting over")


def test_a_damaged_state_is_restored_from_its_copy(tmp_path: Path) -> None:
    AlertStore(tmp_path).change(lambda _: build_state(build_notification(1)))
    (tmp_path / "alerts.json").write_bytes(b'{"gpuboard": 1, "known"')
    store = AlertStore(tmp_path)
    assert (store.read(), store.problem) == (
        build_state(build_notification(1)),
        "is damaged: the last good copy is used",
    )
    assert (tmp_path / "alerts.damaged.json").read_bytes() == b'{"gpuboard": 1, "known"'


def test_a_full_disk_keeps_the_old_state_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AlertStore(tmp_path)
    store.change(lambda _: build_state(build_notification(1)))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AlertStateError, match=r"alerts\.json cannot be written: No space left on device"):
        store.change(lambda _: build_state(build_notification(2)))
    assert AlertStore(tmp_path).read() == build_state(build_notification(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alerts.json", "alerts.json.bak", "alerts.lock"]


def test_an_unchanged_state_is_neither_written_nor_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AlertStore(tmp_path)
    before = store.change(lambda _: build_state(build_notification()))
    monkeypatch.setattr(AlertStore, "write", None)
    monkeypatch.setattr(files, "read_file", None)
    assert store.change(lambda state: state) is before
    assert store.read() is before


def test_a_host_with_many_conditions_leaves_room_for_others(tmp_path: Path) -> None:
    names = tuple(f"user{number}" for number in range(50))
    held = [Condition("gpu-held", "evil", f"GPU-{number}", owners=names, people=names) for number in range(200)]
    tracked_conditions = {
        condition.key: TrackedCondition(condition, 1) for condition in (*held, Condition("host-down", "atlas"))
    }
    store = AlertStore(tmp_path)
    store.max_bytes = 20_000
    kept = store.change(lambda _: AlertState(1, tracked_conditions))
    assert store.read() == kept
    assert "host-down atlas " in kept.conditions
    assert 20 <= len(kept.conditions) < 201
    assert {len(condition.condition.people) for condition in kept.conditions.values()} == {0, 3}


def test_where_there_is_no_room_the_oldest_of_the_history_goes_first(tmp_path: Path) -> None:
    store = AlertStore(tmp_path)
    records = tuple(DeliveryRecord(at, "channel:lab", "sent", (alert(at),)) for at in range(200))
    store.max_bytes = 10_000
    kept = store.change(lambda _: build_state(build_notification())._replace(history=records))
    assert kept.history == records[-len(kept.history) :]
    assert 20 < len(kept.history) < 100
    assert kept.notifications == (build_notification(),)
    store.max_bytes = 100
    with pytest.raises(AlertStateError, match="the limit is 100"):
        store.change(lambda state: state._replace(id_counter=7))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["a file", "Consul"])
def test_concurrent_writers_lose_no_change(where: str, tmp_path: Path, consul: ConsulServer) -> None:
    access = kv_fixtures.access(consul.address) if where == "Consul" else None

    def count() -> None:
        store = alert_store.open_alert_store(tmp_path, access)
        for _ in range(CHANGES):
            store.change(lambda state: state._replace(id_counter=state.id_counter + 1), 60)

    writers = [start_forked(count) for _ in range(WRITERS)]
    assert [wait_forked(writer) for writer in writers] == [0] * WRITERS
    store = alert_store.open_alert_store(tmp_path, access)
    assert store.read().id_counter == WRITERS * CHANGES


def test_in_consul_it_is_compressed_and_a_lost_answer_is_checked(
    tmp_path: Path, consul: ConsulServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = kv_fixtures.access(consul.address)
    consul_store = ConsulAlertStore(tmp_path, access)
    store = kv_fixtures.Hosts(tmp_path / "hosts", consul.address)
    store.delete("alerts.json")
    assert consul_store.change(lambda _: build_state(build_notification(1))) == build_state(build_notification(1))
    assert (store.get("alerts.json") or b"").startswith(b"\x1f\x8b")
    put = consul_store.kv_store.put

    def lost(key: str, content: bytes, **options: object) -> bool:
        put(key, content, **options)
        message = "does not answer within 3 s"
        raise ConsulUnavailableError(message)

    monkeypatch.setattr(consul_store.kv_store, "put", lost)
    assert consul_store.change(lambda _: build_state(build_notification(2))) == build_state(build_notification(2))
    store.put("alerts.json", b"nonsense")
    assert ConsulAlertStore(tmp_path, access).read() == AlertState()
    assert consul_store.read() == AlertState()
    assert consul_store.problem.startswith("is damaged")


def test_without_consul_the_sentence_says_so(tmp_path: Path) -> None:
    lost = ConsulAlertStore(tmp_path, kv_fixtures.access("127.0.0.1:1"))
    with pytest.raises(
        AlertStateError, match=r"Consul at 127\.0\.0\.1:1 does not answer .*: the alert state is stored there"
    ):
        lost.change(lambda _: build_state())
