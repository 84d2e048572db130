"""`gpuboard deploy`: a real sshd and cron, with 13 users as 13 hosts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import pace
from tests.support.deploy_hosts import DATA, Lab
from tests.support.machine import Machine, keygen, need_machine, wait_for

pytestmark = pytest.mark.root
COUNT = 13  # and one more, whose home is shared
QUICK = ("box01", "box11", "box12", "box13", "box14")  # those for whose next snapshot a test waits
SCRIPTS = ".local/share/gpuboard/scripts"
CONF = ".config/gpuboard/gpuboard.conf"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need_machine()
    with Machine(tmp_path_factory.mktemp("lab"), boxes=COUNT + 1) as machine:
        yield Lab(machine, COUNT + 1)


class Runs(NamedTuple):
    """Two runs over all hosts: four of them had something in their way at the first."""

    lab: Lab
    first: dict[str, dict[str, Any]]
    second: str
    seconds: float


@pytest.fixture(scope="module")
def deployed(lab: Lab) -> Runs:
    began = time.monotonic()
    with in_their_way(lab):
        first = lab.results(*lab.words[:7], "gpu08=strange", *lab.words[8:COUNT], code=1)
    second = lab.deploy(*lab.words[:COUNT])
    return Runs(lab, first, second, time.monotonic() - began)


@contextmanager
def in_their_way(lab: Lab) -> Iterator[None]:
    """No crontab allowed on gpu06, a full disk on gpu07, another host key of gpu08, none of our keys on gpu09."""
    machine = lab.machine
    machine.path("/etc/cron.deny").write_text("box06\n")
    full = "mount -t tmpfs -o size=60k,mode=700,uid=7107,gid=7107 none /home/box07"
    machine.run("root", f"cp -a /home/box07/.ssh /srv/kept && {full} && cp -a /srv/kept /home/box07/.ssh")
    ssh = machine.path("/home/gpuboard/.ssh")
    config = (ssh / "config").read_text()
    strange = f"Host strange\n  HostName web\n  User box08\n  HostKeyAlias strange\n  Port {machine.port}\n"
    (ssh / "config").write_text(strange + config)
    keygen(ssh / "other")
    with (ssh / "known_hosts").open("a") as known_hosts_file:
        known_hosts_file.write(f"strange {(ssh / 'other.pub').read_text()}")
    keys = lab.home(8) / ".ssh/authorized_keys"
    keys.rename(keys.with_name("aside"))
    yield
    machine.path("/etc/cron.deny").unlink()
    machine.run("root", "umount /home/box07")
    (ssh / "config").write_text(config)
    keys.with_name("aside").rename(keys)


def tree(home: Path) -> dict[str, object]:
    """All that deploy may change in a home, but for what the loops and sshd do."""
    entries_by_path: dict[str, object] = {}
    for path in sorted(home.rglob("*")):
        entries_by_path[str(path.relative_to(home))] = (
            oct(path.stat().st_mode),
            path.read_bytes() if path.is_file() else b"",
        )
    return entries_by_path


def test_all_hosts_are_on_the_board_within_a_minute(deployed: Runs) -> None:
    lab, first, second, seconds = deployed
    pace.check(seconds, 60, pace.wall)
    done = [name for name, row in first.items() if row["result"] == "installed"]
    assert done == lab.names[:5] + lab.names[9:COUNT]
    assert "\x1b" not in second
    assert all(lab.machine.path(f"{DATA}/{name}/gpus.csv").exists() for name in lab.names[:COUNT])


def test_an_obstacle_is_reported_and_the_next_run_finishes(deployed: Runs) -> None:
    why = {name: str(row["why"]) for name, row in deployed.first.items() if row["result"] == "failed"}
    assert sorted(why) == ["gpu06", "gpu07", "gpu08", "gpu09"]
    assert "your crontab cannot be read, so nothing was changed: " in why["gpu06"]
    assert why["gpu07"] == "the scripts cannot be unpacked in /home/box07: is its disk full, or your quota?"
    assert "strange has a different key than in known_hosts" in why["gpu08"]
    assert "does not accept your key, as box09: ssh-copy-id box09@web" in why["gpu09"]
    host_outcomes = re.findall(r"^(gpu\d\d) +(installed|up to date) +\d+$", deployed.second, re.MULTILINE)
    assert sorted(name for name, result in host_outcomes if result == "installed") == sorted(why)
    assert sorted(name for name, _ in host_outcomes) == deployed.lab.names[:COUNT]


def test_each_host_has_a_key_of_its_own_that_can_do_one_thing(deployed: Runs) -> None:
    lab = deployed.lab
    lines = lab.enrolled().splitlines()
    for number, name in enumerate(lab.names[:COUNT]):
        keys = lab.home(number) / ".config/gpuboard/keys"
        assert sorted(path.name for path in keys.iterdir()) == [name, f"{name}.pub"]
        assert (oct(keys.stat().st_mode)[-3:], oct((keys / name).stat().st_mode)[-3:]) == ("700", "600")
        (line,) = (line for line in lines if line.endswith(f" gpuboard {name}"))
        assert line.startswith('restrict,command="/srv/project/scripts/gpu-receive.sh ')
        assert " ".join((keys / f"{name}.pub").read_text().split()[:2]) in line
    assert len(lines) == COUNT + 1, "the key of a person who logs in stays"


def test_the_host_knows_the_web_host_and_cron_keeps_it_alive(deployed: Runs) -> None:
    lab = deployed.lab
    home = lab.home(0)
    port = lab.machine.port
    assert (home / CONF).read_text() == f"GPUBOARD_DEST=ssh://gpuboard@gpu1:{port}\n"
    own = " ".join(lab.machine.path("/etc/ssh/machine.pub").read_text().split()[:2])
    assert f"[gpu1]:{port} {own}\n" in (home / ".config/gpuboard/known_hosts").read_text()
    assert f"* * * * * /home/box01/{SCRIPTS}/gpu-check.sh gpu01\n" in (lab.machine.crontab("box01") or b"").decode()
    assert "last arrived" in lab.machine.run("box01", f"{SCRIPTS}/gpu-check.sh status").stdout
    assert not list(home.glob(".gpuboard-deploy.*"))


def test_again_changes_nothing_and_check_says_so(deployed: Runs) -> None:
    lab = deployed.lab
    homes = [tree(lab.home(number)) for number in range(3)]
    assert {row["result"] for row in lab.results(*lab.words[:3]).values()} == {"up to date"}
    output = lab.deploy("--check", *lab.words[:3])
    assert len(re.findall(r"^gpu0[123] +\d\S* +run +enrolled +\d+ s +up to date$", output, re.MULTILINE)) == 3
    assert [tree(lab.home(number)) for number in range(3)] == homes


def test_what_is_old_or_gone_is_mended_and_only_there(deployed: Runs) -> None:
    lab = deployed.lab
    machine = lab.machine
    machine.run("box01", f"echo '# old' >>{SCRIPTS}/lib/common.sh")
    machine.run("box02", f"crontab -r; {SCRIPTS}/gpu-check.sh kill")
    machine.run("gpuboard", "sed -i '/gpuboard gpu03$/d' .ssh/authorized_keys")
    machine.run("gpuboard", "mkdir before && sed -i 's|/data gpu05|/before gpu05|' .ssh/authorized_keys")
    machine.run("box05", f"crontab -r; {SCRIPTS}/gpu-check.sh kill")  # or its cron would start them again
    machine.run("box04", "rm .config/gpuboard/keys/gpu04; : >.config/gpuboard/known_hosts")
    words = lab.words[:6]
    check_results = lab.results("--check", *words, code=1)
    assert "scripts" in check_results["gpu01"]["why"]
    assert "crontab, loops" in check_results["gpu02"]["why"]
    assert "key" in check_results["gpu03"]["why"]
    assert "key, web host's key" in check_results["gpu04"]["why"]
    assert machine.crontab("box02") is None, "a check changes nothing"
    deploy_results = lab.results(*words)
    assert [deploy_results[name]["result"] for name in lab.names[:6]] == ["upgraded"] * 5 + ["up to date"]
    assert f"--data {DATA} gpu05" in lab.enrolled(), "and not the data folder of before"
    assert "# old" not in (lab.home(0) / f"{SCRIPTS}/lib/common.sh").read_text()


def test_two_hosts_of_one_name_are_reported_and_none_is_pushed_off_the_board(deployed: Runs) -> None:
    lab = deployed.lab
    machine = lab.machine
    for box in ("box11", "box12"):
        machine.run(box, f"crontab -r; {SCRIPTS}/gpu-check.sh kill; rm -r .local .config")
    machine.run("gpuboard", "sed -i '/gpuboard gpu1[12]$/d' .ssh/authorized_keys")
    output = lab.deploy("--check", "box11@web", "box12@web", code=1)
    assert re.search(r"it is called gpu1, like box1[12]@web: give one of them another name with NAME=HOST", output)
    for box in QUICK:
        machine.run(box, f"mkdir -p {Path(CONF).parent}; echo GPUBOARD_PS_EVERY=2 >>{CONF}")
    enrolled = lab.enrolled()
    output = lab.deploy("gpu01=box11@web", code=1)
    assert "another host sends snapshots as gpu01: give this host another name with NAME=HOST" in output
    assert lab.enrolled() == enrolled
    assert machine.crontab("box11") is None


def test_behind_a_jump_host_the_web_host_is_named_and_ctrl_c_leaves_what_a_second_run_finishes(
    deployed: Runs,
) -> None:
    lab = deployed.lab
    machine = lab.machine
    config = machine.path("/home/gpuboard/.ssh/config")
    before = config.read_text()
    config.write_text(f"Host far\n  HostName web\n  Port {machine.port}\n  User box11\n  ProxyJump lab@web\n{before}")
    jump = machine.path("/home/lab/.ssh/authorized_keys")
    jump.write_text(machine.path("/home/gpuboard/.ssh/id_ed25519.pub").read_text())
    assert "it cannot resolve gpu1: set the address of the web host with --dest" in lab.deploy("far11=far", code=1)
    dest = f"ssh://gpuboard@web:{machine.port}"
    machine.run("box11", "rm -rf .config/gpuboard/keys")  # a deploy that was refused has left one
    with lab.start("--dest", dest, "far11=far", "far12=box12@web") as started:
        wait_for((lab.home(10) / ".config/gpuboard/keys").exists, 60, every=0.01)
        lab.interrupt(started)
        output, _ = started.communicate(timeout=60)
    assert started.returncode == 1, output
    assert re.search(r"^far11 +\w+ +stopped .*run this again to finish$", output, re.MULTILINE)
    deploy_results = lab.results("--dest", dest, "far11=far", "far12=box12@web")
    assert {row["result"] for row in deploy_results.values()} <= {"installed", "upgraded", "up to date"}
    assert f"GPUBOARD_DEST={dest}\n" in (lab.home(10) / CONF).read_text()
    wait_for(lambda: not list(lab.home(10).glob(".gpuboard-deploy.*")))
    config.write_text(before)


def test_two_hosts_that_share_a_home_have_a_key_and_a_crontab_each(
    deployed: Runs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab = deployed.lab
    first_machine = lab.machine
    with Machine(tmp_path_factory.mktemp("two"), name="gpu2", home=first_machine.path("/home"), boxes=COUNT + 1) as two:
        ssh = first_machine.path("/home/gpuboard/.ssh")
        config = (ssh / "config").read_text()
        (ssh / "config").write_text(f"Host two\n  HostName 127.0.0.1\n  Port {two.port}\n  User box14\n{config}")
        with (ssh / "known_hosts").open("a") as known_hosts_file:
            known_hosts_file.write(f"[127.0.0.1]:{two.port} {two.path('/etc/ssh/machine.pub').read_text()}")
        words = ("--dest", f"ssh://gpuboard@web:{first_machine.port}", "box14@web", "two")
        assert {row["result"] for row in lab.results(*words).values()} == {"installed"}
        keys = first_machine.path("/home/box14") / ".config/gpuboard/keys"
        assert sorted(path.name for path in keys.iterdir()) == ["gpu1", "gpu1.pub", "gpu2", "gpu2.pub"]
        assert lab.results("--remove", "two")["gpu2"]["result"] == "removed"
        assert sorted(path.name for path in keys.iterdir()) == ["gpu1", "gpu1.pub"]
        assert (first_machine.crontab("box14") is None, two.crontab("box14")) == (False, None)
        assert "gpuboard gpu2\n" not in lab.enrolled()
        (ssh / "config").write_text(config)


def test_from_a_machine_that_is_not_the_web_host(deployed: Runs) -> None:
    lab = deployed.lab
    machine = lab.machine
    machine.run("gpuboard", "mkdir -p .config/gpuboard .local/share/gpuboard")
    machine.run("gpuboard", f"echo GPUBOARD_DATA={DATA} >.config/gpuboard/gpuboard.conf")
    machine.run("gpuboard", "ln -s /srv/project/scripts .local/share/gpuboard/scripts")
    key = machine.path("/home/lab/.ssh/id_ed25519.pub").read_text()
    with (lab.home(12) / ".ssh/authorized_keys").open("a") as keys:
        keys.write(key)
    dest = f"ssh://gpuboard@web:{machine.port}"
    words = lab.command("--web", "gpuboard@web", "--dest", dest, "--json", "lap13=box13@web")
    done = machine.run("lab", words, env=lab.environment)
    assert '"result": "upgraded"' in done.stdout
    assert "gpuboard lap13" in lab.enrolled()
    assert "gpuboard gpu13" not in lab.enrolled()


def test_remove_takes_all_of_it_back_and_leaves_the_data(deployed: Runs) -> None:
    lab = deployed.lab
    machine = lab.machine
    for box in QUICK:
        machine.run(box, f"sed -i /PS_EVERY/d {CONF}")
    output = lab.deploy("--remove", *(f"{box}@web" for box in lab.boxes))
    assert "their data stays in data/" in output
    assert machine.path(f"{DATA}/gpu01/gpus.csv").exists()
    assert "gpuboard" not in lab.enrolled()
    for number, box in enumerate(lab.boxes):
        assert machine.crontab(box) is None
        assert [path.name for path in lab.home(number).rglob("*") if path.is_file()] == ["authorized_keys"]
    assert [line for line in machine.processes() if "gpuboard" in line] == []
    assert "not there" in lab.deploy("--remove", "gpu01=box01@web")
