"""ps.txt: users, commands and containers of the GPU processes and their families."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import itemgetter

from site_builder.core.model import ParsedFile, PsRow
from site_builder.snapshots import envelope
from site_builder.snapshots.parsers.values import find_column_positions, parse_column_names, parse_integer, parse_number

MAX_ROWS = 10_000
MAX_NAME_CHARACTERS = 200
MAX_COMMAND_CHARACTERS = 4096
PS_COLUMNS = (
    *("pid", "ppid", "gpu_pid", "uid", "user", "elapsed", "cpu", "rss", "state", "container", "command"),
    *("image", "pod", "person"),
)


def parse_ps_txt(data: bytes, pids: Collection[int] | None = None) -> ParsedFile[PsRow]:
    """Every row, by the names in the header line; with `pids` only those of these GPU processes and of orphans."""
    dump = envelope.split_snapshot_lines(data, "ps")
    problems = list(dump.problems)
    if not dump.rows:
        return ParsedFile((), dump.header, dump.is_complete, dump.messages, dump.problems)
    names = parse_column_names(dump.rows[0], "\t")
    if len(names) > envelope.MAX_COLUMNS:
        problems.append(f"it has {len(names)} columns, which cannot be: nothing of it is read")
        return ParsedFile((), dump.header, dump.is_complete, dump.messages, tuple(problems))
    if "pid" not in names or "command" not in names:
        problems.append("the line with the names of the columns is missing")
        return ParsedFile((), dump.header, dump.is_complete, dump.messages, tuple(problems))
    lines = dump.rows[1 : MAX_ROWS + 1]
    if len(dump.rows) > MAX_ROWS + 1:
        problems.append(f"{len(dump.rows) - 1} processes are told; only the first {MAX_ROWS} count")
    in_order = itemgetter(*find_column_positions(names, PS_COLUMNS))

    def parse(some: Iterable[str]) -> list[PsRow]:
        return [row for line in some if (row := parse_ps_row(in_order(split_ps_row(line, len(names)))))]

    if pids is None or names[0] != "pid":
        rows = parse(lines)
        if len(rows) < len(lines):
            problems.append(f"{len(lines) - len(rows)} rows have no pid")
    else:
        # the rest, most of a file, is not taken apart
        by_pid = {line[: line.find("\t")]: line for line in lines}
        rows = parse(by_pid[pid] for pid in map(str, pids) if pid in by_pid)
        dead = set(pids) - {row.pid for row in rows if not row.is_zombie}
        if dead:
            rows += [row for row in parse(lines) if row.gpu_pid in dead and row.pid not in dead]
    return ParsedFile(tuple(rows), dump.header, dump.is_complete, dump.messages, tuple(problems))


def split_ps_row(line: str, count: int) -> list[str]:
    """The cells of a row, and one more that is not available; the last may hold tabs."""
    row = line.split("\t", count - 1)
    row += ["-"] * (count + 1 - len(row))
    return row


def parse_ps_row(cells_of: tuple[str, ...]) -> PsRow | None:
    """One row, its cells in the order of COLUMNS; one of `-` is not available."""
    pid, ppid, gpu_pid, uid, user, elapsed, cpu, rss, state, container, command, image, pod, person = cells_of
    number_of = parse_integer(pid)
    if number_of is None:
        return None
    return PsRow(
        number_of,
        parse_integer(ppid),
        number_of if gpu_pid == pid else parse_integer(gpu_pid),
        parse_ps_cell(uid, MAX_NAME_CHARACTERS),
        parse_ps_cell(user, MAX_NAME_CHARACTERS),
        parse_integer(elapsed),
        parse_number(cpu),
        parse_number(rss),
        parse_ps_cell(state, 10),
        None if container == "-" else parse_ps_cell(container, MAX_NAME_CHARACTERS),
        parse_ps_cell(command, MAX_COMMAND_CHARACTERS),
        None if image == "-" else parse_ps_cell(image, MAX_NAME_CHARACTERS),
        None if pod == "-" else parse_ps_cell(pod, MAX_NAME_CHARACTERS),
        None if person == "-" else parse_ps_cell(person, MAX_NAME_CHARACTERS),
    )


def parse_ps_cell(cell: str, longest: int) -> str | None:
    """The cell, or None where there is none."""
    return None if cell == "-" or not cell else cell[:longest]
