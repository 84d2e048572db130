"""ps.txt: users, commands and containers of the GPU processes and their families."""

from __future__ import annotations

from site_builder.model import Dump, PsRow
from site_builder.readers import form
from site_builder.readers.cells import number, whole_number

MOST_ROWS = 10_000
COLUMNS = ("pid", "ppid", "gpu_pid", "uid", "user", "elapsed", "cpu", "rss", "state", "container", "command")


def read(data: bytes) -> Dump[PsRow]:
    """Every row, by the names in the header line."""
    dump = form.split(data, "ps")
    problems = list(dump.problems)
    if not dump.rows:
        return Dump((), dump.header, dump.whole, dump.said, dump.problems)
    names = [name.split(" [", 1)[0] for name in dump.rows[0].split("\t")]
    if "pid" not in names or "command" not in names:
        problems.append("the line with the names of the columns is missing")
        return Dump((), dump.header, dump.whole, dump.said, tuple(problems))
    # what a row lacks, it takes from the end, where a cell that is not available stands
    places = [names.index(name) if name in names else -1 for name in COLUMNS]
    rows: list[PsRow] = []
    bad = 0
    for line in dump.rows[1 : MOST_ROWS + 1]:
        cells = line.split("\t", len(names) - 1)
        cells += ["-"] * (len(names) + 1 - len(cells))
        row = process([cells[place] for place in places])
        if row is None:
            bad += 1
        else:
            rows.append(row)
    if bad:
        problems.append(f"{bad} rows have no pid")
    if len(dump.rows) > MOST_ROWS + 1:
        problems.append(f"{len(dump.rows) - 1} processes are told; only the first {MOST_ROWS} count")
    return Dump(tuple(rows), dump.header, dump.whole, dump.said, tuple(problems))


def process(cells: list[str]) -> PsRow | None:
    """One row, its cells in the order of COLUMNS; one of `-` is not available."""
    pid, ppid, gpu_pid, uid, user, elapsed, cpu, rss, state, container, command = cells
    number_of = whole_number(pid)
    if number_of is None:
        return None
    return PsRow(
        number_of,
        whole_number(ppid),
        whole_number(gpu_pid),
        text(uid),
        text(user),
        whole_number(elapsed),
        number(cpu),
        number(rss),
        text(state),
        text(container),
        text(command),
    )


def text(cell: str) -> str | None:
    """The cell, or None where there is none."""
    return None if cell in {"-", ""} else cell
