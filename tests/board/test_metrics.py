"""The file for Prometheus: what it says is what the board says, and what is not available is not there."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from site_builder.board.outputs import metrics
from site_builder.core.model import (
    DiscoveredHost,
    Disk,
    Gpu,
    GpuStatus,
    HostFacts,
    HostStatus,
    ParsedFile,
    PrivacySettings,
)
from site_builder.fleet import summary
from tests.support.generated_fleet import NOW, booking, decide, gpu, head, host_data, now, used_by
from tests.support.health_fixtures import parse_health_cells
from tests.support.pace import check, took
from tests.support.prometheus import boards, built, every_state, full_gpu, program, text_of

Labels = Mapping[str, str]
MIB = 1024 * 1024


class Samples:
    """All samples of a file, as the parser of prometheus_client reads them."""

    def __init__(self, content: bytes) -> None:
        families = list(text_string_to_metric_families(content.decode()))
        self.kinds = {family.name: family.type for family in families}
        self.all = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    def of(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        """Those of one name that have these labels."""
        return [
            (have, value)
            for metric_name, have, value in self.all
            if metric_name == f"gpuboard_{name}" and labels.items() <= have.items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample that there is, if there is one."""
        matching_samples = self.of(name, **labels)
        assert len(matching_samples) <= 1, matching_samples
        return matching_samples[0][1] if matching_samples else None


def told(*hosts: HostStatus, **options: Any) -> Samples:  # noqa: ANN401
    """What the file says of these hosts."""
    return Samples(text_of(hosts, **options))


def bare(*rows: Gpu, name: str = "atlas", **extra_fields: Any) -> HostStatus:  # noqa: ANN401
    """A fresh host with free GPUs."""
    gpu_statuses = tuple(GpuStatus(row, "A100", "free", "no process") for row in rows)
    return HostStatus(name, None, (), "fresh", "its snapshots arrive", NOW, None, gpu_statuses, **extra_fields)


def with_cells(**cells: str) -> Gpu:
    """A GPU that tells these fields, by nvidia-smi's names with _ for the dots."""
    parsed = parse_health_cells({name.replace("__", "."): cell for name, cell in cells.items()})
    return gpu()._replace(fan_speed=parsed.fan_speed, health=parsed.health)


# What the file says


def test_readings_are_in_base_units() -> None:
    row = gpu(
        used=7000, use=57, utilization_memory=29.0, temperature=41.0, power_draw=61.5, power_limit=400.0, clock=1410
    )
    samples = told(bare(row))
    expected = {
        "memory_used_bytes": 7000 * MIB,
        "memory_total_bytes": 81920 * MIB,
        "utilization_ratio": 0.57,
        "memory_utilization_ratio": 0.29,
        "temperature_celsius": 41,
        "power_watts": 61.5,
        "power_limit_watts": 400,
        "clock_hertz": 1.41e9,
    }
    assert {name: samples.value(f"gpu_{name}", host="atlas", gpu="0") for name in expected} == expected


def test_a_reading_of_zero_has_a_line() -> None:
    samples = told(bare(gpu(used=0, use=0)))
    assert (samples.value("gpu_memory_used_bytes"), samples.value("gpu_utilization_ratio")) == (0, 0)


def test_what_is_not_available_has_no_line() -> None:
    samples = told(bare(Gpu(0, None, None)))
    named = {name for name, labels, _ in samples.all if "gpu" in labels}
    assert named == {f"gpuboard_gpu_{name}" for name in ("processes", "booked", "state", "info")}


def test_a_host_that_is_not_fresh_has_no_readings() -> None:
    data = host_data(
        [gpu(used=7000, use=90)],
        ages=dict.fromkeys(("host.txt", "gpus.csv", "processes.csv", "ps.txt"), 900.0),
        facts=ParsedFile((HostFacts((1.0, 1.0, 1.0), 4, 64000, 32000, disks=(Disk("/", 10, 5),)),), head("host")),
    )
    samples = told(decide(data))
    assert {name.removeprefix("gpuboard_") for name, labels, _ in samples.all if "host" in labels} == {
        "gpu_memory_total_bytes",
        "gpu_booked",
        "gpu_state",
        "gpu_info",
        "host_state",
        "host_info",
        "host_cpus",
        "host_memory_total_bytes",
        "host_seen_timestamp_seconds",
        "host_age_seconds",
    }
    assert samples.value("gpu_state", state="unknown") == 1
    assert samples.value("host_state", state="down") == 1
    assert samples.value("host_age_seconds") == 900


def test_a_gpu_has_a_line_only_for_the_state_that_it_is_in() -> None:
    samples = told(decide(host_data([gpu(0), gpu(1, used=7000, use=80)])))
    assert [(labels["gpu"], labels["state"], value) for labels, value in samples.of("gpu_state")] == [
        ("0", "free", 1),
        ("1", "busy", 1),
    ]


def test_a_gpu_is_named_by_uuid_name_and_model() -> None:
    samples = told(decide(host_data()))
    labels = {"host": "atlas", "gpu": "0", "uuid": "GPU-0", "name": "NVIDIA A100-SXM4-80GB", "model": "A100 80 GB"}
    assert samples.of("gpu_info") == [(labels, 1)]


def test_processes_are_counted_and_none_has_a_line_of_its_own() -> None:
    content = text_of([decide(used_by("alice", "bob"))])
    assert Samples(content).value("gpu_processes") == 2
    assert b"pid" not in content and b"train.py" not in content


@pytest.mark.parametrize(
    "data",
    [
        host_data([gpu(used=7000, use=80)], None),
        host_data([gpu()], None),
        host_data([gpu(used=None, use=None, memory_total=None, temperature=None, lost="GPU is lost")]),
        host_data([gpu(used=7000, use=80)]),
    ],
    ids=["taken, processes not read", "processes not read", "lost", "memory that no process explains"],
)
def test_zero_processes_only_if_certainly_nobody_is_on_the_gpu(data: Any) -> None:  # noqa: ANN401
    assert told(decide(data)).value("gpu_processes") is None


def test_a_free_gpu_has_no_processes() -> None:
    assert told(decide(host_data())).value("gpu_processes") == 0


def test_booked_is_1_during_a_booking() -> None:
    bookings = [booking(gpu="0"), booking(gpu="1", begins=1), booking(gpu="2", begins=-3, ends=-1)]
    samples = told(decide(host_data([gpu(0), gpu(1), gpu(2)]), bookings))
    assert [value for _, value in samples.of("gpu_booked")] == [1, 0, 0]


def test_a_host_has_load_memory_and_disks() -> None:
    disks = (Disk("/", 1000, 400), Disk("/data", 5000, 4900), Disk("/data", 5000, 4901))
    facts = HostFacts((1.5, 1.2, 1.0), 4, 64000, 32000, disks=disks)
    samples = told(decide(host_data(facts=ParsedFile((facts,), head("host")))))
    assert samples.value("host_load1", host="atlas") == 1.5
    assert samples.value("host_cpus") == 4
    assert samples.value("host_memory_total_bytes") == 64000 * MIB
    assert samples.value("host_memory_available_bytes") == 32000 * MIB
    assert samples.value("host_disk_total_bytes", mount="/") == 1000 * MIB
    assert samples.value("host_disk_used_bytes", mount="/data") == 4901 * MIB


def test_a_host_has_title_and_tags_that_a_query_can_match() -> None:
    discovered_host = DiscoveredHost("atlas", "Vision lab", ("vision", "h100"))
    samples = told(decide(host_data(), known=discovered_host))
    assert samples.of("host_info") == [({"host": "atlas", "title": "Vision lab", "tags": ",vision,h100,"}, 1)]


def test_age_counts_to_the_build_and_is_never_below_zero() -> None:
    board = decide(host_data())
    early, late = replace(board, last_seen=NOW - 12.5), replace(board, name="nile", last_seen=NOW + 3)
    samples = told(early, late)
    assert samples.value("host_seen_timestamp_seconds", host="atlas") == NOW - 12.5
    assert samples.value("host_age_seconds", host="atlas") == 12.5
    assert samples.value("host_age_seconds", host="nile") == 0


def test_a_host_that_was_never_seen_has_no_age() -> None:
    samples = told(decide(None))
    assert samples.value("host_state", state="unseen") == 1
    assert (samples.of("host_age_seconds"), samples.of("host_seen_timestamp_seconds")) == ([], [])


def test_the_builder_has_metrics_of_its_own() -> None:
    samples = told(problem_count=3, build_duration_s=0.75, build_interval_s=10)
    assert {name: value for name, labels, value in samples.all if not labels} == {
        "gpuboard_problems": 3,
        "gpuboard_build_duration_seconds": 0.75,
        "gpuboard_build_interval_seconds": 10,
        "gpuboard_build_last_success_timestamp_seconds": NOW,
    }
    assert samples.value("build_info", version="9.9") == 1
    assert told().value("build_duration_seconds") is None


def test_a_board_without_hosts_has_only_metrics_of_the_builder() -> None:
    assert {name for name, _, _ in told().all if "_host_" in name or "_gpu_" in name} == set()


# People and bookings


def test_people_are_counted_by_gpus_over_all_hosts() -> None:
    used_host = decide(used_by("alice", "alice", "bob"))
    samples = told(
        used_host, replace(used_host, name="nile"), replace(decide(host_data(), [booking("carol")]), name="hydra")
    )
    assert {labels["user"]: value for labels, value in samples.of("user_gpus")} == {"alice": 2, "bob": 2}
    assert {labels["user"]: value for labels, value in samples.of("user_booked_gpus")} == {"carol": 1}


def test_a_person_who_booked_a_gpu_twice_has_it_once() -> None:
    board = decide(host_data(), [booking(), booking(gpu="*")])
    host = summary.summarize_host(board, None)
    assert (host.use_by_person, host.gpus_booked) == ({}, {"alice": 1})


def test_hidden_users_have_no_metrics() -> None:
    shown = PrivacySettings(users=False)
    content = text_of([decide(used_by("alice"), [booking("bob", ends=5)], shown=shown)])
    assert b"user" not in content and b"alice" not in content and b"bob" not in content
    assert Samples(content).value("gpu_booked") == 1
    host = summary.summarize_host(replace(decide(used_by("alice"), [booking("bob")]), users_shown=False), None)
    assert (host.use_by_person, host.gpus_booked) == ({}, {})


@pytest.mark.slow
def test_metrics_name_people_only_if_the_board_shows_them(tmp_path: Path) -> None:
    lab = every_state(tmp_path)
    for users in (True, False):
        lab.build(privacy=PrivacySettings(users=users))
        content = (lab.www / "metrics").read_text()
        people = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan")
        assert any(name in content for name in people) == users
        assert ("user=" in content) == users


def test_a_booking_over_several_gpus_or_with_repeats_counts_once() -> None:
    gpus = [gpu(0), gpu(1), gpu(2)]
    bookings = [
        *(booking(gpu=gpu_index, id="a", begins=-1) for gpu_index in "01"),
        *(booking("bob", gpu=gpu_index, begins=1) for gpu_index in "01"),
        booking("carol", gpu="*", begins=2, ends=3),
        booking("carol", gpu="2", begins=-5, ends=-1),
        booking("dave", gpu="2", begins=5, ends=6, id="d", rrule="FREQ=DAILY"),
    ]
    assert summary.summarize_host(decide(host_data(gpus), bookings), None).booking_counts == (1, 3)


def test_bookings_of_a_host_whose_gpus_are_not_known_count_too() -> None:
    assert summary.summarize_host(decide(None, [booking()]), None).booking_counts == (1, 0)


def test_there_are_no_more_people_than_prometheus_should_keep() -> None:
    crowd = {f"user{n}": n for n in range(5000)}
    samples = told(decide(host_data()), gpus_used=crowd)
    assert len(samples.of("user_gpus")) == metrics.MAX_USERS
    assert samples.value("user_gpus", user="user4999") == 4999


# Health


@pytest.mark.parametrize(
    ("cells", "name", "labels", "value"),
    [
        ({"fan__speed": "37"}, "fan_ratio", {}, 0.37),
        ({"fan__speed": "37 %"}, "fan_ratio", {}, 0.37),
        ({"fan__speed": "[N/A]"}, "fan_ratio", {}, None),
        ({"ecc__errors__corrected__volatile__total": "12"}, "ecc_errors_total", {"kind": "corrected"}, 12),
        ({"ecc__errors__uncorrected__volatile__total": "0"}, "ecc_errors_total", {"kind": "uncorrected"}, 0),
        ({"remapped_rows__pending": "Yes"}, "repair_pending", {}, 1),
        ({"remapped_rows__pending": "No", "retired_pages__pending": "[N/A]"}, "repair_pending", {}, 0),
        ({"remapped_rows__pending": "[N/A]", "retired_pages__pending": "Yes"}, "repair_pending", {}, 1),
        ({"remapped_rows__pending": "[N/A]"}, "repair_pending", {}, None),
        ({"remapped_rows__failure": "Yes"}, "repair_failed", {}, 1),
        ({"gpu_recovery_action": "None"}, "recovery_needed", {}, 0),
        ({"gpu_recovery_action": "Reset"}, "recovery_needed", {}, 1),
        ({"gpu_recovery_action": "[N/A]"}, "recovery_needed", {}, None),
        ({"clocks_event_reasons__active": "0x0000000000000040"}, "throttled", {"reason": "heat"}, 1),
        ({"clocks_event_reasons__active": "0x0000000000000004"}, "throttled", {"reason": "heat"}, 0),
        ({"clocks_throttle_reasons__active": "0x0000000000000004"}, "throttled", {"reason": "power"}, 1),
        ({"clocks_event_reasons__active": "0x1"}, "throttled", {"reason": "power"}, 0),
        ({"clocks_event_reasons__active": "[N/A]"}, "throttled", {"reason": "heat"}, None),
        ({"clocks_event_reasons__active": "0x" + "f" * 4000}, "throttled", {"reason": "heat"}, None),
        ({"clocks_event_reasons__active": "0xoops"}, "throttled", {"reason": "heat"}, None),
    ],
)
def test_health_metrics_exist_where_the_driver_reports_health(
    cells: dict[str, str], name: str, labels: dict[str, str], value: float | None
) -> None:
    assert told(bare(with_cells(**cells))).value(f"gpu_{name}", **labels) == value


def test_a_gpu_without_health_readings_has_no_health_metrics() -> None:
    assert metrics.format_health_metric_endings(gpu().health, None) == ((),) * 6


# Nothing that a host says can spoil the file


ODD = ['quo"te', "back\\slash", "new\nline", "\\n", "{}", '"} 1', "ü 中文", "\u202eabc", "#", "\ud800", "x" * 9000, ""]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_names_stay_within_their_label(text: str) -> None:
    row = gpu(0, uuid=text, name=text)
    facts = HostFacts(disks=(Disk(text, 10, 5),))
    board = HostStatus("atlas", text, (text,), "fresh", "", NOW, facts, (GpuStatus(row, text, "free", ""),))
    samples = Samples(text_of([board], gpus_used={text: 1}))
    shown = text[: metrics.MAX_LABEL_CHARACTERS].replace("\ud800", "?")
    ((info, _),) = samples.of("gpu_info")
    assert (info["name"], info["uuid"], info["model"]) == (shown, shown, shown)
    assert samples.of("host_info")[0][0]["title"] == shown
    assert samples.value("user_gpus", user=shown) == 1
    assert samples.value("host_disk_used_bytes", mount=shown) == 5 * MIB


def test_a_gpu_without_an_index_goes_by_its_uuid_else_by_its_bus() -> None:
    lost = Gpu(None, None, None, bus_id="0000:41:00.0")
    samples = told(bare(gpu(None, uuid="GPU-a"), lost, Gpu(None, None, None)))
    assert [labels["gpu"] for labels, _ in samples.of("gpu_state")] == ["GPU-a", "0000:41:00.0"]


def test_a_second_gpu_with_the_same_index_is_labelled_by_uuid_and_one_without_a_uuid_is_omitted() -> None:
    samples = told(bare(gpu(0), gpu(0, uuid="GPU-b"), gpu(0, uuid=None), gpu(1, uuid="0")))
    assert [labels["gpu"] for labels, _ in samples.of("gpu_state")] == ["0", "GPU-b", "1"]


def test_no_two_samples_are_the_same_whatever_the_rows_are() -> None:
    ids = [None, 0, 1]
    uuids = [None, "0", "1", "u" * 300, "u" * 300 + "x"]
    rows = [gpu(index, uuid=uuid) for index in ids for uuid in uuids]
    content = text_of([bare(*rows), bare(*rows, name="nile")])
    series = [line.rpartition(b" ")[0] for line in content.splitlines() if not line.startswith(b"#")]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("value", [1e-9, 0.1, 1e14, 123456789.25])
def test_any_number_can_be_read_again(value: float) -> None:
    samples = told(bare(gpu(used=value, temperature=value)))
    assert samples.value("gpu_temperature_celsius") == value
    assert math.isclose(samples.value("gpu_memory_used_bytes") or 0, value * MIB)


# The form of the file


def test_every_family_is_one_group_with_its_help_and_type(tmp_path: Path) -> None:
    lines = text_of(boards(every_state(tmp_path))).decode().splitlines()
    groups: list[str] = []
    for line in lines:
        name = line.split()[2] if line.startswith("#") else line.partition("{")[0].partition(" ")[0]
        if not groups or groups[-1] != name:
            groups.append(name)
            assert line.startswith(f"# HELP {name} ")
    assert len(groups) == len(set(groups))
    assert groups == [family.name for family in metrics.ALL_FAMILIES if family.name in groups]


def test_metrics_of_a_fleet_with_every_state_agree_with_the_model(tmp_path: Path) -> None:
    hosts = boards(every_state(tmp_path))
    samples = told(*hosts, now=time.time())
    assert {labels["host"]: labels["state"] for labels, _ in samples.of("host_state")} == {
        host.name: host.state for host in hosts
    }
    assert sorted((labels["host"], labels["gpu"], labels["state"]) for labels, _ in samples.of("gpu_state")) == sorted(
        (host.name, str(row.gpu.index), row.state) for host in hosts for row in host.gpus
    )
    for family, (field, multiplier, divisor) in metrics.READING_FAMILIES.items():
        expected = {
            (host.name, str(row.gpu.index)): getattr(row.gpu, field) * multiplier / divisor
            for host in hosts
            for row in host.gpus
            if getattr(row.gpu, field) is not None
        }
        name = family.name.removeprefix("gpuboard_")
        assert {(labels["host"], labels["gpu"]): value for labels, value in samples.of(name)} == expected
    assert {labels["phase"]: value for labels, value in samples.of("bookings")} == {"now": 5, "coming": 2}


def test_promtool_has_nothing_to_say(tmp_path: Path) -> None:
    hosts = [*boards(every_state(tmp_path)), bare(full_gpu(), name="full")]
    every = text_of(hosts, build_duration_s=1)
    named = {line.split()[2] for line in every.decode().splitlines() if line.startswith("# TYPE")}
    assert named == {family.name for family in metrics.ALL_FAMILIES}
    command = [program("promtool"), "check", "metrics"]
    for content in (every, text_of([])):
        done = subprocess.run(command, input=content, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.slow
def test_metrics_of_eight_thousand_gpus_are_fast() -> None:
    rows = [full_gpu()._replace(index=index, uuid=f"GPU-{index}") for index in range(8)]
    host_statuses = [bare(*rows, name=f"gpu{number:04}") for number in range(1000)]
    hosts = {board.name: built(board) for board in host_statuses}

    def assembled() -> bytes:
        return metrics.render_metrics(hosts, 0, now(), 60, None)

    assert assembled().count(b"\n") > 8000 * 20
    check(took(lambda: [metrics.render_host_metrics(board) for board in host_statuses]), 1)
    check(took(assembled), 0.5)
