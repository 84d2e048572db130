"""History: what was recorded is read back, coarser with age, and a gap stays a gap."""

from __future__ import annotations

import time
from datetime import date, datetime, timezone
from pathlib import Path

import pytest

from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import Gpu, GpuStatus, HostStatus, PrivacySettings
from site_builder.history import block_format
from site_builder.history.block_format import MAX_RECORDED_PROCESSES, PackedSample
from site_builder.history.buckets import choose_finest_bucket_step
from site_builder.history.model import HostSample, ProcessSample
from site_builder.history.reader import HistoryReader
from site_builder.history.writer import HistoryWriter, sample_host
from tests.support.board_fixture import Lab, person, process
from tests.support.board_fixture import gpu as row
from tests.support.history_fixtures import epoch, folder, gpu, host, record, roll

NOON = epoch("2026-03-10T12:00")


def only(samples: list[tuple[int, HostSample]]) -> HostSample:
    ((_, sample),) = samples
    return sample


def test_a_build_records_what_the_board_says(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpus=row(0, 7000, 55) + row(1), processes=process(), ps=person())
    report = lab.build()
    assert not report.problems
    host_sample = only(HistoryReader(lab.state, timezone.utc).read_minutes("atlas", 5, time.time()))
    first, second = host_sample.gpus
    assert (first.use, first.memory, first.temperature, first.power) == (55, 7000, 41, 61.5)
    assert first.series[:3] == ("GPU-0", 0, "A100 80 GB")
    assert (first.occupancy.state, first.occupancy.people.users) == ("busy", ("alice",))
    assert (second.occupancy.state, second.occupancy.people.users) == ("free", ())
    assert (host_sample.load, host_sample.memory) == (38, 50)
    assert first.processes == (ProcessSample(42, "python", 7000, "alice"),)
    assert second.processes == ()


@pytest.mark.parametrize("rolled_up", [False, True])
def test_processes_are_read_back_minute_by_minute(history: HistoryWriter, rolled_up: bool) -> None:
    train, unnamed = ProcessSample(42, "train.py", 6400, "alice"), ProcessSample(None, None, None, None)
    lists = [[train], [train], [train._replace(memory=6500), unnamed], [], None, [unnamed]]

    def minute(number: int) -> list[PackedSample]:
        return [host(gpu("busy", processes=lists[number]), gpu("busy", index=1, processes=[train]))]

    record(history, NOON, 3, minute)
    if rolled_up:  # the hour is merged with what comes later
        roll(history, NOON + HOUR)
    record(history, NOON + 180, 3, lambda number: minute(number + 3))
    if rolled_up:
        roll(history, NOON + HOUR)
        assert not history.connect().execute("SELECT count(*) FROM minute").fetchone()[0]
    samples = history.read_minutes("atlas", 10, NOON + 600)
    assert [sample.gpus[0].processes for _, sample in samples] == [
        None if processes is None else tuple(processes) for processes in lists
    ]
    assert {sample.gpus[1].processes for _, sample in samples} == {(train,)}


def test_more_processes_of_a_gpu_than_anybody_has_are_not_recorded(history: HistoryWriter) -> None:
    processes = [ProcessSample(pid, "p" * 500, 1e9, "\ud800" * 500) for pid in range(MAX_RECORDED_PROCESSES + 1)]
    gpus = (gpu("busy", processes=processes[1:]), gpu("busy", index=1, processes=processes))
    record(history, NOON, 1, [host(*gpus)])
    first, second = only(history.read_minutes("atlas", 1, NOON)).gpus
    assert first.processes and len(first.processes) == MAX_RECORDED_PROCESSES
    assert (first.processes[0].program, first.processes[0].user) == ("p" * 100, "?" * 100)
    assert second.processes is None


@pytest.mark.parametrize("rolled_up", [False, True])
def test_what_an_older_gpuboard_recorded_has_no_processes(history: HistoryWriter, rolled_up: bool) -> None:
    record(history, NOON, 2, [host(gpu("busy", ["bob"], processes=[ProcessSample(42, "python", 7000, "bob")]))])
    if rolled_up:
        roll(history, NOON + HOUR)
    table = "chunk" if rolled_up else "minute"
    for rowid, block in history.connect().execute(f"SELECT rowid, block FROM {table}").fetchall():  # noqa: S608
        words, columns = block_format.unpack_block(block)
        words.pop("processes", None)
        old = block_format.pack_block(words, columns, 1)
        history.connect().execute(f"UPDATE {table} SET block=? WHERE rowid=?", (old, rowid))  # noqa: S608
    samples = [sample for _, sample in history.read_minutes("atlas", 5, NOON + HOUR)]
    assert [sample.gpus[0].processes for sample in samples] == [None, None]
    assert samples[0].gpus[0].occupancy.people.users == ("bob",)


def test_logins_are_kept_where_the_page_must_not_name_them(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpus=row(0, 7000, 55), processes=process(), ps=person())
    lab.build(privacy=PrivacySettings(users=False))
    assert only(HistoryReader(lab.state, timezone.utc).read_minutes("atlas", 1, time.time())).gpus[
        0
    ].occupancy.people.users == ("alice",)
    published = [path for path in lab.www.rglob("*") if path.is_file() and "assets" not in path.parts]
    assert not [path for path in published if b"alice" in path.read_bytes()]
    assert (lab.state / "history.db").stat().st_mode & 0o777 == 0o600


def test_a_host_that_is_not_fresh_is_a_gap_and_no_zero(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpus=row(0, 7000, 55))
    lab.build()
    lab.build(after=3600)
    past = HistoryReader(lab.state, timezone.utc)
    assert len(past.read_minutes("atlas", 10, time.time() + 3600)) == 1
    drawn = past.read_host("atlas", time.time() + 3000, time.time() + 3600, 60)
    assert drawn.gpus == ()
    assert set(drawn.list_values("load")) == {None}


def test_unavailable_values_stay_unavailable(history: HistoryWriter) -> None:
    nothing = gpu("unknown", use=None, memory=None, temperature=None, power=None)
    record(history, NOON, 1, [host(nothing, load=None, memory=None)])
    roll(history, NOON + 3 * DAY)
    host_history = history.read_host("atlas", NOON, NOON + 300, 300)
    for column in ("use", "memory", "temperature", "power"):
        assert host_history.gpus[0].list_values(column) == [None]
    assert host_history.list_values("load") == host_history.list_values("own_memory") == [None]
    assert list(host_history.gpus[0].columns["unknown"]) == [1]


@pytest.mark.parametrize("wild", [float("inf"), float("nan"), -5.0, 1e300])
def test_a_number_that_no_gpu_can_have_harms_nothing(history: HistoryWriter, wild: float) -> None:
    record(history, NOON, 1, [host(gpu(use=wild, memory=wild, temperature=wild, power=wild), load=wild, memory=wild)])
    roll(history, NOON + 3 * DAY)
    assert history.read_host("atlas", NOON, NOON + 60, 300).gpus


def test_a_minute_is_recorded_once_and_the_first_counts(history: HistoryWriter) -> None:
    history.record([host(gpu(use=10))], NOON + 2)
    history.record([host(gpu(use=90))], NOON + 32)
    second_writer = HistoryWriter(history.path.parent, timezone.utc)
    second_writer.record([host(gpu(use=95))], NOON + 42)
    second_writer.close()
    assert only(history.read_minutes("atlas", 9, NOON + 59)).gpus[0].use == 10


def test_minutes_that_a_slow_builder_cannot_see_are_like_the_last_one(history: HistoryWriter) -> None:
    history.record([host(gpu(use=10))], NOON, reach=300)
    history.record([host(gpu(use=90))], NOON + 300, reach=300)
    history.record([host(gpu(use=90))], NOON + 1300, reach=300)
    use_by_minute = history.read_host("atlas", NOON, NOON + 1320, 60).gpus[0].list_values("use")
    assert use_by_minute == [10] * 5 + [90] + [None] * 15 + [90]


def test_a_minute_without_fresh_hosts_is_recorded_as_seen(history: HistoryWriter) -> None:
    history.record([host(gpu(use=10))], NOON, reach=300)
    history.record([], NOON + 60, reach=300)
    history.record([host(gpu(use=10))], NOON + 120, reach=300)
    assert history.read_host("atlas", NOON, NOON + 180, 60).gpus[0].list_values("use") == [10, None, 10]


def test_a_builder_that_looks_often_leaves_a_gap_where_it_did_not_run(history: HistoryWriter) -> None:
    history.record([host(gpu(use=10))], NOON, reach=10)
    history.record([host(gpu(use=90))], NOON + 180, reach=10)
    assert history.read_host("atlas", NOON, NOON + 240, 60).gpus[0].list_values("use") == [10, None, None, 90]


def story(number: int) -> list[PackedSample]:
    state = "busy" if number % 120 < 90 else "free"
    users = (["alice"] if number % 120 < 60 else ["bob"]) if state == "busy" else []
    return [host(gpu(state, users, use=number % 100, temperature=30 + number % 50, power=100 + number % 7))]


@pytest.mark.slow
@pytest.mark.parametrize("rolled", [False, True])
def test_buckets_say_the_same_before_and_after_they_are_rolled_up(history: HistoryWriter, rolled: bool) -> None:
    start = epoch("2026-03-10T00:00")
    record(history, start, 1440, story)
    if rolled:
        roll(history, start + DAY + 600)
    for step in (60, 300, 3600):
        width = step // 60
        host_history = history.read_host("atlas", start, start + DAY, step)
        (gpu_history,) = host_history.gpus
        assert host_history.bucket_count == 1440 // width
        for column, less, turn in (("use", 0, 100), ("power", 100, 7)):
            for slot, bucket_average in enumerate(gpu_history.list_values(column)):
                minute_readings = [less + n % turn for n in range(slot * width, slot * width + width)]
                assert bucket_average == pytest.approx(sum(minute_readings) / width, abs=0.51)
        for slot, bucket_average in enumerate(gpu_history.list_values("temperature")):
            assert bucket_average == max(30 + n % 50 for n in range(slot * width, slot * width + width))
        busy = [
            sum(n % 120 < 90 for n in range(s * width, s * width + width)) for s in range(host_history.bucket_count)
        ]
        assert list(gpu_history.columns["busy"]) == busy
        assert list(gpu_history.columns["seen"]) == [width] * host_history.bucket_count
        owners = gpu_history.list_people("owner")
        assert owners[0] == "alice"
        assert owners[70 * 60 // step if step < 3600 else 1] == "bob"
        assert (owners[100 * 60 // step] if step < 3600 else None) is None


def test_gaps_stay_gaps_at_every_step(history: HistoryWriter) -> None:
    start = epoch("2026-03-10T00:00")
    record(history, start, 62, [host(gpu(use=50))])
    record(history, start + 6 * HOUR, 10, [host(gpu(use=50))])
    roll(history, start + 40 * DAY)
    for step in (300, 3600):
        host_history = history.read_host("atlas", start, start + DAY, step)
        use_by_bucket = host_history.gpus[0].list_values("use")
        seen = list(host_history.gpus[0].columns["seen"])
        assert [bucket is None for bucket in use_by_bucket] == [not bucket for bucket in seen]
        assert sum(seen) == 72
    assert history.read_host("atlas", start, start + DAY, 3600).gpus[0].list_values("use")[:7] == [
        50,
        50,
        *[None] * 4,
        50,
    ]


@pytest.mark.slow
def test_history_becomes_coarser_with_age(history: HistoryWriter) -> None:
    start = epoch("2026-01-01T00:00")
    for day in range(80):
        record(history, start + day * DAY + 12 * HOUR, 5, [host(gpu(use=50))])
        roll(history, start + (day + 1) * DAY + 60)
    now = start + 80 * DAY + 60
    connection = history.connect()
    oldest = {
        step: (now - at) / DAY for step, at in connection.execute("SELECT step, min(at) FROM chunk GROUP BY step")
    }
    assert 2 <= oldest[60] <= 3
    assert 35 <= oldest[300] <= 36.1
    assert oldest[3600] >= 80
    assert connection.execute("SELECT count(*) FROM minute").fetchone() == (0,)
    assert history.read_host("atlas", start, now, 3600).gpus[0].list_values("use").count(50) == 80


def test_the_finest_step_that_is_kept_is_chosen() -> None:
    assert choose_finest_bucket_step(NOON - DAY, NOON) == 60
    assert choose_finest_bucket_step(NOON - 7 * DAY, NOON) == 300
    assert choose_finest_bucket_step(NOON - 365 * DAY, NOON) == 3600


def test_a_roll_up_is_bounded_and_goes_on_where_it_stopped(history: HistoryWriter) -> None:
    hosts = [host(gpu(use=10), name=f"gpu{number}") for number in range(40)]
    record(history, NOON, 60, hosts)
    rounds = 0
    while not history.roll_up(NOON + HOUR, 0):
        rounds += 1
    assert rounds >= 16
    assert (
        sum(seen_day.seen.seen for seen_day in history.read_daily_usage(day(NOON), day(NOON), NOON + HOUR).seen)
        == 40 * 60
    )


def day(at: float) -> date:
    return datetime.fromtimestamp(at, timezone.utc).date()


def test_the_last_minutes_are_reported_across_the_roll_up(history: HistoryWriter) -> None:
    record(history, NOON - 30 * 60, 60, lambda number: [host(gpu(use=number))])
    roll(history, NOON + 60)
    minute_samples = history.read_minutes("atlas", 50, NOON + 30 * 60)
    assert [host_sample.gpus[0].use for _, host_sample in minute_samples] == list(range(10, 60))
    assert [at for at, _ in minute_samples] == [NOON - 30 * 60 + 60 * number for number in range(10, 60)]
    assert history.read_minutes("nobody", 5, NOON) == []


def test_a_gpu_that_moves_to_another_host_is_reported_by_both(history: HistoryWriter) -> None:
    moved = gpu(key="GPU-moved", use=70)
    record(history, NOON, 10, [host(gpu(index=0), moved, name="atlas"), host(gpu(key="GPU-9"), name="hydra")])
    record(history, NOON + 600, 10, [host(gpu(index=0), name="atlas"), host(gpu(key="GPU-9"), moved, name="hydra")])
    for now in (NOON + 1200, NOON + 3 * DAY):
        roll(history, now)
        step = 60 if now < NOON + DAY else 300
        for name, half in (("atlas", slice(None, 10 * 60 // step)), ("hydra", slice(10 * 60 // step, None))):
            gpus_by_key = {
                gpu_history.series.key: gpu_history
                for gpu_history in history.read_host(name, NOON, NOON + 1200, step).gpus
            }
            assert len(gpus_by_key) == 2
            use_by_bucket = gpus_by_key["GPU-moved"].list_values("use")
            assert set(use_by_bucket[half]) == {70}
            assert use_by_bucket.count(70) * 2 == len(use_by_bucket)


def test_a_gpu_that_comes_later_has_no_past(history: HistoryWriter) -> None:
    record(history, NOON, 7, [host(gpu(index=0, use=10))])
    record(history, NOON + 420, 7, [host(gpu(index=0, use=10), gpu(index=1, use=20))])
    roll(history, NOON + 3 * DAY)
    first, second = history.read_host("atlas", NOON, NOON + 900, 300).gpus
    assert first.list_values("use") == [10, 10, 10]
    assert first.columns["seen"][0] == 5
    assert second.list_values("use") == [None, 20, 20]


@pytest.mark.parametrize("rolled", [0, HOUR, 2 * DAY])
def test_a_bucket_in_which_a_host_got_other_gpus_has_all_of_its_minutes(history: HistoryWriter, rolled: int) -> None:
    before = gpu("busy", ["alice"], ["dana"], use=60, temperature=70, power=100)
    record(history, NOON, 20, [host(before)])
    record(history, NOON + 20 * 60, 40, [host(gpu("held", ["bob"], use=0, power=40), gpu(index=1))])
    if rolled:
        roll(history, NOON + rolled)
    first, second = history.read_host("atlas", NOON, NOON + HOUR, HOUR).gpus
    assert [first.columns[name][0] for name in ("seen", "busy", "held", "promised")] == [60, 20, 40, 20]
    assert [first.list_values(name) for name in ("use", "temperature", "power")] == [[20], [70], [60]]
    assert (first.list_people("owner"), first.list_people("booker")) == (["bob"], ["dana"])
    assert second.columns["seen"][0] == 40


def test_names_in_odd_letters_come_back_as_they_were(history: HistoryWriter) -> None:
    names = ["Łukasz", "张伟", "O'Brien; DROP TABLE", 'q"uote', "=cmd()", "é" * 40]
    record(history, NOON, 3, [host(gpu("busy", names, names[:1]))])
    roll(history, NOON + 3 * DAY)
    daily_usage = history.read_daily_usage(day(NOON), day(NOON), NOON + 3 * DAY)
    assert sorted({row.person for row in daily_usage.shares}) == sorted(names)


@pytest.mark.slow
def test_a_thousand_gpus_on_one_host(history: HistoryWriter) -> None:
    gpus = [gpu("busy", [f"user{number}"], index=number, use=number % 100) for number in range(1000)]
    record(history, NOON, 3, [host(*gpus)])
    roll(history, NOON + 3 * DAY)
    host_history = history.read_host("atlas", NOON, NOON + 300, 300)
    assert [gpu_history.list_values("use") for gpu_history in host_history.gpus] == [
        [number % 100] for number in range(1000)
    ]
    assert [gpu_history.list_people("owner") for gpu_history in host_history.gpus] == [
        [f"user{number}"] for number in range(1000)
    ]


def test_gpus_that_nothing_shows_apart_are_kept_apart() -> None:
    nameless = GpuStatus(Gpu(None, None, "A100"), "A100", "free", "")
    host_sample = sample_host(HostStatus("atlas", None, (), "fresh", "", gpus=(nameless, nameless)))
    assert host_sample
    assert len({gpu_sample.series.key for gpu_sample in host_sample.gpus}) == 2


def test_forgetting_a_host_keeps_its_history(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    lab.build()
    (lab.state / "forget").mkdir()
    (lab.state / "forget/atlas").touch()
    lab.build()
    assert HistoryReader(lab.state, timezone.utc).list_hosts() == ["atlas"]


def test_without_a_file_there_is_no_history_yet(tmp_path: Path) -> None:
    past = HistoryReader(folder(tmp_path), timezone.utc)
    assert not past.exists
    assert past.read_host("atlas", 0, 600, 60).gpus == ()
    assert past.read_minutes("atlas", 1, NOON) == []
    assert past.read_daily_usage(day(0), day(NOON), NOON) == ([], [])
    assert past.problem is None
