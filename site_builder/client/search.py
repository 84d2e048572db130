"""Search hosts and GPUs by the words of the page's search box, with the same meaning as there.

www/assets/search.js does the same in the page; the cases in tests/support/searches.py hold for both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.core import formatting
from site_builder.core.model import ProcessStatus

TERM_PATTERN = re.compile(r'([a-z]+)([:<>])("[^"]*"|\S*)|"([^"]*)"|(\S+)')
NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?")
SEARCH_FIELDS = frozenset({"state", "tag", "host", "user", "model", "command", "booking"})
# Fields whose values may contain spaces.
FIELDS_WITH_SPACES = frozenset({"user", "model", "command", "booking"})
STATE_LABELS = {"held": "held idle"}
UNKNOWN_USER = "unknown user"
MEAN_USE_STEP = 5


class SearchTerm(NamedTuple):
    """A word of a search; `key` is a field, `mem>`, `mem<`, or `any` text."""

    key: str
    word: str
    number: float = 0


# The words


def parse_search_text(text: str) -> list[SearchTerm]:
    """Parse a search: `state:free`, `mem>20`, or any text; a word that is not typed to its end is left out."""
    return [term for match in TERM_PATTERN.finditer(text.lower()) if (term := build_search_term(match)).word]


def build_search_term(match: re.Match[str]) -> SearchTerm:
    key, sign, value, quoted, plain = match.groups()
    if key == "mem" and sign != ":" and (not value or NUMBER_PATTERN.fullmatch(value)):
        return SearchTerm(f"mem{sign}", value, float(value or 0))
    if sign == ":" and key in SEARCH_FIELDS:
        return SearchTerm(key, value.replace('"', ""))
    return SearchTerm("any", (plain or match[0]).removeprefix('"') if quoted is None else quoted)


def parse_search_arguments(arguments: Sequence[str]) -> list[SearchTerm]:
    """Parse the words of a command line, where the shell has removed the quotes around several words."""
    terms: list[SearchTerm] = []
    for argument in arguments:
        argument_terms = parse_search_text(argument)
        has_more_fields = any(term.key != "any" for term in argument_terms[1:])
        if (
            '"' in argument
            or has_more_fields
            or len(argument_terms) < 2
            or argument_terms[0].key not in {*FIELDS_WITH_SPACES, "any"}
        ):
            terms += argument_terms
        else:
            first = argument_terms[0]
            text = argument.strip().lower()
            terms.append(SearchTerm(first.key, text if first.key == "any" else text.partition(":")[2].strip()))
    return terms


# The fleet


def search_fleet(fleet: Fleet, arguments: Sequence[str]) -> Fleet:
    """Search by a command line: a word that names a host means that host, several of them all of these."""
    host_by_word = {word: find_named_host(fleet, word) for word in arguments}
    names = {host.name for host in host_by_word.values() if host}
    hosts = tuple(host for host in fleet.hosts if host.name in names) if names else fleet.hosts
    return match_fleet(
        fleet._replace(hosts=hosts), parse_search_arguments([word for word, host in host_by_word.items() if not host])
    )


def find_named_host(fleet: Fleet, word: str) -> FleetHost | None:
    """Return the host that a word names; train.py is no host `train`, for a domain has dots in it."""
    host = fleet.find_host(word)
    return host if host and (word.count(".") != 1 or host.name.lower() == word.lower()) else None


def match_fleet(fleet: Fleet, terms: Sequence[SearchTerm]) -> Fleet:
    """Return the hosts and GPUs that all terms fit; a host without GPUs may fit by itself."""
    if not terms:
        return fleet
    hosts = (match_host(host, terms, fleet.built) for host in fleet.hosts)
    return fleet._replace(hosts=tuple(host for host in hosts if host))


def match_host(host: FleetHost, terms: Sequence[SearchTerm], now: float) -> FleetHost | None:
    """Return a host with the GPUs that fit."""
    texts = {term.key: build_host_text(host, term.key) for term in terms}
    # a term that fits the host need not be checked for each GPU
    open_terms = [term for term in terms if not is_host_match(host, texts[term.key], term)]
    if not host.gpus:
        return host if not open_terms else None
    gpus = tuple(gpu for gpu in host.gpus if all(is_gpu_match(gpu, term, now) for term in open_terms))
    return host._replace(gpus=gpus) if gpus else None


def build_host_text(host: FleetHost, key: str) -> str:
    """Return all that can be searched of a host under a key."""
    if key == "host":
        return host.name.lower()
    if key == "model":
        return describe_models(host).lower()
    if key == "any":
        state = () if host.state == "fresh" else (host.state, host.reason)
        return "\n".join((host.name, host.title or "", describe_models(host), *host.tags, *state)).lower()
    return ""


def describe_models(host: FleetHost) -> str:
    """Describe the models of a host: `4 × H100 80 GB, 1 × T4 16 GB`."""
    if not host.mig_gpus:
        return format_name_counts(gpu.model for gpu in host.gpus if gpu.name)
    models: dict[object, str] = {}
    for position, gpu in enumerate(host.gpus):
        if gpu.name and not gpu.parent_keys:
            models[position] = gpu.model
        elif gpu.name and gpu.parent_keys not in models:
            profiles = [instance.profile or "MIG" for instance in host.gpus if instance.parent_keys == gpu.parent_keys]
            models[gpu.parent_keys] = f"{host.find_parent(gpu).model} ({format_name_counts(profiles, alone='')})"
    return format_name_counts(models.values())


def format_name_counts(names: Iterable[str], alone: str = "1 × ") -> str:
    """Format each name once, with its number."""
    return ", ".join(f"{alone if count == 1 else f'{count} × '}{name}" for name, count in Counter(names).items())


def is_host_match(host: FleetHost, text: str, term: SearchTerm) -> bool:
    """Return whether a term fits a host, and so all of its GPUs; GPUs of a fresh host have states of their own."""
    if term.key == "state":
        return (host.state != "fresh" or not host.gpus) and host.state.startswith(term.word)
    if term.key == "tag":
        return term.word in (tag.lower() for tag in host.tags)
    return term.word in text


def is_gpu_match(gpu: FleetGpu, term: SearchTerm, now: float) -> bool:
    """Return whether a term fits a GPU, whatever its host is."""
    if term.key == "state":
        return gpu.state.startswith(term.word)
    if term.key in {"mem>", "mem<"}:
        return is_memory_match(gpu, term)
    return term.word in build_gpu_text(gpu, term.key, now).lower()


def is_memory_match(gpu: FleetGpu, term: SearchTerm) -> bool:
    """Compare the memory in GiB as it is shown; a GPU whose memory is not known fits nothing."""
    if gpu.memory_total is None or gpu.state == "lost":
        return False
    memory = float(formatting.format_gib(gpu.memory_total))
    return memory > term.number if term.key == "mem>" else memory < term.number


# What can be searched of a GPU


def build_gpu_text(gpu: FleetGpu, key: str, now: float) -> str:
    """Return all that can be searched of a GPU under a key."""
    if key == "any":
        return build_full_gpu_text(gpu, now)
    if key == "user":
        return "\n".join(process.user or UNKNOWN_USER for process in gpu.processes)
    if key == "command":
        return "\n".join(process.command or "" for process in gpu.processes)
    return build_bookings_text(gpu, now) if key == "booking" else ""


def build_bookings_text(gpu: FleetGpu, now: float) -> str:
    return "\n".join(build_booking_text(booking, now) for booking in gpu.bookings)


def build_booking_text(booking: FleetBooking, now: float) -> str:
    """Return a booking in the words of the board, without its times, which everybody sees in their own zone."""
    words = [booking.name or ""]
    if booking.until.timestamp() <= now:
        words.append("until , ended")
    elif booking.since and booking.since.timestamp() > now:
        words.append("from until")
    else:
        words.append(f"until · {build_booking_use_text(booking)}")
    return " ".join((*words, "·", booking.comment or ""))


def build_booking_use_text(booking: FleetBooking) -> str:
    if booking.used_by_since is not None:
        return f"used by {formatting.join_names(booking.used_by) if booking.used_by else 'another'} since"
    texts = [] if booking.unused_since is None else ["unused since"]
    mean_use = 0 if booking.mean_use is None else round(booking.mean_use / MEAN_USE_STEP) * MEAN_USE_STEP
    if mean_use or (booking.mean_use is not None and booking.unused_since is None):
        texts.append(f"{mean_use} % used on average")
    return " · ".join(texts)


def build_full_gpu_text(gpu: FleetGpu, now: float) -> str:
    """Return all texts of a GPU, and its state with the reason where the board shows it."""
    texts = [
        STATE_LABELS.get(gpu.state, gpu.state),
        gpu.profile or "",
        *map(build_process_text, gpu.processes),
        build_bookings_text(gpu, now),
    ]
    if gpu.problems:
        texts += list_row_problems(gpu)
    if gpu.state in {"unknown", "lost", "held"} or (gpu.state == "busy" and not gpu.processes):
        texts.append(gpu.reason)
    last_end = max(
        (booking.until.timestamp() for booking in gpu.bookings if is_current_booking(booking, now)),
        default=gpu.free_again,
    )
    if gpu.free_again is not None and last_end is not None and gpu.free_again > last_end:
        texts.append("free again")
    return "\n".join(texts)


def list_row_problems(gpu: FleetGpu) -> list[str]:
    """List the problems that the row of a GPU shows; for a lost GPU, what to do."""
    if gpu.state == "lost":
        return [gpu.problems[0].advice]
    return [problem.what for problem in gpu.problems if problem.is_visible]


def is_current_booking(booking: FleetBooking, now: float) -> bool:
    return (booking.since is None or booking.since.timestamp() <= now) and booking.until.timestamp() > now


def build_process_text(process: ProcessStatus) -> str:
    """Return a process in the words of the board."""
    size = "" if process.used_memory is None else formatting.format_size(process.used_memory)
    pid_text = f"pid {process.pid}" if not process.user and process.pid is not None else ""
    return f"{process.user or UNKNOWN_USER} {process.command or ''} {pid_text} {size}"
