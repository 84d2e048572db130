"""Answer questions and book GPUs in Slack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from site_builder.bookings import api, json_edit
from site_builder.bookings.gpu_selection import UnclearRequestError
from site_builder.bookings.policy import BookingRefusedError, InvalidNameError, validate_user_name
from site_builder.bookings.service import BookingService, BookingsUnreadableError
from site_builder.bookings.transaction import BookingUser
from site_builder.client import picker, search
from site_builder.client import render as client_render
from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.clock import Now
from site_builder.core.locks import StorageError
from site_builder.core.model import GpuNumber
from site_builder.core.names import fold_login, gpu_number_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import truncate_text
from site_builder.fleet import gpu_models
from site_builder.slack.blocks import MAX_ROWS, AnswerTable, SlackAnswer

OPTION_WORDS = {
    "from": "from",
    "until": "until",
    "till": "until",
    "to": "until",
    "for": "for",
    "comment": "comment",
    "name": "name",
}
COUNT_PATTERN = re.compile(r"([0-9]{1,4})x?", re.IGNORECASE)
ANY_WORDS = {"any", "some", "a", "an"}
FILLER_WORDS = {"gpu", "gpus", "of", "x", "×", "on", "one", "host"}
MAX_LISTED_BOOKINGS = 20
BOOKING_EXAMPLES = (
    "`book atlas:0,1 until fri 18:00`",
    "`book 2 A100 for 8h`",
    "`book zeus from mon 9:00 for 3h comment ICML run`",
)


class IncompleteMessageError(Exception):
    """What an order lacks, in one sentence."""


class SlackBookings(NamedTuple):
    """The desk, for somebody."""

    settings: Settings
    service: BookingService

    def identify(self, name: str) -> BookingUser:
        """Somebody whom Slack and the contacts made known to us."""
        name = validate_user_name(name)
        return BookingUser(name, fold_login(name) in self.settings.booking_policy.admins, "slack")

    def book(self, name: str, asked: Sequence[str]) -> SlackAnswer:
        """Book what was asked for."""
        if not asked:
            return SlackAnswer("which GPUs, and until when?", BOOKING_EXAMPLES)

        def do(who: BookingUser) -> SlackAnswer:
            done = api.handle_request(self.service, parse_booking_message(asked), who)
            ids = list(dict.fromkeys(str(one["id"]) for one in done["bookings"]))
            back = f"to give it back: `release {' '.join(ids)}`"
            lines = (done["said"], *format_warning_lines(done), back)
            return SlackAnswer(f"booked {', '.join(ids)}", lines, None, (self.describe_zone(),), self.settings.url)

        return self.answer_errors(name, do)

    def release(self, name: str, asked: Sequence[str]) -> SlackAnswer:
        """Release what was named; without a word, say what there is."""
        return self.answer_errors(name, lambda who: self.release_named(who, asked) if asked else self.list_own(who))

    def release_named(self, who: BookingUser, asked: Sequence[str]) -> SlackAnswer:
        """All of it or nothing."""
        requests = self.build_release_requests(who, asked)
        for one in requests if len(requests) > 1 else ():
            api.handle_request(self.service, {**one, "check": True}, who)
        done = [api.handle_request(self.service, one, who) for one in requests]
        lines = tuple(line for one in done for line in (one["said"], *format_warning_lines(one)))
        return SlackAnswer("released", lines, link=self.settings.url)

    def build_release_requests(self, who: BookingUser, asked: Sequence[str]) -> list[dict[str, Any]]:
        """One request for each id, and one for all GPUs."""
        names = self.service.begin_read(who).hosts.index_names()
        several = list(dict.fromkeys(one.strip(",") for one in asked if one.strip(",")))
        gpus = [one for one in several if ":" in one or names.find(one)]
        found: list[dict[str, Any]] = [{"do": "release", "id": one} for one in several if one not in gpus]
        return [*found, {"do": "release", "gpus": gpus}] if gpus else found

    def list_own(self, who: BookingUser) -> SlackAnswer:
        """What somebody has booked."""
        own = [one for one in api.list_bookings(self.service, who)["bookings"] if one["mine"]]
        if not own:
            return SlackAnswer("you have booked nothing", link=self.settings.url)
        lines = [
            f"`{one['id']}` {one['where']} until {one['date'][:16].replace('T', ' ')}"
            for one in own[:MAX_LISTED_BOOKINGS]
        ]
        more = [f"and {len(own) - MAX_LISTED_BOOKINGS} more"] if len(own) > MAX_LISTED_BOOKINGS else []
        lines += [*more, "`release ID` gives one back"]
        return SlackAnswer("which of your bookings?", tuple(lines), None, (self.describe_zone(),), self.settings.url)

    def describe_zone(self) -> str:
        """Whose times these are: who asks may be elsewhere."""
        now = self.service.now()
        return f"times of {getattr(now.zone, 'key', None) or now.local.tzname()}"

    def answer_errors(self, name: str, do: Callable[[BookingUser], SlackAnswer]) -> SlackAnswer:
        """Whatever the desk has against it is told in one sentence."""
        try:
            return do(self.identify(name))
        except IncompleteMessageError as why:
            return SlackAnswer(str(why), BOOKING_EXAMPLES)
        except (BookingRefusedError, json_edit.EntryPlacementError, UnclearRequestError, InvalidNameError) as why:
            return SlackAnswer("that cannot be done", (str(why),), link=self.settings.url)
        except (BookingsUnreadableError, FleetUnavailableError, StorageError) as why:
            return SlackAnswer("the desk cannot write just now", (self.hide_folders(str(why)),))

    def hide_folders(self, sentence: str) -> str:
        """For people elsewhere, whom the folders of this machine do not concern."""
        folders = {"data": self.settings.data, "state": self.settings.state}
        labels = {str(form): name for name, path in folders.items() for form in (path.absolute(), path)}
        return formatting.hide_paths(sentence, labels)


def format_warning_lines(done: dict[str, Any]) -> list[str]:
    """What to know beside it."""
    return [f"note: {one}" for one in done["warnings"]]


# What was asked for


def parse_booking_message(asked: Sequence[str]) -> dict[str, Any]:
    """`atlas:0,1 until fri 18:00 comment ICML run` as a request to the desk."""
    places, parts = split_booking_words(asked)
    if not places:
        message = "which GPUs?"
        raise IncompleteMessageError(message)
    if not parts.keys() & {"until", "for"}:
        message = "until when?"
        raise IncompleteMessageError(message)
    return {"do": "book", **parse_gpu_words(places), **parts}


def split_booking_words(asked: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The GPUs, and what stands behind each word that leads something in; a comment goes on to the end."""
    places: list[str] = []
    parts: dict[str, list[str]] = {}
    current = places
    for number, word in enumerate(asked):
        key = OPTION_WORDS.get(word.lower().removeprefix("--").rstrip(":="))
        if key == "comment":
            parts[key] = list(asked[number + 1 :])
            break
        if key and key in parts:
            message = f"`{key}` stands there twice"
            raise IncompleteMessageError(message)
        if key:
            current = parts[key] = []
        else:
            current.append(word)
    said = {key: " ".join(several).strip("\"' ") for key, several in parts.items()}
    for key, text in said.items():
        if not text:
            message = f"what belongs behind `{key}`?"
            raise IncompleteMessageError(message)
    return places, said


def parse_gpu_words(places: Sequence[str]) -> dict[str, Any]:
    """GPUs by name, or so many of a model: `2 A100`, `any A100`."""
    first = places[0].lower()
    found = COUNT_PATTERN.fullmatch(first)
    if not found and first not in ANY_WORDS:
        # `atlas:0, 1` is one word that was written as two
        joined = re.sub(r"\s*,\s*", ",", " ".join(places))
        return {"gpus": [one.strip(",") for one in joined.split() if one.strip(",")]}
    rest = [one for one in places[1:] if one.lower() not in FILLER_WORDS]
    count = int(found[1]) if found else 1
    if not found and rest and (second := COUNT_PATTERN.fullmatch(rest[0])):
        count, rest = int(second[1]), rest[1:]
    model = " ".join(rest)
    return {"any": count, **({"model": model} if model else {})}


NUMBER_COLUMNS = frozenset({2})
MAX_COMMAND_WIDTH = 40
MAX_GPUS_ON_HOST = 64
# Not that of a profile of instances, such as 1g.10gb.
GIGABYTES_PATTERN = re.compile(r"(?<![\d.])(\d+)\s*gi?b\b", re.IGNORECASE)
HELP_LINES = (
    "`hosts` – every host: how it is, how many of its GPUs are free",
    "`all` – who is on which GPU; `all atlas`, `all state:free` for some of them",
    "`all detail` – the same GPU by GPU: use, memory, programs, bookings",
    "`where USER` – where somebody works, and what they have booked; `where me`",
    "`free` – the GPUs that are free, the best first; `free A100`, `free 2 A100` on one host",
    "`book atlas:0,1 until fri 18:00` – or `book 2 A100 for 8h`; with `from mon 9:00`, `comment ICML run`",
    "`release ID` – or `release atlas:0`; `release` alone lists what you have booked",
    "`help` – this",
)
USERS_HIDDEN_MESSAGE = "the board names nobody here, so I do not either"


class AnswerContext(NamedTuple):
    """What answers are made of: the fleet, its moment, whom names mean, and where the board is."""

    fleet: Fleet
    now: Now
    people: PeopleDirectory
    users_shown: bool = True
    link: str | None = None


# Questions


def answer_hosts(scene: AnswerContext, asked: Sequence[str] = ()) -> SlackAnswer:
    """Every host in a row."""
    found = filter_fleet(scene, asked)
    rows = tuple(format_answer_host_row(one) for one in order_by_importance(found.hosts))
    free = sum(gpu.state == "free" for one in found.hosts for gpu in one.gpus)
    count = sum(len(one.gpus) for one in found.hosts)
    title = f"{format_noun_count(len(found.hosts), 'host')}, {free} of {format_noun_count(count, 'GPU')} free"
    if not rows:
        return answer_nothing_found(scene, asked)
    return build_answer(
        scene, title, AnswerTable(("host", "state", "free", "GPUs", "load"), rows, NUMBER_COLUMNS, "{} more hosts")
    )


def format_answer_host_row(host: FleetHost) -> tuple[str, ...]:
    """How a host is; what nobody knows of one that is silent is not 0."""
    counts = Counter(gpu.model for gpu in host.gpus)
    models = ", ".join(f"{count} × {model}" for model, count in counts.items())
    if host.state != "fresh":
        return host.name, host.state, client_render.UNKNOWN_CELL, models, host.reason
    free = sum(gpu.state == "free" for gpu in host.gpus)
    load = client_render.UNKNOWN_CELL if host.load is None else f"{host.load[0]:.1f}"
    cpus = "" if host.cpus is None else f" of {host.cpus}"
    return host.name, "up", f"{free}/{len(host.gpus)}", models, f"{load}{cpus}"


def answer_all(scene: AnswerContext, asked: Sequence[str] = ()) -> SlackAnswer:
    """Every host in a row, with who is on which GPU; or with `detail` every GPU."""
    if asked and asked[0].lower() in {"detail", "details"}:
        return answer_detail(scene, asked[1:])
    found = filter_fleet(scene, asked)
    if not found.hosts:
        return answer_nothing_found(scene, asked)
    rows = tuple((one.name, summarize_host_gpus(one)) for one in order_by_importance(found.hosts))
    title = format_state_counts(gpu for one in found.hosts for gpu in one.gpus)
    return build_answer(scene, title, AnswerTable(("host", "GPUs"), rows, more_text="{} more hosts"))


def summarize_host_gpus(host: FleetHost) -> str:
    """`0,3 free · 1,2 alice · 4-7 bob (held)`."""
    if host.state != "fresh":
        return f"{host.state}: {host.reason}" if host.reason else host.state
    groups: dict[str, list[GpuNumber]] = {}
    for gpu in host.gpus:
        groups.setdefault(describe_gpu_use(gpu), []).append(gpu.place or gpu.index)
    return " · ".join(f"{format_number_ranges(several)} {what}" for what, several in groups.items()) or "no GPU"


def describe_gpu_use(gpu: FleetGpu) -> str:
    """Who is on a GPU, or how it is."""
    who = ", ".join(dict.fromkeys(one.user for one in gpu.processes if one.user))
    if gpu.state == "busy":
        return who or "busy"
    if gpu.is_avoided and gpu.state in {"free", "booked"}:
        return f"{gpu.state} (in trouble)"
    return f"{who} ({gpu.state})" if who and gpu.state in {"held", "conflict"} else gpu.state


def answer_detail(scene: AnswerContext, asked: Sequence[str] = ()) -> SlackAnswer:
    """Every GPU in a row."""
    found = filter_fleet(scene, asked)
    if not found.hosts:
        return answer_nothing_found(scene, asked)
    rows: list[tuple[str, ...]] = []
    for host in found.hosts:
        if host.state != "fresh" or not host.gpus:
            rows.append(
                (
                    host.name,
                    client_render.UNKNOWN_CELL,
                    client_render.UNKNOWN_CELL,
                    client_render.UNKNOWN_CELL,
                    f"{host.state}: {host.reason}",
                )
            )
            continue
        rows += [format_answer_gpu_row(host, gpu, scene.now) for gpu in host.gpus]
    titles = ("GPU", "model", "use", "memory", "who and what")
    title = format_state_counts(gpu for one in found.hosts for gpu in one.gpus)
    return build_answer(
        scene, title, AnswerTable(titles, tuple(rows), frozenset({2, 3}), "{} more GPUs: `all detail HOST`")
    )


def format_answer_gpu_row(host: FleetHost, gpu: FleetGpu, now: Now) -> tuple[str, ...]:
    """A GPU with its numbers, its processes and its promises."""
    running = [
        " ".join(
            filter(None, (one.user, shorten_answer_command(one.command or ""), format_running_time(one.started, now)))
        )
        for one in gpu.processes
    ]
    state = "" if gpu.state == "busy" and running else client_render.describe_gpu_notes(gpu) or gpu.state
    text = client_render.TEXT_SEPARATOR.join(
        filter(None, (state, *dict.fromkeys(running), client_render.describe_gpu_booking(gpu, now)))
    )
    use, memory = (
        client_render.format_whole_number(gpu.utilization_gpu, " %"),
        client_render.format_memory_cell(gpu.memory_used, gpu.memory_total),
    )
    return f"{host.name}:{gpu.label}", gpu.model, use, memory, text


def format_running_time(started: int | None, now: Now) -> str:
    """How long ago it began, in short."""
    return "" if started is None else f"({client_render.format_time_ago(now.epoch - started, True)})"


def answer_where(scene: AnswerContext, name: str) -> SlackAnswer:
    """Where somebody works, and what is promised to them."""
    if not scene.users_shown:
        return SlackAnswer(USERS_HIDDEN_MESSAGE, link=scene.link)
    person = scene.people.resolve_person(name)

    def is_them(other: str | None) -> bool:
        return other is not None and scene.people.resolve_person(other) == person

    rows, booked = [], []
    count = 0
    for host in scene.fleet.hosts:
        on = [gpu for gpu in host.gpus if any(is_them(one.user) for one in gpu.processes)]
        if on and host.state == "fresh":
            rows.append(format_work_row(host, on, is_them, scene.now))
            count += len(on)
        for gpu in host.gpus:
            booked += [
                (host.name, gpu.place or gpu.index, one)
                for one in gpu.bookings
                if is_them(one.name) and is_unfinished_booking(one, scene)
            ]
    shown = scene.people.display_name(name)
    title = (
        f"{shown} is on {format_noun_count(count, 'GPU')} of {format_noun_count(len(rows), 'host')}"
        if rows
        else f"{shown} is on no GPU"
    )
    lines = [*format_booking_lines(booked, scene.now), *([] if rows or booked else suggest_names(scene, name))]
    table = (
        AnswerTable(("host", "GPUs", "memory", "what"), tuple(rows), NUMBER_COLUMNS, "{} more hosts") if rows else None
    )
    return build_answer(scene, title, table, lines, list_silent_hosts(scene.fleet))


def format_work_row(
    host: FleetHost, on: Sequence[FleetGpu], is_them: Callable[[str | None], bool], now: Now
) -> tuple[str, ...]:
    """What somebody has on a host."""
    own = [one for gpu in on for one in gpu.processes if is_them(one.user)]
    sizes = [one.used_memory for one in own]
    memory = (
        client_render.UNKNOWN_CELL
        if None in sizes
        else formatting.format_size(sum(one for one in sizes if one is not None))
    )
    programs = ", ".join(dict.fromkeys(shorten_answer_command(one.command) for one in own if one.command))
    first = min((one.started for one in own if one.started is not None), default=None)
    held = [gpu.place or gpu.index for gpu in on if gpu.state == "held"]
    idle = f"{format_number_ranges(held)} held idle" if held else ""
    return (
        host.name,
        format_number_ranges([gpu.place or gpu.index for gpu in on]),
        memory,
        " ".join(filter(None, (programs, format_running_time(first, now), idle))),
    )


def is_unfinished_booking(one: FleetBooking, scene: AnswerContext) -> bool:
    """Whether a booking is not over."""
    return one.until.timestamp() > scene.now.epoch


def format_booking_lines(several: Sequence[tuple[str, GpuNumber, FleetBooking]], now: Now) -> list[str]:
    """Each booking in a line, over all of its GPUs."""
    groups: dict[tuple[str, FleetBooking], list[GpuNumber]] = {}
    for host, index, one in several:
        alike = one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None)
        groups.setdefault((host, alike), []).append(index)
    lines = []
    for (host, one), indexes in groups.items():
        begins = (
            f"from {formatting.format_moment(one.since, now)} "
            if one.since and one.since.timestamp() > now.epoch
            else ""
        )
        told = (
            f"booked: {host}:{format_number_ranges(indexes)} {begins}until {formatting.format_moment(one.until, now)}"
        )
        lines.append(f"{told} ({one.comment})" if one.comment else told)
    return lines


def suggest_names(scene: AnswerContext, name: str) -> list[str]:
    """Whom somebody may have meant."""
    known = {one.user for host in scene.fleet.hosts for gpu in host.gpus for one in gpu.processes if one.user}
    known |= {one.name for host in scene.fleet.hosts for gpu in host.gpus for one in gpu.bookings if one.name}
    lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), lower, 3, 0.6)
    return [f"did you mean {' or '.join(lower[one] for one in near)}?"] if near else []


def answer_free(scene: AnswerContext, asked: Sequence[str] = ()) -> SlackAnswer:
    """The GPUs that are free, the best first; `2 A100` are those of hosts that have as many."""
    count, model = parse_free_request(asked)
    every_gpu = [(host, gpu) for host in scene.fleet.hosts for gpu in host.gpus]
    right = [(host, gpu) for host, gpu in every_gpu if gpu_models.is_matching_model(model, gpu.model, gpu.name)]
    found = [(host, gpu) for host, gpu in right if can_take_gpu(host, gpu)]
    if count > 1:  # a process sees but one instance: several are for whoever asks for their profile
        found = [
            (host, gpu)
            for host, gpu in found
            if not gpu.parent_keys or gpu_models.is_matching_profile(model, gpu.profile)
        ]
    on_host = Counter(host.name for host, _ in found)
    found = [(host, gpu) for host, gpu in found if on_host[host.name] >= count]
    found.sort(
        key=lambda one: (
            bool(one[1].parent_keys),
            gpu_models.rank_gpu(one[1].name, picker.compute_free_memory(one[1]), picker.compute_load_per_cpu(one[0])),
        )
    )
    what = model or ("GPU" if count == 1 and len(found) < 2 else "GPUs")
    if count > 1:
        hosts_with = len({host.name for host, _ in found})
        title = (
            f"{format_noun_count(hosts_with, 'host')} with {count} {what} free"
            if found
            else f"no host has {count} {what} free"
        )
    else:
        title = f"{len(found)} {what} free" if found else f"no {what} is free"
    lines: list[str] = []
    if not right:
        models = dict.fromkeys(gpu.model for _, gpu in every_gpu)
        lines = [f"no GPU is of that model; there are {', '.join(models) or 'none'}"]
    elif not found:
        lines = [format_state_counts(gpu for _, gpu in right)]
    return build_answer(scene, title, build_free_table(found, scene.now), lines, list_silent_hosts(scene.fleet))


def can_take_gpu(host: FleetHost, gpu: FleetGpu) -> bool:
    """Whether somebody may be told to take it."""
    return host.state == "fresh" and gpu.state == "free" and not gpu.is_avoided


def parse_free_request(asked: Sequence[str]) -> tuple[int, str]:
    """How many on one host, and of which model; a 4090 is no number of GPUs."""
    count = 1
    if asked and asked[0].isascii() and asked[0].isdecimal() and 1 <= int(asked[0][:9]) <= MAX_GPUS_ON_HOST:
        count, asked = int(asked[0]), asked[1:]
    text = " ".join(one for one in asked if one.lower() not in {"gpu", "gpus", "x", "×"})
    return count, GIGABYTES_PATTERN.sub(r"\1 GB", text)


def build_free_table(found: Sequence[tuple[FleetHost, FleetGpu]], now: Now) -> AnswerTable | None:
    """Those that are alike on a host in a row."""
    groups: dict[tuple[str, str, str, str], list[GpuNumber]] = {}
    for host, gpu in found:
        memory = picker.compute_free_memory(gpu)
        size = client_render.UNKNOWN_CELL if memory is None else formatting.format_size(memory)
        until = client_render.describe_gpu_booking(gpu, now).removeprefix("until ")
        groups.setdefault((host.name, gpu.model, size, until), []).append(gpu.place or gpu.index)
    rows = tuple((host, format_number_ranges(several), *rest) for (host, *rest), several in groups.items())
    titles: tuple[str, ...] = ("host", "GPUs", "model", "memory", "until")
    if not any(row[-1] for row in rows):  # a phone is narrow
        titles, rows = titles[:-1], tuple(row[:-1] for row in rows)
    return AnswerTable(titles, rows, frozenset({3}), "{} more rows") if rows else None


def answer_help(unknown: str = "", near: str = "") -> SlackAnswer:
    """What can be asked; of a word that nobody knows, what may have been meant."""
    if not unknown:
        return SlackAnswer("What I can tell", HELP_LINES)
    hint = f"did you mean `{near}`?" if near else "this is what I know:"
    return SlackAnswer(f"I do not know “{unknown[:40]}”", (hint, *HELP_LINES))


# What they share


def build_answer(
    scene: AnswerContext, title: str, table: AnswerTable | None, lines: Iterable[str] = (), notes: Iterable[str] = ()
) -> SlackAnswer:
    """An answer that says of when it is."""
    of = f"as of {scene.now.local:%H:%M}"
    return SlackAnswer(title, tuple(lines), table, (*notes, of), scene.link)


def filter_fleet(scene: AnswerContext, asked: Sequence[str]) -> Fleet:
    """What fits some words, as in the search box of the page."""
    return search.search_fleet(scene.fleet, asked) if asked else scene.fleet


def order_by_importance(several: Sequence[FleetHost]) -> Sequence[FleetHost]:
    """Hosts in their order; where not all can be told, those in trouble first, then those with something free."""
    if len(several) <= MAX_ROWS:
        return several
    return sorted(several, key=lambda one: (one.state == "fresh", all(gpu.state != "free" for gpu in one.gpus)))


def shorten_answer_command(command: str) -> str:
    """What tells most of a command."""
    return truncate_text(client_render.shorten_command(command), MAX_COMMAND_WIDTH)


def answer_nothing_found(scene: AnswerContext, asked: Sequence[str]) -> SlackAnswer:
    """That nothing fits, or that there is nothing yet."""
    if not scene.fleet.hosts:
        return SlackAnswer("there are no hosts on the board yet", link=scene.link)
    return SlackAnswer(
        f"nothing fits “{' '.join(asked)[:60]}”", ("name a host, or words as in the search box",), None, (), scene.link
    )


def list_silent_hosts(fleet: Fleet) -> list[str]:
    """Of which hosts nobody knows anything: what they have is neither free nor anybody's."""
    found = [f"{one.name} is {one.state}" for one in fleet.hosts if one.state != "fresh"]
    return [f"not known: {formatting.join_names(found)}"] if found else []


def format_state_counts(several: Iterable[FleetGpu]) -> str:
    """`12 GPUs: 3 free, 8 busy, 1 lost`."""
    counts = Counter(gpu.state for gpu in several)
    states = ", ".join(f"{counts[state]} {state}" for state in STATE_ORDER if counts[state])
    return f"{format_noun_count(sum(counts.values()), 'GPU')}: {states}" if states else "no GPUs"


STATE_ORDER = ("free", "booked", "busy", "held", "conflict", "lost", "unknown")


def format_noun_count(count: int, what: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def format_number_ranges(indexes: Iterable[GpuNumber]) -> str:
    """`0-3,5,6:1`."""
    several = set(indexes)
    known = sorted(one for one in several if isinstance(one, int))
    runs: list[list[int]] = []
    for one in known:
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    told = [str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    told += sorted((one for one in several if isinstance(one, str)), key=gpu_number_sort_key)
    return ",".join(told) or client_render.UNKNOWN_CELL
