"""Xid errors: what the codes mean, and what becomes of those that a host reports again and again."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import HostFacts, HostSnapshot, ParsedFile, SnapshotHeader, Xid
from site_builder.health import events
from site_builder.health.gpu_health import normalize_xid_bus
from site_builder.health.model import CRITICAL, INFO, SEVERITIES, WARNING, XID_CODES, HealthEvent
from site_builder.health.problems import find_xid_problems, format_problem_advice
from site_builder.health.xid import FORGET_AFTER_S, MAX_KNOWN_XIDS, SAME_XID_WITHIN_S, get_xid_code
from tests.support.generated_fleet import NOW, host_data, now, only_gpu
from tests.support.generated_fleet import gpu as gpu_row
from tests.support.health_fixtures import NOON, A, B, Watch, gpu, said

BUS_A, BUS_B = "17:00", "20:00"


def xid(code: int = 79, bus: str = BUS_A, at: int = NOON + 30, **overrides: Any) -> Xid:  # noqa: ANN401
    return Xid(bus, code, at, at)._replace(**overrides)


# What the codes mean


def test_each_code_has_a_severity_a_meaning_and_advice() -> None:
    for code, texts in XID_CODES.items():
        assert 0 < code < 1000
        assert texts.severity in SEVERITIES
        assert 5 < len(texts.what) < 80
        assert 5 < len(texts.advice) < 200
        assert not texts.advice.endswith(".")
        assert "{" not in format_problem_advice(texts.advice, "nvidia", "3")


@pytest.mark.parametrize("code", [46, 48, 61, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 156])
def test_a_gpu_that_needs_a_reset_or_reboot_is_critical(code: int) -> None:
    assert get_xid_code(code).severity == CRITICAL
    assert re.search("reset|reboot", get_xid_code(code).advice)


@pytest.mark.parametrize("code", [8, 13, 31, 43, 45, 154])
def test_errors_of_programs_are_for_information(code: int) -> None:
    assert get_xid_code(code).severity == INFO


@pytest.mark.parametrize("code", [63, 92, 94, 149, 155, 0, 998, 99999])
def test_what_can_wait_and_what_nobody_knows_is_a_warning(code: int) -> None:
    assert get_xid_code(code).severity == WARNING
    assert HealthEvent("atlas", 1, A, 0, f"xid-{code}", (1, ""), NOON).severity == WARNING


def test_the_documentation_names_codes_by_their_severity() -> None:
    section = (Path(__file__).parents[2] / "docs/health.md").read_text().partition("## Xid errors")[2]
    for severity in SEVERITIES:
        (numbers,) = re.findall(rf"\| {severity} \| (.*) \|", section)
        codes = {*map(int, re.findall(r"\d+", numbers))}
        assert codes
        assert {get_xid_code(code).severity for code in codes} == {severity}


@pytest.mark.parametrize(
    ("code", "value", "sentence"),
    [
        (79, (1, "GPU has fallen off the bus."), "Xid 79: fell off the bus"),
        (13, (1234, "Graphics Exception"), "Xid 13: a program caused an exception, 1,234 times"),
        (998, (1, "Something new"), "Xid 998: Something new"),
        (998, (2, ""), "Xid 998, 2 times"),
        (79, (1, "", "41:00"), "Xid 79 (PCI 41:00): fell off the bus"),
        (154, (1, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"), None),
        (79, (), "Xid 79: fell off the bus"),
        ("odd", (None, None, None), "Xid 0"),
    ],
)
def test_an_event_is_described_by_what_its_code_means(code: object, value: tuple[Any, ...], sentence: str) -> None:
    event = HealthEvent("atlas", 1, A, 0, f"xid-{code}", value, NOON, ended_at=NOON)
    assert events.describe_event(event) == (sentence or f"Xid 154: {value[1]}")


# One event for each


def test_an_error_is_an_event_of_its_gpu_with_the_time_of_the_log() -> None:
    watch = Watch(gpu(), gpu(B, index=1, bus="20:00.0"))
    watch.look(gpu(), gpu(B, index=1, bus="20:00.0"), xids=[xid(bus=BUS_B, at=NOON + 10)])
    assert (watch.only.gpu_key, watch.only.index, watch.only.kind, watch.only.severity) == (B, 1, "xid-79", CRITICAL)
    assert said(watch.only) == "10 Mar 2026 12:00: Xid 79: fell off the bus"


def test_an_error_that_is_sent_every_minute_is_one_event() -> None:
    watch = Watch(gpu())
    assert len(watch.look(gpu(), xids=[xid()])) == 1
    for _ in range(5):
        assert watch.look(gpu(), xids=[xid()]) == []


def test_errors_that_were_there_at_the_first_look_have_the_time_of_the_log() -> None:
    watch = Watch(gpu())
    watch.state = None
    watch.look(gpu(), xids=[xid(at=NOON - 5 * HOUR)])
    assert said(watch.only) == "10 Mar 2026 07:00: Xid 79: fell off the bus"


def test_an_error_that_is_logged_again_is_the_same_event_and_lasts_longer() -> None:
    watch = Watch(gpu())
    watch.look(gpu(), xids=[xid(13)])
    watch.look(gpu(), after=10 * MINUTE, xids=[xid(13, last=NOON + 9 * MINUTE, times=40, text="the last")])
    assert said(watch.only) == "10 Mar 2026 12:00 – 12:09: Xid 13: a program caused an exception, 40 times"
    assert watch.only.value[1] == "the last"


def test_the_next_error_of_the_code_is_another_event() -> None:
    watch = Watch(gpu())
    watch.look(gpu(), xids=[xid(13)])
    watch.look(gpu(), after=HOUR, xids=[xid(13), xid(13, at=NOON + 50 * MINUTE), xid(31, at=NOON + 50 * MINUTE)])
    assert watch.kinds == ["xid-13", "xid-13", "xid-31"]


def test_a_host_that_reads_its_log_anew_repeats_no_event() -> None:
    watch = Watch(gpu())
    watch.look(gpu(), xids=[xid(at=NOON + 40)])
    watch.look(gpu())
    watch.look(gpu(), after=DAY, xids=[xid(at=NOON + 40 - 3)])
    watch.look(gpu(), xids=[xid(at=NOON + 40 + SAME_XID_WITHIN_S - 4)])
    assert watch.kinds == ["xid-79"]


def test_what_no_host_sends_any_more_is_forgotten() -> None:
    watch = Watch(gpu())
    watch.look(gpu(), xids=[xid(code, at=NOON + code) for code in range(1, 41)])
    watch.look(gpu(), xids=[xid(code, at=NOON + code) for code in range(41, 41 + MAX_KNOWN_XIDS)])
    assert watch.state
    assert len(watch.state.xids) == MAX_KNOWN_XIDS
    watch.look(gpu(), after=FORGET_AFTER_S, xids=[xid(at=NOON - 20 * DAY)])
    assert [known.xid.code for known in watch.state.xids if known.xid.first < NOON] == [79]
    watch.look(gpu(), after=DAY)
    assert watch.state.xids == ()


def test_no_event_is_in_the_future_whatever_the_clock_of_the_host_says() -> None:
    watch = Watch(gpu())
    watch.look(gpu(), xids=[xid(at=NOON + 9 * DAY)])
    assert (watch.only.began_at, watch.only.ended_at) == (NOON + MINUTE, NOON + MINUTE)


def test_the_error_of_a_gpu_that_is_gone_is_its_own() -> None:
    watch = Watch(gpu(), gpu(B, index=1, bus="20:00.0"))
    watch.look(gpu(), xids=[xid(bus=BUS_B)])
    assert [(watch.told[number].gpu_key, watch.told[number].kind) for number in sorted(watch.told)] == [
        (B, "gone"),
        (B, "xid-79"),
    ]


def test_one_that_sits_in_the_place_of_another_has_the_errors_of_now() -> None:
    watch = Watch(gpu())
    watch.look(gpu(B))
    watch.look(gpu(B), xids=[xid()])
    assert [event.gpu_key for event in watch.told.values() if event.is_xid] == [B]


def test_an_error_of_an_unknown_gpu_is_its_hosts_and_names_the_place() -> None:
    watch = Watch(gpu(), gpu(B, bus=None))
    watch.look(gpu(), gpu(B, bus=None), xids=[xid(bus="99:00")])
    assert (watch.only.gpu_key, watch.only.index) == ("", None)
    assert events.describe_event(watch.only) == "Xid 79 (PCI 99:00): fell off the bus"


@pytest.mark.parametrize(
    ("logged", "reported"),
    [
        ("0000:41:00", "00000000:41:00.0"),
        ("0000:C1:00", "0000:c1:00.0"),
        ("0000:00:06", "00000000:00:06.0"),
        ("0001:00:00", "00000001:00:00.0"),
        ("0000:03:00.0", "0000:03:00.0"),
    ],
)
def test_the_places_in_the_log_are_those_of_nvidia_smi(logged: str, reported: str) -> None:
    assert normalize_xid_bus(logged) == normalize_xid_bus(reported)


def test_different_places_are_different() -> None:
    places = ["0000:01:00", "0001:00:00", "0000:10:00", "0000:00:01", "0000:00:10", "0001:01:00", "0010:00:00"]
    assert len({normalize_xid_bus(place) for place in places}) == len(places)


xids = st.builds(
    Xid,
    st.sampled_from([BUS_A, BUS_B, "0", ""]),
    st.integers(0, 99999),
    st.integers(0, 32_503_680_000),
    st.integers(0, 32_503_680_000),
    st.integers(1, 10**9),
    st.text(max_size=200),
)


@given(st.lists(st.lists(xids, max_size=50), max_size=4))
def test_whatever_a_host_sends_each_error_is_one_event_that_is_over(rounds: list[list[Xid]]) -> None:
    watch = Watch(gpu())
    for reported in rounds:
        assert len(watch.look(gpu(), xids=reported)) <= len(reported)
        # errors so close together are one, and which of them is last may change
        distinct = list({(entry.bus, entry.code): entry for entry in reported}.values())
        watch.look(gpu(), xids=distinct)
        assert watch.look(gpu(), xids=distinct) == []
    for event in watch.told.values():
        assert event.began_at <= (event.ended_at or 0) <= watch.at
        assert events.describe_event(event).startswith("Xid ")
        assert events.format_event_time(event, timezone.utc)


# What is not handed out


def snapshot(*reported: Xid, uptime: int | None = 30 * DAY, clock: int = 0, **overrides: Any) -> HostSnapshot:  # noqa: ANN401
    """A snapshot of this moment, by a host whose clock is ahead by so much."""
    header = SnapshotHeader("host", "atlas", int(NOW) + clock, 20, 1, 0)
    facts = ParsedFile((HostFacts(uptime=uptime, xids=reported),), header)
    row = gpu_row()._replace(bus_id="00000000:17:00.0")
    return replace(host_data(gpus=[row]), facts=facts, clock_offset=float(clock), **overrides)


def logged(code: int = 79, ago: int = 10 * MINUTE, clock: int = 0, **overrides: Any) -> Xid:  # noqa: ANN401
    return xid(code, "0000:17:00", int(NOW) - ago + clock, **overrides)


def problems_of(data: HostSnapshot, after: float = 0) -> list[str]:
    return [problem.what for found in find_xid_problems(data, now(after)).values() for problem in found]


def test_a_gpu_with_a_critical_error_is_not_handed_out_for_an_hour_and_keeps_its_state() -> None:
    data = snapshot(logged(95))
    status = only_gpu(data)
    assert (status.state, status.is_avoided) == ("free", True)
    (problem,) = status.problems
    assert (problem.kind, problem.severity) == ("xid", CRITICAL)
    assert re.fullmatch(r"Xid 95 at \d\d:\d\d: uncorrected memory error that may have hit all programs", problem.what)
    assert "nvidia-smi --gpu-reset -i 0" in problem.advice
    assert problems_of(data, after=49 * MINUTE)
    assert problems_of(data, after=51 * MINUTE) == []


def test_it_is_decided_again_when_the_hour_is_over() -> None:
    moment = now()
    assert find_xid_problems(snapshot(logged(ago=HOUR - 7)), moment)
    assert moment.valid_until == pytest.approx(NOW + 7)


@pytest.mark.parametrize("code", [13, 43, 63, 94, 154, 998])
def test_other_errors_leave_it_as_it_is(code: int) -> None:
    status = only_gpu(snapshot(logged(code)))
    assert (status.state, status.problems) == ("free", ())


def test_an_error_of_another_gpu_is_none_of_its_own() -> None:
    assert only_gpu(snapshot(logged()._replace(bus="0000:18:00"))).problems == ()


def test_a_reboot_ends_it() -> None:
    assert problems_of(snapshot(logged(), uptime=5 * MINUTE)) == []
    assert problems_of(snapshot(logged(), uptime=11 * MINUTE))
    assert problems_of(snapshot(logged(), uptime=None))


def test_the_driver_that_needs_no_recovery_any_more_ends_it() -> None:
    over = logged(154, ago=5 * MINUTE, text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert problems_of(snapshot(logged(), over)) == []
    assert problems_of(snapshot(logged(ago=MINUTE), over))
    asked = over._replace(text="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert problems_of(snapshot(logged(), asked))
    assert problems_of(snapshot(logged(), over._replace(bus="0000:18:00")))


@pytest.mark.parametrize("clock", [-3 * HOUR, 3 * HOUR])
def test_a_host_whose_clock_is_wrong_is_judged_by_its_own(clock: int) -> None:
    assert problems_of(snapshot(logged(clock=clock), clock=clock))
    assert problems_of(snapshot(logged(ago=61 * MINUTE, clock=clock), clock=clock)) == []


def test_an_error_from_far_in_the_future_ends_too() -> None:
    assert problems_of(snapshot(logged(ago=-30 * DAY))) == []


def test_the_latest_of_several_is_told() -> None:
    status = only_gpu(snapshot(logged(48), logged(95, ago=9 * MINUTE), logged(119, ago=50 * MINUTE)))
    (problem,) = status.problems
    assert problem.what.startswith("Xid 95 at ")


def test_a_snapshot_without_facts_has_none() -> None:
    assert find_xid_problems(HostSnapshot("atlas"), now()) == {}
    assert find_xid_problems(HostSnapshot("atlas", facts=ParsedFile()), now()) == {}


@given(st.lists(xids, max_size=50), st.one_of(st.none(), st.integers(0, 10**10)), st.integers(-(10**9), 10**9))
def test_nothing_that_a_host_sends_makes_it_fail(reported: list[Xid], uptime: int | None, clock: int) -> None:
    problems_of(snapshot(*reported, uptime=uptime, clock=clock))
