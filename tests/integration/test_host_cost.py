"""What one host may cost a build: size, number of entries and time are limited, and each file is parsed once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from site_builder.board import host_pipeline
from site_builder.board.builder import Builder
from site_builder.core.faults import FAULT_NOTE
from site_builder.snapshots import gpu_tools
from site_builder.snapshots import store as snapshots_store
from site_builder.snapshots.parsers import host_and_ps_txt, legacy_files
from tests.support.board_fixture import GPU_COLUMNS, PROCESS_COLUMNS, PS_COLUMNS, Lab, gpu, person, process, words
from tests.support.pace import within

MIB = 1024 * 1024
PARSERS = {
    "host.txt": (host_and_ps_txt, "parse_host_txt"),
    "gpus.csv": (gpu_tools, "parse_gpus_of_tools"),
    "processes.csv": (gpu_tools, "parse_processes_of_tools"),
    "ps.txt": (host_and_ps_txt, "parse_ps_txt"),
    "_gpus": (legacy_files, "parse_legacy_gpus"),
    "_processes": (legacy_files, "parse_legacy_processes"),
    "_users": (legacy_files, "parse_legacy_users"),
    "_facts": (legacy_files, "parse_legacy_facts"),
}
PERSON = person().replace("42\t1\t42\t42", "{0}\t1\t{0}\t{0}")
LISTED = '{{"gpu": {}, "process_list": [{}]}},\n'


@pytest.fixture(autouse=True)
def nothing_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has parsed nothing yet."""
    monkeypatch.setattr(snapshots_store, "CHEAP_CACHE", snapshots_store.ParseCache(snapshots_store.MAX_CHEAP_BYTES))
    monkeypatch.setattr(
        snapshots_store, "EXPENSIVE_CACHE", snapshots_store.ParseCache(snapshots_store.MAX_EXPENSIVE_BYTES)
    )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab with a good host, which must be shown whatever else there is."""
    made = Lab(tmp_path)
    made.host("good", gpu(0, 7000, 97, uuid="GPU-good"), process(1, "GPU-good"), person(1, "alice"))
    return made


def grown(head: str, row: Callable[[int], str], tail: str = "", size: int = MIB - 400) -> str:
    """Rows up to that size."""
    rows = [head]
    left = size - len(head) - len(tail)
    number = 0
    while (left := left - len(new_row := row(number))) > 0:
        rows.append(new_row)
        number += 1
    return "".join([*rows, tail])


def xml_gpu(number: int, inner: str = "") -> str:
    return f'<gpu id="0000{number:04X}:00:00.0"><uuid>GPU-{number}</uuid>{inner}</gpu>\n'


def xml_log(row: Callable[[int], str]) -> str:
    return grown("# part nvidia-xml rc=0\n<nvidia_smi_log>\n", row, "</nvidia_smi_log>\n")


def info(number: int, kind: str = "C") -> str:
    return f"<process_info><pid>{number}</pid><type>{kind}</type><process_name>p</process_name></process_info>"


# Of each format what takes longest for its size.
HOSTILE: dict[str, tuple[str, Callable[[], str]]] = {
    "rows of GPUs": ("gpus.csv", lambda: grown(f"{GPU_COLUMNS}\n", gpu)),
    "rows with too few cells": ("gpus.csv", lambda: grown(f"{GPU_COLUMNS}\n", lambda _: "1, 2, 3, 4, 5, 6, 7\n")),
    "wide rows": (
        "gpus.csv",
        lambda: grown(
            GPU_COLUMNS + "".join(f", c{n}" for n in range(5000)) + "\n",
            lambda n: gpu(n).rstrip() + ", 1" * 5000 + "\n",
        ),
    ),
    "parts": ("gpus.csv", lambda: grown("", lambda n: f"# part x{n % 100} rc=0\n")),
    "XML with GPUs": ("gpus.csv", lambda: xml_log(xml_gpu)),
    "XML with instances": (
        "gpus.csv",
        lambda: xml_log(lambda n: xml_gpu(n, f"<mig_devices>{'<mig_device/>' * 20000}</mig_devices>")),
    ),
    "XML that is deep": ("gpus.csv", lambda: xml_log(lambda n: xml_gpu(n, "<a>" * 40000 + "</a>" * 40000))),
    "XML that is broken": ("gpus.csv", lambda: xml_log(lambda n: xml_gpu(n, "<a>&" * 100))),
    "XML with processes": (
        "processes.csv",
        lambda: xml_log(lambda n: xml_gpu(n, f"<processes>{''.join(map(info, range(2000)))}</processes>")),
    ),
    "JSON of amd-smi with GPUs": (
        "gpus.csv",
        lambda: grown("# part amd-smi/metric rc=0\n[", lambda n: f'{{"gpu": {n % 1999}, "a": {n}}},\n', "{}]\n"),
    ),
    "JSON of amd-smi with processes": (
        "processes.csv",
        lambda: grown("# part amd-smi/process rc=0\n[", lambda n: LISTED.format(n % 1999, '{"pid": 1}'), "{}]\n"),
    ),
    "text of amd-smi, all blanks": (
        "gpus.csv",
        lambda: grown("# part amd-smi/metric rc=0\nGPU: 0\n", lambda _: " " * 290 + "x\n"),
    ),
    "text of rocm-smi": (
        "gpus.csv",
        lambda: grown("# part rocm-smi rc=0\n", lambda n: f"GPU[{n % 1999}]\t: k {n}: 1\n"),
    ),
    "text of rocm-smi, all blanks": (
        "processes.csv",
        lambda: grown("# part rocm-smi rc=0\nPID  PROCESS NAME\n", lambda _: "1 a" + " " * 290 + "x\n"),
    ),
    "text of rocm-smi, all numbers": (
        "processes.csv",
        lambda: grown("# part rocm-smi rc=0\nPID  PROCESS NAME\n", lambda _: "1 a" + " 1" * 145 + " x\n"),
    ),
    "words of rocm-smi": ("gpus.csv", lambda: grown("# part rocm-smi rc=0\n", lambda n: "= " * 140 + f"{n}\n")),
    "rows of processes": ("processes.csv", lambda: grown(f"{PROCESS_COLUMNS}\n", process)),
    "rows of ps": ("ps.txt", lambda: grown(f"{PS_COLUMNS}\n", PERSON.format)),
    "columns of ps": ("ps.txt", lambda: grown(PS_COLUMNS + "\tx" * 250_000 + "\n", lambda n: f"{n}\n")),
    "facts": ("host.txt", lambda: grown("load=1 1 1\n", lambda n: f"key{n}=v\n")),
    "disks": ("host.txt", lambda: grown("load=1 1 1\n", lambda n: f"disk=10 5 /d{n}\n")),
    "lines that are no facts": ("host.txt", lambda: grown("load=1 1 1\n", lambda _: "x\n")),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_of_1_mib_costs_a_build_less_than_a_second(lab: Lab, kind: str) -> None:
    file, make = HOSTILE[kind]
    body = make()
    builder = Builder(lab.settings(), build_interval_s=10)
    builder.build(time.time())
    lab.host("evil", gpu(0, 7000, 97), process(42), person())
    lab.write("evil", file, body)
    with within(1):
        report = builder.build(time.time() + 1)
    with within(0.2):  # nothing of it is parsed again
        builder.build(time.time() + 2)
    builder.close()
    assert FAULT_NOTE not in words(report)
    assert lab.states("good") == ["busy"]
    assert lab.host_status("evil")["state"] in {"fresh", "failed"}


def test_the_last_good_file_replaces_one_that_is_too_large_and_the_setting_is_named(lab: Lab) -> None:
    lab.host("large", gpu(0))
    lab.build()
    content = grown(f"{GPU_COLUMNS}\n{gpu(0)}", lambda n: f"# {n}\n", size=MIB)
    path = lab.write("large", "gpus.csv", content)
    size = path.stat().st_size
    message = words(lab.build())
    assert message == (
        f"data/large/gpus.csv: not read: it has {size} bytes, and the limit is {MIB}; GPUBOARD_SNAPSHOT_KIB allows more"
    )
    assert lab.states("large") == ["free"]  # which it was when that file came
    assert words(lab.build(snapshot_bytes=2 * MIB)) == ""
    assert lab.states("large") == ["free"]


def test_a_file_that_was_never_read_since_it_is_too_large_is_a_host_with_that_problem(lab: Lab) -> None:
    lab.host("large", gpu(0))
    lab.write("large", "gpus.csv", "x" * MIB)
    assert "data/large/gpus.csv: not read: it has " in words(lab.build())
    assert lab.host_status("large")["state"] == "failed"
    assert "large" not in (lab.www / "available.txt").read_text()


def count_parsing(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each format is parsed."""
    counts: Counter[str] = Counter()

    def counted(file: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*arguments: Any) -> Any:  # noqa: ANN401
            counts[file] += 1
            return read(*arguments)

        return parse

    for file, (module, name) in PARSERS.items():
        monkeypatch.setattr(module, name, counted(file, getattr(module, name)))
    return counts


def test_each_file_is_parsed_once_and_again_only_when_it_changed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_parsing(monkeypatch)
    lab.write("good", "gpus.csv", "NVIDIA-SMI has failed\n", rc=9)  # so that alerts ask for its files too
    builder = Builder(lab.settings(), build_interval_s=10)
    builder.build(time.time())
    assert counts == {file: 1 for file in PARSERS if not file.startswith("_")}
    counts.clear()
    builder.build(time.time() + 60)  # the page is made anew, since time went on
    assert counts == {}
    lab.write("good", "host.txt", "load=2 2 2\n")
    builder.build(time.time() + 61)
    builder.close()
    assert counts == {"host.txt": 1}


def test_a_file_of_the_original_scripts_is_parsed_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "0, GPU-a, Tesla, 10 MiB, 100 MiB, 0 %, 0 %, 40, 2018/10/04 09:12:01.123\n"
    lab.original("old", gpus=row, processes="", users="", status="4\n", disks="", local="")
    counts = count_parsing(monkeypatch)
    lab.build()
    assert {file: count for file, count in counts.items() if file.startswith("_")} == dict.fromkeys(
        ("_gpus", "_processes", "_users", "_facts"), 1
    )


def test_what_is_kept_of_parsed_files_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_store, "CHEAP_CACHE", cheap := snapshots_store.ParseCache(1000))
    monkeypatch.setattr(snapshots_store, "EXPENSIVE_CACHE", snapshots_store.ParseCache(1000))
    for number in range(50):
        content = b"%04d" % number * 25
        assert (
            snapshots_store.parse_stored_snapshot_once((f"h{number}", "x"), content, None, content.decode)
            == content.decode()
        )
    assert len(cheap.entries) == 10
    assert cheap.size == 1000
    assert snapshots_store.parse_stored_snapshot_once(("h49", "x"), b"other", None, lambda: b"new") == b"new"
    assert snapshots_store.parse_stored_snapshot_once(("h49", "x"), b"other", 1, lambda: b"newer") == b"newer"
    assert cheap.size == 905


def test_a_host_that_takes_too_long_is_shown_as_such_and_read_only_now_and_then(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = gpu_tools.parse_gpus_of_tools
    began_at: list[float] = []

    def slow(data: bytes) -> Any:  # noqa: ANN401
        if b"host=slow " in data:
            began = time.thread_time()
            while time.thread_time() - began < 0.3:
                pass
            began_at.append(began)
        return read(data)

    monkeypatch.setattr(gpu_tools, "parse_gpus_of_tools", slow)
    monkeypatch.setattr(host_pipeline, "MAX_HOST_CPU_S", 0.2)
    now = time.time()
    lab.host("slow", gpu(0, uuid="GPU-s"))
    for after in (0, 10, 20):  # each by a builder of its own, as cron starts them
        lab.host("slow", gpu(0, 4 + after, uuid="GPU-s"))
        assert f"data/slow: {host_pipeline.PAUSED_REASON}" in words(lab.build(after))
        assert lab.host_status("slow")["state"] == "failed"
        assert "slow" not in (lab.www / "available.txt").read_text()
        assert host_pipeline.PAUSED_REASON.split(",")[0][4:] in lab.page()
        assert "hosts/slow.html" in {path.relative_to(lab.www).as_posix() for path in lab.www.rglob("*.html")}
    assert len(began_at) == 1
    assert (lab.state / "build.log").read_text().count("data/slow") == 1
    monkeypatch.setattr(gpu_tools, "parse_gpus_of_tools", read)
    lab.host("slow", gpu(0, uuid="GPU-s"))
    lab.build(now + host_pipeline.PAUSE_S + 1 - time.time())
    assert lab.host_status("slow")["state"] != "failed"


@pytest.mark.parametrize(
    ("file_of_gpus", "file_of_processes"),
    [
        (
            f"{GPU_COLUMNS}\n{gpu(0)}{gpu(1)}",
            f"{PROCESS_COLUMNS}\n{''.join(process(n) for n in range(10_200))}{process(99999, 'GPU-1')}",
        ),
        (
            f"{GPU_COLUMNS}\n{gpu(0)}{gpu(1)}",
            f"{PROCESS_COLUMNS}\n{''.join(process(n) for n in range(11_000))}{process(99999, 'GPU-1')}",
        ),
        (
            f"{GPU_COLUMNS}\n{gpu(0)}{gpu(1)}",
            "# part nvidia-xml rc=0\n<x>"
            + xml_gpu(0, f"<processes>{'<process_info><type>G</type></process_info>' * 11_000}</processes>")
            + xml_gpu(1, f"<processes>{info(2)}</processes>")
            + "</x>\n",
        ),
    ],
    ids=["more than count", "more lines than are read", "more that draw than are read"],
)
def test_where_not_all_processes_are_read_no_gpu_is_free_for_want_of_one(
    lab: Lab, file_of_gpus: str, file_of_processes: str
) -> None:
    lab.host("many")
    lab.write("many", "gpus.csv", file_of_gpus)
    lab.write("many", "processes.csv", file_of_processes)
    report = lab.build(snapshot_bytes=8 * MIB)
    assert "only the first 10000 are used" in words(report)
    assert "free" not in lab.states("many")
