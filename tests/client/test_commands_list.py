"""`gpuboard list`: a table that fits, in which nothing that is not known looks free, for people and for programs."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from site_builder.client import loader, search
from site_builder.client import render as client_render
from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.core import terminal_text
from site_builder.core.clock import Now
from site_builder.core.model import ProcessStatus
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.board_server import serve_board
from tests.support.booking_fixtures import Terminal
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.every_state import make_lab
from tests.support.pace import check, took
from tests.support.samples import format_topology

ROOT = Path(__file__).parents[2]
MOMENT = datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc)
NOW = int(MOMENT.timestamp())
HOUR, DAY = 3600, 86400
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
SCREEN = {"TERM": "xterm", "COLUMNS": "", "LINES": ""}


def job(
    pid: int | None = 4242, user: str | None = "alice", command: str | None = "train.py", age: int = 3
) -> ProcessStatus:
    return ProcessStatus(pid, user, command, 1000, NOW - age * HOUR)


def card(state: str = "free", reason: str = "", *jobs: ProcessStatus, **overrides: Any) -> FleetGpu:  # noqa: ANN401
    plain: dict[str, Any] = {
        "memory_used": 72704.0,
        "memory_total": 81559.0,
        "utilization_gpu": 97.0,
        "temperature": 64.0,
        "clock": 1980.0,
    }
    return FleetGpu(
        0, "GPU-0", "NVIDIA H100 80GB HBM3", "H100 80 GB", state, reason, **{**plain, "processes": jobs, **overrides}
    )


def host(*gpus: FleetGpu, name: str = "atlas", state: str = "fresh", **overrides: Any) -> FleetHost:  # noqa: ANN401
    return FleetHost(name, None, (), state, "", gpus=gpus)._replace(**overrides)


def promise(begins: float, ends: float, name: str | None = "carol", comment: str | None = None) -> FleetBooking:
    return FleetBooking("b1", name, MOMENT + timedelta(hours=begins), MOMENT + timedelta(hours=ends), comment)


def lines(*hosts: FleetHost, across: int | None = None, colour: bool = False, heads: bool = False) -> list[str]:
    return client_render.format_gpu_table(Fleet(NOW, hosts), Now(NOW, timezone.utc), across, colour, heads)


def row(gpu: FleetGpu, across: int | None = None) -> str:
    """The line of the only GPU."""
    _, *gpu_lines = lines(host(gpu), across=across)
    return "\n".join(gpu_lines)


# The table


def test_a_gpu_has_all_columns() -> None:
    assert lines(host(card("busy", "in use by alice", job(command="python train.py", age=50)))) == [
        "GPU     type         use     memory  temp   MHz  users  since       pids  command",
        " 0 [~]  H100 80 GB  97 %  71/80 GiB    64  1980  alice  2 days ago  4242  python train.py",
    ]


@pytest.mark.parametrize(
    ("state", "mark"),
    [("free", "[ ]"), ("busy", "[~]"), ("held", "[-]"), ("booked", "[B]")]
    + [(state, "[!]") for state in ("conflict", "lost", "unknown", "nobody knows this one")],
)
def test_free_taken_and_broken_gpus_have_different_marks(state: str, mark: str) -> None:
    assert row(card(state)).startswith(f" 0 {mark} ")


def test_a_gpu_that_nobody_known_uses_is_marked_as_in_trouble() -> None:
    unowned = card("busy", "in use", job(user=None), job(43, user=None))
    assert row(unowned).startswith(" 0 [!] ")
    assert row(unowned._replace(state="held")).startswith(" 0 [!] ")
    assert row(card("busy", "in use", job(user=None), job(43, "alice"))).startswith(" 0 [~] ")
    (_, line) = lines(host(unowned), colour=True)
    assert line.startswith("\x1b[31m")
    hidden = Fleet(NOW, (host(unowned),), users_shown=False)
    assert client_render.format_gpu_table(hidden, Now(NOW, timezone.utc))[-1].startswith(" 0 [~] ")


def test_what_is_not_available_is_a_question_mark_and_never_zero() -> None:
    nothing = dict.fromkeys(("memory_used", "memory_total", "utilization_gpu", "temperature", "clock"))
    assert row(card("unknown", "its host is down", **nothing)).split() == [
        *("0", "[!]", "H100", "80", "GB", "?", "?", "?", "?", "its", "host", "is", "down")
    ]
    assert "?/80 GiB" in row(card(memory_used=None))
    assert "71/? GiB" in row(card(memory_total=None))
    assert row(card()._replace(index=None)).startswith(" ? [ ]")
    unknown = ProcessStatus(None, None, None, None, None)
    assert row(card("busy", "in use", unknown)).split()[-4:] == ["?", "?", "?", "?"]


def test_several_processes_share_a_line_each_user_once() -> None:
    jobs = (job(1, "alice", "a.py", 1), job(2, "bob", "b.py", 30), job(3, "alice", "a.py", 2))
    assert row(card("busy", "in use by alice and bob", *jobs)).endswith("alice,bob  30 hours ago  1,2,3  a.py; b.py")


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (-5, "just now", "now"),
        (59, "just now", "now"),
        (60, "1 minute ago", "1 min"),
        (7199, "119 minutes ago", "119 min"),
        (7200, "2 hours ago", "2 h"),
        (2 * DAY - 1, "47 hours ago", "47 h"),
        (2 * DAY, "2 days ago", "2 d"),
        (900 * DAY, "900 days ago", "900 d"),
    ],
)
def test_how_long_a_process_runs_is_reported_in_words(seconds: int, long: str, short: str) -> None:
    assert (
        client_render.format_client_table_age(seconds, False),
        client_render.format_client_table_age(seconds, True),
    ) == (
        long,
        short,
    )


def test_a_booked_gpu_says_for_whom_and_until_when() -> None:
    assert row(card("booked", "promised", bookings=(promise(-1, 6, comment="demo"),))).endswith(
        "  booked: carol until 18:00 (demo)"
    )
    assert row(card("booked", "promised", bookings=(promise(-1, 6, None),))).endswith("  booked until 18:00")
    busy = card("busy", "in use by carol", job(user="carol"), bookings=(promise(-1, 30),))
    assert row(busy).endswith("train.py; booked: carol until tomorrow 18:00")


def test_a_free_gpu_says_until_when_if_it_is_booked_within_a_day() -> None:
    assert row(card(bookings=(promise(-5, -1, "eve"), promise(6, 8)))).endswith(" until 18:00, then booked: carol")
    assert row(card(bookings=(promise(25, 26),))).endswith("1980")


def test_held_says_so_before_what_runs() -> None:
    assert row(card("held", "71 GiB taken by bob", job(command="jupyter-lab"))).endswith("held; jupyter-lab")
    assert row(card("held", "71 GiB taken, idle since Fri 10:00")).endswith("held: 71 GiB taken, idle since Fri 10:00")


@pytest.mark.parametrize(
    ("state", "reason", "expected_text"),
    [
        ("lost", "the driver cannot reach it: Unknown Error", "lost: the driver cannot reach it: Unknown Error"),
        ("unknown", "the processes on it could not be read", "the processes on it could not be read"),
        ("busy", "9 GiB in use without a process", "9 GiB in use without a process"),
    ],
)
def test_trouble_says_its_reason(state: str, reason: str, expected_text: str) -> None:
    assert row(card(state, reason)).endswith(f"  {expected_text}")


def test_a_conflict_says_its_reason_and_where_there_is_no_room_in_a_line_of_its_own() -> None:
    conflict = card("conflict", "booked by erin, used by dave", job(user="dave", command="python sweep.py"))
    assert row(conflict).endswith("  conflict: booked by erin, used by dave; python sweep.py")
    first, second = row(conflict, across=80).split("\n")
    assert first.endswith(" sweep.py") or first.endswith(" python sweep.py")
    assert second == "       conflict: booked by erin, used by dave"


def test_a_truncated_command_begins_with_its_most_telling_part() -> None:
    assert (
        client_render.shorten_table_command("/opt/conda/bin/python3.11 -m ipykernel_launcher -f x.json")
        == "ipykernel_launcher -f x.json"
    )
    assert client_render.shorten_table_command("python /home/alice/vit/train.py --lr 1") == "train.py --lr 1"
    assert client_render.shorten_table_command("python -u -B train.py") == "train.py"
    assert client_render.shorten_table_command("python -c print(1)") == "python -c print(1)"
    assert client_render.shorten_table_command("/usr/bin/blender") == "blender"
    assert client_render.shorten_table_command("python") == "python"


# Hosts


def test_a_host_that_is_alone_and_fresh_needs_no_name_and_one_that_is_not_fresh_says_why() -> None:
    assert len(lines(host(card()))) == 2
    down = host(name="pascal", state="down", reason="no snapshot since 15:13")
    assert lines(down) == ["pascal · down: no snapshot since 15:13"]


def test_a_host_has_its_title_and_load_beside_its_name() -> None:
    titled_host = host(card(), title="Training", load=(12.3, 1.0, 1.0), cpus=96)
    assert lines(titled_host, heads=True)[1] == "atlas · Training · load 12 / 96"
    assert lines(titled_host._replace(title="atlas", cpus=None), heads=True)[1] == "atlas · load 12 / ?"


def test_columns_are_the_same_for_all_hosts() -> None:
    first_host = host(card("busy", "in use", job(user="alexandria", pid=1)))
    second_host = host(card("busy", "in use", job(user="bo", pid=1234567))._replace(model="T4 16 GB"), name="hydra")
    title, _, first, _, second = lines(first_host, second_host, heads=True)
    for text, name in ((" alexandria ", "users"), (" 3 hours", "since")):
        assert first.index(text) + 1 == title.index(name)
    assert second.index(" bo ") + 1 == title.index("users")
    assert second.index("train.py") == first.index("train.py") == title.index("command")


# Widths


def hostile() -> list[FleetHost]:
    """Long and wide in every cell."""
    long = job(4194304, "王小明" * 4, "python /home/王小明/訓練.py " + "--x " * 99, 1)
    gpus = (
        card("busy", "in use", *[long._replace(pid=4194304 - n, user=f"{n}person{n}") for n in range(30)]),
        card("conflict", "booked by " + "é" * 90 + ", used by " + "語" * 40, long),
        card("lost", "語" * 80)._replace(model="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition 96 GB"),
        card("booked", "", bookings=(promise(-1, 30, "n" * 70, "語" * 70),)),
        card("busy", "in use", job(command="a\u0301" * 200)),
        card("free")._replace(index=15),
    )
    return [host(*gpus, name="a" * 63, title="語" * 60), host(name="b", state="failed", reason="r" * 300)]


@pytest.mark.parametrize("across", [40, 60, 79, 80, 100, 109, 110, 140, 250])
def test_every_line_fits_the_terminal(across: int) -> None:
    assert max(map(terminal_text.measure_width, lines(*hostile(), across=across, heads=True))) <= across


def test_80_columns_show_the_whole_type_and_enough_of_the_command_rather_than_pids() -> None:
    jobs = (job(4194301, "alice"), job(4194302, "bartholomew", "python evaluate.py --all"))
    title, line = lines(host(card("busy", "in use", *jobs)._replace(model="RTX 2080 Ti 11 GB")), across=80)
    assert title.split() == ["GPU", "type", "use", "memory", "temp", "users", "since", "command"]
    assert " RTX 2080 Ti 11 GB " in line
    assert line.index("train.py") <= 60
    title, line = lines(host(card("busy", "in use", job())._replace(model="T4 16 GB")), across=80)
    assert title.split() == ["GPU", "type", "use", "memory", "temp", "MHz", "users", "since", "pids", "command"]


@pytest.mark.parametrize("across", [90, 100, 110, 140])
def test_a_pid_is_shown_whole_or_not_at_all(across: int) -> None:
    pids = [1234567, 89, 2345678, 345, 3456789]
    title, line = lines(host(card("busy", "in use", *(job(pid, f"user{pid}") for pid in pids))), across=across)
    shown = line[title.index("pids") :].split()[0].rstrip("…").split(",")
    assert [int(pid) for pid in shown] == pids[: len(shown)]


def test_a_wide_terminal_shows_more() -> None:
    gpu_ = card("busy", "in use", job(4194301, "bartholomew", "torchrun --nproc 8 main.py --name run-7"))
    assert "torchrun --nproc 8 main.py --name run-7" in lines(host(gpu_), across=140)[1]
    assert "3 hours ago" in lines(host(gpu_), across=140)[1]
    assert "bartholomew" in lines(host(gpu_), across=140)[1]


def test_in_a_file_nothing_is_cut() -> None:
    text = "\n".join(lines(*hostile(), heads=True))
    assert terminal_text.ELLIPSIS not in text
    for part in ("--x " * 98, "語" * 80, "Edition 96 GB", "29person29", "4194275", "n" * 70, "r" * 300, "é" * 90):
        assert part in text


def test_in_a_file_a_long_value_pushes_only_its_own_line_out() -> None:
    crowd = card("busy", "in use", *(job(n, f"u{n}") for n in range(60)))
    title, first, second = lines(host(crowd, card("busy", "in use", job())))
    assert second.index("train.py") == title.index("command") < 110 < first.index("train.py")


# Colour


def test_states_have_colours_and_without_colour_there_is_no_escape() -> None:
    states = ("free", "held", "booked", "conflict", "lost", "unknown", "busy")
    mixed_host = host(*(card(state) for state in states))
    coloured_lines = lines(mixed_host, across=80, colour=True)[1:]
    codes = [match[1] if (match := re.match(r"\x1b\[(\d+)m.*\x1b\[0m$", line)) else None for line in coloured_lines]
    assert codes == ["32", "33", "36", "31", "31", "31", None]
    assert "\x1b" not in "".join(lines(mixed_host, across=80))
    assert [ESCAPE.sub("", line) for line in coloured_lines] == lines(mixed_host, across=80)[1:]


@pytest.mark.slow
def test_a_thousand_hosts_are_drawn_within_half_a_second() -> None:
    jobs = (job(4242, "alice", "python train.py --config configs/vit-l.yaml --lr 3e-5"), job(77, "bob", "main.py"))
    fleet = [host(*[card("busy", "in use by alice", *jobs)] * 8, name=f"gpu{n:04}") for n in range(1000)]
    for across in (None, 80, 140):
        assert len(lines(*fleet, across=across, heads=True)) == 9001
        check(took(partial(lines, *fleet, across=across, heads=True), rounds=2), 0.5)


# For programs


def test_json_is_what_status_json_says_of_the_hosts_that_fit(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    gpus = "".join(gpu(index, uuid=f"GPU-linked-{index}") for index in range(4))
    lab.host("linked", gpus, facts=format_topology("580-four-in-pairs"))
    lab.build()
    board_status = lab.status()
    fleet, _ = loader.parse_status((lab.www / "status.json").read_bytes())
    assert fleet
    rendered_fleet = json.loads(client_render.render_client_fleet_json(fleet))
    assert rendered_fleet["hosts"] == board_status["hosts"]
    assert (rendered_fleet["schema"], rendered_fleet["built"]) == (board_status["schema"], board_status["built"])


# The command


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts, one of them with a job."""
    lab = Lab(tmp_path_factory.mktemp("small"))
    lab.host("atlas", gpu(0, 9000, 50) + gpu(1, uuid="GPU-1"), process(), person(command="python train.py"))
    lab.host("hydra", gpu(0, uuid="GPU-h", name="Tesla T4", total=15360))
    yield lab


def folder_of(lab: Lab) -> Path:
    return lab.data.parent


def test_list_reads_a_data_folder(small: Lab) -> None:
    finished = run_gpuboard(folder_of(small), "list", "--data", "data")
    assert (finished.returncode, finished.stderr) == (0, "")
    title, atlas, busy, free, hydra, hydra_gpu = finished.stdout.splitlines()
    assert title.startswith("GPU ")
    assert (atlas, hydra) == ("atlas · load 1.5 / 4", "hydra · load 1.5 / 4")
    assert busy.startswith(" 0 [~]  A100 80 GB  50 %  8.8/80 GiB ")
    assert busy.endswith("python train.py")
    assert (free[:6], hydra_gpu[:6]) == (" 1 [ ]", " 0 [ ]")


def test_a_data_folder_has_the_states_of_the_page(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    listed_hosts = json.loads(run_gpuboard(tmp_path, "list", "--data", "data", "--json").stdout)["hosts"]
    board_hosts = lab.status()["hosts"]
    assert [[one["state"] for one in host["gpus"]] for host in listed_hosts] == [
        [one["state"] for one in host["gpus"]] for host in board_hosts
    ]


def test_without_what_the_builder_remembers_nothing_but_held_is_unknown(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    board_states = [[one["state"] for one in host["gpus"]] for host in lab.status()["hosts"]]
    listed_hosts = json.loads(run_gpuboard(tmp_path, "list", "--data", str(lab.data), "--json").stdout)["hosts"]
    expected = [["busy" if state == "held" else state for state in states] for states in board_states]
    assert [[one["state"] for one in host["gpus"]] for host in listed_hosts] == expected
    assert any("conflict" in states for states in expected)


def test_one_host_with_absurd_numbers_takes_no_column_from_the_others() -> None:
    plain = host(card())
    absurd = host(card()._replace(index=123456789, memory_used=1e12, utilization_gpu=1e9), name="odd")
    usual, shown = lines(plain, across=80), lines(plain, absurd, across=80)
    assert "temp" in usual[0]
    assert "temp" in shown[0]
    assert all(terminal_text.measure_width(line) <= 80 for line in shown)


def test_the_name_of_a_script_is_no_host_of_a_domain() -> None:
    fleet = Fleet(NOW, (host(card(), name="train"), host(card("busy", "", job()), name="z")))
    assert [matched_host.name for matched_host in search.search_fleet(fleet, ["train.py"]).hosts] == ["z"]
    assert [matched_host.name for matched_host in search.search_fleet(fleet, ["train"]).hosts] == ["train"]


def test_list_reads_a_board_of_another_machine(small: Lab) -> None:
    here = run_gpuboard(folder_of(small), "list", "--data", "data").stdout
    with serve_board(small) as url:
        assert run_gpuboard(folder_of(small), "list", "--url", url).stdout == here
        assert run_gpuboard(folder_of(small), GPUBOARD_URL=url).stdout == here


def test_gpuboard_alone_is_list_its_help_stays_and_another_word_is_an_error(small: Lab) -> None:
    here = {"GPUBOARD_DATA": "data"}
    assert run_gpuboard(folder_of(small), **here).stdout == run_gpuboard(folder_of(small), "list", **here).stdout != ""
    assert "\nUsage: gpuboard " in "\n" + run_gpuboard(folder_of(small), "--help", **here).stdout
    wrong = run_gpuboard(folder_of(small), "nosuch", **here)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "No such command 'nosuch'" in wrong.stderr


def test_words_choose_hosts_and_gpus_and_each_host_keeps_its_name(small: Lab) -> None:
    output = run_gpuboard(folder_of(small), "list", "--data", "data", "atlas", "state:free", "mem>20").stdout
    assert [line[:6] for line in output.splitlines()] == ["GPU   ", "atlas ", " 1 [ ]"]


def test_words_that_fit_nothing_are_exit_1_and_a_sentence(small: Lab) -> None:
    finished = run_gpuboard(folder_of(small), "list", "--data", "data", "user:mallory\x1b[2J")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr.startswith("gpuboard: no match for user:mallory?[2J on ")
    assert "(2 hosts)" in finished.stderr
    assert finished.stderr.count("\n") == 1
    hinted = run_gpuboard(folder_of(small), "list", "--data", "data", "mem:40")
    assert (hinted.returncode, hinted.stdout) == (1, "")
    assert hinted.stderr.endswith(": Memory is in GiB: mem>40, mem>=40, mem<40 or mem=40.\n")


def test_a_comparison_that_the_shell_took_for_a_redirect_is_refused(small: Lab) -> None:
    finished = run_gpuboard(folder_of(small), "list", "--data", "data", "mem")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "put a comparison in quotes: 'mem>40'" in finished.stderr


def test_no_hosts_yet_are_no_failure(tmp_path: Path) -> None:
    Lab(tmp_path)
    finished = run_gpuboard(tmp_path, "list", "--data", "data")
    assert (finished.returncode, finished.stdout) == (0, "")
    assert finished.stderr.startswith("gpuboard: no hosts yet on ")


def test_a_folder_or_board_that_is_not_there_is_exit_2_and_a_sentence(tmp_path: Path) -> None:
    for words in (("--data", "nosuch"), ("--url", "http://127.0.0.1:9/")):
        finished = run_gpuboard(tmp_path, "list", *words)
        assert (finished.returncode, finished.stdout, finished.stderr.count("\n")) == (2, "", 1)


def test_json_of_the_command_keeps_to_the_schema_with_words_too(small: Lab) -> None:
    schema = json.loads((ROOT / "docs/status.schema.json").read_text())
    validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/host", "$defs": schema["$defs"]})
    listing = json.loads(run_gpuboard(folder_of(small), "list", "--data", "data", "--json", "train.py").stdout)
    (atlas,) = listing["hosts"]
    validator.validate(atlas)
    assert [one["index"] for one in atlas["gpus"]] == [0]
    nothing = run_gpuboard(folder_of(small), "list", "--data", "data", "--json", "nosuch")
    assert (nothing.returncode, json.loads(nothing.stdout)["hosts"]) == (1, [])


@pytest.mark.slow
def test_colour_is_for_a_terminal_that_has_it_and_not_with_no_color(small: Lab) -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        words = ("list", "--data", "data")
        code, text = Terminal(folder_of(small), *words, **{"TERM": "xterm", "COLUMNS": "80", **environment}).end()
        assert (code, "\x1b[32m 1 [ ]" in text) == (0, coloured)
        assert ("\x1b" in text) is coloured


@pytest.mark.slow
def test_a_listing_that_nobody_reads_on_ends_in_silence(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    for number in range(40):
        lab.host(f"gpu{number}", "".join(gpu(n, 9000, 50, uuid=f"GPU-{n}") for n in range(8)), "", "")
    command = [sys.executable, "-m", "site_builder", "list", "--data", "data"]
    environment = clean_environment()
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True) as listing:
        assert listing.stdout and listing.stderr
        listing.stdout.close()
        assert listing.stderr.read() == ""


# Watching


def resize(terminal: Terminal, columns_: int, rows: int) -> None:
    fcntl.ioctl(terminal.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns_, 0, 0))


@pytest.mark.slow
def test_watching_follows_what_changes_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu(0))
    terminal = Terminal(tmp_path, "list", "--data", "data", "--watch", "--every", "0.3", "state:free", **SCREEN)
    terminal.until(" 0 [ ]")
    assert terminal.text.startswith("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H")
    lab.host("atlas", gpu(0, 9000, 50), process(), person())
    terminal.until("no match for state:free")
    lab.host("atlas", gpu(0) + gpu(1, uuid="GPU-1"))
    terminal.until(" 1 [ ]")
    assert "\x1b[2J" not in terminal.text  # nothing is cleared before it is drawn
    terminal.process.send_signal(signal.SIGINT)
    code, text = terminal.end()
    assert code == 0
    assert text.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")


@pytest.mark.slow
def test_a_failure_while_watching_is_reported_and_tried_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu(0))
    terminal = Terminal(tmp_path, "list", "--data", "data", "-w", "--every", "0.3", **SCREEN)
    terminal.until(" 0 [ ]")
    lab.data.rename(tmp_path / "away")
    screen_text = terminal.until("cannot be read")
    terminal.text = screen_text[screen_text.index("cannot be read") :]
    terminal.until(" 0 [ ]")  # the last look stays
    terminal.text = ""
    (tmp_path / "away").rename(lab.data)
    terminal.until("until Ctrl-C")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end()[0] == 0


@pytest.mark.slow
def test_watching_keeps_to_the_size_of_the_terminal_also_when_that_changes(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", "".join(gpu(n, uuid=f"GPU-{n}") for n in range(8)))
    terminal = Terminal(tmp_path, "list", "--data", "data", "-w", "--every", "60", **SCREEN)
    terminal.until(" 7 [ ]")
    terminal.text = ""
    resize(terminal, 50, 5)
    terminal.until("and 6 more lines")
    frame = terminal.text[terminal.text.rindex("\x1b[H") :]
    drawn = [ESCAPE.sub("", line) for line in frame.replace("\r", "").split("\n")]
    assert len(drawn) == 5
    assert max(map(terminal_text.measure_width, drawn)) <= 50
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end()[0] == 0


def test_watching_needs_a_terminal_and_a_board_that_is_there(small: Lab, tmp_path: Path) -> None:
    finished = run_gpuboard(folder_of(small), "list", "--data", "data", "--watch")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "--watch needs a terminal" in finished.stderr
    code, text = Terminal(tmp_path, "list", "--data", "nosuch", "--watch", **SCREEN).end()
    assert (code, "there is no folder" in text, "\x1b" in text) == (2, True, False)


@pytest.mark.parametrize("words", [("--watch", "--json"), ("--every", "3"), ("--watch", "--every", "0")])
def test_options_that_do_not_go_together_are_reported(small: Lab, words: tuple[str, ...]) -> None:
    finished = run_gpuboard(folder_of(small), "list", "--data", "data", *words)
    assert (finished.returncode, finished.stdout) == (2, "")
