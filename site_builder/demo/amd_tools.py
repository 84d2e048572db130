"""What amd-smi and rocm-smi tell on a simulated host, as JSON and as text of the forms that they have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from site_builder.demo.nvidia_tools import DemoGpuProcess
from site_builder.demo.scenario import DemoGpu, DemoMachine, DemoReadings, build_gpu_uuid, simulate_readings

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
    machine: DemoMachine, seen: Sequence[tuple[int, int]], gpu_processes: Sequence[DemoGpuProcess], now: float
) -> dict[str, str]:
    readings_by_gpu: dict[int, DemoReadings] = {}
    for gpu, unit in enumerate(machine.units):
        if unit.vendor == "amd":
            readings_by_gpu[gpu] = simulate_readings(unit.model, build_gpu_uuid(machine, gpu), *seen[gpu], now)
    mine = [value for value in gpu_processes if value.gpu in readings_by_gpu]
    if machine.amd_tool == "rocm-smi":
        cards = {gpu: f"card{machine.units[gpu].index}" for gpu in readings_by_gpu}
        system = {"system": {"Driver version": DRIVER_VERSION}}
        names = {cards[gpu]: build_rocm_names(machine, gpu) for gpu in readings_by_gpu}
        return {
            "rocm-names": json.dumps({**names, **system}),
            "rocm-metric": json.dumps(
                {cards[gpu]: build_rocm_metric(machine.units[gpu], value) for gpu, value in readings_by_gpu.items()}
            ),
            "rocm-processes": render_rocm_processes(machine, mine),
        }
    return {
        "list": format_amd_json([build_amd_list_entry(machine, gpu) for gpu in readings_by_gpu]),
        "static": format_amd_json({"gpu_data": [build_amd_static(machine, gpu) for gpu in readings_by_gpu]}),
        "metric": format_amd_json(
            {"gpu_data": [build_amd_metric(machine.units[gpu], value) for gpu, value in readings_by_gpu.items()]}
        ),
        "process": format_amd_json([build_amd_processes(machine.units[gpu], gpu, mine) for gpu in readings_by_gpu]),
    }


def format_amd_json(content: object) -> str:
    return f"{json.dumps(content, indent=4)}\n"


def build_amd_value(number: float, unit: str) -> dict[str, object]:
    return {"value": number, "unit": unit}


def build_bus_id(unit: DemoGpu) -> str:
    return f"0000:{0x83 + 3 * unit.index:02x}:00.0"


def build_amd_list_entry(machine: DemoMachine, gpu: int) -> dict[str, object]:
    unit, own = machine.units[gpu], build_gpu_uuid(machine, gpu)[4:]
    device = BOARD_IDS[unit.model.name][0][2:]
    return {
        "gpu": unit.index,
        "bdf": build_bus_id(unit),
        "uuid": f"{own[:2]}ff{device}-0000-1000-80{own[2:4]}-{own[4:]}",
        "kfd_id": 1000 + int(own[:4], 16),
        "node_id": FIRST_NODE_ID + unit.index,
        "partition_id": 0,
        "card": f"card{unit.index + 1}",
        "render": f"renderD{128 + unit.index}",
        "hsa_id": FIRST_NODE_ID + unit.index,
        "hip_id": unit.index,
        "hip_uuid": build_gpu_uuid(machine, gpu),
    }


def build_amd_static(machine: DemoMachine, gpu: int) -> dict[str, object]:
    unit = machine.units[gpu]
    model, (device, firmware, sold_as, architecture) = unit.model, BOARD_IDS[unit.model.name]
    return {
        "gpu": unit.index,
        "asic": {
            "market_name": model.name,
            "vendor_id": "0x1002",
            "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
            "device_id": device,
            "asic_serial": f"0x{build_gpu_uuid(machine, gpu)[4:].upper()}",
            "target_graphics_version": architecture,
        },
        "bus": {
            "bdf": build_bus_id(unit),
            "max_pcie_width": 16,
            "max_pcie_speed": build_amd_value(16, "GT/s"),
            "slot_type": "PCIE",
        },
        "vbios": {"name": model.name, "part_number": firmware},
        "limit": {
            "max_power": build_amd_value(model.max_watts, "W"),
            "socket_power": build_amd_value(model.max_watts, "W"),
        },
        "driver": {"name": "amdgpu", "version": DRIVER_VERSION},
        "board": {"model_number": sold_as, "product_serial": NOT_AVAILABLE, "product_name": model.name},
        "vram": {"type": "HBM", "vendor": NOT_AVAILABLE, "size": build_amd_value(model.memory_mib, "MB")},
    }


def build_amd_metric(unit: DemoGpu, readings: DemoReadings) -> dict[str, object]:
    model = unit.model
    return {
        "gpu": unit.index,
        "usage": {
            "gfx_activity": build_amd_value(readings.use_percent, "%"),
            "umc_activity": build_amd_value(readings.memory_use_percent, "%"),
            "mm_activity": NOT_AVAILABLE,
        },
        "power": {"socket_power": build_amd_value(round(readings.watts), "W"), "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": {
                "clk": build_amd_value(readings.clock_mhz, "MHz"),
                "min_clk": build_amd_value(500, "MHz"),
                "max_clk": build_amd_value(model.max_clock_mhz, "MHz"),
            },
            "mem_0": {
                "clk": build_amd_value(1600 if readings.is_taken else 400, "MHz"),
                "max_clk": build_amd_value(1600, "MHz"),
            },
        },
        "temperature": {
            "edge": build_amd_value(readings.celsius, "C"),
            "hotspot": build_amd_value(readings.celsius + 5, "C"),
            "mem": build_amd_value(readings.celsius + 3, "C"),
        },
        "pcie": {"width": 16, "speed": build_amd_value(16, "GT/s")},
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 0},
        "fan": {"speed": NOT_AVAILABLE, "max": NOT_AVAILABLE, "rpm": NOT_AVAILABLE, "usage": NOT_AVAILABLE},
        "mem_usage": {
            "total_vram": build_amd_value(model.memory_mib, "MB"),
            "used_vram": build_amd_value(readings.memory_used_mib, "MB"),
            "free_vram": build_amd_value(model.memory_mib - readings.memory_used_mib, "MB"),
        },
    }


def build_amd_processes(unit: DemoGpu, gpu: int, gpu_processes: Sequence[DemoGpuProcess]) -> dict[str, object]:
    entries: list[dict[str, object]] = []
    for process in gpu_processes:
        if process.gpu == gpu:
            memory = {
                "gtt_mem": build_amd_value(0, "B"),
                "cpu_mem": build_amd_value(0, "B"),
                "vram_mem": build_amd_value(process.memory_mib * BYTES_PER_MIB, "B"),
            }
            name = process.program.rpartition("/")[2]
            info = {
                "name": name,
                "pid": process.pid,
                "memory_usage": memory,
                "mem_usage": build_amd_value(process.memory_mib * BYTES_PER_MIB, "B"),
            }
            entries.append({"process_info": info})
    return {"gpu": unit.index, "process_list": entries or [{"process_info": "No running processes detected"}]}


def build_rocm_names(machine: DemoMachine, gpu: int) -> dict[str, str]:
    unit = machine.units[gpu]
    device, firmware, sold_as, architecture = BOARD_IDS[unit.model.name]
    return {
        "Device Name": unit.model.name,
        "Device ID": device,
        "Device Rev": "0xc8",
        "Unique ID": f"0x{build_gpu_uuid(machine, gpu)[4:]}",
        "VBIOS version": firmware,
        "Max Graphics Package Power (W)": f"{unit.model.max_watts}.0",
        "Serial Number": NOT_AVAILABLE,
        "PCI Bus": build_bus_id(unit).upper(),
        "Card Series": unit.model.name,
        "Card Model": device,
        "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": sold_as,
        "Node ID": str(FIRST_NODE_ID + unit.index),
        "GFX Version": architecture,
    }


def build_rocm_metric(unit: DemoGpu, readings: DemoReadings) -> dict[str, str]:
    model = unit.model
    return {
        "Temperature (Sensor edge) (C)": f"{readings.celsius}.0",
        "Temperature (Sensor junction) (C)": f"{readings.celsius + 5}.0",
        "Temperature (Sensor memory) (C)": f"{readings.celsius + 3}.0",
        "mclk clock speed:": f"({1249 if readings.is_taken else 96}Mhz)",
        "sclk clock speed:": f"({readings.clock_mhz}Mhz)",
        "pcie clock level": "1 (16.0GT/s x16)",
        "Fan speed (level)": f"{int(2.55 * compute_fan_percent(readings))}",
        "Fan speed (%)": f"{compute_fan_percent(readings)}",
        "Average Graphics Package Power (W)": f"{round(readings.watts)}.0",
        "GPU use (%)": str(readings.use_percent),
        "GPU Memory Allocated (VRAM%)": str(100 * readings.memory_used_mib // model.memory_mib),
        "GPU Memory Read/Write Activity (%)": str(readings.memory_use_percent),
        "VRAM Total Memory (B)": str(model.memory_mib * BYTES_PER_MIB),
        "VRAM Total Used Memory (B)": str(readings.memory_used_mib * BYTES_PER_MIB),
    }


def compute_fan_percent(readings: DemoReadings) -> int:
    return int(15 + 0.5 * readings.use_percent)


def render_rocm_processes(machine: DemoMachine, gpu_processes: Sequence[DemoGpuProcess]) -> str:
    processes_by_pid: Mapping[int, list[DemoGpuProcess]] = defaultdict(list)
    for process in gpu_processes:
        processes_by_pid[process.pid].append(process)
    lines = [f"{' KFD Processes ':=^{LINE_WIDTH}}"]
    if processes_by_pid:
        lines += ["KFD process information:", "PID\tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA USED\tCU OCCUPANCY"]
    for pid, mine in processes_by_pid.items():
        memory = sum(process.memory_mib for process in mine) * BYTES_PER_MIB
        lines.append(f"{pid}\t{mine[0].program.rpartition('/')[2]}\t{len(mine)}\t{memory}\t0\t0")
    lines += [] if processes_by_pid else ["No KFD PIDs currently running"]
    lines.append(f"{' GPUs Indexed by PID ':=^{LINE_WIDTH}}")
    for pid, mine in processes_by_pid.items():
        numbers = " ".join(str(machine.units[process.gpu].index) for process in mine)
        lines += [f"PID {pid} is using {len(mine)} DRM device(s):", f"{numbers} "]
    lines += [] if processes_by_pid else ["No KFD PIDs currently running"]
    return "\n".join([*lines, "=" * LINE_WIDTH, f"{' End of ROCm SMI Log ':=^{LINE_WIDTH}}", ""])
