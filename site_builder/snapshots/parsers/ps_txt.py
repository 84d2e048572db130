"""ps.txt: users, commands and containers of the GPU processes and their families."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import itemgetter

from site_builder.core.model import Dump, PsRow
from site_builder.snapshots import envelope
from site_builder.snapshots.parsers.csv_values import columns, number, places, whole_number

MOST_ROWS = 10_000
LONGEST_NAME = 200
LONGEST_COMMAND = 4096
COLUMNS = (
    *("pid", "ppid", "gpu_pid", "uid", "user", "elapsed", "cpu", "rss", "state", "container", "command"),
    *("image", "pod", "person"),
)


def read(data: bytes, pids: Collection[int] | None = None) -> Dump[PsRow]:
    """Every row, by the names in the header line; with `pids` only those of these GPU processes and of orphans."""
    dump = envelope.split(data, "ps")
    problems = list(dump.problems)
    if not dump.rows:
        return Dump((), dump.header, dump.whole, dump.said, dump.problems)
    names = columns(dump.rows[0], "\t")
    if len(names) > envelope.MOST_COLUMNS:
        problems.append(f"it has {len(names)} columns, which cannot be: nothing of it is read")
        return Dump((), dump.header, dump.whole, dump.said, tuple(problems))
    if "pid" not in names or "command" not in names:
        problems.append("the line with the names of the columns is missing")
        return Dump((), dump.header, dump.whole, dump.said, tuple(problems))
    lines = dump.rows[1 : MOST_ROWS + 1]
    if len(dump.rows) > MOST_ROWS + 1:
        problems.append(f"{len(dump.rows) - 1} processes are told; only the first {MOST_ROWS} count")
    in_order = itemgetter(*places(names, COLUMNS))

    def parse(some: Iterable[str]) -> list[PsRow]:
        return [row for line in some if (row := process(in_order(cells(line, len(names)))))]

    if pids is None or names[0] != "pid":
        rows = parse(lines)
        if len(rows) < len(lines):
            problems.append(f"{len(lines) - len(rows)} rows have no pid")
    else:
        # the rest, most of a file, is not taken apart
        by_pid = {line[: line.find("\t")]: line for line in lines}
        rows = parse(by_pid[pid] for pid in map(str, pids) if pid in by_pid)
        dead = set(pids) - {row.pid for row in rows if not row.dead}
        if dead:
            rows += [row for row in parse(lines) if row.gpu_pid in dead and row.pid not in dead]
    return Dump(tuple(rows), dump.header, dump.whole, dump.said, tuple(problems))


def cells(line: str, count: int) -> list[str]:
    """The cells of a row, and one more that is not available; the last may hold tabs."""
    row = line.split("\t", count - 1)
    row += ["-"] * (count + 1 - len(row))
    return row


def process(cells_of: tuple[str, ...]) -> PsRow | None:
    """One row, its cells in the order of COLUMNS; one of `-` is not available."""
    pid, ppid, gpu_pid, uid, user, elapsed, cpu, rss, state, container, command, image, pod, person = cells_of
    number_of = whole_number(pid)
    if number_of is None:
        return None
    return PsRow(
        number_of,
        whole_number(ppid),
        number_of if gpu_pid == pid else whole_number(gpu_pid),
        text(uid, LONGEST_NAME),
        text(user, LONGEST_NAME),
        whole_number(elapsed),
        number(cpu),
        number(rss),
        text(state, 10),
        None if container == "-" else text(container, LONGEST_NAME),
        text(command, LONGEST_COMMAND),
        None if image == "-" else text(image, LONGEST_NAME),
        None if pod == "-" else text(pod, LONGEST_NAME),
        None if person == "-" else text(person, LONGEST_NAME),
    )


def text(cell: str, longest: int) -> str | None:
    """The cell, or None where there is none."""
    return None if cell == "-" or not cell else cell[:longest]
