"""Print what amd-smi and rocm-smi would print on a simulated host."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from site_builder.demo.nvidia_tools import NvidiaToolProcess
from site_builder.demo.scenario import (
    ScenarioGpu,
    ScenarioMachine,
    ScenarioReadings,
    build_scenario_gpu_uuid,
    simulate_readings,
)

DRIVER_VERSION = "6.10.5"
BYTES_PER_MIB = 1024 * 1024
# The driver counts the processors of the machine too, and them first.
FIRST_NODE_ID = 2
# What is on the board: device, part number of the firmware, what it is sold as, and its architecture.
BOARD_IDS = {
    "AMD Instinct MI210": ("0x740f", "113-D67301V-073", "D67301V", "gfx90a"),
    "Radeon RX 7900 XTX": ("0x744c", "113-D7020100-102", "D70201", "gfx1100"),
}
NOT_AVAILABLE = "N/A"
LINE_WIDTH = 85


def render_amd_output(
    machine: ScenarioMachine, seen: Sequence[tuple[int, int]], gpu_processes: Sequence[NvidiaToolProcess], now: float
) -> dict[str, str]:
    """Render the answer to each question to the tool of this machine."""
    sections: dict[str, list[dict[str, object]]] = defaultdict(list)
    names, metrics = {}, {}
    for gpu, unit in enumerate(machine.units):
        if unit.vendor == "amd":
            uuid = build_scenario_gpu_uuid(machine, gpu)
            readings = simulate_readings(unit.model, uuid, *seen[gpu], now)
            if machine.amd_tool == "rocm-smi":
                names[f"card{unit.index}"] = build_rocm_names(unit, uuid)
                metrics[f"card{unit.index}"] = build_rocm_metric(unit, readings)
                continue
            sections["list"].append(build_amd_list_entry(unit, uuid))
            sections["static"].append(build_amd_static(unit, uuid))
            sections["metric"].append(build_amd_metric(unit, readings))
            processes: list[dict[str, object]] = []
            for process in gpu_processes:
                if process.gpu == gpu:
                    none, memory = (build_amd_tool_value(mib * BYTES_PER_MIB, "B") for mib in (0, process.memory_mib))
                    info = {
                        "name": process.program.rpartition("/")[2],
                        "pid": process.pid,
                        "memory_usage": {"gtt_mem": none, "cpu_mem": none, "vram_mem": memory},
                        "mem_usage": memory,
                    }
                    processes.append({"process_info": info})
            nobody = [{"process_info": "No running processes detected"}]
            sections["process"].append({"gpu": unit.index, "process_list": processes or nobody})
    if machine.amd_tool == "rocm-smi":
        mine = [process for process in gpu_processes if machine.units[process.gpu].vendor == "amd"]
        return {
            "rocm-names": json.dumps({**names, "system": {"Driver version": DRIVER_VERSION}}),
            "rocm-metric": json.dumps(metrics),
            "rocm-processes": render_rocm_processes(machine, mine),
        }
    return {
        question: json.dumps({"gpu_data": entries} if question in ("static", "metric") else entries, indent=4) + "\n"
        for question, entries in sections.items()
    }


def build_amd_tool_value(number: float, unit: str) -> dict[str, object]:
    return {"value": number, "unit": unit}


def build_amd_tool_bus_id(unit: ScenarioGpu) -> str:
    return f"0000:{0x83 + 3 * unit.index:02x}:00.0"


def build_amd_list_entry(unit: ScenarioGpu, uuid: str) -> dict[str, object]:
    own, device = uuid[4:], BOARD_IDS[unit.model.name][0][2:]
    return {
        "gpu": unit.index,
        "bdf": build_amd_tool_bus_id(unit),
        "uuid": f"{own[:2]}ff{device}-0000-1000-80{own[2:4]}-{own[4:]}",
        "kfd_id": 1000 + int(own[:4], 16),
        "node_id": FIRST_NODE_ID + unit.index,
        "partition_id": 0,
        "card": f"card{unit.index + 1}",
        "render": f"renderD{128 + unit.index}",
        "hsa_id": FIRST_NODE_ID + unit.index,
        "hip_id": unit.index,
        "hip_uuid": uuid,
    }


def build_amd_static(unit: ScenarioGpu, uuid: str) -> dict[str, object]:
    model, (device, firmware, sold_as, architecture) = unit.model, BOARD_IDS[unit.model.name]
    max_power = build_amd_tool_value(model.max_watts, "W")
    return {
        "gpu": unit.index,
        "asic": {
            "market_name": model.name,
            "vendor_id": "0x1002",
            "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
            "device_id": device,
            "asic_serial": f"0x{uuid[4:].upper()}",
            "target_graphics_version": architecture,
        },
        "bus": {
            "bdf": build_amd_tool_bus_id(unit),
            "max_pcie_width": 16,
            "max_pcie_speed": build_amd_tool_value(16, "GT/s"),
            "slot_type": "PCIE",
        },
        "vbios": {"name": model.name, "part_number": firmware},
        "limit": {"max_power": max_power, "socket_power": max_power},
        "driver": {"name": "amdgpu", "version": DRIVER_VERSION},
        "board": {"model_number": sold_as, "product_serial": NOT_AVAILABLE, "product_name": model.name},
        "vram": {"type": "HBM", "vendor": NOT_AVAILABLE, "size": build_amd_tool_value(model.memory_mib, "MB")},
    }


def build_amd_metric(unit: ScenarioGpu, readings: ScenarioReadings) -> dict[str, object]:
    def with_unit(unit: str, **numbers: float) -> dict[str, object]:
        return {name: build_amd_tool_value(number, unit) for name, number in numbers.items()}

    model, memory_clock = unit.model, 1600 if readings.is_taken else 400
    return {
        "gpu": unit.index,
        "usage": {
            **with_unit("%", gfx_activity=readings.use_percent, umc_activity=readings.memory_use_percent),
            "mm_activity": NOT_AVAILABLE,
        },
        "power": {**with_unit("W", socket_power=round(readings.watts)), "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": with_unit("MHz", clk=readings.clock_mhz, min_clk=500, max_clk=model.max_clock_mhz),
            "mem_0": with_unit("MHz", clk=memory_clock, max_clk=1600),
        },
        "temperature": with_unit("C", edge=readings.celsius, hotspot=readings.celsius + 5, mem=readings.celsius + 3),
        "pcie": {"width": 16, **with_unit("GT/s", speed=16)},
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 0},
        "fan": dict.fromkeys(("speed", "max", "rpm", "usage"), NOT_AVAILABLE),
        "mem_usage": with_unit(
            "MB",
            total_vram=model.memory_mib,
            used_vram=readings.memory_used_mib,
            free_vram=model.memory_mib - readings.memory_used_mib,
        ),
    }


def build_rocm_names(unit: ScenarioGpu, uuid: str) -> dict[str, str]:
    device, firmware, sold_as, architecture = BOARD_IDS[unit.model.name]
    return {
        "Device Name": unit.model.name,
        "Device ID": device,
        "Device Rev": "0xc8",
        "Unique ID": f"0x{uuid[4:]}",
        "VBIOS version": firmware,
        "Max Graphics Package Power (W)": f"{unit.model.max_watts}.0",
        "Serial Number": NOT_AVAILABLE,
        "PCI Bus": build_amd_tool_bus_id(unit).upper(),
        "Card Series": unit.model.name,
        "Card Model": device,
        "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": sold_as,
        "Node ID": str(FIRST_NODE_ID + unit.index),
        "GFX Version": architecture,
    }


def build_rocm_metric(unit: ScenarioGpu, readings: ScenarioReadings) -> dict[str, str]:
    memory_mib, fan_percent = unit.model.memory_mib, int(15 + 0.5 * readings.use_percent)
    return {
        "Temperature (Sensor edge) (C)": f"{readings.celsius}.0",
        "Temperature (Sensor junction) (C)": f"{readings.celsius + 5}.0",
        "Temperature (Sensor memory) (C)": f"{readings.celsius + 3}.0",
        "mclk clock speed:": f"({1249 if readings.is_taken else 96}Mhz)",
        "sclk clock speed:": f"({readings.clock_mhz}Mhz)",
        "pcie clock level": "1 (16.0GT/s x16)",
        "Fan speed (level)": f"{int(2.55 * fan_percent)}",
        "Fan speed (%)": f"{fan_percent}",
        "Average Graphics Package Power (W)": f"{round(readings.watts)}.0",
        "GPU use (%)": str(readings.use_percent),
        "GPU Memory Allocated (VRAM%)": str(100 * readings.memory_used_mib // memory_mib),
        "GPU Memory Read/Write Activity (%)": str(readings.memory_use_percent),
        "VRAM Total Memory (B)": str(memory_mib * BYTES_PER_MIB),
        "VRAM Total Used Memory (B)": str(readings.memory_used_mib * BYTES_PER_MIB),
    }


def render_rocm_processes(machine: ScenarioMachine, gpu_processes: Sequence[NvidiaToolProcess]) -> str:
    processes_by_pid: dict[int, list[NvidiaToolProcess]] = defaultdict(list)
    for process in gpu_processes:
        processes_by_pid[process.pid].append(process)
    rows, gpu_lines = [], []
    for pid, mine in processes_by_pid.items():
        memory = sum(process.memory_mib for process in mine) * BYTES_PER_MIB
        rows.append(f"{pid}\t{mine[0].program.rpartition('/')[2]}\t{len(mine)}\t{memory}\t0\t0")
        numbers = " ".join(str(machine.units[process.gpu].index) for process in mine)
        gpu_lines += [f"PID {pid} is using {len(mine)} DRM device(s):", f"{numbers} "]
    if rows:
        columns = "PID\tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA USED\tCU OCCUPANCY"
        rows = ["KFD process information:", columns, *rows]
    nobody = ["No KFD PIDs currently running"]
    lines = [
        f"{' KFD Processes ':=^{LINE_WIDTH}}",
        *(rows or nobody),
        f"{' GPUs Indexed by PID ':=^{LINE_WIDTH}}",
        *(gpu_lines or nobody),
        "=" * LINE_WIDTH,
        f"{' End of ROCm SMI Log ':=^{LINE_WIDTH}}",
    ]
    return "\n".join([*lines, ""])
