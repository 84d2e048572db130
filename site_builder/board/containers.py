"""In what a process runs, in words: its container by the name that people know, and as whom."""

from __future__ import annotations

from site_builder.core.model import BoardProcess


def in_short(one: BoardProcess) -> str | None:
    """`as root in docker pytorch/pytorch:2.4.0`, as much of it as is known; None for most."""
    if not one.container and not one.runs_as:
        return None
    kind = (one.container or "").partition(":")[0]
    named = one.pod or (one.image and without_registry(one.image))
    place = f"{kind} {named}" if kind and named else one.container
    return " in ".join(filter(None, (one.runs_as and f"as {one.runs_as}", place)))


def in_full(one: BoardProcess) -> str:
    """All that is known of its container."""
    return " ".join(filter(None, (one.container, one.pod, one.image)))


def without_registry(image: str) -> str:
    """An image without the machine that it came from, as a first part with a dot, a port or so is one."""
    first, slash, rest = image.partition("/")
    return rest if slash and rest and ("." in first or ":" in first or first == "localhost") else image
