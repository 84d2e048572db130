"""Numbers that no machine has, in every place where a host can tell one: none of them costs a page or a build."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_builder.core.faults import FAULT_NOTE
from site_builder.core.model import HostFacts
from site_builder.snapshots.parsers import host_and_ps_txt
from tests.support.board_fixture import GPU_COLUMNS, PROCESS_COLUMNS, PS_COLUMNS, Lab, gpu, person, process, words

VALUES = (
    "99999999999",
    "999999999999",
    "9999999999999",
    "9" * 5000,
    "0",
    "-1",
    "-99999999999",
    "1e-320",
    "1e-7",
    "1e14",
    "1e308",
    "1e999",
    "inf",
    "nan",
    "0x" + "f" * 200,
    "٣",
    "1_000",
    "²",
)
FACTS = {
    "cpus": "4",
    "load": "1.5 1.2 1.0",
    "memory_total": "64000",
    "memory_available": "32000",
    "uptime": "1000",
    "disk": "1000 610 /data",
    "disk_use": "9G /home/a",
    "disk_use_time": "1700000000",
    "interface": "eth0 10.0.0.1",
    "kernel": "6",
}
MORE_COLUMNS = (
    "clocks.current.sm, fan.speed, temperature.gpu.tlimit, pcie.link.width.current, pcie.link.width.max, pstate, "
    "ecc.errors.corrected.volatile.total, ecc.errors.uncorrected.volatile.total, "
    "ecc.errors.corrected.aggregate.total, ecc.errors.uncorrected.aggregate.total, remapped_rows.correctable, "
    "retired_pages.double_bit.count, clocks_event_reasons.active, clocks_throttle_reasons.active"
)


def facts_with(key: str, value: str) -> str:
    return "".join(f"{name}={value if name == key else usual}\n" for name, usual in FACTS.items())


def replaced(row: str, place: int, value: str, separator: str) -> str:
    cells = row.rstrip("\n").split(separator)
    cells[place] = value
    return separator.join(cells) + "\n"


def in_facts(lab: Lab, name: str) -> Iterator[None]:
    for key in FACTS:
        for value in VALUES:
            lab.host(f"{name}-{key.replace('_', '-')}-{VALUES.index(value)}", facts=facts_with(key, value))
            yield
    for value in VALUES:
        lab.host(f"{name}-loads-{VALUES.index(value)}", facts=facts_with("load", f"{value} {value} {value}"))
        lab.host(f"{name}-disks-{VALUES.index(value)}", facts=facts_with("disk", f"{value} {value} /d"))
        lab.host(f"{name}-used-{VALUES.index(value)}", facts=facts_with("disk_use", f"{value}E /d"))
        yield


def in_gpus(lab: Lab, name: str) -> Iterator[None]:
    columns = f"{GPU_COLUMNS}, {MORE_COLUMNS}"
    usual = f"{gpu(0, 7000, 97, uuid='GPU-x').rstrip()}, 1410, 40, 30, 16, 16, P0, 0, 0, 0, 0, 0, 0, 0x0, 0x0\n"
    for place in range(columns.count(",") + 1):
        for number, value in enumerate(VALUES):
            host = f"{name}-{place}-{number}"
            lab.host(host, gpus=gpu(0), processes=process(42, f"GPU-{host}"), ps=person())
            row = usual.replace("GPU-x", f"GPU-{host}")
            lab.write(host, "gpus.csv", f"{columns}\n{replaced(row, place, value, ', ')}")
            yield


def in_processes(lab: Lab, name: str) -> Iterator[None]:
    for place in range(4):
        for number, value in enumerate(VALUES):
            host = f"{name}-p{place}-{number}"
            lab.host(host, gpu(0, 7000, 97, uuid=f"GPU-{host}"), ps=person())
            row = replaced(process(42, f"GPU-{host}"), place, value, ", ")
            lab.write(host, "processes.csv", f"{PROCESS_COLUMNS}\n{row}")
            yield
    for place in range(PS_COLUMNS.count("\t") + 1):
        for number, value in enumerate(VALUES):
            host = f"{name}-ps{place}-{number}"
            lab.host(host, gpu(0, 7000, 97, uuid=f"GPU-{host}"), process(42, f"GPU-{host}"))
            lab.write(host, "ps.txt", f"{PS_COLUMNS}\n{replaced(person(), place, value, chr(9))}")
            yield


def in_headers(lab: Lab, name: str) -> Iterator[None]:
    for key in ("time", "every", "took_ms", "rc"):
        for number, value in enumerate(VALUES):
            for file in ("host.txt", "gpus.csv", "processes.csv", "ps.txt"):
                host = f"{name}-{key.replace('_', '')}-{number}-{file[:2]}"
                lab.host(host, gpu(0, 7000, 97, uuid=f"GPU-{host}"), process(42, f"GPU-{host}"), person())
                body = (lab.data / host / file).read_text().split("\n", 1)[1].replace("# end\n", "")
                lab.write(host, file, body, **{key: value})
                yield


def in_originals(lab: Lab, name: str) -> Iterator[None]:
    usual = "0, GPU-{}, Tesla, 10 MiB, 100 MiB, 0 %, 0 %, 40, 2018/10/04 09:12:01.123\n"
    for place in range(9):
        for number, value in enumerate(VALUES):
            host = f"{name}-{place}-{number}"
            lab.original(
                host,
                gpus=replaced(usual.format(host), place, value, ", "),
                processes=f"2018/10/04 09:12:01.123, GPU-{host}, {value} MiB, python, {value}\n",
                users=f'{{"{value}": ["{value}"]}}\n{value} alice Thu Oct  4 09:12:01 2018\n',
                status=f"{value}\nMem: {value} {value} 1 1 1 {value}\nload average: {value}, 1.0, 1.0\n",
                disks=f"/dev/sda {value} {value} 1 50% /\n",
                local=f"{value}P\t/home/a\n",
            )
            yield


PLACES = {
    "facts": in_facts,
    "gpus": in_gpus,
    "processes": in_processes,
    "headers": in_headers,
    "originals": in_originals,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_cannot_be_costs_that_number_alone(tmp_path: Path, place: str) -> None:
    lab = Lab(tmp_path)
    min_host_count = sum(1 for _ in PLACES[place](lab, "x"))
    report = lab.build()
    assert report.host_count >= min_host_count
    assert FAULT_NOTE not in words(report)
    assert {f"hosts/{host['name']}.html" for host in lab.status()["hosts"]} <= set(report.written_files)


@pytest.mark.parametrize("moment", [-(2**40), -1, 2**40])
def test_an_original_file_with_an_odd_time_is_a_host_like_another(tmp_path: Path, moment: int) -> None:
    lab = Lab(tmp_path)
    lab.original("atlas", gpus="0, GPU-a, Tesla, 10 MiB, 100 MiB, 0 %, 0 %, 40, 2018/10/04 09:12:01.123\n")
    os.utime(lab.data / "atlas_gpus.csv", (moment, moment))
    report = lab.build()
    assert FAULT_NOTE not in words(report)
    assert lab.states() == ["unknown" if moment < time.time() else "busy"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("uptime=99999999999", "uptime is 99999999999, which is impossible: it is ignored"),
        ("uptime=9999999999999", "uptime is 9999999999999, which is impossible: it is ignored"),
        ("memory_total=1e400", "memory_total is 1e400, which is impossible: it is ignored"),
        ("cpus=5000000", "cpus is 5000000, which is impossible: it is ignored"),
        ("memory_available=nan", "memory_available is nan, which is impossible: it is ignored"),
        ("load=1 1 1e9", "not three load numbers: 1 1 1e9"),
        ("disk=1e14 1 /data", "a disk with an impossible size: 1e14 1 /data"),
        (f"disk_use={'9' * 400} /home/a", f"a du line with an impossible size: {'9' * 80}"),
    ],
)
def test_an_impossible_value_is_ignored_and_reported(line: str, why: str) -> None:
    host_txt = f"# gpuboard 1 task=host host=a time=1 every=20 took_ms=1 rc=0\n{line}\n# end\n"
    parsed_file = host_and_ps_txt.parse_host_txt(host_txt.encode())
    assert parsed_file.problems == (why,)
    assert parsed_file.rows[0] == HostFacts()
