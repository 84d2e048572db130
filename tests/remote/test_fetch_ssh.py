"""`gpuboard pull`: hosts that may not push, fetched over a real sshd, with nothing installed there and nothing left."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from site_builder.snapshots import envelope
from tests.support.board_fixture import Lab
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.docs import text_of
from tests.support.kv_fixtures import FILES
from tests.support.machine import ROOT, Machine, keygen, need_machine, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.root]

SPOOL = "/var/tmp/gpuboard-7002"  # noqa: S108


PLACE = "/var/tmp/gpuboard-pull-7002"  # noqa: S108


SSH = """
Host *
  HostName 127.0.0.1
  Port {port}
  User lab
  IdentityFile {key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {known}
  GlobalKnownHostsFile none
"""


# Each name on the board is a host of its own, with an nvidia-smi of its own; of the processes it tells what is asked.
SMI = """#!/bin/sh
export SMI=/srv/smi/$HOST
[ -d "$SMI" ] || mkdir "$SMI"
case $HOST in
    side*) # answers once half of them are asked
        : >"$SMI/asked"
        while [ "$(ls /srv/smi/side?/asked | wc -l)" -lt 5 ]; do sleep 0.05; done
        ;;
esac
case $1 in
    *,used_gpu_memory) /srv/stand-ins/nvidia-smi "$@" | sed 's/, process_name$//' ;;
    *) exec /srv/stand-ins/nvidia-smi "$@" ;;
esac
"""


# What hosts say, whatever they are asked for, and what is told of each.
HOSTILE = {
    "chatty": ("yes", "chatty does not answer like a shell: y"),
    "nologin": (
        "echo This account is currently not available.; exit 1",
        "nologin does not answer like a shell: This account is currently not available.",
    ),
    "huge": (
        "echo gpuboard-pull ready; echo gpuboard-pull files 0 999999999 1 1 1 1; yes",
        "huge has files larger than 8 MiB",
    ),
    "minus": (
        "echo gpuboard-pull ready; echo gpuboard-pull files 0 1 -1 1 1 1; yes",
        "minus does not answer like a shell: files 0 1 -1 1 1 1",
    ),
    "escape": (
        r"echo gpuboard-pull ready; printf 'gpuboard-pull \033]0;owned\007\n'; yes",
        "escape does not answer like a shell: ?]0;owned?",
    ),
    "path": (
        "echo gpuboard-pull ready; echo gpuboard-pull files ../../etc/passwd 3 1 1 1 1; yes",
        "path does not answer like a shell: files ../../etc/passwd 3 1 1 1 1",
    ),
    "odd": (
        "echo gpuboard-pull ready; echo gpuboard-pull files 0 2 2 2 2 0; printf abababab; sleep 20",
        "odd: gpus.csv is ignored: the first line is not a gpuboard snapshot header; processes.csv is ignored",
    ),
    "slow": ("while :; do printf x; sleep 0.5; done", "slow sent no complete snapshot within 8 s; if it is very bu"),
    "silent": ("exec sleep 60", "silent sent no complete snapshot within 8 s; if it is very bu"),
    "liar": ("cat /srv/other; sleep 20", "liar: gpus.csv says host=atlas: pull it by that name"),
}


class Fleet:
    """A machine with an sshd, whose user `lab` is as many hosts as there are names, and `gpuboard` a hostile one."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        keygen(folder / "key")
        key = (folder / "key.pub").read_text()
        machine.path("/home/lab/.ssh/authorized_keys").write_text(f"restrict {key}")
        machine.give("lab", "/home/lab/.ssh")
        machine.path("/usr/local/sbin/nvidia-smi").write_text(SMI)
        (folder / "known").write_text(f"[127.0.0.1]:{machine.port} {machine.path('/etc/ssh/machine.pub').read_text()}")
        self.config = folder / "config"
        self.config.write_text(SSH.format(port=machine.port, key=folder / "key", known=folder / "known"))
        self.data = folder / "data"
        self.data.mkdir()

    def words(self, *words: str) -> list[str]:
        """What is typed."""
        return ["pull", "--ssh-config", str(self.config), "--data", str(self.data), *words]

    def pull(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command, to its end."""
        return run_gpuboard(self.folder, *self.words(*words))

    def smi(self, name: str) -> Path:
        """The folder that tells its nvidia-smi what to do."""
        folder = self.machine.smi / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
        return folder

    def text(self, name: str, file: str) -> str:
        """A file that arrived."""
        return (self.data / name / file).read_text()

    def nothing_left(self) -> bool:
        """Whether the host has cleared up."""
        left = [path for place in ("/var/tmp", "/tmp") for path in self.machine.path(place).glob("gpuboard*")]  # noqa: S108
        return not left

    def connections(self) -> int:
        """How often somebody has logged in."""
        return self.machine.path("/run/sshd.log").read_text().count("Accepted publickey")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    need_machine()
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield Fleet(machine, tmp_path_factory.mktemp("web"))


@contextmanager
def job(fleet: Fleet, *words: str) -> Iterator[int]:
    """A process on the host, with this command line; its pid there."""
    started = fleet.machine.run("lab", f"setsid sh -c 'exec \"$@\"' - {' '.join(words)} >/dev/null 2>&1 & echo $!")
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        fleet.machine.run("root", f"kill -9 {pid}", check=False)


def header(text: str, task: str) -> tuple[str, int, int]:
    """Host, interval and exit code of a file."""
    parsed_header, problem = envelope.parse_snapshot_header(text.encode(), task)
    assert parsed_header, problem
    return parsed_header.host, parsed_header.every, parsed_header.rc


# Over ssh


def test_a_host_without_anything_of_ours_is_pulled_as_it_would_push_and_keeps_nothing(fleet: Fleet) -> None:
    with job(fleet, "/bin/sh", "-c", "'sleep 60; :'", "train.py", "--password=hunter2", "--lr", "0.1") as pid:
        (fleet.smi("atlas") / "apps").write_text(f"GPU-00000000-1111-2222-3333-444444444444, {pid}, 700, /bin/sh\n")
        done = fleet.pull("atlas=box")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder = fleet.data / "atlas"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert {oct(path.stat().st_mode & 0o7777) for path in folder.iterdir()} == {"0o640"}
    assert folder.stat().st_mode & 0o7777 == 0o750
    for file in FILES:
        assert header(fleet.text("atlas", file), file.partition(".")[0]) == ("atlas", 60, 0)
        assert fleet.text("atlas", file).endswith("\n# end\n")
        assert "hunter2" not in fleet.text("atlas", file)
    assert "train.py --password=••• --lr 0.1" in fleet.text("atlas", "ps.txt")
    assert fleet.text("atlas", "gpus.csv").count("NVIDIA A100") == 2
    wait_for(fleet.nothing_left)


def test_rounds_share_one_connection_and_each_brings_a_new_snapshot(fleet: Fleet) -> None:
    before = fleet.connections()
    file = fleet.data / "rounds/host.txt"
    seen: set[str] = set()

    def has_moved() -> bool:
        if file.exists():
            seen.add(file.read_text().partition("\n")[0])
        return len(seen) >= 2

    words = [sys.executable, "-m", "site_builder", *fleet.words("rounds=box", "--every", "1")]
    with subprocess.Popen(words, env=clean_environment(), stderr=subprocess.PIPE) as started:
        try:
            wait_for(has_moved, 60, 0.05)
        finally:
            started.terminate()
        assert started.stderr
        assert started.stderr.read() == b""
    assert fleet.connections() == before + 1
    wait_for(fleet.nothing_left)


def test_scripts_that_are_installed_there_are_used_and_loops_that_run_there_are_not_disturbed(fleet: Fleet) -> None:
    share = fleet.machine.path("/home/lab/.local/share/gpuboard")
    shutil.copytree(ROOT / "scripts", share / "scripts")
    common = share / "scripts/lib/common.sh"
    common.write_text(re.sub(r"GPUBOARD_VERSION=.*", "GPUBOARD_VERSION=9.9.9", common.read_text()))
    fleet.machine.give("lab", "/home/lab/.local")
    try:
        there = "HOST=mine GPUBOARD_DEST=/home/lab ~/.local/share/gpuboard/scripts/gpu-run.sh once"
        fleet.machine.run("lab", there)
        spool = fleet.machine.path(f"{SPOOL}/mine")
        before = {path.name: path.stat().st_mtime_ns for path in spool.iterdir()}
        assert fleet.pull("mine=box").returncode == 0
        assert {path.name: path.stat().st_mtime_ns for path in spool.iterdir()} == before
        assert "collector=9.9.9\n" in fleet.text("mine", "host.txt")
    finally:
        shutil.rmtree(share)
        shutil.rmtree(fleet.machine.path(SPOOL))
        shutil.rmtree(fleet.machine.path("/home/lab/mine"))


def test_a_key_with_a_forced_command_takes_snapshots_and_runs_nothing_else(fleet: Fleet) -> None:
    shutil.copytree(ROOT / "scripts", fleet.machine.path("/home/lab/.local/share/gpuboard/scripts"))
    fleet.machine.give("lab", "/home/lab/.local")
    keygen(fleet.folder / "forced")
    keys = fleet.machine.path("/home/lab/.ssh/authorized_keys")
    (words,) = re.findall(r"`(restrict,command=[^`]*)`", text_of("docs/pull.md"))
    usual, usual_keys = fleet.config.read_text(), keys.read_text()
    keys.write_text(f"{usual_keys}{words.replace('atlas', 'forced')} {(fleet.folder / 'forced.pub').read_text()}")
    fleet.config.write_text(f"Host forced other\n  IdentityFile {fleet.folder / 'forced'}\n{usual}")
    evil = b"touch /tmp/evil\nexport HOST=x GPUBOARD_LIMIT=$(touch${IFS}/tmp/evil) GPUBOARD_SPOOL=/tmp/evil\nmain\ngo\n"
    ssh = ["/usr/bin/ssh", "-F", str(fleet.config), "forced", "touch /tmp/evil"]
    try:
        output = subprocess.run(ssh, input=evil, capture_output=True, timeout=60, check=True).stdout
        done = fleet.pull("forced", "other")
    finally:
        fleet.config.write_text(usual)
        keys.write_text(usual_keys)
        shutil.rmtree(fleet.machine.path("/home/lab/.local/share/gpuboard"))
    assert output.startswith(b"gpuboard-pull ready\ngpuboard-pull files 0 ")
    assert not fleet.machine.path("/tmp/evil").exists()  # noqa: S108
    assert header(fleet.text("forced", "host.txt"), "host") == ("forced", 60, 0)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "says host=forced: pull it by that name" in done.stderr
    wait_for(fleet.nothing_left)


def test_hosts_that_fail_hang_or_are_away_are_reported_and_delay_nobody(fleet: Fleet) -> None:
    (fleet.smi("broken") / "say").write_text("NVIDIA-SMI has failed because it could not talk to the driver.\n")
    (fleet.smi("broken") / "rc").write_text("9")
    (fleet.smi("hung") / "sleep").write_text("600")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    began = time.time()
    done = fleet.pull("well=box", "broken=box", "hung=box", f"closed=ssh://127.0.0.1:{port}", "--limit", "8")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "closed" in done.stderr
    assert "refused" in done.stderr
    assert header(fleet.text("broken", "gpus.csv"), "gpus")[2] == 9
    assert "could not talk to the driver" in fleet.text("broken", "gpus.csv")
    assert header(fleet.text("hung", "gpus.csv"), "gpus")[2] == 124
    assert "# err nvidia-smi did not answer within 1 s and was stopped" in fleet.text("hung", "gpus.csv")
    arrived = {name: (fleet.data / name / "host.txt").stat().st_ctime - began for name in ("well", "hung")}
    assert arrived["well"] < arrived["hung"]
    wait_for(fleet.nothing_left)


def test_a_puller_that_is_killed_leaves_nothing_on_the_host(fleet: Fleet) -> None:
    smi = fleet.smi("cut")
    (smi / "calls").touch(mode=0o666)
    (smi / "calls").chmod(0o666)
    (smi / "sleep").write_text("1")
    words = fleet.words("cut=box", "--limit", "30")
    with subprocess.Popen([sys.executable, "-m", "site_builder", *words], env=clean_environment()) as started:
        wait_for((smi / "calls").read_text, 30)
        assert fleet.machine.path(PLACE).stat().st_mode & 0o7777 == 0o700
        started.send_signal(signal.SIGKILL)
    (smi / "sleep").unlink()
    wait_for(fleet.nothing_left, 30)
    assert not (fleet.data / "cut").exists()


def test_what_an_nvidia_smi_that_hangs_holds_is_there_for_the_next_pull(fleet: Fleet) -> None:
    """Its lock tells the next one not to start another: tests/host has that."""
    hold = f"umask 077 && mkdir {PLACE} && exec 9>>{PLACE}/lock && flock -s 9 && exec sleep 60"
    started = fleet.machine.run("lab", f"({hold}) >/dev/null 2>&1 & echo $!")
    wait_for(lambda: fleet.machine.run("root", f"flock -n {PLACE}/lock true", check=False).returncode == 1)
    try:
        assert fleet.pull("held=box").returncode == 0
        kept = fleet.machine.path(f"{PLACE}/spool/held/run")
        wait_for(lambda: {path.name for path in fleet.machine.path(PLACE).iterdir()} == {"lock", "spool"})
        assert (kept / "nvidia-smi").exists()
    finally:
        fleet.machine.run("root", f"kill -9 {started.stdout}")
    assert fleet.pull("held=box").returncode == 0
    wait_for(fleet.nothing_left)


def test_plain_commands_without_arguments_are_used_where_no_folder_can_be_written(fleet: Fleet) -> None:
    places = [fleet.machine.path(place) for place in ("/tmp", "/var/tmp")]  # noqa: S108
    fleet.machine.run("root", "mount -t tmpfs -o ro none /dev/shm")
    for place in places:
        place.chmod(0o755)
    try:
        with job(fleet, "/bin/sh", "-c", "'sleep 60; :'", "--password=hunter2") as pid:
            apps = f"GPU-00000000-1111-2222-3333-444444444444, {pid}, 700\n"
            (fleet.smi("plain") / "apps").write_text(apps)
            done = fleet.pull("plain=box", "--every", "1", "--for", "1")
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        for place in places:
            place.chmod(0o1777)
        fleet.machine.run("root", "umount /dev/shm")
    lab = Lab(fleet.folder / "plain-lab")
    shutil.copytree(fleet.data / "plain", lab.data / "plain")
    lab.build()
    (busy, _) = lab.host_status("plain")["gpus"]
    (process,) = busy["processes"]
    assert (process["pid"], process["user"], process["command"]) == (pid, "lab", "sh")
    assert "hunter2" not in "".join(fleet.text("plain", file) for file in FILES)
    assert lab.host_status("plain")["load"]
    assert "no folder on this host is writable" in fleet.text("plain", "host.txt")


def test_what_a_hostile_host_sends_is_refused_in_time_and_old_files_stay(fleet: Fleet) -> None:
    fleet.pull("atlas")
    texts = [fleet.text("atlas", file) for file in FILES]
    sizes = " ".join(str(len(text.encode())) for text in texts)
    forged_answer = f"gpuboard-pull ready\ngpuboard-pull files 0 {sizes} 0\n{''.join(texts)}"
    fleet.machine.path("/srv/other").write_text(forged_answer)
    lines = []
    for name, (says, _) in HOSTILE.items():
        keygen(fleet.folder / name)
        lines.append(f'command="{says}" {(fleet.folder / f"{name}.pub").read_text()}')
    fleet.machine.path("/home/gpuboard/.ssh/authorized_keys").write_text("".join(lines))
    fleet.machine.give("gpuboard", "/home/gpuboard/.ssh")
    own = "".join(f"Host {name}\n  User gpuboard\n  IdentityFile {fleet.folder / name}\n" for name in HOSTILE)
    usual = fleet.config.read_text()
    fleet.config.write_text(own + usual)
    shutil.copytree(fleet.data / "atlas", fleet.data / "tarpit")
    before = {path.name: path.stat().st_ctime_ns for path in (fleet.data / "tarpit").iterdir()}
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            done = fleet.pull(*HOSTILE, f"tarpit=ssh://127.0.0.1:{silent.getsockname()[1]}", "--limit", "8")
    finally:
        fleet.config.write_text(usual)
    assert done.returncode == 1
    errors_by_host = {line.split()[1].rstrip(":"): line.partition(" ")[2] for line in done.stderr.splitlines()}
    assert {name: errors_by_host[name][: len(words)] for name, (_, words) in HOSTILE.items()} == {
        name: words for name, (_, words) in HOSTILE.items()
    }
    assert "within 8 s" in errors_by_host["tarpit"]
    assert len(errors_by_host) == done.stderr.count("\n") == len(HOSTILE) + 1
    assert [name for name in HOSTILE if (fleet.data / name).exists()] == []
    assert {path.name: path.stat().st_ctime_ns for path in (fleet.data / "tarpit").iterdir()} == before


def test_hosts_are_pulled_side_by_side(fleet: Fleet) -> None:
    names = [f"side{number}" for number in range(10)]
    listed = fleet.folder / "hosts.txt"
    listed.write_text("# ours\n" + "".join(f"{name}=box, a title, tag tag\n" for name in names))
    done = fleet.pull("--hosts-file", str(listed), "--limit", "60")
    assert (done.returncode, done.stderr) == (0, "")
    # one after the other, the first would have waited in vain for the fifth
    assert {header(fleet.text(name, "gpus.csv"), "gpus") for name in names} == {(name, 60, 0) for name in names}
