"""docs/ansible/ with an inventory of gpumonitor: its groups, and a web host that the playbook installs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from tests.integration.test_ansible import BRING, CHECK, REMOVE, Lab
from tests.support.docs import ROOT
from tests.support.machine import Machine, keygen, need_machine, wait_for
from tests.support.missing import need
from tests.support.ports import free_port

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]  # the first time, pip fetches what is kept
# As the README of gpumonitor has it; the rest is what differs on the machine of the tests.
INVENTORY = """
[webserver]
server ansible_host=web ansible_user=gpuboard ansible_remote_tmp=/tmp/.ansible-server/tmp

[rpcservers]
host1 ansible_host=web ansible_user=box01 ansible_remote_tmp=/tmp/.ansible-host1/tmp

[webserver:vars]
ansible_connection=local
gpuboard_listen=127.0.0.1:{listen}

[all:vars]
ansible_port={port}
gpuboard_systemd=true
"""
# There is no systemd on that machine: this notes what it is asked, and what is enabled.
SYSTEMCTL = """#!/bin/sh
echo "$*" >>/srv/smi/systemctl
case $1 in
    is-enabled) grep -q "^enable .*$3" /srv/smi/systemctl ;;
esac
"""


@pytest.fixture(scope="module")
def listen() -> int:
    return free_port()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, listen: int) -> Iterator[Lab]:
    need_machine()
    need("" if shutil.which("ansible-playbook") else "ansible-playbook is not here; ./install.sh test installs it")
    machine = Machine(tmp_path_factory.mktemp("ansible"), boxes=1)
    machine.add_packages()
    lab = Lab(machine)
    ssh = lab.keys.parent
    keygen(ssh / "id_ed25519")
    shutil.copy(machine.path("/home/lab/.ssh/known_hosts"), ssh)
    shutil.copy(ssh / "id_ed25519.pub", machine.path("/home/box01/.ssh/authorized_keys"))
    machine.give("box01", "/home/box01")
    clone = machine.path(machine.copy_project("gpuboard"))
    (clone / "hosts.ini").write_text(INVENTORY.format(port=machine.port, listen=listen))
    machine.give("gpuboard", "/home/gpuboard")
    systemctl = machine.path("/usr/local/sbin/systemctl")
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)
    sudoers = machine.path("/etc/sudoers.d/gpuboard")
    sudoers.parent.mkdir(exist_ok=True)
    sudoers.write_text("gpuboard, box01 ALL=(root) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)
    with machine:
        yield lab


def test_an_inventory_of_gpumonitor_installs_the_web_host_and_its_hosts(lab: Lab, listen: int) -> None:
    gpuboard = lab.machine.path("/home/gpuboard/.local/share/gpuboard")
    assert lab.play(f"{CHECK} --limit server") == {"server": "1"}, lab.said
    assert not gpuboard.exists()
    assert lab.play(BRING) == {"server": "2", "host1": "4"}, lab.said
    assert (gpuboard / "venv/bin/python").exists()

    def board() -> bytes:
        with urlopen(f"http://127.0.0.1:{listen}/", timeout=10) as answer:
            content: bytes = answer.read()
        return content

    wait_for(lambda: b"host1" in board())
    calls = (lab.machine.smi / "systemctl").read_text().splitlines()
    assert [call for call in calls if "enable " in call] == [
        "enable --now gpuboard-build@gpuboard.service gpuboard-serve@gpuboard.service",
        "enable --now gpuboard-host@box01.service",
    ]
    units = {path.name: path for path in lab.machine.path("/etc/systemd/system").glob("gpuboard-*")}
    assert sorted(units) == [f"gpuboard-{unit}@.service" for unit in ("build", "host", "serve")]
    for name, unit in units.items():
        assert unit.read_text() == (ROOT / "docs/systemd/system" / name).read_text()
    assert lab.play(BRING) == {"server": "0", "host1": "0"}, lab.said
    lab.play(REMOVE)
    assert "disable --now gpuboard-host@box01.service" in (lab.machine.smi / "systemctl").read_text()
    assert lab.machine.crontab("box01") is None
