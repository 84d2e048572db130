"""Search hosts and GPUs by the words of the page's search box, with the same meaning as there.

www/assets/search.js does the same in the page; the cases in tests/support/searches.py hold for both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.core import formatting
from site_builder.core.formatting import format_name_counts

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


def parse_search_text(text: str) -> list[SearchTerm]:
    """Parse a search: `state:free`, `mem>20`, or any text; a word that is not typed to its end is left out."""
    terms = []
    for match in TERM_PATTERN.finditer(text.lower()):
        key, sign, value, quoted, plain = match.groups()
        if key == "mem" and sign != ":" and (not value or NUMBER_PATTERN.fullmatch(value)):
            term = SearchTerm(f"mem{sign}", value, float(value or 0))
        elif sign == ":" and key in SEARCH_FIELDS:
            term = SearchTerm(key, value.replace('"', ""))
        else:
            term = SearchTerm("any", (plain or match[0]).removeprefix('"') if quoted is None else quoted)
        if term.word:
            terms.append(term)
    return terms


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


def search_fleet(fleet: Fleet, arguments: Sequence[str]) -> Fleet:
    """Search by a command line: a word that names a host means that host, several of them all of these."""
    names, words = set(), []
    for word in dict.fromkeys(arguments):
        host = fleet.find_host(word)
        # train.py is no host `train`, for a domain has dots in it
        if host and (word.count(".") != 1 or host.name.lower() == word.lower()):
            names.add(host.name)
        else:
            words.append(word)
    hosts = tuple(host for host in fleet.hosts if host.name in names) if names else fleet.hosts
    return match_fleet_search(fleet._replace(hosts=hosts), parse_search_arguments(words))


def match_fleet_search(fleet: Fleet, terms: Sequence[SearchTerm]) -> Fleet:
    """Return the hosts with the GPUs that all terms fit; a host without GPUs may fit by itself."""
    if not terms:
        return fleet
    hosts = []
    for host in fleet.hosts:
        texts = {"host": host.name.lower()}
        if any(term.key in {"model", "any"} for term in terms):
            models = texts["model"] = describe_searched_models(host).lower()
            state = () if host.state == "fresh" else (host.state, host.reason)
            texts["any"] = "\n".join((host.name, host.title or "", models, *host.tags, *state)).lower()
        # a term that fits the host need not be checked for each GPU
        open_terms = []
        for term in terms:
            if term.key == "state":  # GPUs of a fresh host have states of their own
                is_match = (host.state != "fresh" or not host.gpus) and host.state.startswith(term.word)
            elif term.key == "tag":
                is_match = term.word in (tag.lower() for tag in host.tags)
            else:
                is_match = term.word in texts.get(term.key, "")
            if not is_match:
                open_terms.append(term)
        gpus = tuple(
            gpu for gpu in host.gpus if all(is_gpu_search_match(gpu, term, fleet.built) for term in open_terms)
        )
        if gpus or not (host.gpus or open_terms):
            hosts.append(host._replace(gpus=gpus))
    return fleet._replace(hosts=tuple(hosts))


def describe_searched_models(host: FleetHost) -> str:
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


def is_gpu_search_match(gpu: FleetGpu, term: SearchTerm, now: float) -> bool:
    """Return whether a term fits a GPU, whatever its host is."""
    if term.key == "state":
        return gpu.state.startswith(term.word)
    if term.key in {"mem>", "mem<"}:
        if gpu.memory_total is None or gpu.state == "lost":  # a GPU whose memory is not known fits nothing
            return False
        memory = float(formatting.format_gib(gpu.memory_total))  # as it is shown
        return memory > term.number if term.key == "mem>" else memory < term.number
    return term.word in build_gpu_search_text(gpu, term.key, now).lower()


def build_gpu_search_text(gpu: FleetGpu, key: str, now: float) -> str:
    """Return all that can be searched of a GPU under a key."""
    if key == "user":
        return "\n".join(process.user or UNKNOWN_USER for process in gpu.processes)
    if key == "command":
        return "\n".join(process.command or "" for process in gpu.processes)
    if key not in {"booking", "any"}:
        return ""
    bookings = "\n".join(build_booking_search_text(booking, now) for booking in gpu.bookings)
    if key == "booking":
        return bookings
    texts = [STATE_LABELS.get(gpu.state, gpu.state), gpu.profile or ""]
    for process in gpu.processes:
        size = "" if process.used_memory is None else formatting.format_size(process.used_memory)
        pid_text = f"pid {process.pid}" if not process.user and process.pid is not None else ""
        texts.append(f"{process.user or UNKNOWN_USER} {process.command or ''} {pid_text} {size}")
    texts.append(bookings)
    if gpu.problems and gpu.state == "lost":
        texts.append(gpu.problems[0].advice)
    else:
        texts += [problem.what for problem in gpu.problems if problem.is_visible]
    # the reason where the board shows it
    if gpu.state in {"unknown", "lost", "held"} or (gpu.state == "busy" and not gpu.processes):
        texts.append(gpu.reason)
    if gpu.free_again is not None:
        current_ends = [booking.until.timestamp() for booking in gpu.bookings if booking.is_current(now)]
        if gpu.free_again > max(current_ends, default=gpu.free_again):
            texts.append("free again")
    return "\n".join(texts)


def build_booking_search_text(booking: FleetBooking, now: float) -> str:
    """Return a booking in the words of the board, without its times, which everybody sees in their own zone."""
    if booking.until.timestamp() <= now:
        phase = "until , ended"
    elif booking.since and booking.since.timestamp() > now:
        phase = "from until"
    elif booking.used_by_since is not None:
        phase = f"until · used by {formatting.format_names(booking.used_by) if booking.used_by else 'another'} since"
    else:
        texts = [] if booking.unused_since is None else ["unused since"]
        mean_use = 0 if booking.mean_use is None else round(booking.mean_use / MEAN_USE_STEP) * MEAN_USE_STEP
        if mean_use or (booking.mean_use is not None and booking.unused_since is None):
            texts.append(f"{mean_use} % used on average")
        phase = f"until · {' · '.join(texts)}"
    return f"{booking.name or ''} {phase} · {booking.comment or ''}"
