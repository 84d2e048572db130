"""docs/ansible.md: its commands, as they stand there, over a real sshd; users are the hosts, gpuboard the web host."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs import ROOT, blocks
from tests.support.machine import PYTHON, Machine, keygen, need_machine
from tests.support.missing import need

pytestmark = pytest.mark.root
BOXES = {"gpu01": "box01", "gpu02": "box02", "trainer": "box03"}
HOSTS = """
[gpu_hosts]
gpu01 ansible_user=box01
gpu02.example.org ansible_user=box02
gpu04 ansible_user=box03 gpuboard_name=trainer

[gpu_hosts:vars]
ansible_host=web
ansible_port={port}
gpuboard_dest=ssh://gpuboard@web:{port}

[web_host]
web ansible_user=gpuboard ansible_port={port}
"""
CHECK, BRING, REMOVE = (line for block in blocks("ansible") for line in block.text.splitlines())


class Lab:
    """A machine on which gpuboard has built a board, and may log in to each host."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.data = machine.path("/home/gpuboard/data")
        self.keys = machine.path("/home/gpuboard/.ssh/authorized_keys")

    def prepare(self) -> None:
        """The web side as ./install.sh web leaves it, as far as hosts need it, and an inventory in a clone."""
        ssh = self.keys.parent
        keygen(ssh / "id_ed25519")
        shutil.copy(self.machine.path("/home/lab/.ssh/known_hosts"), ssh)
        for user in ("gpuboard", *BOXES.values()):
            shutil.copy(ssh / "id_ed25519.pub", self.machine.path(f"/home/{user}/.ssh/authorized_keys"))
            self.machine.give(user, f"/home/{user}")
        clone = self.machine.path(self.machine.copy_project("gpuboard"))
        (clone / "hosts.ini").write_text(HOSTS.format(port=self.machine.port))
        self.data.mkdir()
        conf = self.machine.path("/home/gpuboard/.config/gpuboard/gpuboard.conf")
        conf.parent.mkdir(parents=True)
        conf.write_text("GPUBOARD_DATA=/home/gpuboard/data\n")
        shutil.copytree(ROOT / "scripts", self.machine.path("/home/gpuboard/.local/share/gpuboard/scripts"))
        self.machine.give("gpuboard", "/home/gpuboard")

    def play(self, line: str) -> dict[str, str]:
        """What it says of each host in the end: what was not reached, else failed, else how many changes there were."""
        # fewer connections for each task, and no search for a Python
        quicker = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_PYTHON_INTERPRETER": PYTHON}
        done = self.machine.run("gpuboard", line, cwd="/home/gpuboard/clone", check=False, timeout=300, env=quicker)
        self.said = done.stdout
        counts = {
            name: dict(re.findall(r"(\w+)=(\d+)", rest))
            for name, rest in re.findall(r"(?m)^(\S+) +: (ok=.*)$", self.said)
        }
        assert counts, self.said
        bad = ("unreachable", "failed")
        return {
            name: next((word for word in bad if host_counts[word] != "0"), host_counts["changed"])
            for name, host_counts in counts.items()
        }

    def home(self, name: str) -> Path:
        """That of a host, by its name on the board."""
        return self.machine.path(f"/home/{BOXES[name]}")

    def enrolled(self) -> list[str]:
        """Who may bring snapshots."""
        return [line.split()[-1] for line in self.keys.read_text().splitlines() if line.startswith("restrict,")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need_machine()
    need("" if shutil.which("ansible-playbook") else "ansible-playbook is not here; ./install.sh test installs it")
    machine = Machine(tmp_path_factory.mktemp("ansible"), boxes=len(BOXES))
    lab = Lab(machine)
    lab.prepare()
    with machine:
        yield lab


def test_the_page_shows_the_inventory_that_stands_beside_the_playbook() -> None:
    (shown,) = blocks("ansible-hosts")
    lines = (ROOT / "docs/ansible/hosts.ini").read_text().splitlines()
    assert "\n".join(line for line in lines if not line.startswith("#")).strip() == shown.text.strip()


def test_check_reports_what_is_missing_and_changes_nothing(lab: Lab) -> None:
    assert lab.play(CHECK) == {"gpu01": "1", "gpu02.example.org": "1", "gpu04": "1"}, lab.said
    assert '"web host\'s key"' in lab.said
    assert not any((lab.home(name) / part).exists() for name in BOXES for part in (".local", ".config"))
    assert lab.enrolled() == []


def test_each_host_sends_by_a_key_of_its_own_and_one_that_cannot_is_named(lab: Lab) -> None:
    lab.machine.run(BOXES["trainer"], "mkdir -p ~/.ansible/tmp")  # Ansible's own, for which it needs no more room
    lab.home("trainer").chmod(0o555)
    outcomes = lab.play(BRING)
    lab.home("trainer").chmod(0o755)
    assert outcomes == {"gpu01": "3", "gpu02.example.org": "3", "gpu04": "failed"}, lab.said
    assert "Permission denied" in lab.said, lab.said
    assert sorted(lab.enrolled()) == ["gpu01", "gpu02"]
    for name in ("gpu01", "gpu02"):
        key = lab.home(name) / ".config/gpuboard/keys" / name
        assert oct(key.stat().st_mode)[-3:] == "600"
        assert " ".join(key.with_suffix(".pub").read_text().split()[:2]) in lab.keys.read_text()
        assert (lab.data / name / "host.txt").read_text().endswith("# end\n")
        assert f"gpu-check.sh {name}\n".encode() in (lab.machine.crontab(BOXES[name]) or b"")
        lab.machine.run(BOXES[name], f"~/.local/share/gpuboard/scripts/gpu-check.sh status {name}")
        assert not list(lab.home(name).glob(".gpuboard-ansible.*"))


def test_again_changes_nothing_but_what_was_left(lab: Lab) -> None:
    assert lab.play(BRING) == {"gpu01": "0", "gpu02.example.org": "0", "gpu04": "3"}, lab.said
    assert (lab.data / "trainer/host.txt").exists()
    assert sorted(lab.enrolled()) == ["gpu01", "gpu02", "trainer"]


def test_remove_takes_it_all_back_and_leaves_what_was_sent(lab: Lab) -> None:
    before = lab.keys.read_text().splitlines()[0]
    assert lab.play(REMOVE) == {"gpu01": "2", "gpu02.example.org": "2", "gpu04": "2"}, lab.said
    assert lab.keys.read_text().splitlines() == [before]
    assert [lab.machine.crontab(box) for box in BOXES.values()] == [None, None, None]
    assert not any((lab.home(name) / part).exists() for name in BOXES for part in (".local", ".config"))
    assert [line for line in lab.machine.processes() if "gpu-run.sh" in line] == []
    assert sorted(path.name for path in lab.data.glob("[!.]*")) == sorted(BOXES)
