"""ps.txt and host.txt at their limits: what is too much, what is missing, and which rows of a large file are parsed."""

from __future__ import annotations

import pytest

from site_builder.core.model import Disk, DiskUse, HostFacts, ParsedFile, PsRow
from site_builder.snapshots.envelope import MAX_COLUMNS, MAX_NAME_CHARACTERS
from site_builder.snapshots.parsers import host_and_ps_txt
from site_builder.snapshots.parsers.host_and_ps_txt import parse_host_disk, parse_host_disk_use, parse_ps_txt
from tests.support.samples import snapshot

COLUMNS = "pid\tppid\tgpu_pid\tstate\tcommand\n"


def host_facts(*lines: str) -> ParsedFile[HostFacts]:
    return host_and_ps_txt.parse_host_txt(snapshot("host", "".join(f"{line}\n" for line in lines).encode()))


def ps_file(*rows: str, columns: str = COLUMNS) -> bytes:
    return snapshot("ps", (columns + "".join(f"{row}\n" for row in rows)).encode())


def listed_pids(dump: ParsedFile[PsRow]) -> list[int]:
    return [row.pid for row in dump.rows]


# host.txt


@pytest.mark.parametrize(
    ("key", "most", "field"),
    [
        ("cpus", 1_000_000, "cpus"),
        ("memory_total", 1_000_000_000_000, "memory_total"),
        ("memory_available", 1_000_000_000_000, "memory_available"),
        ("uptime", 100 * 366 * 86400, "uptime"),
        ("disk_use_time", 32_503_680_000, "disk_use_time"),
    ],
)
def test_a_value_that_no_machine_has_is_a_problem_and_not_used(key: str, most: int, field: str) -> None:
    dump = host_facts(f"{key}={most}")
    assert (getattr(dump.rows[0], field), dump.problems) == (most, ())
    dump = host_facts(f"{key}={most + 1}")
    assert getattr(dump.rows[0], field) is None
    assert dump.problems == (f"{key} is {most + 1}, which is impossible: it is ignored",)
    dump = host_facts(f"{key}={'9' * 60}")
    assert dump.problems == (f"{key} is {'9' * 40}, which is impossible: it is ignored",)


def test_words_in_the_place_of_a_value_are_no_problem() -> None:
    dump = host_facts("cpus=many", "uptime=")
    assert (dump.rows[0].cpus, dump.rows[0].uptime, dump.problems) == (None, None, ())


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("1 2 3", (1, 2, 3)),
        ("0.5  1\t10000000", (0.5, 1, 10_000_000)),
        ("1 2 10000001", None),
        ("1 2", None),
        ("1 2 3 4", None),
        ("1 2 x", None),
        ("1 2 3 x", None),
    ],
)
def test_a_load_is_three_numbers(text: str, loads: tuple[float, float, float] | None) -> None:
    dump = host_facts(f"load={text}")
    assert dump.rows[0].load == loads
    assert dump.problems == (() if loads else (f"not three load numbers: {text}",))


def test_of_a_long_load_the_beginning_is_quoted() -> None:
    assert host_facts(f"load={'x' * 50}").problems == (f"not three load numbers: {'x' * 40}",)


def test_a_value_may_have_an_equals_sign_and_is_an_extra_one_where_it_is_not_known() -> None:
    assert host_facts("kernel=6.1=x", "cpus=4").rows[0].extra == {"kernel": "6.1=x"}


def test_an_address_stands_behind_the_first_space() -> None:
    assert host_facts("interface=eth0 192.0.2.7 24", "interface=lo").rows[0].interfaces == (
        ("eth0", "192.0.2.7 24"),
        ("lo", ""),
    )


def test_a_long_line_is_cut() -> None:
    assert host_facts(f"kernel={'x' * 1000}").rows[0].extra == {"kernel": "x" * 993}
    assert host_facts("x" * 200).problems == (f"not a key=value line: {'x' * 80}",)


def test_of_2000_lines_all_count_and_of_more_the_first() -> None:
    lines = [f"key{number}=1" for number in range(1999)]
    dump = host_facts(*lines, "cpus=4")
    assert (dump.rows[0].cpus, len(dump.rows[0].extra), dump.problems) == (4, 1999, ())
    dump = host_facts("more=1", *lines, "cpus=4")
    assert (dump.rows[0].cpus, len(dump.rows[0].extra)) == (None, 2000)
    assert dump.problems == ("it has 2001 lines; only the first 2000 count",)


def test_of_500_disks_all_count_and_of_more_the_first() -> None:
    disks = [f"disk=2 1 /{number}" for number in range(501)]
    assert len(host_facts(*disks[:500]).rows[0].disks) == 500
    assert host_facts(*disks).rows[0].disks[-1].mount == "/499"


def test_a_host_file_without_a_first_line_has_no_facts() -> None:
    dump = host_and_ps_txt.parse_host_txt(b"cpus=4\n")
    assert (dump.rows, dump.is_complete) == ((), False)
    assert dump.problems == ("the first line is not a gpuboard snapshot header",)


def test_a_torn_host_file_keeps_its_facts_and_its_messages() -> None:
    dump = host_and_ps_txt.parse_host_txt(snapshot("host", b"# err no lscpu\ncpus=4\n").removesuffix(b"# end\n"))
    assert dump.header is not None
    assert (dump.rows[0].cpus, dump.is_complete, dump.messages, len(dump.problems)) == (4, False, ("no lscpu",), 1)


@pytest.mark.parametrize(
    ("text", "disk", "problem"),
    [
        ("10000000000000 10000000000000 /", Disk("/", 1e13, 1e13), None),
        ("0 0 /a b", Disk("/a b", 0, 0), None),
        ("10000000000001 1 /", None, "a disk with an impossible size: 10000000000001 1 /"),
        ("1 10000000000001 /", None, "a disk with an impossible size: 1 10000000000001 /"),
        ("1 x /", None, "not a disk: 1 x /"),
        ("x 1 /", None, "not a disk: x 1 /"),
        ("1 1", None, "not a disk: 1 1"),
        ("x" * 90, None, "not a disk: " + "x" * 80),
        ("10000000000001 1 /" + "x" * 90, None, "a disk with an impossible size: 10000000000001 1 /" + "x" * 62),
    ],
)
def test_a_disk_has_a_size_its_use_and_a_place(text: str, disk: Disk | None, problem: str | None) -> None:
    problems: list[str] = []
    assert parse_host_disk(text, problems) == disk
    assert problems == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("text", "use", "problem"),
    [
        ("2048 /a b", DiskUse("/a b", 2), None),
        ("2048K /a", DiskUse("/a", 2), None),
        ("1.5M /a", DiskUse("/a", 1.5), None),
        ("2G /a", DiskUse("/a", 2048), None),
        ("1,5GiB /a", DiskUse("/a", 1536), None),
        ("1T /a", DiskUse("/a", 2**20), None),
        ("1P /a", DiskUse("/a", 2**30), None),
        ("1E /a", DiskUse("/a", 2**40), None),
        ("10000000000000M /a", DiskUse("/a", 1e13), None),
        ("10000000000001M /a", None, "a du line with an impossible size: 10000000000001M /a"),
        ("1X /a", None, "not a du line: 1X /a"),
        ("1G", None, "not a du line: 1G"),
        ("x" * 90, None, "not a du line: " + "x" * 80),
        ("99999999999999M /" + "x" * 90, None, "a du line with an impossible size: 99999999999999M /" + "x" * 63),
    ],
)
def test_a_line_of_du_has_a_size_and_a_path(text: str, use: DiskUse | None, problem: str | None) -> None:
    problems: list[str] = []
    assert parse_host_disk_use(text, problems) == use
    assert problems == ([] if problem is None else [problem])


# ps.txt


def test_only_the_rows_of_the_processes_on_gpus_are_parsed() -> None:
    data = ps_file("41\t1\t41\tS\ta", "42\t1\t42\tS\tb", "43\t42\t42\tS\tc")
    assert listed_pids(parse_ps_txt(data)) == [41, 42, 43]
    assert listed_pids(parse_ps_txt(data, [42, 7])) == [42]
    assert listed_pids(parse_ps_txt(data, [])) == []


def test_of_a_process_that_is_dead_or_gone_the_children_are_parsed_too() -> None:
    rows = ("42\t1\t42\tZ\tdead", "50\t42\t42\tS\tchild", "51\t42\t42\tZ\tdead child", "60\t1\t60\tS\tother")
    assert listed_pids(parse_ps_txt(ps_file(*rows), [42])) == [42, 50, 51]
    assert listed_pids(parse_ps_txt(ps_file(*rows[1:]), [42])) == [50, 51]
    assert listed_pids(parse_ps_txt(ps_file(*rows), [42, 60])) == [42, 60, 50, 51]


def test_where_the_pid_is_not_the_first_column_all_rows_are_parsed() -> None:
    data = ps_file("1\t42\ta", "1\t43\tb", columns="ppid\tpid\tcommand\n")
    assert listed_pids(parse_ps_txt(data, [42])) == [42, 43]


def test_a_row_that_is_cut_within_its_pid_hides_no_other_process() -> None:
    assert listed_pids(parse_ps_txt(ps_file("42\t1\t42\tS\tb", "427"), [42])) == [42]


def test_a_process_has_its_own_pid_in_its_container_or_another() -> None:
    rows = parse_ps_txt(ps_file("42\t1\t42\tS\ta", "43\t1\t40\tS\tb", "44\t1\t-\tS\tc")).rows
    assert [row.gpu_pid for row in rows] == [42, 40, None]


def test_long_cells_of_a_process_are_cut() -> None:
    data = ps_file("\t".join(["42", "u" * 300, "S" * 20, "x" * 5000]), columns="pid\tuser\tstate\tcommand\n")
    (row,) = parse_ps_txt(data).rows
    assert (row.user, row.state, row.command) == ("u" * MAX_NAME_CHARACTERS, "S" * 10, "x" * 4096)


def test_only_tabs_separate_cells() -> None:
    (row,) = parse_ps_txt(ps_file("42\tbob smith\tpython x", columns="pid\tuser\tcommand\n")).rows
    assert (row.user, row.command) == ("bob smith", "python x")


def test_an_empty_cell_is_not_available_and_so_is_one_that_is_missing() -> None:
    data = ps_file("42\t\t\t", "43", columns="pid\tuser\tcontainer\timage\tpod\tperson\tcommand\n")
    for row in parse_ps_txt(data).rows:
        assert (row.user, row.container, row.image, row.pod, row.person, row.command) == (None,) * 6


def test_more_columns_than_there_can_be_are_a_problem() -> None:
    most = MAX_COLUMNS
    names = ["pid", "command", *(f"c{number}" for number in range(most - 2))]
    dump = parse_ps_txt(ps_file("42\tx", columns="\t".join(names) + "\n"))
    assert (listed_pids(dump), dump.problems) == ([42], ())
    dump = parse_ps_txt(ps_file("42\tx", columns="\t".join([*names, "more"]) + "\n"))
    assert dump.problems == (f"it has {most + 1} columns, which is impossible: the file is ignored",)
    assert dump.rows == ()


@pytest.mark.parametrize("columns", ["pid\tuser\n", "user\tcommand\n"])
def test_a_ps_file_without_pids_or_commands_is_a_problem(columns: str) -> None:
    dump = parse_ps_txt(ps_file("42\tx", columns=columns))
    assert (dump.rows, dump.problems) == ((), ("the line with the column names is missing",))


def test_an_empty_ps_file_is_no_problem() -> None:
    dump = parse_ps_txt(snapshot("ps", b""))
    assert (dump.rows, dump.problems, dump.is_complete) == ((), (), True)


def test_of_ten_thousand_rows_all_count_and_of_more_the_first() -> None:
    rows = [f"{pid}\t1\t{pid}\tS\tx" for pid in range(1, 10_002)]
    dump = parse_ps_txt(ps_file(*rows[:-1]))
    assert (len(dump.rows), dump.problems) == (10_000, ())
    dump = parse_ps_txt(ps_file(*rows))
    assert len(dump.rows) == 10_000
    assert dump.problems == ("10001 processes are reported; only the first 10000 are used",)


def test_a_torn_ps_file_keeps_its_rows_and_its_messages() -> None:
    dump = parse_ps_txt(ps_file("# err no docker", "42\t1\t42\tS\tx").removesuffix(b"# end\n"))
    assert dump.header is not None
    assert (listed_pids(dump), dump.is_complete, dump.messages, len(dump.problems)) == ([42], False, ("no docker",), 1)
