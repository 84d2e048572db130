"""A lab in which something is wrong with many a GPU."""

from __future__ import annotations

from pathlib import Path

from tests.support.board_fixture import GPU_COLUMNS, Lab, gpu, person, process

WELL = {
    "pci.bus_id": "00000000:{bus:02X}:00.0",
    "fan.speed": "[N/A]",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "gpu_recovery_action": "None",
    "clocks_event_reasons.active": "0x0000000000000001",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pstate": "P0",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
}
UNCORRECTED = "ecc.errors.uncorrected.volatile.total"
REASONS = "clocks_event_reasons.active"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:02:00.0\n"
LOST = ", ".join(["[GPU requires reset]"] * 7)


def row(index: int, wrong: dict[str, str] | None = None, used: int = 4, use: int = 0) -> str:
    """A row of gpus.csv, of a GPU that is well but for these cells."""
    cells = {**WELL, **(wrong or {})}
    return f"{gpu(index, used, use).strip()}, {', '.join(cells.values()).format(bus=index)}\n"


def lost(index: int) -> str:
    """One that waits for a reset."""
    cells = ", ".join([f"00000000:{index:02X}:00.0", *["[GPU requires reset]"] * (len(WELL) - 1)])
    return f"{index}, GPU-{index}, NVIDIA A100-SXM4-80GB, {LOST}, {cells}\n"


def tell(lab: Lab, host: str, rows: str, processes: str = "", ps: str = "", **header: object) -> None:
    """A host with these GPUs."""
    lab.host(host, processes=processes, ps=ps)
    lab.write(host, "gpus.csv", f"{GPU_COLUMNS}, {', '.join(WELL)}\n{rows}", **header)


def make(folder: Path) -> Lab:
    """Atlas has a GPU of each severity, hydra one problem on all of its GPUs, lyra none."""
    lab = Lab(folder)
    rows = (
        row(0)
        + row(1, {UNCORRECTED: "2"})
        + INFOROM
        + row(2, used=40000, use=99)
        + row(3, {REASONS: "0x0000000000000068", "fan.speed": "[Unknown Error]"}, 70000, 98)
        + lost(4)
        + row(5, {"compute_mode": "Prohibited"})
        + row(6, {"remapped_rows.pending": "Yes", "pcie.link.width.current": "4"})
        + row(7, {"ecc.errors.uncorrected.aggregate.total": "3", "pcie.link.width.current": "8"})
    )
    tell(lab, "atlas", rows, process(42, "GPU-3", 69000) + process(43, "GPU-2", 39000), person() + person(43, "bob"))
    tell(lab, "hydra", "".join(row(n, {"persistence_mode": "Disabled"}) for n in range(4)), took_ms=2300)
    tell(lab, "lyra", row(0) + row(1))
    return lab
