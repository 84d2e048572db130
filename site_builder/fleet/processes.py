"""Find out about the processes on GPUs: whose they are, what they run, since when, and whether they are dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from site_builder.core.model import GpuProcessRow, HostSnapshot, PrivacySettings, ProcessStatus, PsRow
from site_builder.core.people import PeopleDirectory, parse_uid

MAX_PROGRAM_CHARACTERS = 60


class PsIndex:
    """The rows of ps by pid, and the living children of each GPU process."""

    def __init__(self, rows: Iterable[PsRow]) -> None:
        self.rows_by_pid: dict[int, PsRow] = {}
        self.children_by_pid: defaultdict[int, list[PsRow]] = defaultdict(list)
        for row in rows:
            self.rows_by_pid[row.pid] = row
            if row.gpu_pid is not None and row.gpu_pid != row.pid and not row.is_zombie:
                self.children_by_pid[row.gpu_pid].append(row)


def build_processes_by_gpu(
    snapshot: HostSnapshot,
    ps_index: PsIndex,
    find_start: Callable[[PsRow], int | None],
    people: PeopleDirectory,
    privacy: PrivacySettings,
) -> dict[str, list[tuple[ProcessStatus, str | None]]]:
    """Return the processes of each GPU, by its process key, each with its login."""
    processes_by_gpu: dict[str, list[tuple[ProcessStatus, str | None]]] = defaultdict(list)
    for process in snapshot.processes.rows if snapshot.processes else ():
        row = ps_index.rows_by_pid.get(process.pid) if process.pid is not None else None
        child_pids: tuple[int, ...] = ()
        children = ps_index.children_by_pid.get(process.pid) if process.pid is not None else None
        if children and (row is None or row.is_zombie):
            row, child_pids = children[0], tuple(child.pid for child in children)
        login = find_process_login(row, people) if row else None
        container_row = row if row and privacy.users and privacy.commands != "none" else None
        runs_as = None
        if row and row.person and privacy.users and login == row.person:  # the user that the kernel knows
            number = parse_uid(row.user or row.uid or "")
            runs_as = row.user if number is None else f"uid {number}"
        status = ProcessStatus(
            pid=process.pid,
            user=people.display_login(login) if login and privacy.users else None,
            command=format_shown_command(process, row, privacy),
            used_memory=process.used_memory,
            started=find_start(row) if row else None,
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
    number = parse_uid(user or row.uid or "")
    if user and row.uid and parse_uid(row.uid) != number:
        number = None  # a name of digits
    if number is not None:
        user = f"uid {number}"
    is_root = row.uid == "0" if row.uid else user == "root"
    if person and (is_root or (number is not None and not people.is_aliased(f"uid {number}"))):
        return person
    return user


def format_shown_command(process: GpuProcessRow, row: PsRow | None, privacy: PrivacySettings) -> str | None:
    """Return as much of the command as may be shown."""
    if privacy.commands == "none":
        return None
    command = (row.command if row else None) or process.name
    if command is None or (privacy.commands == "full" and privacy.users):
        return command
    return extract_program_name(command)  # paths and arguments name people


def extract_program_name(command: str) -> str:
    """Return the name of the program, without folders and arguments."""
    first_word = command.split(None, 1)[0] if command.strip() else command
    return first_word.rstrip("/").rpartition("/")[2][:MAX_PROGRAM_CHARACTERS]
