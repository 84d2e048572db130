"""Print what nvidia-smi would print on a simulated host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from site_builder.core.html import load_html_template
from site_builder.demo.scenario import (
    DRIVER_VERSION,
    OVERHEATING_GPUS,
    RESERVED_MIB,
    ScenarioMachine,
    build_scenario_gpu_uuid,
    build_scenario_uuid,
    simulate_readings,
)

CLOCK_REASON_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "display_clocks_setting": 0x100,
}
# What each field is worth where the driver cannot reach the GPU, but for these.
LOST_CELL = "[GPU is lost]"
FIELDS_OF_LOST_GPU = ("index", "uuid", "name", "pci.bus_id")
NOT_AVAILABLE_CELL = "[N/A]"
# What is counted over the life of a GPU whose memory reports its errors; of some it is not 0.
MEMORY_ERRORS = {
    ("hydra", 5): {"ecc.errors.uncorrected.aggregate.total": "1", "remapped_rows.uncorrectable": "1"},
    ("lyra", 1): {"ecc.errors.corrected.aggregate.total": "214"},
}
# Those whose slot has but half of the lanes.
HALF_WIDTH_GPUS = {("draco", 3)}
LANE_COUNT = 16


class NvidiaToolProcess(NamedTuple):
    """A process on a GPU or an instance, by the place of that among the units of its machine."""

    gpu: int
    pid: int
    memory_mib: int
    program: str


class NvidiaToolGpu(NamedTuple):
    """A GPU as it sits in the machine, with the places of what it is, or is cut into, among the units."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str
    unit_positions: tuple[int, ...]
    is_mig: bool


def render_nvidia_output(
    machine: ScenarioMachine,
    seen: Sequence[tuple[int, int]],
    gpu_processes: Sequence[NvidiaToolProcess],
    lost: set[int],
    now: float,
) -> dict[str, str]:
    cards = [
        NvidiaToolGpu(unit.index, build_scenario_gpu_uuid(machine, gpu), (gpu,), is_mig=False)
        for gpu, unit in enumerate(machine.units)
        if unit.vendor == "nvidia" and unit.instance is None
    ]
    if machine.instances:
        uuid = f"GPU-{build_scenario_uuid(f'{machine.name} whole')}"
        cards.insert(0, NvidiaToolGpu(0, uuid, tuple(range(len(machine.instances))), is_mig=True))
    rows: list[dict[str, str]] = []
    listed = []
    for card in cards:
        fields = build_smi_fields(machine, card, [seen[gpu] for gpu in card.unit_positions], now)
        if lost & {*card.unit_positions}:
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
    }
    if machine.instances:
        files["xml"] = load_html_template("nvidia_smi.xml").render(
            timestamp=time.strftime("%a %b %d %H:%M:%S %Y"),
            driver_version=DRIVER_VERSION,
            cards=[(card, partial(format_smi_xml_cell, fields)) for card, fields in zip(cards, rows)],
            clock_reason_bits=CLOCK_REASON_BITS,
            instances=machine.instances,
            units=machine.units,
            seen=seen,
            processes=gpu_processes,
        )
    return files


def format_smi_xml_cell(fields: Mapping[str, str], name: str, unit: str = "") -> str:
    value = fields[name].strip("[]")
    return f"{value}{unit}" if value[:1].isdecimal() else value


def build_smi_fields(
    machine: ScenarioMachine, card: NvidiaToolGpu, seen: Sequence[tuple[int, int]], now: float
) -> dict[str, str]:
    """Build the cells of a GPU for --query-gpu, from the use and memory of its parts."""
    key = (machine.name, card.unit_positions[0])
    model = machine.units[card.unit_positions[0]].model
    used, use = sum(memory for _, memory in seen), seen[0][0]
    if card.is_mig:  # each instance works with its own processors
        busy = [instance.processors * working for instance, (working, _) in zip(machine.instances, seen)]
        use = sum(busy) // sum(instance.processors for instance in machine.instances)
    readings = simulate_readings(model, card.uuid, use, used, now, key in OVERHEATING_GPUS)
    if readings.is_throttled:
        reason = "sw_thermal_slowdown"
    else:
        reason = "sw_power_cap" if use > 95 else "" if readings.is_taken else "gpu_idle"

    def with_ecc(value: str) -> str:
        return value if model.has_ecc else NOT_AVAILABLE_CELL

    mig_mode = "Enabled" if card.is_mig else "Disabled"
    fields = {
        "index": str(card.index),
        "uuid": card.uuid,
        "name": model.name,
        "pci.bus_id": f"00000000:{0x17 + card.index * 9:02X}:00.0",
        "serial": with_ecc(str(1560_000_000 + machine.number * 16 + card.index)),
        "driver_version": DRIVER_VERSION,
        "vbios_version": "96.00.89.00.01",
        "compute_cap": model.compute_capability,
        "memory.total": str(model.memory_mib),
        "memory.reserved": str(RESERVED_MIB),
        "power.limit": f"{model.max_watts}.00",
        "enforced.power.limit": f"{model.max_watts}.00",
        "clocks.max.sm": str(model.max_clock_mhz),
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": mig_mode if model.compute_capability in ("8.0", "9.0") else NOT_AVAILABLE_CELL,
        "display_active": "Disabled",
        "pcie.link.gen.gpucurrent": "4",
        "pcie.link.width.max": str(LANE_COUNT),
        "ecc.mode.current": with_ecc("Enabled"),
        "ecc.errors.corrected.volatile.total": with_ecc("0"),
        "ecc.errors.uncorrected.volatile.total": with_ecc("0"),
        "ecc.errors.corrected.aggregate.total": with_ecc("0"),
        "ecc.errors.uncorrected.aggregate.total": with_ecc("0"),
        "remapped_rows.correctable": with_ecc("0"),
        "remapped_rows.uncorrectable": with_ecc("0"),
        "remapped_rows.pending": with_ecc("No"),
        "remapped_rows.failure": with_ecc("No"),
        **MEMORY_ERRORS.get(key, {}),
        "memory.used": str(used),
        "memory.free": str(model.memory_mib - used - RESERVED_MIB),
        "utilization.gpu": str(use),
        "utilization.memory": str(readings.memory_use_percent),
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": str(readings.celsius),
        "temperature.memory": str(readings.celsius + 6) if model.has_ecc and not model.has_fan else "N/A",
        "power.draw": f"{readings.watts:.2f}",
        "fan.speed": str(int(30 + 0.4 * use)) if model.has_fan else NOT_AVAILABLE_CELL,
        "pstate": "P0" if readings.is_taken else "P8",
        "clocks.current.graphics": str(readings.clock_mhz),
        "clocks.current.sm": str(readings.clock_mhz),
        "clocks.current.memory": "1593" if readings.is_taken else "405",
        "clocks_event_reasons.active": f"0x{CLOCK_REASON_BITS.get(reason, 0):016X}",
        "pcie.link.width.current": str(LANE_COUNT // 2 if key in HALF_WIDTH_GPUS else LANE_COUNT),
    }
    if card.is_mig:  # nvidia-smi reports no use of a GPU that is cut
        fields.update({name: NOT_AVAILABLE_CELL for name in fields if name.startswith("utilization.")})
    return fields
