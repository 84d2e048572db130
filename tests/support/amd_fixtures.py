"""What AMD's tools tell, small and made up, in the forms of several versions."""

from __future__ import annotations

import json
from typing import Any

from site_builder.snapshots.envelope import SnapshotPart, ToolParts

# A GPU of rocm-smi 5.x; the newer names of what changed since.
CARD = {
    "GPU ID": "0x74a1",
    "Unique ID": "0xabc0000000000001",
    "VBIOS version": "113-XYZ-001",
    "Temperature (Sensor edge) (C)": "41.0",
    "Temperature (Sensor junction) (C)": "47.0",
    "Temperature (Sensor memory) (C)": "44.0",
    "sclk clock speed:": "(1500Mhz)",
    "sclk clock level:": "1",
    "mclk clock speed:": "(900Mhz)",
    "pcie clock level": "1 (16.0GT/s x8)",
    "Fan speed (%)": "23",
    "Max Graphics Package Power (W)": "300.0",
    "Average Graphics Package Power (W)": "120.0",
    "GPU use (%)": "37",
    "GPU memory use (%)": "12",
    "Serial Number": "77",
    "PCI Bus": "0000:0C:00.0",
    "VRAM Total Memory (B)": str(64 * 2**30),
    "VRAM Total Used Memory (B)": str(8 * 2**30),
    "Card series": "Instinct MI210",
    "Card model": "0x0c34",
}


def card(number: int = 0, **overrides: object) -> dict[str, object]:
    """One like it."""
    card_fields = {**CARD, "Unique ID": f"0xabc{number + 1:013x}", "PCI Bus": f"0000:{12 + number:02X}:00.0"}
    return {**card_fields, **{key.replace("_", " "): value for key, value in overrides.items()}}


def value(number: object, unit: str) -> dict[str, object]:
    """A reading, as amd-smi has it since ROCm 6."""
    return {"value": number, "unit": unit}


def listed(number: int = 0, **overrides: object) -> dict[str, object]:
    """A GPU of `amd-smi list -e`."""
    digits = f"abc{number + 1:013x}"
    return {
        "gpu": number,
        "bdf": f"0000:{12 + number:02x}:00.0",
        "uuid": f"{digits[:2]}ff74a1-0000-1000-80{digits[2:4]}-{digits[4:]}",
        "kfd_id": 4000 + number,
        "node_id": number + 2,
        "partition_id": 0,
        "hip_id": number,
        "hip_uuid": f"GPU-{digits}",
        **overrides,
    }


def static(number: int = 0, **overrides: object) -> dict[str, object]:
    """A GPU of `amd-smi static`."""
    return {
        "gpu": number,
        "asic": {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1"},
        "bus": {"bdf": f"0000:{12 + number:02x}:00.0", "max_pcie_width": 16},
        "ifwi": {"part_number": "113-XYZ-002", "version": "022.040"},
        "limit": {"max_power": value(750, "W"), "socket_power": value(700, "W")},
        "driver": {"name": "amdgpu", "version": "6.10.5"},
        "board": {"product_serial": "77", "product_name": "AMD Instinct MI300X OAM"},
        "vram": {"type": "HBM", "size": value(196592, "MB")},
        **overrides,
    }


def metric(number: int = 0, **overrides: object) -> dict[str, object]:
    """A GPU of `amd-smi metric`."""
    return {
        "gpu": number,
        "usage": {"gfx_activity": value(37, "%"), "umc_activity": value(12, "%"), "vcn_activity": ["N/A"]},
        "power": {"socket_power": value(140, "W"), "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": {"clk": value(1500, "MHz"), "max_clk": value(2100, "MHz")},
            "mem_0": {"clk": value(900, "MHz")},
        },
        "temperature": {"edge": "N/A", "hotspot": value(47, "C"), "mem": value(44, "C")},
        "pcie": {"width": 16, "speed": value(32, "GT/s")},
        "ecc": {"total_correctable_count": 3, "total_uncorrectable_count": 0},
        "fan": {"speed": "N/A", "usage": "N/A"},
        "mem_usage": {"total_vram": value(196592, "MB"), "used_vram": value(8192, "MB")},
        **overrides,
    }


def running(number: int, *processes: tuple[object, ...]) -> dict[str, object]:
    """The processes of `amd-smi process` on a GPU: name, pid, VRAM in bytes; none is told as a sentence."""
    process_entries: list[dict[str, Any]] = [
        {
            "process_info": {
                "name": name,
                "pid": pid,
                "memory_usage": {"gtt_mem": value(0, "B"), "cpu_mem": value(0, "B"), "vram_mem": value(memory, "B")},
                "mem_usage": value(0, "B"),
            }
        }
        for name, pid, memory in processes
    ]
    return {"gpu": number, "process_list": process_entries or [{"process_info": "No running processes detected"}]}


def part(form: str, tool_output: object, rc: int = 0) -> bytes:
    """An answer, as the part of a snapshot that it becomes."""
    text = tool_output if isinstance(tool_output, str) else json.dumps(tool_output, indent=4)
    return f"# part {form} rc={rc}\n{text}\n".encode()


def build_tool_parts(*outputs: object) -> ToolParts:
    """Return what a tool printed, text or JSON, as its parser takes it: each output answers another query."""
    texts = (output if isinstance(output, str) else json.dumps(output) for output in outputs)
    return {f"query{number}": SnapshotPart(0, text.split("\n")) for number, text in enumerate(texts)}
