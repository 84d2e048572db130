"""What nvidia-smi tells on a simulated host: its table of fields, its list, and its XML where a GPU is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from site_builder.demo import nvidia_xml
from site_builder.demo.cast import Machine
from site_builder.demo.readings import DRIVER, RESERVED, WARM, Readings, readings, uuid, whole_uuid

# What each field is worth where the driver cannot reach the GPU, but for these.
GONE = "[GPU is lost]"
KNOWN_WHEN_GONE = ("index", "uuid", "name", "pci.bus_id")
NONE = "[N/A]"
# What is counted over the life of a GPU whose memory tells its errors; of some it is not 0.
COUNTED = ("ecc.errors.corrected.aggregate.total", "ecc.errors.uncorrected.aggregate.total")
ROWS = ("remapped_rows.correctable", "remapped_rows.uncorrectable")
ERRORS = {("hydra", 5): {COUNTED[1]: "1", ROWS[1]: "1"}, ("lyra", 1): {COUNTED[0]: "214"}}
# Those whose slot has but half of the lanes.
NARROW = {("draco", 3)}
LANES = 16
# The bits of why the clocks are not at their highest.
IDLE, AT_ITS_POWER, HEAT = 0x1, 0x4, 0x20
# What is not told of a GPU that is cut.
UNTOLD_IF_CUT = ("utilization.gpu", "utilization.memory", "utilization.encoder", "utilization.decoder")


class OnGpu(NamedTuple):
    """A process on a GPU or an instance, by the place of that among the units of its machine."""

    gpu: int
    pid: int
    memory: int
    program: str


class Card(NamedTuple):
    """A GPU as it sits in the machine, with the places of what it is, or is cut into, among the units."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str
    gpus: tuple[int, ...]
    cut: bool


def cards(machine: Machine) -> Iterator[Card]:
    """All of NVIDIA's, in their order."""
    parts = tuple(range(len(machine.cut)))
    if parts:
        yield Card(0, whole_uuid(machine), parts, cut=True)
    for gpu, unit in enumerate(machine.units):
        if unit.maker == "nvidia" and unit.instance is None:
            yield Card(unit.index, uuid(machine, gpu), (gpu,), cut=False)


def answers(
    machine: Machine, seen: Sequence[tuple[int, int]], on: Sequence[OnGpu], lost: set[int], now: float
) -> dict[str, str]:
    """The files of its stand-in; `seen` is the use and the memory of each unit."""
    rows: list[dict[str, str]] = []
    several = list(cards(machine))
    for card in several:
        told = row(machine, card, [seen[gpu] for gpu in card.gpus], now)
        gone = bool(lost & {*card.gpus})
        rows.append({name: value if not gone or name in KNOWN_WHEN_GONE else GONE for name, value in told.items()})
    whose = {gpu: card for card in several for gpu in card.gpus}
    apps = [f"{whose[one.gpu].uuid}, {one.pid}, {one.memory}, {one.program}\n" for one in on if one.gpu not in lost]
    files = {
        "table": "\n".join([", ".join(rows[0]), *(", ".join(one.values()) for one in rows)]) + "\n",
        "apps": "".join(apps),
        "list": "".join(listed(machine, several)),
    }
    if machine.cut:
        files["xml"] = nvidia_xml.log([element(machine, *one, seen, on) for one in zip(several, rows)])
    return files


def listed(machine: Machine, several: Sequence[Card]) -> Iterator[str]:
    """What `nvidia-smi -L` prints."""
    for card in several:
        yield f"GPU {card.index}: {machine.units[card.gpus[0]].model.name} (UUID: {card.uuid})\n"
        for number, gpu in enumerate(card.gpus if card.cut else ()):
            part = machine.units[gpu].instance
            yield f"  MIG {part.profile if part else '':<11} Device {number:2}: (UUID: {uuid(machine, gpu)})\n"


def element(
    machine: Machine, card: Card, told: dict[str, str], seen: Sequence[tuple[int, int]], on: Sequence[OnGpu]
) -> str:
    """A GPU in XML, with its instances and the processes on them."""
    parts = [nvidia_xml.Part(one, seen[gpu][1]) for gpu, one in zip(card.gpus, machine.cut if card.cut else ())]
    return nvidia_xml.gpu(told, parts, [inside(machine, one) for one in on if one.gpu in card.gpus])


def inside(machine: Machine, one: OnGpu) -> nvidia_xml.Inside:
    """A process, with the number of its instance."""
    part = machine.units[one.gpu].instance
    return nvidia_xml.Inside(str(part.number) if part else "N/A", one.pid, one.memory, one.program)


def row(machine: Machine, card: Card, seen: Sequence[tuple[int, int]], now: float) -> dict[str, str]:
    """A GPU, field by field."""
    model = machine.units[card.gpus[0]].model
    used, use = sum(memory for _, memory in seen), seen[0][0]
    if card.cut:  # each instance works with its own processors
        busy = [one.processors * working for one, (working, _) in zip(machine.cut, seen)]
        use = sum(busy) // sum(one.processors for one in machine.cut)
    name = (machine.name, card.gpus[0])
    told = readings(model, card.uuid, use, used, now, name in WARM)
    found = {**identity(machine, card), **moving(machine, card, told)}
    found["pcie.link.width.current"] = str(LANES // 2 if name in NARROW else LANES)
    return {**found, **dict.fromkeys(UNTOLD_IF_CUT, NONE)} if card.cut else found


def identity(machine: Machine, card: Card) -> dict[str, str]:
    """What never changes."""
    model, first = machine.units[card.gpus[0]].model, card.gpus[0]
    has_mig = model.compute in ("8.0", "9.0")
    return {
        "index": str(card.index),
        "uuid": card.uuid,
        "name": model.name,
        "pci.bus_id": f"00000000:{0x17 + card.index * 9:02X}:00.0",
        "serial": str(1560_000_000 + machine.number * 16 + card.index) if model.ecc else NONE,
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
        "mig.mode.current": ("Enabled" if card.cut else "Disabled") if has_mig else NONE,
        "display_active": "Disabled",
        "pcie.link.gen.gpucurrent": "4",
        "pcie.link.width.max": str(LANES),
        "ecc.mode.current": "Enabled" if model.ecc else NONE,
        "ecc.errors.corrected.volatile.total": "0" if model.ecc else NONE,
        "ecc.errors.uncorrected.volatile.total": "0" if model.ecc else NONE,
        **dict.fromkeys((*COUNTED, *ROWS), "0" if model.ecc else NONE),
        **dict.fromkeys(("remapped_rows.pending", "remapped_rows.failure"), "No" if model.ecc else NONE),
        **ERRORS.get((machine.name, first), {}),
    }


def moving(machine: Machine, card: Card, told: Readings) -> dict[str, str]:
    """What it is like at this moment."""
    model, held, use = machine.units[card.gpus[0]].model, told.held, told.use
    return {
        "memory.used": str(told.used),
        "memory.free": str(model.memory - told.used - RESERVED),
        "utilization.gpu": str(use),
        "utilization.memory": str(told.access),
        "utilization.encoder": "0",
        "utilization.decoder": "0",
        "temperature.gpu": str(told.heat),
        "temperature.memory": str(told.heat + 6) if model.ecc and not model.fan else "N/A",
        "power.draw": f"{told.watts:.2f}",
        "fan.speed": str(int(30 + 0.4 * use)) if model.fan else NONE,
        "pstate": "P0" if held else "P8",
        "clocks.current.graphics": str(told.clock),
        "clocks.current.sm": str(told.clock),
        "clocks.current.memory": "1593" if held else "405",
        "clocks_event_reasons.active": f"0x{reasons(told):016X}",
    }


def reasons(told: Readings) -> int:
    """Why its clocks are not at their highest."""
    if told.slowed:
        return HEAT
    return AT_ITS_POWER if told.use > 95 else 0 if told.held else IDLE
