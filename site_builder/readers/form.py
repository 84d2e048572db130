"""The form of a snapshot file: header, lines, `# err` lines, `# end`."""

from __future__ import annotations

import re

from site_builder.model import Dump, Header

FIRST = re.compile(
    r"# gpuboard (\d{1,4}) task=([a-z]{1,20}) host=(\S{1,200}) "
    r"time=(\d{1,12}) every=(\d{1,6}) took_ms=(-?\d{1,9}) rc=(\d{1,5})$"
)
CONTROL_BYTES = bytes([*range(9), *range(11, 32), 127])
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
MOST_SAID = 50


def clean(text: str) -> str:
    """Without control characters: they would steer a terminal, or break a page."""
    return CONTROL.sub("?", text) if CONTROL.search(text) else text


def text_of(data: bytes) -> str:
    """UTF-8, with a mark for each byte that is none; line ends of any kind become newlines."""
    if data.isascii() and len(data.translate(None, CONTROL_BYTES)) == len(data):
        return data.decode("ascii")
    text = data.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return clean(text)


def split(data: bytes, task: str) -> Dump[str]:
    """Take a file apart into its lines; `task` is what it should be."""
    text = text_of(data)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    whole = bool(lines) and lines[-1] == "# end"
    if whole:
        lines.pop()
    found = FIRST.match(lines[0]) if lines else None
    if not found:
        return Dump(whole=False, problems=("the first line is not that of a gpuboard snapshot",))
    version, told_task, host, *numbers = found.groups()
    problems = () if whole else ("the file is torn: it has no end",)
    if version != "1":
        return Dump(
            whole=False,
            problems=(f"it is of version {version} of the snapshot format, which this gpuboard does not know",),
        )
    if told_task != task:
        return Dump(whole=False, problems=(f"it is a snapshot of {told_task}, not of {task}",))
    time, every, took_ms, rc = (int(n) for n in numbers)
    body = lines[1:]
    said: list[str] = []
    if not whole or "\n#" in text[1:-6] or "\n\n" in text:
        said = [line[6:].strip() for line in body if line.startswith("# err ")]
        body = [line for line in body if line and not line.startswith("#")]
    return Dump(
        tuple(body), Header(told_task, host, time, every, took_ms, rc), whole, tuple(said[:MOST_SAID]), problems
    )
