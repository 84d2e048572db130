"""`/states/HOST/?fetch_num=N` of `gpuboard serve`: the last minutes of a host, in the shape of vesta."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from zoneinfo import ZoneInfo

import jsonschema
import pytest

from site_builder.core.model import PrivacySettings
from site_builder.history.model import ProcessSample
from site_builder.history.writer import HistoryWriter
from site_builder.web.compat_hosts import MAX_ACTIVE, MAX_ENTRIES, CompatHistory
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import ROOT
from tests.support.history_fixtures import epoch, host, record
from tests.support.history_fixtures import gpu as then
from tests.support.serve_fixtures import serve_settings

SCHEMA = json.loads((ROOT / "docs/states.schema.json").read_text())
NAME = "NVIDIA A100-SXM4-80GB"
PAST_PROCESS = ProcessSample(31415, "train1", 20000, "bob")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A host that is busy now, and of which ten minutes are known."""
    lab = Lab(tmp_path / "lab")
    lab.host("atlas", gpu(0, 7000, 97) + gpu(1), process(42, memory=6400), person(42, "alice"))
    history = HistoryWriter(lab.state, timezone.utc)
    start = (int(time.time()) // 60 - 20) * 60  # what lies further back than five minutes, no build fills up
    record(
        history,
        start,
        10,
        lambda minute: [
            host(then("busy", ["bob"], use=minute, memory=20480, processes=[PAST_PROCESS]), then(index=1, processes=[]))
        ],
    )
    history.close()
    lab.build()
    return lab


@contextmanager
def served(lab: Lab, **changes: object) -> Iterator[str]:
    """The address of the lab's board."""
    with serve_settings(lab.www, lab.settings(**changes)) as reader:
        yield f"http://127.0.0.1:{reader.port}/"


def ask(url: str, path: str, **headers: str) -> tuple[int, bytes, Any]:
    try:
        with urlopen(Request(url + path, headers=headers)) as answer:  # noqa: S310 # our own
            return answer.status, answer.read(), answer.headers
    except HTTPError as error:
        return error.code, error.read(), error.headers


def entries(url: str, count: int) -> list[dict[str, Any]]:
    status, body, _ = ask(url, f"states/atlas/index.json?fetch_num={count}")
    assert status == 200
    content = json.loads(body)
    jsonschema.validate(content, SCHEMA)
    history_entries: list[dict[str, Any]] = content["atlas"]["data"]
    return history_entries


def entries_of_build(lab: Lab, name: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = json.loads((lab.www / f"states/{name}/index.json").read_text())[name]["data"]
    return data


def test_as_many_entries_as_are_asked_for_the_newest_last(lab: Lab) -> None:
    with served(lab) as url:
        history_entries = entries(url, 4)
    assert [history_entry["gpu_data"]["gpu:0"]["gpu_volatile"] for history_entry in history_entries] == [7, 8, 9, 97]
    stamps = [history_entry["timestamp"] for history_entry in history_entries]
    assert stamps == sorted(set(stamps))


def test_an_entry_of_history_has_the_shape_and_all_that_history_knows(lab: Lab) -> None:
    with served(lab) as url:
        old, new = entries(url, 2)
    old_gpu = old["gpu_data"]["gpu:0"]
    new_gpu = new["gpu_data"]["gpu:0"]
    assert old_gpu.keys() == new_gpu.keys()
    assert old_gpu["processes"][0].keys() == new_gpu["processes"][0].keys()
    at = datetime.strptime(f"{old['timestamp']} +0000", "%Y%m%d%H%M%S %z")
    assert old_gpu == {
        "available_memory": 61440,
        "device_num": 0,
        "gpu_name": NAME,
        "gpu_volatile": 9,
        "processes": [
            {"name": "train1", "pid": "31415", "used_memory": 20000, "user": "bob", "command": "train1"},
        ],
        "temperature": 40,
        "timestamp": f"{at:%Y/%m/%d %H:%M:%S}.000",
        "total_memory": 81920,
        "used_memory": 20480,
        "uuid": "GPU-0",
        "state": "busy",
        "reason": "",
    }
    assert old["gpu_data"]["gpu:1"]["processes"] == []


def test_one_entry_is_the_file_itself(lab: Lab) -> None:
    with served(lab) as url:
        bodies = {ask(url, f"states/atlas/{query}")[1] for query in ("", "?fetch_num=1", "index.json")}
    assert bodies == {(lab.www / "states/atlas/index.json").read_bytes()}


def test_more_than_there_is_gives_all_that_there_is(lab: Lab) -> None:
    with served(lab) as url:
        assert len(entries(url, 500)) == len(entries(url, 999_999_999)) == 11


def test_no_answer_is_longer_than_a_day(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    minutes = CompatHistory(lab.settings())

    def read_minutes(_reader: object, _host: str, count: int, _before: float) -> list[object]:
        asked.append(count)
        return []

    monkeypatch.setattr("site_builder.web.compat_hosts.HistoryReader.read_minutes", read_minutes)
    minutes((lab.www / "states/atlas/index.json").read_bytes(), 999_999_999)
    assert asked == [MAX_ENTRIES - 1]


def test_people_who_are_not_shown_are_in_no_entry(lab: Lab) -> None:
    hidden = PrivacySettings("none", False)
    lab.build(privacy=hidden)
    with served(lab, privacy=hidden) as url:
        body = json.dumps(entries(url, 20))
    assert "bob" not in body and "alice" not in body and "train1" not in body
    assert "31415" in body


def test_the_entry_of_a_build_stays_when_it_is_history(lab: Lab) -> None:
    before = int(time.time()) - 60
    lab.host("atlas", gpu(0, 100, 3) + gpu(1), process(43, memory=90), person(43, "carol"), time=before)
    for path in (lab.data / "atlas").iterdir():
        os.utime(path, (before, before))
    lab.build(after=-60)
    published = entries_of_build(lab, "atlas")[-1]
    lab.host("atlas", gpu(0) + gpu(1))
    lab.build()
    with served(lab) as url:
        entry, _ = entries(url, 2)
    (process_entry,) = published["gpu_data"]["gpu:0"]["processes"]
    assert (process_entry["pid"], process_entry["user"]) == ("43", "carol")
    assert entry["gpu_data"]["gpu:0"]["processes"] == [{**process_entry, "command": "python"}]
    assert entry["gpu_data"]["gpu:1"]["processes"] == []


def test_processes_that_were_not_recorded_are_unknown(lab: Lab) -> None:
    lab.host("hydra", gpu(0, uuid="GPU-h"))
    lab.build()
    history = HistoryWriter(lab.state, timezone.utc)
    start = (int(time.time()) // 60 - 20) * 60
    record(history, start, 1, [host(then("busy", ["bob"], key="GPU-h"), then(index=1), name="hydra")])
    history.close()
    with served(lab) as url:
        _, body, _ = ask(url, "states/hydra/?fetch_num=2")
    old_gpus = json.loads(body)["hydra"]["data"][0]["gpu_data"]
    assert [old_gpus[key]["processes"] for key in ("gpu:0", "gpu:1")] == [None, []]


def test_without_history_there_is_one_entry(lab: Lab) -> None:
    for path in lab.state.glob("history.db*"):
        path.unlink()
    with served(lab) as url:
        assert len(entries(url, 5)) == 1


def test_history_that_cannot_be_read_leaves_one_entry(lab: Lab) -> None:
    for path in lab.state.glob("history.db*"):
        path.write_bytes(b"no database" * 1000)
    with served(lab) as url:
        assert len(entries(url, 5)) == 1


def test_all_hosts_together_have_as_many_entries_each_as_are_asked_for(lab: Lab) -> None:
    lab.host("hydra", gpu(0, uuid="GPU-h"))
    lab.build()
    with served(lab) as url:
        _, body, _ = ask(url, "states/?fetch_num=5")
        _, one, _ = ask(url, "states/atlas/?fetch_num=5")
    hosts = json.loads(body)
    jsonschema.validate(hosts, SCHEMA)
    assert {host: len(content["data"]) for host, content in hosts.items()} == {"atlas": 5, "hydra": 1}
    assert hosts["atlas"] == json.loads(one)["atlas"]


def test_all_hosts_together_share_a_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.host("hydra", gpu(0, uuid="GPU-h"))
    lab.build()
    monkeypatch.setattr("site_builder.web.compat_hosts.MAX_FLEET_ENTRIES", 8)
    with served(lab) as url:
        hosts = json.loads(ask(url, "states/?fetch_num=500")[1])
        assert len(hosts["atlas"]["data"]) == 4
        assert len(entries(url, 500)) == 8


def test_a_known_answer_is_304_and_another_number_is_another_answer(lab: Lab) -> None:
    with served(lab) as url:
        _, _, headers = ask(url, "states/atlas/?fetch_num=3")
        tag = headers["ETag"]
        assert ask(url, "states/atlas/?fetch_num=3", **{"If-None-Match": tag})[0] == 304
        assert ask(url, "states/atlas/?fetch_num=4", **{"If-None-Match": tag})[0] == 200
        assert ask(url, "states/atlas/", **{"If-None-Match": tag})[0] == 200


def test_a_host_that_is_down_has_its_minutes_before_what_is_known_of_it_now(lab: Lab) -> None:
    lab.build(after=3600)
    with served(lab) as url:
        history_entries = entries(url, 3)
    assert [history_entry["gpu_data"]["gpu:0"]["gpu_volatile"] for history_entry in history_entries] == [8, 9, None]


def test_a_host_that_was_never_seen_has_none(lab: Lab) -> None:
    (lab.data / "hosts.txt").write_text("tiber\n")
    lab.build()
    with served(lab) as url:
        _, body, _ = ask(url, "states/tiber/?fetch_num=9")
    assert json.loads(body)["tiber"]["data"] == []


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"a": 1}', b'{"a": {"data": [{"timestamp": "x"}]}}', b"\xff"])
def test_a_file_that_is_not_ours_is_left_as_it_is(lab: Lab, content: bytes) -> None:
    assert CompatHistory(lab.settings())(content, 5) == content


def test_too_many_requests_at_once_are_told_to_retry(lab: Lab) -> None:
    add_history = CompatHistory(lab.settings())
    for _ in range(MAX_ACTIVE):
        assert add_history.active.acquire(blocking=False)
    with pytest.raises(BlockingIOError):
        add_history(b"{}", 2)
    add_history.active.release()
    assert add_history(b"{}", 2) == b"{}"


def test_an_hour_that_comes_twice_is_distinguished(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = CompatHistory(lab.settings(zone=ZoneInfo("Europe/Berlin")))
    first = epoch("2026-10-25 00:30")  # 02:30 in summer time
    for now in (first + 30, first + 3600 + 30):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert minutes.parse_timestamp(20261025023000) == now - 30


def test_a_state_folder_that_the_server_may_not_read_leaves_one_entry(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_self: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refused)
    content = (lab.www / "states/atlas/index.json").read_bytes()
    assert CompatHistory(lab.settings())(content, 5) == content
