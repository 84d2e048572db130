"""How the GPUs of a host are connected, as `nvidia-smi topo -m` tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import GpuTopology
from site_builder.core.terminal_text import MAX_PROBLEM_CHARACTERS
from site_builder.snapshots.parsers import nvidia_topology
from site_builder.snapshots.parsers.host_and_ps_txt import parse_host_txt
from site_builder.snapshots.parsers.nvidia_topology import parse_nvidia_topology_output
from tests.support.samples import format_topology, list_samples, name_sample, snapshot

SAMPLES = {path.stem: path for path in list_samples("nvidia/topology")}
HEADER = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
PAIR = HEADER + "GPU0\t X \tNV4\t0-7\t0\t\tN/A\nGPU1\tNV4\t X \t8-15\t1\t\tN/A\n"
MESH = {0: (1, 2, 3, 4), 1: (0, 2, 3, 5), 2: (0, 1, 3, 6), 3: (0, 1, 2, 7)}


def read(name: str) -> GpuTopology:
    parsed = parse_nvidia_topology_output(SAMPLES[name].read_bytes())
    assert parsed.topology
    assert parsed.problems == ()
    return parsed.topology


def parse(text: str) -> nvidia_topology.ParsedTopology:
    return parse_nvidia_topology_output(text.encode())


@pytest.mark.parametrize(
    ("name", "numa_nodes", "linked"),
    [
        ("590-two-unlinked", [0, 0], {}),
        ("580-four-in-pairs", [0, 0, 1, 1], {0: (1,), 1: (0,), 2: (3,), 3: (2,)}),
        (
            "418-eight-in-a-cube-mesh",
            [None] * 8,
            {**MESH, 4: (0, 5, 6, 7), 5: (1, 4, 6, 7), 6: (2, 4, 5, 7), 7: (3, 4, 5, 6)},
        ),
        ("375-sockets", [None] * 4, {}),
        ("470-numa-not-available", [None, None], {0: (1,), 1: (0,)}),
        ("590-h100-mig", [0, 1, 1], {1: (2,), 2: (1,)}),
        ("580-one-gpu", [0], {}),
        ("580-several-numa-nodes", [None, None], {}),
    ],
)
def test_nodes_and_links_of_each_machine(
    name: str, numa_nodes: list[int | None], linked: dict[int, tuple[int, ...]]
) -> None:
    topology = read(name)
    assert list(topology.numa_nodes.values()) == numa_nodes
    assert topology.linked == {gpu: linked.get(gpu, ()) for gpu in range(len(numa_nodes))}


def test_each_pair_has_the_word_of_nvidia_smi() -> None:
    assert read("580-four-in-pairs").connections == {
        **{(0, 1): "NV4", (2, 3): "NV4"},
        **dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS"),
    }
    assert read("375-sockets").connections[1, 2] == "SOC"


def test_network_cards_are_no_gpus_and_move_no_column() -> None:
    topology = read("590-eight-through-nvswitch")
    assert list(topology.numa_nodes.values()) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(topology.connections.values()) == {"NV18"}
    assert all(len(others) == 7 for others in topology.linked.values())


def test_what_is_no_matrix_is_no_topology() -> None:
    for text in (SAMPLES["rc9-no-driver"].read_text(), "", "\n\n", "|   0  NVIDIA A100  On  |\n"):
        assert parse(text) == (None, ())
    assert parse("GPU0\t X \t0-7\n") == (None, ("the matrix of nvidia-smi topo -m has no GPU",))
    assert parse(HEADER).topology is None


def test_a_matrix_that_is_cut_costs_what_is_missing() -> None:
    topology, problems = parse_nvidia_topology_output(SAMPLES["hostile-truncated"].read_bytes())
    assert topology
    assert topology.numa_nodes == {0: 0, 1: 0, 2: None, 3: None}
    assert topology.linked == {0: (1,), 1: (0,), 2: (), 3: ()}
    assert (2, 3) not in topology.connections
    assert [problem.rpartition(": ")[2] for problem in problems] == [
        "the row of GPU 2 is cut or shifted",
        "there is no row of GPU 2, 3",
    ]


def test_a_shifted_row_links_nothing() -> None:
    topology, problems = parse(HEADER + "GPU0\tNV4\t X \t0-7\t0\nGPU1\tNV4\t X \t8-15\t1\n")
    assert topology
    assert topology.numa_nodes == {0: None, 1: 1}
    assert topology.connections == {(0, 1): "NV4"}  # as the row of the other has it
    assert len(problems) == 2


def test_gpus_that_are_connected_in_two_ways_are_not_linked() -> None:
    topology, problems = parse(PAIR.replace("GPU0\t X \tNV4", "GPU0\t X \tSYS"))
    assert topology
    assert (topology.connections, topology.linked) == ({}, {0: (), 1: ()})
    assert problems == ("the matrix of nvidia-smi topo -m: GPUs 0 and 1 are connected in two ways",)


@pytest.mark.parametrize("cell", ["0-1", "0,1", "N/A", "", "-1", "x", "12345", "1 2"])
def test_a_node_that_is_not_one_number_is_not_known(cell: str) -> None:
    topology, problems = parse(PAIR.replace("8-15\t1\t", f"8-15\t{cell}\t"))
    assert topology
    assert topology.numa_nodes == {0: 0, 1: None}
    assert problems == ()


def test_an_empty_list_of_cpus_moves_no_column() -> None:
    topology = parse(PAIR.replace("8-15", "")).topology
    assert topology
    assert topology.numa_nodes == {0: 0, 1: 1}


def test_a_word_of_a_future_driver_is_no_link() -> None:
    topology, problems = parse(PAIR.replace("NV4", "NVX2"))
    assert topology
    assert (topology.connections, topology.linked, problems) == ({}, {0: (), 1: ()}, ())


def test_hostile_text_makes_few_short_problems() -> None:
    topology, problems = parse_nvidia_topology_output(SAMPLES["hostile-text"].read_bytes())
    assert topology
    assert topology.linked == {0: (), 1: (), 2: ()}
    assert 0 < len(problems) <= nvidia_topology.MAX_NAMED_PROBLEMS
    assert all(len(problem) < MAX_PROBLEM_CHARACTERS and problem.isprintable() for problem in problems)


def test_more_gpus_than_a_host_has_are_left_out() -> None:
    names = [f"GPU{gpu}" for gpu in range(500)]
    rows = "".join(f"{name}\t" + "\t".join(["NV4"] * 500) + "\n" for name in names)
    topology, problems = parse("\t" + "\t".join(names) + "\n" + rows)
    assert topology is None
    assert len(problems) == nvidia_topology.MAX_NAMED_PROBLEMS


def is_consistent(topology: GpuTopology) -> bool:
    gpus = topology.numa_nodes.keys()
    return (
        gpus == topology.linked.keys()
        and len(gpus) <= nvidia_topology.MAX_TOPOLOGY_GPUS
        and all(gpu in topology.linked[other] and gpu != other for gpu in gpus for other in topology.linked[gpu])
        and all(gpu < other and {gpu, other} <= gpus for gpu, other in topology.connections)
        and all(node is None or 0 <= node < 10_000 for node in topology.numa_nodes.values())
    )


@given(st.data())
def test_any_change_of_a_real_matrix_is_understood_or_left_out(data: st.DataObject) -> None:
    output = data.draw(st.sampled_from([path.read_bytes() for path in SAMPLES.values()]))
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(output)))
        end = data.draw(st.integers(start, min(len(output), start + 40)))
        new = data.draw(
            st.sampled_from([b"", b"\t", b"\n", b"X", b"NV4", b"GPU1", b"\x00", b"\xff", b"\t X \t", output[:60]])
        )
        output = output[:start] + new + output[end:]
    topology, problems = parse_nvidia_topology_output(output)
    assert topology is None or is_consistent(topology)
    assert len(problems) <= nvidia_topology.MAX_NAMED_PROBLEMS


@given(st.binary(max_size=300))
def test_any_bytes_are_read(output: bytes) -> None:
    topology, _ = parse_nvidia_topology_output(b"\tGPU0\tGPU1\n" + output)
    assert topology is None or is_consistent(topology)


# In host.txt


@pytest.mark.parametrize("path", SAMPLES.values(), ids=name_sample)
def test_host_txt_has_what_the_tool_printed(path: Path) -> None:
    file = parse_host_txt(snapshot("host", b"cpus=8\n" + format_topology(path.stem).encode()))
    (facts,) = file.rows
    assert facts.topology == parse_nvidia_topology_output(path.read_bytes()).topology
    assert facts.cpus == 8
    assert facts.extra == {}  # nothing that the page would show as it is


def test_host_txt_without_a_topology_or_with_too_much_of_one() -> None:
    (facts,) = parse_host_txt(snapshot("host", b"cpus=8\n")).rows
    assert facts.topology is None
    file = parse_host_txt(snapshot("host", b"cpus=8\n" + b"topology=\tGPU0\tGPU1\n" * 1900))
    assert (file.rows[0].topology, file.rows[0].cpus) == (None, 8)
    assert len(file.problems) == nvidia_topology.MAX_NAMED_PROBLEMS
