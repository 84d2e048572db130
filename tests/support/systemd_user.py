"""systemd's manager of one user, for tests: in a namespace and in cgroups of its own, which end with it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.support.machine import wait_for
from tests.support.missing import need

SYSTEMD = "/usr/lib/systemd/systemd"
CGROUPS = Path("/sys/fs/cgroup")
# The first process: it ends, and all others with it, when the pipe to the tests closes.
FIRST = """
set -e
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/systemd/system /run/user/{user}
chown {user}:{user} /run/user/{user}
chmod 700 /run/user/{user}
{become} env -i {variables} {systemd} --user --log-target=console --log-level=notice >{log} 2>&1 3<&- &
exec 3<&0
cat <&3 >/dev/null &
echo ready
wait $!
"""


def hierarchies() -> list[Path]:
    """Where systemd keeps track of processes: one place, or where the old and the new cgroups are side by side, two."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [place for place in (CGROUPS / "systemd", CGROUPS / "unified") if (place / "cgroup.procs").exists()]


def find_missing_program() -> str:
    """Return why there can be no such manager here, or nothing."""
    if not Path(SYSTEMD).exists() or not shutil.which("systemctl"):
        return "systemd is not installed"
    return "" if hierarchies() and os.access(hierarchies()[0], os.W_OK) else "cgroups cannot be written here"


class UserManager:
    """`systemd --user` of a user, with a home of ours; `call` is systemctl."""

    def __init__(self, folder: Path, home: Path, user: int = 0, **variables: str) -> None:
        """Prepare it."""
        need(find_missing_program())
        self.user = user
        self.log = folder / "systemd.log"
        self.name = f"gpuboard-test-{os.getpid()}-{user}-{time.monotonic_ns()}"
        self.variables = {
            "HOME": str(home),
            "XDG_RUNTIME_DIR": f"/run/user/{user}",
            "PATH": "/usr/bin:/bin",
            **variables,
        }
        self.process: subprocess.Popen[str] | None = None

    @property
    def become(self) -> list[str]:
        """What makes a command that user's."""
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if self.user else []

    def places(self) -> list[Path]:
        """The cgroups that are given to it."""
        return [hierarchy / self.name for hierarchy in hierarchies()]

    def __enter__(self) -> UserManager:
        """Start it, and wait until it answers."""
        for place in self.places():
            place.mkdir()
            for file in (
                place,
                *(place / name for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")),
            ):
                if file.exists():
                    os.chown(file, self.user, self.user)
        first = FIRST.format(
            user=self.user,
            become=shlex.join(self.become),
            variables=" ".join(shlex.quote(f"{key}={value}") for key, value in self.variables.items()),
            systemd=SYSTEMD,
            log=shlex.quote(str(self.log)),
        )
        spaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        enter = "".join(f"echo $$ >{shlex.quote(str(place))}/cgroup.procs; " for place in self.places())
        inner = shlex.join(["unshare", *spaces, "/bin/sh", "-c", first])
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["/bin/sh", "-c", f"{enter}exec {inner}"], stdin=pipe, stdout=pipe, text=True)
        try:
            assert self.process.stdout
            assert self.process.stdout.readline() == "ready\n"
            wait_for(lambda: self.call("is-system-running", check=False).strip() in {"running", "degraded"}, 30)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """End all that runs in it."""
        self.stop()

    def stop(self) -> None:
        """End its first process, and so all others; then its cgroups go."""
        if self.process and self.process.stdin and self.process.stdout:
            self.process.stdin.close()
            self.process.wait(20)
            self.process.stdout.close()
        for place in [
            *CGROUPS.glob(f"*/{self.name}"),
            *CGROUPS.glob(self.name),
        ]:  # in those of memory and the like, too
            for folder in sorted(place.rglob("*"), key=lambda path: -len(path.parts)):
                if folder.is_dir():
                    wait_for(lambda folder=folder: removed(folder), 20)  # type: ignore[misc]
            wait_for(lambda place=place: removed(place), 20)  # type: ignore[misc]

    def run(self, *command: str, check: bool = True) -> str:
        """Run something as that user, beside the manager."""
        assert self.process
        finished = subprocess.run(
            ["/usr/bin/ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, check=True
        )
        inside = ["nsenter", "-t", finished.stdout.decode().split()[0], "-m", "-p", "--", *self.become, "env", "-i"]
        words = [*inside, *(f"{key}={value}" for key, value in self.variables.items()), *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr, self.log.read_text()[-2000:])
        return done.stdout

    def call(self, *words: str, check: bool = True) -> str:
        """systemctl --user."""
        return self.run("systemctl", "--user", "--no-pager", *words, check=check)

    def main_pid(self, unit: str) -> int:
        """The first process of a unit, as the machine within sees it."""
        return int(self.call("show", "--value", "--property=MainPID", unit))


def removed(folder: Path) -> bool:
    """Try to remove a cgroup: it can go when its last process is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
