"""What happened to GPUs, as history tells it, as matters that people may be told of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from site_builder.alerts.model import Matter
from site_builder.core.clock import Now
from site_builder.health.descriptions import GRAVE, sentence
from site_builder.health.model import BEFORE, SPANS, Event

# What history alone can tell; where it cannot be read, nobody knows whether these are over (Scene.blind).
RULES = frozenset({"gpu-lost", "gpu-hot", "gpu-error"})
# Seconds for which something counts that was counted: read events from so long ago on (Events.read).
LOOKED_BACK = 3600
# A host can claim anything.
MOST_OF_HOST = 100
LOST, HOT = frozenset({"lost", "gone"}), frozenset({"hot", "heat"})
ERROR = (GRAVE | {"pending"}) - LOST


def nowhere(_: str) -> bool:
    """Whether any host has a GPU, where nobody looks."""
    return False


def health_matters(
    events: Iterable[Event],
    people: Callable[[str], tuple[str, ...]],
    now: Now,
    there: Callable[[str], bool] = nowhere,
) -> list[Matter]:
    """What is the matter by what happened until now; `people` tells who is on a host (Card.people).

    `there` tells whether any host has the GPU of a UUID, since one that was moved is not lost. The number of an event
    is not part of a key: another builder, with a history of its own, must know the matter by it too.
    """
    found: dict[str, Matter] = {}
    counts: Counter[str] = Counter()
    for event in events:
        one = matter(event, now)
        if one is None or counts[event.host] >= MOST_OF_HOST or (event.kind == "gone" and there(event.gpu)):
            continue
        counts[event.host] += 1
        before = found.get(one.key)
        if before:  # hot, and slowed by it
            since = None if None in (before.since, one.since) else min(before.since or 0, one.since or 0)
            one = before._replace(what=f"{before.what}; {one.what}", since=since)
        on_it = people(one.host)
        found[one.key] = one._replace(whose=on_it, people=on_it)
    return list(found.values())


def matter(event: Event, now: Now) -> Matter | None:
    """An event as a matter; None of what is over, or only told on the page."""
    goes_on, kind = event.until is None, event.kind
    rule = "gpu-lost" if kind in LOST else "gpu-hot" if kind in HOT else "gpu-error" if kind in ERROR else None
    if rule is None or not event.gpu:
        return None
    if kind in SPANS:
        if not goes_on:
            return None
    elif event.until is not None and now.epoch - event.until > LOOKED_BACK:
        return None
    since = None if event.since == BEFORE else min(event.at, int(now.epoch))
    about = event.gpu if rule != "gpu-error" else f"{event.gpu} {kind}"
    gpus = () if event.index is None else (str(event.index),)
    return Matter(rule, event.host, about, gpus, sentence(event), since, lasting=kind in SPANS)
