"""Find out about the processes on GPUs: who is on a GPU, what they run, since when, and whether they are dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from site_builder.core import formatting
from site_builder.core.model import GpuPeople, HostSnapshot, ProcessStatus, PsRow
from site_builder.core.names import extract_program_name
from site_builder.core.people import PeopleDirectory, parse_login_uid
from site_builder.fleet.gpu_state import GpuInput, StateRules

# How many people are remembered of one GPU: a host can claim anything.
MAX_PEOPLE = 32


def build_processes_by_gpu(
    snapshot: HostSnapshot, ps_rows: Iterable[PsRow], rules: StateRules
) -> dict[str, list[tuple[ProcessStatus, str | None]]]:
    """Return the processes of each GPU, by its process key, each with its login."""
    people, privacy = rules.people, rules.privacy
    last_seen = snapshot.last_seen or 0
    checked_at = int(last_seen)  # on the host's own clock, unless it is off
    if snapshot.ps_rows and snapshot.ps_rows.header:
        offset = snapshot.clock_offset or 0
        checked_at = snapshot.ps_rows.header.time - int(offset if abs(offset) > rules.limits.clock_off else 0)
    rows_by_pid: dict[int | None, PsRow] = {}
    children_by_pid: dict[int | None, list[PsRow]] = {}  # the living ones
    for ps_row in ps_rows:
        rows_by_pid[ps_row.pid] = ps_row
        if ps_row.gpu_pid is not None and ps_row.gpu_pid != ps_row.pid and not ps_row.is_zombie:
            children_by_pid.setdefault(ps_row.gpu_pid, []).append(ps_row)
    processes_by_gpu: dict[str, list[tuple[ProcessStatus, str | None]]] = defaultdict(list)
    for process in snapshot.processes.rows if snapshot.processes else ():
        row = rows_by_pid.get(process.pid)
        child_pids: tuple[int, ...] = ()
        children = children_by_pid.get(process.pid)
        if children and (row is None or row.is_zombie):
            row, child_pids = children[0], tuple(child.pid for child in children)
        login = find_process_login(row, people) if row else None
        container_row = row if row and privacy.users and privacy.commands != "none" else None
        runs_as = None
        if row and row.person and privacy.users and login == row.person:  # the user that the kernel knows
            number = parse_login_uid(row.user or row.uid or "")
            runs_as = row.user if number is None else f"uid {number}"
        command = (row.command if row else None) or process.name
        if privacy.commands == "none":
            command = None
        elif command and (privacy.commands != "full" or not privacy.users):  # paths and arguments name people
            command = extract_program_name(command)
        started = None if row is None or row.elapsed is None else checked_at - row.elapsed
        # a host can claim anything, but no process began before 1970 or after its own snapshot
        if started is not None and not 0 <= started <= last_seen + formatting.DAY:
            started = None
        status = ProcessStatus(
            pid=process.pid,
            user=people.display_login(login) if login and privacy.users else None,
            command=command,
            used_memory=process.used_memory,
            started=started,
            container=container_row.container if container_row else None,
            is_zombie=bool(child_pids),
            children=child_pids,
            image=container_row.image if container_row else None,
            pod=container_row.pod if container_row else None,
            runs_as=runs_as,
        )
        processes_by_gpu[process.gpu_key].append((status, login))
    return processes_by_gpu


def find_process_login(row: PsRow, people: PeopleDirectory) -> str | None:
    """Return the login, or `uid 1234` for a user without a name; for these and for root, the person behind it."""
    user, person = row.user, row.person
    if user and not person and user[0].isalpha():  # nearly all
        return user
    number = parse_login_uid(user or row.uid or "")
    if user and row.uid and parse_login_uid(row.uid) != number:
        number = None  # a name of digits
    if number is not None:
        user = f"uid {number}"
    is_root = row.uid == "0" if row.uid else user == "root"
    if person and (is_root or (number is not None and not people.is_aliased(f"uid {number}"))):
        return person
    return user


def find_process_people(gpu_input: GpuInput, people: PeopleDirectory) -> GpuPeople:
    """Return who is on a GPU and who has booked it, each under one of the reported names."""
    names = (login or process.user for login, process in zip(gpu_input.logins, gpu_input.processes))
    users = dedupe_process_people({name for name in names if name}, people)
    bookers = dedupe_process_people(set(gpu_input.bookers), people)
    if not bookers:
        return GpuPeople(users)
    present = {people.find_person(login) for login in gpu_input.logins}
    return GpuPeople(users, bookers, tuple(name for name in bookers if people.resolve_person(name) not in present))


def dedupe_process_people(names: set[str], people: PeopleDirectory) -> tuple[str, ...]:
    """Return one name of each person: with two logins they would have two shares of a GPU."""
    ordered = sorted(names)
    if len(ordered) > 1:
        ordered = list({people.resolve_user(name): name for name in reversed(ordered)}.values())[::-1]
    return tuple(ordered[:MAX_PEOPLE])


def format_process_container(process: ProcessStatus) -> str:
    return " ".join(filter(None, (process.container, process.pod, process.image)))


def strip_process_image_registry(image: str) -> str:
    """Remove the registry from the name of an image: a first part with a dot or a port, or localhost."""
    first, slash, rest = image.partition("/")
    return rest if slash and rest and ("." in first or ":" in first or first == "localhost") else image
