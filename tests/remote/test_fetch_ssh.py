"""`gpuboard pull`: hosts that may not push, fetched over a real sshd, with nothing installed there and nothing left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from site_builder.cli import main
from site_builder.discovery import hosts
from site_builder.remote import fetch
from site_builder.remote.targets import Target, UnclearSshTargetsError, parse_target, read_targets_file
from site_builder.snapshots import envelope
from site_builder.snapshots.store import MAX_SNAPSHOT_BYTES
from tests.support.board_fixture import Lab
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.docs import text_of
from tests.support.machine import ROOT, Machine, keygen, need_machine, wait_for

FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
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
    "chatty": ("yes", "chatty does not answer as a shell does: y"),
    "nologin": (
        "echo This account is currently not available.; exit 1",
        "nologin does not answer as a shell does: This account is currently not available.",
    ),
    "huge": (
        "echo gpuboard-pull ready; echo gpuboard-pull files 0 999999999 1 1 1 1; yes",
        "huge has files of more than the 8 MiB that are read",
    ),
    "minus": (
        "echo gpuboard-pull ready; echo gpuboard-pull files 0 1 -1 1 1 1; yes",
        "minus does not answer as a shell does: files 0 1 -1 1 1 1",
    ),
    "escape": (
        r"echo gpuboard-pull ready; printf 'gpuboard-pull \033]0;owned\007\n'; yes",
        "escape does not answer as a shell does: ?]0;owned?",
    ),
    "path": (
        "echo gpuboard-pull ready; echo gpuboard-pull files ../../etc/passwd 3 1 1 1 1; yes",
        "path does not answer as a shell does: files ../../etc/passwd 3 1 1 1 1",
    ),
    "odd": (
        "echo gpuboard-pull ready; echo gpuboard-pull files 0 2 2 2 2 0; printf abababab; sleep 20",
        "odd: gpus.csv does not count: the first line is not that of a gpuboard snapshot; processes.csv does not count",
    ),
    "slow": ("while :; do printf x; sleep 0.5; done", "slow sent no whole snapshot within 8 s; is it very busy?"),
    "silent": ("exec sleep 60", "silent sent no whole snapshot within 8 s; is it very busy?"),
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
    assert "no folder can be written" in fleet.text("plain", "host.txt")


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


# What is typed


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("atlas", Target("atlas")),
        ("lab@atlas", Target("lab@atlas")),
        ("atlas=lab@10.0.0.7", Target("lab@10.0.0.7", "atlas")),
        ("ssh://lab@atlas:2222", Target("ssh://lab@atlas:2222")),
        ("http://atlas/spool", Target("http://atlas/spool/")),
        ("a=https://u:p@web:8443/x=y/", Target("https://u:p@web:8443/x=y/", "a")),
    ],
)
def test_a_host_can_be_named_in_each_of_these_ways(word: str, target: Target) -> None:
    assert parse_target(word) == target
    assert target.name == (target.given_name or "atlas")


@pytest.mark.parametrize(
    "word",
    [
        "",
        "-oProxyCommand=x",
        "../x",
        "a b",
        "a=-x",
        "ftp://x/",
        "http:///x/",
        "http://x/?q",
        "a=",
        "x\n",
    ],
)
def test_what_can_be_no_host_is_refused(word: str) -> None:
    with pytest.raises(UnclearSshTargetsError):
        parse_target(word)


def test_a_password_in_an_address_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(UnclearSshTargetsError) as error:
        parse_target("https://u:secret@web/?q")
    assert "secret" not in str(error.value)
    file = tmp_path / "hosts"
    file.write_bytes(b"a=https://u:secret#1@web/\nb=https://u:secret,1@web/\nc=http://web:99999/\n")
    with pytest.raises(UnclearSshTargetsError) as error:
        read_targets_file(file)
    assert str(error.value).split("; ") == [
        f"{file}, line 1: 'a=https://u:…' is not the URL of a folder",
        f"{file}, line 2: 'b=https://u:…' is not the URL of a folder",
        f"{file}, line 3: 'c=http://web:99999/' is not the URL of a folder",
    ]


def test_a_list_of_hosts_can_be_the_one_of_the_board(tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    listed = "# all\natlas, Big one, a100\n\ngpu2=10.0.0.7, maintenance: fan\n"
    file.write_text(listed)
    assert [target.name for target in read_targets_file(file)] == ["atlas", "gpu2"]
    file.write_text(f"{listed}not a host\natlas=elsewhere\n")
    with pytest.raises(UnclearSshTargetsError, match=r"line 5: .*; .*, line 6: the name atlas is there twice"):
        read_targets_file(file)


@pytest.mark.parametrize(
    ("words", "expected_error"),
    [
        ((), "name a host"),
        (("a", "--for", "5"), "--for needs --every"),
        (("a b",), "'a b' is not a host"),
        (("http://[::1]/",), "'::1' cannot be a host's name on the board: give one, as name=address"),
        (("--hosts-file", "nowhere"), "nowhere cannot be read"),
        (("--consul",), "GPUBOARD_CONSUL_SERVICE"),
        (("a", "--data", "nowhere"), "nowhere is not there"),
    ],
)
def test_wrong_use_is_reported_and_is_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected_error: str
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUBOARD_CONF", "/dev/null")
    done = CliRunner().invoke(main, ["pull", *words])
    assert done.exit_code == 2
    assert expected_error in done.output


def test_hosts_that_consul_lists_are_pulled_by_their_names_on_the_board(tmp_path: Path) -> None:
    """Here by the list that is kept for when Consul does not answer."""
    (tmp_path / "data/gpu2.lab.org").mkdir(parents=True)
    (tmp_path / "state").mkdir()
    url = hosts.DiscoveredNode(
        "http://127.0.0.1:9/latest?", host="three"
    )  # whoever registers a service chooses its words
    nodes = hosts.discovered_nodes_to_json(
        [hosts.DiscoveredNode("gpu1.lab.org", host="one"), hosts.DiscoveredNode("gpu2.lab.org"), url]
    )
    kept = {"service": "gpus", "datacenter": None, "nodes": nodes}
    (tmp_path / "state/consul.json").write_text(json.dumps(kept))
    access = {"GPUBOARD_CONSUL_SERVICE": "gpus", "CONSUL_HTTP_ADDR": "127.0.0.1:9"}
    (tmp_path / "config").write_text("Host *.lab.org\n  HostName 127.0.0.1\n  Port 9\n")
    done = run_gpuboard(tmp_path, "pull", "--consul", "--ssh-config", "config", **access)
    assert done.returncode == 1
    first, second, *rest = sorted(done.stderr.splitlines())
    assert "the list of" in first
    assert second.endswith(": the node 'http://127.0.0.1:9/latest?' is left out: that cannot be the name of a machine")
    assert [line.split()[1] for line in rest] == ["gpu2.lab.org", "one:"]
    assert all("refused" in line for line in rest)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
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
    assert fetch.write_pulled_files(tmp_path, "atlas", pulled_files) == ["another pull is writing its files just now"]
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
    assert capsys.readouterr().err == "gpuboard: atlas: nobody foresaw this: LookupError: a ?[31mgpuboard: b\n"


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
