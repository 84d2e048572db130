"""Secrets in commands are masked, and nothing else is: by the real scripts, under every awk."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_builder.snapshots.parsers import host_and_ps_txt
from tests.support.command_line import run_gpuboard
from tests.support.live_page import Live
from tests.support.missing import need
from tests.support.own_gpus import HERE, ROOT, STAND_INS, OwnGpus

AWKS = ("mawk", "gawk", "original-awk", "busybox")
SECRET = re.compile("«(.*?)»")
HIDDEN = "•••"
SMI_WITHOUT_AWK = """#!/bin/sh
case $1 in
    --query-gpu=*) cat {table} ;;
    *) echo gpu_uuid, pid, used_gpu_memory, process_name && cat {apps} ;;
esac
"""


def read_corpus(name: str) -> Iterator[list[str]]:
    """The arguments of each command in a file of tests/host; a secret in them stands in « »."""
    for line in (ROOT / "tests/host" / name).read_text().splitlines():
        if line and not line.startswith("#"):
            yield shlex.split(line)


SECRETS = list(read_corpus("secrets.txt"))
HARMLESS = list(read_corpus("harmless.txt"))


def given(arguments: list[str]) -> list[str]:
    """The command as a process has it."""
    return [SECRET.sub(r"\1", argument) for argument in arguments]


def expected(arguments: list[str]) -> str:
    """The command as it may be shown."""
    return " ".join(SECRET.sub(HIDDEN, argument) for argument in arguments)


class Host:
    """A GPU host in a folder, with one awk and a /proc of its own."""

    def __init__(self, folder: Path, awk: str) -> None:
        """Without processes."""
        awk_path = shutil.which(awk)
        need("" if awk_path else f"{awk} is not installed")
        self.proc = folder / "proc"
        self.spool = folder / "spool"
        for name in ("bin", "smi", "spool", "proc"):
            (folder / name).mkdir()
        (self.proc / "uptime").write_text("10000.00 1.0\n")
        (folder / "bin/awk").symlink_to(awk_path or "")
        self.apps = folder / "smi/apps"
        self.environment = {
            **os.environ,
            "PATH": f"{folder}/bin:{STAND_INS}:{os.environ['PATH']}",
            "SMI": str(folder / "smi"),
            "HOST": "gpu1",
            "GPUBOARD_CONF": os.devnull,
            "GPUBOARD_PROC": str(self.proc),
            "GPUBOARD_SPOOL": str(self.spool),
            "GPUBOARD_DEST": "",
        }

    def shown(self, commands: list[list[str]]) -> list[str]:
        """Each command, as ps.txt has it when all of them run on the GPU."""
        pids = range(1001, 1001 + len(commands))
        for pid, arguments in zip(pids, commands):
            folder = self.proc / str(pid)
            folder.mkdir()
            (folder / "stat").write_text(f"{pid} (python) S 1 {pid} {pid} {'0 ' * 15}0 900000 0 0\n")
            (folder / "status").write_text("Uid:\t0\t0\t0\t0\nVmRSS:\t  2048 kB\n")
            (folder / "cgroup").write_text("0::/\n")
            (folder / "cmdline").write_bytes(b"".join(argument.encode() + b"\0" for argument in arguments))
        self.apps.write_text("".join(f"GPU-00000000-1111, {pid}, 512, python\n" for pid in pids))
        for task in "23":
            script = [str(ROOT / "scripts/gpu-run.sh"), "tick", task]
            subprocess.run(script, env=self.environment, check=True, timeout=60)
        rows = host_and_ps_txt.parse_ps_txt((self.spool / "gpu1/ps.txt").read_bytes()).rows
        by_pid = {row.pid: row.command or "" for row in rows}
        return [by_pid[pid] for pid in pids]


@pytest.fixture(scope="module", params=AWKS)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All commands of both files, as the host shows them with this awk."""
    host = Host(tmp_path_factory.mktemp("host"), request.param)
    return host.shown([*(given(command_line) for command_line in SECRETS), *HARMLESS])


def test_the_corpus_is_large_and_has_no_line_twice() -> None:
    assert len({tuple(command_line) for command_line in SECRETS}) == len(SECRETS) >= 250
    assert len({tuple(command_line) for command_line in HARMLESS}) == len(HARMLESS) >= 150
    assert all(SECRET.search(" ".join(command_line)) for command_line in SECRETS)
    assert not any(SECRET.search(" ".join(command_line)) for command_line in HARMLESS)


def test_secrets_become_dots_and_the_rest_stays(shown: list[str]) -> None:
    assert shown[: len(SECRETS)] == [expected(command_line) for command_line in SECRETS]


def test_harmless_commands_stay_as_they_are(shown: list[str]) -> None:
    assert shown[len(SECRETS) :] == [" ".join(command_line) for command_line in HARMLESS]


@pytest.mark.parametrize("awk", AWKS)
def test_arguments_that_are_made_to_take_long_cost_nobody_the_commands(tmp_path: Path, awk: str) -> None:
    slow = (
        "a\\ " * 600 + '"',
        "a=" * 990 + " b",
        "'\"" * 1000,
        "header=" * 280 + " x",
        "$(" * 900 + " x",
        "a:b@" * 490,
    )
    commands = [["python", *(text,) * 8] for text in slow]
    assert Host(tmp_path, awk).shown([*commands, ["python", "train.py"]])[-1] == "python train.py"


# This machine's own GPUs


@pytest.fixture
def own(tmp_path: Path) -> OwnGpus:
    return OwnGpus(tmp_path / "own")


def list_commands(own: OwnGpus, **extra_variables: str) -> dict[int, str | None]:
    """The command of each process, as `gpuboard list --json` has it."""
    done = run_gpuboard(own.smi.parent, "list", "--json", **{**own.environment, **extra_variables})
    assert (done.returncode, done.stderr) == (0, "")
    gpus = [gpu for host in json.loads(done.stdout)["hosts"] for gpu in host["gpus"]]
    return {process["pid"]: process["command"] for gpu in gpus for process in gpu["processes"]}


def test_list_masks_the_commands_of_this_machine_by_the_same_rules(own: OwnGpus) -> None:
    commands = dict(enumerate([*SECRETS, *HARMLESS], 1000))
    for pid, arguments in commands.items():
        own.process(0, pid, "python")
        (own.proc / str(pid) / "cmdline").write_bytes(
            b"".join(argument.encode() + b"\0" for argument in given(arguments))
        )
    assert list_commands(own) == {pid: expected(arguments) for pid, arguments in commands.items()}


def test_the_table_of_list_shows_no_secret(own: OwnGpus) -> None:
    own.process(0, 4711, "mysql -u root -phunter2 db")
    done = run_gpuboard(own.smi.parent, "list", **own.environment)
    assert "mysql -u root -p••• db" in done.stdout
    assert "hunter2" not in done.stdout


def test_list_masks_the_name_of_a_process_that_it_may_not_look_at(own: OwnGpus) -> None:
    own.process(0, 4711, "python")
    shutil.rmtree(own.proc / "4711")
    (own.smi / "apps").write_text((own.smi / "apps").read_text().replace("python", "client --token hunter2"))
    assert list_commands(own) == {4711: "client •••"}


@pytest.mark.parametrize("awk", ["", "#!/bin/sh\nexit 2\n", "#!/bin/sh\ncat\n"])
def test_list_shows_no_command_where_awk_is_missing_fails_or_is_none(own: OwnGpus, awk: str) -> None:
    own.process(0, 4711, "python train.py --token hunter2")
    tools = own.smi.parent / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "dirname", "readlink", "sed"):
        (tools / name).symlink_to(shutil.which(name) or "")
    (tools / "nvidia-smi").write_text(SMI_WITHOUT_AWK.format(apps=own.smi / "apps", table=own.smi / "table"))
    (tools / "nvidia-smi").chmod(0o755)
    if awk:
        (tools / "awk").write_text(awk)
        (tools / "awk").chmod(0o755)
    assert list_commands(own, PATH=str(tools)) == {4711: None}


def test_a_command_that_is_longer_than_what_is_read_ends_before_the_argument_that_is_cut(own: OwnGpus) -> None:
    own.process(0, 4711, "python")
    (own.proc / "4711/cmdline").write_bytes(b"python\0train.py\0hf_" + b"a" * 20000)
    assert list_commands(own) == {4711: "python train.py"}


def test_control_characters_in_a_command_are_no_second_command(own: OwnGpus) -> None:
    own.process(0, 4711, "python")
    (own.proc / "4711/cmdline").write_bytes(b"python\0a\nc\nahunter\0\x1b[31m\0")
    assert list_commands(own) == {4711: "python a c ahunter ?[31m"}


def test_here_masks_the_commands_of_this_machine(own: OwnGpus) -> None:
    own.process(0, 4711, "mysql -u root -phunter2 db")
    (own.proc / "4711/status").write_text("Uid:\t0\t0\t0\t0\nVmRSS:\t  2048 kB\n")
    (own.proc / "4711/cgroup").write_text("0::/\n")
    with Live(own.smi.parent, "here", command=None, **own.environment) as board:
        status = board.get("status.json")
    assert f'"name":"{HERE}"' in status
    assert "mysql -u root -p••• db" in status
    assert "hunter2" not in status
