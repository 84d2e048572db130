"""The simulated lab: who works where and when, settled by a seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from site_builder.core.formatting import HOUR, MINUTE
from site_builder.demo import scenario
from site_builder.demo.scenario import DEMO_BOOKINGS, HostScenario, build_scenarios
from site_builder.demo.simulated_lab import SimulatedLab


def lab(hosts: int = len(scenario.MACHINES), seed: int = 1) -> dict[str, HostScenario]:
    return {
        simulated_host.machine.name: simulated_host
        for simulated_host in build_scenarios(scenario.build_scenario_machines(hosts), seed)
    }


def taken(story: HostScenario, now: float) -> set[int]:
    return {gpu for job in story.list_jobs_at(now) for gpu in job.gpus}


@pytest.mark.slow
def test_the_same_seed_is_the_same_lab_however_often_one_looks() -> None:
    often, seldom = lab(), lab()
    for moment in range(0, 3 * HOUR, 60):
        for story in often.values():
            story.list_jobs_at(moment)
    assert [story.list_jobs_at(3 * HOUR) for story in often.values()] == [
        story.list_jobs_at(3 * HOUR) for story in seldom.values()
    ]


def test_another_seed_is_another_lab() -> None:
    assert [story.list_jobs_at(0) for story in lab().values()] != [
        story.list_jobs_at(0) for story in lab(seed=2).values()
    ]


def test_a_host_lives_the_same_life_in_a_larger_lab() -> None:
    assert lab()["hydra"].list_jobs_at(HOUR) == lab(200)["hydra"].list_jobs_at(HOUR)


def test_something_starts_or_ends_every_minute_or_so() -> None:
    seen = lab()
    moments = [[story.list_jobs_at(now) for story in seen.values()] for now in range(0, 20 * MINUTE, 10)]
    assert sum(before != after for before, after in zip(moments, moments[1:])) >= 15


def test_a_job_takes_its_memory_step_by_step() -> None:
    (job, *_) = lab()["atlas"].list_jobs_at(0)
    early, late = (job.simulate_memory(80000, job.starts_at + seconds) for seconds in (10, 600))
    assert 0 < early < late / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_deadline_fills_the_cluster(seed: int) -> None:
    shares = []
    seen = [simulated_host for simulated_host in lab(60, seed).values() if simulated_host.machine.short_runs_per_hour]
    for hour in (3, 15):
        shares.append(
            sum(len(taken(simulated_host, hour * HOUR)) for simulated_host in seen)
            / sum(simulated_host.machine.gpu_count for simulated_host in seen)
        )
    assert shares[0] < 0.7
    assert shares[1] > 0.8


@pytest.mark.slow
def test_no_gpu_has_two_jobs_but_where_two_share_one() -> None:
    for story in lab(40).values():
        for now in range(0, 24 * HOUR, HOUR):
            gpus = [gpu for job in story.list_jobs_at(now) for gpu in job.gpus]
            assert len(gpus) == len(set(gpus)) or story.machine.name == "draco"


def test_bookings_are_kept_and_broken() -> None:
    seen = lab()
    users = {
        booking.comment: {
            job.person
            for job in seen[booking.host].list_jobs_at(0)
            if booking.gpus and set(job.gpus) & set(booking.gpus)
        }
        for booking in DEMO_BOOKINGS
        if booking.starts_at <= 0 < booking.ends_at
    }
    assert users == {"ICML run": {"alice"}, "demo for the visitors": set(), "evaluation": {"marek"}, "thesis": set()}


def test_a_host_goes_down_and_returns() -> None:
    draco = lab()["draco"]
    assert [draco.is_silent(minute * MINUTE) for minute in (0, 1, 3, 15, 21, 9 * 60 + 3)] == [
        False,
        False,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.slow
def test_what_runs_on_several_gpus_runs_on_whole_ones_of_one_maker() -> None:
    multi_gpu_jobs = 0
    for story in lab(60).values():
        for now in range(0, 48 * HOUR, HOUR):
            for job in story.list_jobs_at(now):
                units = [story.machine.units[gpu] for gpu in job.gpus]
                assert len({unit.vendor for unit in units}) == 1
                assert len(units) == 1 or all(unit.instance is None for unit in units)
                multi_gpu_jobs += len(units) > 1
    assert multi_gpu_jobs


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_instance_is_free_and_one_is_booked_whatever_the_seed(seed: int) -> None:
    assert taken(lab(seed=seed)["gemini"], 0) & {0, 1, 2, 3} == {0, 1}


def test_a_gpu_that_is_lost_leaves_an_xid_error_in_the_kernel_log(tmp_path: Path) -> None:
    offset = scenario.LOST_GPUS["orion"][0][1] - 1
    lab_folder, work = tmp_path / "lab", tmp_path / "work"
    simulated_lab = SimulatedLab(lab_folder, work, host_count=12, seed=1, speed=1000, start_offset_s=offset)
    for host in simulated_lab.hosts:
        if host.machine.name in {"hydra", "orion"}:
            assert simulated_lab.take_snapshot(host) == ""
    facts = (lab_folder / "data/orion/host.txt").read_text()
    assert re.search(r"^xid=\d{10} \d{10} 1 0000:32:00 79 GPU has fallen off the bus\.$", facts, re.MULTILINE)
    assert "\nkernel_log=dmesg\n" in (lab_folder / "data/hydra/host.txt").read_text()
    assert "\nxid=" not in (lab_folder / "data/hydra/host.txt").read_text()  # lost before the demo began


def test_where_a_round_takes_long_hosts_are_asked_less_often_and_may_be_as_old(tmp_path: Path) -> None:
    """As with 200 hosts on a small machine, where the first snapshots of a round are old at its end."""
    simulated_lab = SimulatedLab(tmp_path / "lab", tmp_path / "work", host_count=2, seed=1, speed=1, start_offset_s=0)
    assert (simulated_lab.interval_s, simulated_lab.build_settings()["GPUBOARD_STALE_AFTER"]) == (5, "30")
    simulated_lab.round_s = 89.5
    assert simulated_lab.interval_s == 90
    settings = simulated_lab.build_settings()
    assert settings["GPUBOARD_STALE_AFTER"] == "90"
    assert int(settings["GPUBOARD_DOWN_AFTER"]) > 6 * 90
