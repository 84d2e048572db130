"""Hosts, GPUs, processes and bookings as `decide` takes them, with no file and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from site_builder.core.clock import Now
from site_builder.core.model import (
    Booking,
    DiscoveredHost,
    Gpu,
    GpuProcessRow,
    GpuStatus,
    HostFacts,
    HostSnapshot,
    HostStatus,
    IdleTimes,
    ParsedFile,
    PrivacySettings,
    PsRow,
    Row,
    SnapshotHeader,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import StateRules

PARIS = ZoneInfo("Europe/Paris")
NOON = datetime(2026, 11, 16, 12, tzinfo=PARIS)  # a Monday
NOW = NOON.timestamp()
FILES = ("host.txt", "gpus.csv", "processes.csv", "ps.txt")
EVERY = {"host.txt": 10, "gpus.csv": 20, "processes.csv": 20, "ps.txt": 20}


def now(after: float = 0) -> Now:
    """Noon of a Monday in Paris, or so many seconds later."""
    return Now(NOW + after, PARIS)


def gpu(index: int | None = 0, used: float | None = 4, use: float | None = 0, **overrides: Any) -> Gpu:  # noqa: ANN401
    """A GPU of 80 GiB that nobody is on."""
    plain: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_total": 81920,
        "temperature": 40,
    }
    return Gpu(index=index, memory_used=used, utilization_gpu=use, **{**plain, **overrides})


ONE_FREE = (gpu(),)


def process(pid: int | None = 42, on: str = "GPU-0", name: str | None = "python") -> GpuProcessRow:
    """A process on a GPU."""
    return GpuProcessRow(on, pid, 7000, name)


def person(
    pid: int = 42,
    user: str | None = "alice",
    command: str | None = "python train.py",
    **overrides: Any,  # noqa: ANN401
) -> PsRow:
    """What ps tells of a process."""
    plain: dict[str, Any] = {
        "ppid": 1,
        "gpu_pid": pid,
        "uid": "1000",
        "elapsed": 3600,
        "cpu": 99.0,
        "rss": 2048.0,
        "state": "R",
        "container": None,
    }
    return PsRow(pid=pid, user=user, command=command, **{**plain, **overrides})


def head(task: str, rc: int = 0) -> SnapshotHeader:
    """The first line of a file that was made just now."""
    return SnapshotHeader(task, "atlas", int(NOW), 20, 70, rc)


def dump(rows_or_file: Sequence[Row] | ParsedFile[Row] | None, task: str) -> ParsedFile[Row] | None:
    """Rows as a whole file has them; a file that is not whole, or not there, as it is."""
    return (
        rows_or_file
        if rows_or_file is None or isinstance(rows_or_file, ParsedFile)
        else ParsedFile(tuple(rows_or_file), head(task))
    )


def host_data(
    gpus: Sequence[Gpu] | ParsedFile[Gpu] | None = ONE_FREE,
    processes: Sequence[GpuProcessRow] | ParsedFile[GpuProcessRow] | None = (),
    ps: Sequence[PsRow] | ParsedFile[PsRow] | None = (),
    ages: Mapping[str, float] | None = None,
    **overrides: Any,  # noqa: ANN401
) -> HostSnapshot:
    """All that a host tells; `ages` has the files that are not made just now."""
    ages = ages or {}
    plain: dict[str, Any] = {
        "gpus": dump(gpus, "gpus"),
        "processes": dump(processes, "processes"),
        "ps_rows": dump(ps, "ps"),
        "facts": ParsedFile((HostFacts(cpus=4),), head("host")),
        "last_seen": NOW - ages.get("host.txt", 0),
        "taken_at": {file: NOW - ages.get(file, 0) for file in FILES},
        "intervals": EVERY,
        "clock_offset": 0.0,
    }
    return HostSnapshot("atlas", **{**plain, **overrides})


def used_by(*users: str | None, **overrides: Any) -> HostSnapshot:  # noqa: ANN401
    """A host with one GPU on which each of these has a process; its use is 90 % unless told."""
    pids = range(42, 42 + len(users))
    plain: dict[str, Any] = {
        "gpus": [gpu(used=7000, use=90)],
        "processes": [process(pid) for pid in pids],
        "ps": [person(pid, user) for pid, user in zip(pids, users)],
    }
    return host_data(**{**plain, **overrides})


def booking(name: str = "alice", begins: float | None = None, ends: float = 2, **overrides: Any) -> Booking:  # noqa: ANN401
    """A booking of GPU 0 of atlas, from so many hours after now (None: from ever) until so many."""
    since = None if begins is None else NOON + timedelta(hours=begins)
    plain: dict[str, Any] = {"host": "atlas", "gpu": "0", "until": NOON + timedelta(hours=ends), "since": since}
    return Booking(name=name, **{**plain, **overrides})


def idle_for(seconds: float, looked: float = 20, key: str = "GPU-0") -> IdleTimes:
    """A GPU that was found idle so long ago, and was last looked at a moment ago."""
    return IdleTimes(NOW - looked, {key: NOW - seconds})


def decide(
    data: HostSnapshot | None,
    bookings: Sequence[Booking] = (),
    *,
    idle: IdleTimes | None = None,
    known: DiscoveredHost | None = None,
    limits: StateLimits | None = None,
    shown: PrivacySettings | None = None,
    aliases: Mapping[str, str] | None = None,
    logins: Sequence[str] = ("alice", "bob", "carol"),
    names: dict[str, str] | None = None,
    at: Now | None = None,
) -> HostStatus:
    """What the board says of a host; alice, bob and carol are logins that were seen before."""
    case = host_state.HostStatusSources(
        known or DiscoveredHost("atlas"), bookings=bookings, idle_times=idle or IdleTimes(0, {})
    )
    people = PeopleDirectory(aliases or {}, logins)
    rules = StateRules(limits or StateLimits(), people, shown or PrivacySettings(), names or {})
    return host_state.decide_host_status(case, data or HostSnapshot("atlas"), rules, at or now())


def only_gpu(data: HostSnapshot, *bookings: Booking, **options: Any) -> GpuStatus:  # noqa: ANN401
    """What the board says of the one GPU of a host."""
    (gpu_status,) = decide(data, bookings, **options).gpus
    return gpu_status


def state(data: HostSnapshot, *bookings: Booking, **options: Any) -> str:  # noqa: ANN401
    """The state of the one GPU of a host."""
    return only_gpu(data, *bookings, **options).state


def reason(data: HostSnapshot, *bookings: Booking, **options: Any) -> str:  # noqa: ANN401
    """Its state and the reason."""
    gpu_status = only_gpu(data, *bookings, **options)
    return f"{gpu_status.state}: {gpu_status.reason}"
