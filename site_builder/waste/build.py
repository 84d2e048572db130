"""What is wasted, gathered from what hosts tell now and what history knows; and published in waste.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from site_builder.board.host_pipeline import Card
from site_builder.board.outputs.registry import File
from site_builder.board.site_writer import Site
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.published_files import digest
from site_builder.fleet.gpu_state import Rules
from site_builder.fleet.store import Memory
from site_builder.fleet.summary import Summary
from site_builder.history import idle_run_store
from site_builder.history.idle_runs import Worn, believed, card_of
from site_builder.history.reader import Past
from site_builder.waste import render
from site_builder.waste import rules as waste_rules
from site_builder.waste.model import FILE, Wasted
from site_builder.waste.rules import Empty

# Seconds between two looks: a minute is what history counts in.
LOOK_EVERY = 60
USED = "used "
OUR_FAULT = "what is wasted could not be told, which is a fault of gpuboard's own: please report it"


class Wastes:
    """Looks once a minute, and says the same until then."""

    def __init__(self, past: Past, memory: Memory, every: int) -> None:
        """Nothing was looked at yet; `every` is how often the board is built."""
        self.past, self.memory, self.every = past, memory, every
        self.found: Wasted | None = None

    def look(self, cards: Mapping[str, Card], rules: Rules, now: Now) -> Wasted:
        """What is wasted, as of this minute."""
        if self.found is None or not 0 <= now.epoch - self.found.built < LOOK_EVERY:
            summaries = {host: one.summary for host, one in cards.items()}
            try:
                found = gather(summaries, self.past, rules, self.memory.odd, now.epoch)
            except Exception as error:  # a fault of ours must not cost the page
                found = Wasted(int(now.epoch), 0, (), tuple(summaries), trouble=f"{OUR_FAULT} ({type(error).__name__})")
            self.found = found._replace(every=self.every)
        return self.found

    def write(self, site: Site, now: Now) -> None:
        """Publish it, where it says something new, and once a minute as a sign that the builder lives."""
        found = self.found
        if found:
            facts = digest(render.json(found._replace(built=0)))
            site.write_files([File(FILE, facts, lambda: render.json(found))], now)


def gather(
    summaries: Mapping[str, Summary], past: Past, rules: Rules, odd: MutableMapping[str, int], now: float
) -> Wasted:
    """All that is wasted; `odd` is what was remembered at the last look, and is kept up here."""
    marked = {host: one.waste for host, one in summaries.items() if one.waste}
    cards = {card_of(host, one.key) for host, several in marked.items() for one in several}
    empty_minutes = waste_rules.UNUSED_DAYS * DAY // MINUTE
    known = idle_run_store.known_of(past, cards, empty_minutes, now - waste_rules.ENDED_DAYS * DAY, now)
    empty = list(empty_now(summaries, known.worn, odd, now))
    # of a host that is no longer on the board nobody wants to know
    unkept = [one for one in known.unkept if one.host in summaries]
    found = waste_rules.items(marked, empty, waste_rules.Past(known.worn, unkept), rules, odd, now)
    trouble = f"{past.trouble.where}: {past.trouble.what}" if past.trouble else None
    return Wasted(int(now), 0, tuple(found), tuple(summaries), known.first, trouble)


def empty_now(
    summaries: Mapping[str, Summary], known: Mapping[str, Worn], odd: MutableMapping[str, int], now: float
) -> Iterator[Empty]:
    """Of the GPUs that were empty for long, those that are still; one that is not is remembered until history knows."""
    long = {card: one for card, told in known.items() if (one := believed(told, now)) and waste_rules.is_unused(one)}
    for name in [name for name in odd if name.startswith(USED)]:
        card = name[len(USED) :]
        if card not in long or long[card].last >= odd[name]:
            del odd[name]
    for card, one in long.items():
        summary = summaries.get(one.host)
        if summary is None or summary.state != "fresh":
            continue
        found = next((gpu for gpu in empty_on(one.host, summary) if card_of(one.host, gpu.key) == card), None)
        if found is None:
            odd[USED + card] = int(now)
        elif USED + card not in odd:
            yield found


def empty_on(host: str, summary: Summary) -> Iterator[Empty]:
    """The GPUs of a host that nobody is on: those that are free, and those that are booked and unused."""
    numbers = [one.number for one in summary.gpus]
    keys = {one.number: one.uuid or f"index {one.number}" for one in summary.gpus if numbers.count(one.number) == 1}
    for one in summary.free:
        if one.index in keys:
            yield Empty(host, keys[one.index], one.index, one.model)
    for mark in summary.waste:
        if mark.kind == "booking":
            yield Empty(host, mark.key, mark.index, mark.model)
