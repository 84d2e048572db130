"""The XML of nvidia-smi for tests: made of a recorded `-q`, which tells the same in other words, or of a few values."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

# Each section of -q, and its lines, as the XML calls them; what is not here is left out.
SECTIONS = {
    "MIG Mode": "mig_mode",
    "PCI": "pci",
    "PCI/GPU Link Info": "pci/pci_gpu_link_info",
    "PCI/GPU Link Info/PCIe Generation": "pci/pci_gpu_link_info/pcie_gen",
    "PCI/GPU Link Info/Link Width": "pci/pci_gpu_link_info/link_widths",
    "Clocks Event Reasons": "clocks_event_reasons",
    "FB Memory Usage": "fb_memory_usage",
    "Utilization": "utilization",
    "ECC Mode": "ecc_mode",
    "ECC Errors/Volatile": "ecc_errors/volatile",
    "ECC Errors/Aggregate": "ecc_errors/aggregate",
    "Retired Pages": "retired_pages",
    "Remapped Rows": "remapped_rows",
    "Temperature": "temperature",
    "GPU Power Readings": "gpu_power_readings",
    "GPU Power Readings/GPU Ceiling Power Limit": "gpu_power_readings/gpu_ceiling_power_limit",
    "GPU Memory Power Readings": "gpu_memory_power_readings",
    "Module Power Readings": "module_power_readings",
    "Clocks": "clocks",
    "Max Clocks": "max_clocks",
    "Fabric": "fabric",
    "Fabric/Health": "fabric/health",
}
ECC = {
    "SRAM Correctable": "sram_correctable",
    "SRAM Uncorrectable Parity": "sram_uncorrectable_parity",
    "SRAM Uncorrectable SEC-DED": "sram_uncorrectable_secded",
    "DRAM Correctable": "dram_correctable",
    "DRAM Uncorrectable": "dram_uncorrectable",
}
POWER = {
    "Average Power Draw": "average_power_draw",
    "Instantaneous Power Draw": "instant_power_draw",
    "Current Power Limit": "current_power_limit",
    "Requested Power Limit": "requested_power_limit",
}
CLOCKS = {"Graphics": "graphics_clock", "SM": "sm_clock", "Memory": "mem_clock"}
LINES = {
    "": {
        "Product Name": "product_name",
        "Persistence Mode": "persistence_mode",
        "Display Active": "display_active",
        "Serial Number": "serial",
        "GPU UUID": "uuid",
        "Minor Number": "minor_number",
        "VBIOS Version": "vbios_version",
        "Fan Speed": "fan_speed",
        "Performance State": "performance_state",
        "Compute Mode": "compute_mode",
        "GPU Recovery Action": "gpu_recovery_action",
        "Remapped Rows": "remapped_rows",
    },
    "mig_mode": {"Current": "current_mig", "Pending": "pending_mig"},
    "pci": {"Bus Id": "pci_bus_id"},
    "pci/pci_gpu_link_info/pcie_gen": {
        "Max": "max_link_gen",
        "Current": "current_link_gen",
        "Device Current": "device_current_link_gen",
    },
    "pci/pci_gpu_link_info/link_widths": {"Max": "max_link_width", "Current": "current_link_width"},
    "clocks_event_reasons": {
        "Idle": "clocks_event_reason_gpu_idle",
        "Applications Clocks Setting": "clocks_event_reason_applications_clocks_setting",
        "SW Power Cap": "clocks_event_reason_sw_power_cap",
        "HW Slowdown": "clocks_event_reason_hw_slowdown",
        "HW Thermal Slowdown": "clocks_event_reason_hw_thermal_slowdown",
        "HW Power Brake Slowdown": "clocks_event_reason_hw_power_brake_slowdown",
        "Sync Boost": "clocks_event_reason_sync_boost",
        "SW Thermal Slowdown": "clocks_event_reason_sw_thermal_slowdown",
        "Display Clock Setting": "clocks_event_reason_display_clocks_setting",
    },
    "fb_memory_usage": {"Total": "total", "Reserved": "reserved", "Used": "used", "Free": "free"},
    "utilization": {"GPU": "gpu_util", "Memory": "memory_util", "Encoder": "encoder_util", "Decoder": "decoder_util"},
    "ecc_mode": {"Current": "current_ecc"},
    "ecc_errors/volatile": ECC,
    "ecc_errors/aggregate": ECC,
    "retired_pages": {
        "Single Bit ECC": "multiple_single_bit_retirement/retired_count",
        "Double Bit ECC": "double_bit_retirement/retired_count",
        "Pending Page Blacklist": "pending_retirement",
    },
    "remapped_rows": {
        "Correctable Error": "remapped_row_corr",
        "Uncorrectable Error": "remapped_row_unc",
        "Pending": "remapped_row_pending",
        "Remapping Failure Occurred": "remapped_row_failure",
    },
    "temperature": {
        "GPU Current Temp": "gpu_temp",
        "GPU T.Limit Temp": "gpu_temp_tlimit",
        "Memory Current Temp": "memory_temp",
    },
    "gpu_power_readings": POWER,
    "gpu_power_readings/gpu_ceiling_power_limit": POWER,
    "gpu_memory_power_readings": POWER,
    "module_power_readings": POWER,
    "clocks": CLOCKS,
    "max_clocks": CLOCKS,
    "fabric": {"State": "state", "Status": "status"},
    "fabric/health": {
        "Summary": "summary",
        "Bandwidth": "bandwidth",
        "Route Recovery in progress": "route_recovery_in_progress",
        "Route Unhealthy": "route_unhealthy",
        "Access Timeout Recovery": "access_timeout_recovery",
        "Incorrect Configuration": "incorrect_configuration",
    },
}
MIG_LINES = {
    "Index": "index",
    "GPU Instance ID": "gpu_instance_id",
    "Compute Instance ID": "compute_instance_id",
    "Shared FB Memory Usage/Total": "fb_memory_usage/total",
    "Shared FB Memory Usage/Used": "fb_memory_usage/used",
    "Shared BAR1 Memory/Used": "bar1_memory_usage/used",
}
PROCESS_LINES = {
    "GPU instance ID": "gpu_instance_id",
    "Compute instance ID": "compute_instance_id",
    "Process ID": "pid",
    "Type": "type",
    "Name": "process_name",
    "Used GPU Memory": "used_memory",
}
Tree = dict[str, "Tree | str"]


def xml_of(query: str) -> str:
    """The XML that the machine would have told of which this is the -q."""
    head, *gpus = re.split(r"^GPU ([0-9A-F:.]+)$", query, flags=re.MULTILINE)
    version = re.search(r"^Driver Version +: (\S+)", head, re.MULTILINE)
    parts = "".join(f'<gpu id="{bus}">\n{gpu_xml(text)}</gpu>\n' for bus, text in zip(gpus[::2], gpus[1::2]))
    return document(parts, version[1] if version else "590.48.01", len(gpus) // 2)


def document(gpus: str, driver: str = "590.48.01", attached: int | None = None) -> str:
    """A whole one with these GPUs."""
    count = gpus.count("<gpu id=") if attached is None else attached
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        f"<timestamp>Tue Jul 14 09:00:44 2026</timestamp>\n<driver_version>{driver}</driver_version>\n"
        f"<cuda_version>13.1</cuda_version>\n<attached_gpus>{count}</attached_gpus>\n{gpus}</nvidia_smi_log>\n"
    )


def gpu_xml(text: str) -> str:
    """What stands in one GPU."""
    tree: Tree = {}
    migs: list[Tree] = []
    processes: list[Tree] = []
    for path, label, value in lines_of(text):
        if path[:1] == ("MIG Device",):
            if label == "Index":
                migs.append({})
            put(migs[-1], MIG_LINES.get("/".join((*path[1:], label))), value)
        elif path[:1] == ("Processes",):
            if label == "GPU instance ID":
                processes.append({})
            put(processes[-1], PROCESS_LINES.get(label), value)
        else:
            section = SECTIONS.get("/".join(path), "") if path else ""
            name = LINES.get(section, {}).get(label) if section or not path else None
            put(tree, f"{section}/{name}".strip("/") if name else None, value)
    parts = "".join(f"<mig_device>\n{written(element)}</mig_device>\n" for element in migs) or "None\n"
    rows = "".join(f"<process_info>\n{written(element)}</process_info>\n" for element in processes)
    return f"{written(tree)}<mig_devices>\n{parts}</mig_devices>\n<processes>\n{rows}</processes>\n"


def lines_of(text: str) -> list[tuple[tuple[str, ...], str, str]]:
    """Each line that has a value, with the sections that it stands in."""
    labelled_values = []
    path: list[tuple[int, str]] = []
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip())
        label, colon, value = (part.strip() for part in line.partition(" : "))
        if not label:
            continue
        while path and path[-1][0] >= depth:
            path.pop()
        if colon:
            labelled_values.append((tuple(name for _, name in path), label, value))
        else:
            path.append((depth, label))
    return labelled_values


def put(tree: Tree, path: str | None, value: str) -> None:
    """Set what stands at a path, the first time that it is told."""
    if not path:
        return
    *sections, name = path.split("/")
    for section in sections:
        inner = tree.setdefault(section, {})
        if isinstance(inner, str):
            return
        tree = inner
    tree.setdefault(name, value)


def written(tree: Tree) -> str:
    """As XML."""
    return "".join(
        f"<{name}>{escape(inner)}</{name}>\n" if isinstance(inner, str) else f"<{name}>\n{written(inner)}</{name}>\n"
        for name, inner in tree.items()
    )


PROCESS = (
    "<process_info><gpu_instance_id>{gi}</gpu_instance_id><compute_instance_id>{ci}</compute_instance_id>"
    "<pid>{pid}</pid><type>{kind}</type><process_name>{name}</process_name><used_memory>{memory}</used_memory>"
    "</process_info>"
)
MIG = (
    "<mig_mode><current_mig>Enabled</current_mig></mig_mode>\n<mig_devices>\n"
    "<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
    "<fb_memory_usage><total>40448 MiB</total><used>26 MiB</used></fb_memory_usage>"
    "<bar1_memory_usage><total>9 MiB</total><used>1 MiB</used></bar1_memory_usage></mig_device>\n"
    "<mig_device><index>1</index><gpu_instance_id>5</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
    "<fb_memory_usage><total>20096 MiB</total><used>17 MiB</used></fb_memory_usage></mig_device>\n</mig_devices>\n"
)
LIST = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-a)\n"
    "  MIG 2g.20gb     Device  1: (UUID: MIG-b)\n"
)


def gpu(n: int, *extra_elements: str, bus: str | None = None, uuid: str | None = None) -> str:
    where = f"00000000:{n:02X}:00.0" if bus is None else bus
    return (
        f'<gpu id="{where}">\n<product_name>NVIDIA H100 80GB HBM3</product_name>\n'
        f"<minor_number>{7 - n % 8}</minor_number>\n"
        f"<uuid>{f'GPU-{n}' if uuid is None else uuid}</uuid>\n"
        "<fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>1024 MiB</used></fb_memory_usage>\n"
        "<utilization><gpu_util>37 %</gpu_util><memory_util>5 %</memory_util></utilization>\n"
        f"<temperature><gpu_temp>41 C</gpu_temp></temperature>\n{''.join(extra_elements)}</gpu>\n"
    )


def running(*process_elements: str) -> str:
    return f"<processes>\n{''.join(process_elements)}\n</processes>\n"


def process(pid: object, kind: str = "C", gi: object = "N/A", ci: object = "N/A", name: str = "python") -> str:
    return PROCESS.format(pid=pid, kind=kind, gi=gi, ci=ci, name=name, memory="512 MiB")
