"""Print what nvidia-smi would print on a simulated host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Union
from xml.sax.saxutils import escape

from site_builder.demo.scenario import (
    DRIVER_VERSION,
    OVERHEATING_GPUS,
    RESERVED_MIB,
    ScenarioMachine,
    build_scenario_gpu_uuid,
    build_scenario_uuid,
    simulate_readings,
)

XmlTree = Mapping[str, Union[str, "XmlTree", "list[XmlTree]"]]
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
# The elements of a GPU in their order, each with its field of --query-gpu and the unit that it has here.
GPU_ELEMENTS: XmlTree = {
    "product_name": "name",
    "display_active": "display_active",
    "persistence_mode": "persistence_mode",
    "mig_mode": {"current_mig": "mig.mode.current", "pending_mig": "mig.mode.current"},
    "mig_devices": "None",
    "serial": "serial",
    "uuid": "uuid",
    "minor_number": "index",
    "vbios_version": "vbios_version",
    "gpu_recovery_action": "None",
    "pci": {
        "pci_bus_id": "pci.bus_id",
        "pci_gpu_link_info": {
            "pcie_gen": dict.fromkeys(
                ("max_link_gen", "current_link_gen", "device_current_link_gen"), "pcie.link.gen.gpucurrent"
            ),
            "link_widths": {
                "max_link_width": "pcie.link.width.max|x",
                "current_link_width": "pcie.link.width.current|x",
            },
        },
    },
    "fan_speed": "fan.speed| %",
    "performance_state": "pstate",
    "clocks_event_reasons": "None",
    "fb_memory_usage": {name: f"memory.{name}| MiB" for name in ("total", "reserved", "used", "free")},
    "compute_mode": "compute_mode",
    "utilization": {f"{name}_util": f"utilization.{name}| %" for name in ("gpu", "memory", "encoder", "decoder")},
    "ecc_mode": {"current_ecc": "ecc.mode.current", "pending_ecc": "ecc.mode.current"},
    "ecc_errors": {
        when: {
            "sram_correctable": "0",
            "sram_uncorrectable_parity": "0",
            "sram_uncorrectable_secded": "0",
            "dram_correctable": f"ecc.errors.corrected.{when}.total",
            "dram_uncorrectable": f"ecc.errors.uncorrected.{when}.total",
        }
        for when in ("volatile", "aggregate")
    },
    "remapped_rows": {
        "remapped_row_corr": "remapped_rows.correctable",
        "remapped_row_unc": "remapped_rows.uncorrectable",
        "remapped_row_pending": "remapped_rows.pending",
        "remapped_row_failure": "remapped_rows.failure",
    },
    "temperature": {"gpu_temp": "temperature.gpu| C", "memory_temp": "temperature.memory| C"},
    "gpu_power_readings": {
        "average_power_draw": "power.draw| W",
        "instant_power_draw": "power.draw| W",
        "current_power_limit": "enforced.power.limit| W",
        "requested_power_limit": "power.limit| W",
    },
    "clocks": {
        "graphics_clock": "clocks.current.graphics| MHz",
        "sm_clock": "clocks.current.sm| MHz",
        "mem_clock": "clocks.current.memory| MHz",
    },
    "max_clocks": {"graphics_clock": "clocks.max.sm| MHz", "sm_clock": "clocks.max.sm| MHz"},
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
        head = {
            "timestamp": time.strftime("%a %b %d %H:%M:%S %Y"),
            "driver_version": DRIVER_VERSION,
            "cuda_version": "13.1",
            "attached_gpus": str(len(cards)),
        }
        elements = [render_nvidia_gpu_element(machine, *entry, seen, gpu_processes) for entry in zip(cards, rows)]
        files["xml"] = (
            '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
            f"{render_nvidia_elements(head, 1)}{''.join(elements)}</nvidia_smi_log>\n"
        )
    return files


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


def render_nvidia_gpu_element(
    machine: ScenarioMachine,
    card: NvidiaToolGpu,
    fields: Mapping[str, str],
    seen: Sequence[tuple[int, int]],
    gpu_processes: Sequence[NvidiaToolProcess],
) -> str:
    def format_memory(total: int, used: int, **others: int) -> XmlTree:
        sizes = {"total": total, **others, "used": used, "free": total - used}
        return {name: f"{size} MiB" for name, size in sizes.items()}

    tree = fill_nvidia_elements(GPU_ELEMENTS, fields)
    tree["mig_devices"] = "\n\t\t\tNone\n\t\t"
    if card.is_mig:
        tree["remapped_rows"] = "N/A"
        devices: list[XmlTree] = []
        for number, (instance, (_, used)) in enumerate(zip(machine.instances, seen)):
            counts = {"multiprocessor": instance.processors, "copy_engine": instance.engines, "encoder": 0}
            counts |= {"decoder": instance.engines, "ofa": 0, "jpg": instance.engines}
            device: XmlTree = {
                "index": str(number),
                "gpu_instance_id": str(instance.instance_id),
                "compute_instance_id": "0",
                "device_attributes": {"shared": {f"{name}_count": str(count) for name, count in counts.items()}},
                "ecc_error_count": {"volatile_count": {"sram_uncorrectable": "0"}},
                "fb_memory_usage": format_memory(instance.memory_mib, used, reserved=0),
                "bar1_memory_usage": format_memory(instance.bar1_mib, 0),
            }
            devices.append({"mig_device": device})
        tree["mig_devices"] = devices
    mask = fields["clocks_event_reasons.active"]
    bits = int(mask, 16) if mask.startswith("0x") else 0
    tree["clocks_event_reasons"] = {
        f"clocks_event_reason_{name}": "Active" if bits & bit else "Not Active"
        for name, bit in CLOCK_REASON_BITS.items()
    }
    processes: list[XmlTree] = []
    for process in gpu_processes:
        if process.gpu in card.unit_positions:
            part = machine.units[process.gpu].instance
            info = {
                "gpu_instance_id": str(part.instance_id) if part else "N/A",
                "compute_instance_id": "0" if part else "N/A",
                "pid": str(process.pid),
                "type": "C",
                "process_name": process.program,
                "used_memory": f"{process.memory_mib} MiB",
            }
            processes.append({"process_info": info})
    tree["processes"] = processes
    return f'\t<gpu id="{fields["pci.bus_id"]}">\n{render_nvidia_elements(tree, 2)}\t</gpu>\n'


def fill_nvidia_elements(tree: XmlTree, fields: Mapping[str, str]) -> dict[str, str | XmlTree | list[XmlTree]]:
    elements: dict[str, str | XmlTree | list[XmlTree]] = {}
    for name, inner in tree.items():
        if isinstance(inner, str):
            field, _, unit = inner.partition("|")
            value = fields.get(field, "N/A" if "." in field else field).strip("[]")
            elements[name] = f"{value}{unit}" if value[:1].isdecimal() else value
        elif isinstance(inner, Mapping):
            elements[name] = fill_nvidia_elements(inner, fields)
    return elements


def render_nvidia_elements(tree: XmlTree, depth: int) -> str:
    lines = []
    tabs = "\t" * depth
    for name, value in tree.items():
        if isinstance(value, str):
            lines.append(f"{tabs}<{name}>{escape(value)}</{name}>\n")
        else:
            children = value if isinstance(value, list) else [value]
            inner = "".join(render_nvidia_elements(child, depth + 1) for child in children)
            lines.append(f"{tabs}<{name}>\n{inner}{tabs}</{name}>\n")
    return "".join(lines)
