"""What nvidia-smi tells of a simulated GPU, field by field, in its own words and units."""

from __future__ import annotations

import hashlib
from random import Random

from site_builder.demo.cast import Machine

DRIVER = "590.48.01"
RESERVED = 280
# What each field is worth where the driver cannot reach the GPU, but for these.
GONE = "[GPU is lost]"
KNOWN_WHEN_GONE = ("index", "uuid", "name", "pci.bus_id")
NONE = "[N/A]"
# What is counted over the life of a GPU whose memory tells its errors; of some it is not 0.
COUNTED = ("ecc.errors.corrected.aggregate.total", "ecc.errors.uncorrected.aggregate.total")
ROWS = ("remapped_rows.correctable", "remapped_rows.uncorrectable")
ERRORS = {("hydra", 5): {COUNTED[1]: "1", ROWS[1]: "1"}, ("lyra", 1): {COUNTED[0]: "214"}}


def uuid(machine: Machine, gpu: int) -> str:
    """The GPU's own name: another one for each GPU of the lab."""
    name = hashlib.sha256(f"{machine.name} {gpu}".encode()).hexdigest()
    return f"GPU-{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:32]}"


def identity(machine: Machine, gpu: int) -> dict[str, str]:
    """What never changes."""
    model = machine.model
    return {
        "index": str(gpu),
        "uuid": uuid(machine, gpu),
        "name": model.name,
        "pci.bus_id": f"00000000:{0x17 + gpu * 9:02X}:00.0",
        "serial": str(1560_000_000 + machine.number * 16 + gpu) if model.ecc else NONE,
        "driver_version": DRIVER,
        "vbios_version": "96.00.89.00.01",
        "compute_cap": model.compute,
        "memory.total": str(model.memory),
        "memory.reserved": str(RESERVED),
        "power.limit": f"{model.watts}.00",
        "enforced.power.limit": f"{model.watts}.00",
        "clocks.max.sm": str(model.clock),
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": "Disabled" if model.compute in ("8.0", "9.0") else NONE,
        "display_active": "Disabled",
        "pcie.link.gen.gpucurrent": "4",
        "pcie.link.width.current": "16",
        "ecc.mode.current": "Enabled" if model.ecc else NONE,
        "ecc.errors.corrected.volatile.total": "0" if model.ecc else NONE,
        "ecc.errors.uncorrected.volatile.total": "0" if model.ecc else NONE,
        **dict.fromkeys((*COUNTED, *ROWS), "0" if model.ecc else NONE),
        **dict.fromkeys(("remapped_rows.pending", "remapped_rows.failure"), "No" if model.ecc else NONE),
        **ERRORS.get((machine.name, gpu), {}),
    }


def readings(machine: Machine, gpu: int, use: int, used: int, now: float) -> dict[str, str]:
    """What follows from its use in percent and its memory in MiB; no two GPUs are quite the same, nor two moments."""
    model, held = machine.model, used > 1000
    own, moment = Random(uuid(machine, gpu)), Random(f"{uuid(machine, gpu)} {int(now) // 5}")  # noqa: S311
    heat = int(27 + own.randrange(9) + 8 * held + (0.3 + own.random() * 0.15) * use)
    watts = model.watts * (0.07 + own.random() * 0.05 + 0.06 * held + 0.74 * use / 100) + moment.uniform(-4, 4)
    access = int(use * (0.25 + own.random() * 0.4) + moment.uniform(0, 4)) if use else 0
    clock = str(int(model.clock * (0.88 + moment.random() * 0.08)) if use else 210)
    return {
        "memory.used": str(used),
        "memory.free": str(model.memory - used - RESERVED),
        "utilization.gpu": str(use),
        "utilization.memory": str(access),
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": str(heat),
        "temperature.memory": str(heat + 6) if model.ecc and not model.fan else "N/A",
        "power.draw": f"{min(watts, model.watts):.2f}",
        "fan.speed": str(int(30 + 0.4 * use)) if model.fan else NONE,
        "pstate": "P0" if held else "P8",
        "clocks.current.graphics": clock,
        "clocks.current.sm": clock,
        "clocks.current.memory": "1593" if held else "405",
        "clocks_event_reasons.active": f"0x{(4 if use > 95 else 0 if held else 1):016X}",
    }
