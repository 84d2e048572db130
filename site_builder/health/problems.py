"""What is wrong with a GPU now, in words, and what to do about it. docs/health.md has all of it as a table.

A value that is not available is no problem, and no sign of health either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter

from site_builder.core.model import Dump, Gpu, GpuProblem, Voice
from site_builder.health import metrics
from site_builder.health.problem_kinds import ACTIONS, CODES, KINDS, LOOK, TOLD, WEIGHTS, advised, kind_of
from site_builder.health.readings import LONGEST_CELL, MOST_COLUMNS, SLOWED, bits, either, first, yes
from site_builder.snapshots.parsers.csv_values import available, error_words, number, places, whole_number

# Those of OWN differ from GPU to GPU; all else is nearly the same in a whole fleet.
OWN = ("fan.speed", "temperature.gpu.tlimit", "power.draw")
COLUMNS = (
    *OWN,
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "remapped_rows.pending",
    "retired_pages.pending",
    "remapped_rows.failure",
    "gpu_recovery_action",
    "reset_status.drain_and_reset_recommended",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pstate",
    "persistence_mode",
    "compute_mode",
)
EMPTY = ("",) * len(COLUMNS)
# What newer drivers call what older ones recommended.
DRAIN_AND_RESET = "Drain and Reset"
HEAT, HARD_HEAT, POWER_BRAKE = 0x20, 0x40, 0x80
# So many corrected errors since the driver was loaded are told; fewer every card has.
MANY_CORRECTED = 1000
# A fan may stand still while a card is cool; those that do begin to turn at some 60 °C.
WARM = 75
NOT_ALLOWED = "insufficient permissions"
FAN_STILL = frozenset({"0", "0 %"})
# A GPU that rests may narrow its link; from P0 to this it works.
LAST_AT_WORK = 4
MOST_LANES = 64
# Milliseconds that a look at the GPUs takes where nothing is wrong, at most; what it takes is told in steps.
SLOW, STEP = 1000, 500
LONGEST_ROW = 400
LONGEST_SAID = 200
MOST_WORDS = 100
BUS = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f](?![0-9A-Fa-f])")
INDEX = re.compile(r"\b(?:GPU|gpu) ?(\d{1,3})\b")
NOTHING: tuple[GpuProblem, ...] = ()
Cells = tuple[str, ...]


class Problems:
    """The problems of the GPUs of a host, as one snapshot tells them."""

    def __init__(self, dump: Dump[Gpu], voices: Sequence[Voice]) -> None:
        """By its rows, and by what was said beside them."""
        self.columns: Cells = ()
        self.pick: Callable[[Cells], Cells] = nothing
        took = dump.header.took_ms if dump.header else 0
        self.took = took // STEP * STEP if took >= SLOW else 0
        words = [(voice.vendor, word) for voice in voices for word in voice.said]
        self.words = words[:MOST_WORDS]

    def of(self, told: Gpu) -> tuple[GpuProblem, ...]:
        """Of one of them; those of an instance are its GPU's."""
        gpu = told.parent or told
        if gpu.columns is not self.columns:  # the GPUs of a host have one header
            self.columns = gpu.columns
            self.pick = of_columns(gpu.columns) if 0 < len(gpu.columns) <= MOST_COLUMNS else nothing
        cells = self.pick((*gpu.cells, ""))
        if len("".join(cells)) > LONGEST_ROW:
            cells = tuple([one[:LONGEST_CELL] for one in cells])
        fan, margin, power = cells[: len(OWN)]
        common = understood(cells[len(OWN) :], self.took if gpu.vendor == "nvidia" else 0)
        warm = metrics.hot(gpu.temperature, metrics.degrees(margin) if margin else None)
        failed, no_fan = failure(power) if gpu.power_draw is None else None, failure(fan)
        if gpu.lost or gpu.error or failed or no_fan or warm or self.words or fan in FAN_STILL:
            common = (*self.own(gpu, fan, warm), *common)
            if failed and not gpu.lost:
                common = (problem("power", failed), *common)
        if told.error and not gpu.error and not gpu.lost:
            common = (problem("unreadable", told.error), *common)
        if not common:
            return NOTHING
        which = gpu.more.get("pci.bus_id", "")[:LONGEST_CELL] if gpu.index is None else str(gpu.index)
        return written(common, gpu.vendor, which)

    def own(self, gpu: Gpu, fan: str, warm: tuple[int, ...] | None) -> Iterator[GpuProblem]:
        """What is of this GPU and no other."""
        if gpu.lost:
            kind = kind_of(gpu.lost, "lost")
            yield problem(kind if KINDS[kind].avoid else "lost", gpu.lost[:LONGEST_CELL])
        elif gpu.error:
            yield problem("unreadable", gpu.error)
        if gpu.temperature is not None and not gpu.lost:
            if failure(fan):
                yield problem("fan", "its fan does not answer")
            elif fan in FAN_STILL and gpu.temperature >= WARM:
                yield problem("fan", "its fan stands still, though the GPU is warm")
        if warm:
            yield problem("hot", warm[1])
        for vendor, word in self.words:
            if vendor == gpu.vendor and names(word, gpu):
                yield problem(kind_of(word, "said"), word[:LONGEST_SAID])


def failure(cell: str) -> str | None:
    """Return the words of a reading that fails; that we may not see it is no fault of the GPU."""
    words = error_words(cell) if cell else None
    return None if words is None or words.lower() == NOT_ALLOWED else words


def nothing(_: Cells) -> Cells:
    """The cells of a row that is beyond belief."""
    return EMPTY


@lru_cache(maxsize=64)
def of_columns(columns: Cells) -> Callable[[Cells], Cells]:
    """What takes the cells of COLUMNS out of a row; a fleet has a few headers."""
    return itemgetter(*places(columns, COLUMNS))


def problem(kind: str, *values: object, weight: str = "", advice: str = "") -> GpuProblem:
    """One of them, with its values in its words."""
    known = KINDS[kind]
    return GpuProblem(kind, weight or known.weight, known.what.format(*values), advice or known.advice, known.avoid)


@lru_cache(maxsize=4096)
def written(found: tuple[GpuProblem, ...], vendor: str, which: str) -> tuple[GpuProblem, ...]:
    """One of each kind, the gravest first, with advice for this very GPU."""
    once: dict[str, GpuProblem] = {}
    for one in found:
        once.setdefault(one.kind, one)
    if "heat" in once:
        once.pop("hot", None)  # which is why
    if once.keys() & {"off-bus", "reset", "power-cable", "interrupts"}:
        once.pop("lost", None)
    several = sorted(once.values(), key=lambda one: WEIGHTS.index(one.weight))
    return tuple([one._replace(advice=advised(one.advice, vendor, which)) for one in several])


def names(word: str, gpu: Gpu) -> bool:
    """Whether a message is about this GPU: by where it sits on the bus, or else by its number."""
    several = BUS.findall(word)
    if several:
        mine = metrics.bus_of(gpu.more.get("pci.bus_id", ""))
        return mine is not None and any(metrics.bus_of(one) == mine for one in several)
    found = INDEX.search(word)
    return found is not None and gpu.index is not None and int(found[1]) == gpu.index


def advice_for(voice: Voice) -> str:
    """What to do about the exit code of a tool whose words name no GPU."""
    kind = CODES.get(voice.rc) if voice.vendor == "nvidia" else None
    if kind is None or any(BUS.search(word) or INDEX.search(word) for word in voice.said):
        return ""
    return advised(KINDS[kind].advice, voice.vendor)


@lru_cache(maxsize=4096)
def understood(cells: Cells, took: int) -> tuple[GpuProblem, ...]:
    """By the cells of COLUMNS but for those of OWN; most GPUs of a fleet tell the same."""
    corrected, uncorrected, before, remapping, retiring, failed, action, drain, *rest = cells
    events, throttle, width, widest, state, persistence, mode = rest
    mask = first(bits(events), bits(throttle))
    found = (
        *recovery(DRAIN_AND_RESET if yes(drain) else action),
        *errors(number(corrected), number(uncorrected), number(before)),
        *([problem("repair-failed")] if yes(failed) else ()),
        *([problem("repair-pending")] if either(yes(remapping), yes(retiring)) else ()),
        *(slowed(mask) if mask else ()),
        *link(lanes(width), lanes(widest), state),
        *([problem("persistence", which_took(took))] if yes(persistence) is False else ()),
        *([problem("prohibited")] if mode.lower() == "prohibited" else ()),
    )
    return found or NOTHING


def recovery(cell: str) -> Iterator[GpuProblem]:
    """What must be done to it, in the driver's word."""
    action = available(cell)
    if action is not None and action.lower() != "none" and not action.lower().startswith("requested functionality"):
        low = action.lower()
        yield problem("recovery", action, advice=next((advice for word, advice in ACTIONS if word in low), ""))


def errors(corrected: float | None, uncorrected: float | None, before: float | None) -> Iterator[GpuProblem]:
    """Errors in its memory."""
    if uncorrected:
        yield problem("ecc-uncorrected", counted(uncorrected))
    elif before:
        since = "" if uncorrected is None else ", none since the driver was loaded"
        yield problem("ecc-before", counted(before), since)
    if corrected is not None and corrected >= MANY_CORRECTED:
        yield problem("ecc-corrected", f"{int(corrected):,}")


def counted(count: float) -> str:
    """`1 uncorrected ECC error`, `2 uncorrected ECC errors`."""
    return f"{int(count):,} uncorrected ECC error{'' if count == 1 else 's'}"


def slowed(mask: int) -> Iterator[GpuProblem]:
    """Why it runs slower than it could; that it rests, or does all that its power limit allows, is no problem."""
    if mask & (HEAT | HARD_HEAT):
        yield problem("heat", " to half of its clocks or less" if mask & HARD_HEAT else "")
    if mask & POWER_BRAKE:
        yield problem("power-brake")
    if mask & SLOWED and not mask & (HARD_HEAT | POWER_BRAKE):
        yield problem("slowdown")


def lanes(cell: str) -> int | None:
    """How many, as `16`, or as the XML has it `16x`."""
    count = whole_number(cell.lower().strip("x"))
    return count if count is not None and 0 < count <= MOST_LANES else None


def link(width: int | None, widest: int | None, state: str) -> Iterator[GpuProblem]:
    """A link that is narrower than it could be while the GPU works; half of it is what many a mainboard gives."""
    level = whole_number(state[1:]) if state[:1] == "P" else None
    if width is None or widest is None or width >= widest or level is None or level > LAST_AT_WORK:
        return
    yield problem("link", width, widest, weight=TOLD if width * 2 >= widest else LOOK)


def which_took(milliseconds: int) -> str:
    """What that costs, if it is told."""
    return f", which took {milliseconds / 1000:.1f} s" if milliseconds else ""
