"""The files of the original scripts at their edges: odd times, short rows, old rows, words in the place of readings."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from site_builder.core.model import Disk, Gpu, GpuProcessRow, PsRow
from site_builder.core.terminal_text import MAX_MESSAGES
from site_builder.snapshots.parsers import host_and_ps_txt
from site_builder.snapshots.parsers.legacy_files import (
    MAX_GPUS,
    MAX_LINES,
    OLD_ROW_ERROR,
    compute_legacy_process_age,
    parse_legacy_df_row,
    parse_legacy_facts,
    parse_legacy_gpus,
    parse_legacy_processes,
    parse_legacy_timestamp,
    parse_legacy_users,
)

NOON = datetime(2018, 10, 4, 12, 0, 0)


def stamp(seconds: float = 0) -> str:
    return (NOON + timedelta(seconds=seconds)).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]


def gpu_row(index: object = 0, seconds: float = 0, cells: str = "1, 2, 3, 4, 5", uuid: str | None = None) -> str:
    return f"{index}, {uuid or f'GPU-{index}'}, T4, {cells}, {stamp(seconds)}"


def gpus_of(*lines: str) -> tuple[Gpu, ...]:
    return parse_legacy_gpus("\n".join(lines).encode())[0].rows


def process_row(pid: object = 42, seconds: float = 0, on: str = "GPU-0", memory: str = "7", name: str = "x") -> str:
    return f"{stamp(seconds)}, {on}, {memory}, {name}, {pid}"


def pids_of(*lines: str, now: datetime | None = NOON) -> list[int | None]:
    return [row.pid for row in parse_legacy_processes("\n".join(lines).encode(), now).rows]


# Times


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("2018/10/04 09:12:01.123", datetime(2018, 10, 4, 9, 12, 1, 123_000)),
        ("2018/10/04 09:12:01.1", datetime(2018, 10, 4, 9, 12, 1, 100_000)),
        ("2018/10/04 09:12:01.000007", datetime(2018, 10, 4, 9, 12, 1, 7)),
        ("2018/10/04 09:12:01", datetime(2018, 10, 4, 9, 12, 1)),
        ("2018/13/04 09:12:01", None),
        ("2018/10/04 09:12", None),
        ("2018/10/04 09:12:01.", None),
        (" 2018/10/04 09:12:01", None),
        ("", None),
    ],
)
def test_a_time_has_a_date_and_perhaps_a_fraction(cell: str, expected: datetime | None) -> None:
    assert parse_legacy_timestamp(cell) == expected


# GPUs


def test_each_cell_of_a_row_has_its_place() -> None:
    assert gpus_of(gpu_row(3)) == (
        Gpu(
            3,
            "GPU-3",
            "T4",
            memory_used=1,
            memory_total=2,
            utilization_gpu=3,
            utilization_memory=4,
            temperature=5,
        ),
    )


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        ("ERR!, 2, 3, 4, 5", "its memory cannot be read: ERR!"),
        ("1, ERR!, 3, 4, 5", "its memory cannot be read: ERR!"),
        ("1, 2, ERR!, 4, 5", "its use cannot be read: ERR!"),
        ("1, 2, 3, ERR!, 5", "its use cannot be read: ERR!"),
        ("1, 2, 3, 4, ERR!", "its temperature cannot be read: ERR!"),
        ("ERR!, P8, 2, 3, 4, 5", "its memory cannot be read: ERR!"),
        ("1, P8, 3, 4, ERR!", "its temperature cannot be read: ERR!"),
        ("1, P8, 2, ERR!, 4, 5", "its use cannot be read: ERR!"),
        ("1, 2, 3, 4, 5", None),
    ],
)
def test_an_error_in_the_place_of_a_reading_is_named(cells: str, error: str | None) -> None:
    (gpu,) = gpus_of(gpu_row(0, 0, cells))
    assert (gpu.error, gpu.lost) == (error, None)


@pytest.mark.parametrize(
    ("cells", "lost"),
    [
        ("ERR!, 2, ERR!, ERR!, ERR!", "ERR!"),
        ("1, 2, ERR!, ERR!, ERR!", None),
        ("ERR!, 2, 3, ERR!, ERR!", None),
        ("ERR!, 2, ERR!, ERR!, 5", None),
        ("1, 2, 3, 4, GPU is lost", "GPU is lost"),
        ("[N/A], 2, [N/A], [N/A], [N/A]", None),
    ],
)
def test_a_gpu_is_lost_if_it_says_so_or_errs_and_has_no_live_reading(cells: str, lost: str | None) -> None:
    (gpu,) = gpus_of(gpu_row(0, 0, cells))
    assert gpu.lost == lost


def test_a_row_of_less_than_nine_cells_is_a_message() -> None:
    dump, newest = parse_legacy_gpus(f" 0, GPU-0, T4, 1, 2, 3, 4, {stamp()} \n\n".encode())
    assert (dump.rows, dump.messages, newest) == ((), (f"0, GPU-0, T4, 1, 2, 3, 4, {stamp()}",), None)


def test_a_row_without_a_time_counts() -> None:
    dump, newest = parse_legacy_gpus(b"0, GPU-0, T4, 1, 2, 3, 4, 5, soon\n")
    assert ([gpu.uuid for gpu in dump.rows], newest, dump.messages) == (["GPU-0"], None, ())


def test_the_newest_time_is_that_of_any_row_of_a_gpu() -> None:
    text = "\n".join([gpu_row(0, 40), gpu_row(1, 20), "2, GPU-2, T4, 1, 2, 3, 4, 5, soon"])
    assert parse_legacy_gpus(text.encode())[1] == NOON + timedelta(seconds=40)


def test_a_row_of_errors_without_a_uuid_makes_the_others_old() -> None:
    errors = ", ".join(["[Unknown Error]"] * 7)
    (gpu,) = gpus_of(gpu_row(0, 0), f"0, {errors}, {stamp(91)}")
    assert gpu.error == OLD_ROW_ERROR
    (gpu,) = gpus_of(gpu_row(0, 0), f"0, [Unknown Error], {', '.join(['7'] * 6)}, {stamp(91)}")
    assert gpu.error == OLD_ROW_ERROR
    (gpu,) = gpus_of(gpu_row(0, 0), f"0, {', '.join(['7'] * 7)}, {stamp(91)}")
    assert gpu.error is None


@pytest.mark.parametrize(("seconds", "error"), [(90, None), (90.001, OLD_ROW_ERROR)])
def test_a_gpu_that_has_no_row_for_90_seconds_is_unknown(seconds: float, error: str | None) -> None:
    old, new = gpus_of(gpu_row(0, 0), gpu_row(1, seconds))
    assert (old.error, new.error) == (error, None)


def test_an_error_of_an_old_row_stays() -> None:
    old, _ = gpus_of(gpu_row(0, 0, "1, 2, ERR!, 4, 5"), gpu_row(1, 100))
    assert old.error == "its use cannot be read: ERR!"


def test_gpus_stand_in_the_order_of_their_numbers_and_those_without_one_last() -> None:
    handle = "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost"
    gpus = gpus_of(gpu_row("x"), gpu_row(2), handle, gpu_row(0), handle)
    assert parse_legacy_gpus(f" {handle} ".encode())[0].messages == (handle,)
    assert [(gpu.index, gpu.lost) for gpu in gpus] == [(0, None), (2, None), (None, None), (None, "GPU is lost")]


def test_of_many_lines_the_last_are_read() -> None:
    assert [gpu.index for gpu in gpus_of(gpu_row(0), *[gpu_row(1)] * MAX_LINES)] == [1]
    assert [gpu.index for gpu in gpus_of(gpu_row(0), *[gpu_row(1)] * (MAX_LINES - 1))] == [0, 1]


def test_of_many_gpus_and_messages_the_first_are_kept() -> None:
    assert len(gpus_of(*(gpu_row(index) for index in range(MAX_GPUS + 1)))) == MAX_GPUS
    handle = "Unable to determine the device handle for GPU {:08x}:03:00.0: x"
    assert len(gpus_of(*(handle.format(index) for index in range(MAX_GPUS + 1)))) == MAX_GPUS
    dump, _ = parse_legacy_gpus(b"words\n" * (MAX_MESSAGES + 1))
    assert len(dump.messages) == MAX_MESSAGES


# Processes


def test_each_cell_of_a_process_has_its_place() -> None:
    dump = parse_legacy_processes(process_row(42, memory="7 MiB", name="a, b").encode() + b"\n words \n", NOON)
    assert dump.rows == (GpuProcessRow("GPU-0", 42, 7, "a, b"),)
    assert (dump.messages, dump.unreported) == (("words",), {})
    (row,) = parse_legacy_processes(process_row("42 ", name="[Not Found]").encode(), None).rows
    assert (row.pid, row.name) == (42, None)


@pytest.mark.parametrize("line", ["2018/10/04 12:00:00, GPU-0, 7, 42", "soon, GPU-0, 7, x, 42"])
def test_a_row_of_a_process_that_cannot_be_read_is_a_message(line: str) -> None:
    dump = parse_legacy_processes(line.encode(), NOON)
    assert (dump.rows, dump.messages) == ((), (line,))


@pytest.mark.parametrize(("seconds", "expected"), [(5, [1, 2]), (5.001, [2])])
def test_the_rows_of_five_seconds_are_one_sample(seconds: float, expected: list[int]) -> None:
    assert pids_of(process_row(1, 0), process_row(2, seconds)) == expected
    assert pids_of(process_row(2, seconds), process_row(1, 0)) == expected[::-1]


@pytest.mark.parametrize(("seconds", "expected"), [(90, [42]), (90.001, [])])
def test_a_sample_older_than_90_seconds_does_not_count(seconds: float, expected: list[int]) -> None:
    assert pids_of(process_row(), now=NOON + timedelta(seconds=seconds)) == expected
    assert pids_of(process_row(), now=None) == [42]


def test_rows_from_before_the_clock_was_set_back_do_not_hide_those_after() -> None:
    assert pids_of(process_row(1, 3600), process_row(2, -20), process_row(3, 0)) == [3]
    assert pids_of(process_row(1, 300), process_row(2, 0)) == [1]


def test_rows_ahead_of_the_gpus_count_until_their_file_is_outdated() -> None:
    text = "\n".join([process_row(42, 3600), "words"]).encode()
    assert [row.pid for row in parse_legacy_processes(text, NOON).rows] == [42]
    dump = parse_legacy_processes(text, NOON, is_outdated=True)
    assert (dump.rows, dump.messages, dump.tool_results) == ((), ("words",), ())


def test_of_two_rows_of_a_process_in_a_sample_the_last_counts() -> None:
    dump = parse_legacy_processes("\n".join([process_row(memory="1"), process_row(memory="2")]).encode(), NOON)
    assert [row.used_memory for row in dump.rows] == [2]
    assert pids_of(process_row(on="GPU-0"), process_row(on="GPU-1")) == [42, 42]


def test_words_in_the_place_of_a_process_say_that_none_of_its_gpu_is_reported() -> None:
    hidden = [process_row("[N/A]", on=key, memory="[N/A]", name="[N/A]") for key in ("GPU-1", "MIG-2")]
    dump = parse_legacy_processes("\n".join([process_row(42), *hidden]).encode(), NOON)
    assert [row.pid for row in dump.rows] == [42]
    assert (dump.unreported, dump.tool_results) == ({"GPU-1": "N/A", "MIG-2": "N/A"}, ())


def test_words_in_the_place_of_a_process_and_its_gpu_say_that_nothing_is_reported() -> None:
    hidden = process_row("[N/A]", on="[N/A]", memory="[N/A]", name="[N/A]")
    dump = parse_legacy_processes("\n".join([process_row(42), hidden, "words"]).encode(), NOON)
    (result,) = dump.tool_results
    assert (result.tool, result.vendor, result.rc, result.messages) == ("nvidia-smi", "nvidia", 0, ("words",))
    assert (result.is_complete, dump.unreported, [row.pid for row in dump.rows]) == (False, {}, [42])


def test_of_many_lines_of_processes_the_last_are_read() -> None:
    assert pids_of(process_row(1), *[process_row(2)] * MAX_LINES) == [2]
    assert pids_of(process_row(1), *[process_row(2)] * (MAX_LINES - 1)) == [1, 2]
    dump = parse_legacy_processes(b"words\n" * (MAX_MESSAGES + 1), NOON)
    assert len(dump.messages) == MAX_MESSAGES


# Users

PS = "42 alice Thu Oct  4 11:59:00 2018"


def test_a_row_of_ps_has_a_pid_a_user_and_its_start() -> None:
    dump = parse_legacy_users(f"{PS}\n\n 7 VISION\\bob smith   Thu Oct  4 12:00:07 2018 \n".encode(), NOON)
    assert dump.rows == (
        PsRow(42, gpu_pid=42, user="alice", elapsed=60),
        PsRow(7, gpu_pid=7, user="VISION\\bob smith", elapsed=0),
    )
    assert dump.problems == ()


@pytest.mark.parametrize(
    "families",
    [
        {"40": ["42", "x"]},
        {"40": [42]},
        {"40": ["42"], "x": ["42"]},
    ],
)
def test_a_process_belongs_to_the_gpu_process_whose_child_it_is(families: object) -> None:
    dump = parse_legacy_users(f"{json.dumps(families)}\n{PS}\n".encode(), NOON)
    assert ([row.gpu_pid for row in dump.rows], dump.problems) == ([40], ())


@pytest.mark.parametrize("line", ["{", '{"40": 42}', '{"40": null}', " {not json}"])
def test_a_line_of_children_that_cannot_be_read_is_a_problem(line: str) -> None:
    dump = parse_legacy_users(f"{line}\n{PS}\n".encode(), NOON)
    assert [row.gpu_pid for row in dump.rows] == [42]
    assert dump.problems == ("the line with the children of GPU processes is not valid JSON",)


def test_another_line_is_a_problem_and_costs_itself_alone() -> None:
    dump = parse_legacy_users(f"{'x' * 90}\n{PS}\n".encode(), NOON)
    assert ([row.pid for row in dump.rows], dump.problems) == ([42], (f"not a row of ps: {'x' * 80}",))
    assert len(parse_legacy_users(b"x\n" * (MAX_MESSAGES + 1), NOON).problems) == MAX_MESSAGES


def test_of_many_users_the_first_are_read() -> None:
    assert len(parse_legacy_users(f"{PS}\n".encode() * (MAX_LINES + 1), NOON).rows) == MAX_LINES


@pytest.mark.parametrize(
    ("start", "age"),
    [
        ("Oct  4 11:59:00 2018", 60),
        ("Sep 30 12:00:00 2018", 4 * 86400),
        ("Jan  1 12:00:00 2018", 276 * 86400),
        ("Oct  4 12:00:01 2018", 0),
        ("Okt  4 11:59:00 2018", None),
        ("Feb 30 11:59:00 2018", None),
        ("yesterday", None),
    ],
)
def test_the_age_of_a_process_is_counted_in_the_time_of_its_host(start: str, age: int | None) -> None:
    assert compute_legacy_process_age(start, NOON) == age
    assert compute_legacy_process_age(start, None) is None


# Facts


@pytest.mark.parametrize(
    ("line", "disk"),
    [
        ("/dev/sda1 2048 1024 1024 50% /a b", Disk("/a b", 2, 1)),
        ("/dev/sda1 2048 1024 1024 50% a", None),
        ("/dev/sda1 2048 1024 1024 50 /a", None),
        ("/dev/sda1 2048 1024 1024 50%", None),
        ("/dev/sda1 - 1024 1024 50% /a", None),
        ("/dev/sda1 2048 - 1024 50% /a", None),
        ("/dev/sda1 0 0 0 50% /a", None),
        ("/dev/fuse 2048 0 2048 0% /etc/pve", None),
        ("/dev/sda1 2048 1024 1024 50% /bootable", Disk("/bootable", 2, 1)),
    ],
)
def test_a_row_of_df_is_a_disk(line: str, disk: Disk | None) -> None:
    assert parse_legacy_df_row(line) == disk


@pytest.mark.parametrize(
    ("line", "memory"),
    [
        ("Mem: 1 2 3 4 5 6", (1, 6)),
        ("Mem: 1 2 3 4 5", (1, None)),
        ("Mem: 1 2", (1, None)),
        ("Mem: 1", (None, None)),
        ("Swap: 1 2 3 4 5 6", (None, None)),
    ],
)
def test_memory_is_the_first_number_and_what_is_available_the_sixth(
    line: str, memory: tuple[float | None, float | None]
) -> None:
    (facts,) = parse_legacy_facts(f"{line}\n".encode(), b"", b"").rows
    assert (facts.memory_total, facts.memory_available) == memory


@pytest.mark.parametrize(
    ("line", "load"),
    [
        ("load average: 1.5, 1.25, 1.0", (1.5, 1.25, 1)),
        ("up 3 days, load averages: 1,5 1,25 1,0 ", (1.5, 1.25, 1)),
        ("load average: 1.5, 1.25, 1.0.0", None),
        ("load average: 1.5, 1.25", None),
    ],
)
def test_a_load_is_three_numbers_with_a_dot_or_a_comma(line: str, load: tuple[float, ...] | None) -> None:
    (facts,) = parse_legacy_facts(f"{line}\n".encode(), b"", b"").rows
    assert facts.load == load


@pytest.mark.parametrize(("line", "cpus"), [("64", 64), (" 64 ", 64), ("64 65", None), ("x", None), ("-4", None)])
def test_a_number_alone_counts_the_cpus(line: str, cpus: int | None) -> None:
    (facts,) = parse_legacy_facts(f"{line}\n".encode(), b"", b"").rows
    assert facts.cpus == cpus


def test_a_disk_in_both_files_counts_once_as_its_own_file_has_it() -> None:
    status = b"/dev/sda1 4096 0 0 0% /a\n/dev/sdb1 1024 0 0 0% /b\n/dev/sdb1 9 0 0 0% /b\n"
    (facts,) = parse_legacy_facts(status, b"/dev/sda1 2048 1024 1024 50% /a\n", b"").rows
    assert facts.disks == (Disk("/a", 2, 1), Disk("/b", 1, 0))


def test_disk_use_has_a_tab_behind_its_size() -> None:
    dump = parse_legacy_facts(b"", b"", b" 12M \t /local/alice \n12M /local/bob\nmany\t/local/carol\n5M\t/d\te\n")
    (facts,) = dump.rows
    assert [(use.path, use.used) for use in facts.disk_use] == [("/local/alice", 12), ("/d\te", 5)]
    assert dump.problems == ("not a du line: many /local/carol",)
    assert len(parse_legacy_facts(b"", b"", b"x\t/y\n" * (MAX_MESSAGES + 1)).problems) == MAX_MESSAGES


def test_of_many_facts_the_first_lines_are_read() -> None:
    most = host_and_ps_txt.MAX_LINES
    (facts,) = parse_legacy_facts(b"x\n" * (most - 1) + b"64\n", b"", b"").rows
    assert facts.cpus == 64
    (facts,) = parse_legacy_facts(b"x\n" * most + b"64\n", b"", b"").rows
    assert facts.cpus is None
