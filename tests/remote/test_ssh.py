"""Connections to hosts: as the person's own ssh would make them, never without a limit, never to a stranger."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_builder.remote import ssh
from site_builder.remote.ssh import connect_ssh
from site_builder.remote.ssh_config import SshError, resolve_ssh_host
from tests.support.booking_fixtures import ME
from tests.support.machine import keygen, wait_for
from tests.support.sshd import Sshd


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("ssh") / "box") as server:
        yield server


def why(box: Sshd, config: Path | None = None, host: str = "box", limit: float = 20) -> str:
    """The sentence with which it fails."""
    with pytest.raises(SshError) as failed:
        connect_ssh(host, limit, config or box.config).close()
    text = str(failed.value)
    assert "\n" not in text
    return text


@pytest.mark.slow
def test_a_command_has_its_code_its_output_and_its_words(box: Sshd) -> None:
    with connect_ssh("box", config=box.config) as host:
        assert host.run("cat; echo no >&2; exit 3", b"abc" * 100_000) == (3, b"abc" * 100_000, b"no\n")
        assert host.run("true", b"not read" * 100_000).exit_code == 0
        assert host.run("kill -9 $$").exit_code == -1
        assert host.run("printf 'a\\n\\033[31mred\\r\\n' >&2").last_line == "?[31mred"


def test_the_host_proves_itself_by_a_key_that_can_be_told_on(box: Sshd) -> None:
    with connect_ssh("box", config=box.config) as host:
        assert " ".join(host.host_key) in (box.folder / "host_key.pub").read_text()


@pytest.mark.slow
def test_configuration_is_read_by_ssh_itself(box: Sshd, tmp_path: Path) -> None:
    (tmp_path / "more").write_text(f"Host far*\n  HostName 127.0.0.1\n  Port {box.port}\n")
    text = f"Include {tmp_path}/more\nHost far*\n  IdentityFile {box.folder}/id\n  UserKnownHostsFile {box.known}\n"
    with connect_ssh("far7", config=box.configured(text)) as host:
        assert host.run("echo $SSH_CONNECTION").stdout.split()[3] == str(box.port).encode()


@pytest.mark.slow
def test_jump_hosts_one_behind_the_other(box: Sshd) -> None:
    jumps = "Host behind\n  HostName 127.0.0.1\n  ProxyJump box,second\nHost behind second\n"
    both = jumps + f"  Port {box.port}\n  HostName 127.0.0.1\n  IdentityFile {box.folder}/id\n"
    config = box.configured(both + f"  UserKnownHostsFile {box.known}\n")
    with connect_ssh("behind", config=config) as host:
        assert host.run("echo here").stdout == b"here\n"
    assert "for a loop" in why(box, box.configured("Host box\n  ProxyJump box\n"))


@pytest.mark.slow
def test_a_connection_whose_jump_host_is_gone_closes_without_an_error(
    box: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = f"Host behind\n  HostName 127.0.0.1\n  ProxyJump box\n  Port {box.port}\n"
    config = box.configured(behind + f"  IdentityFile {box.folder}/id\n  UserKnownHostsFile {box.known}\n")
    host = connect_ssh("behind", config=config)

    def fail(*_: object) -> None:
        raise EOFError  # as paramiko does once the jump host is gone

    jump_channel: Any = host.transport.sock
    monkeypatch.setattr(jump_channel.transport.packetizer, "send_message", fail)
    host.close()
    assert not host.transport.is_active()


def test_a_jump_host_that_cannot_reach_it_is_named(box: Sshd) -> None:
    config = box.configured("Host behind\n  HostName 127.0.0.1\n  Port 1\n  ProxyJump box\n")
    assert "behind cannot be reached from box" in why(box, config, "behind")


@pytest.mark.slow
def test_a_proxy_command_carries_it_and_ends_with_it(box: Sshd, tmp_path: Path) -> None:
    proxy = tmp_path / "proxy"
    proxy.write_text(
        "import os, socket, sys, threading\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "line = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def move(read, write):\n"
        "    while (piece := read(65536)): write(piece)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=move, args=(lambda n: os.read(0, n), line.sendall)).start()\n"
        "move(line.recv, lambda piece: os.write(1, piece))\n"
    )
    config = box.configured(f"Host box\n  ProxyCommand {shutil.which('python3')} {proxy} %h %p\n")
    with connect_ssh("box", config=config) as host:
        assert host.run("echo here").stdout == b"here\n"
    pid = (tmp_path / "pid").read_text()
    wait_for(lambda: not Path("/proc", pid).exists())
    dead = box.configured("Host box\n  ProxyCommand false\n")
    assert "closes every connection at once" in why(box, dead, limit=30)


@pytest.mark.slow
def test_keys_of_the_agent_count_and_a_hung_agent_does_not(
    box: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "agent"
    agent = subprocess.Popen(["/usr/bin/ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        wait_for(place.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        subprocess.run(["/usr/bin/ssh-add", "-q", str(box.folder / "id")], check=True)
        text = box.config.read_text().replace(f"{box.folder}/id", "none").replace("IdentityAgent none", "")
        by_agent = tmp_path / "config"
        by_agent.write_text(text.replace("IdentitiesOnly yes", ""))
        connect_ssh("box", config=by_agent).close()
        by_agent.write_text(text)
        assert "no ssh key for box" in why(box, by_agent)
        agent.send_signal(signal.SIGSTOP)
        assert "no ssh key for box" in why(box, by_agent, limit=4)
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.slow
def test_a_key_with_a_password_names_the_command_that_helps(box: Sshd, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    config = tmp_path / "config"
    config.write_text(box.config.read_text().replace(f"{box.folder}/id", str(key)))
    assert f"ssh-add {key}" in why(box, config)


def test_a_host_whose_key_is_not_known_is_refused_however_lax_the_configuration(box: Sshd) -> None:
    lax = box.configured("Host box\n  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n")
    assert "the host key of box is not known here; log in there once by hand" in why(box, lax)


@pytest.mark.slow
def test_a_host_with_another_key_than_the_known_one_is_refused(box: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "other")
    wrong_public_key = (tmp_path / "other.pub").read_text()
    known_hosts_file = tmp_path / "known"
    config = box.configured(f"Host box\n  UserKnownHostsFile {known_hosts_file}\n")
    known_hosts_file.write_text(f"[127.0.0.1]:{box.port} {wrong_public_key}")
    assert "has a different key than in known_hosts" in why(box, config)
    own = (box.folder / "host_key.pub").read_text()
    known_hosts_file.write_text(f"[127.0.0.1]:{box.port} {own}@revoked * {own}")
    assert "not known here" in why(box, config)
    known_hosts_file.write_text(f"@cert-authority * {wrong_public_key}")
    assert "has only a certificate in known_hosts" in why(box, config)
    known_hosts_file.write_text(f"[127.0.0.*]:{box.port} {own}")
    connect_ssh("box", config=config).close()
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-H", "-f", str(box.known)], check=True, capture_output=True)
    connect_ssh("box", config=box.config).close()


def test_a_key_that_is_not_enrolled_names_the_command_that_helps(box: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "stranger")
    config = tmp_path / "config"
    config.write_text(box.config.read_text().replace(f"{box.folder}/id", f"{tmp_path}/stranger"))
    assert re.search(r"box does not accept your key, as \w+: ssh-copy-id box", why(box, config))


@pytest.mark.slow
def test_a_host_that_wants_a_password_is_refused_and_not_asked_for_one(tmp_path: Path) -> None:
    with Sshd(tmp_path / "box", "PubkeyAuthentication no\nPasswordAuthentication yes\n") as server:
        assert f"accepts no keys from {ME}, only: password" in why(server).replace("keyboard-interactive or ", "")


def test_what_is_no_host_is_refused_before_ssh_sees_it(box: Sshd) -> None:
    for bad in ("-oProxyCommand=false", "a b", "", "a\nb", "x" * 300):
        assert "is not a valid host" in why(box, host=bad)
    assert "cannot be found" in why(box, host="no-such-host.invalid")
    assert resolve_ssh_host("user@10.0.0.1").user == "user"


def test_nobody_at_the_port_is_reported_at_once(box: Sshd) -> None:
    assert "cannot be reached at 127.0.0.1 port 1" in why(box, box.configured("Host box\n  Port 1\n"))


@pytest.mark.slow
def test_a_server_that_never_greets_and_one_that_is_no_sshd_cost_no_more_than_the_limit(box: Sshd) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = box.configured(f"Host box\n  Port {silent.getsockname()[1]}\n")
        began = time.monotonic()
        assert "does not answer within 1 s" in why(box, config, limit=1)
        assert time.monotonic() - began < 10


@pytest.mark.slow
def test_a_command_that_hangs_ends_at_its_limit_and_one_that_talks_too_much_at_its_bound(box: Sshd) -> None:
    with connect_ssh("box", config=box.config) as host:
        with pytest.raises(SshError, match="box did not finish within 1 s"):
            host.run("sleep 60", timeout_s=1)
        with pytest.raises(SshError, match="printed more than 1000 bytes"):
            host.run("yes", max_bytes=1000)
        loud = host.run("yes | head -c 300000 >&2; echo done")
        assert (loud.stdout, len(loud.stderr)) == (b"done\n", ssh.MAX_STDERR_BYTES)
        assert host.run("echo on; sleep 6 &").stdout == b"on\n", "a child that stays does not hold us"


@pytest.mark.slow
def test_a_closed_connection_ends_the_command_that_somebody_waits_for(box: Sshd) -> None:
    host = connect_ssh("box", config=box.config)
    threading.Timer(0.3, host.close).start()
    with pytest.raises(SshError, match="the connection to box was lost"):
        host.run("sleep 60", timeout_s=50)


@pytest.mark.slow
def test_a_crowd_at_the_door_gets_in_one_after_the_other(tmp_path: Path) -> None:
    with Sshd(tmp_path / "box", "MaxStartups 2:80:4\n") as server:
        outcomes: list[object] = []

        def one() -> None:
            try:
                connect_ssh("box", 60, server.config).close()
                outcomes.append("in")
            except SshError as error:
                outcomes.append(error)

        crowd = [threading.Thread(target=one) for _ in range(12)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert outcomes == ["in"] * 12
