"""./install.sh web, run, and both sides together, with a real cron, a real sshd and a real pip."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import pace
from tests.support.board_fixture import Lab
from tests.support.machine import PATH, Machine, Person, need_machine, wait_for
from tests.support.ports import free_port

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # the first time, pip fetches what is kept
VENV = "/home/gpuboard/.local/share/gpuboard/venv"
BUILD = f"* * * * * {VENV}/bin/python -I -m site_builder build --every 10 --for 60\n"
SERVE = f"* * * * * flock -n /home/gpuboard/gpuboard/state/serve.lock {VENV}/bin/python -I -m site_builder serve\n"
SLACK = f"* * * * * {VENV}/bin/python -I -m site_builder slack\n"
ABOUT = "# Written by gpuboard's install.sh, and anew each time it is called.\n"
KEY = ".config/gpuboard/keys/gpu1"
STAMP = "2018/10/04 09:12:01.123"


def block(lines: str) -> bytes:
    return f"# >>> gpuboard web >>>\n{ABOUT}{lines}# <<< gpuboard web <<<\n".encode()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_machine()
    prepared_machine = Machine(tmp_path_factory.mktemp("machine"))
    prepared_machine.add_packages()
    prepared_machine.path("/usr/local/sbin/nvidia-smi").rename(prepared_machine.path("/usr/local/sbin/aside"))
    with prepared_machine:
        yield prepared_machine


@pytest.fixture(scope="module")
def web(machine: Machine) -> Person:
    """A user for whom it was installed by pip alone, at the second try: the first was killed while pip was at work."""
    person = Person(machine, "gpuboard")
    venvs = person.path(".local/share/gpuboard/venvs")
    person.kill_install("web", when=lambda: list(venvs.glob("*/lib/*/site-packages/jinja2")), PATH=PATH)
    assert machine.crontab("gpuboard") is None
    assert not person.path(".local/share/gpuboard/venv").exists()
    done = person.install("web", PATH=PATH)
    assert "gpuboard deploy HOST..." in done.stdout
    assert "or on each: ./install.sh host --dest ssh://gpuboard@gpu1\n" in done.stdout
    return person


def status(person: Person, folder: str = "gpuboard") -> dict[str, Any]:
    """What the board says."""
    board_status: dict[str, Any] = json.loads(person.path(f"{folder}/www/status.json").read_text())
    return board_status


def host(person: Person, name: str, folder: str = "gpuboard") -> dict[str, Any]:
    """What it says of a host, or nothing."""
    return next((host_entry for host_entry in status(person, folder)["hosts"] if host_entry["name"] == name), {})


def answers(port: int) -> bool:
    """Whether a board is served there."""
    return answer_of(port) == 200


def answer_of(port: int) -> int | None:
    """What is answered there, if anything is."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        line.request("GET", "/status.json")
        return line.getresponse().status
    except OSError:
        return None
    finally:
        line.close()


@contextmanager
def stand_in(person: Person, name: str, rule: str) -> Iterator[str]:
    """A PATH in which this program comes first."""
    program = person.machine.path(f"/usr/local/sbin/{name}")
    program.write_text(f"#!/bin/sh\n{rule}\n")
    program.chmod(0o755)
    yield f"/usr/local/sbin:{person.machine.path_variable}"
    program.unlink()


def test_an_install_that_was_killed_is_completed_by_the_next(web: Person) -> None:
    assert web.machine.crontab("gpuboard") == block(BUILD)
    assert web.path(".config/gpuboard/gpuboard.conf").read_text() == (
        "GPUBOARD_DATA=/home/gpuboard/gpuboard/data\n"
        "GPUBOARD_WWW=/home/gpuboard/gpuboard/www\n"
        "GPUBOARD_STATE=/home/gpuboard/gpuboard/state\n"
    )
    assert web.sh(".local/bin/gpuboard --version").startswith("gpuboard, version")
    assert status(web)["schema"] == 1
    assert oct(web.path("gpuboard/state").stat().st_mode)[-3:] == "700"


def test_again_is_the_same_result_and_nothing_is_installed_anew(web: Person) -> None:
    before = web.tree()
    words = web.install("web").stdout
    assert web.tree() == before
    assert "Making" not in words
    assert "Installing" not in words


def test_the_clone_is_needed_no_longer(web: Person) -> None:
    aside = web.path("the clone").rename(web.path("data aside"))
    web.sh(".local/bin/gpuboard config")
    aside.rename(web.path("the clone"))


def test_man_finds_the_manual_and_bash_and_fish_what_tab_offers(web: Person) -> None:
    path = "/home/gpuboard/.local/bin:/usr/local/bin:/usr/bin:/bin"
    assert web.sh(f"PATH={path} man -w gpuboard").endswith("/share/man/man1/gpuboard.1\n")
    assert "GPUBOARD(1)" in web.sh(f"PATH={path} man gpuboard")
    for shell, place in (
        ("bash", ".local/share/bash-completion/completions/gpuboard"),
        ("fish", ".config/fish/completions/gpuboard.fish"),
    ):
        assert web.sh(f"cat {place}") == web.sh(f".local/bin/gpuboard completion {shell}")


def test_a_completion_of_somebody_else_keeps_its_place(web: Person) -> None:
    place = ".config/fish/completions/gpuboard.fish"
    web.sh(f"rm {place} && echo mine > {place}")
    assert f"/home/gpuboard/{place} is not ours and is kept.\n" in web.install("web").stdout
    assert web.sh(f"cat {place} && rm {place}") == "mine\n"
    web.install("web")


def test_listen_serves_the_board_until_the_setting_goes(web: Person) -> None:
    port = free_port()
    done = web.install("web", "--listen", f"127.0.0.1:{port}")
    assert f"The board is at http://127.0.0.1:{port}/; to stop serving it: remove GPUBOARD_LISTEN" in done.stdout
    assert web.machine.crontab("gpuboard") == block(BUILD + SERVE)
    wait_for(lambda: answers(port))
    web.install("web")
    assert web.machine.crontab("gpuboard") == block(BUILD + SERVE)
    second_port = free_port()
    web.install("web", "--listen", str(second_port))
    wait_for(lambda: answers(second_port))
    assert not answers(port)
    web.sh("sed -i /LISTEN/d .config/gpuboard/gpuboard.conf")
    web.install("web")
    assert web.machine.crontab("gpuboard") == block(BUILD)
    assert not answers(second_port)


def test_the_bot_is_kept_alive_where_it_has_tokens_and_ended_where_it_has_none(web: Person) -> None:
    conf, lock = ".config/gpuboard/gpuboard.conf", web.path("gpuboard/state/slack.lock")
    tokens = "GPUBOARD_SLACK_BOT_TOKEN=xoxb-1\\nGPUBOARD_SLACK_APP_TOKEN=xapp-1\\n"
    web.sh(f"printf '{tokens}GPUBOARD_SLACK_URL=http://127.0.0.1:9/api/\\n' >>{conf}")
    done = web.install("web")
    assert "The Slack bot:     started" in done.stdout
    assert web.machine.crontab("gpuboard") == block(BUILD + SLACK)
    wait_for(lambda: lock.exists() and lock.read_text().strip(), 60)  # it asks until somebody is there
    first = lock.read_text()

    def another_holds_it() -> bool:
        held = web.sh("flock -n gpuboard/state/slack.lock echo free", check=False) == ""
        return held and lock.read_text().strip() not in ("", first.strip())

    web.install("web")
    wait_for(another_holds_it)
    web.sh(f"sed -i /SLACK/d {conf}")
    web.install("web")
    assert web.machine.crontab("gpuboard") == block(BUILD)
    assert web.sh("flock -n gpuboard/state/slack.lock echo free") == "free\n"


def test_a_port_that_is_taken_is_reported_and_exit_1(web: Person) -> None:
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        port = theirs.getsockname()[1]
        with stand_in(web, "sleep", "exec /usr/bin/sleep 0.02") as path:  # it gives the server 10 s
            done = web.install("web", "--listen", str(port), check=False, PATH=path)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is taken by another program" in done.stdout
    assert "The board is at" not in done.stdout
    assert f"The board is at http://127.0.0.1:{port}/" in web.install("web").stdout
    assert answers(port)
    web.sh("sed -i /LISTEN/d .config/gpuboard/gpuboard.conf")
    web.install("web")


def test_a_port_and_passwords_that_were_set_by_hand_count_at_the_next_call(web: Person) -> None:
    first, second = free_port(), free_port()
    web.install("web", "--listen", str(first))
    web.sh(f"sed -i s/{first}/{second}/ .config/gpuboard/gpuboard.conf")
    web.install("web")
    assert (answers(first), answers(second)) == (False, True)
    web.sh("echo 'alice:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=' >users")
    web.sh("echo GPUBOARD_HTPASSWD=/home/gpuboard/users >>.config/gpuboard/gpuboard.conf")
    web.install("web")
    assert answer_of(second) == 401
    web.sh("rm users && sed -i /HTPASSWD/d .config/gpuboard/gpuboard.conf")
    web.sh("sed -i /LISTEN/d .config/gpuboard/gpuboard.conf")
    web.install("web")


@pytest.mark.parametrize(
    ("words", "expected_refusal"),
    [
        (["--listen", "web:eighty"], "must be address:port or a port"),
        (["--data", "nowhere"], "that folder does not exist"),
        (["--data", "gpuboard/www"], "are the same folder: set two different ones"),
        (["--folder", "a\nb"], "control characters"),
        (["--folder"], "--folder needs a value"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_changed(web: Person, words: list[str], expected_refusal: str) -> None:
    before = web.tree()
    done = web.install("web", *words, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)
    assert expected_refusal in done.stdout
    assert web.tree() == before


def test_a_program_of_somebody_else_keeps_its_place(web: Person) -> None:
    web.sh("rm .local/bin/gpuboard && echo theirs >.local/bin/gpuboard")
    done = web.install("web")
    assert ".local/bin/gpuboard is not ours and is kept" in done.stdout
    assert web.path(".local/bin/gpuboard").read_text() == "theirs\n"
    web.sh("rm .local/bin/gpuboard")
    web.install("web")
    assert web.sh("readlink .local/bin/gpuboard") == f"{VENV}/bin/gpuboard\n"


def test_a_folder_that_blocks_access_to_the_site_is_reported(web: Person) -> None:
    web.path("").chmod(0o750)
    done = web.install("web")
    web.path("").chmod(0o755)
    assert "chmod o+x /home/gpuboard\n" in done.stdout


def test_state_never_goes_to_a_network_file_system(web: Person) -> None:
    conf = web.path(".config/gpuboard/gpuboard.conf")
    before = conf.read_bytes()
    with stand_in(web, "stat", 'case $1 in -f) echo nfs ;; *) exec /usr/bin/stat "$@" ;; esac') as path:
        done = web.install("web", "--folder", "gpuboard/far", PATH=path)
    assert "/var/tmp/gpuboard-state-7001 (a local disk: " in done.stdout  # noqa: S108
    assert "GPUBOARD_STATE=/var/tmp/gpuboard-state-7001\n" in conf.read_text()
    assert "GPUBOARD_DATA=/home/gpuboard/gpuboard/far/data\n" in conf.read_text()
    assert web.machine.path("/var/tmp/gpuboard-state-7001").stat().st_mode & 0o777 == 0o700  # noqa: S108
    conf.write_bytes(before)
    web.install("web")
    web.sh("rm -r gpuboard/far /var/tmp/gpuboard-state-7001")


def test_a_lab_that_runs_the_original_scripts_sees_its_hosts(web: Person) -> None:
    old = Lab(web.path("gpuboard/old"))
    old.original("atlas", gpus=f"0, GPU-a, Tesla T4, 3, 15360, 41, 5, 40, {STAMP}\n")
    web.machine.give("gpuboard", f"{web.home}/gpuboard/old")
    web.install("web", "--data", "gpuboard/old/data")
    atlas_status = host(web, "atlas")
    assert atlas_status["state"] == "fresh"
    assert [(gpu["name"], gpu["utilization.gpu"]) for gpu in atlas_status["gpus"]] == [("Tesla T4", 41)]
    assert "  data      /home/gpuboard/gpuboard/old/data\n" in web.install("web").stdout  # it stays
    web.install("web", "--data", "gpuboard/data")


def end_builder(person: Person, folder: str = "gpuboard") -> None:
    """End the one that install.sh started, once it has begun."""
    wait_for(lambda: person.machine.run(person.user, f"kill $(cat '{folder}/state/lock')", check=False).returncode == 0)


def right(person: Person, gpus: int, after: float) -> bool:
    """The board was built after that moment, and is right about the host."""
    host_status = host(person, "gpu1")
    numbers = [(gpu["memory.used"], gpu["memory.total"], gpu["utilization.gpu"]) for gpu in host_status.get("gpus", [])]
    seen = host_status.get("state") == "fresh" and host_status["seen"] > after
    return seen and status(person)["built"] > after and numbers == [(1024, 81920, 37)] * gpus


@pytest.fixture(scope="module")
def lab(machine: Machine) -> Person:
    """A user of a GPU host with three GPUs."""
    machine.path("/usr/local/sbin/aside").rename(machine.path("/usr/local/sbin/nvidia-smi"))
    (machine.smi / "gpus").write_text("3\n")
    return Person(machine, "lab")


def test_host_and_web_make_a_board_that_is_right_within_a_minute(web: Person, lab: Person) -> None:
    began = time.time()
    with pace.within(60, pace.wall):
        lab.install("host", "--dest", "ssh://gpuboard@web")
        wait_for(lambda: right(web, 3, began))


def test_a_host_has_a_key_of_its_own_which_its_user_may_enrol_or_the_web_host(web: Person, lab: Person) -> None:
    enrolled = web.sh(".local/share/gpuboard/scripts/gpu-enrol.sh list")
    assert enrolled == f"gpu1 {' '.join(lab.path(KEY).with_suffix('.pub').read_text().split()[:2])}\n"
    assert lab.path(KEY).stat().st_mode & 0o777 == 0o600
    lab.sh(f"rm {KEY} && mv .ssh/id_ed25519 .ssh/aside")
    done = lab.install("host", check=False)
    assert done.returncode == 1
    assert "To fix it: enrol the key of this host with the line below\n" in done.stdout
    web.sh(next(line for line in done.stdout.splitlines() if "gpu-enrol.sh" in line).partition("as gpuboard:")[2])
    lab.install("host")
    assert web.sh(".local/share/gpuboard/scripts/gpu-enrol.sh list") not in ("", enrolled)
    lab.sh("mv .ssh/aside .ssh/id_ed25519")


@pytest.fixture(scope="module")
def odd(machine: Machine) -> Person:
    """A user with both sides, in a home whose name is hard on sh, cron and find, and a folder behind a link."""
    person = Person(machine, "odd")
    person.sh("mkdir -p disk/one && ln -s disk/one 'my board'")
    person.install("web", "--folder", "my board", "--listen", str(free_port()))
    person.install("host", "--name", "odd1", "--dest", "my board/data")
    return person


@pytest.fixture(scope="module")
def left_to_cron(web: Person, lab: Person, odd: Person) -> float:
    """The moment since which nothing runs but what cron starts, and there is a fourth GPU."""
    for person in (lab, odd):
        person.sh(".local/share/gpuboard/scripts/gpu-check.sh kill")
    end_builder(web)
    end_builder(odd, "my board")
    (web.machine.smi / "gpus").write_text("4\n")
    began = time.time()
    web.machine.begin_minute()
    return began


def test_cron_keeps_the_board_right(web: Person, left_to_cron: float) -> None:
    wait_for(lambda: right(web, 4, left_to_cron))


def test_cron_starts_both_sides_in_a_home_whose_name_is_hard_on_it(odd: Person, left_to_cron: float) -> None:
    wait_for(lambda: host(odd, "odd1", "my board")["seen"] > left_to_cron)
    assert status(odd, "my board")["built"] > left_to_cron
    assert odd.sh(".local/bin/gpuboard --version").startswith("gpuboard, version")


def test_a_later_version_takes_the_place_of_the_first(web: Person, lab: Person) -> None:
    for person in (lab, web):
        person.write("the clone/site_builder/__init__.py", '"""gpuboard."""\n\n__version__ = "9.9.9"\n')
    began = time.time()
    lab.install("host")
    web.install("web")
    assert "9.9.9" in web.sh(".local/bin/gpuboard --version")
    wait_for(lambda: right(web, 4, began))


def test_another_port_counts_at_once_where_the_folder_is_behind_a_link(odd: Person) -> None:
    port = free_port()
    odd.install("web", "--listen", str(port))
    assert answers(port)


def test_remove_leaves_nothing_running_in_a_home_whose_name_is_hard(odd: Person) -> None:
    mine = odd.write(".local/share/man/man1/mine.1", "")
    words = odd.install("remove").stdout
    assert """rm -r '/home/it'"'"'s 100% [ö]dd/my board/data'""" in words
    assert ".local" not in words
    assert list(mine.parent.iterdir()) == [mine]
    assert odd.machine.crontab("odd") is None
    assert odd.machine.run("root", "ps -o args= -u odd", check=False).stdout == ""


def test_remove_ends_what_cron_started_and_keeps_what_people_wrote(web: Person, lab: Person) -> None:
    lab.install("remove")
    assert not lab.path(".config").exists()
    port = free_port()
    web.install("web", "--listen", str(port))
    wait_for(lambda: answers(port))
    web.write("gpuboard/data/comments.json", "{}")
    assert "rm -r /home/gpuboard/gpuboard\n" in web.install("remove").stdout
    assert web.machine.processes() == []
    assert web.machine.crontab("gpuboard") is None
    assert sorted(path.name for path in web.path("").iterdir() if path.name != ".cache") == [
        ".ssh",
        "gpuboard",
        "the clone",
    ]
    assert web.path("gpuboard/data/comments.json").read_text() == "{}"
    assert "gpu-receive.sh" not in web.path(".ssh/authorized_keys").read_text()
    assert web.install("remove").stdout == "Nothing to remove: gpuboard is not installed here for gpuboard.\n"
