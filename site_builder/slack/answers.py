"""What the bot answers about the fleet: one function for each question, from the fleet to an Answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from site_builder.client import search
from site_builder.client import table as client_table
from site_builder.client.model import Booking, Fleet, Gpu, Host
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Number
from site_builder.core.names import in_order
from site_builder.core.people import People
from site_builder.core.terminal_text import cut
from site_builder.fleet import select
from site_builder.slack.blocks import MOST_ROWS, Answer, Table

NUMBERS = frozenset({2})
MOST_COMMAND = 40
MOST_ON_HOST = 64
# Not that of a profile of instances, such as 1g.10gb.
GIGABYTES = re.compile(r"(?<![\d.])(\d+)\s*gi?b\b", re.IGNORECASE)
HELP = (
    "`hosts` – every host: how it is, how many of its GPUs are free",
    "`all` – who is on which GPU; `all atlas`, `all state:free` for some of them",
    "`all detail` – the same GPU by GPU: use, memory, programs, bookings",
    "`where USER` – where somebody works, and what they have booked; `where me`",
    "`free` – the GPUs that are free, the best first; `free A100`, `free 2 A100` on one host",
    "`book atlas:0,1 until fri 18:00` – or `book 2 A100 for 8h`; with `from mon 9:00`, `comment ICML run`",
    "`release ID` – or `release atlas:0`; `release` alone lists what you have booked",
    "`help` – this",
)
HIDDEN = "the board names nobody here, so I do not either"


class Scene(NamedTuple):
    """What answers are made of: the fleet, its moment, whom names mean, and where the board is."""

    fleet: Fleet
    now: Now
    people: People
    users_shown: bool = True
    link: str | None = None


# Questions


def hosts(scene: Scene, asked: Sequence[str] = ()) -> Answer:
    """Every host in a row."""
    found = wanted(scene, asked)
    rows = tuple(host_row(one) for one in of_note(found.hosts))
    free = sum(gpu.state == "free" for one in found.hosts for gpu in one.gpus)
    count = sum(len(one.gpus) for one in found.hosts)
    title = f"{plural(len(found.hosts), 'host')}, {free} of {plural(count, 'GPU')} free"
    if not rows:
        return nothing(scene, asked)
    return told(scene, title, Table(("host", "state", "free", "GPUs", "load"), rows, NUMBERS, "{} more hosts"))


def host_row(host: Host) -> tuple[str, ...]:
    """How a host is; what nobody knows of one that is silent is not 0."""
    counts = Counter(gpu.model for gpu in host.gpus)
    models = ", ".join(f"{count} × {model}" for model, count in counts.items())
    if host.state != "fresh":
        return host.name, host.state, client_table.NOT_TOLD, models, host.reason
    free = sum(gpu.state == "free" for gpu in host.gpus)
    load = client_table.NOT_TOLD if host.load is None else f"{host.load[0]:.1f}"
    cpus = "" if host.cpus is None else f" of {host.cpus}"
    return host.name, "up", f"{free}/{len(host.gpus)}", models, f"{load}{cpus}"


def every(scene: Scene, asked: Sequence[str] = ()) -> Answer:
    """Every host in a row, with who is on which GPU; or with `detail` every GPU."""
    if asked and asked[0].lower() in {"detail", "details"}:
        return detail(scene, asked[1:])
    found = wanted(scene, asked)
    if not found.hosts:
        return nothing(scene, asked)
    rows = tuple((one.name, in_short(one)) for one in of_note(found.hosts))
    title = counted(gpu for one in found.hosts for gpu in one.gpus)
    return told(scene, title, Table(("host", "GPUs"), rows, more="{} more hosts"))


def in_short(host: Host) -> str:
    """`0,3 free · 1,2 alice · 4-7 bob (held)`."""
    if host.state != "fresh":
        return f"{host.state}: {host.reason}" if host.reason else host.state
    groups: dict[str, list[Number]] = {}
    for gpu in host.gpus:
        groups.setdefault(standing(gpu), []).append(gpu.place or gpu.index)
    return " · ".join(f"{numbers(several)} {what}" for what, several in groups.items()) or "no GPU"


def standing(gpu: Gpu) -> str:
    """Who is on a GPU, or how it is."""
    who = ", ".join(dict.fromkeys(one.user for one in gpu.processes if one.user))
    if gpu.state == "busy":
        return who or "busy"
    if gpu.avoid and gpu.state in {"free", "booked"}:
        return f"{gpu.state} (in trouble)"
    return f"{who} ({gpu.state})" if who and gpu.state in {"held", "violated"} else gpu.state


def detail(scene: Scene, asked: Sequence[str] = ()) -> Answer:
    """Every GPU in a row."""
    found = wanted(scene, asked)
    if not found.hosts:
        return nothing(scene, asked)
    rows: list[tuple[str, ...]] = []
    for host in found.hosts:
        if host.state != "fresh" or not host.gpus:
            rows.append(
                (
                    host.name,
                    client_table.NOT_TOLD,
                    client_table.NOT_TOLD,
                    client_table.NOT_TOLD,
                    f"{host.state}: {host.reason}",
                )
            )
            continue
        rows += [gpu_row(host, gpu, scene.now) for gpu in host.gpus]
    titles = ("GPU", "model", "use", "memory", "who and what")
    title = counted(gpu for one in found.hosts for gpu in one.gpus)
    return told(scene, title, Table(titles, tuple(rows), frozenset({2, 3}), "{} more GPUs: `all detail HOST`"))


def gpu_row(host: Host, gpu: Gpu, now: Now) -> tuple[str, ...]:
    """A GPU with its numbers, its processes and its promises."""
    running = [
        " ".join(filter(None, (one.user, brief(one.command or ""), since(one.started, now)))) for one in gpu.processes
    ]
    state = "" if gpu.state == "busy" and running else client_table.said(gpu) or gpu.state
    text = client_table.BETWEEN.join(filter(None, (state, *dict.fromkeys(running), client_table.promised(gpu, now))))
    use, memory = client_table.whole(gpu.utilization_gpu, " %"), client_table.memory(gpu.memory_used, gpu.memory_total)
    return f"{host.name}:{gpu.label}", gpu.model, use, memory, text


def since(started: int | None, now: Now) -> str:
    """How long ago it began, in short."""
    return "" if started is None else f"({client_table.ago(now.epoch - started, True)})"


def where(scene: Scene, name: str) -> Answer:
    """Where somebody works, and what is promised to them."""
    if not scene.users_shown:
        return Answer(HIDDEN, link=scene.link)
    person = scene.people.person(name)

    def is_them(other: str | None) -> bool:
        return other is not None and scene.people.person(other) == person

    rows, booked = [], []
    count = 0
    for host in scene.fleet.hosts:
        on = [gpu for gpu in host.gpus if any(is_them(one.user) for one in gpu.processes)]
        if on and host.state == "fresh":
            rows.append(work_row(host, on, is_them, scene.now))
            count += len(on)
        for gpu in host.gpus:
            booked += [
                (host.name, gpu.place or gpu.index, one)
                for one in gpu.bookings
                if is_them(one.name) and comes(one, scene)
            ]
    shown = scene.people.shown(name)
    title = f"{shown} is on {plural(count, 'GPU')} of {plural(len(rows), 'host')}" if rows else f"{shown} is on no GPU"
    lines = [*bookings(booked, scene.now), *([] if rows or booked else near_names(scene, name))]
    table = Table(("host", "GPUs", "memory", "what"), tuple(rows), NUMBERS, "{} more hosts") if rows else None
    return told(scene, title, table, lines, silent(scene.fleet))


def work_row(host: Host, on: Sequence[Gpu], is_them: Callable[[str | None], bool], now: Now) -> tuple[str, ...]:
    """What somebody has on a host."""
    own = [one for gpu in on for one in gpu.processes if is_them(one.user)]
    sizes = [one.used_memory for one in own]
    memory = client_table.NOT_TOLD if None in sizes else formatting.size(sum(one for one in sizes if one is not None))
    programs = ", ".join(dict.fromkeys(brief(one.command) for one in own if one.command))
    first = min((one.started for one in own if one.started is not None), default=None)
    held = [gpu.place or gpu.index for gpu in on if gpu.state == "held"]
    idle = f"{numbers(held)} held idle" if held else ""
    return (
        host.name,
        numbers([gpu.place or gpu.index for gpu in on]),
        memory,
        " ".join(filter(None, (programs, since(first, now), idle))),
    )


def comes(one: Booking, scene: Scene) -> bool:
    """Whether a booking is not over."""
    return one.until.timestamp() > scene.now.epoch


def bookings(several: Sequence[tuple[str, Number, Booking]], now: Now) -> list[str]:
    """Each booking in a line, over all of its GPUs."""
    groups: dict[tuple[str, Booking], list[Number]] = {}
    for host, index, one in several:
        alike = one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None)
        groups.setdefault((host, alike), []).append(index)
    lines = []
    for (host, one), indexes in groups.items():
        begins = f"from {formatting.clock(one.since, now)} " if one.since and one.since.timestamp() > now.epoch else ""
        told = f"booked: {host}:{numbers(indexes)} {begins}until {formatting.clock(one.until, now)}"
        lines.append(f"{told} ({one.comment})" if one.comment else told)
    return lines


def near_names(scene: Scene, name: str) -> list[str]:
    """Whom somebody may have meant."""
    known = {one.user for host in scene.fleet.hosts for gpu in host.gpus for one in gpu.processes if one.user}
    known |= {one.name for host in scene.fleet.hosts for gpu in host.gpus for one in gpu.bookings if one.name}
    lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), lower, 3, 0.6)
    return [f"did you mean {' or '.join(lower[one] for one in near)}?"] if near else []


def free(scene: Scene, asked: Sequence[str] = ()) -> Answer:
    """The GPUs that are free, the best first; `2 A100` are those of hosts that have as many."""
    count, model = wish(asked)
    every_gpu = [(host, gpu) for host in scene.fleet.hosts for gpu in host.gpus]
    right = [(host, gpu) for host, gpu in every_gpu if select.is_model(model, gpu.model, gpu.name)]
    found = [(host, gpu) for host, gpu in right if is_to_be_had(host, gpu)]
    if count > 1:  # a process sees but one instance: several are for whoever asks for their profile
        found = [(host, gpu) for host, gpu in found if not gpu.of or select.is_profile(model, gpu.profile)]
    on_host = Counter(host.name for host, _ in found)
    found = [(host, gpu) for host, gpu in found if on_host[host.name] >= count]
    found.sort(
        key=lambda one: (bool(one[1].of), select.rank(one[1].name, select.free_memory(one[1]), select.load_of(one[0])))
    )
    what = model or ("GPU" if count == 1 and len(found) < 2 else "GPUs")
    if count > 1:
        hosts_with = len({host.name for host, _ in found})
        title = (
            f"{plural(hosts_with, 'host')} with {count} {what} free" if found else f"no host has {count} {what} free"
        )
    else:
        title = f"{len(found)} {what} free" if found else f"no {what} is free"
    lines: list[str] = []
    if not right:
        models = dict.fromkeys(gpu.model for _, gpu in every_gpu)
        lines = [f"no GPU is of that model; there are {', '.join(models) or 'none'}"]
    elif not found:
        lines = [counted(gpu for _, gpu in right)]
    return told(scene, title, free_table(found, scene.now), lines, silent(scene.fleet))


def is_to_be_had(host: Host, gpu: Gpu) -> bool:
    """Whether somebody may be told to take it."""
    return host.state == "fresh" and gpu.state == "free" and not gpu.avoid


def wish(asked: Sequence[str]) -> tuple[int, str]:
    """How many on one host, and of which model; a 4090 is no number of GPUs."""
    count = 1
    if asked and asked[0].isascii() and asked[0].isdecimal() and 1 <= int(asked[0][:9]) <= MOST_ON_HOST:
        count, asked = int(asked[0]), asked[1:]
    text = " ".join(one for one in asked if one.lower() not in {"gpu", "gpus", "x", "×"})
    return count, GIGABYTES.sub(r"\1 GB", text)


def free_table(found: Sequence[tuple[Host, Gpu]], now: Now) -> Table | None:
    """Those that are alike on a host in a row."""
    groups: dict[tuple[str, str, str, str], list[Number]] = {}
    for host, gpu in found:
        memory = select.free_memory(gpu)
        size = client_table.NOT_TOLD if memory is None else formatting.size(memory)
        until = client_table.promised(gpu, now).removeprefix("until ")
        groups.setdefault((host.name, gpu.model, size, until), []).append(gpu.place or gpu.index)
    rows = tuple((host, numbers(several), *rest) for (host, *rest), several in groups.items())
    titles: tuple[str, ...] = ("host", "GPUs", "model", "memory", "until")
    if not any(row[-1] for row in rows):  # a phone is narrow
        titles, rows = titles[:-1], tuple(row[:-1] for row in rows)
    return Table(titles, rows, frozenset({3}), "{} more rows") if rows else None


def usage(unknown: str = "", near: str = "") -> Answer:
    """What can be asked; of a word that nobody knows, what may have been meant."""
    if not unknown:
        return Answer("What I can tell", HELP)
    hint = f"did you mean `{near}`?" if near else "this is what I know:"
    return Answer(f"I do not know “{unknown[:40]}”", (hint, *HELP))


# What they share


def told(scene: Scene, title: str, table: Table | None, lines: Iterable[str] = (), notes: Iterable[str] = ()) -> Answer:
    """An answer that says of when it is."""
    of = f"as of {scene.now.local:%H:%M}"
    return Answer(title, tuple(lines), table, (*notes, of), scene.link)


def wanted(scene: Scene, asked: Sequence[str]) -> Fleet:
    """What fits some words, as in the search box of the page."""
    return search.only(scene.fleet, asked) if asked else scene.fleet


def of_note(several: Sequence[Host]) -> Sequence[Host]:
    """Hosts in their order; where not all can be told, those in trouble first, then those with something free."""
    if len(several) <= MOST_ROWS:
        return several
    return sorted(several, key=lambda one: (one.state == "fresh", all(gpu.state != "free" for gpu in one.gpus)))


def brief(command: str) -> str:
    """What tells most of a command."""
    return cut(client_table.brief(command), MOST_COMMAND)


def nothing(scene: Scene, asked: Sequence[str]) -> Answer:
    """That nothing fits, or that there is nothing yet."""
    if not scene.fleet.hosts:
        return Answer("there are no hosts on the board yet", link=scene.link)
    return Answer(
        f"nothing fits “{' '.join(asked)[:60]}”", ("name a host, or words as in the search box",), None, (), scene.link
    )


def silent(fleet: Fleet) -> list[str]:
    """Of which hosts nobody knows anything: what they have is neither free nor anybody's."""
    found = [f"{one.name} is {one.state}" for one in fleet.hosts if one.state != "fresh"]
    return [f"not known: {formatting.names(found)}"] if found else []


def counted(several: Iterable[Gpu]) -> str:
    """`12 GPUs: 3 free, 8 busy, 1 lost`."""
    counts = Counter(gpu.state for gpu in several)
    states = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
    return f"{plural(sum(counts.values()), 'GPU')}: {states}" if states else "no GPUs"


ORDER = ("free", "booked", "busy", "held", "violated", "lost", "unknown")


def plural(count: int, what: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def numbers(indexes: Iterable[Number]) -> str:
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
    told += sorted((one for one in several if isinstance(one, str)), key=in_order)
    return ",".join(told) or client_table.NOT_TOLD
