"""ps.txt and host.txt, as our own scripts write them, and as nobody should."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import Xid
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers import host_and_ps_txt
from tests.support.samples import ROOT, snapshot

HEADER = "pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand\n"


def test_a_process_is_understood_by_the_names_of_its_columns() -> None:
    row = "42\t1\t40\t40\t1000\talice\t3600\t99.5\t2048\tS\tdocker:0123456789ab\tpython größe.py\n"
    (process,) = host_and_ps_txt.parse_ps_txt(snapshot("ps", (HEADER + row).encode())).rows
    assert (process.pid, process.ppid, process.gpu_pid, process.uid, process.user) == (42, 1, 40, "1000", "alice")
    assert (process.elapsed, process.cpu, process.rss, process.state) == (3600, 99.5, 2048, "S")
    assert (process.container, process.command) == ("docker:0123456789ab", "python größe.py")


def test_container_columns_of_newer_collectors_are_parsed_and_missing_ones_are_not_available() -> None:
    names = HEADER.replace("container", "container\timage\tpod\tperson")
    row = "42\t1\t42\t42\t0\troot\t60\t1.0\t2048\tS\tdocker:0123456789ab\ttorch:2\tml/train\talice\tpython a\tb\n"
    (process,) = host_and_ps_txt.parse_ps_txt(snapshot("ps", (names + row).encode())).rows
    assert (process.container, process.image, process.pod, process.person) == (
        "docker:0123456789ab",
        "torch:2",
        "ml/train",
        "alice",
    )
    assert process.command == "python a\tb"
    old = row.replace("\ttorch:2\tml/train\talice", "")
    (process,) = host_and_ps_txt.parse_ps_txt(snapshot("ps", (HEADER + old).encode())).rows
    assert (process.image, process.pod, process.person, process.command) == (None, None, None, "python a\tb")


def test_a_dash_is_not_available() -> None:
    (process,) = host_and_ps_txt.parse_ps_txt(
        snapshot("ps", (HEADER + "42\t1\t-\t40\t-\t-\t0\t0.0\t-\tZ\t-\t[python]\n").encode())
    ).rows
    assert (process.gpu_pid, process.uid, process.user, process.rss, process.container) == (
        None,
        None,
        None,
        None,
        None,
    )
    assert (process.elapsed, process.command) == (0, "[python]")


def test_rows_without_a_pid_are_a_problem_and_cost_themselves_alone() -> None:
    dump = host_and_ps_txt.parse_ps_txt(snapshot("ps", (HEADER + "x\ty\n" + "42\t1\n").encode()))
    assert [row.pid for row in dump.rows] == [42]
    assert dump.problems == ("1 rows have no pid",)


def test_a_ps_file_without_names_of_columns_is_a_problem() -> None:
    dump = host_and_ps_txt.parse_ps_txt(snapshot("ps", b"42\t1\n"))
    assert (dump.rows, dump.problems) == ((), ("the line with the column names is missing",))


def test_a_host_is_understood() -> None:
    body = (
        "load=0.54 0.31 0.14\ncpus=64\nmemory_total=515000\nmemory_available=400000\nuptime=86400\nkernel=6.1.0\n"
        "driver=590.48.01\ndisk=1000 400 /\ndisk=2000 100 /data/my things\ninterface=eth0 192.0.2.7/24\n"
        "disk_use_time=1700000000\ndisk_use=12G /local/alice\ndisk_use=1,5T /local/bob smith\ndisk_use=512 /local/c\n"
    )
    dump = host_and_ps_txt.parse_host_txt(snapshot("host", body.encode()))
    (facts,) = dump.rows
    assert (facts.load, facts.cpus, facts.memory_total, facts.memory_available) == (
        (0.54, 0.31, 0.14),
        64,
        515000,
        400000,
    )
    assert [(disk.mount, disk.total, disk.used) for disk in facts.disks] == [
        ("/", 1000, 400),
        ("/data/my things", 2000, 100),
    ]
    assert [(use.path, use.used) for use in facts.disk_use] == [
        ("/local/alice", 12 * 1024),
        ("/local/bob smith", 1.5 * 1024**2),
        ("/local/c", 0.5),
    ]
    assert facts.interfaces == (("eth0", "192.0.2.7/24"),)
    assert (facts.uptime, facts.disk_use_time, facts.extra["kernel"]) == (86400, 1700000000, "6.1.0")
    assert dump.problems == ()


def test_xid_errors_are_understood() -> None:
    body = (
        "kernel_log=journalctl\nxid=1773151320 1773151325 3 0000:41:00 13 Graphics Exception: ESR 0x504730=0xc04000e\n"
        "xid=1773151330 1773151330 1 00000001:C1:00.0 79\n"
    )
    dump = host_and_ps_txt.parse_host_txt(snapshot("host", body.encode()))
    (facts,) = dump.rows
    assert facts.xids == (
        Xid("0000:41:00", 13, 1773151320, 1773151325, 3, "Graphics Exception: ESR 0x504730=0xc04000e"),
        Xid("00000001:C1:00.0", 79, 1773151330, 1773151330),
    )
    assert (facts.extra["kernel_log"], dump.problems) == ("journalctl", ())


def test_more_xid_errors_than_a_host_sends_cost_themselves() -> None:
    lines = "".join(f"xid={number} {number} 1 0000:41:00 13 {'x' * 900}\n" for number in range(1000, 1100))
    (facts,) = host_and_ps_txt.parse_host_txt(snapshot("host", lines.encode())).rows
    assert len(facts.xids) == 50
    assert all(len(xid.text) == 200 for xid in facts.xids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1773151320",
        "79",
        "1773151320 1773151320 1 0000:41:00",
        "1773151320 1773151320 1 0000:41:00 many",
        "1773151320 1773151320 1 ../../etc 79",
        "1773151320 1773151320 1 0000:41 79",
        "1773151325 1773151320 1 0000:41:00 79",
        "99999999999 99999999999 1 0000:41:00 79",
        "-5 10 1 0000:41:00 79",
        "1e9 1e9 1 0000:41:00 79",
        "1773151320 1773151320 99999999999 0000:41:00 79",
        "1773151320 1773151320 1 0000:41:00 123456",
        "١٧٧٣١٥١٣٢٠ 1773151320 1 0000:41:00 79",
    ],
)
def test_a_bad_xid_error_is_a_problem_and_costs_itself_alone(text: str) -> None:
    body = f"xid={text}\nxid=1773151320 1773151320 1 0000:41:00 79\ncpus=4\n"
    dump = host_and_ps_txt.parse_host_txt(snapshot("host", body.encode()))
    assert (dump.rows[0].cpus, len(dump.rows[0].xids)) == (4, 1)
    assert dump.problems == (f"not an Xid error: {text}",)


def test_what_a_host_does_not_report_is_not_available() -> None:
    (facts,) = host_and_ps_txt.parse_host_txt(snapshot("host", b"")).rows
    assert (facts.load, facts.cpus, facts.memory_available, facts.disks) == (None, None, None, ())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("load=1 2", "not three load numbers: 1 2"),
        ("disk=x 1 /", "not a disk: x 1 /"),
        ("disk=1 1 data", "not a disk: 1 1 data"),
        ("disk_use=many /local/x", "not a du line: many /local/x"),
        ("nonsense", "not a key=value line: nonsense"),
    ],
)
def test_a_bad_line_is_a_problem_and_costs_itself_alone(line: str, problem: str) -> None:
    dump = host_and_ps_txt.parse_host_txt(snapshot("host", f"{line}\ncpus=4\n".encode()))
    assert dump.rows[0].cpus == 4
    assert dump.problems == (problem,)


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_nothing_makes_the_readers_fail(body: bytes) -> None:
    host_and_ps_txt.parse_ps_txt(body)
    host_and_ps_txt.parse_host_txt(body)
    host_and_ps_txt.parse_ps_txt(snapshot("ps", HEADER.encode() + body))
    for key in (b"load=", b"disk=", b"disk_use=", b"interface=", b"cpus=", b"xid=", b"xid=1 1 1 0:0:0 1"):
        host_and_ps_txt.parse_host_txt(snapshot("host", key + body))


def test_what_the_scripts_write_is_understood_without_a_problem(tmp_path: Path) -> None:
    """The two sides of the contract, together."""
    for name in ("bin", "smi", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to(ROOT / "site_builder/demo/stand-ins/nvidia-smi")
    (tmp_path / "smi/apps").write_text(
        f"GPU-00000001-1111-2222-3333-444444444444, {os.getpid()}, 512, python, with a comma\n"
    )
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SMI": str(tmp_path / "smi"),
        "HOST": "gpu1",
        "GPUBOARD_SPOOL": str(tmp_path / "spool"),
        "GPUBOARD_DEST": str(tmp_path / "data"),
    }
    subprocess.run([ROOT / "scripts/gpu-run.sh", "once"], env=environment, check=True)
    folder = tmp_path / "data/gpu1"
    dumps = (
        gpu_tools.parse_gpus_of_tools((folder / "gpus.csv").read_bytes()),
        gpu_tools.parse_processes_of_tools((folder / "processes.csv").read_bytes()),
        host_and_ps_txt.parse_ps_txt((folder / "ps.txt").read_bytes()),
        host_and_ps_txt.parse_host_txt((folder / "host.txt").read_bytes()),
    )
    assert [(dump.is_complete, dump.problems, dump.messages) for dump in dumps] == [(True, (), ())] * 4
    assert [gpu.index for gpu in dumps[0].rows] == [0, 1]
    assert [(process.pid, process.name) for process in dumps[1].rows] == [(os.getpid(), "python, with a comma")]
    assert {row.pid: row.gpu_pid for row in dumps[2].rows}[os.getpid()] == os.getpid()
    assert dumps[3].rows[0].cpus == os.cpu_count()
