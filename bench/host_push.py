"""One push over a connection that is kept open, by ssh:// and by sftp, against a plain scp, with a real sshd."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.measure import SCRIPTS, Host, Row, adopt_orphans, children_cpu, process_cpu

ROUNDS = 15
PACE = 1.05  # gpu-receive.sh takes one update a second
FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")


@contextmanager
def sshd(folder: Path, more: str = "") -> Iterator[tuple[int, Path]]:
    """A server on a free port, with more lines of configuration, and the client's configuration for it."""
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)  # noqa: S607
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/user.pub {folder}/enrolled\n"
        f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        f"Subsystem sftp /usr/lib/openssh/sftp-server\nSetEnv XDG_STATE_HOME={folder}/xdg\n{more}"
    )
    config = folder / "ssh_config"
    config.write_text(
        f"Host web\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n"
        f"  UserKnownHostsFile {folder}/known\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin") or "sshd"
    with subprocess.Popen(
        [program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_for_port(port)
            yield server.pid, config
        finally:
            server.terminate()


def wait_for_port(port: int) -> None:
    """Wait until somebody listens there."""
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    message = "sshd did not start"
    raise TimeoutError(message)


def descendants(pid: int) -> list[int]:
    """All living descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def session_processes(host: Host) -> list[int]:
    """The processes of our kept session: whoever has its pipe open, and their children."""
    pipe = host.folder / "spool/gpu1/run/in"
    found: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/fd/0"):
        try:
            if link.readlink() == pipe:
                pid = int(link.parts[2])
                found |= {pid, *descendants(pid)}
        except OSError:
            continue
    return sorted(found)


def renew(host: Host, number: int) -> None:
    """Make all four files new."""
    for name in FILES:
        path = host.folder / "spool/gpu1" / name
        path.write_text(re.sub(r"time=\d+", f"time={1_700_000_000 + number}", path.read_text()))


def measure(host: Host, server: int, push: list[str]) -> tuple[float, float]:
    """Seconds (the median) and CPU seconds (both sides, the mean) of one push, after the first."""

    def cpu() -> float:
        # the listener's ended children count with the listener, the living ones by themselves
        kept = session_processes(host)
        return children_cpu() + sum(process_cpu(pid) for pid in [server, *descendants(server), *kept])

    renew(host, 0)
    host.run(*push)
    time.sleep(PACE)
    before, took = cpu(), []
    for number in range(1, ROUNDS + 1):
        renew(host, number)
        began = time.monotonic()
        host.run(*push)
        took.append(time.monotonic() - began)
        time.sleep(PACE)
    return median(took), (cpu() - before) / ROUNDS


def enrol(host: Host) -> None:
    """Let a key of its own bring the snapshots of this host."""
    home = host.folder / "home"
    key = home / ".config/gpuboard/keys/gpu1"
    key.parent.mkdir(parents=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)  # noqa: S607
    host.environment["HOME"] = str(home)
    words = ["--file", str(host.folder / "enrolled"), "--data", str(host.folder / "data"), "add", "gpu1"]
    with key.with_suffix(".pub").open() as public:
        subprocess.run([str(SCRIPTS / "gpu-enrol.sh"), *words], stdin=public, check=True)


def rows() -> Iterator[Row]:
    """The budgets of the push, by each way that is kept open."""
    adopt_orphans()
    with tempfile.TemporaryDirectory() as name:
        host = Host(Path(name))
        host.script("gpu-run.sh", "once")
        enrol(host)
        with sshd(host.folder) as (server, config):
            host.environment["GPUBOARD_SSH_CONFIG"] = str(config)
            spool = [f"{name}/spool/gpu1/{file}" for file in FILES]
            plain = measure(host, server, ["scp", "-q", "-F", str(config), *spool, f"web:{name}/data/gpu1/"])
            for way, dest in (("ssh://", "ssh://web"), ("sftp", f"web:{name}/data")):
                host.environment["GPUBOARD_DEST"] = dest
                kept = measure(host, server, [str(SCRIPTS / "gpu-run.sh"), "push"])
                host.script("gpu-check.sh", "kill")
                yield from compared(way, kept, plain)


def compared(way: str, kept: tuple[float, float], plain: tuple[float, float]) -> Iterator[Row]:
    """One way against scp, in time and in CPU."""
    for what, budget, ours, scp in zip(("push", "CPU of both"), (10, 7), kept, plain):
        text = f"{what}, {way} {1000 * ours:.0f} ms, scp {1000 * scp:.0f} ms"
        yield Row(text, budget, scp / ours, "times", at_least=True)
