"""Which hosts and GPUs fit a search: the words of the page's search box, with the same meaning as there.

www/assets/search.js is the other half; the cases in tests/searches.py hold for both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost, FleetProcess
from site_builder.core import formatting

TERM_PATTERN = re.compile(r'([a-z]+)([:<>])("[^"]*"|\S*)|"([^"]*)"|(\S+)')
NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?")
SEARCH_FIELDS = frozenset({"state", "tag", "host", "user", "model", "command", "booking"})
# What people may write there has blanks in it.
FIELDS_WITH_SPACES = frozenset({"user", "model", "command", "booking"})
STATE_LABELS = {"held": "held idle"}
UNKNOWN_USER = "unknown user"
MEAN_USE_STEP = 5


class SearchTerm(NamedTuple):
    """One word of a search; `key` is a field, `mem>`, `mem<`, or `any` text."""

    key: str
    word: str
    number: float = 0


# The words


def parse_search_text(text: str) -> list[SearchTerm]:
    """The words of a search: `state:free`, `mem>20`, or any text; one that is not yet typed to its end is none."""
    return [one for match in TERM_PATTERN.finditer(text.lower()) if (one := build_search_term(match)).word]


def build_search_term(match: re.Match[str]) -> SearchTerm:
    """One of them."""
    key, sign, value, quoted, plain = match.groups()
    if key == "mem" and sign != ":" and (not value or NUMBER_PATTERN.fullmatch(value)):
        return SearchTerm(f"mem{sign}", value, float(value or 0))
    if sign == ":" and key in SEARCH_FIELDS:
        return SearchTerm(key, value.replace('"', ""))
    return SearchTerm("any", (plain or match[0]).removeprefix('"') if quoted is None else quoted)


def parse_search_arguments(arguments: Sequence[str]) -> list[SearchTerm]:
    """The same of a command line, where the shell has taken the quotes away that held several words together."""
    found: list[SearchTerm] = []
    for argument in arguments:
        several = parse_search_text(argument)
        further = any(one.key != "any" for one in several[1:])
        if '"' in argument or further or len(several) < 2 or several[0].key not in {*FIELDS_WITH_SPACES, "any"}:
            found += several
        else:
            first = several[0]
            text = argument.strip().lower()
            found.append(SearchTerm(first.key, text if first.key == "any" else text.partition(":")[2].strip()))
    return found


# The fleet


def search_fleet(fleet: Fleet, arguments: Sequence[str]) -> Fleet:
    """What fits a command line: a word that is the name of a host means that host, and several of them all of these."""
    named = {word: find_named_host(fleet, word) for word in arguments}
    chosen = {one.name for one in named.values() if one}
    hosts = tuple(one for one in fleet.hosts if one.name in chosen) if chosen else fleet.hosts
    return match_fleet(
        fleet._replace(hosts=hosts), parse_search_arguments([word for word, host in named.items() if not host])
    )


def find_named_host(fleet: Fleet, word: str) -> FleetHost | None:
    """The host that a word names; train.py is no host `train`, for a domain has dots in it."""
    found = fleet.find_host(word)
    return found if found and (word.count(".") != 1 or found.name.lower() == word.lower()) else None


def match_fleet(fleet: Fleet, several: Sequence[SearchTerm]) -> Fleet:
    """The hosts and GPUs that all words fit; a host without GPUs may fit by itself."""
    if not several:
        return fleet
    found = (match_host(host, several, fleet.built) for host in fleet.hosts)
    return fleet._replace(hosts=tuple(one for one in found if one))


def match_host(host: FleetHost, several: Sequence[SearchTerm], now: float) -> FleetHost | None:
    """A host with those of its GPUs that fit."""
    about = {one.key: build_host_text(host, one.key) for one in several}
    # what the host fits need not be asked of each GPU
    open_terms = [one for one in several if not is_host_match(host, about[one.key], one)]
    if not host.gpus:
        return host if not open_terms else None
    gpus = tuple(gpu for gpu in host.gpus if all(is_gpu_match(gpu, one, now) for one in open_terms))
    return host._replace(gpus=gpus) if gpus else None


def build_host_text(host: FleetHost, key: str) -> str:
    """All that can be searched of a host under a key."""
    if key == "host":
        return host.name.lower()
    if key == "model":
        return describe_models(host).lower()
    if key == "any":
        state = () if host.state == "fresh" else (host.state, host.reason)
        return "\n".join((host.name, host.title or "", describe_models(host), *host.tags, *state)).lower()
    return ""


def describe_models(host: FleetHost) -> str:
    """`4 × H100 80 GB, 1 × T4 16 GB`, as the board writes it."""
    if not host.mig_gpus:
        return format_name_counts(one.model for one in host.gpus if one.name)
    told: dict[object, str] = {}
    for place, one in enumerate(host.gpus):
        if one.name and not one.parent_keys:
            told[place] = one.model
        elif one.name and one.parent_keys not in told:
            profiles = [each.profile or "MIG" for each in host.gpus if each.parent_keys == one.parent_keys]
            told[one.parent_keys] = f"{host.find_parent(one).model} ({format_name_counts(profiles, alone='')})"
    return format_name_counts(told.values())


def format_name_counts(names: Iterable[str], alone: str = "1 × ") -> str:
    """Each name once, with how many have it."""
    return ", ".join(f"{alone if count == 1 else f'{count} × '}{name}" for name, count in Counter(names).items())


def is_host_match(host: FleetHost, text: str, one: SearchTerm) -> bool:
    """Whether a word fits a host, and with it all of its GPUs; those of a fresh one have states of their own."""
    if one.key == "state":
        return (host.state != "fresh" or not host.gpus) and host.state.startswith(one.word)
    if one.key == "tag":
        return one.word in (tag.lower() for tag in host.tags)
    return one.word in text


def is_gpu_match(gpu: FleetGpu, one: SearchTerm, now: float) -> bool:
    """Whether a word fits a GPU, whatever its host is."""
    if one.key == "state":
        return gpu.state.startswith(one.word)
    if one.key in {"mem>", "mem<"}:
        return is_memory_match(gpu, one)
    return one.word in build_gpu_text(gpu, one.key, now).lower()


def is_memory_match(gpu: FleetGpu, one: SearchTerm) -> bool:
    """Whether it has so much memory, in GiB as they are shown; one that does not tell it fits nothing."""
    if gpu.memory_total is None or gpu.state == "lost":
        return False
    memory = float(formatting.format_gib(gpu.memory_total))
    return memory > one.number if one.key == "mem>" else memory < one.number


# What can be searched of a GPU


def build_gpu_text(gpu: FleetGpu, key: str, now: float) -> str:
    """All that can be searched of a GPU under a key."""
    if key == "any":
        return build_full_gpu_text(gpu, now)
    if key == "user":
        return "\n".join(one.user or UNKNOWN_USER for one in gpu.processes)
    if key == "command":
        return "\n".join(one.command or "" for one in gpu.processes)
    return build_bookings_text(gpu, now) if key == "booking" else ""


def build_bookings_text(gpu: FleetGpu, now: float) -> str:
    """Who has booked it, what for, and whether that is kept."""
    return "\n".join(build_booking_text(one, now) for one in gpu.bookings)


def build_booking_text(one: FleetBooking, now: float) -> str:
    """A booking in the words of the board, but for its times, which it tells in everybody's own zone."""
    told = [one.name or ""]
    if one.until.timestamp() <= now:
        told.append("until , ended")
    elif one.since and one.since.timestamp() > now:
        told.append("from until")
    else:
        told.append(f"until · {build_booking_use_text(one)}")
    return " ".join((*told, "·", one.comment or ""))


def build_booking_use_text(one: FleetBooking) -> str:
    """Whether one that runs is kept."""
    if one.used_by_since is not None:
        return f"used by {formatting.join_names(one.used_by) if one.used_by else 'another'} since"
    told = [] if one.unused_since is None else ["unused since"]
    mean = 0 if one.mean_use is None else round(one.mean_use / MEAN_USE_STEP) * MEAN_USE_STEP
    if mean or (one.mean_use is not None and one.unused_since is None):
        told.append(f"{mean} % used on average")
    return " · ".join(told)


def build_full_gpu_text(gpu: FleetGpu, now: float) -> str:
    """All that somebody wrote about it, and its state with the reason where the board shows that."""
    told = [
        STATE_LABELS.get(gpu.state, gpu.state),
        gpu.profile or "",
        *map(build_process_text, gpu.processes),
        build_bookings_text(gpu, now),
    ]
    if gpu.problems:
        told += list_row_problems(gpu)
    if gpu.state in {"unknown", "lost", "held"} or (gpu.state == "busy" and not gpu.processes):
        told.append(gpu.reason)
    last = max((one.until.timestamp() for one in gpu.bookings if is_current_booking(one, now)), default=gpu.free_again)
    if gpu.free_again is not None and last is not None and gpu.free_again > last:
        told.append("free again")
    return "\n".join(told)


def list_row_problems(gpu: FleetGpu) -> list[str]:
    """What is wrong with it, as far as its row tells it: of one that is lost, what to do."""
    if gpu.state == "lost":
        return [gpu.problems[0].advice]
    return [one.what for one in gpu.problems if one.severity != "info" or one.avoid]


def is_current_booking(one: FleetBooking, now: float) -> bool:
    """Whether it is the present one."""
    return (one.since is None or one.since.timestamp() <= now) and one.until.timestamp() > now


def build_process_text(one: FleetProcess) -> str:
    """A process in the words of the board."""
    size = "" if one.used_memory is None else formatting.format_size(one.used_memory)
    which = f"pid {one.pid}" if not one.user and one.pid is not None else ""
    return f"{one.user or UNKNOWN_USER} {one.command or ''} {which} {size}"
