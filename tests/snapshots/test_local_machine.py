"""This machine's own GPUs where they are cut into instances: those are seen too."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_builder.snapshots import local_machine
from tests.support.nvidia_xml import LIST, MIG, document, gpu, process, running
from tests.support.own_gpus import OwnGpus
from tests.support.samples import SAMPLES

ROW = "0, GPU-1, NVIDIA H100 80GB HBM3, 43, 81559, [N/A], 41, {}\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnGpus:
    made = OwnGpus(tmp_path / "own")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    header = "index, uuid, name, memory.used, memory.total, utilization.gpu, temperature.gpu, mig.mode.current\n"
    (made.smi / "table").write_text(header + ROW.format("Enabled"))
    (made.smi / "calls").write_text("")
    return made


def test_instances_are_seen_with_their_processes(own: OwnGpus) -> None:
    (own.smi / "xml").write_text(document(gpu(1, MIG, running(process(7, gi=5, ci=0)))))
    (own.smi / "list").write_text(LIST)
    data = local_machine.read_local_machine(local_machine.start_local_queries(), "here", 1_700_000_000, own.proc)
    assert data.gpus
    assert data.processes
    assert [(parsed_row.label, parsed_row.uuid) for parsed_row in data.gpus.rows] == [
        ("0:0", "MIG-a"),
        ("0:1", "MIG-b"),
    ]
    assert [(parsed_row.gpu_key, parsed_row.pid) for parsed_row in data.processes.rows] == [("MIG-b", 7)]


def test_the_csv_counts_where_xml_fails(own: OwnGpus) -> None:
    data = local_machine.read_local_machine(local_machine.start_local_queries(), "here", 1_700_000_000, own.proc)
    assert data.gpus
    assert [(gpu_row.label, gpu_row.uuid) for gpu_row in data.gpus.rows] == [("0", "GPU-1")]


def test_the_topology_is_asked_once_where_it_is_wanted(own: OwnGpus) -> None:
    (own.smi / "topology").write_bytes((SAMPLES / "nvidia/topology/580-four-in-pairs.txt").read_bytes())
    topology = local_machine.LocalTopology()
    for _ in range(2):
        queries = local_machine.start_local_queries(topology)
        data = local_machine.read_local_machine(queries, "here", 1_700_000_000, own.proc)
        assert data.facts
        assert data.facts.rows[0].topology
        assert data.facts.rows[0].topology.linked == {0: (1,), 1: (0,), 2: (3,), 3: (2,)}
    assert (own.smi / "calls").read_text().count("topo -m") == 1


def test_a_topology_that_fails_is_not_known_and_not_asked_again(own: OwnGpus) -> None:
    (own.smi / "rc").write_text("9")
    topology = local_machine.LocalTopology()
    for _ in range(2):
        queries = local_machine.start_local_queries(topology)
        data = local_machine.read_local_machine(queries, "here", 1_700_000_000, own.proc)
        assert data.facts
        assert data.facts.rows[0].topology is None
    assert (own.smi / "calls").read_text().count("topo -m") == 1


def test_without_mig_nothing_more_is_asked(own: OwnGpus) -> None:
    table = own.smi / "table"
    table.write_text(table.read_text().replace("Enabled", "Disabled"))
    local_machine.read_local_machine(local_machine.start_local_queries(), "here", 1_700_000_000, own.proc)
    assert len((own.smi / "calls").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("meminfo", "memory"),
    [
        ("MemTotal:       127600748 kB\nMemFree: 1 kB\nMemAvailable:   118566368 kB\n", (124610, 115787)),
        ("MemTotal: many kB\nMemAvailable: -5 kB\n", (None, None)),
        (f"MemTotal: {'9' * 400} kB\n", (None, None)),
        (None, (None, None)),
    ],
)
def test_the_memory_of_this_machine(
    own: OwnGpus, meminfo: str | None, memory: tuple[float | None, float | None]
) -> None:
    if meminfo is not None:
        (own.proc / "meminfo").write_text(meminfo)
    data = local_machine.read_local_machine(local_machine.start_local_queries(), "here", 1_700_000_000, own.proc)
    assert data.facts
    assert (data.facts.rows[0].memory_total, data.facts.rows[0].memory_available) == memory


def test_of_a_driver_that_knows_fewer_fields_as_much_is_asked_as_it_knows(own: OwnGpus) -> None:
    known = [*local_machine.GPU_FIELDS[: local_machine.GPU_FIELDS.index("gpu_recovery_action")], "fabric.state"]
    known.append("fabric.status")
    (own.smi / "fields").write_text("\n".join(known) + "\n")
    header = "index, uuid, name, memory.used, mig.mode.current, fabric.state, fabric.status\n"
    (own.smi / "table").write_text(f"{header}0, GPU-1, NVIDIA H100 80GB HBM3, 43, Disabled, In Progress, N/A\n")
    data = local_machine.read_local_machine(local_machine.start_local_queries(), "here", 1_700_000_000, own.proc)
    assert data.gpus
    assert [gpu_row.health.fabric_registration for gpu_row in data.gpus.rows] == ["In Progress"]
    asked = [call for call in (own.smi / "calls").read_text().splitlines() if "--query-gpu" in call]
    assert len(asked) == 3, asked  # without the recovery action, then without all that is known of newer fabrics
