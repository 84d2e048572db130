"""Both doctors on a machine of its own: a real cron, a real sshd, and a real Consul."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab
from tests.support.consul_server import ConsulServer
from tests.support.machine import ROOT, Machine, keygen, need_machine

pytestmark = pytest.mark.root

KEY = ".config/gpuboard/keys/gpu1"


class Host:
    """The user lab on a machine whose sshd is the web host's, too."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        for user in ("lab", "gpuboard"):
            shutil.copytree(ROOT / "scripts", machine.path(f"/home/{user}/scripts"))
        machine.path("/home/gpuboard/data").mkdir()
        self.path("/.config/gpuboard/keys").mkdir(parents=True)
        self.settle()

    def path(self, name: str) -> Path:
        return self.machine.path(f"/home/lab{name}")

    def settle(self) -> None:
        for user in ("lab", "gpuboard"):
            self.machine.give(user, f"/home/{user}")

    def looks(self, dest: str, **extra_environment: str) -> dict[str, tuple[str, str]]:
        """By id the status and the words."""
        env = {"GPUBOARD_DEST": dest, "GPUBOARD_LIMIT": "5", **extra_environment}
        done = self.machine.run("lab", "scripts/gpu-doctor.sh --json gpu1", check=False, env=env)
        report = json.loads(done.stdout)
        assert done.returncode == {"pass": 0, "warn": 1, "fail": 2}[report["worst"]]
        return {
            doctor_check["id"]: (doctor_check["status"], f"{doctor_check['what']} -> {doctor_check['do']}")
            for doctor_check in report["checks"]
        }


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    need_machine()
    with Machine(tmp_path_factory.mktemp("doctor")) as machine:
        yield Host(machine)


def assert_finds(checks_by_id: dict[str, tuple[str, str]], name: str, status: str, words: str = "") -> None:
    assert checks_by_id[name][0] == status, checks_by_id[name]
    assert re.search(words, checks_by_id[name][1]), checks_by_id[name]


def test_a_key_is_followed_from_its_file_to_what_it_may_do_on_the_web_host(host: Host) -> None:
    dest = "ssh://gpuboard@web"
    checks_by_id = host.looks(dest)
    assert_finds(checks_by_id, "ssh-key", "pass", "/.ssh/id_ed25519")
    assert_finds(checks_by_id, "ssh", "warn", "this key opens a shell.*gpu-enrol.sh")
    assert_finds(checks_by_id, "clock", "pass", "within a minute of the web host's")
    assert_finds(checks_by_id, "consul", "skip")
    keys = host.machine.path("/home/gpuboard/.ssh/authorized_keys")
    before = keys.read_text()
    keys.write_text("")
    assert_finds(host.looks(dest), "ssh", "fail", "does not accept this host's key: .*Permission denied")
    host.path("/.ssh/id_ed25519").rename(host.path("/.ssh/away"))
    assert_finds(host.looks(dest), "ssh-key", "fail", "this user has no ssh key")
    host.path("/.ssh/away").rename(host.path("/.ssh/id_ed25519"))
    keygen(host.path(f"/{KEY}"))
    host.settle()
    shutil.copy(host.path(f"/{KEY}.pub"), host.machine.path("/srv/gpu1.pub"))
    host.machine.run("gpuboard", "scripts/gpu-enrol.sh --data ~/data add gpu1 </srv/gpu1.pub")
    checks_by_id = host.looks(dest)
    assert_finds(checks_by_id, "ssh-key", "pass", KEY)
    assert_finds(checks_by_id, "ssh", "pass", "accepts this host")
    assert checks_by_id["clock"][0] != "fail"  # that key tells no time
    enrolled = keys.read_text()
    keys.write_text(enrolled.replace("data gpu1", "data gpu2"))
    assert_finds(
        host.looks(dest), "ssh", "fail", "has this key enrolled for another host: .*gpu2.*gpu-enrol.sh add gpu1"
    )
    keys.write_text(enrolled.replace("/gpu-receive.sh", "/gone/gpu-receive.sh"))
    assert_finds(host.looks(dest), "ssh", "fail", "gpu-receive.sh does not answer there: .*(No such file|not found)")
    assert list(host.machine.path("/home/gpuboard/data").glob("gpu1")) == []  # nor has anything come
    keys.write_text(before)
    assert_finds(host.looks("gpuboard@web:data"), "ssh", "pass")


def test_a_key_that_nobody_can_use_and_a_web_host_that_nobody_knows(host: Host) -> None:
    dest = "ssh://gpuboard@web"
    key, known_hosts_file = host.path("/odd"), host.path("/.ssh/known_hosts")
    host.machine.run("lab", "ssh-keygen -q -t ed25519 -N secret -f odd")
    assert_finds(host.looks(dest, GPUBOARD_SSH_KEY="/home/lab/odd"), "ssh-key", "fail", "needs a passphrase")
    key.chmod(0o644)
    assert_finds(host.looks(dest, GPUBOARD_SSH_KEY="/home/lab/odd"), "ssh-key", "fail", "chmod 600")
    before = known_hosts_file.read_text()
    known_hosts_file.write_text("")
    assert_finds(host.looks(dest), "ssh", "fail", "the host key of .*web is not known here -> log in there once")
    known_hosts_file.write_text(f"[web]:{host.machine.port} {host.path('/odd.pub').read_text()}")
    assert_finds(host.looks(dest), "ssh", "fail", "the host key of .* has changed -> ask its admin")
    known_hosts_file.write_text(before)
    assert_finds(host.looks("ssh://gpuboard@web:1"), "ssh", "fail", "cannot be reached: .*refused")


def test_cron_is_asked_whether_it_runs_and_for_whom(host: Host) -> None:
    machine = host.machine
    line = b"* * * * * /home/lab/scripts/gpu-check.sh gpu1 2>/dev/null\n"
    machine.set_crontab("lab", b"# a comment with gpu-check.sh\n")
    assert_finds(host.looks("/srv"), "crontab", "warn", "has no line")
    machine.set_crontab("lab", line)
    checks_by_id = host.looks("/srv")
    assert_finds(checks_by_id, "cron-daemon", "pass")
    assert_finds(checks_by_id, "cron-allowed", "pass")
    assert_finds(checks_by_id, "crontab", "pass", "gpu-check.sh gpu1")
    deny = machine.path("/etc/cron.deny")
    deny.write_text("lab\n")
    assert_finds(host.looks("/srv"), "cron-allowed", "fail", "not allowed to use this program")
    deny.unlink()
    machine.path("/var/spool/cron/crontabs/lab").unlink()
    lab = Lab(machine.path("/srv/board"))
    lab.host("atlas")
    lab.build()
    command = f"cd /srv/board && PYTHONPATH={ROOT} {sys.executable} -m site_builder doctor --json"
    machine.set_crontab("root", b"* * * * * cd /srv/board && gpuboard build --every 10 --for 60 2>/dev/null >&2\n")
    report = json.loads(machine.run("root", command, check=False).stdout)
    checks_by_id = {
        doctor_check["id"]: (doctor_check["status"], doctor_check["what"]) for doctor_check in report["checks"]
    }
    assert_finds(checks_by_id, "cron-daemon", "pass", "is running")
    assert_finds(checks_by_id, "cron-allowed", "pass", "is allowed to use cron")
    assert_finds(checks_by_id, "crontab", "pass", "gpuboard build")


def test_consul_is_asked_for_the_key_of_the_host_with_its_token(host: Host, tmp_path: Path) -> None:
    server = ConsulServer(tmp_path / "consul", acl=True)
    try:
        dest = f"consul://{server.address}/lab"
        token = server.new_token('key "lab/data/gpu1" { policy = "write" }')
        checks_by_id = host.looks(dest, CONSUL_HTTP_TOKEN=token)
        assert_finds(checks_by_id, "dest", "pass")
        assert_finds(checks_by_id, "tools", "pass")
        assert_finds(checks_by_id, "consul", "pass", "no snapshot of this host yet")
        assert_finds(checks_by_id, "clock", "pass", "within a minute")
        server.call("PUT", "/v1/kv/lab/data/gpu1", "x")
        assert_finds(host.looks(dest, CONSUL_HTTP_TOKEN=token), "consul", "pass", "has the last snapshot")
        checks_by_id = host.looks(dest)
        assert_finds(checks_by_id, "consul", "fail", "CONSUL_HTTP_TOKEN .none is set. needs")
        assert token not in str(checks_by_id)
        script = host.path("/scripts/lib/doctor_consul.sh")
        before = script.read_text()
        script.write_text(before.replace("command -v curl", "false"))  # as where there is none
        checks_by_id = host.looks(dest, CONSUL_HTTP_TOKEN=token)
        script.write_text(before)
        assert_finds(checks_by_id, "consul", "pass", "has the last snapshot")
        assert_finds(checks_by_id, "clock", "pass", "within a minute")
    finally:
        server.stop()
    assert_finds(host.looks(dest, CONSUL_HTTP_TOKEN=token), "consul", "fail", "cannot be reached")
    assert_finds(host.looks(f"{dest}/../x"), "dest", "fail", "prefix")
