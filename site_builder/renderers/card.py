"""A host's card on the board: one template, filled with texts that are ready to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from site_builder import words
from site_builder.model import BoardBooking, BoardGpu, BoardHost, BoardProcess, Disk, HostFacts
from site_builder.now import Now
from site_builder.renderers.html import NOTHING, Html, escaped
from site_builder.renderers.templates import READY

WORDS = {"held": "held idle"}
REBOOT = "A reboot of the host usually brings it back."
MOST_PROCESSES = 20
MOST_BOOKINGS = 6
MOST_PEOPLE = 50
MOST_DISKS = 50
COMMAND_CHARACTERS = 200
TEMPLATE = READY.get_template("card.html")


class BookingCell(NamedTuple):
    """A booking, in the order in which the template takes it."""

    phase: Html
    by: Html
    when: Html
    until: Html
    left: Html
    comment: Html


class ProcessItem(NamedTuple):
    """A process, in the order in which the template takes it."""

    user: Html
    command: Html
    facts: Html
    since: tuple[Html, Html] | None
    container: Html
    kill: Html


class GpuRow(NamedTuple):
    """A GPU, in the order in which the template takes it."""

    index: Html  # type: ignore[assignment]
    state: Html
    word: Html
    why: Html
    lost: Html
    use: Html
    use_bar: Html
    access: Html
    used: Html
    total: Html
    used_bar: Html
    temperature: Html
    draw: Html
    limit: Html
    who: Sequence[ProcessItem]
    more: Html
    who_note: Html
    bookings: Sequence[BookingCell]
    booking_note: Html


class CardTexts(NamedTuple):
    """All that stands on a card."""

    name: Html
    title: Html
    tags: Sequence[Html]
    state: Html
    reason: Html
    notes: Sequence[Html]
    models: Html
    seen: tuple[Html, Html] | None
    load: Html
    memory: Html
    disk: Html
    disks: Sequence[tuple[Html, Html, Html, Html]]
    by_person: Sequence[tuple[Html, Html]]
    by_person_at: Html
    rows: Sequence[GpuRow]
    others: Html
    host_bookings: Sequence[BookingCell]


def card(host: BoardHost, now: Now) -> str:
    """The card, complete."""
    facts = host.facts or HostFacts()
    fresh = host.state == "fresh"
    fullest = max(facts.disks, key=percent, default=None)
    texts = CardTexts(
        name=escaped(host.name),
        title=escaped(host.title),
        tags=[escaped(tag) for tag in host.tags],
        state=escaped(host.state),
        reason=escaped(sentence(host.reason)),
        notes=[escaped(note) for note in host.notes],
        models=escaped(models(host.gpus)),
        seen=moment(host.seen, now) if host.seen is not None else None,
        load=load(facts) if fresh else NOTHING,
        memory=memory(facts) if fresh else NOTHING,
        disk=escaped(f"{fullest.mount} {percent(fullest):.0f} %") if fullest else NOTHING,
        disks=[disk_row(disk) for disk in facts.disks[:MOST_DISKS]],
        by_person=by_person(facts),
        by_person_at=stamp(facts.disk_use_time, now)[1] if facts.disk_use_time else NOTHING,
        rows=[row(gpu, fresh, now) for gpu in host.gpus],
        others=escaped(", ".join(filter(None, map(in_short, host.others[:MOST_PROCESSES])))),
        host_bookings=bookings(host.bookings, now),
    )
    return TEMPLATE.render(texts._asdict())


def sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    return f"{text if text.startswith('nvidia-smi') else text[:1].upper() + text[1:]}." if text else ""


def models(gpus: Iterable[BoardGpu]) -> str:
    """`4 × H100 80 GB, 1 × T4 16 GB`."""
    return ", ".join(
        f"{count} × {model}" for model, count in Counter(one.model for one in gpus if one.gpu.name).items()
    )


def moment(epoch: float, now: Now) -> tuple[Html, Html]:
    """A time for machines, and for people, to the second."""
    local = datetime.fromtimestamp(int(epoch), now.zone)
    text = local.isoformat(" ")
    return Html(text), Html(text[11:19] if now.days_until(local) == 0 else text[:16])


def stamp(epoch: int, now: Now) -> tuple[Html, Html]:
    """The same to the minute; both are written alike, which makes the page a quarter smaller when it is compressed."""
    text = words.iso_minute(epoch // 60, now.zone)
    return Html(text), Html(text[:16])


def load(facts: HostFacts) -> Html:
    """`12 / 96`: the load of the last minute, and the CPUs."""
    if facts.load is None:
        return NOTHING
    return Html(f"{facts.load[0]:.0f} / {facts.cpus}" if facts.cpus else f"{facts.load[0]:.0f}")


def memory(facts: HostFacts) -> Html:
    """`210 / 1008`: what is in use, and all."""
    if facts.memory_total is None:
        return NOTHING
    used = None if facts.memory_available is None else max(0, facts.memory_total - facts.memory_available)
    return Html(f"{words.gib(used)} / {words.gib(facts.memory_total)}")


def percent(disk: Disk) -> float:
    """How full it is."""
    return disk.used / disk.total * 100 if disk.total else 0


def disk_row(disk: Disk) -> tuple[Html, Html, Html, Html]:
    """A disk: where, how much is used, of how much, in percent."""
    sizes = Html(words.size(disk.used)), Html(words.size(disk.total)), Html(f"{percent(disk):.0f}")
    return (escaped(disk.mount), *sizes)


def by_person(facts: HostFacts) -> list[tuple[Html, Html]]:
    """Who has taken how much of the disks, the most first."""
    most = sorted(facts.disk_use, key=lambda one: -one.used)[:MOST_PEOPLE]
    return [(escaped(one.path), Html(words.size(one.used))) for one in most]


def whole(value: float | None, unit: str = "") -> Html:
    """A number without decimals, and its unit; a dash where it is not known."""
    return Html("–" if value is None else f"{value:.0f}{unit}")


def bar(part: float | None, of: float | None) -> Html:
    """The length of a meter, of 100."""
    return Html(f"{min(100, part / of * 100):.0f}" if part and of else "0")


def row(board: BoardGpu, fresh: bool, now: Now) -> GpuRow:
    """A GPU, as the template takes it."""
    gpu, state = board.gpu, board.state
    reason = escaped(board.reason)
    not_shown = (state == "unknown" and fresh) or (state == "busy" and not board.processes)
    beyond = len(board.processes) - MOST_PROCESSES
    return GpuRow(
        index=Html("?" if gpu.index is None else str(gpu.index)),
        state=Html(state),
        word=Html(WORDS.get(state, state)),
        why=reason if state == "free" else NOTHING,
        lost=escaped(f"{sentence(board.reason)} A reboot of the host usually brings it back.")
        if state == "lost"
        else NOTHING,
        use=whole(gpu.utilization_gpu, " %"),
        use_bar=bar(gpu.utilization_gpu, 100),
        access=Html("" if gpu.utilization_memory is None else f"mem {gpu.utilization_memory:.0f} %"),
        used=Html(words.gib(gpu.memory_used)),
        total=Html(words.gib(gpu.memory_total)),
        used_bar=bar(gpu.memory_used, gpu.memory_total),
        temperature=whole(gpu.temperature, " °C"),
        draw=whole(gpu.power_draw),
        limit=whole(gpu.power_limit, " W") if gpu.power_limit else NOTHING,
        who=[process(one, now) for one in board.processes[:MOST_PROCESSES]] if board.processes else (),
        more=Html(f"and {beyond} more processes") if beyond > 0 else NOTHING,
        who_note=reason if not_shown else NOTHING,
        bookings=bookings(board.bookings, now) if board.bookings else (),
        booking_note=reason if state in {"violated", "held"} else NOTHING,
    )


def process(one: BoardProcess, now: Now) -> ProcessItem:
    """A process, as the template takes it."""
    pid = f"pid {one.pid}" if one.user is None and one.pid is not None else ""
    size = "" if one.used_memory is None else words.size(one.used_memory)
    return ProcessItem(
        user=escaped(one.user or "unknown user"),
        command=escaped(shortened(one.command)),
        facts=Html(f"{pid} · {size}" if pid and size else pid or size),
        since=None if one.started is None else stamp(one.started, now),
        container=escaped(one.container),
        kill=Html(f"kill {' '.join(map(str, one.children))}") if one.dead else NOTHING,
    )


def shortened(command: str | None) -> str | None:
    """As much of a command as a card has room for."""
    if command is None or len(command) <= COMMAND_CHARACTERS:
        return command
    return command[: COMMAND_CHARACTERS - 1] + "…"


def in_short(one: BoardProcess) -> str:
    """A process in a sentence."""
    return " ".join(filter(None, (one.user, shortened(one.command), None if one.pid is None else f"(pid {one.pid})")))


def bookings(several: Sequence[BoardBooking], now: Now) -> list[BookingCell]:
    """Bookings, as the template takes them."""
    cells = [booking(one, now) for one in several[:MOST_BOOKINGS]]
    if len(several) > MOST_BOOKINGS:
        more = Html(f"and {len(several) - MOST_BOOKINGS} more")
        cells.append(BookingCell(Html("ended"), NOTHING, more, NOTHING, NOTHING, NOTHING))
    return cells


def booking(one: BoardBooking, now: Now) -> BookingCell:
    """One of them: until when, how long that is, from when."""
    until = words.clock(one.until, now)
    when, left = f"until {until}, ended", ""
    if one.phase == "now":
        when, left = f"until {until}", words.left(one.until.timestamp(), now)
    elif one.phase == "coming" and one.since:
        when = f"from {words.clock(one.since, now)} until {until}"
    iso = Html(one.until.isoformat())
    return BookingCell(Html(one.phase), escaped(one.name), Html(when), iso, Html(left), escaped(one.comment))
