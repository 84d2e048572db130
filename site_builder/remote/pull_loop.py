"""Pull from many hosts, round after round."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from site_builder.core.command_options import print_command_message
from site_builder.core.terminal_text import clean_excerpt
from site_builder.remote.fetch import PullError, SnapshotFetcher, write_pulled_files
from site_builder.remote.targets import Target
from site_builder.remote.worker_pool import WorkerPool

# How much later than its own time limit a fetcher may say why: it knows better than we do.
REPORT_GRACE_S = 1.0
# How long we wait for all connections to end.
CLOSE_TIMEOUT_S = 3.0
FetchOutcome = tuple[dict[str, bytes], list[str]]  # the files that came, and what went wrong


class PullLoop:
    """Pull from all targets; connections stay open between rounds, and a sentence about a host is printed once."""

    def __init__(
        self,
        targets: Iterable[Target],
        create_fetcher: Callable[[Target], SnapshotFetcher],
        timeout_s: float,
        data_folder: Path,
    ) -> None:
        self.targets = list(targets)
        self.create_fetcher = create_fetcher
        self.timeout_s = timeout_s
        self.data_folder = data_folder
        self.fetchers: dict[str, SnapshotFetcher] = {}
        self.pool: WorkerPool[str, FetchOutcome] = WorkerPool()
        self.failed_hosts: set[str] = set()
        self.printed: set[tuple[str, str]] = set()

    def run(self, every: int | None, began: float, end: float) -> set[str]:
        """Pull until `end`, finish the round that is under way, and return the hosts whose last round failed."""
        count = 0
        while True:
            self.start_round()
            # the next tick that is still ahead: those that were missed are not made up for
            count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
            tick = began + count * every if every else end
            is_last = every is None or tick >= end
            for name, outcome in self.pool.iterate_results(math.inf if is_last else tick):
                # time limits of libraries do not help against a byte a minute
                self.store_outcome(name, *(outcome or ({}, [f"no whole answer within {self.timeout_s:.0f} s"])))
            if is_last:
                return self.failed_hosts
            time.sleep(max(0.0, tick - time.monotonic()))

    def start_round(self) -> None:
        """Queue a fetch for each host but those that are still busy with the last one."""
        busy = self.pool.pending
        for target in self.targets:
            if target.name not in busy:
                if target.name not in self.fetchers:
                    self.fetchers[target.name] = self.create_fetcher(target)
                task = partial(self.run_fetch, self.fetchers[target.name])
                self.pool.add(target.name, task, self.timeout_s + REPORT_GRACE_S)

    def run_fetch(self, fetcher: SnapshotFetcher) -> FetchOutcome:
        """Fetch the files of one host, in its thread."""
        try:
            return fetcher.fetch(time.monotonic() + self.timeout_s), []
        except PullError as error:
            return {}, [str(error)]
        except Exception as error:  # a thread that dies in silence would be a host that hangs
            return {}, [f"nobody foresaw this: {type(error).__name__}: {clean_excerpt(error)}"]

    def store_outcome(self, name: str, files: dict[str, bytes], problems: list[str]) -> None:
        """Write the files that came, and print what went wrong."""
        try:
            problems += write_pulled_files(self.data_folder, name, files)
        except OSError as error:
            problems.append(f"{self.data_folder / name} cannot be written: {error.strerror}; its old files stay")
        self.failed_hosts.discard(name)
        if not problems:
            return
        self.failed_hosts.add(name)
        fetcher = self.fetchers.pop(name, None)  # it takes what did not count for known: the next round opens another
        if fetcher:
            threading.Thread(target=fetcher.close, daemon=True).start()
        sentence = "; ".join(problems)
        if (name, sentence) not in self.printed:
            print_command_message(sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}")
        self.printed.add((name, sentence))

    def close(self) -> None:
        """Close all connections at once: each takes a moment."""
        threads = [threading.Thread(target=fetcher.close, daemon=True) for fetcher in self.fetchers.values()]
        for thread in threads:
            thread.start()
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
