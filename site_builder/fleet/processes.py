"""The processes on the GPUs of a host: whose they are, what they run, since when, and whether they are dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from site_builder.core.model import GpuProcessRow, HostSnapshot, PrivacySettings, ProcessStatus, PsRow
from site_builder.core.people import PeopleDirectory, parse_uid

MAX_PROGRAM_CHARACTERS = 60


class PsIndex:
    """What ps tells of the GPU processes and of the children of those that are dead."""

    def __init__(self, rows: Iterable[PsRow]) -> None:
        """Each by its pid, and the rest by the GPU process whose family it is."""
        self.rows_by_pid: dict[int, PsRow] = {}
        self.children_by_pid: defaultdict[int, list[PsRow]] = defaultdict(list)
        for row in rows:
            self.rows_by_pid[row.pid] = row
            if row.gpu_pid is not None and row.gpu_pid != row.pid and not row.is_zombie:
                self.children_by_pid[row.gpu_pid].append(row)


def build_processes_by_gpu(
    data: HostSnapshot,
    family: PsIndex,
    began: Callable[[PsRow], int | None],
    people: PeopleDirectory,
    shown: PrivacySettings,
) -> dict[str, list[tuple[ProcessStatus, str | None]]]:
    """The processes of each GPU, by its handle, each with its login."""
    found: dict[str, list[tuple[ProcessStatus, str | None]]] = defaultdict(list)
    for process in data.processes.rows if data.processes else ():
        row = family.rows_by_pid.get(process.pid) if process.pid is not None else None
        children: tuple[int, ...] = ()
        teller = row
        if process.pid is not None and (row is None or row.is_zombie) and process.pid in family.children_by_pid:
            of_it = family.children_by_pid[process.pid]
            teller, children = of_it[0], tuple(child.pid for child in of_it)
        whose = find_process_login(teller, people) if teller else None
        place = teller if teller and shown.users and shown.commands != "none" else None
        found[process.gpu_key].append(
            (
                ProcessStatus(
                    process.pid,
                    people.display_login(whose) if whose and shown.users else None,
                    format_shown_command(process, teller, shown),
                    process.used_memory,
                    began(teller) if teller else None,
                    place.container if place else None,
                    bool(children),
                    children,
                    place.image if place else None,
                    place.pod if place else None,
                    find_kernel_user(teller)
                    if teller and teller.person and shown.users and whose == teller.person
                    else None,
                ),
                whose,
            )
        )
    return found


def find_process_login(row: PsRow, people: PeopleDirectory) -> str | None:
    """Whose it is, by login; `uid 1234` where the user has no name. Of these, and of root's, the person behind it."""
    user, person = row.user, row.person
    if user and not person and user[0].isalpha():  # nearly all, and there are many
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


def find_kernel_user(row: PsRow) -> str | None:
    """Whose it is for the kernel, where that is not the person."""
    number = parse_uid(row.user or row.uid or "")
    return row.user if number is None else f"uid {number}"


def format_shown_command(process: GpuProcessRow, row: PsRow | None, shown: PrivacySettings) -> str | None:
    """What it runs, as much of it as is to be shown."""
    if shown.commands == "none":
        return None
    told = (row.command if row else None) or process.name
    # paths and arguments name people
    return told if told is None or (shown.commands == "full" and shown.users) else extract_program_name(told)


def extract_program_name(told: str) -> str:
    """The name of the program alone: no arguments, no folders."""
    first = told.split(None, 1)[0] if told.strip() else told
    return first.rstrip("/").rpartition("/")[2][:MAX_PROGRAM_CHARACTERS]
