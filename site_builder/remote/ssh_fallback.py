"""The four files of a snapshot, made here of what plain commands said on a host where no file could be written.

No command line is among it: of a process only its program is told, so that no secret can travel.
"""

from __future__ import annotations

from collections.abc import Sequence

PROGRAM_COLUMN = b", process_name"
PS_COLUMNS = b"pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand"
MEMORY = {
    b"MemTotal:": b"memory_total",
    b"MemAvailable:": b"memory_available",
    b"SwapTotal:": b"swap_total",
    b"SwapFree:": b"swap_free",
}
WHY = "no folder can be written on this host: plain nvidia-smi and ps were asked, and tell less"


def files(name: str, every: int, numbers: Sequence[int], texts: Sequence[bytes]) -> dict[str, bytes]:
    """As the scripts would have written them; the numbers are the host's time, and nvidia-smi's two exit codes."""
    gpus, apps, people, facts = texts
    rows = [row for line in people.splitlines() if len(row := line.split(None, 9)) == 10]
    programs = {row[0]: row[9].replace(b"\t", b" ").strip() for row in rows}
    bodies = {
        "gpus": (numbers[1], gpus),
        "processes": (numbers[2], b"\n".join(named(line, programs) for line in apps.splitlines())),
        "ps": (0, b"\n".join([PS_COLUMNS, *(person(row) for row in rows)])),
        "host": (0, host(facts)),
    }
    return {
        f"{task}.{'csv' if task in {'gpus', 'processes'} else 'txt'}": snapshot(task, name, numbers[0], every, *body)
        for task, body in bodies.items()
    }


def snapshot(task: str, name: str, moment: int, every: int, code: int, body: bytes) -> bytes:  # noqa: PLR0913, PLR0917
    """One file; a line in it that looks like its end is none."""
    first = f"# gpuboard 1 task={task} host={name} time={moment} every={every} took_ms=0 rc={code % 256}"
    lines = [line for line in body.splitlines() if not line.startswith(b"#")]
    last = [f"# err {WHY}".encode()] if task == "host" else []
    return b"\n".join([first.encode(), *lines, *last, b"# end", b""])


def named(line: bytes, programs: dict[bytes, bytes]) -> bytes:
    """A row of nvidia-smi's, with the program that ps tells for its pid."""
    cells = line.split(b", ")
    if line.startswith(b"gpu_uuid, pid"):
        return line + PROGRAM_COLUMN
    if len(cells) == 3 and cells[1].strip().isdigit():
        return line + b", " + programs.get(cells[1].strip(), b"[N/A]")
    return line


def person(row: Sequence[bytes]) -> bytes:
    """A row of ps.txt."""
    pid, parent, group, uid, elapsed, cpu, rss, state, user, program = row
    return b"\t".join(
        [pid, parent, pid, group, uid, user, elapsed, cpu, rss, state[:1], b"-", program.replace(b"\t", b" ")]
    )


def host(facts: bytes) -> bytes:
    """host.txt, of five lines and those of /proc/meminfo; what is missing is left out."""
    lines = facts.splitlines()
    if len(lines) < 5:
        return b""
    load, up, kernel, zone, cpus, *memory = lines
    told = [
        b"load=" + b" ".join(load.split()[:3]),
        b"uptime=" + up.partition(b".")[0],
        b"kernel=" + kernel,
        b"zone=" + zone,
        b"cpus=" + cpus,
    ]
    for line in memory:
        words = line.split()
        if len(words) > 1 and words[0] in MEMORY and words[1].isdigit():
            told.append(MEMORY[words[0]] + b"=%d" % (int(words[1]) // 1024))
    return b"\n".join(told)
