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
    one = {"index": 0, "uuid": "GPU-0", "name": "A", "model": "A", "state": "free", "reason": "", **(gpu or {})}
    return {
        "schema": 1,
        "built": 1,
        "every": 10,
        "hosts": [{"name": "atlas", "state": "fresh", "gpus": [one], **host}],
        "problems": [],
    }


def read(told: object) -> Fleet:
    found, why = loader.parse_status(json.dumps(told).encode())
    assert found, why
    return found


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
    told = lab.status()
    found = read(told)
    assert (found.built, found.every) == (told["built"], told["every"])
    for host, one in zip(told["hosts"], found.hosts):
        assert (host["name"], host["title"], tuple(host["tags"])) == (one.name, one.title, one.tags)
        assert (host["state"], host["reason"], host["seen"], host["cpus"]) == (
            one.state,
            one.reason,
            one.seen,
            one.cpus,
        )
        assert host["load"] == (one.load and [*one.load])
        for gpu, other in zip(host["gpus"], one.gpus):
            assert [gpu[key] for key in ("index", "uuid", "name", "model", "state", "reason")] == [*other[:6]]
            assert [gpu[key] for key in ("memory.used", "memory.total", "utilization.gpu", "clocks.sm")] == [
                other.memory_used,
                other.memory_total,
                other.utilization_gpu,
                other.clock,
            ]
            assert [each["pid"] for each in gpu["processes"]] == [each.pid for each in other.processes]
            assert [each["date"] for each in gpu["bookings"]] == [each.until.isoformat() for each in other.bookings]
    assert len(told["hosts"]) == len(found.hosts) > 5


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
    told = board()
    told["hosts"].append(junk)
    found = read(told)
    assert [one.name for one in found.hosts] == ["atlas"]
    assert found.problems == ("1 hosts of status.json could not be understood",)


@pytest.mark.parametrize("key", ["from", "date", "id", "name", "comment"])
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_a_booking_with_odd_times_is_left_out(key: str, junk: object) -> None:
    whole = {"id": "a", "name": "bob", "from": None, "date": "2027-01-01T00:00:00+00:00", "comment": None}
    (gpu,) = read(board({"bookings": [{**whole, key: junk}, whole]})).hosts[0].gpus
    assert gpu.bookings[-1].name == "bob"
    assert all(one.until.tzinfo for one in gpu.bookings)


def test_what_steers_a_terminal_is_taken_out_wherever_it_stands() -> None:
    for evil in ("\x1b[2J", "\x07", "\u202e", "\x7f", "\u2028", "\x9b31m"):
        told = board({"name": evil, "processes": [{"pid": 1, "user": evil, "command": evil}]}, title=evil)
        told["problems"] = [{"where": evil, "what": evil}]
        for content in (json.dumps(told), json.dumps(told, ensure_ascii=False)):
            found, _ = loader.parse_status(content.encode())
            assert found
            assert evil not in repr(found).encode().decode("unicode_escape")


def test_a_text_is_one_line_whatever_it_was() -> None:
    for evil in ("x\n 3 [ ] H100", "a\tb", "a\r\nb", "\u200fa"):
        told = board({"reason": evil, "processes": [{"pid": 1, "user": evil, "command": evil}]})
        for content in (json.dumps(told), json.dumps(told, ensure_ascii=False)):
            found, _ = loader.parse_status(content.encode())
            assert found
            (gpu,) = found.hosts[0].gpus
            for text in (gpu.reason, gpu.processes[0].user, gpu.processes[0].command):
                assert text
                assert not set(text) & set("\n\t\r\u200f")


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(content: bytes) -> None:
    found, why = loader.parse_status(content)
    assert (found is None) == bool(why)


KEYS = st.sampled_from(["hosts", "gpus", "name", "state", "bookings", "date", "processes"])
PLAIN = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_no_json_makes_it_fail(hosts: object) -> None:
    content = json.dumps({"schema": 1, "built": 1, "hosts": [hosts, {"name": "a", "state": "fresh", "gpus": [hosts]}]})
    loader.parse_status(content.encode(errors="surrogatepass"))
