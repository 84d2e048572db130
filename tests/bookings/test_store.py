"""comments.json as it is written: by many people, whole or not at all, and still theirs afterwards."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from site_builder.bookings import service as booking_service
from site_builder.bookings import store as booking_store
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.core.locks import LockedFileError
from tests.support.board_fixture import Lab
from tests.support.board_fixture import gpu as gpu_row
from tests.support.user_processes import ALICE, BOB, LAB_GROUP, as_user, killed_at, share

AS_ROOT = pytest.mark.root


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab in a folder that everybody can reach."""
    folder = Path(tempfile.mkdtemp(prefix="gpuboard-test-"))
    folder.chmod(0o755)
    lab = Lab(folder)
    lab.host("atlas")
    for path in lab.data.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield lab
    shutil.rmtree(folder)


def book(lab: Lab, gpu: str = "0", who: str = "alice") -> str:
    """What somebody hears who books."""
    try:
        answer = booking_service.handle_service_request(
            BookingService(lab.settings()), {"do": "book", "gpus": [f"atlas:{gpu}"], "for": "2h"}, BookingUser(who)
        )
        return f"booked {answer['bookings'][0]['id']}"
    except LockedFileError as why:
        return str(why)


def of(path: Path) -> tuple[int, int, str]:
    status = path.stat()
    return status.st_uid, status.st_gid, oct(stat.S_IMODE(status.st_mode))


@AS_ROOT
def test_owner_group_and_mode_stay(lab: Lab) -> None:
    lab.book({})
    path = lab.data / "comments.json"
    share(path, ALICE, LAB_GROUP, 0o664)
    assert book(lab).startswith("booked")
    assert of(path) == (ALICE, LAB_GROUP, "0o664")
    assert of(lab.data / booking_store.LAST_GOOD_FILE) == (ALICE, LAB_GROUP, "0o664")
    assert of(lab.data / booking_store.LOG_FILE) == (ALICE, LAB_GROUP, "0o664")


@AS_ROOT
def test_two_people_of_a_group_book_in_turn(lab: Lab) -> None:
    share(lab.data, 0, LAB_GROUP, 0o2775)
    for gpu, uid in enumerate((ALICE, BOB, ALICE, BOB)):
        lab.host("atlas", "".join(gpu_row(index) for index in range(4)))
        assert as_user(uid, [LAB_GROUP], lambda: book(lab, str(gpu), f"user{gpu}")).startswith("booked")  # noqa: B023
    names = [
        booking["name"]
        for booking in booking_service.list_service_bookings(
            BookingService(lab.settings()).begin_read(BookingUser(""))
        )["bookings"]
    ]
    assert names == ["user0", "user1", "user2", "user3"]
    assert of(lab.data / "comments.json")[1:] == (LAB_GROUP, "0o664")


@AS_ROOT
def test_who_may_not_write_the_file_may_not_replace_it(lab: Lab) -> None:
    lab.book({})
    share(lab.data, 0, LAB_GROUP, 0o2775)
    share(lab.data / "comments.json", 0, LAB_GROUP, 0o644)
    before = (lab.data / "comments.json").read_bytes()
    outcome = as_user(ALICE, [LAB_GROUP], lambda: book(lab))
    assert "belongs to root, and you cannot write it" in outcome
    assert (lab.data / "comments.json").read_bytes() == before


@AS_ROOT
def test_nobody_is_locked_out_by_whoever_books(lab: Lab) -> None:
    daemon = pwd.getpwnam("daemon")
    lab.book({})
    share(lab.data, 0, LAB_GROUP, 0o2775)
    share(lab.data / "comments.json", daemon.pw_uid, LAB_GROUP, 0o664)  # and is not in that group
    outcome = as_user(ALICE, [LAB_GROUP], lambda: book(lab))
    assert "belongs to daemon, who could no longer write it after you" in outcome
    (lab.data / "comments.json").chmod(0o666)
    assert as_user(ALICE, [LAB_GROUP], lambda: book(lab)).startswith("booked")


@AS_ROOT
def test_a_folder_that_cannot_be_written_is_one_sentence(lab: Lab) -> None:
    outcome = as_user(ALICE, [], lambda: book(lab))
    assert outcome.endswith(f"cannot be opened: Permission denied; {booking_store.ASK_ADMIN_HINT}")
    lab.book({})
    (lab.data / "comments.json").chmod(0o666)
    (lab.data / booking_store.LOCK_FILE).touch(0o644)
    assert "cannot be written: Permission denied" in as_user(ALICE, [], lambda: book(lab))


@AS_ROOT
def test_files_of_a_killed_process_are_removed(lab: Lab) -> None:
    share(lab.data, 0, LAB_GROUP, 0o2775)
    left = lab.data / f"{booking_store.TEMPORARY_PREFIX}1234"
    left.write_text("half")
    share(left, BOB, BOB, 0o600)
    assert as_user(ALICE, [LAB_GROUP], lambda: book(lab)).startswith("booked")
    assert not left.exists()


@pytest.mark.slow
def test_while_somebody_writes_the_others_wait_and_in_the_end_say_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # the default of an argument, which is LOCK_TIMEOUT_S
    monkeypatch.setattr(inspect.unwrap(booking_store.hold_booking_store_lock), "__defaults__", (0.3,))
    with (lab.data / booking_store.LOCK_FILE).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another process has been writing" in book(lab)
    assert book(lab).startswith("booked")


def test_an_edit_by_hand_between_read_and_write_is_not_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = {"atlas": {"7": {"name": "hand", "date": "2199-01-01"}}}
    log = booking_store.BookingStore.append_log
    times: list[int] = []

    def and_then(self: booking_store.BookingStore, line: dict[str, object]) -> None:
        log(self, line)
        if not times:
            times.append(1)
            lab.book(by_hand)

    monkeypatch.setattr(booking_store.BookingStore, "append_log", and_then)
    assert book(lab).startswith("booked")
    content = json.loads((lab.data / "comments.json").read_text())
    assert list(content["atlas"]) == ["7", "0"]
    logged_actions = [json.loads(line)["what"] for line in (lab.data / booking_store.LOG_FILE).read_text().splitlines()]
    assert logged_actions == ["book", "nothing", "book"]


def test_a_file_that_an_editor_has_emptied_is_waited_for(lab: Lab) -> None:
    path = lab.data / "comments.json"
    path.write_text("")

    def write() -> None:
        time.sleep(0.1)
        path.write_text('{"zeus": {}}')

    editor = Thread(target=write)
    editor.start()
    assert book(lab).startswith("booked")
    editor.join()
    assert list(json.loads(path.read_text())) == ["zeus", "atlas"]


@pytest.mark.slow
def test_killed_at_any_step_the_file_is_whole_the_lock_is_free_and_each_change_is_logged(lab: Lab) -> None:
    lab.host("atlas", "".join(gpu_row(index) for index in range(100)))
    lab.book("{}")
    before: list[str] = []
    for step in range(1, 1000):
        went_on = not killed_at(step, lambda: book(lab, str(len(before))))  # noqa: B023
        now = list(json.loads((lab.data / "comments.json").read_text()).get("atlas", {}))
        assert now[: len(before)] == before
        assert len(now) - len(before) in {0, 1}
        logged = {entry[1] for line in booking_store.BookingStore(lab.data).read_log() for entry in line["after"]}
        assert set(now) <= logged
        before = now
        if went_on:
            break
    assert step > 20
    assert [path.name for path in lab.data.iterdir() if path.name.startswith(booking_store.TEMPORARY_PREFIX)] == []


def test_a_link_is_not_followed(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("{}")
    (lab.data / "comments.json").symlink_to(tmp_path / "theirs")
    assert "it is a link, and links are not followed" in book(lab)
    assert (tmp_path / "theirs").read_text() == "{}"


@pytest.mark.slow
def test_the_log_is_bounded(lab: Lab) -> None:
    (lab.data / booking_store.LOG_FILE).write_bytes(b'{"what": "old"}\n' * 100_000)
    book(lab)
    assert (lab.data / booking_store.LOG_FILE).stat().st_size < 1000
    assert (lab.data / f"{booking_store.LOG_FILE}.1").exists()
    assert booking_store.BookingStore(lab.data).read_log()[0]["what"] == "book"


def test_a_line_that_was_cut_costs_that_line(lab: Lab) -> None:
    (lab.data / booking_store.LOG_FILE).write_bytes(b'{"what": "cut')
    book(lab)
    assert [line["what"] for line in booking_store.BookingStore(lab.data).read_log()] == ["book"]


def test_access_lists_stay_where_the_disk_has_them(lab: Lab) -> None:
    lab.book({})
    path = lab.data / "comments.json"
    try:
        os.setxattr(path, "user.lab", b"yes")
    except OSError:
        pytest.skip("this disk has no attributes")
    book(lab)
    assert os.getxattr(path, "user.lab") == b"yes"


def test_the_last_content_that_could_be_read_stands_beside_it_also_after_a_hand(lab: Lab) -> None:
    lab.book('{"atlas": {}} // by hand')
    lab.build()
    lab.book('{"atlas": ')
    lab.build()
    assert (lab.data / booking_store.LAST_GOOD_FILE).read_text() == '{"atlas": {}} // by hand'
