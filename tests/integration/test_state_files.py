"""state/ executes nothing, is ours alone, and what was emptied or damaged in it is reported and rebuilt."""

from __future__ import annotations

import ast
import os
import pickle
import random
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import orjson
import pytest

from site_builder.alerts.model import DeliveryRecord
from site_builder.alerts.store import AlertStore
from site_builder.board import host_pipeline
from site_builder.board.builder import Builder
from site_builder.bookings.tokens import TokenStore
from site_builder.core import files, locks
from site_builder.core.command_options import load_command_settings
from site_builder.core.locks import LockedFileError
from site_builder.core.model import AlertSettings
from site_builder.core.records import (
    DamagedFileError,
    encode_record,
    read_record_file,
    replace_dicts_by_pairs,
    write_record_file,
)
from site_builder.doctor import builder_checks
from site_builder.doctor.model import DoctorContext
from site_builder.fleet.store import FleetStore
from site_builder.history import rollups
from site_builder.history.rollups import MonthUsage
from site_builder.history.usage_sums import StateMinutes, UsageShareSums
from site_builder.snapshots import store as snapshots_store
from site_builder.web.identity import WebCaller
from tests.support import every_state
from tests.support.board_fixture import Lab, gpu
from tests.support.sender_fixtures import alert, build_state
from tests.support.state_fixtures import Trap, gpuboard, make_state_lab, problems_of

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_state_lab(tmp_path / "lab")


# Nothing is executed


def test_a_pickle_of_an_older_version_is_deleted_unread(lab: Lab, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for name in (
        host_pipeline.OLD_STORE_NAME,
        snapshots_store.OLD_STORE_FILE,
        rollups.OLD_SUMS_FILE,
        host_pipeline.STORE_NAME,
        snapshots_store.STORE_FILE,
        rollups.SUMS_FILE,
    ):
        (lab.state / name).write_bytes(pickle.dumps(Trap(mark)))
    (lab.state / "templates").mkdir()
    (lab.state / "templates/x.template").write_bytes(b"bytecode")
    result = gpuboard(lab.data.parent, "build")
    assert (result.returncode, result.stderr) == (0, "")
    assert not mark.exists()
    assert lab.states("atlas") == ["busy", "free"]
    left = {path.name for path in lab.state.iterdir()}
    assert left.isdisjoint(
        {host_pipeline.OLD_STORE_NAME, snapshots_store.OLD_STORE_FILE, rollups.OLD_SUMS_FILE, "templates"}
    )


def test_no_module_loads_a_format_that_can_execute_code() -> None:
    allowed = {"parallel.py"}  # what passes between us and our own child, through memory
    loading = set()
    for path in (ROOT / "site_builder").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            if {"pickle", "marshal", "shelve", "dill", "bccache", "FileSystemBytecodeCache"} & set(names):
                loading.add(path.name)
    assert loading == allowed


# What is kept serves again, and only if it is right


def test_cards_of_every_state_survive_a_restart_of_the_builder(tmp_path: Path) -> None:
    made = every_state.make_lab(tmp_path / "lab")
    builder = Builder(made.settings())
    builder.build(time.time())
    builder.close()
    again = Builder(made.settings())
    assert len(again.pipeline.built_hosts) > 3
    assert again.pipeline.built_hosts == builder.pipeline.built_hosts
    assert again.pipeline.common_fingerprint == builder.pipeline.common_fingerprint
    assert (again.snapshots.native_files, again.snapshots.legacy_files) == (
        builder.snapshots.native_files,
        builder.snapshots.legacy_files,
    )
    assert builder.people_page.rollup
    assert rollups.load_rollup_state(made.state / rollups.SUMS_FILE) == builder.people_page.rollup.state


def test_month_of_totals_survives(tmp_path: Path) -> None:
    month = MonthUsage(
        first=date(2026, 10, 1),
        since=date(2026, 10, 3),
        until=1_793_491_200,
        shares={"alice": UsageShareSums(1, 2, 3, 4)},
        shares_by_place={("atlas", "A100"): UsageShareSums(1, 2, 3, 4)},
        seen_by_place={("atlas", "A100"): StateMinutes(*range(13))},
        unseen_by_place={("atlas", "A100"): 7},
    )
    kept = rollups.RollupState(
        database_identity=(12, 34),
        finished_months={
            month.first: rollups.FinishedRollupMonth(month.until, encode_record(replace_dicts_by_pairs(month)))
        },
    )
    kept.unfinished_month = rollups.UnfinishedRollupMonth(
        month.first,
        5,
        [month.first],
        {"alice": UsageShareSums(1, 2, 3, 4)},
        {("a", "b"): UsageShareSums(1, 2, 3, 4)},
        {},
    )
    kept.late_months, kept.rendered_months = {month.first}, (b"\x00\xff", "<p>")
    content = encode_record([rollups.SUMS_VERSION, replace_dicts_by_pairs(kept)])
    (tmp_path / rollups.SUMS_FILE).write_bytes(content)
    assert rollups.load_rollup_state(tmp_path / rollups.SUMS_FILE) == kept
    assert rollups.load_rollup_month(kept.finished_months[month.first].packed_month) == month


SHAPES: list[bytes] = [
    b"",
    b"\0" * 100,
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"text"',
    b"[[[[",
    b'{"code": 7, "hosts": 3}',
    b'{"hosts": {"atlas": [1, 2]}}',
    b'{"code": "", "hosts": {"atlas": {"drawn": 1}}}',
    b'{"idle": {"atlas": {"looked": 1e999, "since": {"x": "y"}}}, "logins": 3, "problems": {}}',
    b'{"a": [1e300, 1e300, 1e300, 1e300]}',
    b'[2, {"file": []}]',
    b"gpuboard cards 1\n9999999999 9999999999\n",
    b"gpuboard snapshots 3\n2\n{}\nend 1 00000000\n",
    b"gpuboard snapshots 3\nend 0 00000000\n",
    b"[" * 5000,
]
FILES = (
    *(host_pipeline.STORE_NAME, snapshots_store.STORE_FILE, rollups.SUMS_FILE),
    *("lines.json", "memory.json", "published.json", "noticed.json", "watches.json", "tokens.json", "alerts.json"),
    *("consul.json", "comments.json", "aliases.csv", "builder", "kv.json", "alerts.conf.good"),
)


@pytest.mark.parametrize("content", SHAPES, ids=[shape[:30].decode("ascii", "replace") for shape in SHAPES])
def test_file_of_unexpected_form_never_stops_a_build(lab: Lab, content: bytes) -> None:
    lab.build()
    for name in FILES:
        (lab.state / name).write_bytes(content)
        (lab.state / f"{name}.bak").unlink(missing_ok=True)
    for path in (lab.state / "charts").iterdir():
        path.write_bytes(content)
    builder = Builder(lab.settings(alerts=AlertSettings((("lab", "json://127.0.0.1:1/"),))))
    report = builder.build(time.time())
    builder.close()
    assert builder.alert_engine
    if builder.alert_engine.sender_process:
        builder.alert_engine.sender_process.wait(60)
    assert (report.host_count, lab.states("atlas")) == (2, ["busy", "free"])


@pytest.mark.parametrize("name", [host_pipeline.STORE_NAME, snapshots_store.STORE_FILE, rollups.SUMS_FILE])
def test_damaged_byte_costs_only_a_rebuild_of_the_file(lab: Lab, name: str) -> None:
    at = time.time()
    builder = Builder(lab.settings())
    builder.build(at)
    builder.close()
    good = (lab.state / name).read_bytes()
    chance = random.Random(20)  # noqa: S311 nothing secret
    for _ in range(60):
        bad = bytearray(good)
        place = chance.randrange(len(bad))
        if chance.random() < 0.5:
            bad[place] ^= 1 << chance.randrange(8)
        else:
            del bad[place : place + chance.randrange(1, 50)]
        (lab.state / name).write_bytes(bad)
        again = Builder(lab.settings())
        for host, card in again.pipeline.built_hosts.items():
            assert card == builder.pipeline.built_hosts[host]
        again.history.close()
    report = lab.build()
    assert (report.host_count, lab.states("atlas")) == (2, ["busy", "free"])


def changed_cards(lab: Lab, change: Callable[[Any], object]) -> dict[str, host_pipeline.BuiltHost]:
    """What is loaded where somebody has rewritten the JSON of every card, with a checksum that is right."""
    store = lab.state / host_pipeline.STORE_NAME
    (head, _), *records = list(read_record_file(store, host_pipeline.STORE_TITLE))
    new = []
    for text, texts in records:
        stored = orjson.loads(text)
        change(stored)
        new.append((orjson.dumps(stored), texts))
    write_record_file(store, host_pipeline.STORE_TITLE, [(head, []), *new])
    return host_pipeline.load_pipeline_store(store)[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", "zz"),
        ("valid_until", "soon"),
        ("rendered", [7]),
        ("gpus_by_state", [["x"]]),
        ("last_seen", True),
        ("digests", []),
        ("summary", {}),
        ("packed_sample", [1]),
        ("packed_health", "x"),
        ("waste_candidates", [[]]),
        ("conditions", 5),
    ],
)
def test_a_card_with_a_value_of_another_type_is_made_anew(lab: Lab, field: str, value: object) -> None:
    lab.build()
    assert set(changed_cards(lab, lambda _: None)) == {"atlas", "hydra"}

    def change(stored: list[Any]) -> None:
        stored[1][host_pipeline.BuiltHost._fields.index(field)] = value

    assert changed_cards(lab, change) == {}
    assert lab.build().host_count == 2


def test_claimed_sizes_are_checked_before_reading(tmp_path: Path) -> None:
    store = tmp_path / host_pipeline.STORE_NAME
    store.write_bytes(host_pipeline.STORE_TITLE.encode() + b"\n9999999999\nx\nend 1 00000000\n")
    with pytest.raises(DamagedFileError):
        host_pipeline.load_pipeline_store(store)


def test_a_link_or_a_file_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    path.write_bytes(b"{}")
    assert files.read_own_file(path) == b"{}"
    path.chmod(0o620)
    with pytest.raises(files.FileRefusedError, match="others can write to it"):
        files.read_own_file(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(files.FileRefusedError):
        files.read_own_file(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(path, NOBODY, -1)
        with pytest.raises(files.FileRefusedError, match="it belongs to nobody"):
            files.read_own_file(path)


# What was emptied


def test_an_emptied_memory_is_reported_and_its_copy_is_used(lab: Lab) -> None:
    lab.build()
    before = FleetStore(lab.state)
    assert before.logins == {"alice"}
    (lab.state / "memory.json").write_bytes(b"")
    lab.host("atlas", gpu(0) + gpu(1))
    lab.build()
    assert problems_of(lab)["state/memory.json"] == "is empty: the last good copy is used"
    assert FleetStore(lab.state).logins == {"alice"}
    lab.build()
    assert "state/memory.json" not in problems_of(lab)


def test_an_emptied_memory_without_a_copy_is_reported(lab: Lab) -> None:
    (lab.state / "memory.json").write_bytes(b"")
    lab.build()
    assert problems_of(lab)["state/memory.json"] == "is empty, and there is no good copy: starting over"


def test_emptied_tokens_stay_valid_by_their_copy_and_are_reported(lab: Lab) -> None:
    tokens = TokenStore(lab.state)
    token = tokens.create_token("alice", 1)
    tokens.path.write_bytes(b"")
    assert (tokens.find_token_owner(token), tokens.find_token_owner("wrong")) == ("alice", None)
    lab.build()
    assert problems_of(lab)["state/tokens.json"] == "is empty: the last good copy is used"
    result = gpuboard(lab.data.parent, "token", "--list")
    assert result.stdout.startswith("alice ")
    assert result.stderr == "gpuboard: state/tokens.json is empty: the last good copy is used\n"
    tokens.create_token("bob", 1)
    assert [stored_token.name for stored_token in TokenStore(lab.state).list_tokens()] == ["alice", "bob"]


def test_emptied_tokens_without_a_copy_let_nobody_in(lab: Lab) -> None:
    (lab.state / "tokens.json").write_bytes(b"")
    with pytest.raises(LockedFileError, match="is empty: restore your copy, or remove it"):
        TokenStore(lab.state).find_token_owner("any")
    with pytest.raises(LockedFileError, match="is empty"):
        TokenStore(lab.state).create_token("alice", 1)
    lab.build()
    assert problems_of(lab)["state/tokens.json"].startswith("is empty: restore your copy")
    (lab.state / "tokens.json").unlink()
    assert TokenStore(lab.state).create_token("alice", 1)


def test_the_copy_brings_no_revoked_token_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TokenStore(lab.state)
    token = tokens.create_token("alice", 1)
    kept, count = locks.write_locked_file, [0]

    def full(path: Path, content: bytes) -> None:
        count[0] += 1
        if count[0] == 2:
            message = "no room"
            raise LockedFileError(message)
        kept(path, content)

    monkeypatch.setattr(locks, "write_locked_file", full)
    with pytest.raises(LockedFileError):  # nobody is told that it was revoked
        tokens.revoke_tokens("alice")
    assert tokens.find_token_owner(token) == "alice"
    tokens.revoke_tokens("alice")
    tokens.path.write_bytes(b"")
    assert tokens.find_token_owner(token) is None


def test_the_builder_keeps_a_copy_of_tokens_of_an_older_version(lab: Lab) -> None:
    tokens = TokenStore(lab.state)
    token = tokens.create_token("alice", 1)
    files.find_copy_file(tokens.path).unlink()
    lab.build()
    tokens.path.write_bytes(b"")
    assert tokens.find_token_owner(token) == "alice"


def test_booking_service_logs_emptied_tokens(lab: Lab) -> None:
    from site_builder.web.booking_app import BookingApplication  # noqa: PLC0415

    token = TokenStore(lab.state).create_token("alice", 1)
    (lab.state / "tokens.json").write_bytes(b"")
    log_lines: list[str] = []
    desk = BookingApplication(lab.settings(), log_lines.append)
    caller: WebCaller = desk.identify_caller({"HTTP_AUTHORIZATION": f"Bearer {token}"}, "192.0.2.1")
    assert caller.user.name == "alice"
    assert log_lines == [f"{lab.state / 'tokens.json'} is empty: the last good copy is used"]


def test_an_emptied_history_is_set_aside_and_reported(lab: Lab) -> None:
    lab.build()
    (lab.state / "history.db").write_bytes(b"")
    lab.build(60)
    (aside,) = lab.state.glob("history.db.broken-*")
    assert problems_of(lab)["state/history.db"].startswith(f"was emptied, and a new one was started: {aside.name}")
    assert (lab.state / "history.db").stat().st_size > 0


def test_history_that_others_may_write_is_not_used(lab: Lab) -> None:
    lab.build()
    (lab.state / "history.db").chmod(0o666)
    lab.build(60)
    assert "others can write to it: check it, then run chmod 600 on it" in problems_of(lab)["state/history.db"]
    (lab.state / "history.db").chmod(0o600)
    lab.build(120)
    assert problems_of(lab) == {}


def test_a_builder_that_is_killed_while_it_begins_history_leaves_no_empty_file(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from site_builder.history import database  # noqa: PLC0415

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(database, "prepare_database_for_writing", killed)
        with pytest.raises(KeyboardInterrupt):
            database.open_database(lab.state / "history.db")
    assert not (lab.state / "history.db").exists()
    lab.build()
    assert problems_of(lab) == {}
    assert not list(lab.state.glob(".history.db*"))


@pytest.mark.parametrize("name", builder_checks.IRREPLACEABLE_FILES)
def test_the_doctor_finds_an_emptied_file(lab: Lab, name: str) -> None:
    lab.state.chmod(0o700)
    (lab.state / name).write_bytes(b"")
    flags: dict[str, str | None] = {"state": str(lab.state), "data": str(lab.data), "www": str(lab.www)}
    check_result = builder_checks.check_state_folder(DoctorContext(load_command_settings(None, flags), "", lab.data))
    assert (check_result.status, f"{name} is empty" in check_result.message) == ("warn", True)


# Notifications of which nobody knows whether they arrived


def test_notification_with_unknown_outcome_is_on_the_page_for_a_day(lab: Lab) -> None:
    now = int(time.time())
    deliveries = [
        DeliveryRecord(now - 100, "channel:lab", "unsure", (alert(1),), "it did not answer in time"),
        DeliveryRecord(now - 50, "person:alice", "unsure", (alert(2),), "it did not answer in time"),
        DeliveryRecord(now - 90_000, "hook:page", "unsure", (alert(3),), "it was ended"),
    ]
    AlertStore(lab.state).change(lambda _: build_state()._replace(started_at=1, history=tuple(deliveries)))
    builder = Builder(lab.settings(alerts=AlertSettings((("lab", "json://127.0.0.1:1/secret"),))))
    builder.build(now)
    builder.close()
    assert builder.alert_engine
    if builder.alert_engine.sender_process:
        builder.alert_engine.sender_process.wait(60)
    what = [problem["what"] for problem in lab.status()["problems"] if problem["where"] == "alerts"]
    assert what == [
        "unknown whether a notification for channel lab arrived: it did not answer in time",
        "unknown whether a notification for person alice arrived: it did not answer in time",
    ]
    assert "secret" not in lab.page()
