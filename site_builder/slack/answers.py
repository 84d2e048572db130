"""Answer questions and book GPUs in Slack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from site_builder.bookings import json_edit
from site_builder.bookings import service as booking_service
from site_builder.bookings.policy import BookingNameError, BookingRefusedError, check_booking_name
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.service import BookingService
from site_builder.bookings.store import BookingsUnreadableError
from site_builder.bookings.transaction import BookingUser
from site_builder.client import picker, search
from site_builder.client import render as client_render
from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.client.render import UNKNOWN_CELL
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import format_count, format_name_counts
from site_builder.core.locks import LockedFileError
from site_builder.core.model import FleetUnavailableError, GpuNumber
from site_builder.core.names import gpu_number_sort_key
from site_builder.core.people import PeopleDirectory, fold_login
from site_builder.core.terminal_text import truncate_terminal_text
from site_builder.fleet import gpu_models
from site_builder.slack.blocks import MAX_ROWS, AnswerTable, SlackAnswer

OPTION_WORDS = {"from", "until", "for", "comment", "name"}
OPTION_SYNONYMS = {"till": "until", "to": "until"}
COUNT_PATTERN = re.compile(r"([0-9]{1,4})x?", re.IGNORECASE)
ANY_WORDS = {"any", "some", "a", "an"}
FILLER_WORDS = {"gpu", "gpus", "of", "x", "×", "on", "one", "host"}
MAX_LISTED_BOOKINGS = 20
BOOKING_EXAMPLES = (
    "`book atlas:0,1 until fri 18:00`",
    "`book 2 A100 for 8h`",
    "`book zeus from mon 9:00 for 3h comment ICML run`",
)
MAX_COMMAND_WIDTH = 40
MAX_GPUS_ON_HOST = 64
STATE_ORDER = ("free", "booked", "busy", "held", "conflict", "lost", "unknown")
# But not in a MIG profile such as 1g.10gb.
GIGABYTES_PATTERN = re.compile(r"(?<![\d.])(\d+)\s*gi?b\b", re.IGNORECASE)
HELP_LINES = (
    "`hosts` – every host: its state and number of free GPUs",
    "`all` – who is on which GPU; `all atlas`, `all state:free` for some of them",
    "`all detail` – every GPU with use, memory, programs and bookings",
    "`where USER` – what USER is using and has booked; `where me`",
    "`free` – free GPUs, best first; `free A100`, `free 2 A100` on one host",
    "`book atlas:0,1 until fri 18:00` – or `book 2 A100 for 8h`; with `from mon 9:00`, `comment ICML run`",
    "`release ID` – or `release atlas:0`; `release` alone lists your bookings",
    "`help` – this",
)
USERS_HIDDEN_MESSAGE = "This board hides names, so I cannot show them"


class AnswerContext(NamedTuple):
    """What answers are made of; `now` is when the board was built."""

    fleet: Fleet
    now: Now
    people: PeopleDirectory
    users_shown: bool = True
    link: str | None = None


# Questions


def search_answer_hosts(answer: Callable[[AnswerContext], SlackAnswer]) -> Callable[..., SlackAnswer]:
    """Let an answer be about the hosts and GPUs that words find, as in the search box of the page."""

    def search_and_answer(context: AnswerContext, words: Sequence[str] = ()) -> SlackAnswer:
        fleet = search.search_fleet(context.fleet, words) if words else context.fleet
        if fleet.hosts:
            return answer(context._replace(fleet=fleet))
        if not context.fleet.hosts:
            return SlackAnswer("There are no hosts on the board yet", link=context.link)
        hint = "use a host name, or search words as on the page"
        return SlackAnswer(f"No match for “{' '.join(words)[:60]}”", (hint,), link=context.link)

    return search_and_answer


@search_answer_hosts
def answer_hosts(context: AnswerContext) -> SlackAnswer:
    """List hosts."""
    rows = []
    for host in order_answers_by_importance(context.fleet.hosts):
        models = format_name_counts(gpu.model for gpu in host.gpus)
        if host.state != "fresh":  # what is free there is unknown
            rows.append((host.name, host.state, UNKNOWN_CELL, models, host.reason))
            continue
        load = UNKNOWN_CELL if host.load is None else f"{host.load[0]:.1f}"
        cpus = "" if host.cpus is None else f" of {host.cpus}"
        rows.append((host.name, "up", f"{count_free_in_answer(host.gpus)}/{len(host.gpus)}", models, f"{load}{cpus}"))
    gpus = [gpu for host in context.fleet.hosts for gpu in host.gpus]
    free = f"{count_free_in_answer(gpus)} of {format_count(len(gpus), 'GPU')} free"
    table = AnswerTable(("host", "state", "free", "GPUs", "load"), tuple(rows), frozenset({2}), "{} more hosts")
    return build_slack_answer(context, f"{format_count(len(context.fleet.hosts), 'host')}, {free}", table)


def count_free_in_answer(gpus: Iterable[FleetGpu]) -> int:
    return sum(gpu.state == "free" for gpu in gpus)


@search_answer_hosts
def answer_all(context: AnswerContext) -> SlackAnswer:
    """List hosts with who is on which GPU: `0,3 free · 1,2 alice · 4-7 bob (held)`."""
    rows = []
    for host in order_answers_by_importance(context.fleet.hosts):
        if host.state != "fresh":
            rows.append((host.name, f"{host.state}: {host.reason}" if host.reason else host.state))
            continue
        numbers_by_use: dict[str, list[GpuNumber]] = {}
        for gpu in host.gpus:
            use = gpu.state
            users = ", ".join(dict.fromkeys(process.user for process in gpu.processes if process.user))
            if gpu.state == "busy":
                use = users or "busy"
            elif gpu.is_avoided and gpu.state in {"free", "booked"}:
                use = f"{gpu.state} (faulty)"
            elif users and gpu.state in {"held", "conflict"}:
                use = f"{users} ({gpu.state})"
            numbers_by_use.setdefault(use, []).append(gpu.place or gpu.index)
        uses = [f"{format_answer_number_ranges(numbers)} {use}" for use, numbers in numbers_by_use.items()]
        rows.append((host.name, " · ".join(uses) or "no GPU"))
    title = format_answer_state_counts(gpu for host in context.fleet.hosts for gpu in host.gpus)
    return build_slack_answer(context, title, AnswerTable(("host", "GPUs"), tuple(rows), more_text="{} more hosts"))


@search_answer_hosts
def answer_detail(context: AnswerContext) -> SlackAnswer:
    """List GPUs."""
    rows: list[tuple[str, ...]] = []
    for host in context.fleet.hosts:
        if host.state != "fresh" or not host.gpus:
            reason = f"{host.state}: {host.reason}"
            rows.append((host.name, UNKNOWN_CELL, UNKNOWN_CELL, UNKNOWN_CELL, reason))
            continue
        for gpu in host.gpus:
            programs = []
            for process in gpu.processes:
                command = shorten_answer_command(process.command or "")
                running_time = format_answer_running_time(process.started, context.now)
                programs.append(" ".join(filter(None, (process.user, command, running_time))))
            state = "" if gpu.state == "busy" and programs else client_render.describe_gpu_notes(gpu) or gpu.state
            parts = (state, *dict.fromkeys(programs), client_render.describe_gpu_booking(gpu, context.now))
            use = client_render.format_client_table_number(gpu.utilization_gpu, " %")
            memory = client_render.format_memory_cell(gpu)
            who_and_what = client_render.TEXT_SEPARATOR.join(filter(None, parts))
            rows.append((f"{host.name}:{gpu.label}", gpu.model, use, memory, who_and_what))
    titles = ("GPU", "model", "use", "memory", "who and what")
    table = AnswerTable(titles, tuple(rows), frozenset({2, 3}), "{} more GPUs: `all detail HOST`")
    title = format_answer_state_counts(gpu for host in context.fleet.hosts for gpu in host.gpus)
    return build_slack_answer(context, title, table)


def format_answer_running_time(started: int | None, now: Now) -> str:
    return "" if started is None else f"({client_render.format_client_table_age(now.epoch - started, True)})"


def answer_where(context: AnswerContext, name: str) -> SlackAnswer:
    """List the GPUs that a person uses, and their bookings."""
    if not context.users_shown:
        return SlackAnswer(USERS_HIDDEN_MESSAGE, link=context.link)
    person = context.people.resolve_person(name)

    def is_person(user: str | None) -> bool:
        return user is not None and context.people.resolve_person(user) == person

    now = context.now
    rows, count = [], 0
    numbers_by_booking: dict[tuple[str, FleetBooking], list[GpuNumber]] = {}
    names_by_lower: dict[str, str] = {}
    for host in context.fleet.hosts:
        used_gpus = [gpu for gpu in host.gpus if any(is_person(process.user) for process in gpu.processes)]
        if used_gpus and host.state == "fresh":
            processes = [process for gpu in used_gpus for process in gpu.processes if is_person(process.user)]
            sizes = [process.used_memory for process in processes if process.used_memory is not None]
            memory = formatting.format_size(sum(sizes)) if len(sizes) == len(processes) else UNKNOWN_CELL
            commands = dict.fromkeys(
                shorten_answer_command(process.command) for process in processes if process.command
            )
            first_start = min((process.started for process in processes if process.started is not None), default=None)
            held = [gpu.place or gpu.index for gpu in used_gpus if gpu.state == "held"]
            idle = f"{format_answer_number_ranges(held)} held idle" if held else ""
            parts = (", ".join(commands), format_answer_running_time(first_start, now), idle)
            numbers = format_answer_number_ranges(gpu.place or gpu.index for gpu in used_gpus)
            rows.append((host.name, numbers, memory, " ".join(filter(None, parts))))
            count += len(used_gpus)
        for gpu in host.gpus:
            users = {process.user for process in gpu.processes} | {booking.name for booking in gpu.bookings}
            names_by_lower.update((user.lower(), user) for user in users if user)
            for booking in gpu.bookings:
                if is_person(booking.name) and booking.until.timestamp() > now.epoch:
                    # without what differs from GPU to GPU: a booking is one line
                    shared = booking._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None)
                    numbers_by_booking.setdefault((host.name, shared), []).append(gpu.place or gpu.index)
    lines = []
    for (host_name, booking), booked_numbers in numbers_by_booking.items():
        line = f"booked: {host_name}:{format_answer_number_ranges(booked_numbers)} "
        if booking.since and booking.since.timestamp() > now.epoch:
            line += f"from {formatting.format_moment(booking.since, now)} "
        line += f"until {formatting.format_moment(booking.until, now)}"
        lines.append(f"{line} ({booking.comment})" if booking.comment else line)
    close = get_close_matches(name.lower(), names_by_lower, 3, 0.6) if not (rows or lines) else ()
    if close:
        lines = [f"did you mean {' or '.join(names_by_lower[match] for match in close)}?"]
    table = AnswerTable(("host", "GPUs", "memory", "what"), tuple(rows), frozenset({2}), "{} more hosts")
    places = f"{format_count(count, 'GPU')} of {format_count(len(rows), 'host')}" if rows else "no GPU"
    title = f"{context.people.display_name(name)} is on {places}"
    return build_slack_answer(context, title, table if rows else None, lines, list_silent_answer_hosts(context.fleet))


def answer_free(context: AnswerContext, words: Sequence[str] = ()) -> SlackAnswer:
    """List free GPUs, the best first; `2 A100` lists hosts with as many."""
    count = 1
    if words and words[0].isascii() and words[0].isdecimal() and 1 <= int(words[0][:9]) <= MAX_GPUS_ON_HOST:
        count, words = int(words[0]), words[1:]  # but 4090 is a model
    model = " ".join(word for word in words if word.lower() not in {"gpu", "gpus", "x", "×"})
    request = picker.GpuRequest(GIGABYTES_PATTERN.sub(r"\1 GB", model))
    model, hosts = request.model, context.fleet.hosts
    nobody = picker.GpuRequester(lambda _: False, (), context.now.epoch)
    free = picker.pick_available_gpus(hosts, request, nobody)
    if count > 1:  # a process sees only one MIG instance: several are for whoever asks for their profile
        free = [
            choice
            for choice in free
            if not choice.gpu.parent_keys or gpu_models.is_matching_model_profile(model, choice.gpu.profile)
        ]
    count_by_host = Counter(choice.host.name for choice in free)
    free = [choice for choice in free if count_by_host[choice.host.name] >= count]
    what = model or ("GPU" if count == 1 and len(free) < 2 else "GPUs")
    if count > 1:
        host_count = len({choice.host.name for choice in free})
        title = f"{format_count(host_count, 'host')} with {count} {what} free"
        title = title if free else f"No host has {count} {what} free"
    else:
        title = f"{len(free)} {what} free" if free else f"No {what} is free"
    gpus = [gpu for host in hosts for gpu in host.gpus]
    of_model = [gpu for gpu in gpus if gpu_models.is_matching_model(model, gpu.model, gpu.name)]
    lines: list[str] = []
    if not of_model:
        models = dict.fromkeys(gpu.model for gpu in gpus)
        lines = [f"no GPU of that model; available models: {', '.join(models) or 'none'}"]
    elif not free:
        lines = [format_answer_state_counts(of_model)]
    numbers_by_kind: dict[tuple[str, str, str, str], list[GpuNumber]] = {}  # equal GPUs of a host share a row
    for host, gpu, *_ in free:
        free_memory = gpu.free_memory
        size = UNKNOWN_CELL if free_memory is None else formatting.format_size(free_memory)
        until = client_render.describe_gpu_booking(gpu, context.now).removeprefix("until ")
        numbers_by_kind.setdefault((host.name, gpu.model, size, until), []).append(gpu.place or gpu.index)
    rows: tuple[tuple[str, ...], ...] = tuple(
        (kind[0], format_answer_number_ranges(numbers), *kind[1:]) for kind, numbers in numbers_by_kind.items()
    )
    titles: tuple[str, ...] = ("host", "GPUs", "model", "memory", "until")
    if not any(row[-1] for row in rows):  # a phone is narrow
        titles, rows = titles[:-1], tuple(row[:-1] for row in rows)
    table = AnswerTable(titles, rows, frozenset({3}), "{} more rows") if rows else None
    return build_slack_answer(context, title, table, lines, list_silent_answer_hosts(context.fleet))


def answer_help(unknown: str = "", suggestion: str = "") -> SlackAnswer:
    if not unknown:
        return SlackAnswer("Commands", HELP_LINES)
    hint = f"did you mean `{suggestion}`?" if suggestion else "commands:"
    return SlackAnswer(f"Unknown command “{unknown[:40]}”", (hint, *HELP_LINES))


def build_slack_answer(
    context: AnswerContext, title: str, table: AnswerTable | None, lines: Iterable[str] = (), notes: Iterable[str] = ()
) -> SlackAnswer:
    """Build an answer that ends with the time of the board."""
    return SlackAnswer(title, tuple(lines), table, (*notes, f"as of {context.now.local:%H:%M}"), context.link)


def order_answers_by_importance(hosts: Sequence[FleetHost]) -> Sequence[FleetHost]:
    """Keep the order of hosts, unless there are too many: then those in trouble first, and those with free GPUs."""
    if len(hosts) <= MAX_ROWS:
        return hosts
    return sorted(hosts, key=lambda host: (host.state == "fresh", all(gpu.state != "free" for gpu in host.gpus)))


def shorten_answer_command(command: str) -> str:
    return truncate_terminal_text(client_render.shorten_table_command(command), MAX_COMMAND_WIDTH)


def list_silent_answer_hosts(fleet: Fleet) -> list[str]:
    """Name the hosts in unknown state."""
    states = [f"{host.name} is {host.state}" for host in fleet.hosts if host.state != "fresh"]
    return [f"unknown: {formatting.format_names(states)}"] if states else []


def format_answer_state_counts(gpus: Iterable[FleetGpu]) -> str:
    """Format `12 GPUs: 3 free, 8 busy, 1 lost`."""
    counts = Counter(gpu.state for gpu in gpus)
    states = ", ".join(f"{counts[state]} {state}" for state in STATE_ORDER if counts[state])
    return f"{format_count(sum(counts.values()), 'GPU')}: {states}" if states else "no GPUs"


def format_answer_number_ranges(numbers: Iterable[GpuNumber]) -> str:
    """Format `0-3,5,6:1`."""
    unique = set(numbers)
    ranges: list[list[int]] = []
    for number in sorted(number for number in unique if isinstance(number, int)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [
        str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}"
        for first, last in ranges
    ]
    texts += sorted((number for number in unique if isinstance(number, str)), key=gpu_number_sort_key)
    return ",".join(texts) or UNKNOWN_CELL


# Bookings


class IncompleteBookingAnswerError(Exception):
    """A booking message lacks something."""


class BookingAnswers(NamedTuple):
    """Books and releases GPUs for members."""

    settings: Settings
    service: BookingService

    def answer(self, command: str, login: str, words: Sequence[str]) -> SlackAnswer:
        """Run `book` or `release` as a user, and answer errors in one sentence; `release` alone lists bookings."""
        try:
            name = check_booking_name(login)
            user = BookingUser(name, fold_login(name) in self.settings.booking_policy.admins, "slack")
            if command == "book":
                return self.book(user, words)
            return self.release(user, words) if words else self.list_own(user)
        except IncompleteBookingAnswerError as error:
            return SlackAnswer(str(error), BOOKING_EXAMPLES)
        except (BookingRefusedError, json_edit.EntryPlacementError, UnclearRequestError, BookingNameError) as error:
            return SlackAnswer("That cannot be done", (str(error),), link=self.settings.url)
        except (BookingsUnreadableError, FleetUnavailableError, LockedFileError) as error:
            # the folders of this machine do not concern people elsewhere
            folders = {"data": self.settings.data, "state": self.settings.state}
            labels = {str(form): label for label, path in folders.items() for form in (path.absolute(), path)}
            hidden = formatting.hide_paths(str(error), labels)
            return SlackAnswer("The booking service cannot save right now", (hidden,))

    def book(self, user: BookingUser, words: Sequence[str]) -> SlackAnswer:
        response = booking_service.handle_service_request(self.service, parse_booking_to_answer(words), user)
        ids = list(dict.fromkeys(str(booking["id"]) for booking in response["bookings"]))
        hint = f"to cancel: `release {' '.join(ids)}`"
        lines = (*format_answer_response_lines(response), hint)
        return SlackAnswer(f"Booked {', '.join(ids)}", lines, None, (self.describe_zone(),), self.settings.url)

    def release(self, user: BookingUser, words: Sequence[str]) -> SlackAnswer:
        """Release everything that was named, or nothing: one request for each id, and one for all GPUs."""
        host_names = self.service.begin_read(user).hosts.host_names
        names = list(dict.fromkeys(word.strip(",") for word in words if word.strip(",")))
        gpus = [name for name in names if ":" in name or host_names.find(name)]
        requests: list[dict[str, Any]] = [{"do": "release", "id": name} for name in names if name not in gpus]
        if gpus:
            requests.append({"do": "release", "gpus": gpus})
        for request in requests if len(requests) > 1 else ():
            booking_service.handle_service_request(self.service, {**request, "check": True}, user)
        lines = []
        for request in requests:
            lines += format_answer_response_lines(booking_service.handle_service_request(self.service, request, user))
        return SlackAnswer("Released", tuple(lines), link=self.settings.url)

    def list_own(self, user: BookingUser) -> SlackAnswer:
        bookings = [
            booking
            for booking in booking_service.list_service_bookings(self.service.begin_read(user))["bookings"]
            if booking["mine"]
        ]
        if not bookings:
            return SlackAnswer("You have no bookings", link=self.settings.url)
        lines = [
            f"`{booking['id']}` {booking['where']} until {booking['date'][:16].replace('T', ' ')}"
            for booking in bookings[:MAX_LISTED_BOOKINGS]
        ]
        if len(bookings) > MAX_LISTED_BOOKINGS:
            lines.append(f"and {len(bookings) - MAX_LISTED_BOOKINGS} more")
        lines.append("cancel one with `release ID`")
        return SlackAnswer("Which of your bookings?", tuple(lines), None, (self.describe_zone(),), self.settings.url)

    def describe_zone(self) -> str:
        """Name the time zone: whoever asks may be elsewhere."""
        now = self.service.now()
        return f"times of {getattr(now.zone, 'key', None) or now.local.tzname()}"


def format_answer_response_lines(response: dict[str, Any]) -> list[str]:
    return [response["said"], *(f"note: {warning}" for warning in response["warnings"])]


def parse_booking_to_answer(words: Sequence[str]) -> dict[str, Any]:
    """Parse `atlas:0,1 until fri 18:00 comment ICML run` as a booking request."""
    if not words:
        raise IncompleteBookingAnswerError("Which GPUs, and until when?")
    places: list[str] = []
    words_by_option: dict[str, list[str]] = {}
    current = places
    for index, word in enumerate(words):
        option = word.lower().removeprefix("--").rstrip(":=")
        option = OPTION_SYNONYMS.get(option, option)
        if option == "comment":  # it goes on to the end
            words_by_option[option] = list(words[index + 1 :])
            break
        if option in words_by_option:
            raise IncompleteBookingAnswerError(f"`{option}` is given twice")
        if option in OPTION_WORDS:
            current = words_by_option[option] = []
        else:
            current.append(word)
    options = {option: " ".join(values).strip("\"' ") for option, values in words_by_option.items()}
    if "" in options.values():
        option = next(option for option, text in options.items() if not text)
        raise IncompleteBookingAnswerError(f"`{option}` needs a value")
    if not places:
        raise IncompleteBookingAnswerError("Which GPUs?")
    if not options.keys() & {"until", "for"}:
        raise IncompleteBookingAnswerError("Until when?")
    count_match = COUNT_PATTERN.fullmatch(places[0])
    if not count_match and places[0].lower() not in ANY_WORDS:
        joined = re.sub(r"\s*,\s*", ",", " ".join(places))  # `atlas:0, 1` is one name
        return {"do": "book", "gpus": [gpu.strip(",") for gpu in joined.split() if gpu.strip(",")], **options}
    # a number of a model: `2 A100`, `any A100`
    model_words = [word for word in places[1:] if word.lower() not in FILLER_WORDS]
    if not count_match and model_words and (count_match := COUNT_PATTERN.fullmatch(model_words[0])):
        model_words = model_words[1:]
    model = {"model": " ".join(model_words)} if model_words else {}
    return {"do": "book", "any": int(count_match[1]) if count_match else 1, **model, **options}
