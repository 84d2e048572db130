"""A host's card on the board: one template, filled with texts that are ready to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from site_builder import words
from site_builder.model import BoardBooking, BoardGpu, BoardHost, BoardProcess, Disk, HostFacts
from site_builder.now import Now
from site_builder.renderers.templates import ENVIRONMENT

WORDS = {"held": "held idle"}
MOST_PROCESSES = 20
MOST_BOOKINGS = 6
MOST_PEOPLE = 50
COMMAND_CHARACTERS = 200
TEMPLATE = ENVIRONMENT.get_template("card.html")


def card(host: BoardHost, now: Now) -> str:
    """The card, complete."""
    facts = host.facts or HostFacts()
    fullest = max(facts.disks, key=percent, default=None)
    return TEMPLATE.render(
        name=host.name,
        title=host.title,
        tags=host.tags,
        state=host.state,
        reason=sentence(host.reason),
        notes=host.notes,
        models=models(host.gpus),
        seen=moment(host.seen, now) if host.seen is not None else None,
        load=load(facts) if host.state == "fresh" else None,
        memory=memory(facts) if host.state == "fresh" else None,
        disk=f"{fullest.mount} {percent(fullest):.0f} %" if fullest else None,
        disks=[(d.mount, words.size(d.used), words.size(d.total), f"{percent(d):.0f}") for d in facts.disks],
        by_person=by_person(facts),
        by_person_at=words.stamp(facts.disk_use_time // 60, now.zone)[1] if facts.disk_use_time else None,
        rows=[row(gpu, host.state == "fresh", now) for gpu in host.gpus],
        others=", ".join(filter(None, map(in_short, host.others[:MOST_PROCESSES]))),
        host_bookings=list(bookings(host.bookings, now)),
    )


def sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    return f"{text if text.startswith('nvidia-smi') else text[:1].upper() + text[1:]}." if text else ""


def models(gpus: Iterable[BoardGpu]) -> str:
    """`4 × H100 80 GB, 1 × T4 16 GB`."""
    return ", ".join(
        f"{count} × {model}" for model, count in Counter(one.model for one in gpus if one.gpu.name).items()
    )


def moment(epoch: float, now: Now) -> tuple[str, str]:
    """A time for machines, and for people."""
    local = datetime.fromtimestamp(int(epoch), now.zone)
    same_day = now.days_until(local) == 0
    return local.isoformat(), f"{local:%H:%M:%S}" if same_day else words.stamp(int(epoch) // 60, now.zone)[1]


def load(facts: HostFacts) -> str | None:
    """`12 / 96`: the load of the last minute, and the CPUs."""
    if facts.load is None:
        return None
    return f"{facts.load[0]:.0f} / {facts.cpus}" if facts.cpus else f"{facts.load[0]:.0f}"


def memory(facts: HostFacts) -> str | None:
    """`210 / 1008`: what is in use, and all."""
    if facts.memory_total is None:
        return None
    used = None if facts.memory_available is None else max(0, facts.memory_total - facts.memory_available)
    return f"{words.gib(used)} / {words.gib(facts.memory_total)}"


def percent(disk: Disk) -> float:
    """How full it is."""
    return disk.used / disk.total * 100 if disk.total else 0


def by_person(facts: HostFacts) -> list[tuple[str, str]]:
    """Who has taken how much of the disks, the most first."""
    most = sorted(facts.disk_use, key=lambda one: -one.used)[:MOST_PEOPLE]
    return [(one.path, words.size(one.used)) for one in most]


def whole(value: float | None, unit: str = "") -> str:
    """A number without decimals, and its unit; a dash where it is not known."""
    return "–" if value is None else f"{value:.0f}{unit}"


def row(board: BoardGpu, fresh: bool, now: Now) -> tuple[Any, ...]:
    """A GPU, in the order in which the template takes it."""
    gpu, state = board.gpu, board.state
    use, used, total = gpu.utilization_gpu, gpu.memory_used, gpu.memory_total
    note = ""
    if (state == "unknown" and fresh) or (state == "busy" and not board.processes):
        note = board.reason
    booking_note = board.reason if state in {"violated", "held"} else ""
    return (
        "?" if gpu.index is None else gpu.index,
        state,
        WORDS.get(state, state),
        board.reason,
        f"{sentence(board.reason)} A reboot of the host usually brings it back." if state == "lost" else "",
        whole(use, " %"),
        whole(min(use, 100)) if use else 0,
        "" if gpu.utilization_memory is None else f"mem {gpu.utilization_memory:.0f} %",
        words.gib(used),
        words.gib(total),
        whole(min(100, used / total * 100)) if used and total else 0,
        whole(gpu.temperature, " °C"),
        whole(gpu.power_draw),
        f"{whole(gpu.power_limit)} W" if gpu.power_limit else "",
        [process(one, now) for one in board.processes[:MOST_PROCESSES]] if board.processes else (),
        f"and {len(board.processes) - MOST_PROCESSES} more processes" if len(board.processes) > MOST_PROCESSES else "",
        note,
        list(bookings(board.bookings, now)) if board.bookings else (),
        booking_note,
    )


def process(one: BoardProcess, now: Now) -> tuple[Any, ...]:
    """A process, in the order in which the template takes it."""
    facts = [f"pid {one.pid}"] if one.user is None and one.pid is not None else []
    if one.used_memory is not None:
        facts.append(words.size(one.used_memory))
    since = None if one.started is None else words.stamp(one.started // 60, now.zone)
    if since:
        facts.append("")
    return (
        one.user or "unknown user",
        shortened(one.command),
        " · ".join(facts),
        since,
        one.container,
        f"kill {' '.join(map(str, one.children))}" if one.dead else "",
    )


def shortened(command: str | None) -> str | None:
    """As much of a command as a card has room for."""
    if command is None or len(command) <= COMMAND_CHARACTERS:
        return command
    return command[: COMMAND_CHARACTERS - 1] + "…"


def in_short(one: BoardProcess) -> str:
    """A process in a sentence."""
    return " ".join(filter(None, (one.user, shortened(one.command), None if one.pid is None else f"(pid {one.pid})")))


def bookings(several: Iterable[BoardBooking], now: Now) -> Iterator[tuple[str, ...]]:
    """Bookings, in the order in which the template takes them."""
    for number, one in enumerate(several):
        if number == MOST_BOOKINGS:
            yield "more", "", "", "and more", "", "", ""
            return
        until = words.clock(one.until, now)
        if one.phase == "now":
            when, left = f"until {until}", words.left(one.until.timestamp(), now)
        elif one.phase == "coming" and one.since:
            when, left = f"from {words.clock(one.since, now)} until {until}", ""
        else:
            when, left = f"until {until}, ended", ""
        yield one.phase, "", one.name or "", when, one.until.isoformat(), left, one.comment or ""
