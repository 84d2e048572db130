"""Blocks of history.db that are not as they were written."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import orjson
import pytest

from site_builder.history import block_format
from site_builder.history.block_format import BLOCK_HEADER, BLOCK_VERSION, DamagedBlockError
from site_builder.history.model import ProcessSample
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import epoch, gpu, host, record, roll

NOON = epoch("2026-03-10T12:00")
TRAIN = ProcessSample(42, "train.py", 6400, "alice")
HUGE = 2**40
DAMAGED_WORDS: list[dict[str, object]] = [
    {"standings": []},
    {"standings": None},
    {"standings": [[]]},
    {"standings": ["[99]"]},
    {"processes": 7},
    {"columns": [["q", 2**63]]},
    {"columns": [["B", HUGE]]},
    {"columns": [["H", HUGE]]},
    {"columns": [["H", -1]]},
    {"columns": [["H", 1.5]]},
    {"columns": [["x", 1]]},
    {"columns": [["H", 0]] * 9},
    {"columns": []},
]
DAMAGED_RUNS: list[object] = [
    [[0, "[]"], [HUGE, "[]"]],
    [[HUGE, "[]"]],
    [[-HUGE, "[]"]],
    [[0, "[]"], [40, "[]"], [20, "[]"]],
    [[20, "[]"], [0, "[]"]],
    [[1, "[]"]],
    [[0.5, "[]"]],
    [["0", "[]"]],
    [[0]],
    [0],
]


def pack_hour() -> bytes:
    samples = [host(gpu("busy", ["alice"], processes=[TRAIN] * (minute % 3))) for minute in range(60)]
    parts = {
        minute: block_format.unpack_minute_block(block_format.pack_minute_block([sample]))
        for minute, sample in enumerate(samples)
    }
    return block_format.pack_hour_block(block_format.build_hour_block(samples[0].gpu_set_id, parts))


def damage(block: bytes, words: Mapping[str, object]) -> bytes:
    """Replace words of a block; its numbers stay."""
    raw = zlib.decompress(block)
    _, length = BLOCK_HEADER.unpack_from(raw)
    start = BLOCK_HEADER.size
    head = orjson.dumps({**orjson.loads(raw[start : start + length]), **words})
    return zlib.compress(BLOCK_HEADER.pack(BLOCK_VERSION, len(head)) + head + raw[start + length :])


@pytest.mark.parametrize("words", DAMAGED_WORDS, ids=str)
def test_damaged_words_of_a_minute_are_noticed(words: dict[str, object]) -> None:
    block = block_format.pack_minute_block([host(gpu("busy", ["alice"], processes=[TRAIN]))])
    with pytest.raises(DamagedBlockError):
        block_format.unpack_minute_block(damage(block, words))


@pytest.mark.parametrize("words", [*DAMAGED_WORDS, *({"processes": runs} for runs in DAMAGED_RUNS)], ids=str)
def test_damaged_words_of_an_hour_are_noticed_and_take_no_memory(words: dict[str, object]) -> None:
    with pytest.raises(DamagedBlockError):
        block_format.unpack_hour_block(damage(pack_hour(), words))


@pytest.mark.parametrize(
    "text", ["7", "null", "[7]", "[[]]", '[["x", null, null, null]]', '[[1, null, "7 GB", null]]', '[[1, [], 1, "a"]]']
)
@pytest.mark.parametrize("rolled_up", [False, True])
def test_damaged_processes_cost_that_minute_alone(history: HistoryWriter, text: str, rolled_up: bool) -> None:
    record(history, NOON, 3, lambda minute: [host(gpu("busy", processes=[TRAIN._replace(pid=minute)]))])
    if rolled_up:
        roll(history, NOON + 3600)
    connection = history.connect()
    table = "chunk" if rolled_up else "minute"
    (rowid, block) = connection.execute(f"SELECT rowid, block FROM {table} WHERE at<=? ORDER BY at", (NOON,)).fetchone()  # noqa: S608
    processes = [[0, text], [1, "[]"], [3, ""]] if rolled_up else [text]
    damaged = damage(block, {"processes": processes})
    connection.execute(f"UPDATE {table} SET block=? WHERE rowid=?", (damaged, rowid))  # noqa: S608
    assert [at for at, _ in history.read_minutes("atlas", 5, NOON + 600)] == [NOON + 60, NOON + 120]
    assert history.problem is None


def test_a_damaged_minute_does_not_keep_its_hour_from_being_rolled_up(history: HistoryWriter) -> None:
    record(history, NOON, 3, [host(gpu("busy", ["alice"]))])
    connection = history.connect()
    (block,) = connection.execute("SELECT block FROM minute WHERE at=?", (NOON,)).fetchone()
    connection.execute("UPDATE minute SET block=? WHERE at=?", (damage(block, {"standings": ["[99]"]}), NOON))
    roll(history, NOON + 3600)
    assert [at for at, _ in history.read_minutes("atlas", 5, NOON + 600)] == [NOON + 60, NOON + 120]
