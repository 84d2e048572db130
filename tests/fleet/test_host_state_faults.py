"""What a host shows besides its state: after a fault of our own, while it is away, and for other parts of the board."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE
from site_builder.core.model import (
    Booking,
    DiscoveredHost,
    DiskUse,
    Gpu,
    HostFacts,
    HostSnapshot,
    ParsedFile,
    PrivacySettings,
    Problem,
    StateLimits,
    ToolResult,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet import booking_use, host_state
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import RETRY_AFTER_S, BuiltHostStatus, HostStatusSources, build_host_status
from tests.support.generated_fleet import (
    NOW,
    booking,
    decide,
    gpu,
    head,
    host_data,
    now,
    only_gpu,
    person,
    process,
    used_by,
)
from tests.support.mig_fixtures import instances

ATLAS = DiscoveredHost("atlas", title="Atlas", tags=("a100",))
RULES = StateRules(StateLimits(), PeopleDirectory({}, ["alice"]), PrivacySettings())


class Files:
    """Stand-in for the files of a host: what they hold, or the exception that parsing them raises."""

    def __init__(self, parse: Callable[[], HostSnapshot]) -> None:
        self.parse = parse


def raise_fault() -> HostSnapshot:
    raise OverflowError("of alice")


def build(
    snapshot: HostSnapshot | None = None,
    *bookings: Booking,
    at: Now | None = None,
    **sources: Any,  # noqa: ANN401
) -> BuiltHostStatus:
    files: Any = Files(lambda: snapshot) if snapshot else None
    return build_host_status(
        HostStatusSources(ATLAS, **{"files": files, "bookings": bookings, **sources}), RULES, at or now()
    )


# Faults


def test_a_host_that_is_understood_comes_with_its_snapshot_and_the_time_of_its_gpus() -> None:
    snapshot = host_data(ages={"gpus.csv": 7})
    built = build(snapshot)
    assert (built.status.state, built.status.title, built.status.tags) == ("fresh", "Atlas", ("a100",))
    assert (built.snapshot, built.gpus_taken_at, built.has_parse_failed) == (snapshot, NOW - 7, False)


def test_a_host_without_files_is_unseen() -> None:
    built = build()
    assert (built.status.state, built.snapshot, built.gpus_taken_at) == ("unseen", HostSnapshot("atlas"), None)


def test_a_host_whose_files_are_not_read_is_failed_with_the_reason() -> None:
    built = build(host_data(), unread_reason="its files are too large")
    status = built.status
    assert (status.name, status.title, status.tags) == ("atlas", "Atlas", ("a100",))
    assert (status.state, status.reason, status.gpus) == ("failed", "its files are too large", ())
    assert status.problems == (Problem("data/atlas", "its files are too large"),)
    assert (built.snapshot, built.gpus_taken_at, built.has_parse_failed) == (None, None, False)


def test_a_host_whose_files_cannot_be_parsed_is_failed_and_tried_again_in_a_minute() -> None:
    at = now()
    built = build(at=at, files=Files(raise_fault))
    assert (built.status.state, built.has_parse_failed, built.snapshot) == ("failed", True, None)
    assert built.status.reason == f"its files could not be parsed: {FAULT_NOTE}"
    (problem,) = built.status.problems
    assert problem.where == "data/atlas"
    assert re.fullmatch(
        re.escape(f"its files could not be parsed: {FAULT_NOTE} (OverflowError in fleet/host_state.py, line ")
        + r"\d+\)",
        problem.what,
    )
    assert at.valid_until == NOW + RETRY_AFTER_S


@pytest.fixture
def faulty_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail for every host whose snapshot has missing files."""
    decide_host_state = host_state.decide_host_state

    def fail(discovered: DiscoveredHost, snapshot: HostSnapshot, *rest: Any) -> tuple[str, str]:  # noqa: ANN401
        if snapshot.missing_files:
            raise_fault()
        return decide_host_state(discovered, snapshot, *rest)

    monkeypatch.setattr(host_state, "decide_host_state", fail)


@pytest.mark.usefixtures("faulty_snapshots")
@pytest.mark.parametrize("bookings", [(), (booking("alice"),)])
def test_a_host_that_cannot_be_decided_shows_its_gpus_without_readings(bookings: tuple[Booking, ...]) -> None:
    at = now()
    snapshot = host_data([gpu(0, used=7000), gpu(1, name=None)], missing_files=("ps.txt",))
    built = build(snapshot, *bookings, at=at)
    status = built.status
    assert (status.name, status.state, status.last_seen, built.snapshot) == ("atlas", "failed", NOW, snapshot)
    assert [(item.model, item.state, item.reason) for item in status.gpus] == [
        ("NVIDIA A100-SXM4-80GB", "unknown", "its host has failed"),
        ("GPU", "unknown", "its host has failed"),
    ]
    assert status.gpus[0].gpu.memory_used is None
    assert "OverflowError in fleet/host_state.py" in status.problems[0].what
    assert (built.gpus_taken_at, built.has_parse_failed, at.valid_until) == (None, False, NOW + RETRY_AFTER_S)


@pytest.mark.usefixtures("faulty_snapshots")
def test_a_host_without_gpus_that_cannot_be_decided_has_none() -> None:
    assert build(host_data(None, missing_files=("ps.txt",))).status.gpus == ()


def test_a_booking_that_fails_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    find_gpu_bookings = booking_use.find_gpu_bookings

    def fail(bookings: Sequence[Booking], gpu: Gpu) -> list[Booking]:
        if any(item.name == "evil" for item in bookings):
            raise_fault()
        return find_gpu_bookings(bookings, gpu)

    monkeypatch.setattr(booking_use, "find_gpu_bookings", fail)
    at = now()
    snapshot = host_data(ages={"gpus.csv": 7}, problems=(Problem("data/atlas", "odd"),))
    built = build(snapshot, booking("evil"), booking("alice"), at=at)
    (gpu_status,) = built.status.gpus
    assert [item.name for item in gpu_status.bookings] == ["alice"]
    assert (built.status.state, built.snapshot, built.gpus_taken_at) == ("fresh", snapshot, NOW - 7)
    own, bad = built.status.problems
    assert own.what == "odd"
    assert bad.where == "data/comments.json"
    assert bad.what.startswith(f"atlas, GPU 0: the booking of evil is ignored: {FAULT_NOTE} (OverflowError in ")
    assert at.valid_until <= NOW + RETRY_AFTER_S


def test_a_card_that_cannot_be_rendered_leaves_the_gpus_of_its_host() -> None:
    status = host_state.build_unrendered_host_status(build(host_data()).status, "ValueError")
    assert (status.state, status.title, status.tags, status.last_seen) == ("failed", "Atlas", ("a100",), NOW)
    assert [item.state for item in status.gpus] == ["unknown"]
    assert status.problems[0].what == f"its card could not be rendered: {FAULT_NOTE} (ValueError)"


# Away


@pytest.mark.parametrize(
    ("known", "age", "expected"),
    [
        (DiscoveredHost("atlas", maintenance="new fans"), 0, "unknown: its host is under maintenance"),
        (None, 300, "unknown: its host is stale"),
        (None, 700, "unknown: its host is down"),
    ],
)
def test_the_gpus_of_a_host_that_is_away_say_why_they_are_unknown(
    known: DiscoveredHost | None, age: float, expected: str
) -> None:
    gpu_status = only_gpu(host_data(ages={"host.txt": age}), known=known)
    assert f"{gpu_status.state}: {gpu_status.reason}" == expected


@pytest.mark.parametrize("age", [0, 300])
def test_an_instance_has_the_model_and_the_bookings_of_its_gpu(age: float) -> None:
    status = decide(host_data(instances(), ages={"host.txt": age}), [booking("alice", gpu="0")])
    for gpu_status in status.gpus:
        assert gpu_status.parent_model == "H100 80 GB"
        assert [(item.name, item.is_whole_gpu) for item in gpu_status.bookings] == [("alice", True)]
    whole = only_gpu(host_data(ages={"host.txt": age}), booking("alice", gpu="0"))
    assert (whole.parent_model, [item.is_whole_gpu for item in whole.bookings]) == ("", [False])


def test_a_gpu_of_a_host_that_is_away_keeps_its_maker_and_an_instance_its_profile_and_its_gpu() -> None:
    amd = only_gpu(host_data([gpu(uuid=None, vendor="amd", place="amd0", profile="x")], ages={"host.txt": 300})).gpu
    assert (amd.vendor, amd.place, amd.profile, amd.parent) == ("amd", "amd0", None, None)
    mig_instance = gpu(uuid="MIG-a", place="0:0", profile="1g.10gb", parent=gpu(used=7000))
    away = only_gpu(host_data([mig_instance], ages={"host.txt": 300})).gpu
    assert (away.profile, away.memory_used) == ("1g.10gb", None)
    assert away.parent is not None
    assert (away.parent.uuid, away.parent.memory_used) == ("GPU-0", None)


# For other parts of the board


@pytest.mark.parametrize(
    ("gpu_key", "rc", "expected"),
    [
        ("GPU-a", 6, {"amd"}),  # nvidia-smi failed, and no row is of one of its GPUs
        ("GPU-0", 6, {"nvidia", "amd"}),
        ("GPU-unknown", 6, {"nvidia", "amd"}),
        ("GPU-0", 124, {"amd"}),
        ("GPU-a", 0, {"nvidia", "amd"}),
    ],
)
def test_a_tool_that_failed_reports_its_processes_if_it_printed_one(gpu_key: str, rc: int, expected: set[str]) -> None:
    results = (ToolResult("nvidia-smi", "nvidia", rc), ToolResult("amd-smi", "amd", 0))
    processes = ParsedFile((process(on=gpu_key),), head("processes"), tool_results=results)
    snapshot = host_data([gpu(0), gpu(1, uuid="GPU-a", vendor="amd")], processes=processes)
    assert host_state.list_host_process_vendors(snapshot) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (host_data([gpu(used=7000)]), True),
        (host_data([gpu(used=4)]), False),
        (used_by("alice"), False),
        (host_data([gpu(used=None, use=90)]), False),
        (host_data([gpu(used=7000)], processes=None), False),
    ],
)
def test_memory_is_unexplained_where_no_process_has_it_and_all_are_known(data: HostSnapshot, expected: bool) -> None:
    assert only_gpu(data).has_unexplained_memory is expected


def test_processes_without_an_owner_are_listed_where_ps_came() -> None:
    data = used_by("alice", "x", ps=[person(42, "alice"), person(43, None, uid=None)])
    assert only_gpu(data).ownerless_pids == (43,)
    assert only_gpu(replace(data, ps_rows=None)).ownerless_pids == ()


@pytest.mark.parametrize(
    ("data", "bookings", "users", "bookers"),
    [
        (used_by("alice"), (), ("alice",), ()),
        (host_data(), (booking("bob"),), (), ("bob",)),
        (used_by("alice"), (booking("bob"),), ("alice",), ("bob",)),
        (host_data(), (), (), ()),
    ],
)
def test_the_people_of_a_gpu_are_its_users_and_its_bookers(
    data: HostSnapshot, bookings: tuple[Booking, ...], users: tuple[str, ...], bookers: tuple[str, ...]
) -> None:
    people = only_gpu(data, *bookings).people
    assert (people.users, people.bookers) == (users, bookers)


@pytest.mark.parametrize("users", [True, False])
def test_disk_use_by_person_goes_with_the_users(users: bool) -> None:
    facts = HostFacts(disk_use=(DiskUse("/local/alice", 12),))
    data = host_data(facts=ParsedFile((facts,), head("host")))
    shown = decide(data, shown=PrivacySettings(users=users)).facts
    assert shown is not None
    assert shown.disk_use == (facts.disk_use if users else ())


@pytest.mark.parametrize(("age", "expected"), [(29, "fresh"), (30, "stale")])
def test_a_host_that_reports_no_interval_is_stale_after_30_s(age: float, expected: str) -> None:
    assert decide(host_data(ages={"host.txt": age}, intervals={})).state == expected


def test_files_from_the_future_say_whose_clock_is_ahead() -> None:
    assert decide(host_data(ages={"host.txt": -120})).reason == (
        "its files are from the future: the clock of the machine with data/ is ahead of this one's"
    )


def test_where_the_time_of_the_gpus_is_not_known_that_of_the_host_counts() -> None:
    data = used_by("alice", gpus=[gpu(used=7000, use=0)], taken_at={"host.txt": NOW - 7}, last_seen=NOW - 7)
    assert only_gpu(data).idle_since == NOW - 7


def test_each_tool_that_failed_is_named() -> None:
    results = (ToolResult("nvidia-smi", "nvidia", 9, ("no driver",)), ToolResult("amd-smi", "amd", 124))
    failures = host_state.describe_host_tool_failures(ParsedFile[Gpu](tool_results=results))
    assert "nvidia-smi ended with exit code 9: no driver; " in failures
    assert failures.endswith("amd-smi did not answer in time and was stopped")


def test_bookings_stand_on_the_host_only_where_it_has_no_gpu() -> None:
    assert decide(host_data(), [booking("alice")]).bookings == ()
    for data in (host_data(None), host_data(())):
        assert [item.name for item in decide(data, [booking("alice")]).bookings] == ["alice"]


def test_a_gpu_that_could_not_be_read_is_missing() -> None:
    assert not decide(host_data()).has_missing_gpu
    assert not decide(host_data(None)).has_missing_gpu
    assert decide(host_data(ParsedFile((gpu(),), head("gpus"), has_missing_gpu=True))).has_missing_gpu


@pytest.mark.parametrize("users", [True, False])
def test_a_host_says_whether_it_shows_users(users: bool) -> None:
    assert decide(host_data(), shown=PrivacySettings(users=users)).users_shown is users


def test_logins_that_ps_cut_are_kept_apart() -> None:
    status = decide(host_data(ps=[person(42, "alexande+"), person(43, "alice"), person(44, "abcdefg+")]))
    assert status.truncated_logins == ("abcdefg+", "alexande+")
