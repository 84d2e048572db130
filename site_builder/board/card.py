"""A host's card on the board: one template, filled with texts that are ready to be shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

import orjson

from site_builder.board import containers, mig_rows
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import NOTHING, Html, escaped
from site_builder.core.model import BoardBooking, BoardGpu, BoardHost, BoardProcess, Disk, HostFacts
from site_builder.core.templates import ready
from site_builder.fleet.mig import has_mig
from site_builder.health.render import in_row
from site_builder.history.sampling import key_of

WORDS = {"held": "held idle"}
DASH = "–"
MOST_PROCESSES = 20
MOST_BOOKINGS = 6
MOST_PEOPLE = 50
MOST_DISKS = 50
COMMAND_CHARACTERS = 200
NAME_CHARACTERS = 80
MEAN_STEP = 5


class BookingCell(NamedTuple):
    """A booking, in the order in which the template takes it."""

    phase: Html
    by: Html
    when: Html
    until: Html
    left: Html
    kept: Html
    comment: Html


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
    who: Html
    more: Html
    who_note: Html
    bookings: Sequence[BookingCell]
    booking_note: Html
    line: Html = NOTHING
    part: Html = NOTHING
    profile: Html = NOTHING
    problems: Html = NOTHING


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
    lined: bool


def card(host: BoardHost, now: Now, lines: Mapping[str, str] | None = None) -> CardTexts:
    """All that stands on the card; `lines` are those of its GPUs, by the keys that history has for them."""
    facts = host.facts or HostFacts()
    fresh = host.state == "fresh"
    fullest = max(facts.disks, key=percent, default=None)
    return CardTexts(
        name=escaped(host.name),
        title=escaped(host.title),
        tags=[escaped(tag) for tag in host.tags],
        state=escaped(host.state),
        reason=escaped(sentence(host.reason)),
        notes=[escaped(note) for note in host.notes],
        models=escaped(models(host)),
        seen=moment(host.seen, now) if host.seen is not None else None,
        load=load(facts) if fresh else NOTHING,
        memory=memory(facts) if fresh else NOTHING,
        disk=escaped(f"{percent(fullest):.0f} % of {shortened(fullest.mount)}") if fullest else NOTHING,
        disks=[disk_row(disk) for disk in facts.disks[:MOST_DISKS]],
        by_person=by_person(facts),
        by_person_at=at(facts.disk_use_time, now) if facts.disk_use_time else NOTHING,
        rows=rows(host, now, lines),
        others=escaped(", ".join(filter(None, map(in_short, host.others[:MOST_PROCESSES])))),
        host_bookings=bookings(host.bookings or of_whole_host(host.gpus), now),
        lined=bool(lines),
    )


def html(texts: CardTexts) -> str:
    """The card, complete."""
    return ready("card.html").render(texts._asdict())


def apart(content: bytes, host: str) -> str:
    """The same on the host's own page, which need not lead to itself, and from which the others are a folder away."""
    name = escaped(host)
    text = content.decode().replace(f'<h2><a href="hosts/{name}.html">{name}</a></h2>', f"<h2>{name}</h2>", 1)
    return text.replace('<a class=book href="', '<a class=book href="../', 1)


def structure(texts: CardTexts) -> bytes:
    """What is left of a card without its numbers: as long as it is the same, an open page sets those in their place."""
    rows = [(*row[:5], row.total, row.limit, row.who, row.more, row.who_note, *row[-5:]) for row in texts.rows]
    promised = [without_left(cell) for row in texts.rows for cell in row.bookings]
    disks = [(mount, percent) for mount, _, _, percent in texts.disks]
    rest = (texts.name, texts.title, texts.tags, texts.state, texts.reason, texts.notes, texts.models, texts.others)
    people = (texts.by_person, texts.by_person_at, [without_left(cell) for cell in texts.host_bookings])
    there = (texts.seen is None, texts.load == "", texts.memory == "", [row.access == "" for row in texts.rows])
    return orjson.dumps((rows, promised, disks, rest, people, there))


def without_left(cell: BookingCell) -> tuple[Html, ...]:
    """A booking without the time that is left of it, which the page's script works out."""
    return tuple(cell._replace(left=NOTHING))


def sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    begun = text if text.startswith("nvidia-smi") else text[:1].upper() + text[1:]
    return begun if not text or text.endswith((".", "!", "?")) else f"{begun}."


def models(host: BoardHost) -> str:
    """`4 × H100 80 GB, 1 × T4 16 GB`."""
    return ", ".join(f"{count} × {model}" for model, count in Counter(mig_rows.models(host)).items())


def moment(epoch: float, now: Now) -> tuple[Html, Html]:
    """A time for machines, and for people, to the second."""
    local = datetime.fromtimestamp(int(epoch), now.zone)
    text = local.isoformat(" ")
    return Html(text), Html(text[11:19] if now.days_until(local) == 0 else text[:16])


def stamp(minute: int, zone: tzinfo) -> Html:
    """A time to the minute, for machines and people alike: twice a process would make the page a tenth larger."""
    return Html(datetime.fromtimestamp(minute * 60, zone).isoformat(" ", "minutes"))


def at(epoch: int, now: Now) -> Html:
    """A time as people say it."""
    return Html(formatting.clock(datetime.fromtimestamp(epoch, now.zone), now))


def load(facts: HostFacts) -> Html:
    """`12 / 96`: the load of the last minute, and the CPUs."""
    if facts.load is None:
        return NOTHING
    last = facts.load[0]
    told = f"{last:.1f}" if last < 9.95 else f"{last:.0f}"
    return Html(f"{told} / {facts.cpus}" if facts.cpus else told)


def memory(facts: HostFacts) -> Html:
    """`210 / 1008`: what is in use, and all."""
    if facts.memory_total is None:
        return NOTHING
    used = None if facts.memory_available is None else max(0, facts.memory_total - facts.memory_available)
    return Html(f"{formatting.gib(used)} / {formatting.gib(facts.memory_total)}")


def percent(disk: Disk) -> float:
    """How full it is."""
    return disk.used / disk.total * 100 if disk.total else 0


def disk_row(disk: Disk) -> tuple[Html, Html, Html, Html]:
    """A disk: where, how much is used, of how much, in percent."""
    sizes = Html(formatting.size(disk.used)), Html(formatting.size(disk.total)), Html(f"{percent(disk):.0f}")
    return (escaped(shortened(disk.mount)), *sizes)


def by_person(facts: HostFacts) -> list[tuple[Html, Html]]:
    """Who has taken how much of the disks, the most first."""
    most = sorted(facts.disk_use, key=lambda one: -one.used)[:MOST_PEOPLE]
    return [(escaped(shortened(one.path)), Html(formatting.size(one.used))) for one in most]


@lru_cache(maxsize=4096)
def whole(value: float | None, unit: str = "") -> Html:
    """A number without decimals, and its unit; a dash where it is not known."""
    return Html(DASH if value is None else f"{value:.0f}{unit}")


@lru_cache(maxsize=10_000)
def gib(mib: float | None) -> Html:
    """Of MiB the GiB."""
    return Html(formatting.gib(mib))


@lru_cache(maxsize=10_000)
def bar(part: float | None, of: float | None) -> Html:
    """The length of a meter, of 100."""
    return Html(f"{min(100, part / of * 100):.0f}" if part and of else "0")


def rows(host: BoardHost, now: Now, lines: Mapping[str, str] | None) -> list[GpuRow]:
    """GPUs, with their lines where they have some, and instances under theirs."""
    found = [row(gpu, host, now) for gpu in host.gpus]
    if lines:
        keys: dict[str, int] = {}
        drawn = [Html(lines.get(key_of(gpu, keys), "")) for gpu in host.gpus]
        found = [one._replace(line=line) for one, line in zip(found, drawn)]
    if has_mig(host):
        return mig_rows.under(host, found, lambda gpu: row(gpu, host, now))
    return found


def row(board: BoardGpu, host: BoardHost, now: Now) -> GpuRow:
    """A GPU, as the template takes it."""
    gpu, state = board.gpu, board.state
    reason = escaped(board.reason) if state != "busy" or not board.processes else NOTHING
    not_shown = (state == "unknown" and host.state == "fresh") or (state == "busy" and not board.processes)
    if not_shown and gpu.parent is None and any(one.what == board.reason for one in board.problems):
        not_shown = False  # it stands there as a problem, with what to do
    beyond = len(board.processes) - MOST_PROCESSES
    return GpuRow(
        whole(gpu.index) if gpu.place is None and gpu.index is not None else escaped(gpu.label),
        Html(state),
        Html(WORDS.get(state, state)),
        reason if state == "free" else NOTHING,
        lost(board) if state == "lost" else NOTHING,
        whole(gpu.utilization_gpu, " %"),
        bar(gpu.utilization_gpu, 100),
        NOTHING if gpu.utilization_memory is None else whole(gpu.utilization_memory),
        gib(gpu.memory_used),
        gib(gpu.memory_total),
        bar(gpu.memory_used, gpu.memory_total),
        whole(gpu.temperature, " °C"),
        whole(gpu.power_draw),
        whole(gpu.power_limit, " W") if gpu.power_limit else NOTHING,
        Html("".join([process(one, host.users_shown, now.zone) for one in board.processes[:MOST_PROCESSES]])),
        Html(f"and {beyond} more processes") if beyond > 0 else NOTHING,
        reason if not_shown or state == "held" else NOTHING,
        row_bookings(board.bookings, len(host.gpus) > 1, now) if board.bookings else (),
        free_again(board, now) if board.free_again is not None else NOTHING,
        part=NOTHING if gpu.vendor == "nvidia" or state != "free" else mig_rows.to_see(gpu),
        problems=in_row(board.problems) if board.problems and state != "lost" else NOTHING,
    )


def lost(board: BoardGpu) -> Html:
    """Why nothing is known of a GPU, and what to do."""
    advice = board.problems[0].advice if board.problems else ""
    return escaped(" ".join(filter(None, (sentence(board.reason), sentence(advice)))))


def free_again(board: BoardGpu, now: Now) -> Html:
    """When it comes free, where that is later than the bookings of now end."""
    last = max((one.until.timestamp() for one in board.bookings if one.phase == "now"), default=math.inf)
    again = board.free_again
    return Html(f"free again {moment_at(again, now)}") if again is not None and again > last else NOTHING


def process(one: BoardProcess, users_shown: bool, zone: tzinfo) -> Html:
    """A process in the list of those on a GPU. When it began is shown to the minute, and may differ by a second."""
    pid, user, command, memory, started, _, _, children, *_ = one
    since = NOTHING if started is None else stamp(started // 60, zone)
    place = containers.in_short(one) if one.container or one.runs_as else None
    return drawn(pid, user or ("unknown user" if users_shown else ""), command, memory, since, place, children)


@lru_cache(maxsize=40_000)
def drawn(  # noqa: PLR0913, PLR0917 all that is shown of a process
    pid: int | None,
    user: str,
    command: str | None,
    used_memory: float | None,
    since: Html,
    container: str | None,
    children: tuple[int, ...],
) -> Html:
    """The same for as long as a process runs, and therefore drawn once."""
    which = f"pid {pid}" if user in {"", "unknown user"} and pid is not None else ""
    size = "" if used_memory is None else formatting.size(used_memory)
    text = ready("process.html").module.process(  # type: ignore[attr-defined] # a macro of it
        escaped(shortened(user)),
        escaped(shortened(command, COMMAND_CHARACTERS)),
        Html(f"{which} · {size}" if which and size else which or size),
        since,
        escaped(shortened(container)),
        Html(f"kill {' '.join(map(str, children))}") if children else NOTHING,
    )
    return Html(str(text))


def shortened(text: str | None, characters: int = NAME_CHARACTERS) -> str | None:
    """As much of a text as a card has room for."""
    return text if text is None or len(text) <= characters else text[: characters - 1] + "…"


def in_short(one: BoardProcess) -> str:
    """A process in a sentence."""
    pid = None if one.pid is None else f"(pid {one.pid})"
    return " ".join(filter(None, (shortened(one.user), shortened(one.command, COMMAND_CHARACTERS), pid)))


def of_whole_host(gpus: Sequence[BoardGpu]) -> list[BoardBooking]:
    """Bookings of all GPUs at once, which a card tells once; whether they are kept is to be said of each GPU."""
    several = gpus[0].bookings if len(gpus) > 1 else ()
    return [
        one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None)
        for one in several
        if one.whole_host
    ]


def row_bookings(several: Sequence[BoardBooking], among_others: bool, now: Now) -> list[BookingCell]:
    """The bookings in the row of a GPU; of those told elsewhere only whose it is now, and whether it is kept."""
    whole = [one for one in several if one.whole_gpu or (one.whole_host and among_others)]
    if not whole:
        return bookings(several, now)
    cells = []
    for one in whole[:MOST_BOOKINGS]:
        told = kept(one, now)
        if one.phase == "now" and (one.name or told):
            cells.append(BookingCell(Html("now"), escaped(one.name), told, NOTHING, NOTHING, NOTHING, NOTHING))
    return [*cells, *bookings([one for one in several if one not in whole], now)]


def bookings(several: Sequence[BoardBooking], now: Now) -> list[BookingCell]:
    """Bookings, as the template takes them; of one that repeats the next time is enough."""
    once = {(one.phase, one.name, one.comment): one for one in reversed(several)}
    shown = [one for one in several if once[one.phase, one.name, one.comment] is one][:MOST_BOOKINGS]
    cells = [booking(one, now) for one in shown]
    if len(several) > len(shown):
        more = Html(f"and {len(several) - len(shown)} more")
        cells.append(BookingCell(Html("ended"), NOTHING, more, NOTHING, NOTHING, NOTHING, NOTHING))
    return cells


def booking(one: BoardBooking, now: Now) -> BookingCell:
    """One of them: until when, how long that is, from when."""
    until = moment_of(one.until, now)
    when, left = f"until {until}, ended", ""
    if one.phase == "now":
        when, left = f"until {until}", formatting.left(one.until.timestamp(), now)
    elif one.phase == "coming" and one.since:
        when = f"from {moment_of(one.since, now)} until {until}"
    iso = Html(one.until.isoformat())
    told = kept(one, now) if one.phase == "now" else NOTHING
    return BookingCell(Html(one.phase), escaped(one.name), Html(when), iso, Html(left), told, escaped(one.comment))


def kept(one: BoardBooking, now: Now) -> Html:
    """Whether a booking that runs is kept: used by others, not used, or how much it is used."""
    if one.used_by_since is not None:
        who = escaped(formatting.names([shortened(name) or "" for name in one.used_by])) if one.used_by else "another"
        return Html(f"<span class=used-by>used by {who} since {moment_at(one.used_by_since, now)}</span>")
    told = []
    if one.unused_since is not None:
        told.append(f"<span class=unused>unused since {moment_at(one.unused_since, now)}</span>")
    # in steps, so that a card does not change with each snapshot
    mean = 0 if one.mean_use is None else round(one.mean_use / MEAN_STEP) * MEAN_STEP
    if mean or (one.mean_use is not None and one.unused_since is None):
        told.append(f"<span class=mean>{mean} % used on average</span>")
    return Html(" · ".join(told))


def moment_at(epoch: int, now: Now) -> Html:
    """The same of seconds since 1970."""
    return moment_of(datetime.fromtimestamp(epoch, now.zone), now)


def moment_of(moment: datetime, now: Now) -> Html:
    """A moment for people, and for the page's script, which tells it in their zone."""
    iso = now.here(moment).isoformat(timespec="minutes")
    return Html(f'<time class=at datetime="{iso}">{formatting.clock(moment, now)}</time>')
