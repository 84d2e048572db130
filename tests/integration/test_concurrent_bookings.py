"""Fifty people book at once, by command and by the web, and some are killed: nothing accepted is lost."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from site_builder.bookings import parser as booking_parser
from site_builder.bookings.policy import find_booking_span_overlap
from tests.support.board_fixture import Lab, gpu
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.ports import free_port

GPUS = 12
BOOKERS = 50
KILLED = 10


class Heard(NamedTuple):
    """What somebody heard: yes with the id, no with the reason, or nothing, because they were killed."""

    answer: str
    said: str


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    lab.host("atlas", "".join(gpu(index) for index in range(GPUS)))
    lab.book("{ // who has what\n}\n")
    return lab


@pytest.fixture
def url(lab: Lab) -> Iterator[str]:
    """A server that lets everybody book."""
    port = free_port()
    lab.www.mkdir()
    environment = clean_environment(GPUBOARD_BOOK_URL="book", GPUBOARD_BOOK_OPEN="yes")
    command = [sys.executable, "-m", "site_builder", "serve", "--listen", str(port)]
    with subprocess.Popen(command, cwd=lab.data.parent, env=environment) as server:
        try:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                with socket.socket() as sock:
                    if sock.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/book"
        finally:
            server.kill()


def by_command(lab: Lab, which: int, name: str, kill_after: float | None) -> Heard:
    words = ["book", f"atlas:{which}", "--for", "2h", "--name", name, "--json", "--yes"]
    command = [sys.executable, "-m", "site_builder", *words]
    with subprocess.Popen(
        command, cwd=lab.data.parent, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as booker:
        try:
            out, err = booker.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            booker.kill()
            out, err = booker.communicate()
    if booker.returncode < 0:
        return Heard("nothing", "")
    return (
        heard(booker.returncode == 0, out.decode(), err.decode()) if booker.returncode < 2 else Heard("?", err.decode())
    )


def by_web(url: str, which: int, name: str) -> Heard:
    wish = {"do": "book", "gpus": [f"atlas:{which}"], "for": "2h", "name": name}
    request = urllib.request.Request(  # noqa: S310 # our own
        url, json.dumps(wish).encode(), {"Content-Type": "application/json", "X-Gpuboard": "1"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return heard(True, answer.read().decode(), "")
    except urllib.error.HTTPError as error:
        with error:
            response_body = error.read().decode()
            return (
                heard(False, "", json.loads(response_body)["error"]) if error.code == 409 else Heard("?", response_body)
            )


def heard(accepted: bool, out: str, err: str) -> Heard:
    return Heard("yes", json.loads(out)["bookings"][0]["id"]) if accepted else Heard("no", err)


def entries(lab: Lab) -> list[Any]:
    dump = booking_parser.parse_bookings((lab.data / "comments.json").read_bytes(), lab.settings().zone)
    assert (dump.is_complete, dump.problems) == (True, ())
    return list(dump.rows)


def test_every_accepted_booking_is_in_the_file_and_every_refused_one_got_a_reason(lab: Lab, url: str) -> None:
    chance = random.Random(7)  # noqa: S311

    def somebody(number: int) -> Heard:
        which, name = chance.randrange(GPUS), f"user{number}"
        if number % 2:
            return by_web(url, which, name)
        return by_command(lab, which, name, chance.uniform(0.1, 3) if number < 2 * KILLED else None)

    with ThreadPoolExecutor(BOOKERS) as crowd:
        answers = list(crowd.map(somebody, range(BOOKERS)))
    assert [attempt.said for attempt in answers if attempt.answer == "?"] == []
    booked = entries(lab)
    accepted = {attempt.said for attempt in answers if attempt.answer == "yes"}
    ids = {attempt.id for attempt in booked}
    assert accepted <= ids
    assert len(ids - accepted) <= sum(
        attempt.answer == "nothing" for attempt in answers
    )  # written, but killed before the word
    assert len(accepted) >= GPUS // 2
    for attempt in answers:
        if attempt.answer == "no":
            assert "is booked by user" in attempt.said
    spans: dict[str, list[tuple[float, float]]] = {}
    for attempt in booked:
        mine = [(attempt.since.timestamp(), attempt.until.timestamp())]
        assert find_booking_span_overlap(mine, spans.get(attempt.gpu, [])) is None
        spans.setdefault(attempt.gpu, []).extend(mine)
    lines = [json.loads(line) for line in (lab.data / "bookings.log").read_text().splitlines()]
    assert ids <= {entry[2]["id"] for line in lines for entry in line["after"]}
    assert (lab.data / "comments.json").read_text().startswith("{")
    assert "// who has what\n" in (lab.data / "comments.json").read_text()


def test_a_process_killed_at_any_moment_leaves_a_whole_file_and_a_free_lock(lab: Lab) -> None:
    chance = random.Random(11)  # noqa: S311
    for number in range(25):
        by_command(lab, number % GPUS, f"user{number}", chance.uniform(0.05, 0.6))
        entries(lab)
    result = run_gpuboard(lab.data.parent, "book", "atlas", "--from", "2099-01-01 09:00", "--for", "1h", "--yes")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in lab.data.iterdir() if "new-" in path.name] == []
