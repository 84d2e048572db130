"""Which GPUs of a host are best used together, and how they are connected in words."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import Gpu, GpuStatus, GpuTopology, HostFacts, HostStatus
from site_builder.fleet.summary import summarize_available_gpus
from site_builder.fleet.topology import (
    GpuPlace,
    choose_connected_gpus,
    describe_numa_nodes,
    describe_nvlinks,
    find_matching_topology,
    is_nvlink_group,
    list_fully_linked_groups,
    locate_gpu,
    rate_connections,
)
from site_builder.snapshots.parsers.nvidia_topology import parse_nvidia_topology_output
from tests.support.samples import SAMPLES


def read(name: str) -> GpuTopology:
    topology = parse_nvidia_topology_output((SAMPLES / f"nvidia/topology/{name}.txt").read_bytes()).topology
    assert topology
    return topology


def free(name: str, *indices: int) -> list[GpuPlace]:
    topology = read(name)
    return [locate_gpu(topology, Gpu(index, f"GPU-{index}", "A100")) for index in indices]


def choose(name: str, indices: tuple[int, ...], count: int, fixed_count: int = 0) -> list[int]:
    return [indices[position] for position in choose_connected_gpus(free(name, *indices), count, fixed_count)]


# Choosing


@pytest.mark.parametrize(
    ("indices", "count", "chosen"),
    [
        ((0, 1, 2, 3), 2, [0, 1]),
        ((1, 2, 3), 2, [2, 3]),
        ((0, 2, 3), 2, [2, 3]),
        ((0, 2), 2, [0, 2]),
        ((3, 1, 0), 2, [1, 0]),
        ((0, 1, 2, 3), 3, [0, 1, 2]),
        ((0, 1, 2, 3), 4, [0, 1, 2, 3]),
        ((0, 1), 5, [0, 1]),
        ((), 2, []),
        ((0, 1), 0, []),
    ],
)
def test_linked_gpus_are_taken_together(indices: tuple[int, ...], count: int, chosen: list[int]) -> None:
    assert choose("580-four-in-pairs", indices, count) == chosen


def test_without_links_gpus_on_one_numa_node_are_taken_together() -> None:
    places = [GpuPlace(index, numa_node=index // 4) for index in range(8)]
    assert choose_connected_gpus(places[3:6], 2) == [1, 2]
    assert choose_connected_gpus(places[2:], 4) == [2, 3, 4, 5]


def test_a_link_counts_more_than_a_numa_node() -> None:
    near = [GpuPlace(0, 0, ()), GpuPlace(1, 0, ()), GpuPlace(2, 0, (3,)), GpuPlace(3, 1, (2,))]
    assert choose_connected_gpus(near, 2) == [2, 3]


def test_through_an_nvswitch_those_on_one_numa_node_come_first() -> None:
    assert choose("590-eight-through-nvswitch", (1, 3, 4, 6, 7), 3) == [4, 6, 7]
    assert choose("590-eight-through-nvswitch", (0, 1, 2), 2) == [0, 1]


def test_in_a_cube_mesh_four_that_are_all_linked_are_taken() -> None:
    assert choose("418-eight-in-a-cube-mesh", (0, 1, 4, 5, 6, 7), 4) == [4, 5, 6, 7]
    assert choose("418-eight-in-a-cube-mesh", (0, 5, 6, 3), 2) == [0, 3]


def test_a_single_gpu_is_taken_from_where_it_breaks_no_pair() -> None:
    assert choose("580-four-in-pairs", (0, 1, 2), 1) == [2]
    assert choose("580-four-in-pairs", (0, 1, 2, 3), 1) == [0]
    assert choose("590-eight-through-nvswitch", (2, 5, 6), 1) == [2]


def test_those_that_are_fixed_are_taken_with_their_partners() -> None:
    assert choose("580-four-in-pairs", (3, 0, 1, 2), 2, fixed_count=1) == [3, 2]
    assert choose("580-four-in-pairs", (3, 0, 1, 2), 3, fixed_count=2) == [3, 0, 1]
    assert choose("580-four-in-pairs", (0, 2, 3, 1), 2, fixed_count=3) == [2, 3]
    assert choose("580-four-in-pairs", (0, 1, 2, 3), 1, fixed_count=1) == [0]


def test_a_link_is_no_reason_to_take_another_model() -> None:
    best, other, *pair = free("580-four-in-pairs", 0, 2, 2, 3)
    slow = [place._replace(model="T4") for place in pair]
    assert choose_connected_gpus([best, other, *slow], 2) == [0, 1]
    assert choose_connected_gpus([best, *slow], 2) == [0, 1]


PLACES = st.lists(
    st.builds(
        GpuPlace,
        st.one_of(st.none(), st.integers(0, 9)),
        st.one_of(st.none(), st.integers(0, 2)),
        st.lists(st.integers(0, 9), max_size=9).map(tuple),
        st.sampled_from(["A100", "T4"]),
    ),
    max_size=9,
)


@given(PLACES, st.integers(0, 10), st.integers(0, 9))
def test_any_choice_has_the_wanted_number_in_the_order_of_the_places(
    places: list[GpuPlace], count: int, fixed_count: int
) -> None:
    fixed_count = min(fixed_count, len(places))
    chosen = choose_connected_gpus(places, count, fixed_count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, len(places))
    assert set(range(fixed_count)) <= set(chosen) or set(chosen) <= set(range(fixed_count))
    first = rate_connections(places[: len(chosen)])
    assert rate_connections([places[position] for position in chosen]) >= first or fixed_count > count


@given(PLACES, st.integers(0, 10))
def test_where_nothing_is_known_the_first_are_taken(places: list[GpuPlace], count: int) -> None:
    unknown = [GpuPlace(place.index, model=place.model) for place in places]
    assert choose_connected_gpus(unknown, count) == list(range(min(count, len(places))))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(2, 8))
def test_among_separate_groups_the_choice_is_the_best_there_is(groups: list[int], count: int) -> None:
    indices = range(len(groups))
    places = [
        GpuPlace(index, None, tuple(other for other in indices if other != index and groups[other] == groups[index]))
        for index in indices
    ]
    count = min(count, len(places))
    chosen = [places[position] for position in choose_connected_gpus(places, count)]
    has_group = max(map(groups.count, groups)) >= count
    assert is_nvlink_group(chosen) == has_group
    if has_group:
        assert rate_connections(chosen) == max(map(rate_connections, combinations(places, count)))


def test_a_thousand_gpus_are_chosen_from_in_time() -> None:
    places = [GpuPlace(index, 0, range(1024)) for index in range(1024)]
    began = time.process_time()
    assert choose_connected_gpus(places, 32) == list(range(32))
    assert choose_connected_gpus(places, 1000) == list(range(1000))
    assert time.process_time() - began < 5


# Groups


def test_a_group_is_linked_within_itself() -> None:
    assert is_nvlink_group(free("580-four-in-pairs", 2, 3))
    assert not is_nvlink_group(free("580-four-in-pairs", 0, 1, 2, 3))
    assert not is_nvlink_group(free("580-four-in-pairs", 1, 2))
    assert not is_nvlink_group(free("580-four-in-pairs", 1))
    assert not is_nvlink_group([])
    assert is_nvlink_group(free("418-eight-in-a-cube-mesh", 1, 0, 4))  # through 0
    assert not is_nvlink_group(free("418-eight-in-a-cube-mesh", 1, 4))


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("590-two-unlinked", []),
        ("580-four-in-pairs", [[0, 1], [2, 3]]),
        ("590-eight-through-nvswitch", [[*range(8)]]),
        ("418-eight-in-a-cube-mesh", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("590-h100-mig", [[1, 2]]),
    ],
)
def test_the_page_offers_gpus_together_that_are_all_linked_to_each_other(name: str, groups: list[list[int]]) -> None:
    topology = read(name)
    assert list(list_fully_linked_groups(topology.linked)) == groups
    gpus = [GpuStatus(Gpu(index, f"GPU-{index}", "V100"), "V100", "free", "") for index in topology.linked]
    host = HostStatus("atlas", None, (), "fresh", "", facts=HostFacts(topology=topology), gpus=tuple(gpus))
    numbers = {gpu: group[0] for group in groups for gpu in group}
    assert [gpu.nvlink_group for gpu in summarize_available_gpus(host)] == [numbers.get(gpu) for gpu in topology.linked]


# What belongs to which GPU


def test_a_topology_that_lacks_a_gpu_is_of_another_time() -> None:
    topology = read("580-four-in-pairs")
    gpus = [Gpu(index, f"GPU-{index}", "A100") for index in range(4)]
    assert find_matching_topology(topology, gpus) is topology
    assert find_matching_topology(topology, gpus[1:]) is topology
    assert find_matching_topology(topology, [*gpus, Gpu(None, None, None, lost="lost")]) is topology
    assert find_matching_topology(topology, [*gpus, Gpu(4, "GPU-4", "MI300", vendor="amd")]) is topology
    assert find_matching_topology(topology, [*gpus, Gpu(4, "GPU-4", "A100")]) is None
    assert find_matching_topology(topology, [Gpu(0, "GPU-0", "MI300", vendor="amd")]) is None
    assert find_matching_topology(None, gpus) is None


def test_links_are_of_the_gpus_of_nvidia_alone_and_of_no_instance() -> None:
    topology = read("580-four-in-pairs")
    assert locate_gpu(topology, Gpu(1, "GPU-1", "A100")) == GpuPlace(1, 0, (0,), "A100")
    assert locate_gpu(topology, Gpu(1, "x", "MI300", vendor="amd")) == GpuPlace(1, model="MI300")
    assert locate_gpu(topology, Gpu(1, "x", "A100", parent=Gpu(1, "GPU-1", "A100"))) == GpuPlace(1, model="A100")
    assert locate_gpu(None, Gpu(1, "GPU-1", "A100")) == GpuPlace(1, model="A100")


# In words


@pytest.mark.parametrize(
    ("name", "nvlinks", "numa_nodes"),
    [
        ("590-two-unlinked", "none", "0: GPUs 0, 1"),
        ("580-four-in-pairs", "GPUs 0, 1 · GPUs 2, 3 (NV4)", "0: GPUs 0, 1 · 1: GPUs 2, 3"),
        ("590-eight-through-nvswitch", "all GPUs are linked (NV18)", "0: GPUs 0 to 3 · 1: GPUs 4 to 7"),
        ("418-eight-in-a-cube-mesh", "all GPUs are linked, some of them through others", ""),
        ("470-numa-not-available", "GPUs 0, 1 (NV4)", ""),
        ("590-h100-mig", "GPUs 1, 2 (NV12)", "0: GPU 0 · 1: GPUs 1, 2"),
        ("580-one-gpu", "", "0: GPU 0"),
    ],
)
def test_links_and_nodes_in_words(name: str, nvlinks: str, numa_nodes: str) -> None:
    topology = read(name)
    assert (describe_nvlinks(topology), describe_numa_nodes(topology)) == (nvlinks, numa_nodes)
