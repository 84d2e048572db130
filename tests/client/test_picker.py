"""Which GPUs somebody can have, and which of them are best."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import Mock

import pytest

from site_builder.client import picker
from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.core.model import GpuProblem
from site_builder.fleet import gpu_models

NOW = datetime(2027, 1, 1, 12, tzinfo=timezone.utc)
ASKER = picker.GpuRequester(lambda name: name == "alice", frozenset(), NOW.timestamp())
NAMES = (
    *("NVIDIA B300 SXM6 AC", "NVIDIA B200", "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"),
    *("Tesla T4", "Tesla V100-SXM2-32GB", "Tesla P100-PCIE-16GB", "Tesla M60", "Tesla K80"),
)


def gpu(index: int | None = 0, state: str = "free", **overrides: object) -> FleetGpu:
    plain: dict[str, object] = {"uuid": f"GPU-{index}", "name": "NVIDIA A100-SXM4-80GB", "model": "A100 80 GB"}
    plain |= {"reason": "", "memory_used": 4.0, "memory_total": 81920.0}
    return FleetGpu(index=index, state=state, **{**plain, **overrides})  # type: ignore[arg-type]


def host(*gpus: FleetGpu, name: str = "atlas", state: str = "fresh", load: float = 1) -> FleetHost:
    return FleetHost(name, None, (), state, "why", load=(load, load, load), cpus=10, gpus=gpus)


def booked(*names: str | None, since: float = -1, until: float = 1) -> tuple[FleetBooking, ...]:
    return tuple(
        FleetBooking("id", name, NOW + timedelta(hours=since), NOW + timedelta(hours=until), None) for name in names
    )


def picked(*hosts: FleetHost, asker: picker.GpuRequester = ASKER, **wanted: object) -> list[str]:
    candidates = picker.pick_available_gpus(hosts, picker.GpuRequest(**wanted), asker)  # type: ignore[arg-type]
    return [f"{candidate.host.name}:{candidate.gpu.index}" for candidate in candidates]


def test_free_gpus_can_be_had_and_no_others() -> None:
    states = ("free", "busy", "held", "conflict", "lost", "unknown", "booked")
    assert picked(host(*(gpu(number, state) for number, state in enumerate(states)))) == ["atlas:0"]


@pytest.mark.parametrize("state", ["stale", "down", "failed", "unseen", "maintenance"])
def test_nothing_is_picked_on_a_host_that_is_not_fresh(state: str) -> None:
    assert picked(host(gpu(), state=state)) == []


def test_a_problem_that_only_this_machine_reports_counts_whoever_uses_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = GpuProblem("ecc-uncorrected", "critical", "2 uncorrected ECC errors", "", avoid=True)
    here = Fleet(0, (host(gpu(0, "busy", problems=(problem,)), gpu(1, problems=(problem,)), gpu(2, "busy")),))
    monkeypatch.setattr("site_builder.client.loader.load_machine_fleet", lambda _: here)
    merged = picker.GpuPicker.merge_local_view(Mock(), host(gpu(0), gpu(1), gpu(2)))
    assert picked(merged, max_used_percent=20) == ["atlas:2"]
    assert picked(merged) == []


def test_what_i_have_booked_counts_as_free_and_what_others_have_never_does() -> None:
    mine = gpu(0, "booked", bookings=booked("alice"))
    booked_by_bob = gpu(1, "booked", bookings=booked("bob"))
    both = gpu(2, "booked", bookings=booked("alice", "bob"))
    hidden = gpu(3, "booked", bookings=booked(None))
    over = gpu(4, "booked", bookings=booked("alice", since=-3, until=-2))
    assert picked(host(mine, booked_by_bob, both, hidden, over)) == ["atlas:0"]


def test_a_booking_of_others_that_began_since_the_board_was_built_counts() -> None:
    assert picked(host(gpu(0, bookings=booked("bob")), gpu(1, bookings=booked("alice")))) == ["atlas:1"]


def test_what_a_run_of_mine_has_booked_is_for_that_run_but_a_run_asks_the_board() -> None:
    (booking,) = booked("alice")
    there = host(gpu(0, "booked", bookings=(booking._replace(id="run-abc"),)))
    assert picked(there) == []
    assert picked(there, asker=ASKER._replace(is_for_run=True)) == ["atlas:0"]


def test_a_gpu_that_a_run_has_taken_or_that_has_no_number_is_not_picked() -> None:
    taken = ASKER._replace(taken_keys=frozenset({"GPU-0"}))
    assert picked(host(gpu(0), gpu(1), gpu(None)), asker=taken) == ["atlas:1"]


def test_the_best_has_the_most_free_memory_then_the_newest_model_then_the_least_load() -> None:
    small = host(gpu(0, memory_total=24564.0, name="NVIDIA H100"), name="small")
    old = host(gpu(0, name="Tesla V100"), name="old", load=0)
    loaded = host(gpu(0), name="loaded", load=9)
    quiet = host(gpu(0, memory_used=300.0), name="quiet", load=2)
    untold = host(gpu(0), name="untold")._replace(load=None)
    gpu_names = picked(small, old, loaded, untold, quiet)
    assert gpu_names == ["quiet:0", "loaded:0", "untold:0", "old:0", "small:0"]


def test_load_counts_for_each_cpu() -> None:
    large = host(gpu(0), name="large", load=30)._replace(cpus=100)
    little = host(gpu(0), name="little", load=4)._replace(cpus=4)
    assert picked(little, large) == ["large:0", "little:0"]


def test_gpus_that_are_alike_come_as_people_count_them() -> None:
    assert picked(host(gpu(0), gpu(1), gpu(2)), host(gpu(0), name="zeus")) == [
        "atlas:0",
        "atlas:1",
        "atlas:2",
        "zeus:0",
    ]


def test_a_model_is_found_by_part_of_either_of_its_names_in_any_case() -> None:
    there = host(gpu(0), gpu(1, name="NVIDIA H100 80GB HBM3", model="H100 80 GB"))
    assert picked(there, model="a100") == ["atlas:0"]
    assert picked(there, model="HBM3") == ["atlas:1"]
    assert picked(there, model="B200") == []


def test_memory_that_is_not_reported_is_too_little() -> None:
    there = host(gpu(0, memory_total=None, memory_used=None), gpu(1, memory_total=40960.0))
    assert picked(there, memory=20480) == ["atlas:1"]
    assert picked(there) == ["atlas:1", "atlas:0"]


@pytest.mark.parametrize(("newer", "older"), list(zip(NAMES, NAMES[1:])))
def test_newer_models_are_known_to_be_newer(newer: str, older: str) -> None:
    assert gpu_models.find_model_year(newer) > gpu_models.find_model_year(older) > 0


def test_models_of_amd_are_known_too() -> None:
    names = ("AMD Instinct MI355X", "AMD Instinct MI325X", "AMD Instinct MI300X", "AMD Radeon RX 7900 XTX")
    older = (
        "AMD Instinct MI210",
        "Arcturus GL-XL [Instinct MI100]",
        "Vega 20 [Radeon VII]",
        "Radeon Instinct MI50 32GB",
    )
    years = [gpu_models.find_model_year(name) for name in (*names, *older, "Radeon Instinct MI25")]
    assert years == [2025, 2024, 2023, 2022, 2021, 2020, 2019, 2018, 2017]


def test_a_model_that_nobody_knows_comes_last() -> None:
    assert picked(host(gpu(0, name="Somebody's GPU"), gpu(1))) == ["atlas:1", "atlas:0"]
    assert (
        gpu_models.find_model_year(None),
        gpu_models.find_model_year("NVIDIA GeForce RTX 4090"),
        gpu_models.find_model_year("NVIDIA RTX A6000"),
    ) == (
        0,
        2022,
        2020,
    )


def test_several_are_of_one_host() -> None:
    candidates = picker.pick_available_gpus(
        [host(gpu(0)), host(gpu(0), gpu(1), name="zeus", load=5)], picker.GpuRequest(), ASKER
    )
    assert [
        candidate.host.name for candidate in picker.select_gpus_on_one_host(candidates, 2, picker.GpuRequest())
    ] == ["zeus", "zeus"]
    assert picker.select_gpus_on_one_host(candidates, 3, picker.GpuRequest()) == []


def select(count: int, *hosts: FleetHost, own_first: bool = False, **wanted: object) -> list[str]:
    request = picker.GpuRequest(**wanted)  # type: ignore[arg-type]
    choices = picker.pick_available_gpus(hosts, request, ASKER)
    if own_first:
        choices.sort(key=lambda choice: not choice.is_own_booking)
    selected = picker.select_gpus_on_one_host(choices, count, request, own_first)
    return [f"{choice.host.name}:{choice.gpu.label}" for choice in selected]


def in_pairs(*indices: int, **overrides: Any) -> list[FleetGpu]:  # noqa: ANN401
    """GPUs of which 0 and 1, 2 and 3 have NVLinks, and are on one NUMA node."""
    return [gpu(index)._replace(numa_node=index // 2, linked=(index ^ 1,), **overrides) for index in indices]


def test_those_of_one_host_are_linked_where_that_can_be() -> None:
    assert select(2, host(*in_pairs(1, 2, 3))) == ["atlas:2", "atlas:3"]
    assert select(2, host(*in_pairs(0, 2))) == ["atlas:0", "atlas:2"]
    assert select(1, host(*in_pairs(0, 1, 2))) == ["atlas:2"]


def test_a_host_with_links_comes_before_one_whose_gpus_are_as_good() -> None:
    plain, linked = host(gpu(0), gpu(1)), host(*in_pairs(0, 1), name="zeus", load=5)
    assert select(2, plain, linked) == ["zeus:0", "zeus:1"]
    assert select(1, plain, linked) == ["atlas:0"]
    small = host(*in_pairs(0, 1, memory_total=40960.0), name="zeus")
    assert select(2, plain, small) == ["atlas:0", "atlas:1"]
    older = host(*in_pairs(0, 1, name="Tesla V100-SXM2-32GB"), name="zeus")
    assert select(2, plain, older) == ["atlas:0", "atlas:1"]
    apart = host(*in_pairs(1, 2), name="zeus", load=5)
    assert select(2, plain, apart) == ["atlas:0", "atlas:1"]


def test_a_single_gpu_is_still_the_one_with_the_most_memory() -> None:
    assert select(1, host(*in_pairs(0, 1), *in_pairs(2, memory_used=9000.0))) == ["atlas:0"]


def test_linked_gpus_come_before_those_with_a_little_more_memory() -> None:
    gpus = [*in_pairs(0), *in_pairs(1, memory_used=3000.0), *in_pairs(2)]
    assert select(2, host(*gpus)) == ["atlas:0", "atlas:1"]


def test_a_run_takes_what_its_user_has_booked_first_and_then_what_is_linked_to_it() -> None:
    mine = [member._replace(state="booked", bookings=booked("alice")) for member in in_pairs(3)]
    there = host(*in_pairs(0, 1, 2), *mine)
    assert select(2, there, own_first=True) == ["atlas:3", "atlas:2"]
    assert select(1, there, own_first=True) == ["atlas:3"]
    assert select(2, there) == ["atlas:0", "atlas:1"]


def test_instances_are_never_linked() -> None:
    whole_gpus = in_pairs(1, 2, 3, name="H100", model="H100 1g.10gb", profile="1g.10gb", parent_keys=("0",))
    parts = [gpu._replace(place=f"0:{number}") for number, gpu in enumerate(whole_gpus)]
    assert select(2, host(*parts), model="1g.10gb") == ["atlas:0:0", "atlas:0:1"]


def test_an_unmet_request_has_its_reason() -> None:
    there = [host(gpu(0, "busy"), gpu(1, "busy"), gpu(2, "booked"), gpu(3))]
    assert (
        picker.explain_no_gpu_to_pick(there, picker.GpuRequest(), ASKER._replace(taken_keys={"GPU-3"}))
        == "2 busy, 1 booked, 1 taken by another run"
    )
    assert (
        picker.explain_no_gpu_to_pick(there, picker.GpuRequest("B200"), ASKER) == "none of its 4 GPUs is of this model"
    )
    assert picker.explain_no_gpu_to_pick([host()], picker.GpuRequest(), ASKER) == "no GPU"
    full = [host(gpu(0, memory_used=900.0, memory_total=1000.0))]
    assert picker.explain_no_gpu_to_pick(full, picker.GpuRequest("", 500), ASKER) == "1 with too little memory"


@pytest.mark.parametrize(
    ("wanted", "name", "fits"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100", "NVIDIA RTX A1000", False),
        ("L4", "NVIDIA L40S", False),
        ("L4", "NVIDIA L4", True),
        ("4090", "NVIDIA GeForce RTX 4090 D", True),
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("100", "NVIDIA H100 80GB HBM3", False),
        ("", None, True),
        ("A100", None, False),
    ],
)
def test_a_model_is_not_one_whose_name_only_begins_alike(wanted: str, name: str | None, fits: bool) -> None:
    assert gpu_models.is_matching_model(wanted, name) == fits


def test_gpus_that_share_the_memory_of_their_host_come_last_but_before_instances() -> None:
    instance = gpu(2, parent_keys=("2",), place="2:0")
    shared = gpu(0, is_memory_shared=True, memory_total=120_000.0)
    assert picked(host(instance, shared, gpu(1, memory_total=16_384.0))) == ["atlas:1", "atlas:0", "atlas:2"]
