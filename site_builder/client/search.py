"""Search hosts and GPUs by the words of the page's search box, with the same meaning as there.

www/assets/search.js does the same in the page; the cases in tests/support/searches.py hold for both.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.core import formatting
from site_builder.core.formatting import format_name_counts

TERM_PATTERN = re.compile(r'([a-z]+)(>=|<=|[:<>=])("[^"]*"|\S*)|"([^"]*)"|(\S+)')
SIZE_PATTERN = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)(?:gi?b?)?")
SEARCH_FIELDS = ("host", "gpu", "model", "state", "user", "command", "pid", "booking", "tag")
# A state means itself as a bare word too.
SEARCH_STATES = (
    *("free", "busy", "held", "booked", "conflict", "lost", "unknown", "maintenance"),
    *("stale", "down", "failed", "unseen"),
)
MEMORY_HINT = "Memory is in GiB: mem>40, mem>=40, mem<40 or mem=40."
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "mem>": operator.gt,
    "mem>=": operator.ge,
    "mem<": operator.lt,
    "mem<=": operator.le,
    "mem=": operator.eq,
}
# Fields whose values may contain spaces.
FIELDS_WITH_SPACES = frozenset({"user", "model", "command", "booking"})
STATE_LABELS = {"held": "held idle"}
UNKNOWN_USER = "unknown user"
MEAN_USE_STEP = 5


class SearchTerm(NamedTuple):
    """A word of a search; `key` is a field, `mem` with a comparison, or `any` text. A hint says what would work."""

    key: str
    word: str
    number: float = 0
    hint: str = ""


def parse_search_text(text: str) -> list[SearchTerm]:
    """Parse a search: `free`, `mem>=20`, `gpu:0`, or any text; a word that is not typed to its end is left out."""
    terms = []
    for match in TERM_PATTERN.finditer(text.lower()):
        key, sign, value, quoted, plain = match.groups()
        size = SIZE_PATTERN.fullmatch(value or "")
        if key == "mem" and sign != ":" and (size or not value):
            term = SearchTerm(f"mem{sign}", value, float(size[1]) if size else 0)
        elif sign == ":" and key in SEARCH_FIELDS:
            word = value.replace('"', "")
            is_unknown_state = key == "state" and not any(state.startswith(word) for state in SEARCH_STATES)
            term = SearchTerm(key, word, hint=f"The states are {', '.join(SEARCH_STATES)}." if is_unknown_state else "")
        elif plain in SEARCH_STATES:
            term = SearchTerm("state", plain)
        else:
            word = (plain or match[0]).removeprefix('"') if quoted is None else quoted
            term = SearchTerm("any", word, hint=find_search_hint(key or plain, sign))
        if term.word:
            terms.append(term)
    return terms


def find_search_hint(key: str | None, sign: str | None) -> str:
    """Return a hint for text that looks like a field but is not one."""
    if key == "mem":
        return MEMORY_HINT
    if sign == ":":
        fields = ", ".join(f"{field}:" for field in SEARCH_FIELDS)
        return f"{key}: is not a search field. The fields are {fields} and mem>40."
    return f"Only memory can be compared. {MEMORY_HINT}" if sign and sign != "=" else ""


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
        # train.py is not a host `train`, for a domain has dots in it
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
        gpu_models = [""] * len(host.gpus)
        if any(term.key in {"model", "any"} for term in terms):
            models = list_searched_models(host)
            if len(set(models.values())) > 1:  # each GPU has its own model
                gpu_models = [models.get(gpu.parent_keys or position, "") for position, gpu in enumerate(host.gpus)]
                texts["model"] = ""
            else:
                texts["model"] = format_name_counts(filter(None, models.values())).lower()
            state = () if host.state == "fresh" else (host.state, host.reason)
            texts["any"] = "\n".join((host.name, host.title or "", texts["model"], *host.tags, *state)).lower()
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
            gpu
            for gpu, model in zip(host.gpus, gpu_models)
            if all(is_gpu_search_match(host, gpu, model.lower(), term, fleet.built) for term in open_terms)
        )
        if gpus or not (host.gpus or open_terms):
            hosts.append(host._replace(gpus=gpus))
    return fleet._replace(hosts=tuple(hosts))


def list_searched_models(host: FleetHost) -> dict[object, str]:
    """Return the model of each whole GPU, with its instances: `H100 80 GB (2 × 1g.10gb)`; empty if unknown."""
    models: dict[object, str] = {}
    for position, gpu in enumerate(host.gpus):
        if not gpu.parent_keys:
            models[position] = gpu.model if gpu.name else ""
        elif gpu.parent_keys not in models:
            profiles = [instance.profile or "MIG" for instance in host.gpus if instance.parent_keys == gpu.parent_keys]
            model = f"{host.find_parent(gpu).model} ({format_name_counts(profiles, alone='')})"
            models[gpu.parent_keys] = model if gpu.name else ""
    return models


def is_gpu_search_match(host: FleetHost, gpu: FleetGpu, model: str, term: SearchTerm, now: float) -> bool:
    """Return whether a term fits a GPU of this host, whatever fits the host itself."""
    if term.key == "state":
        return gpu.state.startswith(term.word)
    if term.key == "gpu":
        return not {gpu.label.lower(), *gpu.parent_keys[:1]}.isdisjoint(term.word.split(","))
    if term.key == "pid":
        return not {str(process.pid) for process in gpu.processes}.isdisjoint(term.word.split(","))
    if term.key in COMPARISONS:
        if gpu.memory_total is None or gpu.state == "lost":  # a GPU whose memory is not known fits nothing
            return False
        size = float(formatting.format_gib(gpu.memory_total))  # as it is shown
        if gpu.is_memory_shared:  # what can be allocated now
            if gpu.memory_used is None:
                return False
            size -= float(formatting.format_gib(gpu.memory_used))
        return COMPARISONS[term.key](size, term.number)
    if term.word in model and term.key in {"model", "any"}:
        return True
    return term.word in build_gpu_search_text(gpu, term.key, now).lower() or (
        term.key == "any" and term.word in f"{host.name}:{gpu.label}".lower()
    )


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
        pid_text = "" if process.pid is None else f"pid {process.pid}"
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
