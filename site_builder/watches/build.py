"""Find the watches that are fulfilled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from site_builder.alerts.conditions import HostReport
from site_builder.alerts.model import AlertRule, AlertState, Condition
from site_builder.bookings.store import SharedBookingFile
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.faults import describe_fault
from site_builder.core.locks import StorageBusyError, StorageError
from site_builder.core.model import FreeGpu, GpuNumber, Problem
from site_builder.core.names import fold_login
from site_builder.fleet.gpu_models import is_matching_model, is_matching_profile
from site_builder.watches import parser
from site_builder.watches.parser import Watch, WatchRequest
from site_builder.watches.store import MAX_WATCHES_BYTES, WATCHES_FILE, WatchEntries, WatchStore

# Of a card that is sold with 40 GB the driver tells a little more than 40 GB, or a little less than 40 GiB.
MIB_PER_GB = 1e9 / 2**20


class FreeGpuIndex:
    """The GPUs that are free at a moment, for many wishes."""

    def __init__(self, several: Iterable[FreeGpu], now: float) -> None:
        """By their models, of which there are few: a wish for one that is not free costs nothing."""
        self.now = now
        self.gpus_by_model: dict[str, list[FreeGpu]] = {}
        for gpu in several:
            if not gpu.is_avoided:
                self.gpus_by_model.setdefault(gpu.model, []).append(gpu)
        self.gpus_by_request: dict[WatchRequest, list[FreeGpu]] = {}

    def find_gpus(self, wish: WatchRequest) -> list[FreeGpu]:
        """As many of them as are wished for; none where there are not enough."""
        if wish not in self.gpus_by_request:
            self.gpus_by_request[wish] = self.search_gpus(wish)
        return self.gpus_by_request[wish]

    def search_gpus(self, wish: WatchRequest) -> list[FreeGpu]:
        """The same for a wish that nobody had before."""
        there = [
            gpu for model, gpus in self.gpus_by_model.items() if is_matching_model(wish.model, model) for gpu in gpus
        ]
        fit = [gpu for gpu in there if self.is_match(gpu, wish)]
        if len(fit) < wish.gpu_count:
            return []
        if not wish.is_on_one_host:
            return fit[: wish.gpu_count]
        return next(
            (gpus[: wish.gpu_count] for gpus in group_gpus_by_host(fit).values() if len(gpus) >= wish.gpu_count), []
        )

    def is_match(self, gpu: FreeGpu, wish: WatchRequest) -> bool:
        """Whether one of them will do; when it is promised is known as far as the board looks ahead."""
        host = gpu.host.lower()
        named = not wish.hosts or host in wish.hosts or any(one.partition(".")[0] == host for one in wish.hosts)
        enough = gpu.memory_total >= wish.memory_gb * MIB_PER_GB
        # a process sees but one instance: several are what somebody wants who asks for their profile
        if (
            wish.gpu_count > 1
            and is_mig_number(gpu.index)
            and not is_matching_profile(wish.model, gpu.model.rpartition(" ")[2])
        ):
            return False
        return named and enough and (gpu.free_until is None or gpu.free_until - self.now >= wish.duration_s)


def is_mig_number(number: GpuNumber) -> bool:
    """Whether it is the number of an instance, such as 0:1."""
    return isinstance(number, str) and ":" in number


def group_gpus_by_host(several: Iterable[FreeGpu]) -> dict[str, list[FreeGpu]]:
    """The GPUs of each host, in their order."""
    found: dict[str, list[FreeGpu]] = {}
    for gpu in several:
        found.setdefault(gpu.host, []).append(gpu)
    return found


def format_gpu_places(several: Iterable[FreeGpu]) -> str:
    """`atlas:0,1 and zeus:3`."""
    hosts = group_gpus_by_host(several).items()
    told = [f"{host}:{','.join('?' if gpu.index is None else str(gpu.index) for gpu in gpus)}" for host, gpus in hosts]
    return " and ".join(filter(None, (", ".join(told[:-1]), told[-1] if told else "")))


WATCH_RULE = "watch"
# Seconds for which it must be so: between two jobs of one script a GPU is free for a moment.
HOLD_S = 45
# What was so longer ago than this and was not told, nobody has looked at since.
MAX_GAP_S = 300


class WatchConditions:
    """Those of one board; what is wrong with their file stands in `problems`."""

    def __init__(self, settings: Settings) -> None:
        """Take up since when the last builder saw which of them come true."""
        self.settings = settings
        self.file: SharedBookingFile[Watch] = SharedBookingFile(
            settings.data, None, WATCHES_FILE, parser.parse_watches, MAX_WATCHES_BYTES
        )
        self.store_path = settings.state / WATCHES_FILE
        self.fulfilled_since: dict[str, int] | None = None
        self.expired_ids: set[str] = set()
        self.problems: list[Problem] = []

    def read_problems(self) -> None:
        """Read what is wrong with the file, for the first page of a builder."""
        _, self.problems = self.file.read()

    def find_conditions(self, cards: Mapping[str, HostReport], rule: AlertRule, now: Now) -> list[Condition]:
        """What has come true, and held for long enough; in quiet hours it waits, for it may be over by their end."""
        rows, self.problems = self.file.read()
        self.expired_ids = {one.id for one in rows if one.until <= now.epoch}
        several = list(limit_watches_per_person(one for one in rows if one.until > now.epoch))
        if not several and not self.fulfilled_since and self.fulfilled_since is not None:
            return []
        free = FreeGpuIndex(
            (gpu for card in cards.values() if card.summary.state == "fresh" for gpu in card.summary.free_gpus),
            now.epoch,
        )
        there = {one.id: (one, gpus) for one in several if (gpus := self.free_for(one, free))}
        before = self.fulfilled_since if self.fulfilled_since is not None else self.load_fulfilled_since(now)
        self.fulfilled_since = {
            key: min(before.get(key, int(now.epoch)), int(now.epoch)) for key in there
        }  # a clock may be set
        if self.fulfilled_since != before:
            self.save_fulfilled_since()
        if not rule.on or is_in_quiet_hours(rule, now):
            return []
        return [
            build_watch_condition(one, gpus, self.fulfilled_since[one.id])
            for one, gpus in there.values()
            if self.has_held(one, now)
        ]

    def free_for(self, one: Watch, free: FreeGpuIndex) -> list[FreeGpu]:
        """The GPUs that somebody waits for; a fault of ours costs this watch alone."""
        try:
            return free.find_gpus(one.request)
        except Exception as error:
            what = describe_fault(f"watch {one.id} of {one.name} does not count", error)
            self.problems = [*self.problems, Problem(f"data/{WATCHES_FILE}", what)]
            return []

    def has_held(self, one: Watch, now: Now) -> bool:
        """Whether it has been so for long enough."""
        return self.fulfilled_since is not None and now.epoch - self.fulfilled_since[one.id] >= HOLD_S

    def remove_reported(self, matters: Iterable[Condition], book: AlertState, expires: bool = True) -> None:
        """Take those away that were told, as the book has it, and if the clock is believed those that are over."""
        gone = {one.about for one in matters if one.rule == WATCH_RULE and one.key in book.reported_once}
        gone |= self.expired_ids if expires else set()
        if not gone:
            return

        def make(entries: WatchEntries) -> WatchEntries:
            return [one for one in entries if not (isinstance(one, dict) and one.get("id") in gone)]

        try:
            WatchStore(self.settings.data, self.settings.kv).change(make, patience=0)
        except StorageBusyError:
            return  # the next look does it
        except (StorageError, OSError) as why:
            # the book knows that they were told: they are not told again
            self.problems = [
                *self.problems,
                Problem(f"data/{WATCHES_FILE}", f"watches that are over stay there: {why}"),
            ]

    def load_fulfilled_since(self, now: Now) -> dict[str, int]:
        """Since when the last builder saw them come true."""
        with suppress(OSError, files.FileRefusedError, *files.WRONG_SHAPE, RecursionError):
            told = json.loads(files.read(self.store_path))
            return {str(key): int(at) for key, at in told.items() if 0 <= now.epoch - int(at) <= HOLD_S + MAX_GAP_S}
        return {}

    def save_fulfilled_since(self) -> None:
        """Keep that for the next builder; where it cannot be kept, they are told a little later."""
        with suppress(OSError):
            files.write_atomically(self.store_path, json.dumps(self.fulfilled_since).encode(), 0o600)


def limit_watches_per_person(several: Iterable[Watch]) -> Iterable[Watch]:
    """No more of one person than the desk takes: anybody may have written the file."""
    counts: Counter[str] = Counter()
    for one in several:
        counts[fold_login(one.name)] += 1
        if counts[fold_login(one.name)] <= parser.MAX_WATCHES_PER_PERSON:
            yield one


def is_in_quiet_hours(rule: AlertRule, now: Now) -> bool:
    """Whether nothing is sent at this time of the day."""
    if rule.quiet_hours is None:
        return False
    minute, (since, until) = now.local.hour * 60 + now.local.minute, rule.quiet_hours
    return since <= minute < until if since <= until else minute >= since or minute < until


def build_watch_condition(one: Watch, gpus: list[FreeGpu], since: int) -> Condition:
    """What whoever waits for them is told; on one host its numbers, else where each of them is."""
    hosts = list(group_gpus_by_host(gpus))
    host = hosts[0] if len(hosts) == 1 else ""
    numbers = tuple("?" if gpu.index is None else str(gpu.index) for gpu in gpus) if host else ()
    models = ", ".join(dict.fromkeys(gpu.model for gpu in gpus))
    verb = "is" if len(gpus) == 1 else "are"
    what = (
        f"{format_gpu_places(gpus)} {verb} free ({models}); you waited for {parser.format_watch_request(one.request)}"
    )
    return Condition(
        WATCH_RULE, host, one.id, numbers, what, since, (one.name,), (one.name,), is_lasting=False, via=one.via
    )
