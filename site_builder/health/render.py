"""What is wrong with GPUs now: in the row of a GPU, on the page of its host, and in a line of a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from site_builder.core.html import Html, escaped
from site_builder.core.model import BoardHost, GpuProblem

# How grave something is, is a word and a sign; the colour repeats it.
SIGNS = {"grave": "▲ grave", "look": "◆ worth a look", "told": "told"}
MOST_NAMED = 16


class Wrong(NamedTuple):
    """A problem, and the GPUs that have it."""

    gpus: str
    weight: str
    sign: str
    what: str
    advice: str


def of_note(problems: Iterable[GpuProblem]) -> list[GpuProblem]:
    """Those that whoever wants the GPU should see; the others are for its admin, on the page of its host."""
    return [one for one in problems if one.weight != "told" or one.avoid]


def in_words(problems: Iterable[GpuProblem]) -> str:
    """The same in a line."""
    return "; ".join([one.what for one in of_note(problems)])


@lru_cache(maxsize=4096)
def in_row(problems: tuple[GpuProblem, ...]) -> Html:
    """In the row of a GPU: what is wrong, and when one points there, what to do."""
    return Html("".join(map(line, of_note(problems))))


def line(one: GpuProblem) -> str:
    """One of them; the page's script offers no GPU that is to be avoided."""
    classes = f"problem {one.weight}{' avoid' if one.avoid else ''}"
    sign = "▲" if one.weight == "grave" else "◆"
    return f'<p class="{classes}" title="{escaped(one.advice)}">{sign} {escaped(one.what)}</p>'


def on_page(host: BoardHost) -> list[Wrong]:
    """On the page of a host: each problem once, with all the GPUs that have it; the gravest first."""
    labels: dict[GpuProblem, list[str]] = {}
    parents: set[tuple[str, GpuProblem]] = set()
    for gpu in host.gpus:
        label = (gpu.gpu.parent or gpu.gpu).label
        for one in gpu.problems:
            if (label, one) not in parents or gpu.gpu.parent is None:  # an instance has those of its GPU
                parents.add((label, one))
                labels.setdefault(one, []).append(label)
    found = sorted(labels.items(), key=lambda item: list(SIGNS).index(item[0].weight))
    return [
        Wrong(named(gpus), one.weight, SIGNS[one.weight], sentence(one.what), sentence(one.advice))
        for one, gpus in found
    ]


def sentence(text: str) -> str:
    """Words as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}."


def named(labels: list[str]) -> str:
    """`0, 1 and 3`."""
    if len(labels) > MOST_NAMED:
        return f"{', '.join(labels[:MOST_NAMED])} and {len(labels) - MOST_NAMED} more"
    return " and ".join(filter(None, (", ".join(labels[:-1]), labels[-1])))
