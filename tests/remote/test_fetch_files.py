"""`gpuboard pull`: what is written into data/."""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from site_builder.remote import fetch
from site_builder.remote.targets import Target
from site_builder.snapshots.store import MAX_SNAPSHOT_BYTES
from tests.support.kv_fixtures import FILES

# What is written


def snapshot(file: str, name: str = "atlas", body: str = "", end: str = "# end\n", moment: int = 5) -> bytes:
    return (
        f"# gpuboard 1 task={file.partition('.')[0]} host={name} time={moment} every=1 took_ms=1 rc=0\n{body}{end}"
    ).encode()


def test_a_file_that_does_not_count_leaves_the_old_one_and_costs_no_other(tmp_path: Path) -> None:
    assert fetch.write_pulled_files(tmp_path, "atlas", {file: snapshot(file) for file in FILES}) == []
    bad = {
        "gpus.csv": snapshot("gpus.csv", "other", moment=6),
        "processes.csv": snapshot("processes.csv", end="", moment=6),
        "ps.txt": snapshot("ps.txt", body="x" * MAX_SNAPSHOT_BYTES, moment=6),
        "host.txt": snapshot("host.txt", moment=6),
        "../evil": b"x",
    }
    problems = fetch.write_pulled_files(tmp_path, "atlas", bad)
    assert [problem.split()[0] for problem in problems] == ["gpus.csv", "processes.csv", "ps.txt"]
    assert {file: b"time=6" in (tmp_path / "atlas" / file).read_bytes() for file in FILES} == {
        "gpus.csv": False,
        "processes.csv": False,
        "ps.txt": False,
        "host.txt": True,
    }
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["atlas", *FILES])


def test_the_same_snapshot_is_not_written_again(tmp_path: Path) -> None:
    pulled_files = {file: snapshot(file) for file in FILES}
    fetch.write_pulled_files(tmp_path, "atlas", pulled_files)
    before = (tmp_path / "atlas/host.txt").stat().st_ctime_ns
    fetch.write_pulled_files(tmp_path, "atlas", pulled_files)
    assert (tmp_path / "atlas/host.txt").stat().st_ctime_ns == before


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data/atlas").symlink_to(tmp_path / "elsewhere")
    pulled_files = {"gpus.csv": snapshot("gpus.csv"), "host.txt": snapshot("host.txt")}
    with pytest.raises(OSError, match="atlas"):
        fetch.write_pulled_files(tmp_path / "data", "atlas", pulled_files)
    folder = tmp_path / "data/atlas"
    folder.unlink()
    folder.mkdir()
    (folder / ".host.txt.put").symlink_to(tmp_path / "elsewhere/x")
    os.mkfifo(folder / ".gpus.csv.put")  # to open it would wait for ever
    (folder / ".host.txt.new").write_text("half of a push")
    assert fetch.write_pulled_files(tmp_path / "data", "atlas", pulled_files) == []
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        **pulled_files,
        ".host.txt.new": b"half of a push",
    }


def test_a_folder_that_somebody_exchanges_for_a_link_is_neither_written_nor_opened_to_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "private"
    theirs.mkdir(mode=0o700)
    make = os.mkdir

    def exchanged(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink(theirs, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", exchanged)
    with pytest.raises(OSError, match="Not a directory"):
        fetch.write_pulled_files(tmp_path, "atlas", {"host.txt": snapshot("host.txt")})
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o700
    assert not any(theirs.iterdir())


@pytest.mark.root
def test_a_folder_of_a_host_that_belongs_to_another_account_is_not_written_into(tmp_path: Path) -> None:
    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    tmp_path.chmod(0o777)
    (tmp_path / "atlas").mkdir(0o777)
    try:
        os.seteuid(7101)
        with pytest.raises(PermissionError, match="it belongs to root, not to user 7101: remove it, or chown it"):
            fetch.write_pulled_files(tmp_path, "atlas", {"host.txt": snapshot("host.txt")})
        fetch.write_pulled_files(tmp_path, "zeus", {"host.txt": snapshot("host.txt", "zeus")})
    finally:
        os.seteuid(0)
    assert not any((tmp_path / "atlas").iterdir())
    (tmp_path / "zeus").chmod(0o2775)
    fetch.write_pulled_files(tmp_path, "zeus", {"gpus.csv": snapshot("gpus.csv", "zeus")})
    assert oct((tmp_path / "zeus").stat().st_mode) == "0o42755"


def test_two_pulls_of_a_host_take_turns_but_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled_files = {"host.txt": snapshot("host.txt")}
    (tmp_path / "atlas").mkdir()
    holder = os.open(tmp_path / "atlas", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr(fetch, "LOCK_TIMEOUT_S", 0.05)
    assert fetch.write_pulled_files(tmp_path, "atlas", pulled_files) == ["another pull is writing its files right now"]
    monkeypatch.setattr(fetch, "LOCK_TIMEOUT_S", 60)
    threading.Timer(0.1, os.close, (holder,)).start()
    assert fetch.write_pulled_files(tmp_path, "atlas", pulled_files) == []
    assert (tmp_path / "atlas/host.txt").read_bytes() == pulled_files["host.txt"]


def test_what_nobody_foresaw_is_one_line_that_moves_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd:
        def fetch(self, _: float) -> dict[str, bytes]:
            message = "a\n\x1b[31mgpuboard: b"
            raise LookupError(message)

        def close(self) -> None:
            pass

    now = time.monotonic()
    loop = fetch.PullLoop([Target("atlas", "atlas")], 60, 5, tmp_path)
    loop.fetchers["atlas"] = Odd()  # type: ignore[assignment] # it does as one
    assert loop.run(None, now, now) == {"atlas"}
    assert capsys.readouterr().err == "gpuboard: atlas: unexpected error: LookupError: a ?[31mgpuboard: b\n"


def on_a_full_disk(action: Callable[[], object]) -> None:
    """No file can grow past 100 bytes; Python itself ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        action()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    fetch.write_pulled_files(tmp_path, "atlas", {"host.txt": snapshot("host.txt")})
    larger = {"host.txt": snapshot("host.txt", body="load=1 1 1\n" * 50, moment=6)}
    with pytest.raises(OSError, match="too large"):
        on_a_full_disk(lambda: fetch.write_pulled_files(tmp_path, "atlas", larger))
    assert (tmp_path / "atlas/host.txt").read_bytes() == snapshot("host.txt")
    assert [path.name for path in (tmp_path / "atlas").iterdir()] == ["host.txt"]


def test_what_plain_commands_say_cannot_break_out_of_its_file() -> None:
    texts = [b"Failed\n# end\n# gpuboard 1", b"GPU-0, 5, 7\nodd\n", b"5 1 5 0 9 0.0 100 Ss+ lab a\tb c\nx\n", b""]
    made = fetch.build_fetch_fallback_files("atlas", 60, [7, 300, 0], texts)
    assert sorted(made) == sorted(FILES)
    assert made["gpus.csv"] == b"# gpuboard 1 task=gpus host=atlas time=7 every=60 took_ms=0 rc=44\nFailed\n# end\n"
    assert b"GPU-0, 5, 7, a b c\nodd\n" in made["processes.csv"]
    assert b"5\t1\t5\t5\t0\tlab\t9\t0.0\t100\tS\t-\ta b c\n" in made["ps.txt"]
    assert all(fetch.find_pulled_file_fault(content, "atlas", file) is None for file, content in made.items())
