"""Load a fleet from a URL, a data folder or this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from site_builder.client.model import Fleet, FleetBooking, FleetDisk, FleetGpu, FleetHost, FleetProcess
from site_builder.config.settings import Settings, SettingValue
from site_builder.core import formatting
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.model import GpuProblem
from site_builder.core.terminal_text import clean_text, flatten_text
from site_builder.core.timeparse import dates

if TYPE_CHECKING:
    from site_builder.core.model import Booking, HostStatus

STATUS_SCHEMA = 1
NUMBER_TYPES = (int, float)
MAX_NUMBER = 1e15
# In ASCII, what is not clean can only come as one of these: an escape, or the last letter that there is.
UNCLEAN_BYTES = (b"\\u", b"\\n", b"\\t", b"\\r", b"\\b", b"\\f", b"\x7f")
GPU_STATES = frozenset({"unknown", "lost", "conflict", "held", "busy", "booked", "free"})
HOST_STATES = frozenset({"fresh", "stale", "down", "failed", "unseen", "maintenance"})
PROBLEM_SEVERITIES = frozenset({"critical", "warning", "info"})
# Words of a board that is older than this client, and of its key `weight`, which is `severity` now.
OLD_GPU_STATES = {"violated": "conflict"}
OLD_SEVERITIES = {"grave": "critical", "look": "warning", "told": "info"}
NOT_STATUS_MESSAGE = "is not the status.json of a gpuboard"
UNKNOWN_STATE_MESSAGE = "the board tells a state that this gpuboard does not know"
NO_INSTANCES_MESSAGE = "its instances could not be understood"
TextReader = Callable[[object], "str | None"]


def parse_status(content: bytes) -> tuple[Fleet | None, str]:
    """The fleet, or why there is none; a host or GPU of another form is left out, and counted among the problems."""
    try:
        told = orjson.loads(content)
    except ValueError:
        return None, NOT_STATUS_MESSAGE
    if not isinstance(told, dict) or not isinstance(told.get("hosts"), list) or type(told.get("built")) is not int:
        return None, NOT_STATUS_MESSAGE
    schema = told.get("schema")
    if schema != STATUS_SCHEMA:
        return (
            None,
            f"has schema {clean_text(str(schema))[:20]}, but {STATUS_SCHEMA} is what is read here: {suggest_update(schema)}",
        )
    text = as_text if content.isascii() and not any(one in content for one in UNCLEAN_BYTES) else as_clean_text
    hosts = tuple(found for one in told["hosts"] if (found := parse_fleet_host(one, text)))
    problems = tuple(parse_board_problems(told.get("problems"), text))
    if len(hosts) < len(told["hosts"]):
        problems = (*problems, f"{len(told['hosts']) - len(hosts)} hosts of status.json could not be understood")
    every = told.get("every")
    return Fleet(told["built"], hosts, problems, every=every if type(every) is int and every > 0 else None), ""


def suggest_update(schema: object) -> str:
    """Which of the two is to be updated."""
    return "update gpuboard here" if type(schema) is int and schema > STATUS_SCHEMA else "update the board"


def as_text(value: object) -> str | None:
    """A text that is known to be clean."""
    return value if isinstance(value, str) else None


def as_clean_text(value: object) -> str | None:
    """A text in one line, without what would steer a terminal or turn a line of it around."""
    return flatten_text(clean_text(value)) if isinstance(value, str) else None


def as_number(value: object) -> float | None:
    """A number from 0 up that somebody can mean; true and false are none."""
    return value if type(value) in NUMBER_TYPES and 0 <= value < MAX_NUMBER else None  # type: ignore[operator,return-value]


def as_integer(value: object) -> int | None:
    """A whole number from 0 up."""
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def as_list(value: object) -> list[Any]:
    """A list, or none."""
    return value if isinstance(value, list) else []


def parse_board_problems(several: object, text: TextReader) -> list[str]:
    """What the board tells its admin, in sentences."""
    return [
        f"{text(one.get('where')) or '?'}: {text(one.get('what')) or '?'}"
        for one in as_list(several)
        if isinstance(one, dict)
    ]


def parse_fleet_host(told: Any, text: TextReader) -> FleetHost | None:  # noqa: ANN401 # anything may stand there
    """One host, if it has a name."""
    name = text(told.get("name")) if isinstance(told, dict) else None
    if not name:
        return None
    state, reason = text(told.get("state")) or "", text(told.get("reason")) or ""
    if state not in HOST_STATES:
        state, reason = "failed", UNKNOWN_STATE_MESSAGE
    memory = told.get("memory") if isinstance(told.get("memory"), dict) else {}
    load = tuple(one for one in map(as_number, as_list(told.get("load"))) if one is not None)
    tags = tuple(filter(None, map(text, as_list(told.get("tags")))))
    gpus = [parse_gpu_with_instances(one, text, state) for one in as_list(told.get("gpus")) if isinstance(one, dict)]
    return FleetHost(
        name=name,
        title=text(told.get("title")),
        tags=tags,
        state=state,
        reason=reason,
        seen=as_integer(told.get("seen")),
        load=(load[0], load[1], load[2]) if len(load) == 3 else None,
        cpus=as_integer(told.get("cpus")),
        memory_total=as_number(memory.get("total")),
        memory_available=as_number(memory.get("available")),
        gpus=tuple(part for one, parts in gpus for part in parts or (one,)),
        disks=tuple(found for one in as_list(told.get("disks")) if (found := parse_fleet_disk(one, text))),
        mig_gpus=tuple(one for one, parts in gpus if parts is not None),
    )


def parse_gpu_with_instances(
    told: dict[str, Any], text: TextReader, host_state: str
) -> tuple[FleetGpu, tuple[FleetGpu, ...] | None]:
    """A GPU and its instances; None where it is not in MIG mode."""
    one = parse_fleet_gpu(told, text, host_state)
    if told.get("instances") is None:
        return one, None
    several = [each for each in as_list(told["instances"]) if isinstance(each, dict)]
    found = [
        parse_fleet_gpu(each, text, host_state)._replace(index=one.index, parent_keys=one.booking_keys)
        for each in several
    ]
    # what nobody can name is nothing that could be had, and the GPU as a whole is not either
    parts = tuple(each for each in found if each.place)
    empty = not told["instances"] and one.state not in {"free", "booked"}
    return one if parts or empty else one._replace(state="unknown", reason=NO_INSTANCES_MESSAGE), parts


def parse_fleet_gpu(told: dict[str, Any], text: TextReader, host_state: str) -> FleetGpu:
    """One GPU; a state that nobody knows, or that a host which is not fresh cannot tell, is no promise."""
    get = told.get
    state, reason = text(get("state")) or "", text(get("reason")) or ""
    state = OLD_GPU_STATES.get(state, state)
    if state not in GPU_STATES:
        state, reason = "unknown", UNKNOWN_STATE_MESSAGE
    elif host_state != "fresh" and state not in {"lost", "unknown"}:
        state, reason = "unknown", f"its host is {host_state}"
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
        utilization_gpu=as_number(get("utilization.gpu")),
        utilization_memory=as_number(get("utilization.memory")),
        temperature=as_number(get("temperature.gpu")),
        power_draw=as_number(get("power.draw")),
        power_limit=as_number(get("power.limit")),
        clock=as_number(get("clocks.sm")),
        processes=tuple(parse_fleet_process(one, text) for one in as_list(get("processes")) if isinstance(one, dict)),
        bookings=tuple(
            one
            for each in as_list(get("bookings"))
            if isinstance(each, dict) and (one := parse_fleet_booking(each, text))
        ),
        free_again=as_integer(get("free_again")),
        place=text(get("place")),
        profile=text(get("profile")),
        vendor=text(get("vendor")) or "nvidia",
        problems=tuple(parse_gpu_problem(one, text) for one in told["problems"] if isinstance(one, dict))
        if isinstance(get("problems"), list)
        else (),
    )


def parse_gpu_problem(told: dict[str, Any], text: TextReader) -> GpuProblem:
    """Read a problem of a GPU; a severity that is not known counts as info."""
    get = told.get
    severity = text(get("severity", get("weight"))) or ""
    severity = OLD_SEVERITIES.get(severity, severity)
    return GpuProblem(
        text(get("kind")) or "",
        severity if severity in PROBLEM_SEVERITIES else "info",
        text(get("what")) or "?",
        text(get("advice")) or "",
        get("avoid") is True,
    )


def parse_fleet_process(told: dict[str, Any], text: TextReader) -> FleetProcess:
    """A process on a GPU."""
    get = told.get
    return FleetProcess(
        as_integer(get("pid")),
        text(get("user")),
        text(get("command")),
        as_number(get("used_gpu_memory")),
        as_integer(get("started")),
    )


def parse_fleet_booking(told: dict[str, Any], text: TextReader) -> FleetBooking | None:
    """A booking, if its times are some."""
    until = dates.exact(told.get("date"))
    since = dates.exact(told["from"]) if told.get("from") else None
    if until is None or (told.get("from") and since is None):
        return None
    used_by = tuple(filter(None, map(text, as_list(told.get("used_by")))))
    return FleetBooking(
        id=text(told.get("id")),
        name=text(told.get("name")),
        since=since,
        until=until,
        comment=text(told.get("comment")),
        unused_since=as_integer(told.get("unused_since")),
        used_by=used_by or None,
        used_by_since=as_integer(told.get("used_by_since")),
        mean_use=as_number(told.get("mean_use")),
    )


def parse_fleet_disk(told: object, text: TextReader) -> FleetDisk | None:
    """A local file system, if all of it is told."""
    if not isinstance(told, dict):
        return None
    mount, total, used = text(told.get("mount")), as_number(told.get("total")), as_number(told.get("used"))
    return None if mount is None or total is None or used is None else FleetDisk(mount, total, used)


# Seconds after which the file of a builder that lives is written anew at the latest, and by which it may be late.
REWRITE_INTERVAL_S, BUILD_DELAY_TOLERANCE_S = 60, 30
DEFAULT_BUILD_INTERVAL_S = 60
NO_BOARD_HINT = "set GPUBOARD_URL to the address of a board, or GPUBOARD_DATA to its data folder"
FleetLoader = Callable[[], Fleet]


class NoGpuToolError(FleetUnavailableError):
    """There is no tool of any maker on this machine at all."""


class SettingsSource(Protocol):
    """The settings, and where each came from."""

    @property
    def settings(self) -> Settings:
        """What is in force."""

    @property
    def given(self) -> Mapping[str, SettingValue]:
        """As it was written."""


def choose_fleet_source(loaded: SettingsSource) -> str:
    """Where the fleet comes from: `url`, `data` or `machine`; an address on the command line goes before a folder."""
    data, url = loaded.given["GPUBOARD_DATA"], loaded.given["GPUBOARD_URL"]
    named = data.origin != "default" and not data.was_empty
    if loaded.settings.url and (url.origin == "--url" or not named):
        return "url"
    return "data" if named else "machine"


def open_fleet(loaded: SettingsSource) -> FleetLoader:
    """What looks at the fleet, as often as it is called; `FleetUnavailableError` says why it cannot."""
    settings, kind = loaded.settings, choose_fleet_source(loaded)
    if kind == "url":
        return lambda: load_board_fleet(settings.url or "", settings.login)
    if kind == "machine":
        return lambda: load_machine_fleet(settings)
    if not settings.data.is_dir():
        message = f"there is no folder {settings.data.absolute()}: set GPUBOARD_DATA to the data folder of a board"
        raise FleetUnavailableError(message)
    return lambda: load_data_fleet(settings)


def read_machine_name() -> str:
    """What this machine is called, perhaps with its domain."""
    return os.uname().nodename or "localhost"


def find_wanted_host(fleet: Fleet, name: str | None, loaded: SettingsSource) -> FleetHost:
    """The host that is meant: the one that is named, or else this machine."""
    if name is None and choose_fleet_source(loaded) == "machine":
        return fleet.hosts[0]
    found = fleet.find_host(name or fleet.machine_name)
    if found:
        return found
    if name:
        message = f"{fleet.source} has no host {name}"
        raise FleetUnavailableError(message)
    message = f"this machine, {fleet.machine_name}, is not on {fleet.source}"
    raise FleetUnavailableError(
        f"{message}: name one of its hosts with --host, or ask for all with `gpuboard available --all`"
    )


def build_owner_check(loaded: SettingsSource, name: str | None) -> Callable[[str], bool]:
    """Whether a booking is of that person, or else of who runs this; a data folder knows their other names."""

    def is_mine(booked: str) -> bool:
        from site_builder.core.people import PeopleDirectory  # noqa: PLC0415 # only where something is booked
        from site_builder.fleet.gpu_models import NameFiles  # noqa: PLC0415

        me = name or find_login()
        aliases = NameFiles(loaded.settings.data, None).read_names()[0] if choose_fleet_source(loaded) == "data" else {}
        people = PeopleDirectory(aliases)
        return me is not None and people.resolve_person(booked) == people.resolve_person(me)

    return lru_cache(maxsize=None)(is_mine)


def find_login() -> str | None:
    """The login of the real user, and behind sudo that of the person: $USER is whatever somebody sets."""
    from site_builder.snapshots.local_machine import find_login_by_uid  # noqa: PLC0415 # rarely needed

    sudo = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return sudo if sudo not in {"", "root"} else find_login_by_uid(os.getuid())


def load_board_fleet(url: str, login: str | None = None) -> Fleet:
    """As a board elsewhere tells it; one that is no longer built tells nothing of now."""
    from site_builder.core import board_client  # noqa: PLC0415 # slow to import

    place = f"{url}status.json"
    try:
        answer = board_client.send_board_request(place, login=login)
    except board_client.BoardResponseError as why:
        raise FleetUnavailableError(board_client.describe_response_error(why, place)) from None
    fleet, wrong = parse_status(answer.content)
    if fleet is None:
        message = f"{place} {wrong}" + (f": {board_client.CHECK_URL_HINT}" if wrong == NOT_STATUS_MESSAGE else "")
        raise FleetUnavailableError(message)
    check_board_age(fleet, url, time.time() + answer.clock_ahead_s)
    return fleet._replace(
        source=f"the board at {url}", machine_name=read_machine_name(), clock_ahead_s=answer.clock_ahead_s
    )


def check_board_age(fleet: Fleet, url: str, now: float) -> None:
    """Refuse a board whose builder stands, by the clock of the server itself: ours may be off."""
    age = now - fleet.built
    most = REWRITE_INTERVAL_S + 3 * (fleet.every or DEFAULT_BUILD_INTERVAL_S) + BUILD_DELAY_TOLERANCE_S
    if age > most:
        message = (
            f"the board at {url} was last built {formatting.format_duration(age)} ago, and nothing on it is of now"
        )
        raise FleetUnavailableError(f"{message}: is `gpuboard build` still running there?")
    if age < -most:
        message = f"the board at {url} was built {formatting.format_duration(-age)} from now"
        raise FleetUnavailableError(f"{message}: the clock of its builder or of its server is wrong")


def load_data_fleet(settings: Settings) -> Fleet:
    """As the hosts told it that push to this folder, decided at this moment."""
    from site_builder.bookings.host_lookup import HostLookup  # noqa: PLC0415 # slow to import
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), settings.zone)
    try:
        lab = HostLookup(settings)
        shown = [name for name, one in lab.list_hosts().items() if not one.is_hidden]
        boards = lab.decide_statuses(shown, load_bookings(settings), now, remembered=True)
    except OSError as error:
        message = f"{error.filename or settings.data} cannot be read: {error.strerror}"
        raise FleetUnavailableError(message) from None
    return build_fleet([boards[name] for name in shown], now.epoch, str(settings.data.absolute()))


def load_bookings(settings: Settings) -> Sequence[Booking]:
    """All bookings; where the file cannot be read those of the last good one, and without that nobody can tell."""
    from site_builder.bookings import parser as booking_parser  # noqa: PLC0415 # slow to import
    from site_builder.bookings import store as booking_store  # noqa: PLC0415
    from site_builder.bookings.store import SharedBookingFile  # noqa: PLC0415
    from site_builder.core.files import find_bookings_file  # noqa: PLC0415

    why: list[str] = []
    for name in (booking_store.BOOKINGS_FILE, booking_store.LAST_GOOD_FILE):
        file = SharedBookingFile(
            settings.data,
            None,
            name,
            lambda content: booking_parser.parse_bookings(content, settings.zone),
            booking_store.MAX_BOOKINGS_BYTES,
        )
        rows, problems = file.read()
        if file.content is not None or not (problems or why):  # nobody has booked anything yet
            return rows
        why += [one.what for one in problems]
    message = f"{find_bookings_file(settings.data)} was {why[0]}"
    raise FleetUnavailableError(f"{message}; so nobody can tell what is booked")


def load_machine_fleet(settings: Settings) -> Fleet:
    """As the makers' tools tell it here and now."""
    from site_builder.snapshots import local_machine  # noqa: PLC0415 # slow to import

    asked = local_machine.start_local_queries()  # while it answers, we import the rest
    from site_builder.board.outputs import status  # noqa: F401, PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415
    from site_builder.core.model import DiscoveredHost, IdleTimes, PrivacySettings  # noqa: PLC0415
    from site_builder.core.people import PeopleDirectory  # noqa: PLC0415
    from site_builder.core.subprocesses import EXIT_MISSING  # noqa: PLC0415
    from site_builder.fleet import host_state  # noqa: PLC0415
    from site_builder.fleet.gpu_state import StateRules  # noqa: PLC0415

    now = Now(time.time(), settings.zone)
    data = local_machine.read_local_machine(
        asked, read_machine_name(), now.epoch, Path(os.environ.get("GPUBOARD_PROC") or "/proc")
    )
    code = data.gpus.header.rc if data.gpus and data.gpus.header else 0
    if code == EXIT_MISSING:
        message = f"there is no nvidia-smi, amd-smi or rocm-smi on this machine, and no board is named: {NO_BOARD_HINT}"
        raise NoGpuToolError(message)
    rules = StateRules(settings.limits, PeopleDirectory({}), PrivacySettings())
    board = host_state.decide_host_status(
        host_state.HostInput(DiscoveredHost(read_machine_name()), data, (), IdleTimes(0, {}), {}), rules, now
    )
    if board.state != "fresh":
        raise FleetUnavailableError(board.reason)
    return build_fleet([board], now.epoch, "this machine")


def build_fleet(boards: list[HostStatus], now: float, where: str) -> Fleet:
    """The same as one would read it in status.json: there is one form."""
    from site_builder.board.outputs import status  # noqa: PLC0415 # slow to import

    parts = [
        (before, board.last_seen, after) for board in boards for before, after in [status.render_status_host(board)]
    ]
    problems = [problem for board in boards for problem in board.problems]
    fleet, wrong = parse_status(status.render_status_json(parts, problems, now))
    if fleet is None:
        raise AssertionError(wrong)  # our own writer and our own reader
    return fleet._replace(source=where, machine_name=read_machine_name())
