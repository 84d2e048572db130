"""data/bookings/: where several accounts book, and how bookings get there; nobody but the owner can write to data/."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from site_builder.bookings import service as booking_service
from site_builder.bookings import store as booking_store
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.config.settings import load_settings
from site_builder.core.data_folder import (
    FIX_HINT,
    find_bookings_folder_in_data,
    is_moved_data_file_link,
    name_data_folder_writers,
)
from site_builder.core.locks import LockedFileError
from site_builder.doctor import data_checks
from site_builder.doctor.model import CheckResult, DoctorContext
from site_builder.watches import store as watch_store
from site_builder.web import booking_folder
from site_builder.web.booking_folder import BookingFolderError, separate_booking_folder
from tests.support.board_fixture import Lab, gpu, words
from tests.support.user_processes import ALICE, BOB, LAB_GROUP, as_user, killed_at, share

AS_ROOT = pytest.mark.root
COMPANIONS = (
    "comments.json",
    "watches.json",
    booking_store.LAST_GOOD_FILE,
    booking_store.LOG_FILE,
    booking_store.LOCK_FILE,
)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab in a folder that everybody can reach, with a host of eight GPUs."""
    folder = Path(tempfile.mkdtemp(prefix="gpuboard-test-"))
    folder.chmod(0o755)
    prepared_lab = Lab(folder)
    prepared_lab.host("atlas", "".join(gpu(index) for index in range(8)))
    for path in prepared_lab.data.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield prepared_lab
    shutil.rmtree(folder)


def book(lab: Lab, index: int, who: str = "alice") -> str:
    """Book a GPU; return the answer in words."""
    request = {"do": "book", "gpus": [f"atlas:{index}"], "for": "2h"}
    try:
        booking_service.handle_service_request(BookingService(lab.settings()), request, BookingUser(who))
    except LockedFileError as why:
        return str(why)
    return "booked"


def watch(lab: Lab, name: str) -> str:
    """Add an entry to watches.json."""
    watch_store.WatchStore(lab.data).change(lambda entries: [*entries, {"id": name, "name": name}])
    return "watched"


def booked(folder: Path) -> list[str]:
    """List the GPUs of atlas that are booked in a folder."""
    return sorted(json.loads((folder / "comments.json").read_text()).get("atlas", {}))


def by_old_program(monkeypatch: pytest.MonkeyPatch, act: Callable[[], str]) -> str:
    """Run `act` as a version that knows only data/."""
    with monkeypatch.context() as patch:
        for module in (booking_store, watch_store):
            patch.setattr(module, "find_bookings_folder_in_data", lambda data: data)
        return act()


def move(lab: Lab) -> list[str]:
    """Do what `./install.sh web` does; return what it says."""
    messages: list[str] = []
    separate_booking_folder(lab.settings(), messages.append)
    return messages


# Where bookings are


def test_bookings_watches_and_their_companions_are_in_the_folder_where_there_is_one(lab: Lab) -> None:
    (lab.data / "bookings").mkdir()
    assert book(lab, 0) == "booked"
    watch(lab, "k7m2xp")
    lab.build()
    assert {path.name for path in (lab.data / "bookings").iterdir()} == set(COMPANIONS)
    assert [path.name for path in lab.data.iterdir() if path.is_file()] == []
    assert [booking["name"] for booking in lab.status()["hosts"][0]["gpus"][0]["bookings"]] == ["alice"]
    assert (
        booking_service.list_service_bookings(BookingService(lab.settings()).begin_read(BookingUser("alice")))[
            "bookings"
        ][0]["where"]
        == "atlas:0"
    )


def test_without_the_folder_all_is_in_data_as_before(lab: Lab) -> None:
    assert book(lab, 0) == "booked"
    watch(lab, "k7m2xp")
    lab.build()
    assert set(COMPANIONS) <= {path.name for path in lab.data.iterdir()}


def test_no_host_is_called_bookings(lab: Lab) -> None:
    (lab.data / "bookings").mkdir()
    lab.host("bookings")
    (lab.data / "hosts.txt").write_text("bookings\n")
    report = lab.build()
    assert [host["name"] for host in lab.status()["hosts"]] == ["atlas"]
    assert "hosts.txt" in words(report)
    assert "data/'bookings'" not in words(report)


def test_a_file_that_is_left_in_data_is_reported_and_does_not_count(lab: Lab) -> None:
    (lab.data / "bookings").mkdir()
    lab.book({"atlas": {"0": {"name": "bob", "date": "2199-01-01"}}})
    report = lab.build()
    assert f"data/comments.json: it is no longer read: bookings are in data/bookings/: {FIX_HINT}" in words(report)
    assert lab.status()["hosts"][0]["gpus"][0]["bookings"] == []
    assert data_check(lab).status == "fail"


def data_check(lab: Lab) -> CheckResult:
    """Return what the doctor finds of data/."""
    folders = {"GPUBOARD_DATA": lab.data, "GPUBOARD_WWW": lab.www, "GPUBOARD_STATE": lab.state}
    return data_checks.check_data_folder(
        DoctorContext(load_settings("/dev/null", {}, {key: str(folder) for key, folder in folders.items()}))
    )


@AS_ROOT
def test_a_folder_that_another_account_made_is_not_used_and_reported(lab: Lab) -> None:
    (lab.data / "bookings").mkdir()
    os.chown(lab.data / "bookings", BOB, BOB)
    assert find_bookings_folder_in_data(lab.data) == lab.data
    assert "data/bookings: it is not used" in words(lab.build())
    (lab.data / "bookings").rmdir()
    (lab.data / "bookings").symlink_to(lab.state)
    assert find_bookings_folder_in_data(lab.data) == lab.data
    assert "data/bookings: it is not used" in words(lab.build())


def test_who_waits_for_the_lock_while_bookings_move_books_in_the_new_place(lab: Lab) -> None:
    assert book(lab, 0) == "booked"
    answers: list[str] = []
    with (lab.data / booking_store.LOCK_FILE).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: answers.append(book(lab, 1)))
        waiting.start()
        end = time.monotonic() + 10
        lock = str(lab.data / booking_store.LOCK_FILE)
        while sum(lock == str(path.resolve()) for path in Path("/proc/self/fd").iterdir()) < 2:
            assert time.monotonic() < end
        (lab.data / ".new").mkdir()
        (lab.data / "comments.json").rename(lab.data / ".new/comments.json")
        (lab.data / ".new").rename(lab.data / "bookings")
    waiting.join()
    assert answers == ["booked"]
    assert booked(lab.data / "bookings") == ["0", "1"]
    assert not (lab.data / "comments.json").exists()


# Who can write to data/


@pytest.mark.slow
@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "gid", "writers"),
    [
        (0o750, LAB_GROUP, ""),
        (0o2755, LAB_GROUP, ""),
        (0o770, LAB_GROUP, "the group 7201"),
        (0o2775, 1, "the group daemon"),
        (0o757, LAB_GROUP, "everybody on this machine"),
        (0o3770, LAB_GROUP, ""),
        (0o1777, 0, ""),
        (0o775, 0, ""),  # root's own
    ],
)
def test_who_else_can_put_links_into_data(lab: Lab, mode: int, gid: int, writers: str) -> None:
    share(lab.data, 0, gid, mode)
    assert name_data_folder_writers(lab.data) == writers
    problem = f"data: {writers} can put links into it and so redirect what is written there: {FIX_HINT}"
    assert (problem in words(lab.build())) == bool(writers)
    finding = data_check(lab)
    assert finding.status == ("fail" if writers else "warn" if mode & 0o002 else "pass")
    assert (finding.advice == FIX_HINT) == bool(writers)


# The move


def open_to_the_group(lab: Lab) -> None:
    """Let a group book, as older versions wanted it."""
    share(lab.data, os.geteuid(), LAB_GROUP, 0o2770)
    for path in lab.data.iterdir():
        if path.is_file():
            share(path, ALICE, LAB_GROUP, 0o660)


@AS_ROOT
def test_bookings_move_once_and_data_is_closed(lab: Lab) -> None:
    assert book(lab, 0) == "booked"
    watch(lab, "k7m2xp")
    open_to_the_group(lab)
    (lab.data / "atlas").chmod(0o2775)
    messages = move(lab)
    assert messages == [
        f"Bookings are now in {lab.data}/bookings, which the group 7201 can write to.",
        f"{lab.data} itself: only this user can write to it.",
    ]
    assert stat.S_IMODE(lab.data.stat().st_mode) == 0o2750
    assert stat.S_IMODE((lab.data / "bookings").stat().st_mode) == 0o2770
    assert stat.S_IMODE((lab.data / "atlas").stat().st_mode) == 0o2755
    for path in (lab.data / "bookings").iterdir():
        assert (path.name, path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (path.name, LAB_GROUP, 0o660)
    assert {path.name for path in (lab.data / "bookings").iterdir()} == set(COMPANIONS)
    assert {path.name for path in lab.data.iterdir()} == {
        "atlas",
        "bookings",
        "comments.json",
        "watches.json",
        booking_store.LOCK_FILE,
    }
    assert is_moved_data_file_link(lab.data / "comments.json")
    assert words(lab.build()) == ""
    before = sorted((path.name, path.stat().st_mtime_ns) for path in lab.data.rglob("*"))
    assert move(lab) == []
    assert sorted((path.name, path.stat().st_mtime_ns) for path in lab.data.rglob("*")) == before
    for index, uid in ((1, ALICE), (2, BOB), (3, ALICE)):
        assert as_user(uid, [LAB_GROUP], lambda: book(lab, index, "alice")) == "booked"  # noqa: B023
    assert booked(lab.data / "bookings") == ["0", "1", "2", "3"]
    assert as_user(BOB, [], lambda: book(lab, 4)) != "booked"


@AS_ROOT
def test_where_other_accounts_push_each_keeps_its_own_folder(lab: Lab) -> None:
    open_to_the_group(lab)
    share(lab.data / "atlas", ALICE, LAB_GROUP, 0o2750)
    assert move(lab)[1] == f"{lab.data} itself: others can add to it, and change only what is theirs."
    assert stat.S_IMODE(lab.data.stat().st_mode) == 0o3770
    assert name_data_folder_writers(lab.data) == ""
    assert move(lab) == []


@AS_ROOT
def test_after_the_move_a_program_of_an_older_version_books_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    book(lab, 0)
    open_to_the_group(lab)
    move(lab)
    complaint = by_old_program(monkeypatch, lambda: book(lab, 1))
    assert complaint.endswith("cannot be read: it is a link, and links are not followed")
    with pytest.raises(LockedFileError):
        by_old_program(monkeypatch, lambda: watch(lab, "later"))
    assert booked(lab.data / "bookings") == ["0"]


@AS_ROOT
@pytest.mark.slow
def test_killed_at_any_step_the_next_call_finishes_and_no_booking_is_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(lab, 0)
    watch(lab, "first")
    open_to_the_group(lab)
    aside = lab.data.with_name("aside")
    subprocess.run(["/bin/cp", "-a", lab.data, aside], check=True)
    refused = accepted = joined = 0
    for step in range(1, 1000):
        shutil.rmtree(lab.data)
        subprocess.run(["/bin/cp", "-a", aside, lab.data], check=True)
        went_on = not killed_at(step, lambda: move(lab))
        if (lab.data / "bookings").exists():  # whatever is read there is whole
            assert booked(lab.data / "bookings") == ["0"]
        answers = [by_old_program(monkeypatch, lambda: book(lab, 1)), book(lab, 2)]
        accepted += answers[0] == "booked"
        joined += answers[0] == "booked" and (lab.data / "bookings").exists()
        refused += answers[0] != "booked"
        assert answers[1] == "booked"
        move(lab)
        assert booked(lab.data / "bookings") == ["0", *(["1"] if answers[0] == "booked" else []), "2"]
        changes = [
            line["after"][0][1] for line in booking_store.BookingStore(lab.data).read_log() if line["what"] == "book"
        ]
        assert sorted(changes) == booked(lab.data / "bookings")
        assert [watch_entry["id"] for watch_entry in json.loads((lab.data / "bookings/watches.json").read_text())] == [
            "first"
        ]
        assert stat.S_IMODE(lab.data.stat().st_mode) == 0o2750
        left = {path.name for path in lab.data.iterdir()} - {"atlas", "bookings", "comments.json", "watches.json"}
        assert left == {booking_store.LOCK_FILE}
        if went_on or step % 10 == 0:
            assert words(lab.build()) == ""
        if went_on:
            break
    assert step > 40
    assert accepted > 10
    assert joined > 3
    assert refused > 3


@AS_ROOT
def test_a_folder_that_a_member_of_the_group_put_in_the_way_is_not_filled(lab: Lab) -> None:
    book(lab, 0)
    open_to_the_group(lab)
    (lab.data / booking_folder.NEW_FOLDER).mkdir()
    os.chown(lab.data / booking_folder.NEW_FOLDER, BOB, LAB_GROUP)
    with pytest.raises(BookingFolderError, match="belongs to user 7102: remove it"):
        move(lab)
    (lab.data / booking_folder.NEW_FOLDER).rmdir()
    (lab.data / booking_folder.NEW_FOLDER).symlink_to(lab.state)
    with pytest.raises(OSError, match="Not a directory"):
        move(lab)
    assert booked(lab.data) == ["0"]


def test_bookings_in_a_folder_that_the_admin_made_are_joined(lab: Lab) -> None:
    book(lab, 0)
    (lab.data / "bookings").mkdir()
    move(lab)
    assert booked(lab.data / "bookings") == ["0"]
    (lab.data / "comments.json").unlink()
    lab.book({"atlas": {"5": {"name": "hand", "date": "2199-01-01"}}})
    move(lab)
    assert booked(lab.data / "bookings") == ["0", "5"]
    (lab.data / "comments.json").unlink()
    lab.book({"atlas": {"0": {"name": "other", "date": "2199-01-01"}}})
    with pytest.raises(BookingFolderError, match=r"has bookings that are missing in .*add them with `gpuboard edit`"):
        move(lab)
    assert "data/comments.json: it is no longer read" in words(lab.build())


def test_a_torn_log_costs_no_line_of_the_next_one(lab: Lab) -> None:
    (lab.data / "bookings").mkdir()
    for content in ("l1\nl2", "l3\n"):
        (lab.data / "bookings.log").write_text(content)
        move(lab)
    assert (lab.data / "bookings/bookings.log").read_text().splitlines()[-3:] == ["l1", "l2", "l3"]


def test_what_the_receiver_had_in_data_goes(lab: Lab) -> None:
    (lab.data / ".receive/gpu1").mkdir(parents=True)
    (lab.data / ".receive/gpu1/lock").touch()
    (lab.data / "receive.log").write_text("refused\n")
    booking_folder.move_receiver_files(lab.settings())
    assert [path.name for path in lab.data.iterdir()] == ["atlas"]
    assert (lab.state / "receive/receive.log").read_text() == "refused\n"
    assert stat.S_IMODE((lab.state / "receive").stat().st_mode) == 0o700
    (lab.data / ".receive").symlink_to(lab.state)
    (lab.data / "receive.log").symlink_to(lab.state / "receive/receive.log")
    booking_folder.move_receiver_files(lab.settings())
    assert (lab.state / "receive/receive.log").exists()
    assert not (lab.data / ".receive").is_symlink()


@AS_ROOT
def test_accounts_that_write_files_of_the_original_scripts_go_on(lab: Lab) -> None:
    lab.original("zeus", gpus="0, GPU-a, Tesla T4, 3, 15360, 41, 5, 40, 2018/10/04 09:12:01.123\n")
    open_to_the_group(lab)
    share(lab.data / "zeus_gpus.csv", BOB, LAB_GROUP, 0o640)
    move(lab)
    assert stat.S_IMODE(lab.data.stat().st_mode) == 0o3770


def set_access_list(folder: Path, kind: str) -> None:
    """Let BOB write by an access list, as setfacl would; `kind` is access or default."""
    user_obj, user, group_obj, mask, acl_other, nobody = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF
    entries = ((user_obj, 7, nobody), (user, 7, BOB), (group_obj, 5, nobody), (mask, 7, nobody), (acl_other, 0, nobody))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(folder, f"system.posix_acl_{kind}", packed)
    except OSError:
        pytest.skip("this disk has no access lists")


def push_to_folder(lab: Lab, home: Path) -> subprocess.CompletedProcess[str]:
    """Push the files of atlas once more."""
    script = Path(booking_folder.__file__).parents[2] / "scripts/lib/push_folder.sh"
    command = [str(script), str(lab.data), "atlas", str(home), "gpus.csv"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@AS_ROOT
def test_a_right_to_write_by_an_access_list_is_found(lab: Lab, tmp_path: Path) -> None:
    share(lab.data, 0, 0, 0o750)
    shutil.copy(lab.data / "atlas/gpus.csv", tmp_path)
    assert push_to_folder(lab, tmp_path).returncode == 0
    set_access_list(lab.data, "access")
    assert name_data_folder_writers(lab.data) == "somebody in its access list"
    assert "other accounts can write to" in push_to_folder(lab, tmp_path).stderr


@AS_ROOT
def test_what_a_default_access_list_gives_to_others_is_taken_back(lab: Lab, tmp_path: Path) -> None:
    share(lab.data, 0, 0, 0o750)
    shutil.copy(lab.data / "atlas/gpus.csv", tmp_path)
    shutil.rmtree(lab.data / "atlas")
    set_access_list(lab.data, "default")
    assert push_to_folder(lab, tmp_path).stderr == ""
    assert stat.S_IMODE((lab.data / "atlas").stat().st_mode) == 0o750
    assert stat.S_IMODE((lab.data / "atlas/.new").stat().st_mode) == 0o700
