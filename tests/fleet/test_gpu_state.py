"""The state of a GPU: the first that holds of lost, unknown, conflict, held, busy, booked, free; and why."""

from __future__ import annotations

from typing import Any

import pytest

from site_builder.core.model import (
    DiscoveredHost,
    Gpu,
    GpuHealth,
    GpuProcessRow,
    HostSnapshot,
    ParsedFile,
    PrivacySettings,
    ProcessStatus,
    PsRow,
    StateLimits,
    ToolResult,
)
from site_builder.fleet.gpu_models import build_model_names, shorten_gpu_name
from site_builder.fleet.gpu_state import UNMATCHED_PROCESSES_REASON
from tests.support.generated_fleet import (
    booking,
    decide,
    gpu,
    head,
    host_data,
    idle_for,
    only_gpu,
    person,
    process,
    reason,
    state,
    used_by,
)
from tests.support.gpu_state_fixtures import held_by

HIDDEN = PrivacySettings(users=False)


LOST = "GPU is lost"


ERROR = "its temperature cannot be read: Unknown Error"


def not_told(rc: int = 9) -> ParsedFile[GpuProcessRow]:
    return ParsedFile(
        (), head("processes", rc), tool_results=(ToolResult("nvidia-smi", "nvidia", rc, is_complete=False),)
    )


# Of two that hold, the first counts


def test_lost_comes_before_unknown() -> None:
    assert state(host_data([gpu(lost=LOST, error=ERROR)], processes=None)) == "lost"


@pytest.mark.parametrize("age", [300, 700])
def test_a_gpu_that_was_lost_when_its_host_was_last_heard_of_is_lost(age: float) -> None:
    which = "stale" if age == 300 else "down"
    snapshot = host_data([gpu(lost=LOST)], ages={"host.txt": age})
    assert reason(snapshot) == f"lost: the driver cannot reach it: GPU is lost; its host is {which}"


def test_a_lost_gpu_of_a_host_under_maintenance_is_lost() -> None:
    (gpu_status,) = decide(host_data([gpu(lost=LOST)]), known=DiscoveredHost("atlas", maintenance="new fans")).gpus
    assert gpu_status.state == "lost"


def test_an_instance_of_a_gpu_that_was_lost_when_its_host_was_last_heard_of_is_lost() -> None:
    assert state(host_data([gpu(parent=gpu(lost=LOST))], ages={"host.txt": 300})) == "lost"


def test_an_instance_of_a_lost_gpu_has_the_reason_of_its_gpu() -> None:
    mig_instance = gpu(uuid="MIG-a", place="0:0", parent=gpu(lost=LOST))
    assert reason(host_data([mig_instance])) == "lost: the driver cannot reach it: GPU is lost"


def test_lost_comes_before_conflict() -> None:
    assert state(used_by("bob", gpus=[gpu(used=7000, lost=LOST)]), booking("alice")) == "lost"


def test_unknown_comes_before_conflict() -> None:
    assert state(used_by("bob", gpus=[gpu(used=7000, error=ERROR)]), booking("alice")) == "unknown"


def test_unknown_by_an_error_comes_before_busy_and_keeps_the_processes() -> None:
    gpu_status = only_gpu(used_by("bob", gpus=[gpu(used=7000, error=ERROR)]))
    assert (gpu_status.state, gpu_status.reason, [process_status.user for process_status in gpu_status.processes]) == (
        "unknown",
        ERROR,
        ["bob"],
    )


def test_conflict_comes_before_held() -> None:
    assert state(held_by("bob"), booking("alice"), idle=idle_for(9000)) == "conflict"


def test_held_comes_before_busy() -> None:
    assert state(held_by("bob"), idle=idle_for(9000)) == "held"


def test_busy_comes_before_booked() -> None:
    assert state(used_by("alice"), booking("alice")) == "busy"


def test_booked_comes_before_free() -> None:
    assert state(host_data(), booking("alice")) == "booked"


def test_what_nobody_is_on_and_nobody_booked_is_free() -> None:
    assert state(host_data()) == "free"


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (host_data(ages={"host.txt": 300}), {}, "unknown: its host is stale"),
        (host_data([gpu(lost=LOST)]), {}, "lost: the driver cannot reach it: GPU is lost"),
        (used_by("bob"), {"bookings": [booking("alice")]}, "conflict: booked by alice, used by bob"),
        (held_by("bob"), {"idle": idle_for(9000)}, "held: 6.8 GiB taken by bob, idle since 09:30"),
        (used_by("bob", "carol", "bob"), {}, "busy: in use by bob and carol"),
        (host_data(), {"bookings": [booking("alice")]}, "booked: booked by alice until 14:00, not in use"),
        (host_data(), {"bookings": [booking("")]}, "booked: booked until 14:00, not in use"),
        (host_data(), {}, "free: no process, 4 MiB in use"),
        (
            host_data(),
            {"bookings": [booking("alice", begins=3, ends=9)]},
            "free: until 15:00, then booked by alice",
        ),
    ],
)
def test_each_state_has_its_reason(data: HostSnapshot, options: dict[str, Any], expected: str) -> None:
    (gpu_status,) = decide(data, **options).gpus
    assert f"{gpu_status.state}: {gpu_status.reason}" == expected


# Unknown


@pytest.mark.parametrize("age", [300, 700])
def test_a_host_that_is_not_fresh_shows_no_readings(age: float) -> None:
    busy_gpu = gpu(
        used=7000, use=90, power_draw=300, power_limit=400, utilization_memory=3, columns=("x",), cells=("1",)
    )
    gpu_status = only_gpu(used_by("bob", gpus=[busy_gpu], ages={"host.txt": age}))
    assert gpu_status.gpu == Gpu(0, "GPU-0", "NVIDIA A100-SXM4-80GB", memory_total=81920)
    assert (gpu_status.model, gpu_status.processes) == ("A100 80 GB", ())


def test_a_host_that_is_not_fresh_shows_its_bookings() -> None:
    (booking_status,) = only_gpu(host_data(ages={"host.txt": 300}), booking("alice")).bookings
    assert (booking_status.name, booking_status.phase) == ("alice", "now")


PROCESSES_UNTOLD = pytest.mark.parametrize(
    "processes",
    [
        pytest.param(None, id="no file"),
        pytest.param(not_told(), id="no answer"),
        *(pytest.param(ParsedFile((), head("processes", rc)), id=f"rc {rc}") for rc in (74, 124, 127, 137, 200)),
    ],
)


@PROCESSES_UNTOLD
def test_without_process_data_an_empty_gpu_is_not_free(
    processes: ParsedFile[GpuProcessRow] | None,
) -> None:
    assert reason(host_data(processes=processes)) == "unknown: the processes on it could not be read"


@PROCESSES_UNTOLD
def test_without_process_data_a_booked_gpu_is_not_unused(
    processes: ParsedFile[GpuProcessRow] | None,
) -> None:
    assert state(host_data(processes=processes), booking("alice")) == "unknown"


@PROCESSES_UNTOLD
def test_without_process_data_memory_in_use_is_busy(processes: ParsedFile[GpuProcessRow] | None) -> None:
    assert state(host_data([gpu(used=7000, use=90)], processes=processes)) == "busy"


@PROCESSES_UNTOLD
@pytest.mark.parametrize(("use", "expected"), [(4, "unknown"), (5, "busy"), (90, "busy"), (None, "unknown")])
def test_without_process_data_use_above_the_limit_is_busy(
    processes: ParsedFile[GpuProcessRow] | None, use: float | None, expected: str
) -> None:
    assert state(host_data([gpu(use=use)], processes=processes)) == expected


def not_reported(**words: str) -> ParsedFile[GpuProcessRow]:
    """A list of processes that has words in the place of those of some GPUs."""
    return ParsedFile((), head("processes"), unreported={name.replace("_", "-"): word for name, word in words.items()})


def test_a_gpu_whose_processes_are_not_reported_is_unknown_with_the_words_as_reason() -> None:
    gpu_statuses = decide(host_data([gpu(0), gpu(1)], processes=not_reported(GPU_0="Not Supported"))).gpus
    assert [gpu_status.state for gpu_status in gpu_statuses] == ["unknown", "free"]
    assert gpu_statuses[0].reason == "the processes on it could not be read: Not Supported"
    assert gpu_statuses[0].processes == ()


def test_a_gpu_whose_processes_are_not_reported_is_busy_if_memory_or_use_shows_it() -> None:
    unreported_gpus = [gpu(0, used=7000, use=0), gpu(1, use=90), gpu(2, used=None, use=90)]
    gpu_statuses = decide(
        host_data(unreported_gpus, processes=not_reported(GPU_0="N/A", GPU_1="N/A", GPU_2="N/A"))
    ).gpus
    assert [f"{gpu_status.state}: {gpu_status.reason}" for gpu_status in gpu_statuses] == [
        "busy: 6.8 GiB in use; the processes on it could not be read: N/A",
        "busy: 90 % used; the processes on it could not be read: N/A",
        "busy: 90 % used; the processes on it could not be read: N/A",
    ]


def test_what_is_not_reported_of_a_gpu_is_not_of_its_instances_either() -> None:
    mig_instances = [gpu(0, uuid="MIG-a", parent=gpu(), place="0:0"), gpu(0, uuid="MIG-b", parent=gpu(), place="0:1")]
    gpu_statuses = decide(host_data(mig_instances, processes=not_reported(GPU_0="N/A"))).gpus
    assert [gpu_status.state for gpu_status in gpu_statuses] == ["unknown", "unknown"]
    gpu_statuses = decide(host_data(mig_instances, processes=not_reported(MIG_a="N/A"))).gpus
    assert [gpu_status.state for gpu_status in gpu_statuses] == ["unknown", "free"]


def test_an_error_of_nvidia_smi_with_no_row_beside_it_reports_nothing() -> None:
    assert state(host_data(processes=ParsedFile((), head("processes", 6)))) == "unknown"


def test_the_error_for_a_lost_gpu_hides_no_free_one() -> None:
    gpus = ParsedFile((gpu(),), head("gpus", 15))
    assert state(host_data(gpus=gpus, processes=ParsedFile((), head("processes", 15)))) == "free"


def test_a_torn_list_of_processes_is_unknown() -> None:
    assert state(host_data(processes=ParsedFile((), head("processes"), is_complete=False))) == "unknown"


def test_processes_on_a_gpu_that_is_not_reported_may_be_on_any() -> None:
    elsewhere = GpuProcessRow("MIG-1", 42, 400, "python")
    gpu_reason = reason(host_data(processes=ParsedFile((elsewhere,), head("processes"))))
    assert gpu_reason == f"unknown: {UNMATCHED_PROCESSES_REASON}"


def test_a_gpu_that_reports_neither_memory_nor_use_is_unknown() -> None:
    state_reason = reason(host_data([gpu(used=None, use=None)]))
    assert state_reason == "unknown: the driver reports neither its memory nor its use"


def test_a_gpu_in_mig_mode_without_instances_is_unknown() -> None:
    state_reason = reason(host_data([gpu(health=GpuHealth(is_in_mig_mode=True))]))
    assert state_reason == "unknown: it is in MIG mode without instances, so nothing can run on it"


def test_a_gpu_that_shares_the_memory_of_its_host_can_be_free() -> None:
    state_reason = reason(host_data([gpu(used=None, memory_total=None, use=0, name="NVIDIA GB10")]))
    assert state_reason == "free: no process; the driver does not report its memory"


def test_a_gpu_with_shared_memory_shows_the_memory_of_its_processes() -> None:
    shared: dict[str, Any] = {"used": None, "memory_total": None, "name": "NVIDIA GB10"}
    on_it = used_by("alice", "bob", gpus=[gpu(use=90, **shared)])
    assert reason(on_it) == "busy: in use by alice and bob, 14 GiB by its processes"
    assert only_gpu(on_it).gpu.memory_used is None  # which is more than these have, and nobody knows how much
    idle = used_by("alice", gpus=[gpu(use=0, **shared)])
    assert reason(idle, idle=idle_for(9000)).startswith("held: 6.8 GiB taken by alice")
    untold = used_by("alice", gpus=[gpu(use=90, **shared)], processes=[GpuProcessRow("GPU-0", 42, None, "python")])
    assert reason(untold) == "busy: in use by alice"


def test_a_gpu_that_does_not_report_its_use_can_be_free() -> None:
    assert state(host_data([gpu(use=None)])) == "free"


# Free


@pytest.mark.parametrize(
    ("used", "total", "expected"),
    [
        (1023, 81920, "free"),
        (1024, 81920, "busy"),
        (204, 4096, "free"),
        (205, 4096, "busy"),
        (15, 15360, "free"),  # Xorg
        (199, 4000, "free"),
        (200, 4000, "busy"),
        (0, 0, "free"),
        (1023, None, "free"),
        (1024, None, "busy"),
    ],
)
def test_memory_below_1_gib_and_below_5_percent_is_free(used: float, total: float | None, expected: str) -> None:
    assert state(host_data([gpu(used=used, memory_total=total)])) == expected


def test_the_limits_of_free_memory_are_settings() -> None:
    data = host_data([gpu(used=3000)])
    assert state(data) == "busy"
    assert state(data, limits=StateLimits(free_mib=4000)) == "free"
    assert state(data, limits=StateLimits(free_mib=4000, free_percent=3)) == "busy"


def test_where_the_size_of_the_memory_is_not_known_only_the_limit_in_mib_counts() -> None:
    data = host_data([gpu(used=3000, memory_total=None)])
    assert state(data, limits=StateLimits(free_mib=4000, free_percent=1)) == "free"


def test_a_booking_that_ended_today_does_not_shorten_how_long_a_gpu_is_free() -> None:
    assert reason(host_data(), booking("alice", begins=-3, ends=-1)) == "free: no process, 4 MiB in use"


def test_a_process_makes_a_gpu_busy_however_little_it_takes() -> None:
    assert state(used_by("bob", gpus=[gpu(used=4)])) == "busy"


# Busy


def test_memory_that_no_process_explains_is_the_reason() -> None:
    assert reason(host_data([gpu(used=72_700)])) == "busy: 71 GiB in use without a process"


def the_process(data: HostSnapshot, **options: object) -> ProcessStatus:
    (process_status,) = only_gpu(data, **options).processes
    return process_status


CHILDREN = (person(50, "bob", gpu_pid=42), person(51, "bob", gpu_pid=42))


@pytest.mark.parametrize(
    "ps",
    [
        pytest.param(CHILDREN, id="not in ps"),
        pytest.param((person(42, "root", state="Z"), *CHILDREN), id="a zombie"),
        pytest.param((person(42, "root", state="X+"), *CHILDREN), id="dead"),
        pytest.param((*CHILDREN, person(52, "bob", gpu_pid=42, state="Z")), id="with a child that is dead too"),
    ],
)
def test_a_dead_process_with_living_children_is_theirs_and_they_are_what_to_kill(ps: tuple[PsRow, ...]) -> None:
    data = used_by("x", ps=ps)
    process_status = the_process(data)
    assert (process_status.pid, process_status.user, process_status.is_zombie, process_status.children) == (
        42,
        "bob",
        True,
        (50, 51),
    )
    assert reason(data) == "busy: process 42 exited; child processes still running: kill 50 51"


def test_a_dead_process_without_children_is_not_said_to_live_on() -> None:
    process_status = the_process(used_by("x", ps=[person(42, "bob", state="Z")]))
    assert (process_status.user, process_status.is_zombie, process_status.children) == ("bob", False, ())


def test_a_living_process_is_not_mistaken_for_its_children() -> None:
    process_status = the_process(used_by("x", ps=[person(42, "alice"), person(50, "bob", gpu_pid=42)]))
    assert (process_status.user, process_status.is_zombie) == ("alice", False)


@pytest.mark.parametrize(
    ("ps", "expected"),
    [
        ([person(user=None)], "uid 1000"),
        ([person(user=None, uid=None)], None),
        ([person(user="1000")], "uid 1000"),
        ([], None),
    ],
)
def test_a_user_without_a_name_is_a_number_or_unknown(ps: list[PsRow], expected: str | None) -> None:
    data = used_by("x", ps=ps)
    assert (the_process(data).user, state(data)) == (expected, "busy")


def test_a_process_whose_pid_is_not_reported_is_shown_without_a_user() -> None:
    process_status = the_process(host_data(processes=[process(None)], ps=[person()]))
    assert (process_status.pid, process_status.user, process_status.command) == (None, None, "python")


def test_a_user_is_shown_by_the_name_that_aliases_give() -> None:
    assert the_process(used_by("TJones"), aliases={"tjones": "Thomas"}).user == "Thomas"


# What is shown of people


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (used_by("bob"), {"bookings": [booking("alice")]}, "conflict: booked by one person, used by another"),
        (held_by("bob"), {"idle": idle_for(9000)}, "held: 6.8 GiB taken, idle since 09:30"),
        (used_by("bob"), {}, "busy: in use"),
        (host_data(), {"bookings": [booking("alice")]}, "booked: booked until 14:00, not in use"),
        (host_data(), {"bookings": [booking("alice", begins=3, ends=9)]}, "free: until 15:00, then booked"),
    ],
)
def test_where_users_are_not_shown_no_reason_names_one(
    data: HostSnapshot, options: dict[str, Any], expected: str
) -> None:
    (gpu_status,) = decide(data, shown=HIDDEN, **options).gpus
    assert f"{gpu_status.state}: {gpu_status.reason}" == expected


def test_where_users_are_not_shown_a_process_has_none() -> None:
    assert the_process(used_by("bob"), shown=HIDDEN).user is None


def test_where_users_are_not_shown_a_booking_has_neither_name_nor_comment() -> None:
    (booking_status,) = only_gpu(host_data(), booking("alice", comment="for alice's thesis"), shown=HIDDEN).bookings
    assert (booking_status.name, booking_status.comment) == (None, None)


@pytest.mark.parametrize(
    ("shown", "command"),
    [
        ("full", "/usr/bin/python3 train.py --name x"),
        ("program", "python3"),
        ("none", None),
    ],
)
def test_commands_are_shown_in_full_or_the_program_only_or_not(shown: str, command: str | None) -> None:
    data = used_by("bob", ps=[person(command="/usr/bin/python3 train.py --name x")])
    assert the_process(data, shown=PrivacySettings(shown)).command == command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python", "python"),
        ("./run.sh secret", "run.sh"),
        ("/opt/My", "My"),
        ("/opt/bin/ --x", "bin"),
        ("x" * 500, "x" * 60),
        (" ", " "),
    ],
)
def test_the_program_has_neither_folders_nor_arguments(command: str, expected: str) -> None:
    data = used_by("bob", ps=[person(command=command)])
    assert the_process(data, shown=PrivacySettings("program")).command == expected


def test_where_ps_does_not_report_the_command_nvidia_smi_does() -> None:
    assert the_process(used_by("bob", ps=[person(command=None)])).command == "python"


@pytest.mark.parametrize(("shown", "expected"), [("full", "docker 1f2e"), ("program", "docker 1f2e"), ("none", None)])
def test_containers_are_not_shown_where_commands_are_not(shown: str, expected: str | None) -> None:
    data = used_by("bob", ps=[person(container="docker 1f2e")])
    assert the_process(data, shown=PrivacySettings(shown)).container == expected


# Names of GPUs


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090 24 GB"),
        ("Tesla T4", 15360, "T4 16 GB"),
        ("NVIDIA H200", 143771, "H200 141 GB"),
        ("NVIDIA A100-SXM4-80GB", 40960, "A100 80 GB"),
        ("NVIDIA L40S", None, "L40S"),
        ("NVIDIA GB10", 0, "GB10"),
        ("NVIDIA of tomorrow", 1024 * 1024, "of tomorrow 1024 GB"),
        ("Ours", 24564, "the old one"),
    ],
)
def test_a_gpu_is_called_what_people_call_it_with_the_size_it_is_sold_with(
    name: str, memory: float | None, expected: str
) -> None:
    assert shorten_gpu_name(name, {"Ours": "the old one"}, memory) == expected


def test_a_gpu_that_reports_no_name_is_a_gpu() -> None:
    assert only_gpu(host_data([gpu(name=None)])).model == "GPU"


def test_names_of_our_own_are_used() -> None:
    assert only_gpu(host_data(), names={"NVIDIA A100-SXM4-80GB": "the big one"}).model == "the big one"


def test_a_lost_gpu_is_called_like_its_sisters() -> None:
    lost = Gpu(1, "GPU-1", "NVIDIA GeForce RTX 4090", lost="GPU is lost")
    sister = Gpu(0, "GPU-0", "NVIDIA GeForce RTX 4090", memory_used=3, memory_total=24564, utilization_gpu=0)
    data = HostSnapshot("atlas", gpus=ParsedFile((sister, lost)))
    assert build_model_names(data, {})["NVIDIA GeForce RTX 4090"] == "RTX 4090 24 GB"
