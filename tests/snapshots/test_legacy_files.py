"""The files of the original scripts, with all that went wrong there."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.snapshots.parsers import legacy_files

AT = "2018/10/04 09:12:{:02d}.123"
NOW = datetime(2018, 10, 4, 9, 12, 40)


def gpu_row(index: int, second: int, use: str = "37", uuid: str = "") -> str:
    return f"{index}, {uuid or f'GPU-{index}'}, GeForce GTX 1080 Ti, 8018, 11172, {use}, 12, 80, {AT.format(second)}\n"


def test_the_last_row_of_each_gpu_counts() -> None:
    text = gpu_row(0, 0, "1") + gpu_row(1, 0, "2") + gpu_row(0, 20, "3") + gpu_row(1, 20, "4")
    dump, newest = legacy_files.parse_legacy_gpus(text.encode())
    assert [(gpu.index, gpu.uuid, gpu.utilization_gpu) for gpu in dump.rows] == [(0, "GPU-0", 3), (1, "GPU-1", 4)]
    assert (dump.rows[0].memory_used, dump.rows[0].memory_total, dump.rows[0].temperature) == (8018, 11172, 80)
    assert newest == datetime(2018, 10, 4, 9, 12, 20, 123000)


@pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]"])
def test_not_available_never_becomes_zero(cell: str) -> None:
    dump, _ = legacy_files.parse_legacy_gpus(gpu_row(0, 0, cell).encode())
    assert dump.rows[0].utilization_gpu is None
    assert dump.rows[0].lost is None


def test_a_lost_gpu_and_the_words_between_the_rows_are_reported() -> None:
    errors = ", ".join(["[Unknown Error]"] * 5)
    text = gpu_row(0, 0) + "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot\n"
    dump, _ = legacy_files.parse_legacy_gpus(
        (text + f"2, GPU-2, T4, {errors}, {AT.format(0)}\nWARNING: odd\n").encode()
    )
    assert [(gpu.index, gpu.lost) for gpu in dump.rows] == [
        (0, None),
        (2, "Unknown Error"),
        (None, "GPU is lost.  Reboot"),
    ]
    assert "WARNING: odd" in dump.messages


@pytest.mark.parametrize(
    "row",
    [
        f"0, GPU-0, T4, 100, P8, 37, 12, 80, {AT.format(0)}",
        f"0, GPU-0, T4, 100, P8, 11172, 37, 12, 80, {AT.format(0)}",
    ],
)
def test_the_fork_with_performance_states_has_no_memory_in_their_place(row: str) -> None:
    dump, _ = legacy_files.parse_legacy_gpus(row.encode())
    (gpu,) = dump.rows
    assert (gpu.memory_used, gpu.memory_total) == (None, None)
    assert (gpu.utilization_gpu, gpu.temperature) == (37, 80)


def test_a_process_name_with_commas_drops_no_process() -> None:
    row = f"{AT.format(30)}, GPU-0, 6400, python train.py, --x=1, 2, 28290\n"
    (process,) = legacy_files.parse_legacy_processes(row.encode(), NOW).rows
    assert (process.gpu_key, process.pid, process.used_memory, process.name) == (
        "GPU-0",
        28290,
        6400,
        "python train.py, --x=1, 2",
    )


def test_old_rows_of_processes_that_ended_do_not_count() -> None:
    text = f"{AT.format(0)}, GPU-0, 1, old, 1\n{AT.format(20)}, GPU-0, 2, a, 2\n{AT.format(21)}, GPU-1, 3, b, 3\n"
    assert [process.pid for process in legacy_files.parse_legacy_processes(text.encode(), NOW).rows] == [2, 3]
    later = datetime(2018, 10, 4, 9, 14, 0)
    assert legacy_files.parse_legacy_processes(text.encode(), later).rows == ()


def test_users_are_reported_with_their_children_and_since_when() -> None:
    text = (
        '{"28290": ["28290", "28305"]}\n28290 alice Thu Oct  4 09:12:01 2018\n28305 alice    Thu Oct  4 09:12:10 2018\n'
    )
    dump = legacy_files.parse_legacy_users(text.encode(), NOW)
    assert [(row.pid, row.user, row.gpu_pid, row.elapsed) for row in dump.rows] == [
        (28290, "alice", 28290, 39),
        (28305, "alice", 28290, 30),
    ]
    assert dump.problems == ()


@pytest.mark.parametrize("text", ["", "28290 alice Thu Oct  4 09:12:01 2018\n"])
def test_a_users_file_without_the_line_of_children_is_fine(text: str) -> None:
    dump = legacy_files.parse_legacy_users(text.encode(), NOW)
    assert len(dump.rows) == len(text.splitlines())
    assert dump.problems == ()


def test_the_lines_of_the_status_file_are_told_apart_by_what_they_hold() -> None:
    status = (
        "/dev/sda1  102400000 51200000 51200000 50% /local\n"
        "Mem:  515000  100000  20000  10  395000  400000\n"
        "64\n"
        " 09:12:40 up 10 days,  1:02,  3 users,  load average: 0,54, 0,31, 0,14\n"
    )
    (facts,) = legacy_files.parse_legacy_facts(status.encode(), b"", b"12G\t/local/alice\n1,5T\t/local/bob\n").rows
    assert (facts.memory_total, facts.memory_available, facts.cpus, facts.load) == (
        515000,
        400000,
        64,
        (0.54, 0.31, 0.14),
    )
    assert [(disk.mount, disk.total, disk.used) for disk in facts.disks] == [("/local", 100000, 50000)]
    assert [(use.path, use.used) for use in facts.disk_use] == [("/local/alice", 12288), ("/local/bob", 1.5 * 1024**2)]


def test_a_missing_disk_line_moves_nothing() -> None:
    (facts,) = legacy_files.parse_legacy_facts(b"Mem: 8000 1 2\n4\nup, load average: 1.50, 1.25, 1.00\n", b"", b"").rows
    assert (facts.memory_total, facts.memory_available, facts.cpus, facts.load) == (8000, None, 4, (1.5, 1.25, 1.0))
    assert facts.disks == ()


def test_disks_come_from_their_own_file_too() -> None:
    text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 2048 1024 1024 50% /data/my things\n"
    (facts,) = legacy_files.parse_legacy_facts(b"", text.encode(), b"").rows
    assert [(disk.mount, disk.total, disk.used) for disk in facts.disks] == [("/data/my things", 2, 1)]


def test_disks_are_real_ones_as_the_collector_has_them() -> None:
    text = """Filesystem 1024-blocks Used Available Capacity Mounted on
udev 2048 0 2048 0% /dev
tmpfs 2048 1 2047 1% /run
/dev/nvme0n1p2 2048 1024 1024 50% /
tmpfs 2048 1 2047 1% /dev/shm
tmpfs 2048 1 2047 1% /mnt/ram
efivarfs 256 100 156 40% /sys/firmware/efi/efivars
/dev/nvme0n1p1 2048 5 2043 1% /boot/efi
/dev/loop3 2048 2048 0 100% /snap/core20/1974
/dev/loop7 2048 2048 0 100% /mnt/image
overlay 2048 1024 1024 50% /var/lib/docker/overlay2/6f/merged
shm 2048 0 2048 0% /var/lib/docker/containers/6f/mounts/shm
/dev/mapper/docker-8:1-6f 2048 0 2048 0% /var/lib/docker/devicemapper/mnt/6f
/dev/nvme0n1p2 2048 1024 1024 50% /var/lib/bind
/dev/sdb1 4096 2048 2048 50% /var/lib/docker
tank/local 4096 1024 3072 25% /local
none 2048 0 2048 0% /mnt/none
/dev/sr0 2048 2048 0 100% /media/cdrom
/dev/sdc1 0 0 0 - /mnt/empty
"""
    (facts,) = legacy_files.parse_legacy_facts(b"tmpfs 2048 1 2047 1% /tmp\n", text.encode(), b"").rows
    assert [disk.mount for disk in facts.disks] == ["/", "/var/lib/docker", "/local"]
    (facts,) = legacy_files.parse_legacy_facts(b"", b"overlay 2048 1024 1024 50% /\n", b"").rows
    assert [disk.mount for disk in facts.disks] == ["/"]


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_nothing_makes_the_readers_fail(body: bytes) -> None:
    for data in (body, gpu_row(0, 0).encode() + body, f"{AT.format(0)}, GPU-0, 1, ".encode() + body, b'{"1": [' + body):
        legacy_files.parse_legacy_gpus(data)
        legacy_files.parse_legacy_processes(data, NOW)
        legacy_files.parse_legacy_users(data, NOW)
        legacy_files.parse_legacy_facts(data, data, data)


def test_a_row_that_has_words_in_the_place_of_a_process_is_none() -> None:
    moment = "2018/10/04 09:12:01.123"
    words = "[Not Supported], [Not Supported], [Not Supported]"
    dump = legacy_files.parse_legacy_processes(
        f"{moment}, GPU-1, {words}\n{moment}, GPU-2, 512, python, 42\n".encode(), None
    )
    assert [(row.gpu_key, row.pid) for row in dump.rows] == [("GPU-2", 42)]
    assert (dict(dump.unreported), dump.tool_results) == ({"GPU-1": "N/A"}, ())
    dump = legacy_files.parse_legacy_processes(f"{moment}, [N/A], {words}\n".encode(), None)
    assert (dump.rows, [voice.is_complete for voice in dump.tool_results]) == ((), [False])


def test_the_memory_of_a_gpu_on_the_chip_of_the_cpu_is_that_of_its_host() -> None:
    rows = [
        f"{n}, GPU-{n}, {name}, [N/A], [N/A], 5, 1, 40, {AT.format(1)}\n"
        for n, name in enumerate(("NVIDIA GB10", "T4"))
    ]
    dump, _ = legacy_files.parse_legacy_gpus("".join(rows).encode())
    assert [gpu.is_memory_shared for gpu in dump.rows] == [True, False]
