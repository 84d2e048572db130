"""Load a fleet from a URL, a data folder or this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost, suggest_board_update
from site_builder.config.settings import LoadedSettings, Settings
from site_builder.core import board_client, formatting
from site_builder.core.clock import Now
from site_builder.core.data_folder import BOOKINGS_FILE, find_bookings_file_in_data
from site_builder.core.model import (
    EXIT_MISSING,
    REWRITE_INTERVAL_S,
    Booking,
    DiscoveredHost,
    Disk,
    FleetUnavailableError,
    GpuProblem,
    GpuStatus,
    HostFacts,
    HostStatus,
    PrivacySettings,
    ProcessStatus,
)
from site_builder.core.people import PeopleDirectory
from site_builder.core.records import as_clean_text, as_integer, as_list, as_number, as_text
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import dates
from site_builder.fleet import status_json
from site_builder.fleet.gpu_models import DEFAULT_VENDOR, NameFiles
from site_builder.fleet.mig import is_mig_without_instances, list_whole_gpus
from site_builder.fleet.topology import locate_gpu
from site_builder.snapshots import local_machine
from site_builder.snapshots.local_machine import LocalTopology, read_local_machine_name

# Seconds by which a running builder may be late.
BUILD_DELAY_TOLERANCE_S = 30
DEFAULT_BUILD_INTERVAL_S = 60
# In ASCII, a text that is not clean must contain one of these escapes, or DEL.
UNCLEAN_ESCAPES, DEL = (b"\\u", b"\\n", b"\\t", b"\\r", b"\\b", b"\\f"), b"\x7f"
GPU_STATES = frozenset({"unknown", "lost", "conflict", "held", "busy", "booked", "free"})
HOST_STATES = frozenset({"fresh", "stale", "down", "failed", "unseen", "maintenance"})
PROBLEM_SEVERITIES = frozenset({"critical", "warning", "info"})
# Words of a board that is older than this client, and of its key `weight`, which is `severity` now.
OLD_GPU_STATES = {"violated": "conflict"}
OLD_SEVERITIES = {"grave": "critical", "look": "warning", "told": "info"}
NOT_STATUS_MESSAGE = "is not the status.json of a gpuboard"
UNKNOWN_STATE_MESSAGE = "the board reports a state that this gpuboard does not know"
NO_INSTANCES_MESSAGE = "its instances could not be read"
MAX_LINKED_GPUS = 1024
TextReader = Callable[[object], "str | None"]


class NoGpuToolError(FleetUnavailableError):
    """This machine has no GPU tool of any maker."""


def choose_fleet_source(loaded: LoadedSettings) -> str:
    """Return where the fleet comes from: `url`, `data` or `machine`; --url goes before a data folder."""
    data, url = loaded.given["GPUBOARD_DATA"], loaded.given["GPUBOARD_URL"]
    is_data_set = data.origin != "default" and not data.was_empty
    if loaded.settings.url and (url.origin == "--url" or not is_data_set):
        return "url"
    return "data" if is_data_set else "machine"


def open_fleet(loaded: LoadedSettings, has_topology: bool = False) -> Callable[[], Fleet]:
    """Return a function that loads the fleet each time it is called; it may raise FleetUnavailableError.

    With `has_topology`, this machine's own fleet says how its GPUs are connected.
    """
    settings, source = loaded.settings, choose_fleet_source(loaded)
    if source == "url":
        return lambda: load_board_fleet(settings.url or "", settings.login)
    if source == "machine":
        topology = LocalTopology() if has_topology else None
        return lambda: load_machine_fleet(settings, topology)
    if not settings.data.is_dir():
        raise FleetUnavailableError(
            f"there is no folder {settings.data.absolute()}: set GPUBOARD_DATA to the data folder of a board"
        )
    return lambda: load_data_fleet(settings)


def find_loaded_fleet_host(fleet: Fleet, name: str | None, loaded: LoadedSettings) -> FleetHost:
    """Return the named host, or else this machine."""
    if name is None and choose_fleet_source(loaded) == "machine":
        return fleet.hosts[0]
    host = fleet.find_host(name or fleet.machine_name)
    if host:
        return host
    if name:
        raise FleetUnavailableError(f"{fleet.source} has no host {name}")
    raise FleetUnavailableError(
        f"this machine, {fleet.machine_name}, is not on {fleet.source}: name one of its hosts with --host, or use "
        "`gpuboard available --all`"
    )


def build_fleet_owner_check(loaded: LoadedSettings, name: str | None) -> Callable[[str], bool]:
    """Return a function that says whether a booking is of that person, or else of the user; aliases are resolved."""

    def is_own(booked_name: str) -> bool:
        person = name or local_machine.find_local_login()
        aliases = NameFiles(loaded.settings.data, None).read_names()[0] if choose_fleet_source(loaded) == "data" else {}
        people = PeopleDirectory(aliases)
        return person is not None and people.resolve_person(booked_name) == people.resolve_person(person)

    return lru_cache(maxsize=None)(is_own)


def load_board_fleet(url: str, login: str | None = None) -> Fleet:
    """Load the fleet from a board elsewhere; refuse one that is no longer built."""
    status_url = f"{url}status.json"
    response = board_client.send_board_request(status_url, login=login)
    fleet, fault = parse_status(response.content)
    if fleet is None:
        hint = f": {board_client.CHECK_URL_HINT}" if fault == NOT_STATUS_MESSAGE else ""
        raise FleetUnavailableError(f"{status_url} {fault}{hint}")
    check_loaded_board_age(fleet.built, fleet.every, url, time.time() + response.clock_ahead_s)
    return fleet._replace(
        source=f"the board at {url}", machine_name=read_local_machine_name(), clock_ahead_s=response.clock_ahead_s
    )


def check_loaded_board_age(built: int, every: int | None, url: str, now: float) -> None:
    """Refuse a board whose builder has stopped, by the clock of the server: ours may be wrong."""
    age = now - built
    max_age = REWRITE_INTERVAL_S + 3 * (every or DEFAULT_BUILD_INTERVAL_S) + BUILD_DELAY_TOLERANCE_S
    if age > max_age:
        raise FleetUnavailableError(
            f"the board at {url} was last built {formatting.format_duration(age)} ago, and its data are out of date: "
            "is `gpuboard build` still running there?"
        )
    if age < -max_age:
        raise FleetUnavailableError(
            f"the board at {url} was built {formatting.format_duration(-age)} in the future: the clock of its "
            "builder or of its server is wrong"
        )


def load_data_fleet(settings: Settings) -> Fleet:
    """Load the fleet from a data folder, decided at this moment."""
    # slow to import, and not needed for the fleet of a board elsewhere
    from site_builder.bookings.host_lookup import HostLookup  # noqa: PLC0415

    now = Now(time.time(), settings.zone)
    try:
        hosts = HostLookup(settings)
        shown_names = [name for name, host in hosts.list_hosts().items() if not host.is_hidden]
        statuses = hosts.decide_hosts(shown_names, load_fleet_bookings(settings), now, remembered=True).statuses
    except OSError as error:
        raise FleetUnavailableError(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    fleet = build_loaded_fleet([statuses[name] for name in shown_names], now.epoch, str(settings.data.absolute()))
    return fleet._replace(users_shown=settings.privacy.users)


def load_fleet_bookings(settings: Settings) -> Sequence[Booking]:
    """Load all bookings, from the last good file if the present one cannot be read; refuse if neither can."""
    from site_builder.bookings import store as booking_store  # noqa: PLC0415 # slow to import

    faults: list[str] = []
    for name in (BOOKINGS_FILE, booking_store.LAST_GOOD_FILE):
        file = booking_store.BookingsFile(settings.data, None, settings.zone, name)
        bookings, problems = file.read()
        if file.content is not None or not (problems or faults):  # without problems, nobody has booked yet
            return bookings
        faults += [problem.what for problem in problems]
    path = find_bookings_file_in_data(settings.data)
    raise FleetUnavailableError(f"{path} was {faults[0]}; so the bookings are unknown")


def load_machine_fleet(settings: Settings, topology: LocalTopology | None = None) -> Fleet:
    """Load the GPUs of this machine from the makers' tools."""
    queries = local_machine.start_local_queries(topology)
    # slow to import, which is done while the tools respond
    from site_builder.fleet.gpu_state import StateRules  # noqa: PLC0415
    from site_builder.fleet.host_state import HostStatusSources, decide_host_status  # noqa: PLC0415

    now, name = Now(time.time(), settings.zone), read_local_machine_name()
    proc_folder = Path(os.environ.get("GPUBOARD_PROC") or "/proc")
    snapshot = local_machine.read_local_machine(queries, name, now.epoch, proc_folder)
    if snapshot.gpus and snapshot.gpus.header and snapshot.gpus.header.rc == EXIT_MISSING:
        raise NoGpuToolError(
            "no nvidia-smi, amd-smi or rocm-smi on this machine, and no board set: set GPUBOARD_URL to "
            "the address of a board, or GPUBOARD_DATA to its data folder"
        )
    rules = StateRules(settings.limits, PeopleDirectory({}), PrivacySettings())
    status = decide_host_status(HostStatusSources(DiscoveredHost(name)), snapshot, rules, now)
    if status.state != "fresh":
        raise FleetUnavailableError(status.reason)
    return build_loaded_fleet([status], now.epoch, "this machine")


def build_loaded_fleet(statuses: Sequence[HostStatus], built: float, source: str) -> Fleet:
    """Build the fleet from decided states: the same as a program would read in status.json."""
    problems = [problem for status in statuses for problem in status.problems]
    return Fleet(
        built=int(built),
        hosts=tuple(build_fleet_host(status) for status in statuses),
        problems=tuple(f"{as_clean_text(problem.where)}: {as_clean_text(problem.what)}" for problem in problems),
        source=source,
        machine_name=read_local_machine_name(),
    )


def build_fleet_host(status: HostStatus) -> FleetHost:
    """Build a host; if it is not fresh, its load and available memory are not known."""
    facts, is_fresh = status.facts or HostFacts(), status.state == "fresh"
    gpus: list[FleetGpu] = []
    mig_gpus: list[FleetGpu] = []
    for whole in list_whole_gpus(status):
        gpu = build_fleet_gpu(whole.status)
        if facts.topology and gpu.vendor == DEFAULT_VENDOR:
            place = locate_gpu(facts.topology, whole.status.gpu)
            gpu = gpu._replace(numa_node=place.numa_node, linked=tuple(place.linked))
        instances = [
            build_fleet_gpu(instance)._replace(
                index=gpu.index, parent_keys=gpu.booking_keys, profile=as_clean_text(instance.gpu.profile)
            )
            for instance in whole.instances
        ]
        has_no_instances = not instances and is_mig_without_instances(whole.status.gpu)
        if has_no_instances and gpu.state in {"free", "booked"}:
            gpu = gpu._replace(state="unknown", reason=NO_INSTANCES_MESSAGE)
        if instances or has_no_instances:
            mig_gpus.append(gpu)
        gpus += instances or [gpu]
    return FleetHost(
        name=status.name,
        title=as_clean_text(status.title),
        tags=tuple(filter(None, map(as_clean_text, status.tags))),
        state=status.state,
        reason=as_clean_text(status.reason) or "",
        seen=None if status.last_seen is None else int(status.last_seen),
        load=facts.load if is_fresh else None,
        cpus=facts.cpus,
        memory_total=as_number(facts.memory_total),
        memory_available=as_number(facts.memory_available) if is_fresh else None,
        gpus=tuple(gpus),
        disks=tuple(Disk(as_clean_text(disk.mount) or "", disk.total, disk.used) for disk in facts.disks),
        mig_gpus=tuple(mig_gpus),
        addresses=tuple(status_json.list_host_addresses(facts)),
    )


def build_fleet_gpu(status: GpuStatus) -> FleetGpu:
    """Build a GPU or an instance."""
    gpu = status.gpu
    name = as_clean_text(gpu.name)
    return FleetGpu(
        index=gpu.index,
        uuid=as_clean_text(gpu.uuid),
        name=name,
        model=as_clean_text(status.model) or name or "GPU",
        state=status.state,
        reason=as_clean_text(status.reason) or "",
        memory_used=as_number(gpu.memory_used),
        memory_total=as_number(gpu.memory_total),
        is_memory_shared=gpu.is_memory_shared,
        utilization_gpu=as_number(gpu.utilization_gpu),
        utilization_memory=as_number(gpu.utilization_memory),
        temperature=as_number(gpu.temperature),
        power_draw=as_number(gpu.power_draw),
        power_limit=as_number(gpu.power_limit),
        clock=as_number(gpu.clock),
        processes=tuple(
            ProcessStatus(
                pid=process.pid,
                user=as_clean_text(process.user),
                command=as_clean_text(process.command),
                used_memory=as_number(process.used_memory),
                started=process.started,
            )
            for process in status.processes
        ),
        bookings=tuple(
            FleetBooking(
                id=as_clean_text(booking.id),
                name=as_clean_text(booking.name),
                since=booking.since,
                until=booking.until,
                comment=as_clean_text(booking.comment),
                unused_since=booking.unused_since,
                used_by=tuple(filter(None, map(as_clean_text, booking.used_by or ()))) or None,
                used_by_since=booking.used_by_since,
                mean_use=booking.mean_use,
                written_name=as_clean_text(booking.written_name),
            )
            for booking in status.bookings
        ),
        free_again=status.free_again,
        place=as_clean_text(gpu.place),
        problems=tuple(
            problem._replace(what=as_clean_text(problem.what) or "?", advice=as_clean_text(problem.advice) or "")
            for problem in status.problems
        ),
        vendor=gpu.vendor,
    )


def parse_status(content: bytes) -> tuple[Fleet | None, str]:
    """Parse status.json, or say why not; a host of another form is left out, and counted among the problems."""
    try:
        status = orjson.loads(content)
    except ValueError:
        return None, NOT_STATUS_MESSAGE
    if (
        not isinstance(status, dict)
        or not isinstance(status.get("hosts"), list)
        or type(status.get("built")) is not int
    ):
        return None, NOT_STATUS_MESSAGE
    schema = status.get("schema")
    if schema != status_json.STATUS_SCHEMA:
        fault = f"has schema {clean_text(str(schema))[:20]}, but {status_json.STATUS_SCHEMA} is needed here"
        return None, f"{fault}: {suggest_board_update(schema)}"
    # one character is found far faster than two, and most boards need no escape
    has_unclean_escape = b"\\" in content and any(escape in content for escape in UNCLEAN_ESCAPES)
    text = as_text if content.isascii() and DEL not in content and not has_unclean_escape else as_clean_text
    hosts = tuple(host for fields in status["hosts"] if (host := parse_fleet_host(fields, text)))
    problems = tuple(
        f"{text(problem.get('where')) or '?'}: {text(problem.get('what')) or '?'}"
        for problem in list_objects(status.get("problems"))
    )
    if len(hosts) < len(status["hosts"]):
        problems = (*problems, f"{len(status['hosts']) - len(hosts)} hosts of status.json could not be read")
    every, users_shown = status.get("every"), status.get("users_shown")
    if not isinstance(users_shown, bool):  # a board that is older than this client
        users_shown = any(process.user for host in hosts for gpu in host.gpus for process in gpu.processes)
    every = every if type(every) is int and every > 0 else None
    return Fleet(status["built"], hosts, problems, every=every, users_shown=users_shown), ""


def parse_fleet_host(fields: Any, text: TextReader) -> FleetHost | None:  # noqa: ANN401 # may be of any type
    """Parse a host, if it has a name."""
    name = text(fields.get("name")) if isinstance(fields, dict) else None
    if not name:
        return None
    state, reason = text(fields.get("state")) or "", text(fields.get("reason")) or ""
    if state not in HOST_STATES:
        state, reason = "failed", UNKNOWN_STATE_MESSAGE
    memory = fields.get("memory") if isinstance(fields.get("memory"), dict) else {}
    load = tuple(value for value in map(as_number, as_list(fields.get("load"))) if value is not None)
    gpus: list[FleetGpu] = []
    mig_gpus: list[FleetGpu] = []
    for gpu_fields in list_objects(fields.get("gpus")):
        gpu = parse_fleet_gpu(gpu_fields, text, state)
        # an instance without a name cannot be used, and then the GPU as a whole cannot either
        instances = [
            parse_fleet_gpu(instance, text, state)._replace(index=gpu.index, parent_keys=gpu.booking_keys)
            for instance in list_objects(gpu_fields.get("instances"))
            if text(instance.get("place"))
        ]
        if gpu_fields.get("instances") is not None:
            is_empty = not gpu_fields["instances"] and gpu.state not in {"free", "booked"}
            if not instances and not is_empty:
                gpu = gpu._replace(state="unknown", reason=NO_INSTANCES_MESSAGE)
            mig_gpus.append(gpu)
        gpus += instances or [gpu]
    disks = []
    for disk in list_objects(fields.get("disks")):
        mount, total, used = text(disk.get("mount")), as_number(disk.get("total")), as_number(disk.get("used"))
        if mount is not None and total is not None and used is not None:
            disks.append(Disk(mount, total, used))
    return FleetHost(
        name=name,
        title=text(fields.get("title")),
        tags=tuple(filter(None, map(text, as_list(fields.get("tags"))))),
        state=state,
        reason=reason,
        seen=as_integer(fields.get("seen")),
        load=(load[0], load[1], load[2]) if len(load) == 3 else None,
        cpus=as_integer(fields.get("cpus")),
        memory_total=as_number(memory.get("total")),
        memory_available=as_number(memory.get("available")),
        gpus=tuple(gpus),
        disks=tuple(disks),
        mig_gpus=tuple(mig_gpus),
        addresses=tuple(parse_fleet_addresses(fields.get("addresses"), text)),
        gpus_read=as_integer(fields.get("gpus_read")),
    )


def parse_fleet_addresses(value: object, text: TextReader) -> Iterator[tuple[str, str]]:
    """Yield interfaces with their addresses."""
    for pair in as_list(value):
        name, address = map(text, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if name is not None and address is not None:
            yield name, address


def parse_fleet_gpu(fields: dict[str, Any], text: TextReader, host_state: str) -> FleetGpu:
    """Parse a GPU; its state is unknown if we do not know it, or if its host is not fresh."""
    get = fields.get
    state, reason = text(get("state")) or "", text(get("reason")) or ""
    state = OLD_GPU_STATES.get(state, state)
    if state not in GPU_STATES:
        state, reason = "unknown", UNKNOWN_STATE_MESSAGE
    elif host_state != "fresh" and state not in {"lost", "unknown"}:
        state, reason = "unknown", f"its host is {host_state}"
    problems = []
    for problem in list_objects(get("problems")):
        severity = text(problem.get("severity", problem.get("weight"))) or ""
        severity = OLD_SEVERITIES.get(severity, severity)
        problems.append(
            GpuProblem(
                kind=text(problem.get("kind")) or "",
                severity=severity if severity in PROBLEM_SEVERITIES else "info",
                what=text(problem.get("what")) or "?",
                advice=text(problem.get("advice")) or "",
                avoid=problem.get("avoid") is True,
            )
        )
    name = text(get("name"))
    return FleetGpu(
        index=as_integer(get("index")),
        uuid=text(get("uuid")),
        name=name,
        model=text(get("model")) or name or "GPU",
        state=state,
        reason=reason,
        memory_used=as_number(get("memory.used")),
        memory_total=as_number(get("memory.total")),
        is_memory_shared=get("memory.shared") is True,
        utilization_gpu=as_number(get("utilization.gpu")),
        utilization_memory=as_number(get("utilization.memory")),
        temperature=as_number(get("temperature.gpu")),
        power_draw=as_number(get("power.draw")),
        power_limit=as_number(get("power.limit")),
        clock=as_number(get("clocks.sm")),
        processes=tuple(
            ProcessStatus(
                pid=as_integer(process.get("pid")),
                user=text(process.get("user")),
                command=text(process.get("command")),
                used_memory=as_number(process.get("used_gpu_memory")),
                started=as_integer(process.get("started")),
            )
            for process in list_objects(get("processes"))
        ),
        bookings=tuple(
            booking for item in list_objects(get("bookings")) if (booking := parse_fleet_booking(item, text))
        ),
        free_again=as_integer(get("free_again")),
        place=text(get("place")),
        profile=text(get("profile")),
        vendor=text(get("vendor")) or "nvidia",
        problems=tuple(problems),
        numa_node=as_integer(get("numa")),
        linked=parse_fleet_links(get("linked")),
    )


def parse_fleet_links(value: object) -> tuple[int, ...] | None:
    """Parse the indices of GPUs; None where they are not known."""
    if not isinstance(value, list):
        return None
    return tuple(index for item in value[:MAX_LINKED_GPUS] if (index := as_integer(item)) is not None)


def parse_fleet_booking(fields: dict[str, Any], text: TextReader) -> FleetBooking | None:
    """Parse a booking, if its times can be read."""
    until = dates.parse_date_with_offset(fields.get("date"))
    since = dates.parse_date_with_offset(fields["from"]) if fields.get("from") else None
    if until is None or (fields.get("from") and since is None):
        return None
    return FleetBooking(
        id=text(fields.get("id")),
        name=text(fields.get("name")),
        since=since,
        until=until,
        comment=text(fields.get("comment")),
        unused_since=as_integer(fields.get("unused_since")),
        used_by=tuple(filter(None, map(text, as_list(fields.get("used_by"))))) or None,
        used_by_since=as_integer(fields.get("used_by_since")),
        mean_use=as_number(fields.get("mean_use")),
        written_name=text(fields.get("written_name")),
    )


def list_objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
