"""Print what nvidia-smi would print on a simulated host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Union
from xml.sax.saxutils import escape

from site_builder.demo.scenario import (
    DRIVER_VERSION,
    OVERHEATING_GPUS,
    RESERVED_MIB,
    DemoInstance,
    DemoMachine,
    DemoReadings,
    build_gpu_uuid,
    build_parent_uuid,
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
NOT_AVAILABLE = "N/A"
LINK_GENERATION_FIELD = "pcie.link.gen.gpucurrent"
ECC_ELEMENTS = {
    when: {
        "sram_correctable": "0",
        "sram_uncorrectable_parity": "0",
        "sram_uncorrectable_secded": "0",
        "dram_correctable": f"ecc.errors.corrected.{when}.total",
        "dram_uncorrectable": f"ecc.errors.uncorrected.{when}.total",
    }
    for when in ("volatile", "aggregate")
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
            "pcie_gen": {
                "max_link_gen": LINK_GENERATION_FIELD,
                "current_link_gen": LINK_GENERATION_FIELD,
                "device_current_link_gen": LINK_GENERATION_FIELD,
            },
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
    "ecc_errors": ECC_ELEMENTS,
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
# What is counted over the life of a GPU whose memory tells its errors; of some it is not 0.
ECC_TOTAL_FIELDS = ("ecc.errors.corrected.aggregate.total", "ecc.errors.uncorrected.aggregate.total")
REMAPPED_ROW_FIELDS = ("remapped_rows.correctable", "remapped_rows.uncorrectable")
MEMORY_ERRORS = {
    ("hydra", 5): {ECC_TOTAL_FIELDS[1]: "1", REMAPPED_ROW_FIELDS[1]: "1"},
    ("lyra", 1): {ECC_TOTAL_FIELDS[0]: "214"},
}
# Those whose slot has but half of the lanes.
HALF_WIDTH_GPUS = {("draco", 3)}
LANE_COUNT = 16
# The bits of why the clocks are not at their highest.
IDLE_BIT, POWER_CAP_BIT, HEAT_BIT = 0x1, 0x4, 0x20
# What is not told of a GPU that is cut.
FIELDS_HIDDEN_BY_MIG = ("utilization.gpu", "utilization.memory", "utilization.encoder", "utilization.decoder")


class XmlInstance(NamedTuple):
    """An instance, and the MiB that are taken of it."""

    instance: DemoInstance
    used_mib: int


class XmlProcess(NamedTuple):
    """A process and the number of its instance."""

    instance_id: str
    pid: int
    memory_mib: int
    program: str


def render_nvidia_log(gpus: Sequence[str]) -> str:
    head = {
        "timestamp": time.strftime("%a %b %d %H:%M:%S %Y"),
        "driver_version": DRIVER_VERSION,
        "cuda_version": "13.1",
        "attached_gpus": str(len(gpus)),
    }
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        f"{render_elements(head, 1)}{''.join(gpus)}</nvidia_smi_log>\n"
    )


def render_gpu_element(fields: Mapping[str, str], parts: Sequence[XmlInstance], processes: Sequence[XmlProcess]) -> str:
    tree = fill_elements(GPU_ELEMENTS, fields)
    tree["mig_devices"] = [
        {"mig_device": build_instance_element(n, part)} for n, part in enumerate(parts)
    ] or "\n\t\t\tNone\n\t\t"
    mask = fields["clocks_event_reasons.active"]
    bits = int(mask, 16) if mask.startswith("0x") else 0
    tree["clocks_event_reasons"] = {
        f"clocks_event_reason_{name}": "Active" if bits & bit else "Not Active"
        for name, bit in CLOCK_REASON_BITS.items()
    }
    if parts:  # of a GPU that is cut they are not told
        tree["remapped_rows"] = NOT_AVAILABLE
    tree["processes"] = [{"process_info": build_process_element(process)} for process in processes]
    return f'\t<gpu id="{fields["pci.bus_id"]}">\n{render_elements(tree, 2)}\t</gpu>\n'


def fill_elements(tree: XmlTree, fields: Mapping[str, str]) -> dict[str, str | XmlTree | list[XmlTree]]:
    elements: dict[str, str | XmlTree | list[XmlTree]] = {}
    for name, inner in tree.items():
        if isinstance(inner, str):
            field, _, unit = inner.partition("|")
            value = fields.get(field, NOT_AVAILABLE if "." in field else field).strip("[]")
            elements[name] = f"{value}{unit}" if value[:1].isdecimal() else value
        elif isinstance(inner, Mapping):
            elements[name] = fill_elements(inner, fields)
    return elements


def build_instance_element(index: int, part: XmlInstance) -> XmlTree:
    instance, used = part
    counts = {"multiprocessor": instance.processors, "copy_engine": instance.engines, "encoder": 0}
    counts |= {"decoder": instance.engines, "ofa": 0, "jpg": instance.engines}
    return {
        "index": str(index),
        "gpu_instance_id": str(instance.instance_id),
        "compute_instance_id": "0",
        "device_attributes": {"shared": {f"{name}_count": str(count) for name, count in counts.items()}},
        "ecc_error_count": {"volatile_count": {"sram_uncorrectable": "0"}},
        "fb_memory_usage": build_memory_element(instance.memory_mib, used, "reserved"),
        "bar1_memory_usage": build_memory_element(instance.bar1_mib, 0),
    }


def build_memory_element(total: int, used: int, *none: str) -> XmlTree:
    amounts = {"total": total, **dict.fromkeys(none, 0), "used": used, "free": total - used}
    return {name: f"{size} MiB" for name, size in amounts.items()}


def build_process_element(process: XmlProcess) -> XmlTree:
    return {
        "gpu_instance_id": process.instance_id,
        "compute_instance_id": NOT_AVAILABLE if process.instance_id == NOT_AVAILABLE else "0",
        "pid": str(process.pid),
        "type": "C",
        "process_name": process.program,
        "used_memory": f"{process.memory_mib} MiB",
    }


def render_elements(tree: XmlTree, depth: int) -> str:
    return "".join(render_element(name, value, depth) for name, value in tree.items())


def render_element(name: str, value: str | XmlTree | list[XmlTree], depth: int) -> str:
    tabs = "\t" * depth
    if isinstance(value, str):
        return f"{tabs}<{name}>{escape(value)}</{name}>\n"
    inner = "".join(render_elements(child, depth + 1) for child in (value if isinstance(value, list) else [value]))
    return f"{tabs}<{name}>\n{inner}{tabs}</{name}>\n"


class DemoGpuProcess(NamedTuple):
    """A process on a GPU or an instance, by the place of that among the units of its machine."""

    gpu: int
    pid: int
    memory_mib: int
    program: str


class PhysicalGpu(NamedTuple):
    """A GPU as it sits in the machine, with the places of what it is, or is cut into, among the units."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str
    unit_positions: tuple[int, ...]
    is_mig: bool


def iterate_physical_gpus(machine: DemoMachine) -> Iterator[PhysicalGpu]:
    parts = tuple(range(len(machine.instances)))
    if parts:
        yield PhysicalGpu(0, build_parent_uuid(machine), parts, is_mig=True)
    for gpu, unit in enumerate(machine.units):
        if unit.vendor == "nvidia" and unit.instance is None:
            yield PhysicalGpu(unit.index, build_gpu_uuid(machine, gpu), (gpu,), is_mig=False)


def render_nvidia_output(
    machine: DemoMachine,
    seen: Sequence[tuple[int, int]],
    gpu_processes: Sequence[DemoGpuProcess],
    lost: set[int],
    now: float,
) -> dict[str, str]:
    rows: list[dict[str, str]] = []
    physical_gpus = list(iterate_physical_gpus(machine))
    for card in physical_gpus:
        fields = build_smi_fields(machine, card, [seen[gpu] for gpu in card.unit_positions], now)
        gone = bool(lost & {*card.unit_positions})
        rows.append(
            {name: value if not gone or name in FIELDS_OF_LOST_GPU else LOST_CELL for name, value in fields.items()}
        )
    whose = {gpu: card for card in physical_gpus for gpu in card.unit_positions}
    apps = [
        f"{whose[entry.gpu].uuid}, {entry.pid}, {entry.memory_mib}, {entry.program}\n"
        for entry in gpu_processes
        if entry.gpu not in lost
    ]
    files = {
        "table": "\n".join([", ".join(rows[0]), *(", ".join(entry.values()) for entry in rows)]) + "\n",
        "apps": "".join(apps),
        "list": "".join(render_gpu_list(machine, physical_gpus)),
    }
    if machine.instances:
        files["xml"] = render_nvidia_log(
            [build_gpu_element(machine, *entry, seen, gpu_processes) for entry in zip(physical_gpus, rows)]
        )
    return files


def render_gpu_list(machine: DemoMachine, physical_gpus: Sequence[PhysicalGpu]) -> Iterator[str]:
    for card in physical_gpus:
        yield f"GPU {card.index}: {machine.units[card.unit_positions[0]].model.name} (UUID: {card.uuid})\n"
        for number, gpu in enumerate(card.unit_positions if card.is_mig else ()):
            part = machine.units[gpu].instance
            profile, uuid = part.profile if part else "", build_gpu_uuid(machine, gpu)
            yield f"  MIG {profile:<11} Device {number:2}: (UUID: {uuid})\n"


def build_gpu_element(
    machine: DemoMachine,
    card: PhysicalGpu,
    fields: dict[str, str],
    seen: Sequence[tuple[int, int]],
    gpu_processes: Sequence[DemoGpuProcess],
) -> str:
    parts = [
        XmlInstance(entry, seen[gpu][1])
        for gpu, entry in zip(card.unit_positions, machine.instances if card.is_mig else ())
    ]
    return render_gpu_element(
        fields,
        parts,
        [build_xml_process(machine, entry) for entry in gpu_processes if entry.gpu in card.unit_positions],
    )


def build_xml_process(machine: DemoMachine, process: DemoGpuProcess) -> XmlProcess:
    part = machine.units[process.gpu].instance
    return XmlProcess(str(part.instance_id) if part else "N/A", process.pid, process.memory_mib, process.program)


def build_smi_fields(
    machine: DemoMachine, card: PhysicalGpu, seen: Sequence[tuple[int, int]], now: float
) -> dict[str, str]:
    model = machine.units[card.unit_positions[0]].model
    used, use = sum(memory for _, memory in seen), seen[0][0]
    if card.is_mig:  # each instance works with its own processors
        busy = [instance.processors * working for instance, (working, _) in zip(machine.instances, seen)]
        use = sum(busy) // sum(instance.processors for instance in machine.instances)
    name = (machine.name, card.unit_positions[0])
    readings = simulate_readings(model, card.uuid, use, used, now, name in OVERHEATING_GPUS)
    fields = {**build_identity_fields(machine, card), **build_reading_fields(machine, card, readings)}
    fields["pcie.link.width.current"] = str(LANE_COUNT // 2 if name in HALF_WIDTH_GPUS else LANE_COUNT)
    return {**fields, **dict.fromkeys(FIELDS_HIDDEN_BY_MIG, NOT_AVAILABLE_CELL)} if card.is_mig else fields


def build_identity_fields(machine: DemoMachine, card: PhysicalGpu) -> dict[str, str]:
    model, first = machine.units[card.unit_positions[0]].model, card.unit_positions[0]
    has_mig = model.compute_capability in ("8.0", "9.0")
    return {
        "index": str(card.index),
        "uuid": card.uuid,
        "name": model.name,
        "pci.bus_id": f"00000000:{0x17 + card.index * 9:02X}:00.0",
        "serial": str(1560_000_000 + machine.number * 16 + card.index) if model.has_ecc else NOT_AVAILABLE_CELL,
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
        "mig.mode.current": ("Enabled" if card.is_mig else "Disabled") if has_mig else NOT_AVAILABLE_CELL,
        "display_active": "Disabled",
        "pcie.link.gen.gpucurrent": "4",
        "pcie.link.width.max": str(LANE_COUNT),
        "ecc.mode.current": "Enabled" if model.has_ecc else NOT_AVAILABLE_CELL,
        "ecc.errors.corrected.volatile.total": "0" if model.has_ecc else NOT_AVAILABLE_CELL,
        "ecc.errors.uncorrected.volatile.total": "0" if model.has_ecc else NOT_AVAILABLE_CELL,
        **dict.fromkeys((*ECC_TOTAL_FIELDS, *REMAPPED_ROW_FIELDS), "0" if model.has_ecc else NOT_AVAILABLE_CELL),
        **dict.fromkeys(
            ("remapped_rows.pending", "remapped_rows.failure"), "No" if model.has_ecc else NOT_AVAILABLE_CELL
        ),
        **MEMORY_ERRORS.get((machine.name, first), {}),
    }


def build_reading_fields(machine: DemoMachine, card: PhysicalGpu, readings: DemoReadings) -> dict[str, str]:
    model, held, use = machine.units[card.unit_positions[0]].model, readings.is_taken, readings.use_percent
    return {
        "memory.used": str(readings.memory_used_mib),
        "memory.free": str(model.memory_mib - readings.memory_used_mib - RESERVED_MIB),
        "utilization.gpu": str(use),
        "utilization.memory": str(readings.memory_use_percent),
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": str(readings.celsius),
        "temperature.memory": str(readings.celsius + 6) if model.has_ecc and not model.has_fan else "N/A",
        "power.draw": f"{readings.watts:.2f}",
        "fan.speed": str(int(30 + 0.4 * use)) if model.has_fan else NOT_AVAILABLE_CELL,
        "pstate": "P0" if held else "P8",
        "clocks.current.graphics": str(readings.clock_mhz),
        "clocks.current.sm": str(readings.clock_mhz),
        "clocks.current.memory": "1593" if held else "405",
        "clocks_event_reasons.active": f"0x{compute_clock_reasons(readings):016X}",
    }


def compute_clock_reasons(readings: DemoReadings) -> int:
    if readings.is_throttled:
        return HEAT_BIT
    return POWER_CAP_BIT if readings.use_percent > 95 else 0 if readings.is_taken else IDLE_BIT
