"""Every command in the docs, typed as it stands there, on a machine of its own with a network of its own."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.docs import PAGES, blocks, commands
from tests.support.machine import HOMES, PACKAGES_PYTHON, PATH, Machine, keygen, need_machine, own_network, wait_for
from tests.support.missing import missing

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # the first time, pip fetches what is kept

# They run this very test, or take many minutes; tests/integration/test_docs.py checks their words.
NOT_RUN = {"./install.sh test", "./install.sh test quick", "bench/run", "bench/compare OLD NEW"} | {
    *commands("docs/upgrading.md")
}
# They run until Ctrl-C: here, until the board answers.
UNTIL_CTRL_C = {"./install.sh run", "gpuboard serve", "gpuboard serve --htpasswd users"}
# They tell what is wrong, also where it is no more than a warning.
MAY_WARN = {"gpuboard doctor", "~/.local/share/gpuboard/scripts/gpu-doctor.sh"} | {
    "gpuboard token --revoke alice"  # where alice has none
}
# Who types a line, by the first that fits; what is said of each machine is done on both sides.
WHO = (
    (r"\./install\.sh remove", ("lab", "gpuboard")),
    (r"\./install\.sh (?:host|run)|\S*/gpu-check\.sh |\S*/gpu-doctor\.sh|ssh ", ("lab",)),
    (r"\./install\.sh web|gpuboard |\S*/gpu-enrol\.sh |htpasswd |.* >alice\.password", ("gpuboard",)),
)
WHO_ELSE = {"docs/webservers.md": ("root",)}
BOARD = "http://127.0.0.1:8080/"
PLAYGROUND = "/home/gpuboard/try"
UNTOUCHED = "/home/gpuboard/untouched"
OLD_GPUS = "0, GPU-old-0, Tesla P100-PCIE-16GB, 10, 16280, 3, 2, 40, 2026/11/16 12:00:00.000\n"
NGINX = """
user www-data;
pid /run/nginx.pid;
error_log /run/nginx.log;
events {}
http {
    access_log off;
    client_body_temp_path /run/body;
    proxy_temp_path /run/proxy;
    fastcgi_temp_path /run/fastcgi;
    uwsgi_temp_path /run/uwsgi;
    scgi_temp_path /run/scgi;
    include /etc/nginx/conf.d/gpuboard.conf;
}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One for all pages, with a clone for each user, and a folder that the old scripts fill."""
    need_machine()
    for program in ("nginx", "ip", "openssl", "htpasswd"):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
            missing(f"{program} is not here; ./install.sh test installs it")
    docs_machine = Machine(tmp_path_factory.mktemp("docs"))
    docs_machine.add_packages()  # while there is a network
    with own_network(), docs_machine:
        for user in ("lab", "gpuboard"):
            docs_machine.copy_project(user)
        let_in(docs_machine)
        old = docs_machine.path("/srv/gpu-monitor/data")
        old.mkdir(parents=True)
        (old / "old1_gpus.csv").write_text(OLD_GPUS)
        docs_machine.give("gpuboard", "/srv/gpu-monitor")
        yield docs_machine


def let_in(machine: Machine) -> None:
    """gpuboard can log in as lab, on what the docs call gpu01."""
    ssh = machine.path("/home/gpuboard/.ssh")
    keygen(ssh / "id_ed25519")
    shutil.copy(ssh / "id_ed25519.pub", machine.path("/home/lab/.ssh/authorized_keys"))
    shutil.copy(machine.path("/home/lab/.ssh/known_hosts"), ssh / "known_hosts")
    (ssh / "config").write_text(f"Host gpu01\n  HostName web\n  Port {machine.port}\n  User lab\n")
    for user in ("gpuboard", "lab"):
        machine.give(user, f"/home/{user}/.ssh")


def environment(user: str) -> dict[str, str]:
    """The programs of that user; those who play with gpuboard by hand have no settings."""
    path = f"{HOMES[user]}/.local/bin:{PACKAGES_PYTHON}:{PATH}"
    return {"PATH": f"{path}:/usr/sbin:/sbin" if user == "root" else path}


def settle(machine: Machine) -> None:
    """What a page other than the README starts from: a web side, a host, and a folder to try things in."""
    if not machine.crontab("gpuboard"):
        type_line(machine, "README.md", "./install.sh web")
        type_line(machine, "README.md", "./install.sh host --dest ssh://gpuboard@web")
        machine.path("/home/gpuboard/gpuboard/data/comments.json").write_text('{"nobody": [{"date": "2199-01-01"}]}')
        wait_for(machine.path("/home/gpuboard/gpuboard/state/build.log").exists)
    if not machine.path(UNTOUCHED).exists():
        play = f"gpuboard demo --once --folder {UNTOUCHED}"
        machine.run("gpuboard", play, env={**environment("gpuboard"), "GPUBOARD_CONF": "/dev/null"})
    machine.run("gpuboard", f"rm -rf {PLAYGROUND} && cp -a {UNTOUCHED} {PLAYGROUND}")  # what is copied has arrived now


def users_of(page: str, line: str) -> tuple[str, ...]:
    """Who types this line."""
    matching_users = next((users for pattern, users in WHO if re.match(pattern, line)), None)
    return matching_users or WHO_ELSE.get(page, ("gpuboard",))


def type_line(machine: Machine, page: str, line: str) -> None:
    """Run a line as it stands there; it must end well."""
    bare = line.partition("  #")[0].strip()
    if bare in NOT_RUN:
        return
    for user in users_of(page, line):
        type_as(machine, user, line, bare)
    if bare in CHECKS:
        CHECKS[bare](machine)


def type_as(machine: Machine, user: str, line: str, bare: str) -> None:
    """One user types it: in the clone, in the folder to try things in, or at home."""
    in_clone = line.startswith("./")
    plays = user == "gpuboard" and not in_clone and not line.startswith("gpuboard deploy")
    place = f"{HOMES[user]}/clone" if in_clone else PLAYGROUND if plays else HOMES[user]
    own = {"GPUBOARD_CONF": "/dev/null", "GPUBOARD_DATA": "data"} if plays else {}
    variables = {**environment(user), **own}
    if bare in UNTIL_CTRL_C:
        until_ctrl_c(machine.command(user, shlex.split(bare), place, variables))
    elif bare in MAY_WARN:
        done = machine.run(user, line, cwd=place, env=variables, check=False)
        assert done.returncode in (0, 1), done.stdout
    else:
        machine.run(user, line, cwd=place, env=variables)


def until_ctrl_c(command: list[str]) -> None:
    """Start it, wait until the board answers, and press Ctrl-C."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            wait_for(lambda: board_answers() or started.poll() is not None, 480)
        finally:
            if started.poll() is None:
                os.kill(child_of(started.pid), signal.SIGINT)
        output, _ = started.communicate(timeout=60)
    assert started.returncode == 0, output
    assert not board_answers()


def board_answers() -> bool:
    """Whether the board is there."""
    try:
        with urlopen(BOARD, timeout=5) as answer:
            return b"gpuboard</title>" in answer.read()
    except HTTPError as error:
        return error.code == 401  # a board that asks for a password is there
    except OSError:
        return False


def child_of(pid: int) -> int:
    """What runs inside the machine: nsenter only waits for it."""
    finished = subprocess.run(["/usr/bin/ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=True)
    return int(finished.stdout.split()[0])


# What must be true after a line, beside that it ended well


def fresh_host(machine: Machine, name: str = "gpu1") -> bool:
    """Whether the board shows it."""
    try:
        status = json.loads(machine.path("/home/gpuboard/gpuboard/www/status.json").read_text())
    except FileNotFoundError:
        return False
    return any(host["name"] == name and host["state"] == "fresh" for host in status["hosts"])


def host_is_on_the_board(machine: Machine) -> None:
    """And the crontab has the line that the docs show."""
    wait_for(lambda: fresh_host(machine), 60, 0.5)
    (line,) = (block for block in blocks("crontab") if block.page == "docs/hosts.md")
    assert line.text.encode() in (machine.crontab("lab") or b"")


def old_host_is_on_the_board(machine: Machine) -> None:
    """Also if all before it took long: the old scripts write the time of each look, and the same again is no news."""
    machine.path("/srv/gpu-monitor/data/old1_gpus.csv").write_text(OLD_GPUS.replace("12:00:00", "12:00:20"))
    wait_for(lambda: fresh_host(machine, "old1"), 60, 0.5)


def host_can_be_taken_back(machine: Machine) -> None:
    """And is as the other pages expect it."""
    type_line(machine, "docs/deploy.md", "gpuboard deploy --remove gpu01")
    assert machine.crontab("lab") is None
    type_line(machine, "README.md", "./install.sh host --dest ssh://gpuboard@web")


def board_is_served(_: Machine) -> None:
    wait_for(board_answers, 60, 0.5)


def nothing_is_left(machine: Machine) -> None:
    assert [machine.crontab(user) for user in ("lab", "gpuboard")] == [None, None]
    assert [line for line in machine.processes() if "gpuboard/" in line] == []
    assert machine.path("/home/gpuboard/gpuboard/www/index.html").exists()


def login_is_asked_for(machine: Machine) -> None:
    """By a real nginx with the docs' own settings, before the board that gpuboard serves."""
    etc = machine.path("/etc")
    (block,) = blocks("nginx-proxy")
    (etc / "nginx/conf.d/gpuboard.conf").write_text(block.text)
    (etc / "nginx/machine.conf").write_text(NGINX)
    key = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=web"
    machine.run("root", f"{key} -keyout /etc/ssl/gpuboard.key -out /etc/ssl/gpuboard.crt")
    machine.run("root", "nginx -e /run/nginx.log -c /etc/nginx/machine.conf", env=environment("root"))
    password = (etc / "nginx/gpuboard.password").read_text().strip()
    assert [answer_to(machine, login) for login in ("", "lab:wrong", f"lab:{password}")] == [401, 401, 200]


def answer_to(machine: Machine, login: str) -> int:
    """The status of the board over TLS; its own headers must come through."""
    trust = ssl.create_default_context(cafile=str(machine.path("/etc/ssl/gpuboard.crt")))
    trust.check_hostname = False
    line = http.client.HTTPSConnection("127.0.0.1", 443, timeout=10, context=trust)
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    line.request("GET", "/", headers=headers)
    answer = line.getresponse()
    answer.read()
    line.close()
    assert answer.status != 200 or "frame-ancestors" in (answer.getheader("Content-Security-Policy") or "")
    return answer.status


def host_takes_the_key(machine: Machine) -> None:
    """What the page says of the host and of ssh's configuration."""
    (block,) = (one for one in blocks("text") if one.page == "docs/pull.md" and "IdentityFile" in one.text)
    ours, theirs = machine.path("/home/gpuboard/.ssh"), machine.path("/home/lab/.ssh")
    (theirs / "authorized_keys").write_text(f"restrict {(ours / 'gpuboard_pull.pub').read_text()}")
    (ours / "config").write_text(f"{block.text}  Port {machine.port}\n")
    (ours / "known_hosts").write_text(f"[gpu1]:{machine.port} {machine.path('/etc/ssh/machine.pub').read_text()}")
    for user in ("lab", "gpuboard"):
        machine.give(user, f"/home/{user}/.ssh")


def host_was_pulled(machine: Machine) -> None:
    assert "host=gpu1 " in machine.path(f"{PLAYGROUND}/data/gpu1/host.txt").read_text()


CHECKS: dict[str, Callable[[Machine], None]] = {
    "./install.sh host --dest ssh://gpuboard@web": host_is_on_the_board,
    "./install.sh host --dest gpuboard@web:gpuboard/data": host_is_on_the_board,
    "./install.sh web --listen 0.0.0.0:8080": board_is_served,
    "./install.sh web --listen 127.0.0.1:8080": board_is_served,
    "./install.sh web --data /srv/gpu-monitor/data": old_host_is_on_the_board,
    "./install.sh remove": nothing_is_left,
    "cat /etc/nginx/gpuboard.password": login_is_asked_for,
    "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/gpuboard_pull": host_takes_the_key,
    "gpuboard pull gpu1": host_was_pulled,
    "gpuboard deploy --check gpu01": host_can_be_taken_back,
}


def test_no_line_has_a_rule_of_its_own_that_stands_nowhere() -> None:
    there = {line.partition("  #")[0].strip() for page in PAGES for line in commands(page)}
    assert (NOT_RUN | UNTIL_CTRL_C | MAY_WARN | CHECKS.keys()) - there == set()


def test_a_command_that_fails_is_noticed(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="exit 3"):
        type_line(machine, "docs/webservers.md", "exit 3")


# These are run from their first line to their last in one session, by test_quick_start.py.
OWN_TEST = {"docs/quick-start.md"}


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page) and page not in OWN_TEST])
def test_every_command_of_a_page_does_what_it_says(machine: Machine, page: str) -> None:
    if page != "README.md":
        settle(machine)
    for line in commands(page):
        began = time.monotonic()
        type_line(machine, page, line)
        print(f"{time.monotonic() - began:6.1f} s  {line}")  # noqa: T201 # shown where the test fails


def test_the_words_before_a_key_leave_it_the_push_and_nothing_else(machine: Machine) -> None:
    settle(machine)
    login = "ssh -o BatchMode=yes gpuboard@web id"
    assert "uid" in machine.run("lab", login).stdout
    (block,) = blocks("authorized_keys")
    keys = machine.path("/home/gpuboard/.ssh/authorized_keys")
    before = keys.read_text()
    scripts = "~/.local/share/gpuboard/scripts"
    machine.run("lab", f"{scripts}/gpu-check.sh kill")  # with the connection that it keeps open
    keys.write_text(f"{block.text.strip()} {before}")
    try:
        assert "uid" not in machine.run("lab", login, check=False).stdout
        machine.run("lab", f"GPUBOARD_DEST=gpuboard@web:gpuboard/data {scripts}/gpu-run.sh once")
    finally:
        keys.write_text(before)
