"""`gpuboard available` and `gpuboard wait`: on a single machine, from a data folder, from a board's URL."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_builder.client import commands, picker
from site_builder.core import subprocesses
from tests.support.board_fixture import GPU_COLUMNS, Lab, gpu, soon
from tests.support.board_server import serve_board
from tests.support.booking_fixtures import ME, Terminal, done, lab_of
from tests.support.command_line import clean_environment, run_gpuboard, run_in_own_process
from tests.support.own_gpus import A100, COLUMNS, HERE, STAND_INS, OwnGpus, row, uuid
from tests.support.pace import wall, within
from tests.support.ports import free_port
from tests.support.samples import SAMPLES, format_topology

BUSY = 70000


@pytest.fixture
def own(tmp_path: Path) -> OwnGpus:
    return OwnGpus(tmp_path / "own", row(0), row(1, BUSY, use=90), row(2, 300))


def asked(own: OwnGpus, *words: str) -> subprocess.CompletedProcess[str]:
    """`gpuboard WORDS` on a machine where nothing is set up."""
    return run_gpuboard(own.smi.parent, *words, **own.environment)


def said(finished: subprocess.CompletedProcess[str], code: int) -> str:
    """What was said on stderr, if it is one sentence and nothing else."""
    assert (finished.returncode, finished.stdout, finished.stderr.count("\n")) == (code, "", 1), finished
    return finished.stderr


# A single machine with nothing set up


def test_the_free_gpus_of_this_machine_are_printed_as_cuda_takes_them(own: OwnGpus) -> None:
    finished = asked(own, "available")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "0,2\n", "")
    assert asked(own, "available", "-l", "1").stdout == "0\n"
    assert asked(own, "available", "--limit", "5", "--at-least", "2").stdout == "0,2\n"


def test_a_process_makes_a_gpu_busy_however_little_memory_it_has(own: OwnGpus) -> None:
    own.process(0, 4711, "python train.py", memory=2)
    assert asked(own, "available").stdout == "2\n"


def test_by_the_rule_of_nvgpu_only_used_memory_counts_and_the_lowest_index_comes_first(own: OwnGpus) -> None:
    own.tell(row(0, 16384, use=90), row(1, 16385), row(2, 4))
    own.process(0, 4711, "python train.py", memory=16000)
    assert asked(own, "available").stdout == "2\n"
    assert asked(own, "available", "--max-used-percent", "20", "--order", "index").stdout == "0,2\n"
    assert asked(own, "available", "--max-used-percent", "20").stdout == "2,0\n"
    assert asked(own, "available", "--max-used-percent", "100", "--order", "index", "-l", "2").stdout == "0,1\n"
    message = said(asked(own, "available", "--max-used-percent", "0"), 1)
    assert message == f"gpuboard: no GPU available on {HERE}: 3 with more than 0 % of memory used\n"


def test_the_rule_of_nvgpu_hands_out_no_gpu_that_is_lost_or_unknown(own: OwnGpus) -> None:
    own.tell(f"0, {uuid(0)}, {A100}, 4, 81920, ERR!, 41, 1410\n", row(1).replace(" 81920,", " [N/A],"), row(2))
    assert asked(own, "available", "--max-used-percent", "100").stdout == "2\n"


def test_with_fewer_than_wanted_nothing_is_printed_and_the_reason_is_reported(own: OwnGpus) -> None:
    message = said(asked(own, "available", "--at-least", "3"), 1)
    assert message == f"gpuboard: only 2 of 3 GPUs available on {HERE}: 2 free, 1 busy\n"
    own.tell(row(0, BUSY), row(1, BUSY))
    assert said(asked(own, "available"), 1) == f"gpuboard: no GPU available on {HERE}: 2 busy\n"


def test_model_and_memory_are_respected(own: OwnGpus) -> None:
    own.tell(row(0, name="NVIDIA GeForce RTX 4090", total=24564), row(1), row(2, 300))
    assert asked(own, "available", "--model", "4090").stdout == "0\n"
    assert asked(own, "available", "--min-memory", "20GiB").stdout == "1,2,0\n"
    assert asked(own, "available", "--min-memory", "24GB").stdout == "1,2,0\n"
    assert asked(own, "available", "--min-memory", "24 GiB").stdout == "1,2\n"
    assert asked(own, "available", "--min-memory", "24600MiB").stdout == "1,2\n"
    assert "no B200 with 20 GiB free available" in said(
        asked(own, "available", "--model", "B200", "--min-memory", "20"), 1
    )


@pytest.mark.parametrize("size", ["much", "-5GiB", "20TiB", "GiB", "1e9"])
def test_a_size_that_is_none_is_refused(own: OwnGpus, size: str) -> None:
    finished = asked(own, "available", f"--min-memory={size}")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "write it as 20GiB or 24GB" in finished.stderr


def test_a_lost_gpu_is_never_picked_and_does_not_hide_the_others(own: OwnGpus) -> None:
    lost = f"0, {uuid(0)}, {A100}, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n"
    own.tell(lost, row(1))
    assert asked(own, "available").stdout == "1\n"


@pytest.mark.parametrize(
    ("cells", "state"),
    [
        ("4, 81920, [GPU requires reset], 41, 1410", "lost"),
        ("0, 81920, 0, [GPU is lost], 1410", "lost"),
        ("4, 81920, 0, 41, [GPU requires reset]", "lost"),
        ("4, 81920, 0, [Unknown Error], 1410", "unknown"),
        ("0, 81920, ERR!, 41, 1410", "unknown"),
    ],
)
def test_a_gpu_with_an_error_in_one_cell_is_never_picked(own: OwnGpus, cells: str, state: str) -> None:
    own.tell(f"0, {uuid(0)}, {A100}, {cells}\n", row(1))
    assert asked(own, "available").stdout == "1\n"
    own.tell(f"0, {uuid(0)}, {A100}, {cells}\n")
    assert f"1 {state}" in said(asked(own, "available"), 1)


def test_a_gpu_whose_processes_are_not_reported_is_never_picked(own: OwnGpus) -> None:
    words = "[Not Supported], [Not Supported], [Not Supported]"
    own.tell(row(0), row(1))
    (own.smi / "apps").write_text(f"{uuid(0)}, {words}\n")
    assert asked(own, "available").stdout == "1\n"


def test_values_that_the_driver_does_not_report_are_no_free_gpu(own: OwnGpus) -> None:
    own.tell(f"0, {uuid(0)}, {A100}, [N/A], [N/A], [N/A], 41, 1410\n")
    assert "1 unknown" in said(asked(own, "available"), 1)


def test_a_field_that_an_old_driver_does_not_know_costs_nothing_else(own: OwnGpus) -> None:
    (own.smi / "fields").write_text("index\nuuid\nname\nmemory.used\nmemory.total\nutilization.gpu\n")
    assert asked(own, "available").stdout == "0,2\n"


def test_without_nvidia_smi_and_without_a_board_the_message_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    message = said(run_gpuboard(tmp_path, "available", PATH=str(tmp_path / "bin")), 2)
    assert message.startswith(
        "gpuboard: no nvidia-smi, amd-smi or rocm-smi on this machine, and no board set: set GPUBOARD_URL"
    )


def test_a_driver_that_does_not_answer_is_reported_in_its_own_words(own: OwnGpus) -> None:
    (own.smi / "say").write_text("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    (own.smi / "rc").write_text("9")
    assert "nvidia-smi ended with exit code 9: NVIDIA-SMI has failed because" in said(asked(own, "available"), 2)


@pytest.mark.slow
def test_an_nvidia_smi_that_hangs_is_given_up(own: OwnGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert subprocesses.TIMEOUT_S <= 10
    monkeypatch.setattr(subprocesses, "TIMEOUT_S", 0.5)
    hung_processes: list[tuple[str, subprocess.Popen[bytes]]] = []
    monkeypatch.setattr(subprocesses, "HUNG_PROCESSES", hung_processes)
    (own.smi / "sleep").write_text("60")
    with within(20, wall):
        assert "nvidia-smi did not answer in time" in said(asked(own, "available"), 2)
    for _, process in hung_processes:
        process.communicate(timeout=30)


def test_processes_that_could_not_be_read_are_no_free_gpu(own: OwnGpus, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase $1 in *apps*) exit 12 ;; esac\nexec {STAND_INS}/nvidia-smi "$@"\n')
    program.chmod(0o755)
    own.environment["PATH"] = f"{tmp_path / 'bin'}:{own.environment['PATH']}"
    assert "2 unknown" in said(asked(own, "available"), 1)


@pytest.mark.slow
def test_a_gpu_that_a_run_has_taken_is_not_available(own: OwnGpus) -> None:
    claim = picker.claim_picked_gpu(uuid(0))
    assert claim
    settings = clean_environment(**own.environment)
    assert run_in_own_process(own.smi.parent, settings, "available").stdout == "2\n"  # a claim is that of a process
    assert picker.claim_picked_gpu(uuid(0)) is None
    os.close(claim)
    assert asked(own, "available").stdout == "0,2\n"


def test_several_of_this_machine_are_linked_if_they_can_be(own: OwnGpus) -> None:
    (own.smi / "topology").write_bytes((SAMPLES / "nvidia/topology/580-four-in-pairs.txt").read_bytes())
    (own.smi / "calls").touch()
    own.tell(row(0), row(1, BUSY), row(2), row(3))
    assert asked(own, "available", "-l", "2").stdout == "2,3\n"
    assert asked(own, "wait", "--gpus", "2").stdout == "2,3\n"
    assert "topo -m" in (own.smi / "calls").read_text()
    (own.smi / "calls").write_text("")
    assert asked(own, "available").stdout == "0,2,3\n"
    assert asked(own, "available", "-l", "1").stdout == "0\n"
    assert "topo" not in (own.smi / "calls").read_text()  # it would make no difference


@pytest.mark.parametrize("topology", ["", "ERR!\n", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\n"])
def test_a_topology_that_cannot_be_read_changes_nothing(own: OwnGpus, topology: str) -> None:
    (own.smi / "topology").write_text(topology)
    assert asked(own, "available", "-l", "2").stdout == "0,2\n"


# A data folder


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return lab_of(tmp_path / "lab")


def of(lab: Lab, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`gpuboard WORDS` with the lab's data folder."""
    return run_gpuboard(lab.data.parent, *words, GPUBOARD_DATA=str(lab.data), **environment)


def test_all_hosts_are_printed_the_best_gpu_first(lab: Lab) -> None:
    finished = of(lab, "available", "--all")
    assert finished.stdout == "zeus:0 zeus:1 atlas:0 atlas:1 atlas:2 atlas:3\n"
    assert of(lab, "available", "--all", "-l", "2", "--model", "a100").stdout == "atlas:0 atlas:1\n"
    assert of(lab, "available", "--host", "ZEUS.lab.org").stdout == "0,1\n"


@pytest.mark.slow
def test_at_a_terminal_no_gpu_is_broken_at_the_end_of_a_line(lab: Lab) -> None:
    environment = {"GPUBOARD_DATA": str(lab.data), "COLUMNS": "40"}
    terminal = Terminal(lab.data.parent, "available", "--all", **environment)
    while terminal.more():
        pass
    assert terminal.process.wait() == 0
    assert terminal.text.splitlines()[:2] == ["zeus:0 zeus:1 atlas:0 atlas:1 atlas:2", "atlas:3"]


def test_my_bookings_count_as_free_and_others_never(lab: Lab) -> None:
    lab.book({"atlas": {"0": {"name": ME, "date": soon(7200)}, "1": {"name": "bob", "date": soon(7200)}}})
    assert of(lab, "available", "--host", "atlas").stdout == "0,2,3\n"
    assert of(lab, "available", "--host", "atlas", "--name", "bob").stdout == "1,2,3\n"
    (lab.data / "aliases.csv").write_text(f"robert, bob\n{ME}, bob\n")
    assert of(lab, "available", "--host", "atlas", "--name", "robert").stdout == "0,1,2,3\n"


def add_links(lab: Lab) -> None:
    """GPUs 0 and 1, 2 and 3 of atlas are linked."""
    lab.write("atlas", "host.txt", format_topology("580-four-in-pairs"))


def test_linked_gpus_of_a_host_are_preferred_in_a_folder_and_on_its_board(lab: Lab, tmp_path: Path) -> None:
    add_links(lab)
    lab.book({"atlas": {"0": {"name": "bob", "date": soon(7200)}}})
    with serve_board(lab) as url:
        for place in ({"GPUBOARD_DATA": str(lab.data)}, {"GPUBOARD_URL": url}):

            def ask(*words: str, place: dict[str, str] = place) -> str:
                return done(tmp_path, *words, **place).stdout

            assert ask("available", "--host", "atlas") == "1,2,3\n"
            assert ask("available", "--host", "atlas", "-l", "2") == "2,3\n"
            assert ask("available", "--host", "atlas", "-l", "3") == "1,2,3\n"
            assert ask("wait", "--host", "atlas", "--gpus", "2") == "2,3\n"
            assert ask("wait", "--all", "--gpus", "2", "--model", "a100") == "atlas:2 atlas:3\n"
            assert ask("available", "--all", "-l", "3") == "zeus:0 zeus:1 atlas:1\n"  # of several hosts


def test_by_the_rule_of_nvgpu_what_others_have_booked_is_not_available(lab: Lab) -> None:
    rule = ("available", "--all", "--max-used-percent", "20", "--order", "index")
    free = of(lab, *rule).stdout.split()
    assert free == sorted(free)
    host, number = free[0].split(":")
    lab.book({host: {number: {"name": "bob", "date": soon(7200)}}})
    assert of(lab, *rule).stdout.split() == free[1:]


@pytest.mark.parametrize("command", ["available", "wait"])
def test_a_gpu_that_is_booked_later_says_until_when_it_is_free(lab: Lab, command: str) -> None:
    start = soon(1800)
    bob = {"name": "bob", "from": soon(7200), "date": soon(9000)}
    mine = {"name": ME, "from": start, "date": soon(3600)}
    lab.book({"atlas": {"0": [mine, bob], "1": {"name": ME, "from": start, "date": soon(7200)}}})
    finished = of(lab, command, "--host", "atlas")
    assert finished.stdout == ("0,1,2,3\n" if command == "available" else "0\n")
    assert re.fullmatch(r"gpuboard: booked later, so free only until (tomorrow )?\d\d:\d\d: atlas:0\n", finished.stderr)
    longer = of(lab, command, "--host", "atlas", "--for", "1h")
    assert (longer.stdout, longer.stderr) == (finished.stdout, finished.stderr)
    without = of(lab, command, "--host", "atlas", "--for", "6h")
    assert (without.stdout, without.stderr) == ("1,2,3\n" if command == "available" else "1\n", "")
    assert of(lab, command, "--host", "zeus", "--for", "30d").stdout in {"0\n", "0,1\n"}


def test_what_is_booked_too_soon_is_the_reason_why_none_is_available(lab: Lab) -> None:
    lab.book({"zeus": {"*": {"name": "bob", "from": soon(7200), "date": soon(9000)}}})
    message = said(of(lab, "available", "--host", "zeus", "--for", "6h"), 1)
    assert message == "gpuboard: no GPU available on zeus: 2 booked within 6 h\n"
    assert said(of(lab, "wait", "--host", "zeus", "--for", "6h", "--timeout", "1s", "--every", "1"), 1) == message


@pytest.mark.parametrize("command", ["available", "wait"])
def test_json_says_until_when_each_is_free(lab: Lab, command: str) -> None:
    since = soon(7200)
    lab.book({"zeus": {"0": {"name": "bob", "from": since, "date": soon(9000)}, "1": {"name": ME, "date": soon(9000)}}})
    count = () if command == "available" else ("--gpus", "2")
    finished = of(lab, command, "--all", "--model", "H100", *count, "--json")
    first, second = json.loads(finished.stdout)
    assert (first["host"], first["gpu"], first["visible_device"], first["booked_by_you"]) == ("zeus", "0", "0", False)
    assert datetime.fromisoformat(first["free_until"]) == datetime.fromisoformat(since)
    assert (second["gpu"], second["free_until"], second["booked_by_you"]) == ("1", None, True)
    assert finished.stderr == ""


def test_a_host_that_is_stale_has_nothing_to_offer(lab: Lab) -> None:
    lab.write("zeus", "gpus.csv", GPU_COLUMNS + "\n" + gpu(0), time=int(time.time()) - 300)
    assert "zeus" not in of(lab, "available", "--all").stdout


def test_a_folder_in_which_nothing_is_of_now_is_refused(lab: Lab) -> None:
    for host in ("atlas", "zeus"):
        lab.write(host, "gpus.csv", GPU_COLUMNS + "\n" + gpu(0), time=int(time.time()) - 300)
    assert "atlas is stale: it pushes, but gpus.csv is from " in said(of(lab, "available", "--all"), 2)
    assert "zeus is stale" in said(of(lab, "available", "--host", "zeus"), 2)


def test_bookings_that_cannot_be_read_are_those_of_the_last_good_file(lab: Lab) -> None:
    lab.book({"atlas": {"0": {"name": "bob", "date": soon(7200)}}})
    lab.build()
    lab.book("{ broken")
    assert of(lab, "available", "--host", "atlas").stdout == "1,2,3\n"
    (lab.data / "comments.last-good.json").unlink()
    message = said(of(lab, "available", "--host", "atlas"), 2)
    assert "comments.json was not read: line 1" in message
    assert "the bookings are unknown" in message


def test_what_is_not_to_be_published_is_known_to_who_may_read_the_folder(lab: Lab) -> None:
    lab.book({"atlas": {"0": {"name": ME, "date": soon(7200)}}})
    assert of(lab, "available", "--host", "atlas", GPUBOARD_SHOW_USERS="no").stdout == "0,1,2,3\n"


def test_a_host_is_found_by_its_short_name_only_where_one_can_be_meant(lab: Lab) -> None:
    for name in ("gpu01.a.org", "gpu01.b.org", "gpu02.a.org"):
        lab.host(name, gpu(0, uuid=f"GPU-{name}"))
    assert "has no host gpu01" in said(of(lab, "available", "--host", "gpu01"), 2)
    assert "has no host" in said(of(lab, "available", "--host", "gpu02.b.org"), 2)
    assert of(lab, "available", "--host", "GPU02").stdout == "0\n"
    assert of(lab, "available", "--host", "gpu01.B.org").stdout == "0\n"


def test_on_this_machine_nvidia_smi_itself_has_the_last_word(lab: Lab, own: OwnGpus) -> None:
    lab.host(HERE, "".join(gpu(index, uuid=uuid(index)) for index in range(3)))
    assert of(lab, "available", **own.environment).stdout == "0,2\n"
    own.tell(row(0).replace(uuid(0), uuid(2)))
    assert of(lab, "available", **own.environment).stdout == "0\n"
    own.tell(row(0).replace(uuid(0), uuid(7)))
    assert f"the GPUs of {HERE} are not those of this machine" in said(of(lab, "available", **own.environment), 2)


def test_by_the_rule_of_nvgpu_neither_board_nor_machine_may_object(lab: Lab, own: OwnGpus) -> None:
    rule = ("available", "--max-used-percent", "20", "--order", "index")
    columns = f"{COLUMNS}, ecc.errors.uncorrected.volatile.total\n"
    rows = [f"{row(index, 5000, use=90).strip()}, {errors}\n" for index, errors in enumerate((0, 7, 0, 0))]
    (own.smi / "table").write_text(columns + "".join(rows))
    board_rows = [gpu(index, 5000, 90, uuid=uuid(index)) for index in range(4)]
    board_rows[2] = board_rows[2].replace(" 90,", " [GPU requires reset],")
    board_rows[3] = board_rows[3].replace(" 90,", " ERR!,")
    lab.host(HERE, "".join(board_rows))
    lab.build()
    assert lab.states(HERE) == ["busy", "busy", "lost", "unknown"]
    assert of(lab, *rule, **own.environment).stdout == "0\n"


def test_a_share_of_memory_that_is_not_a_number_is_never_enough(own: OwnGpus) -> None:
    assert asked(own, "available", "--max-used-percent", "nan").returncode in {1, 2}


def test_this_machine_must_be_on_the_board_or_be_named(lab: Lab) -> None:
    message = said(of(lab, "available"), 2)
    assert message.startswith(f"gpuboard: this machine, {HERE}, is not on ")
    assert "--host" in message
    assert "has no host nowhere" in said(of(lab, "available", "--host", "nowhere"), 2)
    lab.host(HERE)
    assert of(lab, "available").stdout == "0\n"


def test_a_data_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert "there is no folder" in said(run_gpuboard(tmp_path, "available", "--data", "nowhere"), 2)


def test_what_does_not_go_together_is_refused(lab: Lab) -> None:
    for words in (("--all", "--host", "atlas"), ("--limit", "1", "--at-least", "2"), ("--limit", "0")):
        finished = of(lab, "available", *words)
        assert (finished.returncode, finished.stdout) == (2, "")


# A board's URL


@contextmanager
def answering(content: bytes, code: int = 200, **headers: str) -> Iterator[str]:
    """A server that answers everything with this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(code)
            for name, value in {"Date": self.date_time_string(), **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_board_answers_as_its_folder_does(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": ME, "date": soon(7200)}, "1": {"name": "bob", "date": soon(7200)}}})
    with serve_board(lab) as url:
        assert done(tmp_path, "available", "--all", "--url", url).stdout == of(lab, "available", "--all").stdout
        assert done(tmp_path, "available", "--host", "atlas", GPUBOARD_URL=url).stdout == "0,2,3\n"


@pytest.mark.slow
def test_a_board_that_nobody_builds_any_more_is_refused_with_its_age(lab: Lab, tmp_path: Path) -> None:
    lab.build(after=-7200)
    for command in (("available", "--all"), ("wait", "--all"), ("run", "--", "true"), ("list",)):
        with answering((lab.www / "status.json").read_bytes()) as url:
            message = said(run_gpuboard(tmp_path, *command, GPUBOARD_URL=url), 2)
        assert "was last built 2 h" in message
        assert "its data are out of date" in message


@pytest.mark.slow
def test_the_age_of_a_board_is_reported_by_its_servers_clock_not_by_ours(lab: Lab, tmp_path: Path) -> None:
    with serve_board(lab) as url:
        command = ["faketime", "-f", "+3d", sys.executable, "-m", "site_builder", "available", "--all", "--url", url]
        finished = subprocess.run(
            command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
        )
    assert (finished.returncode, finished.stdout[:6]) == (0, "zeus:0"), finished.stderr


@pytest.mark.slow
def test_the_answer_of_a_cache_is_as_old_as_it_says(lab: Lab, tmp_path: Path) -> None:
    lab.build(after=-3600)
    headers = {"Date": formatdate(time.time() - 3600, usegmt=True), "Age": "3600"}
    with answering((lab.www / "status.json").read_bytes(), 200, **headers) as url:
        assert "was last built 1 h" in said(run_gpuboard(tmp_path, "available", "--all", GPUBOARD_URL=url), 2)


BOARD: dict[str, Any] = {"schema": 1, "built": 1, "every": 10, "book": None, "hosts": [], "problems": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!doctype html><title>A shop</title>", "is not the status.json of a gpuboard: check GPUBOARD_URL"),
        (b"[]", "is not the status.json of a gpuboard"),
        (b'{"schema":1}', "is not the status.json of a gpuboard"),
        (json.dumps({**BOARD, "built": True}).encode(), "is not the status.json of a gpuboard"),
        (json.dumps({**BOARD, "schema": 0}).encode(), "has schema 0, but 1 is needed here: update the board"),
        (json.dumps({**BOARD, "schema": 2}).encode(), "has schema 2, but 1 is needed here: update gpuboard here"),
        (json.dumps({**BOARD, "schema": "\x1b[31m"}).encode(), "has schema ?[31m, but"),
        (
            json.dumps({**BOARD, "built": 9999999999}).encode(),
            "in the future: the clock of its builder or of its server",
        ),
        (b"\xff\xfe", "is not the status.json of a gpuboard"),
        (b"", "is not the status.json of a gpuboard"),
        (b"[" * 100_000, "is not the status.json of a gpuboard"),
    ],
)
def test_a_page_that_is_not_ours_is_one_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    with answering(content) as url:
        message = said(run_gpuboard(tmp_path, "available", "--all", GPUBOARD_URL=url), 2)
    assert words in message
    assert "\x1b" not in message


@pytest.mark.slow
def test_a_dead_address_and_a_missing_page_are_one_sentence(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/"
    assert "nothing answers at 127.0.0.1" in said(run_gpuboard(tmp_path, "available", "--all", GPUBOARD_URL=nowhere), 2)
    with answering(b"no", code=404) as url:
        assert "there is nothing at" in said(run_gpuboard(tmp_path, "available", "--all", GPUBOARD_URL=url), 2)
    with answering(b"no", code=502) as url:
        assert "answered 502" in said(run_gpuboard(tmp_path, "available", "--all", GPUBOARD_URL=url), 2)


# Waiting


def test_wait_returns_at_once_where_there_are_enough(own: OwnGpus) -> None:
    finished = asked(own, "wait", "--gpus", "2")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "0,2\n", "")


def test_wait_returns_when_they_come_free(own: OwnGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    own.tell(row(0), row(1, BUSY))
    waited: list[float] = []

    def free_one(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            own.tell(row(0), row(1))

    monkeypatch.setattr(commands, "time", Mock(wraps=time, sleep=free_one))
    finished = asked(own, "wait", "--gpus", "2", "--every", "1")
    assert (finished.returncode, finished.stdout) == (0, "0,1\n")
    assert waited == [1, 1]


@pytest.mark.slow
def test_wait_gives_up_after_its_time_with_exit_1(own: OwnGpus) -> None:
    message = said(asked(own, "wait", "--gpus", "3", "--timeout", "1s", "--every", "1"), 1)
    assert "only 2 of 3 GPUs available" in message


@pytest.mark.slow
def test_wait_for_any_host_waits_for_one_that_has_all_of_them(lab: Lab) -> None:
    assert of(lab, "wait", "--all", "--gpus", "3").stdout == "atlas:0 atlas:1 atlas:2\n"
    assert of(lab, "wait", "--all", "--gpus", "2").stdout == "zeus:0 zeus:1\n"
    message = said(of(lab, "wait", "--all", "--gpus", "5", "--timeout", "1s", "--every", "1"), 1)
    assert message == f"gpuboard: no host of {lab.data} has 5 GPUs available: 6 free\n"


@pytest.mark.slow
def test_while_it_waits_a_failure_is_reported_and_asked_again(own: OwnGpus) -> None:
    own.tell(row(0, BUSY))
    terminal = Terminal(own.smi.parent, "wait", "--every", "1", **own.environment)
    terminal.until("1 busy; waiting")
    (own.smi / "rc").write_text("9")
    (own.smi / "say").write_text("the driver is being updated\n")
    terminal.until("the driver is being updated")
    own.tell(row(0))
    (own.smi / "say").unlink()
    (own.smi / "rc").unlink()
    code, text = terminal.end()
    assert (code, text.splitlines()[-1]) == (0, "0")


def test_a_timeout_that_is_no_time_is_refused(own: OwnGpus) -> None:
    finished = asked(own, "wait", "--timeout", "soon")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert '"soon" is not a duration' in finished.stderr


@pytest.mark.slow
def test_names_that_would_steer_a_terminal_are_harmless(lab: Lab, tmp_path: Path) -> None:
    board_status = json.loads((lab.build() and (lab.www / "status.json").read_bytes()) or b"{}")
    board_status["hosts"][0]["name"] = "at\x1b]0;owned\x07las"
    board_status["built"] = int(time.time())
    with answering(json.dumps(board_status).encode()) as url:
        finished = run_gpuboard(tmp_path, "available", "--all", GPUBOARD_URL=url)
    assert "at?]0;owned?las:0" in finished.stdout
    assert not any(ord(letter) < 32 and letter != "\n" for letter in finished.stdout + finished.stderr)
