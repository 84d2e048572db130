"""A board on which three accounts write: the one that receives and builds, the web server's, and a member of the group.

All of them book. None of the other two can make the first write where they like: not into its home, not into a folder
of theirs. The board was set up as older versions wanted it, and `./install.sh web` has corrected it.
"""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab, gpu
from tests.support.machine import Machine, Person, need_machine, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # the first time, pip fetches what is kept
HOME = "/home/gpuboard"
DATA = f"{HOME}/gpuboard/data"
GPUBOARD = f"{HOME}/.local/bin/gpuboard"
SCRIPTS = f"{HOME}/.local/share/gpuboard/scripts"
MEMBER, SERVER = "lab", "box01"
GROUP = 7500
FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
VICTIM = f"{HOME}/.bashrc"
MINE = "# the receiver's own\n"
CONF = f"GPUBOARD_DATA={DATA}\nGPUBOARD_WWW={HOME}/gpuboard/www\nGPUBOARD_STATE=/srv/book\nGPUBOARD_BOOK_URL=book\n"
# All that somebody can try who may write to data/, or could once; what they may not do fails, and they go on.
ATTACK = f"""cd {DATA} || exit
evil=/home/lab/evil home={HOME}
mkdir -p $evil/gpu1
for file in gpus.csv processes.csv ps.txt host.txt last said lock .new .gpus.csv.new .ps.txt.new; do
    ln -sf {VICTIM} $evil/$file
    ln -sf {VICTIM} $evil/gpu1/$file
done
try() {{
    n=$((n + 1))
    mv .receive aside.$n
    case $((n % 2)) in 0) ln -s $evil .receive ;; *) cp -RP $evil .receive ;; esac
    mv .receive/gpu1 .receive/aside.$n
    ln -s $evil .receive/gpu1
    rm -f receive.log
    ln -s {VICTIM} receive.log
    mv gpu1/.new gpu1/aside.$n
    case $((n % 2)) in 0) ln -s $evil gpu1/.new ;; *) cp -RP $evil gpu1/.new ;; esac
    for file in gpus.csv ps.txt .gpus.csv.put; do ln -sf {VICTIM} gpu1/.new/$file; ln -sf {VICTIM} gpu1/$file; done
    mv gpu1 aside.host.$n
    case $((n % 3)) in 0) ln -s $home/victim gpu1 ;; 1) ln -s $evil gpu1 ;; *) cp -RP $evil gpu1 ;; esac
    mv bookings aside.bookings.$n
    rm -rf gpu1
}}
n=0
while [ ! -e /tmp/enough ]; do try 2>/dev/null; : >/tmp/tried.$(id -un).$n; done
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_machine()
    prepared_machine = Machine(tmp_path_factory.mktemp("machine"), boxes=1)
    with prepared_machine.path("/etc/group").open("a") as group:
        group.write(f"gpulab:x:{GROUP}:gpuboard,{MEMBER},{SERVER}\n")
    prepared_machine.add_packages()
    with prepared_machine:
        yield prepared_machine


@pytest.fixture(scope="module")
def said(machine: Machine) -> str:
    """What `./install.sh web` says to a board of an older version, in whose data/ a group may write."""
    board = Person(machine, "gpuboard")
    old = Lab(board.path("gpuboard"))
    old.host("atlas", "".join(gpu(index) for index in range(8)))
    old.book({"atlas": {"7": {"name": "lab", "date": "2199-01-01", "comment": "before", "id": "before"}}})
    board.write("gpuboard/data/receive.log", "refused\n")
    board.write("gpuboard/data/.receive/gpu1/lock", "")
    board.write(".bashrc", MINE)
    board.write("victim/file", MINE)
    board.write(".config/gpuboard/gpuboard.conf", f"GPUBOARD_DATA={DATA}\n")
    machine.give("gpuboard", f"{HOME}/gpuboard")
    share = f"chgrp -R gpulab {DATA} && chmod -R g+rX {DATA} && chmod 2770 {DATA} && chmod 660 {DATA}/comments.json"
    machine.run("root", share)
    machine.run("root", f"mkdir -p /srv/book && chown {SERVER} /srv/book && chmod 700 /srv/book")
    machine.path("/srv/book.conf").write_text(CONF)
    assert book(machine, MEMBER, "atlas:6") == 127  # there is no gpuboard yet
    return board.install("web").stdout


def book(machine: Machine, user: str, where: str, *words: str) -> int:
    """Book by command; return its exit code."""
    command = [GPUBOARD, "book", where, "--for", "2h", "--yes", "--data", DATA, *words]
    return machine.run(user, command, check=False).returncode


def ask_cgi(machine: Machine, person: str, request: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Call book.cgi as a web server does for somebody who has logged in; return status and answer."""
    body = json.dumps(request)
    venv = machine.path(f"{HOME}/.local/share/gpuboard/venv")
    script = next(venv.resolve().glob("lib/*/site-packages/site_builder/scripts/book.cgi"), None)
    if script is None:  # the link leads to a place that only the machine has
        script = next(venv.parent.glob("venvs/*/lib/*/site-packages/site_builder/scripts/book.cgi"))
    inside = f"{HOME}/{script.relative_to(machine.path(HOME))}"
    environment = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_X_GPUBOARD": "1",
        "REMOTE_ADDR": "10.0.0.1",
        "AUTH_TYPE": "Basic",
        "REMOTE_USER": person,
        "SERVER_NAME": "web",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "GPUBOARD_CONF": "/srv/book.conf",
    }
    words = machine.command(SERVER, [inside], "/srv", environment)
    done = subprocess.run(words, input=body, capture_output=True, text=True, timeout=60, check=True)
    head, _, answer = done.stdout.replace("\r\n", "\n").partition("\n\n")
    return head.splitlines()[0].removeprefix("Status: "), json.loads(answer)


def mode_of(machine: Machine, place: str) -> int:
    return stat.S_IMODE(machine.path(place).stat().st_mode)


def bookings(machine: Machine) -> dict[str, str]:
    """Who has booked which GPU of atlas."""
    content = json.loads(machine.path(f"{DATA}/bookings/comments.json").read_text())
    return {index: entry["name"] for index, entry in content["atlas"].items()}


def test_install_web_corrects_a_board_in_whose_data_a_group_may_write(machine: Machine, said: str) -> None:
    assert f"Bookings are now in {DATA}/bookings, which the group gpulab can write to.\n" in said
    assert f"{DATA} itself: only this user can write to it.\n" in said
    assert (mode_of(machine, DATA), mode_of(machine, f"{DATA}/bookings")) == (0o2750, 0o2770)
    assert bookings(machine) == {"7": "lab"}
    assert not machine.path(f"{DATA}/.receive").exists()
    assert not machine.path(f"{DATA}/receive.log").exists()
    assert machine.path(f"{HOME}/gpuboard/state/receive/receive.log").read_text() == "refused\n"
    problems = json.loads(machine.path(f"{HOME}/gpuboard/www/status.json").read_text())["problems"]
    assert problems == []


def test_all_three_book_and_each_changes_what_is_theirs(machine: Machine, said: str) -> None:
    assert said
    for turn in (0, 3):
        assert book(machine, "gpuboard", f"atlas:{turn}") == 0
        assert book(machine, MEMBER, f"atlas:{turn + 1}") == 0
        assert ask_cgi(machine, "alice", {"do": "book", "gpus": [f"atlas:{turn + 2}"], "for": "2h"})[0] == "200 OK"
    owners = {"0": "gpuboard", "1": "lab", "2": "alice", "3": "gpuboard", "4": "lab", "5": "alice", "7": "lab"}
    assert bookings(machine) == owners
    release = [GPUBOARD, "release", "--yes", "--data", DATA]
    machine.run(MEMBER, [*release, "atlas:1"])
    machine.run("gpuboard", [*release, "atlas:0"])
    assert machine.run(MEMBER, [*release, "atlas:3"], check=False).returncode == 1
    status, answer = ask_cgi(machine, "alice", {"do": "release", "gpus": ["atlas:2"]})
    assert status == "200 OK", answer
    assert ask_cgi(machine, "alice", {"do": "release", "gpus": ["atlas:3"]})[0] == "409 Conflict"
    machine.run(MEMBER, [GPUBOARD, "change", "before", "--until", "2198-01-01 00:00", "--yes", "--data", DATA])


def test_who_is_not_in_the_group_books_nothing(machine: Machine, said: str) -> None:
    assert said
    before = bookings(machine)
    assert book(machine, "odd", "atlas:6") == 2
    assert bookings(machine) == before


def snapshot(file: str, number: int) -> str:
    """A file of gpu1, which would be a program where it is not one."""
    first = f"# gpuboard 1 task={file.partition('.')[0]} host=gpu1 time={1700000000 + number} every=10 took_ms=1 rc=0"
    return f"{first}\ntouch /tmp/taken-over\n# end\n"


def update(number: int) -> str:
    content = "".join(snapshot(file, number) for file in FILES)
    return f"gpuboard 1 push {len(content)}\n{content}"


@contextmanager
def under_attack(machine: Machine) -> Iterator[None]:
    """Both others try all they can, over and over."""
    machine.run("root", "rm -rf /tmp/enough /tmp/tried.*")
    attackers = [
        subprocess.Popen(machine.command(user, ATTACK, "/", {}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for user in (MEMBER, SERVER)
    ]
    try:
        for user in (MEMBER, SERVER):
            wait_for(lambda: list(machine.path("/tmp").glob(f"tried.{user}.*")))  # noqa: B023, S108
        yield
    finally:
        machine.path("/tmp/enough").touch()  # noqa: S108
        for attacker in attackers:
            attacker.wait(60)


def set_layout(machine: Machine, mode: int) -> None:
    """Begin anew, with this mode of data/ and no folder of gpu1."""
    put_back = "if [ ! -d bookings ]; then mv aside.bookings.* bookings; fi"
    tidy = "rm -rf gpu1 aside.* .receive receive.log /home/lab/evil"
    machine.run("root", f"cd {DATA} && chmod 2750 . && {put_back} && {tidy} && chmod {mode:o} .")


def assert_untouched(machine: Machine) -> None:
    """Nothing of the receiver's own was written."""
    assert machine.path(VICTIM).read_text() == MINE
    assert [path.name for path in machine.path(f"{HOME}/victim").iterdir()] == ["file"]
    assert machine.path(f"{HOME}/victim/file").read_text() == MINE
    assert not machine.path("/tmp/taken-over").exists()  # noqa: S108


@pytest.mark.parametrize("mode", [0o2750, 0o3770, 0o2770], ids=["closed", "sticky", "open"])
def test_nobody_redirects_what_the_receiver_writes(machine: Machine, said: str, mode: int) -> None:
    assert said
    set_layout(machine, mode)
    answers = ""
    with under_attack(machine):
        for connection in range(2):
            words = machine.command("gpuboard", [f"{SCRIPTS}/gpu-receive.sh", "gpu1"], HOME, {})
            sent = "".join(update(10 * connection + number) for number in range(3))
            done = subprocess.run(words, input=sent, capture_output=True, text=True, timeout=240, check=False)
            answers += done.stdout
            assert_untouched(machine)
    if mode == 0o2750:
        assert answers == "ok\n" * 6
        assert machine.path(f"{DATA}/gpu1/ps.txt").read_text() == snapshot("ps.txt", 12)
    elif mode == 0o3770:  # there others can take the name of a host that has no folder yet, and are refused
        assert set(answers.split("\n")) - {"", "ok"} == {
            answer_line for answer_line in answers.split("\n") if answer_line.startswith("refused")
        }
    else:
        assert answers.count("refused other accounts can write to data on the web host") == 2
        assert "./install.sh web" in answers
    set_layout(machine, 0o2750)


@pytest.mark.parametrize(
    "exchange",
    [
        "mv .receive aside.receive; cp -RP /home/lab/evil .receive",
        f"mv gpu1 aside.host; ln -s {HOME}/victim gpu1",
        "mv gpu1 aside.host; cp -RP /home/lab/evil gpu1",
    ],
    ids=["folder of the locks", "link for the host", "folder for the host"],
)
def test_what_is_exchanged_while_a_host_is_connected_redirects_nothing(
    machine: Machine, said: str, exchange: str
) -> None:
    assert said
    set_layout(machine, 0o2750)
    links = [
        f"ln -sf {VICTIM} /home/lab/evil/{place}{file}" for place in ("", "gpu1/") for file in (*FILES, "said", "last")
    ]
    machine.run(MEMBER, f"mkdir -p /home/lab/evil/gpu1 && {' && '.join(links)}")
    words = machine.command("gpuboard", [f"{SCRIPTS}/gpu-receive.sh", "gpu1"], HOME, {})
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdin
        assert receiver.stdout
        receiver.stdin.write(update(1))
        receiver.stdin.flush()
        assert receiver.stdout.readline() == "ok\n"
        machine.run("root", f"chmod 2770 {DATA}")  # by mistake
        machine.run(MEMBER, f"cd {DATA} && {{ {exchange}; }}", check=False)
        receiver.stdin.write(update(2))
        receiver.stdin.flush()
        answer = receiver.stdout.readline()
        receiver.stdin.close()
    assert_untouched(machine)
    if "gpu1 aside" in exchange:
        assert answer.startswith("refused other accounts can write to data on the web host")
        assert not any(path.is_file() and not path.is_symlink() for path in machine.path("/home/lab/evil").rglob("*"))
    set_layout(machine, 0o2750)


@pytest.mark.parametrize("mode", [0o2750, 0o3770, 0o2770], ids=["closed", "sticky", "open"])
def test_nobody_redirects_a_push_to_the_folder(machine: Machine, said: str, mode: int) -> None:
    assert said
    set_layout(machine, mode)
    spool = f"{HOME}/spool"
    machine.run("gpuboard", f"mkdir -p {spool}")
    for file in FILES:
        machine.path(f"{spool}/{file}").write_text(snapshot(file, 1))
        machine.path(f"{spool}/{file}").chmod(0o644)
    push = shlex.join([f"{SCRIPTS}/lib/push_folder.sh", DATA, "gpu1", spool, *FILES])
    with under_attack(machine):
        for _ in range(20):
            done = machine.run("gpuboard", push, check=False)
            assert_untouched(machine)
            assert done.returncode == (0 if mode == 0o2750 else 1) or mode == 0o3770, done.stdout
    set_layout(machine, 0o2750)


def test_the_page_and_the_doctor_name_the_command_for_a_data_folder_that_is_open(machine: Machine, said: str) -> None:
    assert said
    set_layout(machine, 0o2770)
    machine.run("gpuboard", [GPUBOARD, "build"])
    page = machine.path(f"{HOME}/gpuboard/www/index.html").read_text()
    warning = "the group gpulab can put links into it and so redirect what is written there: run `./install.sh web`"
    assert warning in page.replace("&#39;", "'")
    doctor_output = machine.run("gpuboard", [GPUBOARD, "doctor"], check=False).stdout
    assert "run `./install.sh web` on the web host" in doctor_output
    again = machine.run("gpuboard", [f"{HOME}/the clone/install.sh", "web"]).stdout
    assert f"{DATA} itself: only this user can write to it.\n" in again
    assert mode_of(machine, DATA) == 0o2750


def test_an_update_arrives_by_a_real_connection_of_a_host(machine: Machine, said: str) -> None:
    assert said
    key = machine.path("/home/lab/.ssh/id_ed25519.pub").read_text()
    keys = machine.path(f"{HOME}/.ssh/authorized_keys")
    # as gpu-enrol.sh of older versions wrote it
    keys.write_text(f'restrict,command="{SCRIPTS}/gpu-receive.sh gpu1" {" ".join(key.split()[:2])} gpuboard gpu1\n')
    words = machine.command("lab", ["ssh", "-T", "gpuboard@web", "gpu-receive.sh"], "/home/lab", {})
    done = subprocess.run(words, input=update(99), capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")
    assert Path(machine.path(f"{DATA}/gpu1/ps.txt")).read_text() == snapshot("ps.txt", 99)
