"""./install.sh remove on a GPU host: it takes back what host did, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.machine import Machine, Person, need_machine

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_machine()
    with Machine(tmp_path_factory.mktemp("machine")) as fresh_machine:
        yield fresh_machine


@pytest.fixture(scope="module")
def somebody(machine: Machine) -> Person:
    return Person(machine, "lab")


@pytest.fixture
def lab(somebody: Person) -> Iterator[Person]:
    """A user who has nothing of gpuboard, and a folder to push to."""
    somebody.sh("mkdir -p data")
    yield somebody
    somebody.machine.run("root", "rm -f /etc/cron.allow; rm -rf /etc/gpuboard; crontab -u lab -r", check=False)
    somebody.sh("'the clone/scripts/gpu-check.sh' kill >/dev/null 2>&1; rm -rf .config .local data /var/tmp/gpuboard-*")


def test_remove_takes_all_of_it_back_and_nothing_else(lab: Person) -> None:
    before = lab.tree()
    lab.install("host", "--dest", "data")
    lab.sh(".local/share/gpuboard/scripts/gpu-check.sh --register", check=False)  # with an agent that is not there
    done = lab.install("remove")
    assert "Consul still lists gpu1: deregister it by hand." in done.stdout
    assert "gpuboard is removed" in done.stdout
    assert lab.tree() == before
    assert lab.machine.processes() == []
    assert lab.sh("ls -A /var/tmp") == ""
    assert lab.path("data/gpu1/gpus.csv").exists()


def test_remove_again_has_nothing_to_remove(lab: Person) -> None:
    before = lab.tree()
    assert lab.install("remove").stdout == "Nothing to remove: gpuboard is not installed here for lab.\n"
    assert lab.tree() == before


def test_remove_leaves_settings_and_folders_that_were_there_before(lab: Person) -> None:
    conf = lab.write(".config/gpuboard/gpuboard.conf", "# mine\nGPUBOARD_LIMIT=7\n")
    lab.sh("mkdir -p .local/share .local/bin")
    before = lab.tree()
    lab.install("host", "--dest", "data")
    lab.install("remove")
    assert lab.tree() == before
    assert conf.read_text() == "# mine\nGPUBOARD_LIMIT=7\n"


def test_remove_of_the_host_alone_leaves_a_web_host_its_board_and_the_keys_of_others(lab: Person) -> None:
    lab.install("host", "--dest", "data")
    place = ".local/share/gpuboard"
    lab.sh(f"echo web >>{place}/installed/gpu1; ssh-keygen -q -t ed25519 -N '' -f .local/key")
    lab.sh(f"{place}/scripts/gpu-enrol.sh --data ~/data --file ~/.local/keys add gpu2 <.local/key.pub")
    before = lab.tree()
    lab.install("remove", "host")
    after = lab.tree()
    note = f"{place}/installed/gpu1"
    assert {name for name in before if after.get(name) != before[name]} == {note, "crontab"}
    assert lab.sh(f"cat {note}") == "web\n"
    assert lab.machine.crontab("lab") is None
    assert lab.machine.processes() == []
    assert "Nothing to remove: gpu1 sends no snapshots for lab." in lab.install("remove", "host").stdout


def test_remove_works_from_another_clone(lab: Person) -> None:
    lab.install("host", "--dest", "data")
    lab.machine.copy_project("lab", ".local/another")
    lab.sh("mv 'the clone' .local/gone && .local/another/install.sh remove; mv .local/gone 'the clone'")
    assert not lab.path(".local/share/gpuboard").exists()
    assert lab.machine.processes() == []


def test_killed_at_any_moment_the_next_call_makes_the_same(lab: Person) -> None:
    lab.install("host", "--name", "box", "--dest", "data")
    whole = lab.tree()
    lab.install("remove")
    clean = lab.tree()
    command = f"timeout -s KILL %s '{lab.clone}/install.sh' %s"
    for tenths in range(1, 14):
        lab.sh(command % (tenths / 10, "host --name box --dest data"), check=False)
    lab.install("host", "--name", "box", "--dest", "data")
    made = lab.tree()
    assert {name: made[name] for name in whole if "gpuboard/made" not in name} == {
        name: whole[name] for name in whole if "gpuboard/made" not in name
    }
    for tenths in range(1, 8):
        lab.sh(command % (tenths / 10, "remove"), check=False)
    lab.install("remove")
    left = {name for name in lab.tree() if name not in clean}
    assert left <= {".local", ".local/share"}  # folders with nothing in them, whose list is removed before them
    assert lab.machine.processes() == []


CONF = ".config/gpuboard/gpuboard.conf"


def test_remove_puts_back_the_setting_of_before(lab: Person) -> None:
    conf = lab.write(CONF, "GPUBOARD_DEST=/home/lab/old\r\n# mine\n")
    lab.install("host", "--dest", "data")
    lab.sh("mkdir data/two")
    lab.install("host", "--dest", "data/two")
    lab.install("remove")
    assert conf.read_bytes() == b"GPUBOARD_DEST=/home/lab/old\r\n# mine\n"


def test_remove_leaves_a_setting_that_was_changed_since(lab: Person) -> None:
    lab.install("host", "--dest", "data")
    lab.write(CONF, "GPUBOARD_DEST=/home/lab/new\n")
    lab.install("remove")
    assert lab.path(CONF).read_text() == "GPUBOARD_DEST=/home/lab/new\n"


def test_remove_leaves_what_others_keep_in_the_folder_of_the_spool(lab: Person) -> None:
    lab.write(CONF, "GPUBOARD_SPOOL=/home/lab/.local/scratch\n")
    theirs = [lab.write(f".local/scratch/{name}", "") for name in ("thesis/run/1", "thesis/chapter1", "gpu1/mine")]
    lab.install("host", "--dest", "data")
    words = lab.install("remove").stdout
    assert all(path.exists() for path in theirs)
    assert sorted(path.name for path in lab.path(".local/scratch/gpu1").iterdir()) == ["mine"]
    assert "/home/lab/.local/scratch/gpu1 contains other files and is kept.\n" in words
    assert lab.machine.processes() == []


def test_remove_ends_loops_whose_spool_is_behind_a_link(lab: Person) -> None:
    lab.sh("mkdir -p .local/disk && ln -s disk .local/link")
    lab.write(CONF, "GPUBOARD_SPOOL=/home/lab/.local/link/spool\n")
    lab.install("host", "--dest", "data")
    lab.install("remove")
    assert lab.machine.processes() == []
    assert list(lab.path(".local/disk").iterdir()) == []


def test_remove_leaves_loops_that_somebody_started_by_hand(lab: Person) -> None:
    lab.install("host", "--dest", "data")
    lab.sh("'the clone/scripts/gpu-check.sh' by-hand /home/lab/data")
    lab.install("remove")
    status = lab.sh("'the clone/scripts/gpu-check.sh' status", check=False)
    assert status.startswith("by-hand:\n")
    assert status.count("runs (pid") == 3


def test_remove_needs_no_variable_of_the_install(lab: Person) -> None:
    before = lab.tree()
    lab.install("host", "--dest", "data", XDG_DATA_HOME="/home/lab/.local/elsewhere")
    lab.install("remove")
    assert lab.tree() == before


def test_remove_reports_a_builder_that_it_cannot_end_and_exits_1(lab: Person) -> None:
    lab.write(CONF, "GPUBOARD_STATE=/home/lab/.local/state\n")
    lab.write(".local/share/gpuboard/installed/gpu1", "web\n")
    hold = "mkdir .local/state && exec 8>.local/state/lock && flock 8 && exec sleep 60"
    pid = lab.sh(f"sh -c '{hold}' >/dev/null 2>&1 & echo $!; sleep 1").strip()
    done = lab.install("remove", check=False)
    lab.sh(f"kill {pid}")
    assert done.returncode == 1
    assert f"/home/lab/.local/state/lock is still held, by pid {pid}" in done.stdout
    assert "except for what is still running" in done.stdout
