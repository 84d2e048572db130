"""ps.txt: users, commands and containers of the GPU processes and their families."""

from __future__ import annotations

from site_builder.model import Dump, PsRow
from site_builder.readers import form
from site_builder.readers.cells import number, whole_number

MOST_ROWS = 10_000


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
    rows: list[PsRow] = []
    bad = 0
    for line in dump.rows[1 : MOST_ROWS + 1]:
        row = process(dict(zip(names, line.split("\t", len(names) - 1))))
        if row is None:
            bad += 1
        else:
            rows.append(row)
    if bad:
        problems.append(f"{bad} rows have no pid")
    if len(dump.rows) > MOST_ROWS + 1:
        problems.append(f"{len(dump.rows) - 1} processes are told; only the first {MOST_ROWS} count")
    return Dump(tuple(rows), dump.header, dump.whole, dump.said, tuple(problems))


def process(row: dict[str, str]) -> PsRow | None:
    """One row; a cell of `-` is not available."""
    pid = whole_number(row["pid"])
    if pid is None:
        return None

    def text(name: str) -> str | None:
        cell = row.get(name, "-")
        return None if cell in {"", "-"} else cell

    def count(name: str) -> int | None:
        return whole_number(row.get(name, "-"))

    return PsRow(
        pid,
        count("ppid"),
        count("gpu_pid"),
        text("uid"),
        text("user"),
        count("elapsed"),
        number(row.get("cpu", "-")),
        number(row.get("rss", "-")),
        text("state"),
        text("container"),
        text("command"),
    )
