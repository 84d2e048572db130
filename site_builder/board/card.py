"""Render the card of a host."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

import orjson

from site_builder.client.model import VISIBLE_DEVICES_VARIABLES
from site_builder.client.search import format_name_counts
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import shorten_text
from site_builder.core.html import EMPTY_HTML, Html, escape_html, load_compact_template, render_epoch, render_moment
from site_builder.core.model import BookingStatus, Disk, Gpu, GpuStatus, HostFacts, HostStatus, ProcessStatus
from site_builder.fleet.mig import WholeGpu, has_mig_gpu, list_whole_gpus
from site_builder.health.page import render_problems
from site_builder.history.model import build_host_gpu_key


def describe_container(one: ProcessStatus) -> str | None:
    """`as root in docker pytorch/pytorch:2.4.0`, as much of it as is known; None for most."""
    if not one.container and not one.runs_as:
        return None
    kind = (one.container or "").partition(":")[0]
    named = one.pod or (one.image and strip_registry(one.image))
    place = f"{kind} {named}" if kind and named else one.container
    return " in ".join(filter(None, (one.runs_as and f"as {one.runs_as}", place)))


def format_full_container(one: ProcessStatus) -> str:
    """All that is known of its container."""
    return " ".join(filter(None, (one.container, one.pod, one.image)))


def strip_registry(image: str) -> str:
    """An image without the machine that it came from, as a first part with a dot, a port or so is one."""
    first, slash, rest = image.partition("/")
    return rest if slash and rest and ("." in first or ":" in first or first == "localhost") else image


CARD_STATE_LABELS = {"held": "held idle"}
NO_VALUE_MARK = "–"
MAX_PROCESSES = 20
MAX_BOOKINGS = 6
MAX_PEOPLE = 50
MAX_DISKS = 50
MAX_COMMAND_CHARACTERS = 200
MEAN_USE_STEP = 5


class BookingCell(NamedTuple):
    """A booking as the card and the host's page show it."""

    phase: Html
    person: Html
    when: Html
    until: Html = EMPTY_HTML
    time_left: Html = EMPTY_HTML
    use_html: Html = EMPTY_HTML
    comment: Html = EMPTY_HTML


class GpuRow(NamedTuple):
    """A row of the card's table: a GPU, or a MIG instance below its GPU."""

    label: Html
    state: Html
    state_label: Html
    state_title: Html
    lost_reason: Html
    use: Html
    use_bar: Html
    memory_access: Html
    memory_used: Html
    memory_total: Html
    memory_bar: Html
    temperature: Html
    power_draw: Html
    power_limit: Html
    processes: Html
    omitted_processes: Html
    process_note: Html
    bookings: Sequence[BookingCell]
    booking_note: Html
    sparkline: Html = EMPTY_HTML
    row_attributes: Html = EMPTY_HTML
    profile: Html = EMPTY_HTML
    problems: Html = EMPTY_HTML


class HostCard(NamedTuple):
    """All that stands on a card."""

    name: Html
    title: Html
    tags: Sequence[Html]
    state: Html
    reason: Html
    notes: Sequence[Html]
    models: Html
    last_seen: tuple[Html, Html] | None
    load: Html
    memory: Html
    fullest_disk: Html
    disks: Sequence[tuple[Html, Html, Html, Html]]
    disk_use: Sequence[tuple[Html, Html]]
    disk_use_time: Html
    gpu_rows: Sequence[GpuRow]
    unmatched_processes: Html
    host_bookings: Sequence[BookingCell]
    has_sparklines: bool


def build_card(host: HostStatus, now: Now, lines: Mapping[str, str] | None = None) -> HostCard:
    """All that stands on the card; `lines` are those of its GPUs, by the keys that history has for them."""
    facts = host.facts or HostFacts()
    fresh = host.state == "fresh"
    fullest = max(facts.disks, key=compute_disk_percent, default=None)
    return HostCard(
        name=escape_html(host.name),
        title=escape_html(host.title),
        tags=[escape_html(tag) for tag in host.tags],
        state=escape_html(host.state),
        reason=escape_html(format_reason_sentence(host.reason)),
        notes=[escape_html(note) for note in host.notes],
        models=escape_html(format_host_models(host)),
        last_seen=format_last_seen(host.last_seen, now) if host.last_seen is not None else None,
        load=format_load(facts) if fresh else EMPTY_HTML,
        memory=format_host_memory(facts) if fresh else EMPTY_HTML,
        fullest_disk=escape_html(f"{compute_disk_percent(fullest):.0f} % of {shorten_text(fullest.mount)}")
        if fullest
        else EMPTY_HTML,
        disks=[build_disk_row(disk) for disk in facts.disks[:MAX_DISKS]],
        disk_use=build_disk_use_rows(facts),
        disk_use_time=format_epoch_for_card(facts.disk_use_time, now) if facts.disk_use_time else EMPTY_HTML,
        gpu_rows=build_card_rows(host, now, lines),
        unmatched_processes=escape_html(
            ", ".join(filter(None, map(describe_process, host.unmatched_processes[:MAX_PROCESSES])))
        ),
        host_bookings=build_booking_cells(host.bookings or list_whole_host_bookings(host.gpus), now),
        has_sparklines=bool(lines),
    )


def render_card(texts: HostCard) -> str:
    """The card, complete."""
    return load_compact_template("card.html").render(texts._asdict())


def adapt_card_to_host_page(content: bytes, host: str) -> str:
    """The same on the host's own page, which need not lead to itself, and from which the others are a folder away."""
    name = escape_html(host)
    text = content.decode().replace(f'<h2><a href="hosts/{name}.html">{name}</a></h2>', f"<h2>{name}</h2>", 1)
    return text.replace('<a class=book href="', '<a class=book href="../', 1)


def serialize_card_structure(texts: HostCard) -> bytes:
    """What is left of a card without its numbers: as long as it is the same, an open page sets those in their place."""
    rows = [
        (
            row.label,
            row.state,
            row.state_label,
            row.state_title,
            row.lost_reason,
            row.memory_total,
            row.power_limit,
            row.processes,
            row.omitted_processes,
            row.process_note,
            row.booking_note,
            row.sparkline,
            row.row_attributes,
            row.profile,
            row.problems,
        )
        for row in texts.gpu_rows
    ]
    promised = [drop_time_left(cell) for row in texts.gpu_rows for cell in row.bookings]
    disks = [(mount, percent) for mount, _, _, percent in texts.disks]
    rest = (
        texts.name,
        texts.title,
        texts.tags,
        texts.state,
        texts.reason,
        texts.notes,
        texts.models,
        texts.unmatched_processes,
    )
    people = (texts.disk_use, texts.disk_use_time, [drop_time_left(cell) for cell in texts.host_bookings])
    there = (
        texts.last_seen is None,
        texts.load == "",
        texts.memory == "",
        [row.memory_access == "" for row in texts.gpu_rows],
    )
    return orjson.dumps((rows, promised, disks, rest, people, there))


def drop_time_left(cell: BookingCell) -> tuple[Html, ...]:
    """A booking without the time that is left of it, which the page's script works out."""
    return tuple(cell._replace(time_left=EMPTY_HTML))


def format_reason_sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    begun = text if text.startswith("nvidia-smi") else text[:1].upper() + text[1:]
    return begun if not text or text.endswith((".", "!", "?")) else f"{begun}."


def format_host_models(host: HostStatus) -> str:
    """`4 × H100 80 GB, 1 × T4 16 GB`."""
    return ", ".join(f"{count} × {model}" for model, count in Counter(list_model_names(host)).items())


def format_last_seen(epoch: float, now: Now) -> tuple[Html, Html]:
    """A time for machines, and for people, to the second."""
    local = datetime.fromtimestamp(int(epoch), now.zone)
    text = local.isoformat(" ")
    return Html(text), Html(text[11:19] if now.days_until(local) == 0 else text[:16])


def format_minute(minute: int, zone: tzinfo) -> Html:
    """A time to the minute, for machines and people alike: twice a process would make the page a tenth larger."""
    return Html(datetime.fromtimestamp(minute * 60, zone).isoformat(" ", "minutes"))


def format_epoch_for_card(epoch: int, now: Now) -> Html:
    """A time as people say it."""
    return Html(formatting.format_moment(datetime.fromtimestamp(epoch, now.zone), now))


def format_load(facts: HostFacts) -> Html:
    """`12 / 96`: the load of the last minute, and the CPUs."""
    if facts.load is None:
        return EMPTY_HTML
    last = facts.load[0]
    told = f"{last:.1f}" if last < 9.95 else f"{last:.0f}"
    return Html(f"{told} / {facts.cpus}" if facts.cpus else told)


def format_host_memory(facts: HostFacts) -> Html:
    """`210 / 1008`: what is in use, and all."""
    if facts.memory_total is None:
        return EMPTY_HTML
    used = None if facts.memory_available is None else max(0, facts.memory_total - facts.memory_available)
    return Html(f"{formatting.format_gib(used)} / {formatting.format_gib(facts.memory_total)}")


def compute_disk_percent(disk: Disk) -> float:
    """How full it is."""
    return disk.used / disk.total * 100 if disk.total else 0


def build_disk_row(disk: Disk) -> tuple[Html, Html, Html, Html]:
    """A disk: where, how much is used, of how much, in percent."""
    sizes = (
        Html(formatting.format_size(disk.used)),
        Html(formatting.format_size(disk.total)),
        Html(f"{compute_disk_percent(disk):.0f}"),
    )
    return (escape_html(shorten_text(disk.mount)), *sizes)


def build_disk_use_rows(facts: HostFacts) -> list[tuple[Html, Html]]:
    """Who has taken how much of the disks, the most first."""
    most = sorted(facts.disk_use, key=lambda one: -one.used)[:MAX_PEOPLE]
    return [(escape_html(shorten_text(one.path)), Html(formatting.format_size(one.used))) for one in most]


@lru_cache(maxsize=4096)
def format_rounded(value: float | None, unit: str = "") -> Html:
    """A number without decimals, and its unit; a dash where it is not known."""
    return Html(NO_VALUE_MARK if value is None else f"{value:.0f}{unit}")


@lru_cache(maxsize=10_000)
def format_gib_cached(mib: float | None) -> Html:
    """Of MiB the GiB."""
    return Html(formatting.format_gib(mib))


@lru_cache(maxsize=10_000)
def compute_bar_width(part: float | None, of: float | None) -> Html:
    """The length of a meter, of 100."""
    return Html(f"{min(100, part / of * 100):.0f}" if part and of else "0")


def build_card_rows(host: HostStatus, now: Now, lines: Mapping[str, str] | None) -> list[GpuRow]:
    """GPUs, with their lines where they have some, and instances under theirs."""
    found = [build_card_row(gpu, host, now) for gpu in host.gpus]
    if lines:
        keys: dict[str, int] = {}
        drawn = [Html(lines.get(build_host_gpu_key(gpu, keys), "")) for gpu in host.gpus]
        found = [one._replace(sparkline=line) for one, line in zip(found, drawn)]
    if has_mig_gpu(host):
        return arrange_mig_rows(host, found, lambda gpu: build_card_row(gpu, host, now))
    return found


def build_card_row(board: GpuStatus, host: HostStatus, now: Now) -> GpuRow:
    """A GPU, as the template takes it."""
    gpu, state = board.gpu, board.state
    reason = escape_html(board.reason) if state != "busy" or not board.processes else EMPTY_HTML
    not_shown = (state == "unknown" and host.state == "fresh") or (state == "busy" and not board.processes)
    if not_shown and gpu.parent is None and any(one.what == board.reason for one in board.problems):
        not_shown = False  # it stands there as a problem, with what to do
    beyond = len(board.processes) - MAX_PROCESSES
    return GpuRow(
        label=format_rounded(gpu.index) if gpu.place is None and gpu.index is not None else escape_html(gpu.label),
        state=Html(state),
        state_label=Html(CARD_STATE_LABELS.get(state, state)),
        state_title=reason if state == "free" else EMPTY_HTML,
        lost_reason=describe_lost_gpu(board) if state == "lost" else EMPTY_HTML,
        use=format_rounded(gpu.utilization_gpu, " %"),
        use_bar=compute_bar_width(gpu.utilization_gpu, 100),
        memory_access=EMPTY_HTML if gpu.utilization_memory is None else format_rounded(gpu.utilization_memory),
        memory_used=format_gib_cached(gpu.memory_used),
        memory_total=format_gib_cached(gpu.memory_total),
        memory_bar=compute_bar_width(gpu.memory_used, gpu.memory_total),
        temperature=format_rounded(gpu.temperature, " °C"),
        power_draw=format_rounded(gpu.power_draw),
        power_limit=format_rounded(gpu.power_limit, " W") if gpu.power_limit else EMPTY_HTML,
        processes=Html(
            "".join([render_process(one, host.users_shown, now.zone) for one in board.processes[:MAX_PROCESSES]])
        ),
        omitted_processes=Html(f"and {beyond} more processes") if beyond > 0 else EMPTY_HTML,
        process_note=reason if not_shown or state == "held" else EMPTY_HTML,
        bookings=build_row_bookings(board.bookings, len(host.gpus) > 1, now) if board.bookings else (),
        booking_note=describe_free_again(board, now) if board.free_again is not None else EMPTY_HTML,
        row_attributes=EMPTY_HTML if gpu.vendor == "nvidia" or state != "free" else render_visibility_attribute(gpu),
        problems=render_problems(board.problems) if board.problems and state != "lost" else EMPTY_HTML,
    )


def describe_lost_gpu(board: GpuStatus) -> Html:
    """Why nothing is known of a GPU, and what to do."""
    advice = board.problems[0].advice if board.problems else ""
    return escape_html(" ".join(filter(None, (format_reason_sentence(board.reason), format_reason_sentence(advice)))))


def describe_free_again(board: GpuStatus, now: Now) -> Html:
    """When it comes free, where that is later than the bookings of now end."""
    last = max((one.until.timestamp() for one in board.bookings if one.phase == "now"), default=math.inf)
    again = board.free_again
    return Html(f"free again {render_epoch(again, now)}") if again is not None and again > last else EMPTY_HTML


def render_process(one: ProcessStatus, users_shown: bool, zone: tzinfo) -> Html:
    """A process in the list of those on a GPU. When it began is shown to the minute, and may differ by a second."""
    user = one.user or ("unknown user" if users_shown else "")
    since = EMPTY_HTML if one.started is None else format_minute(one.started // 60, zone)
    place = describe_container(one) if one.container or one.runs_as else None
    return render_process_cached(one.pid, user, one.command, one.used_memory, since, place, one.children)


@lru_cache(maxsize=40_000)
def render_process_cached(
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
    size = "" if used_memory is None else formatting.format_size(used_memory)
    text = load_compact_template("process.html").module.process(  # type: ignore[attr-defined] # a macro of it
        escape_html(shorten_text(user)),
        escape_html(shorten_text(command, MAX_COMMAND_CHARACTERS)),
        Html(f"{which} · {size}" if which and size else which or size),
        since,
        escape_html(shorten_text(container)),
        Html(f"kill {' '.join(map(str, children))}") if children else EMPTY_HTML,
    )
    return Html(str(text))


def describe_process(one: ProcessStatus) -> str:
    """A process in a sentence."""
    pid = None if one.pid is None else f"(pid {one.pid})"
    return " ".join(filter(None, (shorten_text(one.user), shorten_text(one.command, MAX_COMMAND_CHARACTERS), pid)))


def list_whole_host_bookings(gpus: Sequence[GpuStatus]) -> list[BookingStatus]:
    """Bookings of all GPUs at once, which a card tells once; whether they are kept is to be said of each GPU."""
    several = gpus[0].bookings if len(gpus) > 1 else ()
    return [
        one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None)
        for one in several
        if one.is_whole_host
    ]


def build_row_bookings(several: Sequence[BookingStatus], among_others: bool, now: Now) -> list[BookingCell]:
    """The bookings in the row of a GPU; of those told elsewhere only whose it is now, and whether it is kept."""
    whole = [one for one in several if one.is_whole_gpu or (one.is_whole_host and among_others)]
    if not whole:
        return build_booking_cells(several, now)
    cells = []
    for one in whole[:MAX_BOOKINGS]:
        told = render_booking_use(one, now)
        if one.phase == "now" and (one.name or told):
            cells.append(BookingCell(phase=Html("now"), person=escape_html(one.name), when=told))
    return [*cells, *build_booking_cells([one for one in several if one not in whole], now)]


def build_booking_cells(several: Sequence[BookingStatus], now: Now) -> list[BookingCell]:
    """Bookings, as the template takes them; of one that repeats the next time is enough."""
    once = {(one.phase, one.name, one.comment): one for one in reversed(several)}
    shown = [one for one in several if once[one.phase, one.name, one.comment] is one][:MAX_BOOKINGS]
    cells = [build_booking_cell(one, now) for one in shown]
    if len(several) > len(shown):
        more = Html(f"and {len(several) - len(shown)} more")
        cells.append(BookingCell(phase=Html("ended"), person=EMPTY_HTML, when=more))
    return cells


def build_booking_cell(one: BookingStatus, now: Now) -> BookingCell:
    """One of them: until when, how long that is, from when."""
    until = render_moment(one.until, now)
    when, left = f"until {until}, ended", ""
    if one.phase == "now":
        when, left = f"until {until}", formatting.format_time_left(one.until.timestamp(), now)
    elif one.phase == "coming" and one.since:
        when = f"from {render_moment(one.since, now)} until {until}"
    return BookingCell(
        phase=Html(one.phase),
        person=escape_html(one.name),
        when=Html(when),
        until=Html(one.until.isoformat()),
        time_left=Html(left),
        use_html=render_booking_use(one, now) if one.phase == "now" else EMPTY_HTML,
        comment=escape_html(one.comment),
    )


def render_booking_use(one: BookingStatus, now: Now) -> Html:
    """Whether a booking that runs is kept: used by others, not used, or how much it is used."""
    if one.used_by_since is not None:
        who = (
            escape_html(formatting.join_names([shorten_text(name) or "" for name in one.used_by]))
            if one.used_by
            else "another"
        )
        return Html(f"<span class=used-by>used by {who} since {render_epoch(one.used_by_since, now)}</span>")
    told = []
    if one.unused_since is not None:
        told.append(f"<span class=unused>unused since {render_epoch(one.unused_since, now)}</span>")
    # in steps, so that a card does not change with each snapshot
    mean = 0 if one.mean_use is None else round(one.mean_use / MEAN_USE_STEP) * MEAN_USE_STEP
    if mean or (one.mean_use is not None and one.unused_since is None):
        told.append(f"<span class=mean>{mean} % used on average</span>")
    return Html(" · ".join(told))


# Stands for the state of a GPU that is cut: its instances have states of their own.
MIG_STATE = "mig"


def arrange_mig_rows(host: HostStatus, rows: Sequence[GpuRow], make: Callable[[GpuStatus], GpuRow]) -> list[GpuRow]:
    """The rows of a host that has such GPUs; `rows` are those of all that it tells."""
    made = {id(gpu): row for gpu, row in zip(host.gpus, rows)}
    found: list[GpuRow] = []
    for whole in list_whole_gpus(host):
        if not whole.instances:
            found.append(made[id(whole.status)]._replace(row_attributes=render_cuda_attribute(whole.status)))
            continue
        found.append(build_mig_gpu_row(whole, host, make))
        found += (build_instance_row(made[id(one)], one) for one in whole.instances)
    return found


def build_mig_gpu_row(whole: WholeGpu, host: HostStatus, make: Callable[[GpuStatus], GpuRow]) -> GpuRow:
    """The row of the GPU: its readings, how many instances are free, and what promises all of them."""
    board = whole.status
    bookings = tuple(list_whole_gpu_bookings(whole.instances[0].bookings))
    row = make(board._replace(processes=host.unplaced_processes.get(board.gpu.key, ()), bookings=bookings))
    note = escape_html(f"{board.model}: {board.reason}")
    return row._replace(
        state=Html(MIG_STATE),
        state_label=Html("MIG"),
        state_title=EMPTY_HTML,
        lost_reason=EMPTY_HTML,
        use_bar=EMPTY_HTML,
        process_note=note,
        booking_note=EMPTY_HTML,
    )


def list_whole_gpu_bookings(several: Sequence[BookingStatus]) -> Iterator[BookingStatus]:
    """The bookings of a whole GPU; whether they are kept is to be said of each instance."""
    for one in several:
        if one.is_whole_gpu:
            yield one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None, is_whole_gpu=False)


def build_instance_row(row: GpuRow, one: GpuStatus) -> GpuRow:
    """The row of an instance; its use is not told, and has no meter; what is wrong with its GPU stands there."""
    of = one.gpu.parent.label if one.gpu.parent else ""
    marked = Html(f' data-of="{escape_html(of)}"{render_cuda_attribute(one)}')
    return row._replace(
        use_bar=EMPTY_HTML, row_attributes=marked, profile=escape_html(one.gpu.profile), problems=EMPTY_HTML
    )


def render_cuda_attribute(one: GpuStatus) -> Html:
    """What CUDA calls one that can be had: numbers are not what they seem where a GPU is cut."""
    if one.is_avoided:  # the row of an instance does not say so: its GPU's does
        return EMPTY_HTML
    if one.gpu.vendor != "nvidia":
        return render_visibility_attribute(one.gpu) if one.state == "free" else EMPTY_HTML
    if one.state != "free" or not one.gpu.uuid:
        return EMPTY_HTML
    return Html(f' data-cuda="{escape_html(one.gpu.uuid)}"')


def render_visibility_attribute(gpu: Gpu) -> Html:
    """What one types to see a GPU of another maker than NVIDIA, by the number that its programs know."""
    name = VISIBLE_DEVICES_VARIABLES.get(gpu.vendor)
    return Html(f' data-see="{name}={gpu.index}"') if name and gpu.index is not None else EMPTY_HTML


def list_model_names(host: HostStatus) -> Iterator[str]:
    """What each GPU of a host is, with what it is cut into: `H100 80 GB (3g.40gb, 2 × 1g.10gb)`."""
    for board, several in list_whole_gpus(host):
        if board.gpu.name:
            profiles = [one.gpu.profile or "MIG" for one in several]
            yield f"{board.model} ({format_name_counts(profiles, alone='')})" if profiles else board.model
