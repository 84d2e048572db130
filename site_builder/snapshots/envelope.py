"""The form of a snapshot file: header, lines, `# err` lines, `# end`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from site_builder.core.model import Dump, Header

Item = TypeVar("Item")

FIRST = re.compile(
    r"# gpuboard (\d{1,4}) task=([a-z]{1,20}) host=(\S{1,200}) "
    r"time=(\d{1,12}) every=(\d{1,6}) took_ms=(-?\d{1,9}) rc=(\d{1,5})$"
)
# What one tool told, of several in a file: `# part nvidia-xml rc=0`; of one that is asked twice `amd-smi/metric`.
PART = re.compile(r"# part ([a-z][a-z0-9-]{0,30})(?:/([a-z][a-z0-9-]{0,30}))? rc=(\d{1,5})$")
PART_BYTES = b"\n# part "
MOST_PARTS = 20
CONTROL_BYTES = bytes([*range(9), *range(11, 32), 127])
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FIRST_BYTES = 500
MOST_SAID = 50
LONGEST_PROBLEM = 300
# Of more problems than these nothing but the number would be told.
MOST_NOTED = 1000
# No tool has as many columns.
MOST_COLUMNS = 1000
# The signs that the first line and the last begin with.
OUTSIDE = "##"
AS_OF = b"# as of "
TORN = "the file is torn: it has no end"


class Piece(NamedTuple):
    """What a tool answered to one question: its exit code, its lines, and what it said on stderr."""

    rc: int
    lines: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


# What one tool answered in all, by the name of each question; one that is asked but one has it under the empty name.
Pieces = dict[str, Piece]


def clean(text: str) -> str:
    """Without control characters: they would steer a terminal, break a page, or turn a line of it around."""
    return CONTROL.sub("?", text) if CONTROL.search(text) else text


def one_line(words: object, longest: int = 200) -> str:
    """What somebody else said, fit to stand in a sentence."""
    return clean(" ".join(str(words).split()))[:longest]


def text_of(data: bytes) -> str:
    """UTF-8, with a mark for each byte that is none; line ends of any kind become newlines."""
    if data.isascii() and len(data.translate(None, CONTROL_BYTES)) == len(data):
        return data.decode("ascii")
    text = data.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return clean(text)


JSON_WORDS = {
    "Expecting ',' delimiter": "a comma is missing before this place, or what was begun is not closed",
    "Expecting ':' delimiter": "a colon is missing before this place",
    "Expecting property name enclosed in double quotes": "a name in double quotes should stand here",
    "Expecting value": "a value should stand here",
    "Unterminated string starting at": "the text that begins here has no closing quotation mark",
    "Extra data": "there is more behind the end",
}


def json_fault(error: json.JSONDecodeError) -> str:
    """Where JSON is broken, and how."""
    return f"line {error.lineno}, column {error.colno}: {JSON_WORDS.get(error.msg, error.msg)}"


def first_of(lines: Sequence[Item], most: int, what: str, problems: list[str]) -> Sequence[Item]:
    """Take as many as are read, before anybody walks through them; that there are more is a problem."""
    if len(lines) <= most:
        return lines
    problems.append(f"{len(lines)} {what} are told; only the first {most} count")
    return lines[:most]


def note(problems: list[str], what: str) -> None:
    """Add a problem, unless there are more than anybody wants to count."""
    if len(problems) < MOST_NOTED:
        problems.append(what)


def bounded(problems: Sequence[str]) -> tuple[str, ...]:
    """As many problems as anybody reads, each no longer than that."""
    cut = (what if len(what) <= LONGEST_PROBLEM else f"{what[:LONGEST_PROBLEM]}…" for what in problems[:MOST_SAID])
    told = tuple(cut)
    return told if len(problems) <= MOST_SAID else (*told, f"and {len(problems) - MOST_SAID} more problems")


def header(data: bytes, task: str) -> tuple[Header | None, str]:
    """What the first line says, or why it cannot be that of a snapshot; `task` is what it should be."""
    return told_by(data[:FIRST_BYTES].partition(b"\n")[0], task)


@lru_cache(maxsize=4096)
def told_by(line: bytes, task: str) -> tuple[Header | None, str]:
    """The same of the line; it is asked when a file is read, and again when it is taken apart."""
    found = FIRST.match(line.decode("utf-8", "replace").rstrip("\r"))
    if not found:
        return None, "the first line is not that of a gpuboard snapshot"
    version, told_task, host, *numbers = found.groups()
    if version != "1":
        return None, f"it is of version {version} of the snapshot format, which this gpuboard does not know"
    if told_task != task:
        return None, f"it is a snapshot of {told_task}, not of {task}"
    time, every, took_ms, rc = map(int, numbers)
    return Header(told_task, host, time, every, took_ms, rc), ""


def is_whole(data: bytes) -> bool:
    """Whether the last line is the one that ends a snapshot."""
    return data[-10:].rstrip(b"\r\n").endswith(b"\n# end")


def dated(data: bytes, moment: float) -> bytes:
    """The file with a second line that says from when it is, where it is written down only now."""
    first, _, rest = data.partition(b"\n")
    # a first line may end in any number of these, and would hide the second
    return b"%s\n%s%d\n%s" % (first.rstrip(b"\r"), AS_OF, moment, rest)


def as_of(data: bytes) -> float:
    """From when the file is at the latest, if its second line says so."""
    second = data[:FIRST_BYTES].partition(b"\n")[2].partition(b"\n")[0]
    told = second[len(AS_OF) :]
    return float(told) if second.startswith(AS_OF) and told.isdigit() and len(told) <= 12 else float("inf")


def parts(data: bytes, task: str, plain: str) -> tuple[Dump[str], dict[str, Pieces]]:
    """Take a file apart into what each tool told, by the tool's form; `plain` is that of a file that has no parts."""
    if PART_BYTES not in data:
        dump = split(data, task)
        code = dump.header.rc if dump.header else 0
        return dump, {plain: {"": Piece(code, dump.rows, dump.said)}} if dump.header else {}
    first, problem = header(data, task)
    if first is None:
        return Dump(whole=False, problems=(problem,)), {}
    whole = is_whole(data)
    lines = text_of(data).rstrip("\n").split("\n")[1 : -1 if whole else None]
    problems = [] if whole else [TORN]
    found = pieces_of(lines, problems)
    return Dump((), first, whole, problems=tuple(problems)), found


def pieces_of(lines: Iterable[str], problems: list[str]) -> dict[str, Pieces]:
    """The parts of a file; one that cannot be one is told, and what stands in it is nobody's."""
    parts: dict[tuple[str, str], tuple[int, list[str], list[str]]] = {}
    told: list[str] = []
    said: list[str] = []
    for line in lines:
        if line.startswith("# part "):
            told, said = [], []
            match = PART.match(line)
            key = (match[1], match[2] or "") if match else None
            if match is None or key is None:
                note(problems, f"a part that cannot be read: {line[:80]}")
            elif key in parts:
                note(problems, f"it has the {line[2:80]} twice")
            elif len(parts) >= MOST_PARTS:
                problems.append("it has too many parts; the rest does not count")
                break
            else:
                parts[key] = int(match[3]), told, said
        elif line.startswith("# err "):
            said.append(line[6:].strip())
        elif line and not line.startswith("#"):
            told.append(line)
    found: dict[str, Pieces] = {}
    for (form, name), (code, rows, words) in parts.items():
        found.setdefault(form, {})[name] = Piece(code, tuple(rows), tuple(words[:MOST_SAID]))
    return found


def split(data: bytes, task: str) -> Dump[str]:
    """Take a file apart into its lines; `task` is what it should be."""
    first, problem = header(data, task)
    if first is None:
        return Dump(whole=False, problems=(problem,))
    text = text_of(data).rstrip("\n")
    whole = is_whole(data)
    lines = text.split("\n")[1 : -1 if whole else None]
    said: list[str] = []
    # to look for one letter takes a fraction of the time that it takes for two
    if not whole or text.count("#") > len(OUTSIDE) or "" in lines:
        said = [line[6:].strip() for line in lines if line.startswith("# err ")]
        lines = [line for line in lines if line and not line.startswith("#")]
    return Dump(tuple(lines), first, whole, tuple(said[:MOST_SAID]), () if whole else (TORN,))
