"""Print what nvidia-smi would print on a simulated host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Union
from xml.sax.saxutils import escape

from site_builder.demo.machines import (
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
    """All of it."""
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


def render_gpu_element(told: Mapping[str, str], parts: Sequence[XmlInstance], on: Sequence[XmlProcess]) -> str:
    """One GPU, by its fields."""
    tree = fill_elements(GPU_ELEMENTS, told)
    tree["mig_devices"] = [
        {"mig_device": build_instance_element(n, part)} for n, part in enumerate(parts)
    ] or "\n\t\t\tNone\n\t\t"
    mask = told["clocks_event_reasons.active"]
    bits = int(mask, 16) if mask.startswith("0x") else 0
    tree["clocks_event_reasons"] = {
        f"clocks_event_reason_{name}": "Active" if bits & bit else "Not Active"
        for name, bit in CLOCK_REASON_BITS.items()
    }
    if parts:  # of a GPU that is cut they are not told
        tree["remapped_rows"] = NOT_AVAILABLE
    tree["processes"] = [{"process_info": build_process_element(one)} for one in on]
    return f'\t<gpu id="{told["pci.bus_id"]}">\n{render_elements(tree, 2)}\t</gpu>\n'


def fill_elements(tree: XmlTree, told: Mapping[str, str]) -> dict[str, str | XmlTree | list[XmlTree]]:
    """The elements with the values of their fields; what is no field stands as it is."""
    found: dict[str, str | XmlTree | list[XmlTree]] = {}
    for name, inner in tree.items():
        if isinstance(inner, str):
            field, _, unit = inner.partition("|")
            value = told.get(field, NOT_AVAILABLE if "." in field else field).strip("[]")
            found[name] = f"{value}{unit}" if value[:1].isdecimal() else value
        elif isinstance(inner, Mapping):
            found[name] = fill_elements(inner, told)
    return found


def build_instance_element(index: int, part: XmlInstance) -> XmlTree:
    """One of the parts that a GPU is cut into."""
    one, used = part
    counts = {"multiprocessor": one.processors, "copy_engine": one.engines, "encoder": 0}
    counts |= {"decoder": one.engines, "ofa": 0, "jpg": one.engines}
    return {
        "index": str(index),
        "gpu_instance_id": str(one.instance_id),
        "compute_instance_id": "0",
        "device_attributes": {"shared": {f"{name}_count": str(count) for name, count in counts.items()}},
        "ecc_error_count": {"volatile_count": {"sram_uncorrectable": "0"}},
        "fb_memory_usage": build_memory_element(one.memory_mib, used, "reserved"),
        "bar1_memory_usage": build_memory_element(one.bar1_mib, 0),
    }


def build_memory_element(total: int, used: int, *none: str) -> XmlTree:
    """Of a memory."""
    told = {"total": total, **dict.fromkeys(none, 0), "used": used, "free": total - used}
    return {name: f"{size} MiB" for name, size in told.items()}


def build_process_element(one: XmlProcess) -> XmlTree:
    """A process; it is on the whole GPU where there are no instances."""
    return {
        "gpu_instance_id": one.instance_id,
        "compute_instance_id": NOT_AVAILABLE if one.instance_id == NOT_AVAILABLE else "0",
        "pid": str(one.pid),
        "type": "C",
        "process_name": one.program,
        "used_memory": f"{one.memory_mib} MiB",
    }


def render_elements(tree: XmlTree, depth: int) -> str:
    """As XML."""
    return "".join(render_element(name, value, depth) for name, value in tree.items())


def render_element(name: str, value: str | XmlTree | list[XmlTree], depth: int) -> str:
    """One element, with what is in it."""
    tabs = "\t" * depth
    if isinstance(value, str):
        return f"{tabs}<{name}>{escape(value)}</{name}>\n"
    inner = "".join(render_elements(one, depth + 1) for one in (value if isinstance(value, list) else [value]))
    return f"{tabs}<{name}>\n{inner}{tabs}</{name}>\n"


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
    """All of NVIDIA's, in their order."""
    parts = tuple(range(len(machine.instances)))
    if parts:
        yield PhysicalGpu(0, build_parent_uuid(machine), parts, is_mig=True)
    for gpu, unit in enumerate(machine.units):
        if unit.vendor == "nvidia" and unit.instance is None:
            yield PhysicalGpu(unit.index, build_gpu_uuid(machine, gpu), (gpu,), is_mig=False)


def render_nvidia_output(
    machine: DemoMachine, seen: Sequence[tuple[int, int]], on: Sequence[DemoGpuProcess], lost: set[int], now: float
) -> dict[str, str]:
    """The files of its stand-in; `seen` is the use and the memory of each unit."""
    rows: list[dict[str, str]] = []
    several = list(iterate_physical_gpus(machine))
    for card in several:
        told = build_smi_fields(machine, card, [seen[gpu] for gpu in card.unit_positions], now)
        gone = bool(lost & {*card.unit_positions})
        rows.append(
            {name: value if not gone or name in FIELDS_OF_LOST_GPU else LOST_CELL for name, value in told.items()}
        )
    whose = {gpu: card for card in several for gpu in card.unit_positions}
    apps = [f"{whose[one.gpu].uuid}, {one.pid}, {one.memory_mib}, {one.program}\n" for one in on if one.gpu not in lost]
    files = {
        "table": "\n".join([", ".join(rows[0]), *(", ".join(one.values()) for one in rows)]) + "\n",
        "apps": "".join(apps),
        "list": "".join(render_gpu_list(machine, several)),
    }
    if machine.instances:
        files["xml"] = render_nvidia_log([build_gpu_element(machine, *one, seen, on) for one in zip(several, rows)])
    return files


def render_gpu_list(machine: DemoMachine, several: Sequence[PhysicalGpu]) -> Iterator[str]:
    """What `nvidia-smi -L` prints."""
    for card in several:
        yield f"GPU {card.index}: {machine.units[card.unit_positions[0]].model.name} (UUID: {card.uuid})\n"
        for number, gpu in enumerate(card.unit_positions if card.is_mig else ()):
            part = machine.units[gpu].instance
            yield f"  MIG {part.profile if part else '':<11} Device {number:2}: (UUID: {build_gpu_uuid(machine, gpu)})\n"


def build_gpu_element(
    machine: DemoMachine,
    card: PhysicalGpu,
    told: dict[str, str],
    seen: Sequence[tuple[int, int]],
    on: Sequence[DemoGpuProcess],
) -> str:
    """A GPU in XML, with its instances and the processes on them."""
    parts = [
        XmlInstance(one, seen[gpu][1])
        for gpu, one in zip(card.unit_positions, machine.instances if card.is_mig else ())
    ]
    return render_gpu_element(
        told, parts, [build_xml_process(machine, one) for one in on if one.gpu in card.unit_positions]
    )


def build_xml_process(machine: DemoMachine, one: DemoGpuProcess) -> XmlProcess:
    """A process, with the number of its instance."""
    part = machine.units[one.gpu].instance
    return XmlProcess(str(part.instance_id) if part else "N/A", one.pid, one.memory_mib, one.program)


def build_smi_fields(
    machine: DemoMachine, card: PhysicalGpu, seen: Sequence[tuple[int, int]], now: float
) -> dict[str, str]:
    """A GPU, field by field."""
    model = machine.units[card.unit_positions[0]].model
    used, use = sum(memory for _, memory in seen), seen[0][0]
    if card.is_mig:  # each instance works with its own processors
        busy = [one.processors * working for one, (working, _) in zip(machine.instances, seen)]
        use = sum(busy) // sum(one.processors for one in machine.instances)
    name = (machine.name, card.unit_positions[0])
    told = simulate_readings(model, card.uuid, use, used, now, name in OVERHEATING_GPUS)
    found = {**build_identity_fields(machine, card), **build_reading_fields(machine, card, told)}
    found["pcie.link.width.current"] = str(LANE_COUNT // 2 if name in HALF_WIDTH_GPUS else LANE_COUNT)
    return {**found, **dict.fromkeys(FIELDS_HIDDEN_BY_MIG, NOT_AVAILABLE_CELL)} if card.is_mig else found


def build_identity_fields(machine: DemoMachine, card: PhysicalGpu) -> dict[str, str]:
    """What never changes."""
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


def build_reading_fields(machine: DemoMachine, card: PhysicalGpu, told: DemoReadings) -> dict[str, str]:
    """What it is like at this moment."""
    model, held, use = machine.units[card.unit_positions[0]].model, told.is_taken, told.use_percent
    return {
        "memory.used": str(told.memory_used_mib),
        "memory.free": str(model.memory_mib - told.memory_used_mib - RESERVED_MIB),
        "utilization.gpu": str(use),
        "utilization.memory": str(told.memory_use_percent),
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": str(told.celsius),
        "temperature.memory": str(told.celsius + 6) if model.has_ecc and not model.has_fan else "N/A",
        "power.draw": f"{told.watts:.2f}",
        "fan.speed": str(int(30 + 0.4 * use)) if model.has_fan else NOT_AVAILABLE_CELL,
        "pstate": "P0" if held else "P8",
        "clocks.current.graphics": str(told.clock_mhz),
        "clocks.current.sm": str(told.clock_mhz),
        "clocks.current.memory": "1593" if held else "405",
        "clocks_event_reasons.active": f"0x{compute_clock_reasons(told):016X}",
    }


def compute_clock_reasons(told: DemoReadings) -> int:
    """Why its clocks are not at their highest."""
    if told.is_throttled:
        return HEAT_BIT
    return POWER_CAP_BIT if told.use_percent > 95 else 0 if told.is_taken else IDLE_BIT
