"""Which hosts and GPUs fit a search: the words of the page's search box, with the same meaning as there.

www/assets/find.js is the other half; the cases in tests/searches.py hold for both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from site_builder.client.model import Booking, Fleet, Gpu, Host, Process
from site_builder.core import formatting

TERM = re.compile(r'([a-z]+)([:<>])("[^"]*"|\S*)|"([^"]*)"|(\S+)')
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?")
FIELDS = frozenset({"state", "tag", "host", "user", "model", "command", "booking"})
# What people may write there has blanks in it.
WITH_BLANKS = frozenset({"user", "model", "command", "booking"})
STATES = {"held": "held idle"}
NOBODY = "unknown user"
MEAN_STEP = 5


class Term(NamedTuple):
    """One word of a search; `key` is a field, `mem>`, `mem<`, or `any` text."""

    key: str
    word: str
    number: float = 0


# The words


def terms(text: str) -> list[Term]:
    """The words of a search: `state:free`, `mem>20`, or any text; one that is not yet typed to its end is none."""
    return [one for match in TERM.finditer(text.lower()) if (one := term(match)).word]


def term(match: re.Match[str]) -> Term:
    """One of them."""
    key, sign, value, quoted, plain = match.groups()
    if key == "mem" and sign != ":" and (not value or NUMBER.fullmatch(value)):
        return Term(f"mem{sign}", value, float(value or 0))
    if sign == ":" and key in FIELDS:
        return Term(key, value.replace('"', ""))
    return Term("any", (plain or match[0]).removeprefix('"') if quoted is None else quoted)


def typed(arguments: Sequence[str]) -> list[Term]:
    """The same of a command line, where the shell has taken the quotes away that held several words together."""
    found: list[Term] = []
    for argument in arguments:
        several = terms(argument)
        further = any(one.key != "any" for one in several[1:])
        if '"' in argument or further or len(several) < 2 or several[0].key not in {*WITH_BLANKS, "any"}:
            found += several
        else:
            first = several[0]
            text = argument.strip().lower()
            found.append(Term(first.key, text if first.key == "any" else text.partition(":")[2].strip()))
    return found


# The fleet


def only(fleet: Fleet, arguments: Sequence[str]) -> Fleet:
    """What fits a command line: a word that is the name of a host means that host, and several of them all of these."""
    named = {word: host_of(fleet, word) for word in arguments}
    chosen = {one.name for one in named.values() if one}
    hosts = tuple(one for one in fleet.hosts if one.name in chosen) if chosen else fleet.hosts
    return fitting(fleet._replace(hosts=hosts), typed([word for word, host in named.items() if not host]))


def host_of(fleet: Fleet, word: str) -> Host | None:
    """The host that a word names; train.py is no host `train`, for a domain has dots in it."""
    found = fleet.host(word)
    return found if found and (word.count(".") != 1 or found.name.lower() == word.lower()) else None


def fitting(fleet: Fleet, several: Sequence[Term]) -> Fleet:
    """The hosts and GPUs that all words fit; a host without GPUs may fit by itself."""
    if not several:
        return fleet
    found = (fitting_part(host, several, fleet.built) for host in fleet.hosts)
    return fleet._replace(hosts=tuple(one for one in found if one))


def fitting_part(host: Host, several: Sequence[Term], now: float) -> Host | None:
    """A host with those of its GPUs that fit."""
    about = {one.key: host_text(host, one.key) for one in several}
    # what the host fits need not be asked of each GPU
    open_terms = [one for one in several if not fits_host(host, about[one.key], one)]
    if not host.gpus:
        return host if not open_terms else None
    gpus = tuple(gpu for gpu in host.gpus if all(fits_gpu(gpu, one, now) for one in open_terms))
    return host._replace(gpus=gpus) if gpus else None


def host_text(host: Host, key: str) -> str:
    """All that can be searched of a host under a key."""
    if key == "host":
        return host.name.lower()
    if key == "model":
        return models(host).lower()
    if key == "any":
        state = () if host.state == "fresh" else (host.state, host.reason)
        return "\n".join((host.name, host.title or "", models(host), *host.tags, *state)).lower()
    return ""


def models(host: Host) -> str:
    """`4 × H100 80 GB, 1 × T4 16 GB`, as the board writes it."""
    if not host.cut:
        return counted(one.model for one in host.gpus if one.name)
    told: dict[object, str] = {}
    for place, one in enumerate(host.gpus):
        if one.name and not one.of:
            told[place] = one.model
        elif one.name and one.of not in told:
            profiles = [each.profile or "MIG" for each in host.gpus if each.of == one.of]
            told[one.of] = f"{host.whole_of(one).model} ({counted(profiles, alone='')})"
    return counted(told.values())


def counted(names: Iterable[str], alone: str = "1 × ") -> str:
    """Each name once, with how many have it."""
    return ", ".join(f"{alone if count == 1 else f'{count} × '}{name}" for name, count in Counter(names).items())


def fits_host(host: Host, text: str, one: Term) -> bool:
    """Whether a word fits a host, and with it all of its GPUs; those of a fresh one have states of their own."""
    if one.key == "state":
        return (host.state != "fresh" or not host.gpus) and host.state.startswith(one.word)
    if one.key == "tag":
        return one.word in (tag.lower() for tag in host.tags)
    return one.word in text


def fits_gpu(gpu: Gpu, one: Term, now: float) -> bool:
    """Whether a word fits a GPU, whatever its host is."""
    if one.key == "state":
        return gpu.state.startswith(one.word)
    if one.key in {"mem>", "mem<"}:
        return fits_memory(gpu, one)
    return one.word in gpu_text(gpu, one.key, now).lower()


def fits_memory(gpu: Gpu, one: Term) -> bool:
    """Whether it has so much memory, in GiB as they are shown; one that does not tell it fits nothing."""
    if gpu.memory_total is None or gpu.state == "lost":
        return False
    memory = float(formatting.gib(gpu.memory_total))
    return memory > one.number if one.key == "mem>" else memory < one.number


# What can be searched of a GPU


def gpu_text(gpu: Gpu, key: str, now: float) -> str:
    """All that can be searched of a GPU under a key."""
    if key == "any":
        return all_of(gpu, now)
    if key == "user":
        return "\n".join(one.user or NOBODY for one in gpu.processes)
    if key == "command":
        return "\n".join(one.command or "" for one in gpu.processes)
    return bookings(gpu, now) if key == "booking" else ""


def bookings(gpu: Gpu, now: float) -> str:
    """Who has booked it, what for, and whether that is kept."""
    return "\n".join(booking(one, now) for one in gpu.bookings)


def booking(one: Booking, now: float) -> str:
    """A booking in the words of the board, but for its times, which it tells in everybody's own zone."""
    told = [one.name or ""]
    if one.until.timestamp() <= now:
        told.append("until , ended")
    elif one.since and one.since.timestamp() > now:
        told.append("from until")
    else:
        told.append(f"until · {kept(one)}")
    return " ".join((*told, "·", one.comment or ""))


def kept(one: Booking) -> str:
    """Whether one that runs is kept."""
    if one.used_by_since is not None:
        return f"used by {formatting.names(one.used_by) if one.used_by else 'another'} since"
    told = [] if one.unused_since is None else ["unused since"]
    mean = 0 if one.mean_use is None else round(one.mean_use / MEAN_STEP) * MEAN_STEP
    if mean or (one.mean_use is not None and one.unused_since is None):
        told.append(f"{mean} % used on average")
    return " · ".join(told)


def all_of(gpu: Gpu, now: float) -> str:
    """All that somebody wrote about it, and its state with the reason where the board shows that."""
    told = [STATES.get(gpu.state, gpu.state), gpu.profile or "", *map(process, gpu.processes), bookings(gpu, now)]
    if gpu.problems:
        told += of_row(gpu)
    if gpu.state in {"unknown", "lost", "held"} or (gpu.state == "busy" and not gpu.processes):
        told.append(gpu.reason)
    last = max((one.until.timestamp() for one in gpu.bookings if is_running(one, now)), default=gpu.free_again)
    if gpu.free_again is not None and last is not None and gpu.free_again > last:
        told.append("free again")
    return "\n".join(told)


def of_row(gpu: Gpu) -> list[str]:
    """What is wrong with it, as far as its row tells it: of one that is lost, what to do."""
    if gpu.state == "lost":
        return [gpu.problems[0].advice]
    return [one.what for one in gpu.problems if one.weight != "told" or one.avoid]


def is_running(one: Booking, now: float) -> bool:
    """Whether it is the present one."""
    return (one.since is None or one.since.timestamp() <= now) and one.until.timestamp() > now


def process(one: Process) -> str:
    """A process in the words of the board."""
    size = "" if one.used_memory is None else formatting.size(one.used_memory)
    which = f"pid {one.pid}" if not one.user and one.pid is not None else ""
    return f"{one.user or NOBODY} {one.command or ''} {which} {size}"
