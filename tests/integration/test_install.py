"""./install.sh host and remove, on a machine of their own with a real cron and a real sshd."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import Machine, Person, need_machine, wait_for
from tests.support.missing import need

pytestmark = pytest.mark.root
BLOCK = (
    b"# >>> gpuboard host >>>\n"
    b"# Written by gpuboard's install.sh, and anew each time it is called.\n"
    b"* * * * * /home/lab/.local/share/gpuboard/scripts/gpu-check.sh%s\n"
    b"# <<< gpuboard host <<<\n"
)


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


def test_a_host_sends_its_snapshots_from_now_on(lab: Person) -> None:
    done = lab.install("host", "--dest", "data")
    assert (
        "The first snapshot arrived at /home/lab/data: this host is on the board as gpu1, and the loops are running."
        in done.stdout
    )
    assert lab.path("data/gpu1/gpus.csv").exists()
    assert lab.path(".config/gpuboard/gpuboard.conf").read_text() == "GPUBOARD_DEST=/home/lab/data\n"
    assert oct(lab.path(".config/gpuboard/gpuboard.conf").stat().st_mode)[-3:] == "600"
    assert lab.machine.crontab("lab") == BLOCK % b""
    assert lab.path(".local/share/gpuboard/installed/gpu1").read_text() == "host\n"
    wait_for(lambda: "last arrived" in lab.sh(".local/share/gpuboard/scripts/gpu-check.sh status", check=False))


def test_again_is_the_same_result(lab: Person) -> None:
    lab.install("host", "--name", "box", "--dest", "data")
    before = lab.tree()
    assert "as box" in lab.install("host").stdout
    assert lab.tree() == before


def test_what_the_clone_has_new_is_installed_and_what_it_has_no_longer_goes(lab: Person) -> None:
    lab.install("host", "--dest", "data")
    lab.write("the clone/scripts/lib/new.awk", "# new\n")
    lab.write(".local/share/gpuboard/scripts/lib/old.awk", "# old\n")
    lab.write(".local/share/gpuboard/scripts/gpu-run.sh.new", "half")
    lab.install("host")
    lab.path("the clone/scripts/lib/new.awk").unlink()
    scripts = lab.path(".local/share/gpuboard/scripts")
    assert (scripts / "lib/new.awk").exists()
    assert not (scripts / "lib/old.awk").exists()
    assert not (scripts / "gpu-run.sh.new").exists()
    assert os.access(scripts / "gpu-check.sh", os.X_OK)


def test_another_name_replaces_the_line_and_ends_the_loops_of_the_first(lab: Person) -> None:
    lab.install("host", "--name", "first", "--dest", "data")
    lab.install("host", "--name", "second")
    assert lab.machine.crontab("lab") == BLOCK % b" second"
    status = lab.sh(".local/share/gpuboard/scripts/gpu-check.sh status", check=False)
    assert "second:\n1 GPUs       runs" in status
    assert "first" not in status


def test_several_installs_at_once_leave_one_name(lab: Person) -> None:
    lab.sh(f"for n in n1 n2 n3; do '{lab.clone}/install.sh' host --name $n --dest data & done; wait")
    names = lab.sh("ls /var/tmp/gpuboard-7002").split()
    assert len(names) == 1
    assert lab.machine.crontab("lab") == BLOCK % f" {names[0]}".encode()
    assert lab.path(".local/share/gpuboard/installed/gpu1").read_text() == f"host {names[0]}\n"
    status = lab.sh(".local/share/gpuboard/scripts/gpu-check.sh status", check=False)
    assert status.count("runs (pid") == 3


def test_a_host_that_waited_for_a_remove_begins_anew(lab: Person) -> None:
    lab.install("host", "--dest", "data")
    before = lab.tree()
    take_away = "flock .local/share/gpuboard/lock sh -c 'sleep 2; rm -r .local/share/gpuboard'"
    lab.sh(f"{take_away} & sleep 1; '{lab.clone}/install.sh' host --dest data")
    made = ".local/share/gpuboard/made"
    assert {**lab.tree(), made: None} == {**before, made: None}


@pytest.mark.parametrize("name", ["../x", "-x", "a b", "a;b", "é", "x" * 64, ""])
def test_a_name_that_cannot_be_one_is_refused_before_anything_is_written(lab: Person, name: str) -> None:
    before = lab.tree()
    done = lab.install("host", "--name", name, "--dest", "data", check=False)
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 1
    assert lab.tree() == before


@pytest.mark.parametrize("dest", ["gopher://web/x", '"web:/data"', " web:data", "web:a\nGPUBOARD_SPOOL=/x", ""])
def test_a_destination_that_can_never_work_is_refused_before_anything_is_written(lab: Person, dest: str) -> None:
    before = lab.tree()
    done = lab.install("host", "--dest", dest, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)
    assert lab.tree() == before


def test_the_key_for_ssh_is_made_where_the_settings_say_and_taken_back(lab: Person) -> None:
    lab.write(".config/gpuboard/gpuboard.conf", "GPUBOARD_SSH_KEY=/home/lab/own/key\n")
    done = lab.install("host", "--dest", "ssh://odd@web", check=False)
    assert done.returncode == 1
    public = lab.path("own/key.pub").read_text()
    line = (
        f"On the web host, as odd:  echo '{public.strip()}' | ~/.local/share/gpuboard/scripts/gpu-enrol.sh add gpu1\n"
    )
    assert line in done.stdout
    assert lab.path("own/key").stat().st_mode & 0o777 == 0o600
    lab.install("host", check=False)
    assert lab.path("own/key.pub").read_text() == public
    lab.install("remove")
    assert not lab.path("own").exists()


@pytest.mark.parametrize("words", [["host"], ["host", "--dest"], ["host", "--nonsense"], ["remove", "x"], ["web", "x"]])
def test_wrong_use_is_one_sentence_and_exit_2(lab: Person, words: list[str]) -> None:
    done = lab.install(*words, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)


def test_who_may_have_no_crontab_learns_it_before_anything_is_written(lab: Person) -> None:
    before = lab.tree()
    lab.machine.path("/etc/cron.allow").write_text("root\n")
    done = lab.install("host", "--dest", "data", check=False)
    assert done.returncode == 2
    assert re.fullmatch(
        r"install.sh: your crontab cannot be read, so nothing was changed: .*not allowed.*\n", done.stdout
    )
    assert lab.tree() == before


def test_a_settings_file_that_would_hide_ours_is_reported(lab: Person) -> None:
    hiding = lab.write("gpuboard.conf", "GPUBOARD_DEST=/elsewhere\n")
    done = lab.install("host", "--dest", "data", check=False)
    hiding.unlink()
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)
    assert "move it there first" in done.stdout


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# mine\nGPUBOARD_LIMIT=7", b"# mine\nGPUBOARD_LIMIT=7\nGPUBOARD_DEST=/home/lab/data\n"),
        (b"GPUBOARD_DEST=x:y\r\n\xff=1\r\n", b"GPUBOARD_DEST=/home/lab/data\r\n\xff=1\r\n"),
        (b"#GPUBOARD_DEST=\nGPUBOARD_DEST=x:y", b"#GPUBOARD_DEST=\nGPUBOARD_DEST=/home/lab/data"),
        (b"\n\nGPUBOARD_DEST=x:y\nGPUBOARD_DEST=z:y\n\n", b"\n\nGPUBOARD_DEST=/home/lab/data\nGPUBOARD_DEST=z:y\n\n"),
    ],
)
def test_only_that_key_of_the_settings_is_changed(lab: Person, before: bytes, after: bytes) -> None:
    conf = lab.write(".config/gpuboard/gpuboard.conf", before, 0o640)
    lab.install("host", "--dest", "data")
    assert conf.read_bytes() == after
    assert oct(conf.stat().st_mode)[-3:] == "640"


def test_settings_that_are_a_link_stay_one(lab: Person) -> None:
    kept = lab.write(".local/dotfiles/gpuboard.conf", "GPUBOARD_LIMIT=9\n")
    conf = lab.path(".config/gpuboard/gpuboard.conf")
    lab.sh("mkdir -p .config/gpuboard && ln -s ../../.local/dotfiles/gpuboard.conf .config/gpuboard/gpuboard.conf")
    lab.install("host", "--dest", "data")
    assert conf.is_symlink()
    assert kept.read_text() == "GPUBOARD_LIMIT=9\nGPUBOARD_DEST=/home/lab/data\n"


def test_settings_on_a_full_disk_stay_as_they_were(lab: Person) -> None:
    lab.machine.run("root", "mkdir -p /srv/full && mount -t tmpfs -o size=4k none /srv/full")
    lab.machine.run("root", "echo GPUBOARD_LIMIT=9 >/srv/full/gpuboard.conf && chown -R lab /srv/full")
    lab.sh("mkdir -p .config && ln -s /srv/full .config/gpuboard")
    done = lab.install("host", "--dest", "data", check=False)
    left = lab.sh("ls -A /srv/full; cat /srv/full/gpuboard.conf")
    lab.machine.run("root", "umount /srv/full")
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)
    assert "could not be written and is unchanged: " in done.stdout
    assert left == "gpuboard.conf\nGPUBOARD_LIMIT=9\n"
    assert lab.machine.crontab("lab") is None


@pytest.fixture
def busybox(lab: Person) -> dict[str, str]:
    """A PATH with an awk that does not tell of a full disk."""
    need("" if shutil.which("busybox") else "busybox is not installed")
    lab.write(".local/awk/awk", '#!/bin/sh\nexec busybox awk "$@"\n', 0o755)
    return {"PATH": "/home/lab/.local/awk:/usr/bin:/bin"}


def test_settings_on_a_full_disk_stay_as_they_were_with_any_awk(lab: Person, busybox: dict[str, str]) -> None:
    content = b"GPUBOARD_LIMIT=9\n" + b"#" * 4078 + b"\n"  # a page: there is room for a copy, and no more
    lab.machine.run("root", "mkdir -p /srv/full && mount -t tmpfs -o size=8k none /srv/full && chown lab /srv/full")
    lab.write(".local/conf", content)
    lab.sh("cp .local/conf /srv/full/gpuboard.conf && mkdir -p .config && ln -s /srv/full .config/gpuboard")
    done = lab.install("host", "--dest", "data", check=False, **busybox)
    left = lab.sh("ls -A /srv/full; cat /srv/full/gpuboard.conf")
    lab.machine.run("root", "umount /srv/full")
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)
    assert left == "gpuboard.conf\n" + content.decode()


@pytest.mark.parametrize("pages", [2, 4, 5, 6, 7, 10])
def test_a_crontab_is_never_cut_by_a_full_disk(lab: Person, busybox: dict[str, str], pages: int) -> None:
    crontab = b"".join(b"%02d 5 * * * /bin/echo %03d %s\n" % (n % 60, n, b"x" * 38) for n in range(256))
    assert len(crontab) == 4 * 4096  # and no page ends within a line: cron would refuse that
    lab.machine.set_crontab("lab", crontab)
    lab.machine.run("root", f"mkdir -p /srv/full && mount -t tmpfs -o size={4 * pages}k none /srv/full")
    lab.machine.run("root", "chmod 1777 /srv/full")
    done = lab.install("host", "--dest", "data", check=False, TMPDIR="/srv/full", **busybox)
    lab.machine.run("root", "umount -l /srv/full")
    whole = crontab + BLOCK % b"" if done.returncode == 0 else crontab
    assert lab.machine.crontab("lab") == whole
    assert done.returncode in {0, 2}, done.stdout


def test_the_settings_of_the_whole_machine_are_enough(lab: Person) -> None:
    lab.machine.path("/etc/gpuboard").mkdir()
    lab.machine.path("/etc/gpuboard/gpuboard.conf").write_text("GPUBOARD_DEST=/home/lab/data\n")
    lab.install("host")
    assert lab.path("data/gpu1/gpus.csv").exists()
    assert not lab.path(".config/gpuboard").exists()


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"MAILTO=x\n0 5 * * * /bin/true", b"MAILTO=x\n0 5 * * * /bin/true\n"),  # cron itself wants the last newline
        (b"# dos\r\n0 5 * * * /bin/true\r\n", b"# dos\r\n0 5 * * * /bin/true\r\n"),
        (b"# see # >>> gpuboard host >>>\n# <<< gpuboard host <<< was here\n", None),
        (b"# " + b"\xff" * 50 + b"\n\n\n \t\n", None),
        (b"".join(b"%d 5 * * * /bin/echo 10\\%% of %d\n" % (n % 60, n) for n in range(200)), None),
    ],
    ids=["no last newline", "CRLF", "markers in comments", "bytes and blanks", "200 lines"],
)
def test_all_other_lines_of_a_crontab_stay_byte_for_byte(lab: Person, before: bytes, kept: bytes | None) -> None:
    kept = before if kept is None else kept
    lab.machine.set_crontab("lab", before)
    lab.install("host", "--dest", "data")
    assert lab.machine.crontab("lab") == kept + BLOCK % b""
    lab.install("remove")
    assert lab.machine.crontab("lab") == kept


OURS = b"*/7 * * * * /old/home/.local/share/gpuboard/scripts/gpu-check.sh x\n"
FIRST, LAST = b"# >>> gpuboard host >>>\n", b"# <<< gpuboard host <<<\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# a\n" + FIRST + OURS + b"1 1 * * * mine\n" + LAST + b"# b\n", b"# a\n%s1 1 * * * mine\n# b\n"),
        (b"# a\n" + FIRST + OURS + b"1 1 * * * mine\n", b"# a\n%s1 1 * * * mine\n"),
        (LAST + b"# a\n" + FIRST + OURS + LAST + FIRST + OURS + LAST, b"# a\n%s"),
        (b"# a\r\n" + (FIRST + OURS + LAST).replace(b"\n", b"\r\n") + b"# b\r\n", b"# a\r\n%s# b\r\n"),
    ],
    ids=["a line of theirs in it", "no end", "two", "CRLF"],
)
def test_a_block_that_somebody_edited_becomes_ours_again_and_no_line_of_theirs_is_lost(
    lab: Person, before: bytes, after: bytes
) -> None:
    lab.machine.set_crontab("lab", before)
    lab.install("host", "--dest", "data")
    assert lab.machine.crontab("lab") == after % (BLOCK % b"")
    lab.install("remove")
    assert (lab.machine.crontab("lab") or b"") == after % b""


def test_machines_that_share_a_home_share_scripts_and_settings(lab: Person, tmp_path: Path) -> None:
    with Machine(tmp_path / "second", "gpu2", home=lab.machine.path("/home")) as second:
        lab.install("host", "--dest", "data")
        install_command = [str(lab.clone / "install.sh")]
        second.run("lab", [*install_command, "host"])
        assert sorted(path.name for path in lab.path(".local/share/gpuboard/installed").iterdir()) == ["gpu1", "gpu2"]
        assert lab.path("data/gpu2/gpus.csv").exists()
        assert "Scripts, programs and settings are kept for: gpu2" in lab.install("remove").stdout
        assert lab.machine.processes() == []
        assert second.crontab("lab") == BLOCK % b""
        assert "runs" in second.run("lab", ".local/share/gpuboard/scripts/gpu-check.sh status", check=False).stdout
        second.run("lab", [*install_command, "remove"])
        assert second.crontab("lab") is None
        assert not lab.path(".local").exists()


@pytest.mark.parametrize(
    ("dest", "advice"),
    [
        ("/home/lab/nowhere", "create or mount the folder /home/lab/nowhere"),
        ("consul://127.0.0.1:1/lab", "docs/scaling.md lists what Consul must allow"),
        ("lab@web:data", "ssh-copy-id lab@web"),
        ("gpuboard@127.0.0.1:data", "ssh gpuboard@127.0.0.1"),
        ("gpuboard@web:no/where", "ssh gpuboard@web mkdir -p no/where"),
    ],
)
def test_a_snapshot_that_does_not_arrive_is_exit_1_with_what_helps(lab: Person, dest: str, advice: str) -> None:
    done = lab.install("host", "--dest", dest, check=False)
    assert done.returncode == 1
    assert f"did not arrive at {dest}: " in done.stdout
    assert advice in done.stdout
    assert lab.machine.crontab("lab") == BLOCK % b""


def test_a_host_without_nvidia_smi_is_reported(lab: Person) -> None:
    program = lab.machine.path("/usr/local/sbin/nvidia-smi")
    aside = program.rename(program.with_name("aside"))
    done = lab.install("host", "--dest", "data")
    aside.rename(program)
    assert "No nvidia-smi, amd-smi or rocm-smi was found" in done.stdout


@pytest.mark.parametrize(
    ("shell", "awk"),
    [("dash", "mawk"), ("dash", "original-awk"), ("bash --posix", "gawk"), ("busybox ash", "busybox awk")],
)
def test_every_sh_and_every_awk_will_do(lab: Person, shell: str, awk: str) -> None:
    for words in (shell, awk):
        program = words.partition(" ")[0]
        need("" if shutil.which(program) else f"{program} is not installed")
    lab.write(".local/awk/awk", f'#!/bin/sh\nexec {awk} "$@"\n', 0o755)
    lab.write(".config/gpuboard/gpuboard.conf", "GPUBOARD_LIMIT=9\nGPUBOARD_DEST=x:y")
    lab.machine.set_crontab("lab", b"# \xff\r\n")
    before = lab.tree()
    command = [*shell.split(), str(lab.clone / "install.sh")]
    path = {"PATH": "/home/lab/.local/awk:/usr/bin:/bin"}
    lab.machine.run("lab", [*command, "host", "--name", "a.b", "--dest", "data"], env=path)
    assert lab.machine.crontab("lab") == b"# \xff\r\n" + BLOCK % b" a.b"
    assert lab.path(".config/gpuboard/gpuboard.conf").read_text() == "GPUBOARD_LIMIT=9\nGPUBOARD_DEST=/home/lab/data"
    lab.machine.run("lab", [*command, "remove"], env=path)
    assert lab.tree() == before


def test_whoever_shows_cron_its_own_head_does_not_get_it_twice(lab: Person) -> None:
    lab.machine.set_crontab("lab", b"# mine\n")
    lab.install("host", "--dest", "data", CRONTAB_NOHEADER="N")
    assert lab.machine.crontab("lab") == b"# mine\n" + BLOCK % b""
