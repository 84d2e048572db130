"""term.txt, detail.txt and available.txt: what `curl` gets, with frames that stay straight whatever stands in them."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from site_builder.board.builder import Builder
from site_builder.board.outputs import detail, term
from site_builder.core.clock import Now
from site_builder.core.model import Gpu, GpuStatus, HostFacts, HostStatus, PrivacySettings, ProcessStatus
from site_builder.core.terminal_text import measure_width
from tests.support.board_fixture import Lab, gpu, person, process, soon

NOW = Now(datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc).timestamp(), timezone.utc)
SGR = re.compile(r"\x1b\[(\d+)m")
ODD = {
    "escapes": "\x1b[31mred\x1b[0m \x07\x9b",
    "wide": "深層学習サーバーの長い名前がここにあります",
    "long": "x" * 300,
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd\u200f \u05e2\u05d5\u05dc\u05dd",
    "tabs": "a\tb\tc",
    "accents": "e\u0301" * 60,
    "emoji": "🚀🔥" * 30,
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


def text(lab: Lab, name: str = "term.txt") -> str:
    return (lab.www / name).read_bytes().decode()


def one_gpu(index: int | None = 0, state: str = "busy", **extra_readings: object) -> GpuStatus:
    """A GPU as the board has it."""
    readings = {
        "memory_used": 9000.0,
        "memory_total": 24564.0,
        "utilization_gpu": 71.0,
        "temperature": 66.0,
        **extra_readings,
    }
    told = Gpu(index, f"GPU-{index}", "NVIDIA GeForce RTX 4090", **readings)  # type: ignore[arg-type]
    return GpuStatus(told, "RTX 4090 24 GB", state, "in use by alice")


def assert_straight(table: str) -> None:
    """Every row of the table takes 80 cells, and its frames stand below each other."""
    rows = table.partition("free:")[0].splitlines()
    assert {measure_width(row) for row in rows} == {80}
    for row in rows[4:]:
        places = [0, 19, 44, 62, 71, 79]
        cells = [letter for letter in row for _ in range(measure_width(letter))]
        assert [cells[place] for place in places] in (["|"] * 6, ["+"] * 6)


def assert_boxes(page_text: str) -> None:
    """Every line of a box ends where the box does."""
    lines = [line for line in page_text.splitlines() if line.startswith(("  ┌", "  │", "  └"))]
    assert lines
    assert {(measure_width(line), line[-1] in "┐│┘") for line in lines} == {(78, True)}
    assert max(map(measure_width, page_text.splitlines())) <= 80


# term.txt


def test_the_table_has_the_columns_that_users_of_vesta_know() -> None:
    part = term.render_term_host(
        HostStatus("atlas", None, (), "fresh", "", gpus=(one_gpu(0), one_gpu(1, utilization_gpu=None)))
    )
    assert term.render_term_txt([part], "1.2.3", NOW).decode() == (
        "+------------------------------------------------------------------------------+\n"
        "| gpuboard 1.2.3                                                     gpu info. |\n"
        "+------------------+------------------------+-----------------+--------+-------+\n"
        "| host             | gpu                    | memory usage    | volat. | temp. |\n"
        "+------------------+------------------------+-----------------+--------+-------+\n"
        "|atlas             | 0:GeForce RTX 4090     |   9000 /  24564 |    71 %|  66 °C|\n"
        "|                  | 1:GeForce RTX 4090     |   9000 /  24564 |     ? %|  66 °C|\n"
        "+------------------+------------------------+-----------------+--------+-------+\n"
        "free: none\n"
        "built: 2026-11-16 12:00:00+00:00\n"
    )


def test_a_lab_in_every_state_has_a_table_that_says_so(lab_in_every_state: Lab) -> None:
    lab = lab_in_every_state
    table = text(lab)
    assert_straight(table)
    assert "|pascal            | ! down                 |                 |        |       |\n" in table
    assert "|                  | 0:Tesla V100-SXM2-16GB |      ? /  16384 |     ? %|   ? °C|\n" in table
    assert "|tiber             | ! unseen               |" in table
    assert "\nfree: atlas:2 hydra:3 nile:0\nbooked: atlas:3\nheld: hydra:0\nconflict: hydra:1\n" in table
    assert "\nlost: nile:1\nunknown: nile:4\nbuilt: " in table


def test_the_table_in_colour_is_the_same_but_for_colours_that_end_in_their_line(lab_in_every_state: Lab) -> None:
    lab = lab_in_every_state
    colour = text(lab, "term-ansi.txt")
    assert SGR.sub("", colour) == text(lab)
    assert set(SGR.findall(colour)) == {"0", "31", "32", "33", "36"}
    for line in colour.splitlines():
        assert SGR.findall(line)[-1:] in ([], ["0"])
    by_place = {line.split("|")[2].strip()[-40:]: SGR.findall(line) for line in colour.splitlines() if "|\x1b" in line}
    assert all(signs[-1] == "0" and len(signs) == 2 for signs in by_place.values())
    assert "|                  |\x1b[32m 2:H100 80GB HBM3       |" in colour
    assert "|                  |\x1b[36m 3:H100 80GB HBM3       |" in colour
    assert "|hydra             |\x1b[33m 0:A100-SXM4-40GB       |" in colour


def test_free_gpus_are_wrapped_at_80_cells_and_none_is_left_out() -> None:
    rendered_hosts = [
        term.render_term_host(HostStatus(f"gpu-server-{n}", None, (), "fresh", "", gpus=(one_gpu(n, "free"),)))
        for n in range(40)
    ]
    below = term.render_term_txt(rendered_hosts, "1", NOW).decode().split("\nfree:")[1].split("\nbuilt:")[0]
    assert max(map(len, f"free:{below}".splitlines())) <= 80
    assert below.split() == [f"gpu-server-{n}:{n}" for n in range(40)]


def test_a_name_that_is_too_long_is_the_one_that_people_use() -> None:
    longer = one_gpu()._replace(
        gpu=Gpu(0, "u", "NVIDIA RTX PRO 6000 Blackwell Server Edition"), model="RTX PRO 6000 96 GB"
    )
    assert (
        b"| 0:RTX PRO 6000 96 GB   |"
        in term.render_term_host(HostStatus("a", None, (), "fresh", "", gpus=(longer,))).plain_rows
    )


def test_no_host_is_a_table_without_rows(lab: Lab) -> None:
    lab.build()
    assert text(lab).splitlines()[-3:-1] == [text(lab).splitlines()[2], "free: none"]
    assert text(lab, "available.txt") == ""
    assert text(lab, "detail.txt").startswith("gpuboard ")
    assert (text(lab, "states/index.json"), text(lab, "nodes/index.json")) == ("{}\n", '{"Nodes":[]}\n')


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD.values(), ids=ODD)
def test_frames_stay_straight_and_control_characters_are_removed(lab: Lab, name: str) -> None:
    user_name = name.replace("\t", " ")
    lab.host("a" * 63, gpu(0, 7000, 50, name=name, uuid="GPU-x") + gpu(10, "[N/A]", "[N/A]", name=name, total="[N/A]"))
    lab.write("a" * 63, "processes.csv", f"gpu_uuid, pid, used_gpu_memory [MiB], process_name\n{process(42, 'GPU-x')}")
    names = "pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand\n"
    lab.write("a" * 63, "ps.txt", names + person(42, user_name, f"/opt/{name}/python {name}"))
    lab.build()
    assert_straight(text(lab))
    assert_boxes(text(lab, "detail.txt"))
    for file in ("term.txt", "detail.txt"):
        assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200f\u2028-\u202e]", text(lab, file)) == []
    assert f"|{'a' * 17}…|" in text(lab)


def test_numbers_beyond_all_sense_leave_the_frames_where_they_are() -> None:
    large = one_gpu(123456789012, memory_used=9e14, memory_total=9e14, utilization_gpu=9e14, temperature=9e14)
    board = HostStatus("atlas", None, (), "fresh", "", gpus=(large,))
    assert_straight(term.render_term_txt([term.render_term_host(board)], "1", NOW).decode())
    assert_boxes(detail.render_detail_host(board, 0, NOW).decode())


# detail.txt


def test_the_boxes_are_those_that_users_of_vesta_know() -> None:
    jobs = (
        ProcessStatus(42, "root", "/usr/bin/python3 train.py --epochs 90", 6400, None, None),
        ProcessStatus(43, "alice", "serve", 1618, None, None),
    )
    facts = HostFacts(interfaces=(("eth0", "10.0.0.17/24"), ("ib0", "10.1.0.17/16")))
    board = HostStatus("atlas", None, (), "fresh", "", NOW.epoch, facts, (one_gpu()._replace(processes=jobs),))
    assert detail.render_detail_txt(
        [detail.render_detail_host(board, NOW.epoch - 5.5, NOW)], "1.2.3", NOW
    ).decode() == (
        "gpuboard 1.2.3\n"
        "\n"
        "#### atlas :: 10.0.0.17 ########################################################\n"
        "  last update: 16/11/2026 12:00:00\n"
        "--------------------------------------------------------------------------------\n"
        "  ┌[ gpu:0 GeForce RTX 4090 2026/11/16 11:59:54.000 ]────────────────────────┐\n"
        "  │      memory used  memory available  gpu volatile  temperature            │\n"
        "  │  9000 / 24564MiB          15564MiB           71%         66°C            │\n"
        "  │ busy: in use by alice                                                    │\n"
        "  │ mem [//////////////////////                                       ]  36% │\n"
        "  │  ├── python3 train.py --epoc…    6400MiB root                            │\n"
        "  │  └── serve                       1618MiB alice                           │\n"
        "  └──────────────────────────────────────────────────────────────────────────┘\n"
        "\n"
        "________________________________________________________________________________\n"
        "\n"
        "built: 2026-11-16 12:00:00+00:00\n"
    )


def test_a_lab_in_every_state_has_its_boxes(lab_in_every_state: Lab) -> None:
    page_text = text(lab_in_every_state, "detail.txt")
    assert_boxes(page_text)
    assert "  ! down: no snapshot since " in page_text
    assert "  │     ? / 16384MiB              ?MiB            ?%          ?°C            │\n" in page_text
    assert f"  │ mem [{'?':61}]   ?% │\n" in page_text
    assert "#### tiber :: ? ##" in page_text
    assert "  last update: ?\n" in page_text


def test_times_are_in_the_zone_of_the_board(lab: Lab) -> None:
    lab.host("atlas")
    lab.build(zone=timezone(timedelta(hours=9)))
    stamp = re.search(r"last update: (\S+ \S+)", text(lab, "detail.txt"))
    assert stamp
    shown_time = datetime.strptime(f"{stamp[1]} +0900", "%d/%m/%Y %H:%M:%S %z")
    assert abs((shown_time - datetime.now(timezone.utc)).total_seconds()) < 60


def test_many_processes_on_a_gpu_are_counted_and_not_listed(lab: Lab) -> None:
    lab.host("atlas", gpu(0, 7000, 50), "".join(process(n, memory=1) for n in range(100, 150)))
    lab.build()
    assert_boxes(text(lab, "detail.txt"))
    assert text(lab, "detail.txt").count("├── ") == 20
    assert "└── and 30 more " in text(lab, "detail.txt")


def test_what_is_not_shown_of_people_is_in_no_text(lab: Lab) -> None:
    lab.host("atlas", gpu(0, 7000, 50), process(42), person(42, "alice", "/home/alice/secret.py --key"))
    lab.build(privacy=PrivacySettings("none", False))
    for name in ("term.txt", "detail.txt", "metrics", "states/atlas/index.json", "nodes/atlas.json"):
        assert not re.search("alice|secret", text(lab, name))
    assert "  │  └── ?                           7000MiB ?   " in text(lab, "detail.txt")


# available.txt


def test_the_free_gpus_of_a_host_are_what_cuda_visible_devices_takes(lab: Lab) -> None:
    lab.host("atlas", gpu(0) + gpu(1, 7000, 50) + gpu(2) + gpu(3), processes=process(42, "GPU-1"))
    lab.book({"atlas": {"3": {"name": "bob", "date": soon(9000)}}})
    lab.host("hydra", gpu(0, 7000, 90, uuid="GPU-h"), process(43, "GPU-h"))
    lab.build()
    assert text(lab, "available/atlas.txt") == "0,2\n"
    assert text(lab, "available/hydra.txt") == ""


def test_all_free_gpus_stand_in_one_line_the_best_first(lab: Lab) -> None:
    lab.host("atlas", gpu(0, name="Tesla V100-SXM2-16GB", total=16384, uuid="GPU-a"))
    lab.host("busy", gpu(0, uuid="GPU-b"), facts="cpus=4\nload=9 9 9\n")
    lab.host("calm", gpu(0, uuid="GPU-c") + gpu(1, 600, uuid="GPU-d"), facts="cpus=4\nload=0.5 1 1\n")
    lab.host("newer", gpu(0, name="NVIDIA H100 80GB HBM3", uuid="GPU-e"))
    lab.build()
    assert text(lab, "available.txt") == "newer:0 calm:0 busy:0 calm:1 atlas:0\n"


def test_no_gpu_that_is_in_doubt_is_available(lab_in_every_state: Lab) -> None:
    lab = lab_in_every_state
    assert text(lab, "available.txt") == "atlas:2 hydra:3 nile:0\n"
    assert {path.name: path.read_text() for path in (lab.www / "available").iterdir()} == {
        **{f"{host}.txt": "" for host in ("ganges", "pascal", "rhine", "tiber", "volga")},
        **{"atlas.txt": "2\n", "hydra.txt": "3\n", "nile.txt": "0\n"},
    }


def test_a_gpu_that_no_number_names_is_not_available(lab: Lab) -> None:
    without = gpu(0, uuid="GPU-x").replace("0, ", "[N/A], ", 1)
    lab.host("atlas", without + gpu(1) + gpu(2, uuid="GPU-2a") + gpu(2, uuid="GPU-2b"))
    lab.build()
    assert lab.states() == ["free"] * 4
    assert text(lab, "available/atlas.txt") == "1\n"
    assert "| ?:A100-SXM4-80GB       |" in text(lab)
    assert "\nfree: atlas:1,2,2,?\n" in text(lab)


def test_a_host_that_falls_silent_has_no_free_gpu_from_then_on(lab: Lab) -> None:
    lab.host("atlas")
    lab.build()
    assert text(lab, "available/atlas.txt") == "0\n"
    lab.build(after=3600)
    assert (text(lab, "available/atlas.txt"), text(lab, "available.txt")) == ("", "")
    assert "\nfree: none\n" in text(lab)


def test_what_stays_the_same_is_not_written_again_but_shows_that_the_builder_lives(lab: Lab) -> None:
    lab.host("atlas")
    assert {"term.txt", "detail.txt", "available.txt", "available/atlas.txt", "metrics"} <= set(
        lab.build().written_files
    )
    # without history, the fleet page is written every ten minutes
    assert set(lab.build(after=5).written_files) - {"fleet.html"} == {"live.json", "metrics"}
    os.utime(lab.www / "available/atlas.txt", (0, 0))  # as by somebody else
    assert "available/atlas.txt" in lab.build(after=10).written_files
    builder = Builder(lab.settings())
    began = time.time()
    builder.build(began + 75)
    for name in ("term.txt", "detail.txt", "available.txt", "available/atlas.txt"):
        assert (lab.www / name).stat().st_mtime >= began - 0.1
    assert set(builder.build(began + 80).written_files) - {"fleet.html"} == {"live.json", "metrics"}


def test_the_free_gpus_of_a_host_come_the_best_first_and_what_is_not_known_last(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    cards = (("Tesla T4", 15360), ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-40GB", 40960))
    rows = "".join(gpu(index, 4, name=name, total=total) for index, (name, total) in enumerate(cards))
    lab.host("mixed", rows + gpu(3, used="[N/A]", use=0))
    lab.build()
    assert (lab.www / "available/mixed.txt").read_text() == "1,2,0,3\n"
