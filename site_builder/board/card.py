"""The card of a host: its part of the page, and its numbers in live.json, which updates open pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import orjson

from site_builder.client.model import VISIBLE_DEVICES_VARIABLES
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import format_name_counts, shorten_text
from site_builder.core.html import (
    EMPTY_HTML,
    Html,
    escape_html,
    load_raw_html_template,
    render_epoch_html,
    render_moment_html,
)
from site_builder.core.model import BookingStatus, Disk, Gpu, GpuStatus, HostFacts, HostStatus, ProcessStatus
from site_builder.fleet.mig import WholeGpu, has_mig_gpu, list_whole_gpus
from site_builder.fleet.processes import strip_process_image_registry
from site_builder.health.page import render_problems
from site_builder.history.model import list_host_gpu_keys

CARD_STATE_LABELS = {"held": "held idle"}
# The state shown for a GPU in MIG mode: its instances have states of their own.
MIG_STATE = "mig"
NO_VALUE_MARK = "–"
MAX_PROCESSES = 20
MAX_BOOKINGS = 6
MAX_PEOPLE = 50
MAX_DISKS = 50
MAX_COMMAND_CHARACTERS = 200
MEAN_USE_STEP = 5
# In the line of a host.
MAX_LINE_USERS, MAX_LINE_GPUS = 4, 16


class CardBookingCell(NamedTuple):
    """A booking as the card and the host's page show it."""

    phase: Html
    person: Html
    when: Html
    until: Html = EMPTY_HTML
    time_left: Html = EMPTY_HTML
    use_html: Html = EMPTY_HTML
    comment: Html = EMPTY_HTML


class CardGpuRow(NamedTuple):
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
    bookings: Sequence[CardBookingCell]
    booking_note: Html
    sparkline: Html = EMPTY_HTML
    row_attributes: Html = EMPTY_HTML
    profile: Html = EMPTY_HTML
    problems: Html = EMPTY_HTML
    is_memory_shared: bool = False


class HostCard(NamedTuple):
    """The values of templates/card.html."""

    name: Html
    title: Html
    tags: Sequence[Html]
    state: Html
    reason: Html
    notes: Sequence[Html]
    models: Html
    last_seen: tuple[Html, Html] | None  # for machines and for people
    load: Html
    memory: Html
    fullest_disk: Html
    disks: Sequence[tuple[Html, Html, Html, Html]]  # mount, used, total, and how full it is in percent
    disk_use: Sequence[tuple[Html, Html]]
    disk_use_time: Html
    gpu_rows: Sequence[CardGpuRow]
    unmatched_processes: Html
    host_bookings: Sequence[CardBookingCell]
    has_sparklines: bool
    squares: Sequence[tuple[Html, Html]]  # the state of each GPU, and its description
    state_counts: Html
    users: Sequence[tuple[Html, int]]  # with the number of GPUs of each
    omitted_users: int
    next_booking: Html


# What an open page replaces without fetching the card again, or what is compared in another form.
ROW_NUMBERS = frozenset(
    ("use", "use_bar", "memory_access", "memory_used", "memory_bar", "temperature", "power_draw", "bookings")
)
CARD_NUMBERS = frozenset(
    ("last_seen", "load", "memory", "fullest_disk", "disks", "gpu_rows", "host_bookings", "has_sparklines")
)
list_row_texts = attrgetter(*(name for name in CardGpuRow._fields if name not in ROW_NUMBERS))
list_card_texts = attrgetter(*(name for name in HostCard._fields if name not in CARD_NUMBERS))


def build_card(host: HostStatus, now: Now, sparklines: Mapping[str, str] | None = None) -> HostCard:
    """Build the values of a card; `sparklines` are those of its GPUs, by their keys in history."""
    facts = host.facts or HostFacts()
    is_fresh = host.state == "fresh"
    last_seen = None
    if host.last_seen is not None:
        seen = datetime.fromtimestamp(int(host.last_seen), now.zone)
        iso = seen.isoformat(" ")
        last_seen = Html(iso), Html(iso[11:19] if now.days_until(seen) == 0 else iso[:16])
    load = memory = fullest_disk = disk_use_time = ""
    if facts.disks:
        disk = max(facts.disks, key=compute_card_disk_percent)
        fullest_disk = f"{compute_card_disk_percent(disk):.0f} % of {shorten_text(disk.mount)}"
    if facts.disk_use_time:
        disk_use_time = formatting.format_moment(datetime.fromtimestamp(facts.disk_use_time, now.zone), now)
    if is_fresh and facts.load is not None:
        load = f"{facts.load[0]:.1f}" if facts.load[0] < 9.95 else f"{facts.load[0]:.0f}"
        load = f"{load} / {facts.cpus}" if facts.cpus else load
    if is_fresh and facts.memory_total is not None:
        used = None if facts.memory_available is None else max(0, facts.memory_total - facts.memory_available)
        memory = f"{formatting.format_gib(used)} / {formatting.format_gib(facts.memory_total)}"
    disk_use = sorted(facts.disk_use, key=lambda folder: -folder.used)[:MAX_PEOPLE]
    # bookings of all GPUs at once, without their use: that is shown for each GPU
    shared = host.gpus[0].bookings if len(host.gpus) > 1 else ()
    whole_host_bookings = [drop_card_booking_use(booking) for booking in shared if booking.is_whole_host]
    users = count_card_users(host)
    return HostCard(
        name=escape_html(host.name),
        title=escape_html(host.title),
        tags=[escape_html(tag) for tag in host.tags],
        state=escape_html(host.state),
        reason=escape_html(format_card_reason(host.reason)),
        notes=[escape_html(note) for note in host.notes],
        models=escape_html(format_card_models(host)),
        last_seen=last_seen,
        load=Html(load),
        memory=Html(memory),
        fullest_disk=escape_html(fullest_disk),
        disks=[
            (
                escape_html(shorten_text(disk.mount)),
                Html(formatting.format_size(disk.used)),
                Html(formatting.format_size(disk.total)),
                Html(f"{compute_card_disk_percent(disk):.0f}"),
            )
            for disk in facts.disks[:MAX_DISKS]
        ],
        disk_use=[
            (escape_html(shorten_text(folder.path)), Html(formatting.format_size(folder.used))) for folder in disk_use
        ],
        disk_use_time=Html(disk_use_time),
        gpu_rows=build_card_rows(host, now, sparklines),
        unmatched_processes=escape_html(
            ", ".join(filter(None, map(describe_card_process, host.unmatched_processes[:MAX_PROCESSES])))
        ),
        host_bookings=build_card_bookings(host.bookings or whole_host_bookings, now),
        has_sparklines=bool(sparklines),
        squares=[build_card_square(gpu_status) for gpu_status in host.gpus],
        state_counts=escape_html(format_card_state_counts(host.gpus)),
        users=[(escape_html(shorten_text(user)), count) for user, count in users[:MAX_LINE_USERS]],
        omitted_users=len(users[MAX_LINE_USERS:]),
        next_booking=render_card_next_booking(host, now),
    )


def cut_card_details(card_html: bytes) -> bytes:
    """Return the line of a card without its details, which large fleets have on the page of the host."""
    return card_html.partition(b"</header>")[0] + b"</header></section>"


def render_card(host_card: HostCard) -> str:
    return load_raw_html_template("card.html").render(host_card._asdict())


def serialize_card_structure(host_card: HostCard) -> bytes:
    """Serialize a card without its numbers: while this stays the same, an open page only replaces the numbers."""
    gpu_rows = host_card.gpu_rows
    # the page's script computes the remaining time itself
    bookings = [tuple(cell._replace(time_left=EMPTY_HTML)) for row in gpu_rows for cell in row.bookings]
    host_bookings = [tuple(cell._replace(time_left=EMPTY_HTML)) for cell in host_card.host_bookings]
    disks = [(mount, percent) for mount, _, _, percent in host_card.disks]
    missing_values = (
        host_card.last_seen is None,
        host_card.load == "",
        host_card.memory == "",
        [row.memory_access == "" for row in gpu_rows],
    )
    rows = [list_row_texts(row) for row in gpu_rows]
    return orjson.dumps((list_card_texts(host_card), disks, host_bookings, rows, bookings, missing_values))


# The header of the card


def format_card_reason(text: str) -> str:
    """Begin a reason with a capital letter, and end it with a full stop."""
    sentence = text if text.startswith("nvidia-smi") else text[:1].upper() + text[1:]
    return sentence if not text or text.endswith((".", "!", "?")) else f"{sentence}."


def format_card_models(host: HostStatus) -> str:
    """Format the models of a host as `4 × H100 80 GB, 1 × T4 16 GB`."""
    return ", ".join(f"{count} × {model}" for model, count in Counter(filter(None, list_card_models(host))).items())


def list_card_models(host: HostStatus) -> list[str]:
    """Return the model of each whole GPU, with its instances: `H100 80 GB (2 × 1g.10gb)`; empty if unknown."""
    models = []
    for gpu_status, instances in list_whole_gpus(host):
        profiles = [instance.gpu.profile or "MIG" for instance in instances]
        instance_names = f" ({format_name_counts(profiles, alone='')})" if profiles else ""
        models.append(f"{gpu_status.model}{instance_names}" if gpu_status.gpu.name else "")
    return models


def build_card_square(gpu_status: GpuStatus) -> tuple[Html, Html]:
    users = list(dict.fromkeys(process.user for process in gpu_status.processes if process.user))
    who = f", {formatting.format_names(users, limit=MAX_LINE_USERS)}" if users else ""
    label, state = gpu_status.gpu.label, CARD_STATE_LABELS.get(gpu_status.state, gpu_status.state)
    return Html(gpu_status.state), escape_html(f"{label} {gpu_status.model}: {state}{who}")


def format_card_state_counts(gpu_statuses: Sequence[GpuStatus]) -> str:
    """Format `2 free, 6 busy`, for who cannot see the squares."""
    counts = Counter(gpu_status.state for gpu_status in gpu_statuses)
    return ", ".join(f"{count} {CARD_STATE_LABELS.get(state, state)}" for state, count in counts.items())


def count_card_users(host: HostStatus) -> list[tuple[str, int]]:
    """Count the GPUs of each person on a host, the most first."""
    counts: Counter[str] = Counter()
    for gpu_status in host.gpus:
        counts.update({process.user for process in gpu_status.processes if process.user})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def render_card_next_booking(host: HostStatus, now: Now) -> Html:
    """Render the booking that runs or comes first: the GPUs it has, its person and its time."""
    bookings = [
        (gpu_status.gpu.label, booking)
        for gpu_status in host.gpus
        for booking in gpu_status.bookings
        if booking.phase != "ended"
    ] or [("", booking) for booking in host.bookings if booking.phase != "ended"]
    if not bookings:
        return EMPTY_HTML

    def identify(booking: BookingStatus) -> tuple[object, ...]:
        return booking.name, booking.since, booking.until

    first = min((booking for _, booking in bookings), key=lambda booking: (booking.since or booking.until).timestamp())
    labels = [label for label, booking in bookings if label and identify(booking) == identify(first)]
    place = "" if first.is_whole_host else ",".join(labels[:MAX_LINE_GPUS])
    person = f"<b>{escape_html(first.name)}</b>" if first.name else ""
    return Html(" ".join(filter(None, (escape_html(place), person, build_card_booking(first, now).when))))


def compute_card_disk_percent(disk: Disk) -> float:
    return disk.used / disk.total * 100 if disk.total else 0


# Rows of GPUs


@lru_cache(maxsize=4096)
def format_card_number(value: float | None, unit: str = "") -> Html:
    """Format a number without decimals; an unknown one is a dash."""
    return Html(NO_VALUE_MARK if value is None else f"{value:.0f}{unit}")


@lru_cache(maxsize=10_000)
def format_card_gib(mib: float | None) -> Html:
    return Html(formatting.format_gib(mib))


@lru_cache(maxsize=10_000)
def compute_card_bar_width(value: float | None, maximum: float | None) -> Html:
    """Return the width of a bar in percent."""
    return Html(f"{min(100, value / maximum * 100):.0f}" if value and maximum else "0")


def build_card_rows(host: HostStatus, now: Now, sparklines: Mapping[str, str] | None) -> list[CardGpuRow]:
    """Build the rows of all GPUs, each MIG instance below its GPU."""
    rows = [build_card_row(gpu_status, host, now) for gpu_status in host.gpus]
    if sparklines:
        keys = list_host_gpu_keys(host.gpus)
        rows = [row._replace(sparkline=Html(sparklines.get(key, ""))) for row, key in zip(rows, keys)]
    if has_mig_gpu(host):
        rows = arrange_card_mig_rows(host, rows, now)
    models = list_card_models(host)
    if len(set(models)) < 2:
        return rows
    # the search of the page needs to know which GPU is of which model
    row_models = (
        escape_html(model)
        for model, whole in zip(models, list_whole_gpus(host))
        for _ in range(1 + len(whole.instances))
    )
    return [
        row._replace(row_attributes=Html(f'{row.row_attributes} data-model="{model}"'))
        for row, model in zip(rows, row_models)
    ]


def build_card_row(gpu_status: GpuStatus, host: HostStatus, now: Now) -> CardGpuRow:
    gpu, state = gpu_status.gpu, gpu_status.state
    processes = gpu_status.processes
    reason = escape_html(gpu_status.reason) if state != "busy" or not processes else EMPTY_HTML
    has_note = (state == "unknown" and host.state == "fresh") or (state == "busy" and not processes)
    if has_note and gpu.parent is None and any(problem.what == gpu_status.reason for problem in gpu_status.problems):
        has_note = False  # the row shows it as a problem, with advice
    omitted_count = len(processes) - MAX_PROCESSES
    return CardGpuRow(
        label=format_card_number(gpu.index) if gpu.place is None and gpu.index is not None else escape_html(gpu.label),
        state=Html(state),
        state_label=Html(CARD_STATE_LABELS.get(state, state)),
        state_title=reason if state == "free" else EMPTY_HTML,
        lost_reason=describe_card_lost_gpu(gpu_status) if state == "lost" else EMPTY_HTML,
        use=format_card_number(gpu.utilization_gpu, " %"),
        use_bar=compute_card_bar_width(gpu.utilization_gpu, 100),
        memory_access=EMPTY_HTML if gpu.utilization_memory is None else format_card_number(gpu.utilization_memory),
        memory_used=format_card_gib(gpu.memory_used),
        memory_total=format_card_gib(gpu.memory_total),
        memory_bar=compute_card_bar_width(gpu.memory_used, gpu.memory_total),
        temperature=format_card_number(gpu.temperature, " °C"),
        power_draw=format_card_number(gpu.power_draw),
        power_limit=format_card_number(gpu.power_limit, " W") if gpu.power_limit else EMPTY_HTML,
        processes=Html(
            "".join([render_card_process(process, host.users_shown, now.zone) for process in processes[:MAX_PROCESSES]])
        ),
        omitted_processes=Html(f"and {omitted_count} more processes") if omitted_count > 0 else EMPTY_HTML,
        process_note=reason if has_note or state == "held" else EMPTY_HTML,
        bookings=build_card_row_bookings(gpu_status.bookings, len(host.gpus) > 1, now) if gpu_status.bookings else (),
        booking_note=describe_card_free_again(gpu_status, now) if gpu_status.free_again is not None else EMPTY_HTML,
        row_attributes=EMPTY_HTML if gpu.vendor == "nvidia" or state != "free" else render_visibility_attribute(gpu),
        problems=render_problems(gpu_status.problems) if gpu_status.problems and state != "lost" else EMPTY_HTML,
        is_memory_shared=gpu.is_memory_shared,
    )


def describe_card_lost_gpu(gpu_status: GpuStatus) -> Html:
    """Say why nothing is known of a GPU, and what to do."""
    advice = gpu_status.problems[0].advice if gpu_status.problems else ""
    sentences = (format_card_reason(gpu_status.reason), format_card_reason(advice))
    return escape_html(" ".join(filter(None, sentences)))


def describe_card_free_again(gpu_status: GpuStatus, now: Now) -> Html:
    """Say when a GPU becomes free, if that is later than its present bookings end."""
    booked_until = max(
        (booking.until.timestamp() for booking in gpu_status.bookings if booking.phase == "now"), default=math.inf
    )
    free_again = gpu_status.free_again
    if free_again is None or free_again <= booked_until:
        return EMPTY_HTML
    return Html(f"free again {render_epoch_html(free_again, now)}")


def render_visibility_attribute(gpu: Gpu) -> Html:
    """Render the variable by which a program sees only this GPU, if it is not from NVIDIA."""
    variable = VISIBLE_DEVICES_VARIABLES.get(gpu.vendor)
    return Html(f' data-see="{variable}={gpu.index}"') if variable and gpu.index is not None else EMPTY_HTML


# Processes


def render_card_process(process: ProcessStatus, users_shown: bool, zone: tzinfo) -> Html:
    user = process.user or ("unknown user" if users_shown else "")
    since = EMPTY_HTML
    if process.started is not None:
        # to the minute, since it may differ by a second from one snapshot to the next, and once for machines and
        # people alike: twice would make the page a tenth larger
        since = Html(datetime.fromtimestamp(process.started // 60 * 60, zone).isoformat(" ", "minutes"))
    container = describe_card_container(process) if process.container or process.runs_as else None
    return render_card_process_cached(
        process.pid, user, process.command, process.used_memory, since, container, process.children
    )


@lru_cache(maxsize=40_000)
def render_card_process_cached(
    pid: int | None,
    user: str,
    command: str | None,
    used_memory: float | None,
    since: Html,
    container: str | None,
    children: tuple[int, ...],
) -> Html:
    """Render a process once for as long as it runs."""
    html = load_raw_html_template("process.html").module.process(  # type: ignore[attr-defined] # a macro of it
        escape_html(shorten_text(user)),
        escape_html(shorten_text(command, MAX_COMMAND_CHARACTERS)),
        EMPTY_HTML if pid is None else Html(f"pid {pid}"),
        EMPTY_HTML if used_memory is None else Html(formatting.format_size(used_memory)),
        since,
        escape_html(shorten_text(container)),
        Html(f"kill {' '.join(map(str, children))}") if children else EMPTY_HTML,
    )
    return Html(str(html))


def describe_card_process(process: ProcessStatus) -> str:
    pid = None if process.pid is None else f"(pid {process.pid})"
    command = shorten_text(process.command, MAX_COMMAND_CHARACTERS)
    return " ".join(filter(None, (shorten_text(process.user), command, pid)))


def describe_card_container(process: ProcessStatus) -> str:
    """Describe a container as `as root in docker pytorch/pytorch:2.4.0`, as far as it is known."""
    runtime = (process.container or "").partition(":")[0]
    name = process.pod or (process.image and strip_process_image_registry(process.image))
    place = f"{runtime} {name}" if runtime and name else process.container
    return " in ".join(filter(None, (process.runs_as and f"as {process.runs_as}", place)))


# Bookings


def drop_card_booking_use(booking: BookingStatus) -> BookingStatus:
    return booking._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None)


def build_card_row_bookings(bookings: Sequence[BookingStatus], has_other_gpus: bool, now: Now) -> list[CardBookingCell]:
    """Build the bookings in the row of a GPU; one that is shown for the whole host or GPU is reduced to its use now."""
    shared = [booking for booking in bookings if booking.is_whole_gpu or (booking.is_whole_host and has_other_gpus)]
    if not shared:
        return build_card_bookings(bookings, now)
    cells = []
    for booking in shared[:MAX_BOOKINGS]:
        use_html = render_card_booking_use(booking, now)
        if booking.phase == "now" and (booking.name or use_html):
            cells.append(CardBookingCell(phase=Html("now"), person=escape_html(booking.name), when=use_html))
    return [*cells, *build_card_bookings([booking for booking in bookings if booking not in shared], now)]


def build_card_bookings(bookings: Sequence[BookingStatus], now: Now) -> list[CardBookingCell]:
    """Build the cells of bookings; of one that repeats, only the next time is shown."""
    firsts = {(booking.phase, booking.name, booking.comment): booking for booking in reversed(bookings)}
    shown = [booking for booking in bookings if firsts[booking.phase, booking.name, booking.comment] is booking][
        :MAX_BOOKINGS
    ]
    cells = [build_card_booking(booking, now) for booking in shown]
    if len(bookings) > len(shown):
        omitted = Html(f"and {len(bookings) - len(shown)} more")
        cells.append(CardBookingCell(phase=Html("ended"), person=EMPTY_HTML, when=omitted))
    return cells


def build_card_booking(booking: BookingStatus, now: Now) -> CardBookingCell:
    until = render_moment_html(booking.until, now)
    when, time_left = f"until {until}, ended", ""
    if booking.phase == "now":
        when, time_left = f"until {until}", formatting.format_time_left(booking.until.timestamp(), now)
    elif booking.phase == "coming" and booking.since:
        when = f"from {render_moment_html(booking.since, now)} until {until}"
    return CardBookingCell(
        phase=Html(booking.phase),
        person=escape_html(booking.name),
        when=Html(when),
        until=Html(booking.until.isoformat()),
        time_left=Html(time_left),
        use_html=render_card_booking_use(booking, now) if booking.phase == "now" else EMPTY_HTML,
        comment=escape_html(booking.comment),
    )


def render_card_booking_use(booking: BookingStatus, now: Now) -> Html:
    """Render how a running booking is used: by others, not at all, or how much."""
    if booking.used_by_since is not None:
        users = [shorten_text(name) or "" for name in booking.used_by or ()]
        who = escape_html(formatting.format_names(users)) if users else "another"
        return Html(f"<span class=used-by>used by {who} since {render_epoch_html(booking.used_by_since, now)}</span>")
    parts = []
    if booking.unused_since is not None:
        parts.append(f"<span class=unused>unused since {render_epoch_html(booking.unused_since, now)}</span>")
    # in steps, so that a card does not change with each snapshot
    mean_use = 0 if booking.mean_use is None else round(booking.mean_use / MEAN_USE_STEP) * MEAN_USE_STEP
    if mean_use or (booking.mean_use is not None and booking.unused_since is None):
        parts.append(f"<span class=mean>{mean_use} % used on average</span>")
    return Html(" · ".join(parts))


# GPUs in MIG mode


def arrange_card_mig_rows(host: HostStatus, rows: Sequence[CardGpuRow], now: Now) -> list[CardGpuRow]:
    """Put a row for each GPU in MIG mode before the rows of its instances."""
    rows_by_gpu = {id(gpu_status): row for gpu_status, row in zip(host.gpus, rows)}
    arranged: list[CardGpuRow] = []
    for whole_gpu in list_whole_gpus(host):
        if not whole_gpu.instances:
            row = rows_by_gpu[id(whole_gpu.status)]
            arranged.append(row._replace(row_attributes=render_cuda_attribute(whole_gpu.status)))
            continue
        arranged.append(build_card_mig_row(whole_gpu, host, now))
        arranged += (build_card_instance_row(rows_by_gpu[id(instance)], instance) for instance in whole_gpu.instances)
    return arranged


def build_card_mig_row(whole_gpu: WholeGpu, host: HostStatus, now: Now) -> CardGpuRow:
    """Build the row of a GPU in MIG mode: its readings, and the bookings of the whole GPU."""
    gpu_status = whole_gpu.status
    bookings = tuple(
        drop_card_booking_use(booking)._replace(is_whole_gpu=False)
        for booking in whole_gpu.instances[0].bookings
        if booking.is_whole_gpu
    )
    processes = host.unplaced_processes.get(gpu_status.gpu.key, ())
    row = build_card_row(gpu_status._replace(processes=processes, bookings=bookings), host, now)
    return row._replace(
        state=Html(MIG_STATE),
        state_label=Html("MIG"),
        state_title=EMPTY_HTML,
        lost_reason=EMPTY_HTML,
        use_bar=EMPTY_HTML,
        process_note=escape_html(f"{gpu_status.model}: {gpu_status.reason}"),
        booking_note=EMPTY_HTML,
    )


def build_card_instance_row(row: CardGpuRow, instance: GpuStatus) -> CardGpuRow:
    """Build the row of an instance: its use is not known, and its GPU's row shows the problems."""
    parent = instance.gpu.parent.label if instance.gpu.parent else ""
    return row._replace(
        use_bar=EMPTY_HTML,
        row_attributes=Html(f' data-of="{escape_html(parent)}"{render_cuda_attribute(instance)}'),
        profile=escape_html(instance.gpu.profile),
        problems=EMPTY_HTML,
    )


def render_cuda_attribute(gpu_status: GpuStatus) -> Html:
    """Render the UUID of a free GPU for CUDA: on a host with MIG instances, its index may name another GPU."""
    if gpu_status.is_avoided or gpu_status.state != "free":  # an instance's own row does not say that it is avoided
        return EMPTY_HTML
    if gpu_status.gpu.vendor != "nvidia":
        return render_visibility_attribute(gpu_status.gpu)
    return Html(f' data-cuda="{escape_html(gpu_status.gpu.uuid)}"') if gpu_status.gpu.uuid else EMPTY_HTML


def render_live_card_numbers(host_status: HostStatus, host_card: HostCard) -> tuple[bytes, bytes]:
    """Render the numbers of a card in two parts, before and after its revision."""
    gpus = [
        [row.state, row.use, row.memory_access, row.memory_used, int(row.memory_bar), row.temperature, row.power_draw]
        for row in host_card.gpu_rows
    ]
    seen = None if host_status.last_seen is None else int(host_status.last_seen)
    after = orjson.dumps([host_status.state, seen, host_card.load, host_card.memory, host_card.fullest_disk, gpus])
    return orjson.dumps([host_status.name])[:-1] + b",", b"," + after[1:]
