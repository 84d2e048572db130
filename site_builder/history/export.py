"""Export history as CSV or JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import orjson

from site_builder.core import formatting
from site_builder.core.formatting import CsvCell
from site_builder.core.model import GpuNumber
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import clean_text
from site_builder.history import block_format
from site_builder.history.buckets import PERSON_COLUMNS, VALUE_COLUMNS, BucketColumns
from site_builder.history.model import GPU_STATES, TAKEN_STATES, GpuSeries, HostSample


class ExportRow(NamedTuple):
    """A GPU in a slot: the state of most of its minutes, means of use, memory and power, the highest temperature.

    `seen`, `taken`, `held` and `booked` are minutes; `users` and `bookers` are all of them in a slot of one minute,
    and else the one who had most of it.
    """

    time: str
    host: str
    gpu: GpuNumber
    uuid: str
    model: str
    memory_total: float | None
    state: str
    use: float | None
    memory_used: float | None
    temperature: float | None
    power: float | None
    seen: int
    taken: int
    held: int
    booked: int
    users: tuple[str, ...]
    bookers: tuple[str, ...]


class PeopleNames:
    """What people are called: one name for each, however it was spelt."""

    def __init__(self, people: PeopleDirectory, names: Iterable[str]) -> None:
        """`names` are those that history knows; one that is newer is as aliases.csv has it."""
        self.people = people
        self.display_names: dict[str, str] = {}
        several = defaultdict(list)
        for name in sorted(names):
            several[people.resolve_user(name)].append(name)
        for one in several.values():
            self.display_names.update(dict.fromkeys(one, clean_text(people.choose_display_name(one))))

    def find_display_name(self, name: str) -> str:
        """The name to show."""
        return self.display_names.get(name) or self.people.display_login(name)

    def list_display_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The same of several, each once."""
        return tuple(dict.fromkeys(map(self.find_display_name, names)))


def build_minute_rows(
    samples: Iterable[tuple[int, HostSample]], called: PeopleNames, zone: tzinfo
) -> Iterator[ExportRow]:
    """The GPUs of a host, minute by minute."""
    for at, sample in samples:
        time = datetime.fromtimestamp(at, zone).isoformat()
        for which, use, memory, temperature, power, (state, who) in sample.gpus:
            yield ExportRow(
                time=time,
                host=sample.host,
                gpu=which.index,
                uuid=which.key,
                model=which.model,
                memory_total=which.memory_total,
                state=state,
                use=use,
                memory_used=memory,
                temperature=temperature,
                power=power,
                seen=1,
                taken=int(state in TAKEN_STATES),
                held=int(state == "held"),
                booked=int(bool(who.bookers)),
                users=called.list_display_names(who.users),
                bookers=called.list_display_names(who.bookers),
            )


def build_bucket_rows(  # each is one thing
    host: str,
    since: int,
    step: int,
    gpus: Sequence[tuple[GpuSeries, BucketColumns, Sequence[str]]],
    called: PeopleNames,
    zone: tzinfo,
) -> Iterator[ExportRow]:
    """The GPUs of a host, slot by slot; of each its columns, and the names that they refer to."""
    if not gpus:
        return
    count = len(gpus[0][1]["seen"])
    times = [datetime.fromtimestamp(since + step * place, zone).isoformat() for place in range(count)]
    for slot in zip(*(build_gpu_export_rows(host, times, *one, called) for one in gpus)):
        for row in slot:
            if row.seen:
                yield row


def build_gpu_export_rows(  # the same
    host: str, times: Sequence[str], which: GpuSeries, line: BucketColumns, names: Sequence[str], called: PeopleNames
) -> Iterator[ExportRow]:
    """All slots of a GPU, also those in which it was not seen; whole columns at once, since there may be millions."""
    states = [summarize_states(counts) for counts in zip(*(line[state] for state in GPU_STATES))]
    found = {code: (called.find_display_name(name),) for code, name in enumerate(names)}
    nobody: tuple[str, ...] = ()
    fixed = (host, which.index, which.key, which.model, which.memory_total)
    columns = (
        *(times, *map(repeat, fixed), (state for state, _ in states)),
        *(block_format.decode_numbers(line[name], *how) for name, how in VALUE_COLUMNS.items()),
        *(line["seen"], (taken for _, taken in states), line["held"], line["promised"]),
        *([found.get(code, nobody) for code in line[name]] for name in PERSON_COLUMNS),
    )
    return map(ExportRow._make, zip(*columns))


@lru_cache(maxsize=4096)
def summarize_states(counts: tuple[int, ...]) -> tuple[str, int]:
    """The state of most minutes, of two that are equal the more severe, and in how many the GPU was taken."""
    by_state = dict(zip(GPU_STATES, counts))
    return max(GPU_STATES, key=by_state.__getitem__), sum(by_state[state] for state in TAKEN_STATES)


NAME_SEPARATOR = ", "


def render_export_csv(rows: Iterable[ExportRow]) -> Iterator[str]:
    """As CSV: what is not available is empty."""
    yield formatting.format_csv_row(ExportRow._fields)
    for row in rows:
        gpu = format_fixed_cells(row.host, row.gpu, row.uuid, row.model, row.memory_total)
        means = f"{format_known(row.use)},{format_known(row.memory_used)}"
        values = f"{means},{format_known(row.temperature)},{format_known(row.power)}"
        counts = f"{row.seen},{row.taken},{row.held},{row.booked}"
        yield f"{row.time},{gpu},{row.state},{values},{counts},{format_people_cells(row.users, row.bookers)}"


def format_known(value: float | None) -> float | str:
    """A number."""
    return "" if value is None else value


@lru_cache(maxsize=4096)
def format_fixed_cells(*some: CsvCell) -> str:
    """Some cells of a row, which many rows have."""
    return formatting.format_csv_row(some)[:-1]


@lru_cache(maxsize=4096)
def format_people_cells(users: tuple[str, ...], bookers: tuple[str, ...]) -> str:
    """The last cells of a row."""
    return formatting.format_csv_row((NAME_SEPARATOR.join(users), NAME_SEPARATOR.join(bookers)))


def render_export_json(rows: Iterable[ExportRow]) -> Iterator[str]:
    """As a list of objects, one to a line."""
    names, begun = ExportRow._fields, "[\n"
    for row in rows:
        yield begun + orjson.dumps(dict(zip(names, row))).decode()
        begun = ",\n"
    yield "[]\n" if begun == "[\n" else "\n]\n"
