"""What `nvidia-smi -q -x` prints on a simulated host: elements that the real one has, of the fields that it tells."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Union
from xml.sax.saxutils import escape

from site_builder.demo.cast import Instance
from site_builder.demo.readings import DRIVER

Tree = Mapping[str, Union[str, "Tree", "list[Tree]"]]
REASONS = {
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
NOT_TOLD = "N/A"
LINK = "pcie.link.gen.gpucurrent"
ECC = {
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
GPU: Tree = {
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
            "pcie_gen": {"max_link_gen": LINK, "current_link_gen": LINK, "device_current_link_gen": LINK},
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
    "ecc_errors": ECC,
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


class Part(NamedTuple):
    """An instance, and the MiB that are taken of it."""

    instance: Instance
    used: int


class Inside(NamedTuple):
    """A process and the number of its instance."""

    instance: str
    pid: int
    memory: int
    program: str


def log(gpus: Sequence[str]) -> str:
    """All of it."""
    head = {
        "timestamp": time.strftime("%a %b %d %H:%M:%S %Y"),
        "driver_version": DRIVER,
        "cuda_version": "13.1",
        "attached_gpus": str(len(gpus)),
    }
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        f"{written(head, 1)}{''.join(gpus)}</nvidia_smi_log>\n"
    )


def gpu(told: Mapping[str, str], parts: Sequence[Part], on: Sequence[Inside]) -> str:
    """One GPU, by its fields."""
    tree = filled(GPU, told)
    tree["mig_devices"] = [{"mig_device": instance(n, part)} for n, part in enumerate(parts)] or "\n\t\t\tNone\n\t\t"
    mask = told["clocks_event_reasons.active"]
    bits = int(mask, 16) if mask.startswith("0x") else 0
    tree["clocks_event_reasons"] = {
        f"clocks_event_reason_{name}": "Active" if bits & bit else "Not Active" for name, bit in REASONS.items()
    }
    if parts:  # of a GPU that is cut they are not told
        tree["remapped_rows"] = NOT_TOLD
    tree["processes"] = [{"process_info": process(one)} for one in on]
    return f'\t<gpu id="{told["pci.bus_id"]}">\n{written(tree, 2)}\t</gpu>\n'


def filled(tree: Tree, told: Mapping[str, str]) -> dict[str, str | Tree | list[Tree]]:
    """The elements with the values of their fields; what is no field stands as it is."""
    found: dict[str, str | Tree | list[Tree]] = {}
    for name, inner in tree.items():
        if isinstance(inner, str):
            field, _, unit = inner.partition("|")
            value = told.get(field, NOT_TOLD if "." in field else field).strip("[]")
            found[name] = f"{value}{unit}" if value[:1].isdecimal() else value
        elif isinstance(inner, Mapping):
            found[name] = filled(inner, told)
    return found


def instance(index: int, part: Part) -> Tree:
    """One of the parts that a GPU is cut into."""
    one, used = part
    counts = {"multiprocessor": one.processors, "copy_engine": one.engines, "encoder": 0}
    counts |= {"decoder": one.engines, "ofa": 0, "jpg": one.engines}
    return {
        "index": str(index),
        "gpu_instance_id": str(one.number),
        "compute_instance_id": "0",
        "device_attributes": {"shared": {f"{name}_count": str(count) for name, count in counts.items()}},
        "ecc_error_count": {"volatile_count": {"sram_uncorrectable": "0"}},
        "fb_memory_usage": sizes(one.memory, used, "reserved"),
        "bar1_memory_usage": sizes(one.window, 0),
    }


def sizes(total: int, used: int, *none: str) -> Tree:
    """Of a memory."""
    told = {"total": total, **dict.fromkeys(none, 0), "used": used, "free": total - used}
    return {name: f"{size} MiB" for name, size in told.items()}


def process(one: Inside) -> Tree:
    """A process; it is on the whole GPU where there are no instances."""
    return {
        "gpu_instance_id": one.instance,
        "compute_instance_id": NOT_TOLD if one.instance == NOT_TOLD else "0",
        "pid": str(one.pid),
        "type": "C",
        "process_name": one.program,
        "used_memory": f"{one.memory} MiB",
    }


def written(tree: Tree, depth: int) -> str:
    """As XML."""
    return "".join(element(name, value, depth) for name, value in tree.items())


def element(name: str, value: str | Tree | list[Tree], depth: int) -> str:
    """One element, with what is in it."""
    tabs = "\t" * depth
    if isinstance(value, str):
        return f"{tabs}<{name}>{escape(value)}</{name}>\n"
    inner = "".join(written(one, depth + 1) for one in (value if isinstance(value, list) else [value]))
    return f"{tabs}<{name}>\n{inner}{tabs}</{name}>\n"
