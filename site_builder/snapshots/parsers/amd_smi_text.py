"""What amd-smi prints where it is not asked for JSON: made into what its JSON would have been."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A name begins with no blank, or a line of blanks would be tried in a thousand ways.
LINE = re.compile(r"( *)([A-Za-z0-9_()-][A-Za-z0-9_() -]{0,59}):(?: (.*))?")
PROCESS = "process_info"
DEEPEST = 8
MOST_GPUS = 2000


def read(lines: Iterable[str]) -> tuple[list[dict[str, object]], list[str]]:
    """The GPUs with all that stands indented below them, and the lines that are none of it."""
    found: list[dict[str, object]] = []
    words: list[str] = []
    stack: list[tuple[int, dict[str, object]]] = []
    for line in lines:
        match = LINE.fullmatch(line)
        if not match:
            if not stack:
                words.append(line)
            continue
        depth, name, value = len(match[1]), match[2].strip().lower().replace(" ", "_"), (match[3] or "").strip()
        if depth == 0:
            stack = [(-1, {})]  # of a CPU, say
            if name == "gpu" and len(found) < MOST_GPUS:
                stack = [(0, {"gpu": value})]
                found.append(stack[0][1])
            elif name != "cpu":
                words.append(line)
                stack = []
            continue
        while len(stack) > 1 and stack[-1][0] >= depth:
            stack.pop()
        if stack and len(stack) < DEEPEST:
            below: dict[str, object] = {}
            put(stack[-1][1], name, value or below)
            if not value:
                stack.append((depth, below))
    return found, words


def put(where: dict[str, object], name: str, value: object) -> None:
    """Add it; a GPU has its processes one by one."""
    if name == PROCESS:
        several = where.setdefault("process_list", [])
        if isinstance(several, list):
            several.append({PROCESS: value})
    else:
        where.setdefault(name, value)
