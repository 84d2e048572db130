"""Machines with NVIDIA's GPUs, one for each family of drivers and kind of device; make_nvidia_samples.py prints them.

Facts of the tool are which field a driver has, its unit, and the word for a value that is missing. Every value is
invented: UUIDs, serial numbers, temperatures, people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEVER = 10_000
ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")
DEPRECATED = "Requested functionality has been deprecated"
# The fields that gpuboard queries: name, unit, the first driver that has it, and the first that has it no more. Where a
# field came at some unknown driver between two lists, the drivers from 535 on have it.
FIELDS = (
    *(("index", "", 0, NEVER), ("uuid", "", 0, NEVER), ("name", "", 0, NEVER), ("pci.bus_id", "", 0, NEVER)),
    *(("serial", "", 0, NEVER), ("driver_version", "", 0, NEVER), ("vbios_version", "", 0, NEVER)),
    *(("compute_cap", "", 510, NEVER), ("memory.total", "MiB", 0, NEVER), ("memory.used", "MiB", 0, NEVER)),
    *(("memory.free", "MiB", 0, NEVER), ("memory.reserved", "MiB", 510, NEVER)),
    *(("utilization.gpu", "%", 0, NEVER), ("utilization.memory", "%", 0, NEVER)),
    *(("utilization.encoder", "%", 535, NEVER), ("utilization.decoder", "%", 535, NEVER)),
    *(("temperature.gpu", "", 0, NEVER), ("temperature.gpu.tlimit", "", 535, NEVER)),
    *(("temperature.memory", "", 418, NEVER), ("power.draw", "W", 0, NEVER), ("power.limit", "W", 0, NEVER)),
    *(("enforced.power.limit", "W", 0, NEVER), ("fan.speed", "%", 0, NEVER), ("pstate", "", 0, NEVER)),
    *(("clocks.current.graphics", "MHz", 0, NEVER), ("clocks.current.sm", "MHz", 0, NEVER)),
    *(("clocks.current.memory", "MHz", 0, NEVER), ("clocks.max.sm", "MHz", 0, NEVER)),
    *(("persistence_mode", "", 0, NEVER), ("compute_mode", "", 0, NEVER), ("mig.mode.current", "", 450, NEVER)),
    *(("display_active", "", 0, NEVER), ("pcie.link.gen.gpucurrent", "", 535, NEVER)),
    *(("pcie.link.gen.current", "", 0, 535), ("pcie.link.width.current", "", 0, NEVER)),
    *(("pcie.link.width.max", "", 0, NEVER), ("ecc.mode.current", "", 0, NEVER)),
    *(("ecc.errors.corrected.volatile.total", "", 0, NEVER), ("ecc.errors.uncorrected.volatile.total", "", 0, NEVER)),
    *(("ecc.errors.corrected.aggregate.total", "", 0, NEVER), ("ecc.errors.uncorrected.aggregate.total", "", 0, NEVER)),
    *(("remapped_rows.correctable", "", 535, NEVER), ("remapped_rows.uncorrectable", "", 535, NEVER)),
    *(("remapped_rows.pending", "", 535, NEVER), ("remapped_rows.failure", "", 535, NEVER)),
    *(("retired_pages.single_bit_ecc.count", "", 0, NEVER), ("retired_pages.double_bit.count", "", 0, NEVER)),
    *(("retired_pages.pending", "", 0, NEVER), ("clocks_event_reasons.active", "", 535, NEVER)),
    *(("clocks_throttle_reasons.active", "", 0, 535), ("gpu_recovery_action", "", 570, NEVER)),
    *(("reset_status.reset_required", "", 535, 590), ("reset_status.drain_and_reset_recommended", "", 535, 590)),
    *(("fabric.state", "", 535, NEVER), ("fabric.status", "", 535, NEVER)),
    *(("fabric.health.summary", "", 580, NEVER), ("fabric.health.bandwidth", "", 570, NEVER)),
    *(("fabric.health.route_recovery_in_progress", "", 570, NEVER), ("fabric.health.route_unhealthy", "", 570, NEVER)),
    *(("fabric.health.access_timeout_recovery", "", 570, NEVER),),
    *(("fabric.health.incorrect_configuration", "", 580, NEVER),),
)
# What a GPU of a healthy fabric reports; before Blackwell it reports no health.
FABRIC = {"fabric.state": "Completed", "fabric.status": "Success"}
FABRIC_HEALTH = {
    **{"fabric.health.summary": "Healthy", "fabric.health.bandwidth": "Full"},
    **dict.fromkeys(("fabric.health.route_recovery_in_progress", "fabric.health.route_unhealthy"), "False"),
    **{"fabric.health.access_timeout_recovery": "False", "fabric.health.incorrect_configuration": "None"},
}
# Fields that `--help-query-gpu` lists beside these, with the drivers as above.
OTHER_FIELDS = (
    *(("timestamp", 0, NEVER), ("count", 0, NEVER), ("kmd_version", 595, NEVER), ("pci.domain", 0, NEVER)),
    *(("pcie.link.gen.max", 0, NEVER), ("pcie.link.gen.current", 535, NEVER), ("display_mode", 0, NEVER)),
    *(("power.management", 0, NEVER), ("power.default_limit", 0, NEVER), ("power.draw.average", 535, NEVER)),
    *(("power.draw.instant", 535, NEVER), ("mig.mode.pending", 450, NEVER), ("fabric.cliqueId", 570, NEVER)),
    *(("clocks_event_reasons_counters.sw_power_cap", 575, NEVER), ("platform.module_id", 570, NEVER)),
)
ALIASES = {
    **{"name": "gpu_name", "uuid": "gpu_uuid", "serial": "gpu_serial", "pci.bus_id": "gpu_bus_id"},
    **{"clocks.current.graphics": "clocks.gr", "clocks.current.sm": "clocks.sm", "clocks.current.memory": "clocks.mem"},
    "clocks_event_reasons.active": "clocks_throttle_reasons.active",
}
# The bits of the clocks' reasons: the name in XML, and the first driver that has it.
CLOCK_REASONS = (
    *(("gpu_idle", 0x1, 0), ("applications_clocks_setting", 0x2, 0), ("sw_power_cap", 0x4, 0), ("hw_slowdown", 0x8, 0)),
    *(("hw_thermal_slowdown", 0x40, 384), ("hw_power_brake_slowdown", 0x80, 384), ("sync_boost", 0x10, 384)),
    *(("sw_thermal_slowdown", 0x20, 384), ("display_clocks_setting", 0x100, 384)),
)


@dataclass(frozen=True)
class Card:
    name: str
    architecture: str
    memory: int
    power_limit: int
    has_fan: bool = False
    has_ecc: bool = True
    lanes: int = 16
    fabric: Mapping[str, str] = field(default_factory=dict)

    @property
    def age(self) -> int:
        return ARCHITECTURES.index(self.architecture)


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    memory: str
    kind: str = "C"
    instance: str = "N/A"  # the GPU instance


@dataclass(frozen=True)
class Instance:
    gpu_instance: int
    profile: str
    memory: int
    used: int


@dataclass(frozen=True)
class Load:
    """What a GPU does, its processes, and the cells in which it differs from one that is well."""

    used: int = 3
    use: int = 0
    processes: tuple[Process, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Machine:
    name: str
    driver: str
    card: Card
    loads: tuple[Load, ...]
    has_units: bool = False
    forms: str = "csv xml"
    line_end: str = "\n"

    @property
    def branch(self) -> int:
        return int(self.driver.partition(".")[0])

    @property
    def missing(self) -> str:
        """The word for a value that there is none of, in CSV."""
        return "[Not Supported]" if self.branch < 450 else "[N/A]"

    def uuid(self, number: int) -> str:
        return f"GPU-00000000-0000-0000-{self.branch:04d}-{number + 1:012d}"

    def bus_id(self, number: int) -> str:
        domain = "0000" if self.branch < 384 else "00000000"
        return f"{domain}:{(number + 1) * 0x11:02X}:00.0"


def python(pid: int, memory: int, name: str = "/home/alice/venv/bin/python", **fields: str) -> Process:
    return Process(pid, name, f"{memory} MiB", **fields)


def every(names: str, cell: str) -> dict[str, str]:
    """Return the same cell for all fields that begin with one of these names."""
    return {name: cell for name, *_ in FIELDS if name.startswith(tuple(names.split()))}


IDLE = Load()
BUSY = Load(used=4100, use=97, processes=(python(4242, 4090),))
ALL_READINGS = "memory utilization temperature power enforced fan clocks pcie ecc remapped retired reset gpu_recovery"
GUEST_CELLS = every("fan power enforced pcie remapped retired serial", "[N/A]")
UNIFIED_MEMORY = every("memory", "[N/A]")

MACHINES = (
    Machine("331-k20", "331.62", Card("Tesla K20m", "Kepler", 4799, 225), (IDLE, BUSY), forms="xml"),
    Machine("352-k80", "352.99", Card("Tesla K80", "Kepler", 11519, 149), (IDLE, BUSY)),
    Machine("367-gtx-1080", "367.57", Card("GeForce GTX 1080", "Pascal", 8113, 180, True, False), (IDLE, BUSY), True),
    Machine("375-titan-x", "375.66", Card("TITAN X (Pascal)", "Pascal", 12189, 250, True, False), (IDLE,)),
    Machine("384-p100", "384.81", Card("Tesla P100-PCIE-16GB", "Pascal", 16276, 250), (IDLE, BUSY)),
    Machine(
        "390-gtx-1050",
        "390.87",
        Card("GeForce GTX 1050 Ti", "Pascal", 4040, 75, True, False),
        (
            Load(
                used=380,
                processes=(Process(1500, "/usr/lib/xorg/Xorg", "370 MiB", "G"),),
                cells=every("power.draw", ""),
            ),
        ),
    ),
    Machine("410-v100", "410.79", Card("Tesla V100-SXM2-16GB", "Volta", 16130, 300), (IDLE, BUSY), True),
    Machine(
        "418-rtx-2080-ti",
        "418.56",
        Card("GeForce RTX 2080 Ti", "Turing", 10989, 250, True, False),
        (BUSY, Load(used=10700, use=0, processes=(python(5151, 10690, "[Not Found]"),))),
    ),
    Machine("430-t4", "430.50", Card("Tesla T4", "Turing", 15079, 70), (IDLE,)),
    Machine("450-a100", "450.80", Card("A100-SXM4-40GB", "Ampere", 40536, 400), (IDLE, BUSY), True),
    Machine("465-rtx-6000", "465.27", Card("Quadro RTX 6000", "Turing", 22698, 260, True), (IDLE, BUSY)),
    Machine("470-rtx-3090", "470.82", Card("NVIDIA GeForce RTX 3090", "Ampere", 24268, 350, True, False), (IDLE, BUSY)),
    Machine("510-a40", "510.47", Card("NVIDIA A40", "Ampere", 46068, 300), (IDLE, BUSY)),
    Machine(
        "525-rtx-a6000",
        "525.125",
        Card("NVIDIA RTX A6000", "Ampere", 49140, 300, True),
        (
            IDLE,
            Load(
                used=40000,
                use=99,
                processes=(python(4242, 39990),),
                cells={"clocks_throttle_reasons.active": "0x0000000000000068", "temperature.gpu": "88"},
            ),
        ),
    ),
    Machine("535-l40s", "535.104", Card("NVIDIA L40S", "Ada", 46068, 350), (IDLE, BUSY), True),
    Machine(
        "550-h100",
        "550.54",
        Card("NVIDIA H100 80GB HBM3", "Hopper", 81559, 700, fabric=FABRIC),
        (
            IDLE,
            BUSY,
            Load(cells={"ecc.errors.uncorrected.volatile.total": "2", "ecc.errors.uncorrected.aggregate.total": "2"}),
            Load(cells={"remapped_rows.pending": "Yes", "remapped_rows.uncorrectable": "1"}),
        ),
    ),
    Machine(
        "570-rtx-5090",
        "570.124",
        Card("NVIDIA GeForce RTX 5090", "Blackwell", 32607, 575, True, False),
        (IDLE, Load(cells={"gpu_recovery_action": "Reset"})),
    ),
    Machine("580-b200", "580.65", Card("NVIDIA B200", "Blackwell", 183359, 1000, fabric=FABRIC), (IDLE, BUSY)),
    Machine(
        "580-gb300-fabric",
        "580.173",
        Card("NVIDIA GB300", "Blackwell", 284208, 1400, fabric={**FABRIC, **FABRIC_HEALTH}),
        (
            IDLE,
            Load(cells={"fabric.health.summary": "Limited Capacity", "fabric.health.bandwidth": "Degraded"}),
            Load(
                cells={
                    "fabric.health.summary": "Unhealthy",
                    "fabric.health.incorrect_configuration": "Insufficient Nvlinks",
                }
            ),
            Load(cells={"fabric.state": "In Progress", "fabric.status": "N/A", **dict.fromkeys(FABRIC_HEALTH, "N/A")}),
            Load(cells={"fabric.status": "Insufficient Resources"}),
            Load(
                used=4100,
                use=97,
                processes=(python(4242, 4090),),
                cells={"fabric.health.summary": "Unhealthy", "fabric.health.route_unhealthy": "True"},
            ),
            Load(cells={"fabric.health.summary": "Tired"}),
        ),
    ),
    Machine(
        "590-h200",
        "590.48",
        Card("NVIDIA H200", "Hopper", 143771, 700, fabric=FABRIC),
        (IDLE, BUSY, Load(cells={"gpu_recovery_action": "Drain and Reset"})),
    ),
    Machine(
        "595-rtx-pro-6000",
        "595.71",
        Card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "Blackwell", 97887, 600, True),
        (Load(cells={"persistence_mode": "Disabled"}), Load(used=240, cells={"persistence_mode": "Disabled"})),
    ),
    Machine("610-rtx-4000", "610.57", Card("NVIDIA RTX 4000 SFF Ada Generation", "Ada", 20475, 70, True), (IDLE, BUSY)),
    # Devices of other kinds
    Machine(
        "540-jetson-orin",
        "540.4",
        Card("Orin (nvgpu)", "Ampere", 0, 0, False, False),
        (Load(cells={**every(ALL_READINGS, "[N/A]"), **every("serial vbios pstate", "[N/A]")}),),
    ),
    Machine(
        "580-gb10",
        "580.95",
        Card("NVIDIA GB10", "Blackwell", 0, 0, False, False),
        (
            Load(
                use=94,
                processes=(python(4242, 50176),),
                cells={**UNIFIED_MEMORY, **every("power.limit enforced", "[N/A]"), "power.draw": "38.50"},
            ),
        ),
    ),
    Machine(
        "580-gb10-idle",
        "580.95",
        Card("NVIDIA GB10", "Blackwell", 0, 0, False, False),
        (Load(cells={**UNIFIED_MEMORY, **every("power.limit enforced", "[N/A]"), "power.draw": "4.10"}),),
    ),
    Machine(
        "590-h100-mig",
        "590.48",
        Card("NVIDIA H100 80GB HBM3", "Hopper", 81559, 700, fabric=FABRIC),
        (
            Load(
                used=11120,
                processes=(python(4242, 11060, instance="2"), python(4243, 9, "bash", kind="G", instance="3")),
                cells={"mig.mode.current": "Enabled", **every("utilization fan", "[N/A]")},
                instances=(Instance(2, "3g.40gb", 40000, 11074), Instance(3, "2g.20gb", 20000, 17)),
            ),
            IDLE,
            Load(cells={"mig.mode.current": "Enabled", **every("utilization fan", "[N/A]")}),
        ),
    ),
    Machine(
        "535-vgpu-guest",
        "535.129",
        Card("NVIDIA A100-10C", "Ampere", 10240, 0, False, False),
        (
            Load(
                used=707,
                cells={**GUEST_CELLS, "clocks_event_reasons.active": "[N/A]", "vbios_version": "00.00.00.00.00"},
            ),
        ),
    ),
    Machine(
        "560-wsl",
        "560.35",
        Card("NVIDIA GeForce RTX 4090", "Ada", 24564, 450, True, False),
        (Load(used=2900, use=55, processes=(Process(4300, "[Not Found]", "[N/A]"),)),),
    ),
    Machine(
        "551-windows",
        "551.86",
        Card("NVIDIA GeForce RTX 3080", "Ampere", 10240, 320, True, False),
        (
            Load(
                used=1450,
                use=3,
                processes=(
                    Process(4, "[Insufficient Permissions]", "[N/A]", "C+G"),
                    Process(4301, "C:\\Windows\\explorer.exe", "[N/A]", "C+G"),
                    Process(4302, "C:\\Program Files\\Render Farm, Ltd\\render.exe", "[N/A]", "C+G"),
                    Process(4303, "", "[N/A]", "C+G"),
                ),
                cells={"persistence_mode": "[N/A]"},
            ),
        ),
        line_end="\r\n",
    ),
)


def fields_of(branch: int) -> list[tuple[str, str]]:
    """Return the names and units of the fields that this driver answers."""
    return [(name, unit) for name, unit, first, end in FIELDS if first <= branch < end]


def cells_of(machine: Machine, number: int) -> dict[str, str]:
    """Return the cells of a GPU by field, without units."""
    card, load, missing = machine.card, machine.loads[number], machine.missing
    reserved = 500 if machine.branch >= 510 else 0
    ecc = "0" if card.has_ecc else missing
    remaps = "0" if card.has_ecc and card.age >= ARCHITECTURES.index("Ampere") else "[N/A]"
    retires = "0" if card.has_ecc and card.age < ARCHITECTURES.index("Ampere") else missing
    is_busy = load.use > 0
    clock = "1410" if is_busy else "210"
    reasons = f"0x{4 if is_busy else 1:016X}"
    cells = {
        "index": str(number),
        "uuid": machine.uuid(number),
        "name": card.name,
        "pci.bus_id": machine.bus_id(number),
        "serial": f"{number + 1:013d}" if card.has_ecc else missing,
        "driver_version": machine.driver,
        "vbios_version": "00.00.00.00.01",
        "compute_cap": f"{card.age + 2}.0",
        "memory.total": str(card.memory),
        "memory.used": str(load.used),
        "memory.free": str(card.memory - load.used - reserved),
        "memory.reserved": str(reserved),
        "utilization.gpu": str(load.use),
        "utilization.memory": str(load.use // 3),
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": "66" if is_busy else "31",
        "temperature.gpu.tlimit": "24" if card.age >= ARCHITECTURES.index("Ada") else "[N/A]",
        "temperature.memory": "58" if card.architecture == "Hopper" else "N/A",
        "power.draw": f"{card.power_limit * (0.9 if is_busy else 0.1):.2f}",
        "power.limit": f"{card.power_limit}.00",
        "enforced.power.limit": f"{card.power_limit}.00",
        "fan.speed": ("61" if is_busy else "30") if card.has_fan else missing,
        "pstate": "P0" if is_busy or card.has_ecc else "P8",
        "clocks.current.graphics": clock,
        "clocks.current.sm": clock,
        "clocks.current.memory": "1215",
        "clocks.max.sm": "1980",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": "Disabled" if card.name.startswith(("A100", "NVIDIA H", "NVIDIA B")) else "[N/A]",
        "display_active": "Disabled",
        "pcie.link.gen.gpucurrent": "4",
        "pcie.link.gen.current": "3",
        "pcie.link.width.current": str(card.lanes),
        "pcie.link.width.max": str(card.lanes),
        "ecc.mode.current": "Enabled" if card.has_ecc else missing,
        "ecc.errors.corrected.volatile.total": ecc,
        "ecc.errors.uncorrected.volatile.total": ecc,
        "ecc.errors.corrected.aggregate.total": ecc,
        "ecc.errors.uncorrected.aggregate.total": ecc,
        "remapped_rows.correctable": remaps,
        "remapped_rows.uncorrectable": remaps,
        "remapped_rows.pending": "No" if remaps == "0" else remaps,
        "remapped_rows.failure": "No" if remaps == "0" else remaps,
        "retired_pages.single_bit_ecc.count": retires,
        "retired_pages.double_bit.count": retires,
        "retired_pages.pending": "No" if retires == "0" else retires,
        "clocks_event_reasons.active": reasons,
        "clocks_throttle_reasons.active": reasons,
        "gpu_recovery_action": "None",
        "reset_status.reset_required": "No" if machine.branch < 570 else f"[{DEPRECATED}]",
        "reset_status.drain_and_reset_recommended": "No" if machine.branch < 570 else f"[{DEPRECATED}]",
        **dict.fromkeys((*FABRIC, *FABRIC_HEALTH), "N/A"),
        **card.fabric,
    }
    changed = {name: cell or missing for name, cell in load.cells.items()}
    if machine.branch < 570:
        changed.pop("gpu_recovery_action", None)
    return {**cells, **changed}
