"""Find the watches that are fulfilled, once a build."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from site_builder.alerts.conditions import HostConditions
from site_builder.alerts.model import WATCH_RULE, AlertRule, AlertState, Condition
from site_builder.alerts.queue import find_queue_quiet_end
from site_builder.bookings.store import BookingStoreFile
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.data_folder import WATCHES_FILE
from site_builder.core.faults import describe_fault
from site_builder.core.formatting import format_names
from site_builder.core.locks import LockedFileBusyError, LockedFileError
from site_builder.core.model import FreeGpu, Problem
from site_builder.core.people import fold_login
from site_builder.fleet.gpu_models import is_matching_model, is_matching_model_profile
from site_builder.watches import store
from site_builder.watches.store import MAX_WATCHES_BYTES, Watch, WatchedGpus, WatchEntries, WatchStore

# A card that is sold with 40 GB reports a little more than 40 GB, or a little less than 40 GiB.
MIB_PER_GB = 1e9 / 2**20
# How long GPUs must be free: between two jobs of one script they are free for a moment.
HOLD_S = 45
# If GPUs were free longer ago than this and that was not reported, nobody has checked since.
MAX_GAP_S = 300


class WatchConditions:
    """Finds fulfilled watches and removes reported ones; `problems` is what is wrong with their file."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.file: BookingStoreFile[Watch] = BookingStoreFile(
            settings.data, None, WATCHES_FILE, store.parse_watches, MAX_WATCHES_BYTES
        )
        self.store_path = settings.state / WATCHES_FILE
        # since when each watch has been fulfilled; None until loaded from the last builder
        self.fulfilled_since: dict[str, int] | None = None
        self.stored_since: dict[str, int] = {}
        self.expired_ids: set[str] = set()
        self.problems: list[Problem] = []

    def read_problems(self) -> None:
        """Read what is wrong with the file, for the first page of a builder."""
        _, self.problems = self.file.read()

    def find_conditions(self, hosts: Mapping[str, HostConditions], rule: AlertRule, now: Now) -> list[Condition]:
        """Find watches that have been fulfilled for long enough; none in quiet hours, since GPUs may be taken after."""
        rows, self.problems = self.file.read()
        now_s = int(now.epoch)
        self.expired_ids = {watch.id for watch in rows if watch.until <= now.epoch}
        if self.fulfilled_since is None:
            self.fulfilled_since = self.stored_since = {}
            with suppress(OSError, files.FileRefusedError, *files.PARSE_ERRORS, RecursionError):
                stored = json.loads(files.read_own_file(self.store_path))  # by the last builder
                self.fulfilled_since = self.stored_since = {
                    str(key): int(since)
                    for key, since in stored.items()
                    if 0 <= now.epoch - int(since) <= HOLD_S + MAX_GAP_S
                }
        watches, counts = [], Counter[str]()
        for watch in rows:
            if watch.until > now.epoch:
                person = fold_login(watch.name)
                counts[person] += 1
                if counts[person] <= store.MAX_WATCHES_PER_PERSON:  # anybody may have written the file
                    watches.append(watch)
        fresh_hosts = [host.summary for host in hosts.values() if watches and host.summary.state == "fresh"]
        free_gpus = WatchFreeGpuIndex((gpu for host in fresh_hosts for gpu in host.free_gpus), now.epoch)
        fulfilled = {watch.id: (watch, gpus) for watch in watches if (gpus := self.find_gpus(watch, free_gpus))}
        before = self.fulfilled_since
        # min: the clock may have been set back
        self.fulfilled_since = {watch_id: min(before.get(watch_id, now_s), now_s) for watch_id in fulfilled}
        if not rule.on or find_queue_quiet_end(rule.quiet_hours, now_s, now.zone) > now_s:
            return []
        return [
            build_watch_condition(watch, gpus, self.fulfilled_since[watch.id])
            for watch, gpus in fulfilled.values()
            if now.epoch - self.fulfilled_since[watch.id] >= HOLD_S
        ]

    def find_gpus(self, watch: Watch, free_gpus: WatchFreeGpuIndex) -> list[FreeGpu]:
        """Find the GPUs of a watch; an error of ours affects this watch alone."""
        try:
            return free_gpus.find_gpus(watch.request)
        except Exception as error:
            self.add_problem(describe_fault(f"watch {watch.id} of {watch.name} is ignored", error))
            return []

    def add_problem(self, problem: str) -> None:
        self.problems = [*self.problems, Problem(f"data/{WATCHES_FILE}", problem)]

    def save_fulfilled_since(self) -> None:
        if self.fulfilled_since is not None and self.fulfilled_since != self.stored_since:
            with suppress(OSError):  # without it, the next builder reports watches a little later
                files.write_atomically(self.store_path, json.dumps(self.fulfilled_since).encode(), 0o600)
            self.stored_since = self.fulfilled_since

    def remove_finished(self, conditions: Iterable[Condition], state: AlertState, expires: bool = True) -> None:
        """Remove the watches that were reported, or that expired by a trusted clock."""
        removed_ids = {condition.about for condition in conditions if condition.key in state.reported_once}
        removed_ids |= self.expired_ids if expires else set()
        if not removed_ids:
            return

        def remove(entries: WatchEntries) -> WatchEntries:
            # an entry may be anything, and an id of any type
            return [entry for entry in entries if not (isinstance(entry, dict) and entry.get("id") in [*removed_ids])]

        try:
            WatchStore(self.settings.data, self.settings.kv).change(remove, timeout_s=0)
        except LockedFileBusyError:
            return  # the next build does it
        except (LockedFileError, OSError) as error:  # the alert state remembers them: they are not reported again
            self.add_problem(f"ended watches could not be removed: {error}")


class WatchFreeGpuIndex:
    """The GPUs that are free at a moment, by model, so that many requests are cheap."""

    def __init__(self, free_gpus: Iterable[FreeGpu], now: float) -> None:
        self.now = now
        self.gpus_by_model: dict[str, list[FreeGpu]] = {}
        for gpu in free_gpus:
            if not gpu.is_avoided:
                self.gpus_by_model.setdefault(gpu.model, []).append(gpu)
        self.gpus_by_request: dict[WatchedGpus, list[FreeGpu]] = {}

    def find_gpus(self, request: WatchedGpus) -> list[FreeGpu]:
        """Return as many GPUs as requested, or none if there are not enough."""
        if request not in self.gpus_by_request:
            matching = [
                gpu
                for model, gpus in self.gpus_by_model.items()
                if is_matching_model(request.model, model)
                for gpu in gpus
                if self.is_match(gpu, request)
            ]
            groups = group_watch_gpus_by_host(matching).values() if request.is_on_one_host else [matching]
            enough = (gpus[: request.gpu_count] for gpus in groups if len(gpus) >= request.gpu_count)
            self.gpus_by_request[request] = next(enough, [])
        return self.gpus_by_request[request]

    def is_match(self, gpu: FreeGpu, request: WatchedGpus) -> bool:
        host = gpu.host.lower()
        if request.hosts and not any(host in (name, name.partition(".")[0]) for name in request.hosts):
            return False
        # a process sees only one MIG instance: several are for whoever asks for their profile
        is_one_of_several = request.gpu_count > 1 and isinstance(gpu.index, str) and ":" in gpu.index
        if is_one_of_several and not is_matching_model_profile(request.model, gpu.model.rpartition(" ")[2]):
            return False
        # bookings are known only as far as the board looks ahead
        is_long_enough = gpu.free_until is None or gpu.free_until - self.now >= request.duration_s
        return gpu.memory_total >= request.memory_gb * MIB_PER_GB and is_long_enough


def group_watch_gpus_by_host(free_gpus: Iterable[FreeGpu]) -> dict[str, list[FreeGpu]]:
    by_host: dict[str, list[FreeGpu]] = {}
    for gpu in free_gpus:
        by_host.setdefault(gpu.host, []).append(gpu)
    return by_host


def format_watch_gpu_places(free_gpus: Iterable[FreeGpu]) -> str:
    """Format `atlas:0,1 and zeus:3`."""
    by_host = group_watch_gpus_by_host(free_gpus).items()
    places = [f"{host}:{','.join(map(format_watch_gpu_number, gpus))}" for host, gpus in by_host]
    return format_names(places, limit=len(places))


def format_watch_gpu_number(gpu: FreeGpu) -> str:
    return "?" if gpu.index is None else str(gpu.index)


def build_watch_condition(watch: Watch, gpus: list[FreeGpu], since: int) -> Condition:
    hosts = list(group_watch_gpus_by_host(gpus))
    is_one_host = len(hosts) == 1
    models = ", ".join(dict.fromkeys(gpu.model for gpu in gpus))
    verb = "is" if len(gpus) == 1 else "are"
    request = store.format_watched_gpus(watch.request)
    return Condition(
        rule=WATCH_RULE,
        host=hosts[0] if is_one_host else "",
        about=watch.id,
        gpus=tuple(map(format_watch_gpu_number, gpus)) if is_one_host else (),
        what=f"{format_watch_gpu_places(gpus)} {verb} free ({models}); you waited for {request}",
        since=since,
        owners=(watch.name,),
        people=(watch.name,),
        is_lasting=False,
        via=watch.via,
    )
