"""docs/quick-start.md, typed from its first line to its last on six clean machines: a web host and five servers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.docs import blocks, commands
from tests.support.machine import PACKAGES_PYTHON, Machine, copy_files, need_machine, own_network, wait_for
from tests.support.missing import missing

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # the first time, pip fetches what is kept

PAGE = "docs/quick-start.md"
HOSTS = [f"gpu0{number}" for number in range(1, 6)]
ADDRESSES = {"web": "127.0.0.1", **{name: f"127.0.1.{number}" for number, name in enumerate(HOSTS, 1)}}
PASSWORD = "correct horse"  # noqa: S105 # of the machines of this test
# ssh asks this program where there is no terminal.
ASKPASS = f"""#!/bin/sh
case $1 in *yes/no*) echo yes ;; *) echo '{PASSWORD}' ;; esac
"""
TOKEN = re.compile(r"\S{40,}")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """Machines that nobody has touched, with the names that the page gives them."""
    need_machine()
    for program in ("ip", "useradd", "ssh-copy-id", "openssl"):
        if not shutil.which(program, path="/usr/bin:/usr/sbin:/bin:/sbin"):
            missing(f"{program} is not here; ./install.sh test installs it")
    made = {name: Machine(tmp_path_factory.mktemp(name), name, address=ADDRESSES[name]) for name in ADDRESSES}
    made["web"].add_packages()  # while there is a network
    repository = make_repository(tmp_path_factory.mktemp("repository"))
    made["web"].shared["/srv/gpuboard.git"] = repository
    with own_network(), ExitStack() as running:
        for name, machine in made.items():
            names = "".join(f"{address} {other}\n" for other, address in ADDRESSES.items())
            machine.path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{names}")
            shutil.rmtree(machine.path("/home/lab/.ssh"))
            running.enter_context(machine)
            if name != "web":
                machine.run("root", f"usermod -p \"$(openssl passwd -6 '{PASSWORD}')\" lab", env=ROOT_PATH)
        prepare_web(made["web"])
        yield made


ROOT_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def make_repository(folder: Path) -> Path:
    """The project as one could clone it."""
    copy_files(folder)
    folder.chmod(0o755)
    git = ["git", "-c", "user.name=lab", "-c", "user.email=lab@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-qm", "gpuboard"]):
        subprocess.run([*git, *words], check=True)
    return folder


def prepare_web(web: Machine) -> None:
    """No account for the board yet, the repository under its address, and the Python that pip needs no network for."""
    web.run("root", "userdel -r gpuboard", env=ROOT_PATH, check=False)
    (web.path("/etc/gitconfig")).write_text(
        '[url "/srv/gpuboard.git"]\n  insteadOf = https://git.example.org/gpuboard.git\n[safe]\n  directory = *\n'
    )
    askpass = web.path("/srv/askpass")
    askpass.write_text(ASKPASS)
    askpass.chmod(0o755)
    (web.path("/etc/profile.d") / "test.sh").write_text(
        f"export PATH={PACKAGES_PYTHON}:$PATH SSH_ASKPASS=/srv/askpass SSH_ASKPASS_REQUIRE=force\n"
    )


def read_board() -> dict[str, dict[str, object]]:
    """The hosts of the board, as anybody on the network gets them."""
    with urlopen(f"http://{ADDRESSES['web']}:8080/status.json", timeout=10) as answer:
        return {host["name"]: host for host in json.load(answer)["hosts"]}


def test_the_quick_start_leads_from_nothing_to_five_servers_on_a_board(machines: dict[str, Machine]) -> None:
    web, lines = machines["web"], commands(PAGE)
    change = lines.index("sudo -iu gpuboard")
    for line in lines[:change]:
        web.run("root", line.removeprefix("sudo "), env=ROOT_PATH)
    owner = web.path("/home/gpuboard").stat()
    web.users["gpuboard"] = owner.st_uid
    last = lines.index("gpuboard doctor")
    typed = web.run("gpuboard", ["bash", "-lec", "\n".join(lines[change + 1 : last])], timeout=400).stdout
    print(typed)  # noqa: T201 # shown where the test fails
    # the page promises ten seconds, the interval of the builder; a machine under load needs longer
    wait_for(lambda: {name: host["state"] for name, host in read_board().items()} == dict.fromkeys(HOSTS, "fresh"))
    assert [name for name in HOSTS if f"{name} " not in typed] == []
    doctor = web.run("gpuboard", ["bash", "-lc", lines[last]], check=False)
    assert doctor.returncode in (0, 1), doctor.stdout  # 1 is a warning

    tokens = {name: web.path(f"/home/gpuboard/tokens/{name}") for name in ("bob", "carol", "dana")}
    assert all(TOKEN.fullmatch(file.read_text().strip()) for file in tokens.values())
    assert {file.stat().st_mode & 0o777 for file in tokens.values()} == {0o600}
    (conf,) = (block.text for block in blocks("conf") if block.page == PAGE)
    own = conf.replace("TOKEN-OF-ALICE", tokens["bob"].read_text().strip())
    book = f"umask 077; cat >/tmp/own.conf <<'END'\n{own}END\ngpuboard book gpu01:0 --for 4h --conf /tmp/own.conf -y"
    web.run("gpuboard", ["bash", "-lc", book])
    wait_for(lambda: "bob" in json.dumps(read_board()["gpu01"]), 60, 0.5)
