"""Hosts, GPUs, processes and bookings as `decide` takes them, with no file and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from site_builder.core.clock import Now
from site_builder.core.model import (
    BoardGpu,
    BoardHost,
    Booking,
    Dump,
    Gpu,
    GpuProcess,
    Header,
    HostData,
    HostFacts,
    Idle,
    KnownHost,
    Limits,
    PsRow,
    Row,
    Shown,
)
from site_builder.core.people import People
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import Rules

PARIS = ZoneInfo("Europe/Paris")
NOON = datetime(2026, 11, 16, 12, tzinfo=PARIS)  # a Monday
NOW = NOON.timestamp()
FILES = ("host.txt", "gpus.csv", "processes.csv", "ps.txt")
EVERY = {"host.txt": 10, "gpus.csv": 20, "processes.csv": 20, "ps.txt": 20}


def now(after: float = 0) -> Now:
    """Noon of a Monday in Paris, or so many seconds later."""
    return Now(NOW + after, PARIS)


def gpu(index: int | None = 0, used: float | None = 4, use: float | None = 0, **more: Any) -> Gpu:  # noqa: ANN401
    """A GPU of 80 GiB that nobody is on."""
    plain: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_total": 81920,
        "temperature": 40,
    }
    return Gpu(index=index, memory_used=used, utilization_gpu=use, **{**plain, **more})


ONE_FREE = (gpu(),)


def process(pid: int | None = 42, on: str = "GPU-0", name: str | None = "python") -> GpuProcess:
    """A process on a GPU."""
    return GpuProcess(on, pid, 7000, name)


def person(pid: int = 42, user: str | None = "alice", command: str | None = "python train.py", **more: Any) -> PsRow:  # noqa: ANN401
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
    return PsRow(pid=pid, user=user, command=command, **{**plain, **more})


def head(task: str, rc: int = 0) -> Header:
    """The first line of a file that was made just now."""
    return Header(task, "atlas", int(NOW), 20, 70, rc)


def dump(told: Sequence[Row] | Dump[Row] | None, task: str) -> Dump[Row] | None:
    """Rows as a whole file has them; a file that is not whole, or not there, as it is."""
    return told if told is None or isinstance(told, Dump) else Dump(tuple(told), head(task))


def host_data(
    gpus: Sequence[Gpu] | Dump[Gpu] | None = ONE_FREE,
    processes: Sequence[GpuProcess] | Dump[GpuProcess] | None = (),
    ps: Sequence[PsRow] | Dump[PsRow] | None = (),
    ages: Mapping[str, float] | None = None,
    **more: Any,  # noqa: ANN401
) -> HostData:
    """All that a host tells; `ages` has the files that are not made just now."""
    ages = ages or {}
    plain: dict[str, Any] = {
        "gpus": dump(gpus, "gpus"),
        "processes": dump(processes, "processes"),
        "ps": dump(ps, "ps"),
        "facts": Dump((HostFacts(cpus=4),), head("host")),
        "seen": NOW - ages.get("host.txt", 0),
        "taken": {file: NOW - ages.get(file, 0) for file in FILES},
        "every": EVERY,
        "clock": 0.0,
    }
    return HostData("atlas", **{**plain, **more})


def used_by(*users: str | None, **more: Any) -> HostData:  # noqa: ANN401
    """A host with one GPU on which each of these has a process; its use is 90 % unless told."""
    pids = range(42, 42 + len(users))
    plain: dict[str, Any] = {
        "gpus": [gpu(used=7000, use=90)],
        "processes": [process(pid) for pid in pids],
        "ps": [person(pid, user) for pid, user in zip(pids, users)],
    }
    return host_data(**{**plain, **more})


def booking(name: str = "alice", begins: float | None = None, ends: float = 2, **more: Any) -> Booking:  # noqa: ANN401
    """A booking of GPU 0 of atlas, from so many hours after now (None: from ever) until so many."""
    since = None if begins is None else NOON + timedelta(hours=begins)
    plain: dict[str, Any] = {"host": "atlas", "gpu": "0", "until": NOON + timedelta(hours=ends), "since": since}
    return Booking(name=name, **{**plain, **more})


def idle_for(seconds: float, looked: float = 20, key: str = "GPU-0") -> Idle:
    """A GPU that was found idle so long ago, and was last looked at a moment ago."""
    return Idle(NOW - looked, {key: NOW - seconds})


def decide(
    data: HostData | None,
    bookings: Sequence[Booking] = (),
    *,
    idle: Idle | None = None,
    known: KnownHost | None = None,
    limits: Limits | None = None,
    shown: Shown | None = None,
    aliases: Mapping[str, str] | None = None,
    logins: Sequence[str] = ("alice", "bob", "carol"),
    names: dict[str, str] | None = None,
    at: Now | None = None,
) -> BoardHost:
    """What the board says of a host; alice, bob and carol are logins that were seen before."""
    case = host_state.Case(known or KnownHost("atlas"), data, bookings, idle or Idle(0, {}), names or {})
    rules = Rules(limits or Limits(), People(aliases or {}, logins), shown or Shown())
    return host_state.host(case, rules, at or now())


def only_gpu(data: HostData, *bookings: Booking, **more: Any) -> BoardGpu:  # noqa: ANN401
    """What the board says of the one GPU of a host."""
    (found,) = decide(data, bookings, **more).gpus
    return found


def state(data: HostData, *bookings: Booking, **more: Any) -> str:  # noqa: ANN401
    """The state of the one GPU of a host."""
    return only_gpu(data, *bookings, **more).state


def reason(data: HostData, *bookings: Booking, **more: Any) -> str:  # noqa: ANN401
    """Its state and the reason."""
    found = only_gpu(data, *bookings, **more)
    return f"{found.state}: {found.reason}"
