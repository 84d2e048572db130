"""Print what nvidia-smi, amd-smi and rocm-smi would print on a simulated host."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from site_builder.core.html import load_html_template
from site_builder.demo import scenario
from site_builder.demo.scenario import ScenarioMachine, build_scenario_gpu_uuid
from site_builder.snapshots.parsers.nvidia_xml import CLOCK_REASON_BITS

# What each field is worth where the driver cannot reach the GPU, but for these.
LOST_CELL = "[GPU is lost]"
FIELDS_OF_LOST_GPU = ("index", "uuid", "name", "pci.bus_id")
NOT_AVAILABLE_CELL = "[N/A]"
# Fields that differ on some GPUs: errors that were counted over their life, a slot with but half of the lanes, and an
# NVLink fabric with a link that has failed.
ODD_FIELDS = {
    ("atlas", 3): {"fabric.health.summary": "Limited Capacity", "fabric.health.bandwidth": "Degraded"},
    ("hydra", 5): {"ecc.errors.uncorrected.aggregate.total": "1", "remapped_rows.uncorrectable": "1"},
    ("lyra", 1): {"ecc.errors.corrected.aggregate.total": "214"},
    ("draco", 3): {"pcie.link.width.current": "8"},
}
AMD_DRIVER_VERSION = "6.10.5"
BYTES_PER_MIB = 1024 * 1024
MIN_GPUS_OF_TWO_NODES = 4
# The driver of AMD counts the processors of the machine too, and them first.
FIRST_NODE_ID = 2


class SimulatedToolProcess(NamedTuple):
    """A process on a GPU or an instance, by the place of that among the units of its machine."""

    gpu: int
    pid: int
    memory_mib: int
    program: str


class SimulatedToolGpu(NamedTuple):
    """A GPU as it sits in the machine, with the places of what it is, or is cut into, among the units."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str
    unit_positions: tuple[int, ...]
    is_mig: bool


def render_nvidia_output(
    machine: ScenarioMachine,
    seen: Sequence[tuple[int, int]],
    gpu_processes: Sequence[SimulatedToolProcess],
    lost: Collection[int],
    now: float,
) -> dict[str, str]:
    cards = [
        SimulatedToolGpu(unit.index, build_scenario_gpu_uuid(machine, gpu), (gpu,), is_mig=False)
        for gpu, unit in enumerate(machine.units)
        if unit.vendor == "nvidia" and unit.instance is None
    ]
    if machine.instances:
        uuid = f"GPU-{scenario.build_scenario_uuid(f'{machine.name} whole')}"
        cards.insert(0, SimulatedToolGpu(0, uuid, tuple(range(len(machine.instances))), is_mig=True))
    rows: list[dict[str, str]] = []
    listed = []
    for card in cards:
        fields = build_smi_fields(machine, card, [seen[gpu] for gpu in card.unit_positions], now)
        if not {*card.unit_positions}.isdisjoint(lost):
            fields = {name: value if name in FIELDS_OF_LOST_GPU else LOST_CELL for name, value in fields.items()}
        rows.append(fields)
        listed.append(f"GPU {card.index}: {fields['name']} (UUID: {card.uuid})\n")
        for number, instance in enumerate(machine.instances if card.is_mig else ()):
            uuid = build_scenario_gpu_uuid(machine, number)
            listed.append(f"  MIG {instance.profile:<11} Device {number:2}: (UUID: {uuid})\n")
    uuids = {gpu: card.uuid for card in cards for gpu in card.unit_positions}
    files = {
        "table": "\n".join([", ".join(rows[0]), *(", ".join(row.values()) for row in rows)]) + "\n",
        "apps": "".join(
            f"{uuids[process.gpu]}, {process.pid}, {process.memory_mib}, {process.program}\n"
            for process in gpu_processes
            if process.gpu not in lost
        ),
        "list": "".join(listed),
        "topology": render_topology_matrix(machine, [card.index for card in cards]),
    }
    if machine.instances:
        files["xml"] = load_html_template("nvidia_smi.xml").render(
            timestamp=time.strftime("%a %b %d %H:%M:%S %Y"),
            driver_version=scenario.DRIVER_VERSION,
            cards=[(card, partial(format_smi_xml_cell, fields)) for card, fields in zip(cards, rows)],
            clock_reason_bits=CLOCK_REASON_BITS,
            instances=machine.instances,
            units=machine.units,
            seen=seen,
            processes=gpu_processes,
        )
    return files


def render_topology_matrix(machine: ScenarioMachine, indices: Sequence[int]) -> str:
    """Render the answer of `nvidia-smi topo -m`; half of many GPUs are on each of two NUMA nodes."""
    node_size = len(indices) if len(indices) < MIN_GPUS_OF_TWO_NODES else (len(indices) + 1) // 2
    cpus_of_node = machine.cpu_count * node_size // len(indices)
    names = [f"GPU{index}" for index in indices]
    lines = ["\t".join(["", "\x1b[4m" + names[0], *names[1:], "CPU Affinity", "NUMA Affinity", "GPU NUMA ID\x1b[0m"])]
    for position, name in enumerate(names):
        node = position // node_size
        cells = [
            " X "
            if other == position
            else f"NV{machine.nvlink_count}"
            if other // machine.nvlink_group == position // machine.nvlink_group
            else "PHB"
            if other // node_size == node
            else "SYS"
            for other in range(len(names))
        ]
        cpus = f"{cpus_of_node * node}-{cpus_of_node * (node + 1) - 1}"
        lines.append("\t".join([name, *cells, cpus, str(node), "", "N/A"]))
    return "\n".join(lines) + "\n"


def render_kernel_log(machine: ScenarioMachine, lost_at: Mapping[int, float]) -> str:
    """Render what dmesg prints of GPUs that were lost so many seconds after the machine started."""
    lines = (
        f"[{uptime:12.6f}] NVRM: Xid (PCI:0000:{0x17 + machine.units[gpu].index * 9:02x}:00): 79, "
        "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        for gpu, uptime in lost_at.items()
    )
    return "".join(lines)


def format_smi_xml_cell(fields: Mapping[str, str], name: str, unit: str = "") -> str:
    value = fields[name].strip("[]")
    return f"{value}{unit}" if value[:1].isdecimal() else value


def build_smi_fields(
    machine: ScenarioMachine, card: SimulatedToolGpu, seen: Sequence[tuple[int, int]], now: float
) -> dict[str, str]:
    """Build the cells of a GPU for --query-gpu, from the use and memory of its parts."""
    key = (machine.name, card.unit_positions[0])
    model = machine.units[card.unit_positions[0]].model
    used, use = sum(memory for _, memory in seen), seen[0][0]
    if card.is_mig:  # each instance works with its own processors
        busy = [instance.processors * working for instance, (working, _) in zip(machine.instances, seen)]
        use = sum(busy) // sum(instance.processors for instance in machine.instances)
    readings = scenario.simulate_readings(model, card.uuid, use, used, now, key in scenario.OVERHEATING_GPUS)
    if readings.is_throttled:
        reason = "sw_thermal_slowdown"
    else:
        reason = "sw_power_cap" if use > 95 else "" if readings.is_taken else "gpu_idle"

    text = load_html_template("nvidia_smi.csv").render(
        machine=machine,
        card=card,
        model=model,
        readings=readings,
        reason=reason,
        clock_reason_bits=CLOCK_REASON_BITS,
        driver_version=scenario.DRIVER_VERSION,
        reserved_mib=scenario.RESERVED_MIB,
    )
    fields = {**dict(line.split(",", 1) for line in text.splitlines()), **ODD_FIELDS.get(key, {})}
    if card.is_mig:  # nvidia-smi reports no use of a GPU that is cut
        fields.update({name: NOT_AVAILABLE_CELL for name in fields if name.startswith("utilization.")})
    return fields


def render_amd_output(
    machine: ScenarioMachine, seen: Sequence[tuple[int, int]], gpu_processes: Sequence[SimulatedToolProcess], now: float
) -> dict[str, str]:
    """Render the answer to each question to the tool of this machine."""
    is_rocm = machine.amd_tool == "rocm-smi"
    template = load_html_template("rocm_smi.json" if is_rocm else "amd_smi.json")
    answers = {}
    for gpu, unit in enumerate(machine.units):
        if unit.vendor == "amd":
            uuid = build_scenario_gpu_uuid(machine, gpu)
            readings = scenario.simulate_readings(unit.model, uuid, *seen[gpu], now)
            text = template.render(
                unit=unit,
                own_id=uuid[4:],
                bus_id=f"0000:{0x83 + 3 * unit.index:02x}:00.0",
                node_id=FIRST_NODE_ID + unit.index,
                board=scenario.SCENARIO["amd_boards"][unit.model.name],
                driver_version=AMD_DRIVER_VERSION,
                readings=readings,
                watts=round(readings.watts),
                processes=[process for process in gpu_processes if process.gpu == gpu],
                bytes_per_mib=BYTES_PER_MIB,
            )
            answers[f"card{unit.index}"] = json.loads(text)
    if is_rocm:
        processes_by_pid: dict[int, list[SimulatedToolProcess]] = defaultdict(list)
        for process in gpu_processes:
            if machine.units[process.gpu].vendor == "amd":
                processes_by_pid[process.pid].append(process)
        processes_text = load_html_template("rocm_processes.txt").render(
            processes_by_pid=processes_by_pid, units=machine.units, bytes_per_mib=BYTES_PER_MIB
        )
        names = {card: answer["names"] for card, answer in answers.items()}
        return {
            "rocm-names": json.dumps({**names, "system": {"Driver version": AMD_DRIVER_VERSION}}),
            "rocm-metric": json.dumps({card: answer["metric"] for card, answer in answers.items()}),
            "rocm-processes": processes_text,
        }
    output = {}
    for question in ("list", "static", "metric", "process"):
        entries = [answer[question] for answer in answers.values()]
        answer = {"gpu_data": entries} if question in ("static", "metric") else entries
        output[question] = json.dumps(answer, indent=4) + "\n"
    return output
