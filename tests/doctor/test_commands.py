"""`gpuboard doctor`: each check on a board that is well, and on one that is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from site_builder.doctor import model as doctor_model
from site_builder.doctor.commands import CHECKS
from site_builder.doctor.model import Check, CheckResult, DoctorContext
from site_builder.web.server import WebServer, open_listening_socket
from site_builder.web.static_files import StaticSite
from tests.support.board_fixture import Lab, gpu
from tests.support.command_line import run_in_environment
from tests.support.consul_server import READ_ALL, ConsulServer
from tests.support.docs import ROOT, help_of, text_of
from tests.support.doctor_fixtures import assert_finds, case_of, look, told

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGN5"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Folders as they should be, with two hosts that push."""
    lab = Lab(tmp_path / "lab")
    lab.state.chmod(0o700)
    lab.www.mkdir()
    lab.host("atlas", gpu(0))
    lab.host("hydra", gpu(0, uuid="GPU-h"))
    lab.book({"atlas": [{"name": "alice", "date": "2199-01-01", "comment": "x"}]})
    return lab


@pytest.fixture
def board(lab: Lab) -> Lab:
    """The same with a board, built a moment ago."""
    lab.build()
    return lab


# The command


def command(lab: Lab, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    folder = lab.data.parent
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **environment}
    return run_in_environment(folder, own, "doctor", *words)


@pytest.mark.slow
def test_the_command_reports_each_check_and_ends_by_the_worst(board: Lab) -> None:
    done = command(board, "--json")
    report: dict[str, Any] = json.loads(done.stdout)
    assert [finding["id"] for finding in report["checks"]] == [check.id for check in CHECKS]
    assert {"host", "version", "worst", "checks"} == set(report)
    assert done.returncode == {"pass": 0, "warn": 1, "fail": 2}[report["worst"]]
    assert done.stderr == ""
    well = {finding["id"] for finding in report["checks"] if finding["status"] == "pass"}
    assert {"python", "packages", "settings", "data", "comments", "lists", "hosts", "clocks", "problems"} <= well
    assert {"state", "www", "builder", "disk", "history"} <= well
    (board.state).chmod(0o777)
    done = command(board)
    assert done.returncode == 2
    assert "fail  state" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "linger" not in done.stdout
    assert "linger" in command(board, "--verbose").stdout


@pytest.mark.slow
def test_settings_that_are_wrong_are_a_finding_and_cost_only_what_needs_them(lab: Lab) -> None:
    done = command(lab, "--json", GPUBOARD_STALE_AFTER="never")
    findings = {finding["id"]: finding for finding in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    assert (findings["settings"]["status"], findings["python"]["status"]) == ("fail", "pass")
    assert "GPUBOARD_STALE_AFTER is 'never'" in findings["settings"]["what"]
    assert findings["data"]["what"] == "not checked: see the check settings"
    done = command(lab, "--json", GPUBOARD_STAIL_AFTER="30")
    assert "did you mean GPUBOARD_STALE_AFTER?" in json.loads(done.stdout)["checks"][2]["what"]
    (lab.data.parent / "gpuboard.conf").write_text("GPUBOARD_DATTA=data\n")
    done = command(lab, "--json")
    assert "there is no setting GPUBOARD_DATTA" in json.loads(done.stdout)["checks"][2]["what"]


def test_a_check_that_hangs_or_breaks_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: DoctorContext) -> CheckResult:
        raise ZeroDivisionError

    def closed(_: DoctorContext) -> CheckResult:
        raise PermissionError(13, "Permission denied", "/srv/data")

    monkeypatch.setattr(doctor_model, "CHECK_TIMEOUT_S", 0.05)
    case = DoctorContext(None, "x")
    end = threading.Event()
    checks = [
        Check("x", "a", lambda _: CheckResult("pass", str(end.wait(30)))),
        Check("x", "b", breaks),
        Check("x", "c", closed),
    ]
    findings = [doctor_model.run_check(check, case) for check in checks]
    end.set()
    assert [finding.status for finding in findings] == ["fail", "fail", "fail"]
    assert [finding.message.partition(" (")[0] for finding in findings] == [
        "no answer within 0.05 s",
        "the check itself failed",
        "/srv/data: Permission denied",
    ]


# data/


def test_hosts_that_are_not_fresh_are_named_with_the_reason(lab: Lab) -> None:
    assert_finds(case_of(lab), "hosts", "pass", "2 hosts: 2 fresh")
    lab.write("hydra", "gpus.csv", rc=9)
    assert_finds(case_of(lab), "hosts", "warn", "2 hosts: 1 fresh, 1 failed; hydra: .* -> run gpu-doctor.sh there")
    lab.write("atlas", "gpus.csv", rc=9)
    assert_finds(case_of(lab), "hosts", "fail", "2 failed; atlas and hydra")


def test_clocks_problems_and_files_of_people_are_looked_at(lab: Lab) -> None:
    lab.host("hydra", gpu(0, uuid="GPU-h"), time=int(time.time()) + 500)
    (lab.data / "hosts.txt").write_text("atlas\n../x\n")
    (lab.data / "atlas/ps.txt").write_text("torn")
    case = case_of(lab)
    assert_finds(case, "clocks", "warn", "wrong clock on hydra: hydra is 9 min ahead -> synchronise it with NTP")
    assert_finds(case, "lists", "warn", "hosts.txt")
    assert_finds(case, "problems", "warn", "data/atlas/ps.txt")
    lab.book('{"atlas": [{"name": "alice", "date": "no day"}]}')
    assert_finds(case_of(lab), "comments", "warn", "no day|date")
    lab.book("{")
    assert_finds(case_of(lab), "comments", "fail", "comments.json")


def case_with_cron(lab: Lab, cron: str = "cron", **environment: str) -> DoctorContext:
    """A machine on which this program is the only process."""
    proc = lab.data.parent / "proc"
    (proc / "1").mkdir(parents=True, exist_ok=True)
    (proc / "1/stat").touch()
    (proc / "1/comm").write_text(f"{cron}\n")
    shutil.copyfile("/proc/mounts", proc / "mounts")
    return replace(case_of(lab, **environment), proc_folder=proc)


def run_all_checks(case: DoctorContext) -> dict[str, CheckResult]:
    return {check.id: doctor_model.run_check(check, case) for check in CHECKS}


def list_failures(results: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in results.items() if result.status == "fail"]


def test_a_missing_data_folder_is_one_failure(board: Lab) -> None:
    board.data.rename(board.data.with_name("away"))
    results = run_all_checks(case_with_cron(board))
    assert list_failures(results) == ["data"]
    assert "does not exist" in results["data"].message
    assert "GPUBOARD_DATA" in results["data"].advice
    for name in ("comments", "lists", "hosts", "clocks"):
        assert results[name] == CheckResult("skip", "not checked: see the check data")


def test_a_board_that_was_never_built_is_one_failure(lab: Lab, served: str) -> None:
    url = {"GPUBOARD_URL": served}
    (lab.www / "status.json").unlink()
    (lab.www / "index.html").unlink()
    assert list_failures(run_all_checks(case_with_cron(lab, **url))) == ["builder"]
    shutil.rmtree(lab.www)
    results = run_all_checks(case_with_cron(lab, **url))
    assert list_failures(results) == ["www"]
    assert results["builder"].message == results["url"].message == "not checked: see the check www"


def test_a_stopped_builder_is_one_failure(lab: Lab, served: str) -> None:
    case = case_with_cron(lab, GPUBOARD_URL=served)
    for file in (lab.www / "status.json", lab.www / "live.json"):
        file.write_text(re.sub(r'"built": ?(\d+)', lambda built: f'"built":{int(built[1]) // 2}', file.read_text()))
    results = run_all_checks(case)
    assert list_failures(results) == ["builder"]
    assert results["built"].message == "not checked: see the check builder"


def test_unreadable_bookings_are_one_failure(board: Lab) -> None:
    board.book("{")
    for file in board.state.glob("comments*"):
        file.unlink()
    assert list_failures(run_all_checks(case_with_cron(board))) == ["comments"]


def test_a_board_that_something_else_builds_is_no_failure_without_cron(board: Lab) -> None:
    case = case_with_cron(board, "init")
    results = run_all_checks(case)
    assert list_failures(results) == []
    assert results["cron-daemon"].status == "warn"
    assert re.search("something else built the board [0-9]+ s ago", results["cron-daemon"].message)
    assert results["crontab"].message == "not checked: see the check cron-daemon"
    status = board.www / "status.json"
    status.write_text(status.read_text().replace(f'"built":{board.status()["built"]}', '"built":1000000000'))
    results = run_all_checks(case)
    assert list_failures(results) == ["cron-daemon"]
    assert results["cron-daemon"].message == "no cron daemon is running, so nothing starts the builder"
    assert results["builder"].message.endswith("ago, and its data are out of date: see the check cron-daemon")


def test_who_may_do_what_with_the_folders(lab: Lab) -> None:
    case = case_of(lab)
    lab.data.chmod(0o777)
    assert_finds(case, "data", "fail", r"everybody on this machine can put links into it.* -> run `./install.sh web`")
    lab.data.chmod(0o1777)
    assert_finds(case, "data", "warn", "every user of this machine can write .* -> chmod o-w")
    lab.state.chmod(0o755)
    assert_finds(case, "state", "warn", "other users can read")
    lab.state.chmod(0o770)
    assert_finds(case, "state", "fail", "so the builder refuses to use it -> chmod 700")
    lab.www.chmod(0o777)
    assert_finds(case, "www", "fail", "put scripts on the page")


def test_a_folder_of_the_site_that_another_user_made_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.www / "hosts").mkdir()
    assert_finds(case_of(lab), "www", "pass", str(lab.www))
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "hosts")  # root may write anywhere
    assert_finds(case_of(lab), "www", "fail", "this user can write to .*, but not to .*www/hosts -> as root: chown")


def test_each_key_that_can_do_more_than_push_is_named(lab: Lab, tmp_path: Path) -> None:
    receive = tmp_path / "it's [ours]/gpu-receive.sh"
    receive.parent.mkdir()
    receive.touch(0o755)
    word = "'" + str(receive).replace("'", "'\\\"'\\\"'") + "'"
    keys = lab.data.parent / ".ssh/authorized_keys"
    case = case_of(lab)
    assert_finds(case, "keys", "skip", "does not exist")
    keys.parent.mkdir()
    ours = f'restrict,command="{word} --data /srv/data atlas" {KEY} gpuboard atlas\n'
    keys.write_text(f"# a comment\n\n{ours}")
    assert_finds(case, "keys", "pass", "the only key")
    keys.write_text(f'{ours}{KEY} bob@laptop\ncommand="{word} hydra" {KEY} gpuboard hydra\nno-pty {KEY}\n')
    assert_finds(case, "keys", "warn", r"3 of 4 keys .* can do more .*line 2 \(bob@laptop\), line 3 .* and line 4")
    for options in (
        f'restrict,port-forwarding,command="{word} atlas"',  # which restrict alone forbids
        f'restrict,pty,command="{word} atlas"',
        f'restrict,command="{word} atlas; sh"',
        f'restrict,command="{word} $SSH_ORIGINAL_COMMAND"',
        f'restrict,command="sh -c {word}"',
    ):
        keys.write_text(f"{ours}{options} {KEY} gpuboard atlas\n")
        assert_finds(case, "keys", "warn", "1 of 2 keys .* can do more .*: line 2")
    keys.write_text(ours)
    receive.unlink()
    assert_finds(case, "keys", "fail", "gpu-receive.sh, which does not exist")
    keys.chmod(0o666)
    assert_finds(case, "keys", "fail", "sshd ignores its keys")


# The builder


def test_a_hung_builder_is_reported_with_the_process_that_holds_its_lock(board: Lab) -> None:
    assert_finds(case_of(board), "builder", "pass", "built [0-9]+ s ago")
    with subprocess.Popen(["/usr/bin/flock", str(board.state / "lock"), "cat"], stdin=subprocess.PIPE) as holder:
        assert holder.stdin
        (board.state / "lock").write_text("4711\n")
        while "4711" not in told(case_of(board), "builder")[1]:
            time.sleep(0.05)
        holder.stdin.close()
    status = board.www / "status.json"
    status.write_text(
        status.read_text().replace(f'"built":{board.status()["built"]}', f'"built":{int(time.time()) - 9000}')
    )
    assert_finds(case_with_cron(board), "builder", "fail", "was last built 2 h 3. min ago")
    status.unlink()
    assert_finds(case_of(board), "builder", "fail", "never built")


def test_a_damaged_history_is_found_and_one_that_was_set_aside(board: Lab) -> None:
    assert_finds(case_of(board), "history", "pass", "history.db has")
    (board.state / "history.db.broken-20260101-000000").touch()
    assert_finds(case_of(board), "history", "warn", "was emptied, and a new one was started")
    (board.state / "history.db.broken-20260101-000000").write_bytes(b"x")
    assert_finds(case_of(board), "history", "warn", "was damaged, and a new one was started")
    for beside in board.state.glob("history.db-*"):
        beside.unlink()
    content = bytearray((board.state / "history.db").read_bytes())
    content[4096:] = b"\xff" * len(content[4096:])
    (board.state / "history.db").write_bytes(content)
    assert_finds(case_of(board), "history", "fail", "cannot be read")


def test_little_room_is_a_warning_and_none_a_failure(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(lab.www)

    def left(blocks: int, files: int = 10**6) -> os.statvfs_result:
        statvfs_fields = list(real)
        statvfs_fields[4], statvfs_fields[7] = blocks, files
        return os.statvfs_result(statvfs_fields)

    mib = (1 << 20) // real.f_frsize
    for answer, status, words in (
        (left(100 * mib), "warn", "has 100 MiB of free space"),
        (left(mib), "fail", "has 1 MiB of free space"),
        (left(10**6 * mib, 5), "fail", "5 more files"),
    ):
        monkeypatch.setattr(os, "statvfs", lambda _, answer=answer: answer)
        assert_finds(case_of(lab), "disk", status, words)


def test_units_of_systemd_take_the_place_of_cron(lab: Lab) -> None:
    wants = lab.data.parent / ".config/systemd/user/default.target.wants"
    wants.mkdir(parents=True)
    (wants / "gpuboard-build.service").symlink_to("../gpuboard-build.service")
    case = case_of(lab)
    assert look(case, "linger").is_not_applicable  # that unit is gone
    (wants.parent / "gpuboard-build.service").touch()
    assert_finds(case, "crontab", "pass", "systemd starts the builder: gpuboard-build.service")
    assert look(case, "cron-daemon").is_not_applicable
    assert look(case, "cron-allowed").is_not_applicable
    assert told(case, "linger")[0] in ("fail", "pass")  # as this machine has it


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_crontab_that_calls_what_is_gone_starts_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quote: str
) -> None:
    program = tmp_path / "bin/gpuboard"
    program.parent.mkdir()
    (tmp_path / "bin/crontab").write_text(f'#!/bin/sh\necho "*/5 * * * * cd /srv && {quote}{program}{quote} build"\n')
    (tmp_path / "bin/crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert_finds(case_with_cron(lab), "crontab", "fail", f"starts {program}, which does not exist")
    program.touch(0o755)
    assert_finds(case_with_cron(lab), "crontab", "pass", "gpuboard.? build")


# The web server


@pytest.fixture
def served(board: Lab) -> Iterator[str]:
    """The board by our own server."""
    sock = open_listening_socket("127.0.0.1", 0)
    server = WebServer(StaticSite(board.www), sock)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
    server.stop()
    thread.join()


class Careless(SimpleHTTPRequestHandler):
    """A web server over the wrong folder, with headers that somebody copied from elsewhere."""

    extensions_map = {".html": "text/html", ".json": "text/plain", "": "application/octet-stream"}  # noqa: RUF012

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "public, max-age=3600")
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; frame-ancestors *")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def careless(board: Lab) -> Iterator[str]:
    """The board by that one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Careless, directory=str(board.data.parent)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/www/"
    server.shutdown()
    thread.join()
    server.server_close()


def board_files(lab: Lab) -> list[Path]:
    return [path for path in lab.data.iterdir() if path.is_file()]


WEB = ("url", "types", "caching", "headers", "gzip", "built", "closed")


def test_our_own_server_passes_all(lab: Lab, served: str) -> None:
    for case in (case_of(lab, GPUBOARD_URL=served), case_of(lab, GPUBOARD_LISTEN=served[7:-1])):
        assert {name: told(case, name)[0] for name in WEB} == dict.fromkeys(WEB, "pass")


@pytest.mark.slow
def test_a_careless_server_is_found_out(lab: Lab, careless: str) -> None:
    case = case_of(lab, GPUBOARD_URL=careless)
    assert_finds(case, "url", "pass", "/www/")
    assert_finds(case, "types", "fail", "live.json is served as text/plain, not application/json")
    assert_finds(case, "caching", "fail", "max-age=3600.*open pages show old data")
    assert_finds(case, "headers", "warn", "allows inline scripts or styles")
    assert_finds(case, "gzip", "warn", "is not compressed")
    assert_finds(case, "closed", "fail", "anybody can read .*/data/")
    for file in board_files(lab):
        file.rename(file.with_name("# odd ?" + file.name))
    assert_finds(case_of(lab, GPUBOARD_URL=careless), "closed", "fail", "anybody can read .*/data/%23%20odd%20%3F")
    live = lab.live()
    (lab.www / "live.json").write_text(json.dumps({**live, "built": live["built"] - 9_000_000}))
    assert_finds(case_of(lab, GPUBOARD_URL=careless), "built", "fail", "was last built")
    (lab.www / "live.json").write_text("[]")
    assert_finds(case_of(lab, GPUBOARD_URL=careless), "built", "fail", "not from gpuboard")


class Headers(SimpleHTTPRequestHandler):
    """The board, with the headers that a test wants."""

    wanted: ClassVar[dict[str, str]] = {}

    def end_headers(self) -> None:
        for name, value in self.wanted.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "status", "headers"),
    [
        ("caching", "fail", {"Cache-Control": "max-age=0, s-maxage=3600"}),
        ("caching", "fail", {"Expires": "Fri, 01 Jan 2100 00:00:00 GMT"}),
        ("caching", "warn", {"Cache-Control": "public"}),
        ("caching", "warn", {}),
        ("caching", "pass", {"Expires": "0"}),
        ("caching", "pass", {"Cache-Control": "no-cache, max-age=3600"}),
        ("headers", "warn", {"Content-Security-Policy": "frame-ancestors *"}),
        ("headers", "warn", {"Content-Security-Policy": "frame-ancestors *", "X-Frame-Options": "DENY"}),
        ("headers", "warn", {"X-Frame-Options": "ALLOWALL"}),
        ("headers", "pass", {"X-Frame-Options": "SAMEORIGIN"}),
        ("headers", "pass", {"Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'"}),
    ],
)
def test_headers_count_by_what_they_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: str, headers: dict[str, str]
) -> None:
    lab = Lab(tmp_path)
    lab.www.mkdir()
    for file in ("index.html", "live.json"):
        (lab.www / file).write_text("gpuboard")
    monkeypatch.setattr(Headers, "wanted", {"X-Content-Type-Options": "nosniff", **headers})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Headers, directory=str(lab.www))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            assert told(case_of(lab, GPUBOARD_URL=f"http://127.0.0.1:{server.server_port}/"), name)[0] == status
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_is_away_is_reported_once_and_the_rest_is_left_out(lab: Lab) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        case = case_of(lab, GPUBOARD_URL=f"http://127.0.0.1:{closed.getsockname()[1]}/")
        assert_finds(case, "url", "fail", "nothing answers at")
        assert all(look(case, name).is_not_applicable for name in WEB[1:])
    assert_finds(case_of(lab), "url", "skip", "the address of the board is unknown")


# Consul


@pytest.mark.slow
def test_consul_is_asked_for_its_leader_the_token_and_the_service(lab: Lab, tmp_path: Path) -> None:
    assert look(case_of(lab), "consul").is_not_applicable
    server = ConsulServer(tmp_path / "consul", acl=True)
    try:
        server.register("atlas", "gpu")
        asked = {"GPUBOARD_CONSUL_SERVICE": "gpu", "CONSUL_HTTP_ADDR": server.address}
        assert_finds(case_of(lab, **asked), "consul", "warn", "lists no host .*CONSUL_HTTP_TOKEN must be set")
        token = server.new_token(READ_ALL)
        assert_finds(
            case_of(lab, **asked, CONSUL_HTTP_TOKEN=token), "consul", "pass", "lists 1 host with the service gpu"
        )
        wrong = "00000000-0000-4000-8000-000000000009"
        assert_finds(case_of(lab, **asked, CONSUL_HTTP_TOKEN=wrong), "consul", "fail", "CONSUL_HTTP_TOKEN")
        hosts_in_kv(lab, server)
    finally:
        server.stop()
    assert_finds(case_of(lab, **asked, CONSUL_HTTP_TOKEN=token), "consul", "fail", "does not answer")


def hosts_in_kv(lab: Lab, server: ConsulServer) -> None:
    """The same server, as the store of which data/ is a copy."""
    assert look(case_of(lab), "kv").is_not_applicable
    place = f"consul://{server.address}/lab"
    master = partial(case_of, lab, GPUBOARD_KV=place, CONSUL_HTTP_TOKEN=server.token)
    assert_finds(master(), "kv", "warn", "has no keys under lab/data/")
    server.call("PUT", "/v1/kv/lab/data/atlas", "x")
    assert_finds(master(), "kv", "warn", "1 key under lab/data/, but no builder leads")
    session = server.call("PUT", "/v1/session/create", {"Name": "x"})["ID"]
    server.call("PUT", f"/v1/kv/lab/leader?acquire={session}")
    assert_finds(master(), "kv", "pass", "somebody leads")


# The docs


def documented(title: str) -> list[str]:
    """Return the ids of the list below a heading; an entry may begin with several."""
    part = text_of("docs/doctor.md").split(f"## {title}\n")[1].split("\n## ")[0]
    return [name for ids in re.findall(r"^- (.*?):", part, re.MULTILINE) for name in re.findall(r"`([a-z-]+)`", ids)]


def test_every_check_is_documented_and_no_other() -> None:
    assert documented("On the web host") == [check.id for check in CHECKS]
    script = (ROOT / "scripts/gpu-doctor.sh").read_text()
    table = script.split("CHECKS='")[1].split("'")[0]
    assert documented("On a GPU host") == [word for word in table.split() if not word.endswith(":")]
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_the_page_has_each_option_of_the_script() -> None:
    help_text = help_of("scripts/gpu-doctor.sh")
    options = set(re.findall(r"--[a-z]+", help_text))
    assert options == {"--json", "--verbose", "--conf"}
    assert options - set(re.findall(r"--[a-z]+", text_of("docs/doctor.md"))) == set()
    assert max(map(len, help_text.splitlines())) <= 79
