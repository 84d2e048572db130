"""Export history as CSV or JSON."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from itertools import repeat
from types import SimpleNamespace
from typing import NamedTuple, Union

import orjson

from site_builder.core.model import GpuNumber
from site_builder.core.people import PeopleNames
from site_builder.history.model import GPU_STATES, TAKEN_STATES, HostSample
from site_builder.history.reader import GpuHistory, HostHistory

NAME_SEPARATOR = ", "


class ExportRow(NamedTuple):
    """GPU in a bucket: the state of most of its minutes, means, and the highest temperature.

    `seen`, `taken`, `held` and `booked` are minutes. In a bucket of one minute, `users` and `bookers` are all of them,
    and else the person who had most of it.
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


def build_export_minute_rows(
    samples: Iterable[tuple[int, HostSample]], people_names: PeopleNames, zone: tzinfo
) -> Iterator[ExportRow]:
    for minute, sample in samples:
        time = datetime.fromtimestamp(minute, zone).isoformat()
        for gpu in sample.gpus:
            series, (state, people) = gpu.series, gpu.occupancy
            yield ExportRow(
                time=time,
                host=sample.host,
                gpu=series.index,
                uuid=series.key,
                model=series.model,
                memory_total=series.memory_total,
                state=state,
                use=gpu.use,
                memory_used=gpu.memory,
                temperature=gpu.temperature,
                power=gpu.power,
                seen=1,
                taken=int(state in TAKEN_STATES),
                held=int(state == "held"),
                booked=int(bool(people.bookers)),
                users=people_names.list_display_names(people.users),
                bookers=people_names.list_display_names(people.bookers),
            )


def build_export_bucket_rows(history: HostHistory, people_names: PeopleNames, zone: tzinfo) -> Iterator[ExportRow]:
    """Build the rows of a host's GPUs, bucket by bucket."""
    starts = range(history.since, history.since + history.step * history.bucket_count, history.step)
    times = [datetime.fromtimestamp(start, zone).isoformat() for start in starts]
    for rows in zip(*(build_gpu_export_rows(history.host, times, gpu, people_names) for gpu in history.gpus)):
        for row in rows:
            if row.seen:
                yield row


def build_gpu_export_rows(
    host: str, times: Sequence[str], gpu: GpuHistory, people_names: PeopleNames
) -> Iterator[ExportRow]:
    """Build the rows of a GPU, also where it was not seen; column by column, since there may be millions."""
    series, columns = gpu.series, gpu.columns
    states = [summarize_export_states(counts) for counts in zip(*(columns[state] for state in GPU_STATES))]
    people = {code: (people_names.find_display_name(name),) for code, name in enumerate(gpu.names)}
    nobody: tuple[str, ...] = ()
    row_columns: dict[str, Iterable[object]] = {
        "time": times,
        "host": repeat(host),
        "gpu": repeat(series.index),
        "uuid": repeat(series.key),
        "model": repeat(series.model),
        "memory_total": repeat(series.memory_total),
        "state": (state for state, _ in states),
        "use": gpu.list_values("use"),
        "memory_used": gpu.list_values("memory"),
        "temperature": gpu.list_values("temperature"),
        "power": gpu.list_values("power"),
        "seen": columns["seen"],
        "taken": (taken for _, taken in states),
        "held": columns["held"],
        "booked": columns["promised"],
        "users": [people.get(code, nobody) for code in columns["owner"]],
        "bookers": [people.get(code, nobody) for code in columns["booker"]],
    }
    return map(ExportRow._make, zip(*(row_columns[name] for name in ExportRow._fields)))


@lru_cache(maxsize=4096)
def summarize_export_states(counts: tuple[int, ...]) -> tuple[str, int]:
    """Return the state of most minutes, the worse of two, and how many minutes the GPU was taken."""
    by_state = dict(zip(GPU_STATES, counts))
    return max(GPU_STATES, key=by_state.__getitem__), sum(by_state[state] for state in TAKEN_STATES)


def render_export_csv(rows: Iterable[ExportRow]) -> Iterator[str]:
    yield format_csv_row(ExportRow._fields)
    for row in rows:
        gpu = format_export_cells(row.host, row.gpu, row.uuid, row.model, row.memory_total)
        use, memory, temperature, power = (
            "" if value is None else value for value in (row.use, row.memory_used, row.temperature, row.power)
        )
        counts = f"{row.seen},{row.taken},{row.held},{row.booked}"
        people = format_export_cells(NAME_SEPARATOR.join(row.users), NAME_SEPARATOR.join(row.bookers))
        yield f"{row.time},{gpu},{row.state},{use},{memory},{temperature},{power},{counts},{people}\n"


@lru_cache(maxsize=4096)
def format_export_cells(*cells: CsvCell) -> str:
    """Format cells that many rows share."""
    return format_csv_row(cells)[:-1]


def render_export_json(rows: Iterable[ExportRow]) -> Iterator[str]:
    """Render a list of objects, one to a line."""
    names, separator = ExportRow._fields, "[\n"
    for row in rows:
        yield separator + orjson.dumps(dict(zip(names, row))).decode()
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


CsvCell = Union[str, float, int, None]
# Where a formula may begin: at the start of a cell, and after what another spreadsheet takes for its end.
FORMULA_START = re.compile(r"(^|[;,|])([\s\"']*)(?=[=+\-@＝＋－＠])")  # noqa: RUF001 # these count too
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def format_csv_lines(head: Sequence[str], rows: Iterable[Iterable[CsvCell]]) -> Iterator[str]:
    """Yield one line at a time, so that a long table needs no more memory than a short one."""
    write = csv.writer(SimpleNamespace(write=str), lineterminator="\n").writerow  # returns the line
    if head:
        yield str(write([escape_export_csv_cell(cell) for cell in head]))
    for cells in rows:
        yield str(write([escape_export_csv_cell(cell) for cell in cells]))


def format_csv_row(cells: Iterable[CsvCell]) -> str:
    return next(format_csv_lines((), [cells]))


def escape_export_csv_cell(cell: CsvCell) -> CsvCell:
    """Escape a cell so that no spreadsheet calculates it; numbers stay numbers, and None is empty."""
    if not isinstance(cell, str):
        return cell
    return FORMULA_START.sub(r"\1\2'", CONTROL_CHARACTERS.sub("?", cell))
