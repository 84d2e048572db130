"""status.json as programs read it: whatever a board elsewhere says, it is understood or left out, and never free."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings.host_lookup import HostLookup
from site_builder.client import loader
from site_builder.client.model import Fleet
from site_builder.core.clock import Now
from site_builder.core.model import GpuProblem, HostStatus, Problem, ProcessStatus
from site_builder.fleet import status_json
from site_builder.snapshots.local_machine import read_local_machine_name
from tests.support.every_state import make_lab

JUNK: tuple[Any, ...] = (None, True, 0, -1, 1e300, "", "x\x1b[31m", [], {}, [[]], {"a": 1}, "2027-01-01T00:00:00")


def board(gpu: dict[str, Any] | None = None, **host: Any) -> dict[str, Any]:  # noqa: ANN401
    gpu_entry = {"index": 0, "uuid": "GPU-0", "name": "A", "model": "A", "state": "free", "reason": "", **(gpu or {})}
    return {
        "schema": 1,
        "built": 1,
        "every": 10,
        "hosts": [{"name": "atlas", "state": "fresh", "gpus": [gpu_entry], **host}],
        "problems": [],
    }


def read(status: object) -> Fleet:
    fleet, why = loader.parse_status(json.dumps(status).encode())
    assert fleet, why
    return fleet


def render_and_parse(statuses: list[HostStatus], built: float) -> Fleet:
    parts = [
        (before, status.last_seen, after)
        for status in statuses
        for before, after in [status_json.render_status_host(status)]
    ]
    problems = [problem for status in statuses for problem in status.problems]
    fleet, fault = loader.parse_status(status_json.render_status_json(parts, problems, built))
    assert fleet, fault
    return fleet._replace(source="here", machine_name=read_local_machine_name())


def test_a_fleet_built_from_states_equals_the_one_parsed_from_status_json(tmp_path: Path) -> None:
    settings = make_lab(tmp_path).settings()
    hosts, now = HostLookup(settings), Now(time.time(), settings.zone)
    names = list(hosts.list_hosts())
    statuses = list(
        hosts.decide_hosts(names, loader.load_fleet_bookings(settings), now, remembered=True).statuses.values()
    )
    fleet = loader.build_loaded_fleet(statuses, now.epoch, "here")
    assert (fleet.built, fleet.source, fleet.machine_name) == (int(now.epoch), "here", read_local_machine_name())
    assert {host.state for host in fleet.hosts} >= {"fresh", "stale", "failed"}
    assert {gpu.state for host in fleet.hosts for gpu in host.gpus} == loader.GPU_STATES
    assert fleet == render_and_parse(statuses, now.epoch)
    odd_text, clean_text = "a\nb\x1b[31m \u202e café", "a b?[31m ? café"
    odd_statuses = [
        replace(
            status,
            title=odd_text,
            reason=odd_text,
            problems=(Problem(odd_text, odd_text),),
            gpus=tuple(
                gpu._replace(reason=odd_text, problems=(GpuProblem("xid", "critical", odd_text, odd_text, True),))
                for gpu in status.gpus
            ),
        )
        for status in statuses
    ]
    fleet = loader.build_loaded_fleet(odd_statuses, now.epoch, "here")
    assert fleet == render_and_parse(odd_statuses, now.epoch)
    assert {*fleet.problems} == {f"{clean_text}: {clean_text}"}
    assert {(host.title, host.reason) for host in fleet.hosts} == {(clean_text, clean_text)}
    problems = {problem for host in fleet.hosts for gpu in host.gpus for problem in gpu.problems}
    assert problems == {GpuProblem("xid", "critical", clean_text, clean_text, True)}


def test_a_login_that_is_no_utf_8_costs_no_fleet(tmp_path: Path) -> None:
    settings = make_lab(tmp_path).settings()
    hosts, now = HostLookup(settings), Now(time.time(), settings.zone)
    statuses = hosts.decide_hosts(list(hosts.list_hosts()), [], now, remembered=True).statuses.values()
    process = ProcessStatus(pid=1, user="ren\udce9", command="a\udcff", used_memory=7, started=1)
    odd_statuses = [
        replace(status, gpus=tuple(gpu._replace(processes=(process,)) for gpu in status.gpus)) for status in statuses
    ]
    fleet = loader.build_loaded_fleet(odd_statuses, now.epoch, "here")
    shown = {(process.user, process.command) for host in fleet.hosts for gpu in host.gpus for process in gpu.processes}
    assert shown == {("ren?", "a?")}


def test_what_is_built_is_read_again_in_full(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    board_status = lab.status()
    fleet = read(board_status)
    assert (fleet.built, fleet.every) == (board_status["built"], board_status["every"])
    for host, fleet_host in zip(board_status["hosts"], fleet.hosts):
        assert (host["name"], host["title"], tuple(host["tags"])) == (
            fleet_host.name,
            fleet_host.title,
            fleet_host.tags,
        )
        assert (host["state"], host["reason"], host["seen"], host["cpus"]) == (
            fleet_host.state,
            fleet_host.reason,
            fleet_host.seen,
            fleet_host.cpus,
        )
        assert host["load"] == (fleet_host.load and [*fleet_host.load])
        for gpu, fleet_gpu in zip(host["gpus"], fleet_host.gpus):
            assert [gpu[key] for key in ("index", "uuid", "name", "model", "state", "reason")] == [*fleet_gpu[:6]]
            assert [gpu[key] for key in ("memory.used", "memory.total", "utilization.gpu", "clocks.sm")] == [
                fleet_gpu.memory_used,
                fleet_gpu.memory_total,
                fleet_gpu.utilization_gpu,
                fleet_gpu.clock,
            ]
            assert [each["pid"] for each in gpu["processes"]] == [each.pid for each in fleet_gpu.processes]
            assert [each["date"] for each in gpu["bookings"]] == [each.until.isoformat() for each in fleet_gpu.bookings]
    assert len(board_status["hosts"]) == len(fleet.hosts) > 5


def test_a_state_that_nobody_knows_is_unknown_and_a_host_of_which_nobody_knows_is_failed() -> None:
    (gpu,) = read(board({"state": "wonderful"})).hosts[0].gpus
    assert gpu.state == "unknown"
    host = read(board(state="wonderful")).hosts[0]
    assert (host.state, host.gpus[0].state) == ("failed", "unknown")


def test_a_host_that_is_not_fresh_has_no_free_gpu_whatever_it_says() -> None:
    assert read(board(state="stale")).hosts[0].gpus[0].state == "unknown"


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_in_any_place_costs_that_place_alone(junk: object) -> None:
    for key in ("index", "uuid", "name", "model", "reason", "memory.used", "processes", "bookings", "free_again"):
        (gpu,) = read(board({key: junk})).hosts[0].gpus
        assert gpu.state == "free"
    for key in ("title", "tags", "seen", "load", "cpus", "memory", "reason"):
        assert read(board(None, **{key: junk})).hosts[0].gpus
    board_status = board()
    board_status["hosts"].append(junk)
    fleet = read(board_status)
    assert [host.name for host in fleet.hosts] == ["atlas"]
    assert fleet.problems == ("1 hosts of status.json could not be read",)


@pytest.mark.parametrize("key", ["from", "date", "id", "name", "comment"])
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_a_booking_with_odd_times_is_left_out(key: str, junk: object) -> None:
    whole = {"id": "a", "name": "bob", "from": None, "date": "2027-01-01T00:00:00+00:00", "comment": None}
    (gpu,) = read(board({"bookings": [{**whole, key: junk}, whole]})).hosts[0].gpus
    assert gpu.bookings[-1].name == "bob"
    assert all(booking.until.tzinfo for booking in gpu.bookings)


def test_what_steers_a_terminal_is_taken_out_wherever_it_stands() -> None:
    for evil in ("\x1b[2J", "\x07", "\u202e", "\x7f", "\u2028", "\x9b31m"):
        board_status = board({"name": evil, "processes": [{"pid": 1, "user": evil, "command": evil}]}, title=evil)
        board_status["problems"] = [{"where": evil, "what": evil}]
        for content in (json.dumps(board_status), json.dumps(board_status, ensure_ascii=False)):
            fleet, _ = loader.parse_status(content.encode())
            assert fleet
            assert evil not in repr(fleet).encode().decode("unicode_escape")


def test_a_text_is_one_line_whatever_it_was() -> None:
    for evil in ("x\n 3 [ ] H100", "a\tb", "a\r\nb", "\u200fa"):
        board_status = board({"reason": evil, "processes": [{"pid": 1, "user": evil, "command": evil}]})
        for content in (json.dumps(board_status), json.dumps(board_status, ensure_ascii=False)):
            fleet, _ = loader.parse_status(content.encode())
            assert fleet
            (gpu,) = fleet.hosts[0].gpus
            for text in (gpu.reason, gpu.processes[0].user, gpu.processes[0].command):
                assert text
                assert not set(text) & set("\n\t\r\u200f")


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(content: bytes) -> None:
    fleet, why = loader.parse_status(content)
    assert (fleet is None) == bool(why)


KEYS = st.sampled_from(["hosts", "gpus", "name", "state", "bookings", "date", "processes"])
PLAIN = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_no_json_makes_it_fail(hosts: object) -> None:
    content = json.dumps({"schema": 1, "built": 1, "hosts": [hosts, {"name": "a", "state": "fresh", "gpus": [hosts]}]})
    loader.parse_status(content.encode(errors="surrogatepass"))
