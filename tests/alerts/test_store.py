"""What the alerts remember is written whole, by one at a time, and read as it was; what is damaged is told."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from site_builder.alerts import sender, state_format
from site_builder.alerts import store as alert_store
from site_builder.alerts.model import Alert, Book, Known, Letter, Matter, Told
from site_builder.alerts.store import AlertBook, KvAlertBook, Unwritable
from site_builder.consul.client import Unusable
from site_builder.core import files
from tests.support import kv_fixtures
from tests.support.consul_server import ConsulServer
from tests.support.sender_fixtures import alert, book, letter

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


OF["Matter"] = some_of(Matter)
OF["tuple[Alert, ...]"] = some.lists(some_of(Alert), max_size=2).map(tuple)
TIMES = some.dictionaries(WORDS, NUMBERS, max_size=3)
BOOKS = some.builds(
    Book,
    some.none() | NUMBERS,
    some.dictionaries(WORDS, some_of(Known), max_size=3),
    TIMES,
    some.lists(some_of(Letter), max_size=3).map(tuple),
    TIMES,
    some.dictionaries(WORDS, some.lists(NUMBERS, max_size=3).map(tuple), max_size=2),
    some.lists(some_of(Told), max_size=3).map(tuple),
    NUMBERS,
)


@given(BOOKS, some.booleans())
def test_a_book_is_read_as_it_was_written(written: Book, packed: bool) -> None:
    data = state_format.write(written, packed)
    assert state_format.read(data) == state_format.Found(written)
    assert state_format.write(written, packed) == data


def test_every_field_of_a_book_is_kept() -> None:
    told = orjson.loads(state_format.write(Book()))
    assert told.keys() - {"gpuboard"} == set(Book._fields)


@given(some.binary(max_size=200) | some.sampled_from([b"{}", b"[]", b"null", b"\x1f\x8b", b'{"gpuboard": true}']))
def test_whatever_stands_there_is_a_book_or_a_problem(data: bytes) -> None:
    found = state_format.read(data)
    assert found.book == Book()
    assert bool(found.problem) == bool(data)


@given(some.data())
def test_what_is_damaged_is_not_taken_in_part(data: some.DataObject) -> None:
    whole = state_format.write(book(letter(1), letter(2)), packed=data.draw(some.booleans()))
    cut = data.draw(some.integers(1, len(whole) - 2))
    assert state_format.read(whole[:cut]).problem.startswith("is damaged")
    told = orjson.loads(state_format.write(book(letter(1))))
    part = data.draw(some.sampled_from(sorted(told.keys() - {"gpuboard", "begun"})))
    told[part] = data.draw(
        some.sampled_from([None, "text", [[]], {"a": "b"}, [1.5], [{"id": 5}], {"a": {"seen": "b"}}])
    )
    found = state_format.read(orjson.dumps(told))
    assert found.problem
    assert found.book == Book()


def test_a_small_file_that_unpacks_to_a_huge_one_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_format, "LONGEST", 1000)
    assert state_format.read(state_format.gzipped(b" " * 100_000)).problem


def test_a_damaged_book_is_begun_anew_put_aside_and_told(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_bytes(b'{"gpuboard": 1, "begu')
    found = AlertBook(tmp_path)
    assert found.read() == Book()
    assert found.problem == "is damaged: begun anew, and what was so already is not told"
    assert (tmp_path / alert_store.DAMAGED).read_bytes() == b'{"gpuboard": 1, "begu'
    found.change(lambda _: book(letter()))
    assert AlertBook(tmp_path).read() == book(letter())


def test_the_book_of_a_newer_gpuboard_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"
    path.write_bytes(b'{"gpuboard": 2, "more": 1}')
    with pytest.raises(Unwritable, match=r"alerts\.json was written by a newer gpuboard: update this one"):
        AlertBook(tmp_path).change(lambda _: book())
    assert path.read_bytes() == b'{"gpuboard": 2, "more": 1}'


def test_nobody_else_reads_the_book_and_no_link_or_pipe_is_taken_for_it(tmp_path: Path) -> None:
    found = AlertBook(tmp_path)
    found.change(lambda _: book(letter()))
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("alerts.json", "alerts.lock")} == {0o600}
    (tmp_path / "alerts.json").rename(tmp_path / "elsewhere")
    (tmp_path / "alerts.json").symlink_to("elsewhere")
    with pytest.raises(Unwritable, match="it is a link, and links are not followed"):
        found.read()
    (tmp_path / "alerts.json").unlink()
    os.mkfifo(tmp_path / "alerts.json")
    with pytest.raises(Unwritable, match="it is not a plain file"):
        found.change(lambda _: book())


def test_root_leaves_nothing_in_the_folder_of_another_user(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give folders away")
    os.chown(tmp_path, 4711, 4712)
    with pytest.raises(Unwritable, match="belongs to user 4711: run this as user 4711, with sudo -u '#4711'"):
        AlertBook(tmp_path).change(lambda _: book(letter()))
    with pytest.raises(Unwritable, match="belongs to user 4711"), sender.alone(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(Unwritable, match=r"others can write to .*: chmod 700 "):
        AlertBook(tmp_path).read()


def test_a_book_that_was_emptied_is_answered_by_its_copy_and_that_is_told(tmp_path: Path) -> None:
    AlertBook(tmp_path).change(lambda _: book(letter(1)))
    AlertBook(tmp_path).change(lambda _: book(letter(1), letter(2)))
    (tmp_path / "alerts.json").write_bytes(b"")
    again = AlertBook(tmp_path)
    assert again.read() == book(letter(1), letter(2))
    assert again.problem == "is empty: the last good copy of it is used"
    again.change(lambda _: book(letter(3)))
    assert (AlertBook(tmp_path).read(), AlertBook(tmp_path).problem) == (book(letter(3)), "")


def test_a_book_that_was_emptied_and_has_no_copy_says_that_it_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_bytes(b"")
    found = AlertBook(tmp_path)
    assert found.read() == Book()
    assert found.problem.startswith("is empty, and there is no good copy of it: begun anew")


def test_a_damaged_book_is_answered_by_its_copy_and_kept_aside(tmp_path: Path) -> None:
    AlertBook(tmp_path).change(lambda _: book(letter(1)))
    (tmp_path / "alerts.json").write_bytes(b'{"gpuboard": 1, "known"')
    found = AlertBook(tmp_path)
    assert (found.read(), found.problem) == (book(letter(1)), "is damaged: the last good copy of it is used")
    assert (tmp_path / "alerts.damaged.json").read_bytes() == b'{"gpuboard": 1, "known"'


def test_on_a_full_disk_the_old_book_stays_and_the_sentence_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = AlertBook(tmp_path)
    found.change(lambda _: book(letter(1)))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Unwritable, match=r"alerts\.json cannot be written: No space left on device"):
        found.change(lambda _: book(letter(2)))
    assert AlertBook(tmp_path).read() == book(letter(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alerts.json", "alerts.json.bak", "alerts.lock"]


def test_what_nothing_changed_is_neither_written_nor_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = AlertBook(tmp_path)
    before = found.change(lambda _: book(letter()))
    monkeypatch.setattr(AlertBook, "write", None)
    monkeypatch.setattr(files, "read", None)
    assert found.change(lambda one: one) is before
    assert found.read() is before


def test_one_host_that_claims_anything_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    names = tuple(f"user{number}" for number in range(50))
    held = [Matter("gpu-held", "evil", f"GPU-{number}", whose=names, people=names) for number in range(200)]
    known = {one.key: Known(one, 1) for one in (*held, Matter("host-down", "atlas"))}
    found = AlertBook(tmp_path)
    found.most = 20_000
    kept = found.change(lambda _: Book(1, known))
    assert found.read() == kept
    assert "host-down atlas " in kept.known
    assert 20 <= len(kept.known) < 201
    assert {len(one.matter.people) for one in kept.known.values()} == {0, 3}


def test_where_there_is_no_room_the_oldest_of_the_history_goes_first(tmp_path: Path) -> None:
    found = AlertBook(tmp_path)
    told = tuple(Told(at, "channel:lab", "sent", (alert(at),)) for at in range(200))
    found.most = 10_000
    kept = found.change(lambda _: book(letter())._replace(history=told))
    assert kept.history == told[-len(kept.history) :]
    assert 20 < len(kept.history) < 100
    assert kept.letters == (letter(),)
    found.most = 100
    with pytest.raises(Unwritable, match="and 100 is the limit"):
        found.change(lambda one: one._replace(number=7))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulServer]:
    one = ConsulServer(tmp_path_factory.mktemp("consul") / "one")
    yield one
    one.stop()


COUNT = f"""
import sys
from pathlib import Path
from site_builder.alerts.store import book_of
from tests import kv_lab
address = sys.argv[2]
book = book_of(Path(sys.argv[1]), kv_lab.access(address) if address else None)
for _ in range({CHANGES}):
    book.change(lambda one: one._replace(number=one.number + 1), 60)
"""


@pytest.mark.parametrize("where", ["a file", "Consul"])
def test_of_several_who_write_at_once_no_change_is_lost(where: str, tmp_path: Path, server: ConsulServer) -> None:
    address = server.address if where == "Consul" else ""
    command = [sys.executable, "-c", COUNT.replace("import sys", f"import sys; sys.path.insert(0, {str(ROOT)!r})")]
    writers = [subprocess.Popen([*command, str(tmp_path), address]) for _ in range(WRITERS)]
    assert [one.wait(120) for one in writers] == [0] * WRITERS
    found = alert_store.book_of(tmp_path, kv_fixtures.access(address) if address else None)
    assert found.read().number == WRITERS * CHANGES


def test_in_consul_it_is_packed_and_a_lost_answer_is_looked_for(
    tmp_path: Path, server: ConsulServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = kv_fixtures.access(server.address)
    one = KvAlertBook(tmp_path, access)
    store = kv_fixtures.Hosts(tmp_path / "hosts", server.address)
    store.delete("alerts.json")
    assert one.change(lambda _: book(letter(1))) == book(letter(1))
    assert (store.get("alerts.json") or b"").startswith(b"\x1f\x8b")
    put = one.store.put

    def lost(key: str, content: bytes, **more: object) -> bool:
        put(key, content, **more)
        message = "does not answer within 3 s"
        raise Unusable(message)

    monkeypatch.setattr(one.store, "put", lost)
    assert one.change(lambda _: book(letter(2))) == book(letter(2))
    store.put("alerts.json", b"nonsense")
    assert KvAlertBook(tmp_path, access).read() == Book()
    assert one.read() == Book()
    assert one.problem.startswith("is damaged")


def test_without_consul_the_sentence_says_so(tmp_path: Path) -> None:
    lost = KvAlertBook(tmp_path, kv_fixtures.access("127.0.0.1:1"))
    with pytest.raises(Unwritable, match=r"Consul at 127\.0\.0\.1:1 does not answer .*: what alerts remember is there"):
        lost.change(lambda _: book())
