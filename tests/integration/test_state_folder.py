"""The state folder is ours alone: who else may write there is refused, and a full disk names the file."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from site_builder.alerts.hooks import HookFolder
from site_builder.board import host_pipeline
from site_builder.core import files
from site_builder.fleet.store import FleetStore
from tests.support.board_fixture import Lab, gpu
from tests.support.state_fixtures import Trap, gpuboard, make_state_lab

NOBODY = 65534
needs_root = pytest.mark.root


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_state_lab(tmp_path / "lab")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_state_folder_that_others_may_write_is_refused_with_the_command_that_closes_it(lab: Lab, mode: int) -> None:
    lab.state.chmod(mode)
    result = gpuboard(lab.data.parent, "build")
    assert (result.returncode, lab.www.exists(), list(lab.state.iterdir())) == (2, False, [])
    close = f"check what is in it, then run: chmod 700 {lab.state}"
    assert result.stderr == f"gpuboard: others can write to {lab.state}: {close}\n"


def test_a_state_folder_may_be_a_link_of_ours(lab: Lab, tmp_path: Path) -> None:
    lab.state.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    lab.state.symlink_to(tmp_path / "elsewhere")
    assert gpuboard(lab.data.parent, "build").returncode == 0


@pytest.fixture
def foreign() -> Iterator[Lab]:
    """A board of the user nobody, in a folder that this user can reach."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # that of pytest is root's alone
    place.chmod(0o755)
    made = Lab(place / "board")
    made.host("atlas", gpu(0))
    give(place / "board")
    yield made
    shutil.rmtree(place)


def give(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


def as_nobody(work: Callable[[], object]) -> int:
    """Do something as that user; 0 if it went well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_uid, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@needs_root
@pytest.mark.parametrize("has_state", [True, False])
def test_root_does_not_build_another_users_board_and_leaves_nothing_there(
    foreign: Lab, tmp_path: Path, has_state: bool
) -> None:
    mark, folder = tmp_path / "executed", foreign.data.parent
    (foreign.state / host_pipeline.OLD_STORE_NAME).write_bytes(pickle.dumps(Trap(mark)))
    hooks = folder / "hooks"
    hooks.mkdir()
    (hooks / "page").write_text(f"#!/bin/sh\nmkdir {mark}\n")
    (hooks / "page").chmod(0o755)
    if not has_state:
        shutil.rmtree(foreign.state)
    give(folder)
    before = everything(folder)
    result = gpuboard(folder, "build", GPUBOARD_HOOKS=str(hooks))
    where = foreign.state if has_state else folder
    assert result.returncode == 2
    assert result.stderr == f"gpuboard: {where} belongs to nobody: run this as nobody, with sudo -u nobody\n"
    assert (everything(folder), mark.exists()) == (before, False)
    assert HookFolder(hooks).list_runnable_names() == ()


@needs_root
@pytest.mark.parametrize(
    "command", [("token", "alice"), ("forget", "atlas"), ("alerts", "silence", "atlas", "--for", "2h")]
)
def test_root_changes_nothing_in_another_users_state(foreign: Lab, command: tuple[str, ...]) -> None:
    before = everything(foreign.data.parent)
    result = gpuboard(foreign.data.parent, *command, GPUBOARD_NOTIFY="lab=json://127.0.0.1:1/")
    assert result.returncode == 2
    assert "belongs to nobody: run this as nobody, with sudo -u nobody" in result.stderr
    assert everything(foreign.data.parent) == before


@needs_root
def test_root_does_not_build_by_another_users_settings(lab: Lab, tmp_path: Path) -> None:
    conf = tmp_path / "theirs.conf"
    conf.write_text(f"GPUBOARD_WWW={tmp_path / 'elsewhere'}\n")
    os.chown(conf, NOBODY, -1)
    result = gpuboard(lab.data.parent, "build", "--conf", str(conf))
    assert result.returncode == 2
    assert f"{conf} belongs to nobody: run this as nobody, with sudo -u nobody" in result.stderr
    assert not (tmp_path / "elsewhere").exists()


@needs_root
def test_the_owner_builds_after_root_was_refused(lab: Lab, foreign: Lab) -> None:
    lab.build()  # so that all is imported that this user may not be able to read
    gpuboard(foreign.data.parent, "build")
    assert as_nobody(foreign.build) == 0
    assert {path.stat().st_uid for path in (foreign.www, *foreign.state.iterdir())} == {NOBODY}


@needs_root
def test_user_without_access_to_state_can_book(lab: Lab, foreign: Lab) -> None:
    foreign.state.chmod(0o700)
    foreign.data.chmod(0o777)
    os.chown(foreign.state, 4711, 4711)  # the builder's, who is another user than the one who books
    lab.build()  # so that all is imported that this user may not be able to read

    def check() -> None:
        memory = FleetStore(foreign.state)
        assert (memory.logins, memory.idle_times) == (set(), {})

    assert as_nobody(check) == 0


# A full disk names the file


@needs_root
@pytest.mark.parametrize("room", [0, 4096, 8192])
def test_full_disk_is_reported_with_the_name_of_a_file(lab: Lab, room: int) -> None:
    lab.state.chmod(0o700)
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=900k,mode=700", "tmpfs", str(lab.state)], check=True)
    try:
        free = os.statvfs(lab.state).f_bavail * os.statvfs(lab.state).f_frsize
        (lab.state / "filler").write_bytes(b"x" * (free - room))
        result = gpuboard(lab.data.parent, "build")
        assert "None" not in result.stderr
        assert "gpuboard: state/" in result.stderr
        assert "No space left on device" in result.stderr
        assert lab.states("atlas") == ["busy", "free"]  # the site is elsewhere
    finally:
        subprocess.run(["/usr/bin/umount", str(lab.state)], check=True)


def test_failed_write_names_its_file(tmp_path: Path) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        files.write_atomically(tmp_path / "x.json", full)
    assert caught.value.filename == str(tmp_path / "x.json")
