"""What amd-smi and rocm-smi tell on a simulated host, as JSON and as text of the forms that they have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from site_builder.demo.cast import Machine, Unit
from site_builder.demo.nvidia_tools import OnGpu
from site_builder.demo.readings import Readings, readings, uuid

DRIVER = "6.10.5"
MIB = 1024 * 1024
# The driver counts the processors of the machine too, and them first.
FIRST_NODE = 2
# What is on the board: device, part number of the firmware, what it is sold as, and its architecture.
BOARDS = {
    "AMD Instinct MI210": ("0x740f", "113-D67301V-073", "D67301V", "gfx90a"),
    "Radeon RX 7900 XTX": ("0x744c", "113-D7020100-102", "D70201", "gfx1100"),
}
NONE = "N/A"
LINE = 85


def answers(machine: Machine, seen: Sequence[tuple[int, int]], on: Sequence[OnGpu], now: float) -> dict[str, str]:
    """The files of their stand-ins; `seen` is the use and the memory of each unit."""
    told: dict[int, Readings] = {}
    for gpu, unit in enumerate(machine.units):
        if unit.maker == "amd":
            told[gpu] = readings(unit.model, uuid(machine, gpu), *seen[gpu], now)
    mine = [one for one in on if one.gpu in told]
    if machine.amd == "rocm-smi":
        cards = {gpu: f"card{machine.units[gpu].index}" for gpu in told}
        system = {"system": {"Driver version": DRIVER}}
        names = {cards[gpu]: rocm_names(machine, gpu) for gpu in told}
        return {
            "rocm-names": json.dumps({**names, **system}),
            "rocm-metric": json.dumps({cards[gpu]: rocm_metric(machine.units[gpu], one) for gpu, one in told.items()}),
            "rocm-processes": rocm_processes(machine, mine),
        }
    return {
        "list": printed([listed(machine, gpu) for gpu in told]),
        "static": printed({"gpu_data": [static(machine, gpu) for gpu in told]}),
        "metric": printed({"gpu_data": [metric(machine.units[gpu], one) for gpu, one in told.items()]}),
        "process": printed([processes(machine.units[gpu], gpu, mine) for gpu in told]),
    }


def printed(told: object) -> str:
    """As amd-smi prints JSON."""
    return f"{json.dumps(told, indent=4)}\n"


def value(number: float, unit: str) -> dict[str, object]:
    """A reading."""
    return {"value": number, "unit": unit}


def bus(unit: Unit) -> str:
    """Where it sits; a mixed host has others before it."""
    return f"0000:{0x83 + 3 * unit.index:02x}:00.0"


def listed(machine: Machine, gpu: int) -> dict[str, object]:
    """A GPU of `amd-smi list -e`."""
    unit, own = machine.units[gpu], uuid(machine, gpu)[4:]
    device = BOARDS[unit.model.name][0][2:]
    return {
        "gpu": unit.index,
        "bdf": bus(unit),
        "uuid": f"{own[:2]}ff{device}-0000-1000-80{own[2:4]}-{own[4:]}",
        "kfd_id": 1000 + int(own[:4], 16),
        "node_id": FIRST_NODE + unit.index,
        "partition_id": 0,
        "card": f"card{unit.index + 1}",
        "render": f"renderD{128 + unit.index}",
        "hsa_id": FIRST_NODE + unit.index,
        "hip_id": unit.index,
        "hip_uuid": uuid(machine, gpu),
    }


def static(machine: Machine, gpu: int) -> dict[str, object]:
    """A GPU of `amd-smi static`."""
    unit = machine.units[gpu]
    model, (device, firmware, sold_as, architecture) = unit.model, BOARDS[unit.model.name]
    return {
        "gpu": unit.index,
        "asic": {
            "market_name": model.name,
            "vendor_id": "0x1002",
            "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
            "device_id": device,
            "asic_serial": f"0x{uuid(machine, gpu)[4:].upper()}",
            "target_graphics_version": architecture,
        },
        "bus": {"bdf": bus(unit), "max_pcie_width": 16, "max_pcie_speed": value(16, "GT/s"), "slot_type": "PCIE"},
        "vbios": {"name": model.name, "part_number": firmware},
        "limit": {"max_power": value(model.watts, "W"), "socket_power": value(model.watts, "W")},
        "driver": {"name": "amdgpu", "version": DRIVER},
        "board": {"model_number": sold_as, "product_serial": NONE, "product_name": model.name},
        "vram": {"type": "HBM", "vendor": NONE, "size": value(model.memory, "MB")},
    }


def metric(unit: Unit, told: Readings) -> dict[str, object]:
    """A GPU of `amd-smi metric`."""
    model = unit.model
    return {
        "gpu": unit.index,
        "usage": {"gfx_activity": value(told.use, "%"), "umc_activity": value(told.access, "%"), "mm_activity": NONE},
        "power": {"socket_power": value(round(told.watts), "W"), "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": {
                "clk": value(told.clock, "MHz"),
                "min_clk": value(500, "MHz"),
                "max_clk": value(model.clock, "MHz"),
            },
            "mem_0": {"clk": value(1600 if told.held else 400, "MHz"), "max_clk": value(1600, "MHz")},
        },
        "temperature": {
            "edge": value(told.heat, "C"),
            "hotspot": value(told.heat + 5, "C"),
            "mem": value(told.heat + 3, "C"),
        },
        "pcie": {"width": 16, "speed": value(16, "GT/s")},
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 0},
        "fan": {"speed": NONE, "max": NONE, "rpm": NONE, "usage": NONE},
        "mem_usage": {
            "total_vram": value(model.memory, "MB"),
            "used_vram": value(told.used, "MB"),
            "free_vram": value(model.memory - told.used, "MB"),
        },
    }


def processes(unit: Unit, gpu: int, on: Sequence[OnGpu]) -> dict[str, object]:
    """A GPU of `amd-smi process`."""
    found: list[dict[str, object]] = []
    for one in on:
        if one.gpu == gpu:
            memory = {"gtt_mem": value(0, "B"), "cpu_mem": value(0, "B"), "vram_mem": value(one.memory * MIB, "B")}
            name = one.program.rpartition("/")[2]
            info = {"name": name, "pid": one.pid, "memory_usage": memory, "mem_usage": value(one.memory * MIB, "B")}
            found.append({"process_info": info})
    return {"gpu": unit.index, "process_list": found or [{"process_info": "No running processes detected"}]}


def rocm_names(machine: Machine, gpu: int) -> dict[str, str]:
    """A card of rocm-smi, by what names it."""
    unit = machine.units[gpu]
    device, firmware, sold_as, architecture = BOARDS[unit.model.name]
    return {
        "Device Name": unit.model.name,
        "Device ID": device,
        "Device Rev": "0xc8",
        "Unique ID": f"0x{uuid(machine, gpu)[4:]}",
        "VBIOS version": firmware,
        "Max Graphics Package Power (W)": f"{unit.model.watts}.0",
        "Serial Number": NONE,
        "PCI Bus": bus(unit).upper(),
        "Card Series": unit.model.name,
        "Card Model": device,
        "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": sold_as,
        "Node ID": str(FIRST_NODE + unit.index),
        "GFX Version": architecture,
    }


def rocm_metric(unit: Unit, told: Readings) -> dict[str, str]:
    """A card of rocm-smi, by its readings."""
    model = unit.model
    return {
        "Temperature (Sensor edge) (C)": f"{told.heat}.0",
        "Temperature (Sensor junction) (C)": f"{told.heat + 5}.0",
        "Temperature (Sensor memory) (C)": f"{told.heat + 3}.0",
        "mclk clock speed:": f"({1249 if told.held else 96}Mhz)",
        "sclk clock speed:": f"({told.clock}Mhz)",
        "pcie clock level": "1 (16.0GT/s x16)",
        "Fan speed (level)": f"{int(2.55 * fan(told))}",
        "Fan speed (%)": f"{fan(told)}",
        "Average Graphics Package Power (W)": f"{round(told.watts)}.0",
        "GPU use (%)": str(told.use),
        "GPU Memory Allocated (VRAM%)": str(100 * told.used // model.memory),
        "GPU Memory Read/Write Activity (%)": str(told.access),
        "VRAM Total Memory (B)": str(model.memory * MIB),
        "VRAM Total Used Memory (B)": str(told.used * MIB),
    }


def fan(told: Readings) -> int:
    """How fast it turns, in percent."""
    return int(15 + 0.5 * told.use)


def rocm_processes(machine: Machine, on: Sequence[OnGpu]) -> str:
    """What `rocm-smi --showpids --showpidgpus` prints."""
    several: Mapping[int, list[OnGpu]] = defaultdict(list)
    for one in on:
        several[one.pid].append(one)
    lines = [f"{' KFD Processes ':=^{LINE}}"]
    if several:
        lines += ["KFD process information:", "PID\tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA USED\tCU OCCUPANCY"]
    for pid, mine in several.items():
        memory = sum(one.memory for one in mine) * MIB
        lines.append(f"{pid}\t{mine[0].program.rpartition('/')[2]}\t{len(mine)}\t{memory}\t0\t0")
    lines += [] if several else ["No KFD PIDs currently running"]
    lines.append(f"{' GPUs Indexed by PID ':=^{LINE}}")
    for pid, mine in several.items():
        numbers = " ".join(str(machine.units[one.gpu].index) for one in mine)
        lines += [f"PID {pid} is using {len(mine)} DRM device(s):", f"{numbers} "]
    lines += [] if several else ["No KFD PIDs currently running"]
    return "\n".join([*lines, "=" * LINE, f"{' End of ROCm SMI Log ':=^{LINE}}", ""])
