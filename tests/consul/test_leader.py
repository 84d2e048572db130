"""One of several builders leads; another takes over within 15 s, and at no moment do two believe that they lead."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_builder.board.builder import Builder
from site_builder.consul import leader
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import KvStore, KvValue
from site_builder.consul.leader import LeaderCandidate, Leadership, LeadershipStatus
from tests.support import kv_fixtures
from tests.support.board_fixture import Lab, gpu
from tests.support.consul_server import ConsulServer
from tests.support.kv_fixtures import PREFIX, Hosts
from tests.support.ports import free_port

PATIENCE = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests starts a process in its own time."""
    monkeypatch.setattr("site_builder.board.builder.LEADERSHIP_TIMEOUT_S", PATIENCE)


@pytest.fixture
def store(tmp_path: Path, consul: ConsulServer) -> Hosts:
    return Hosts(tmp_path / "hosts", consul.address)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """Two who would lead, on one clock."""

    def __init__(self, address: str) -> None:
        self.clock = Clock()
        self.store = KvStore(kv_fixtures.access(address))
        self.one, self.two = (LeaderCandidate(self.store, name, self.clock) for name in ("one", "two"))

    def after(self, seconds: float, who: LeaderCandidate) -> LeadershipStatus:
        self.clock.now += seconds
        return who.attempt()


@pytest.fixture
def pair(store: Hosts) -> Iterator[Pair]:
    candidates = Pair(store.address)
    yield candidates
    candidates.one.release()
    candidates.two.release()


@pytest.mark.slow
def test_first_builder_leads_as_long_as_it_sends_heartbeats(pair: Pair, store: Hosts) -> None:
    assert pair.one.attempt().is_leader
    for _ in range(8):
        assert pair.after(2, pair.one).is_leader
        assert pair.after(0.5, pair.two) == LeadershipStatus(False, pair.clock.now, "one")
    assert (store.get("leader") or b"").startswith(b"one beat ")


def test_leader_that_is_silent_for_8_seconds_loses_the_lead_and_notices(pair: Pair) -> None:
    pair.one.attempt()
    assert not pair.after(1, pair.two).is_leader
    assert not pair.after(7.9, pair.two).is_leader
    word = pair.after(0.2, pair.two)
    assert (word.is_leader, word.taken_from) == (True, "one")
    assert pair.after(0, pair.one) == LeadershipStatus(False, pair.clock.now, "two")
    pair.two.release()
    assert [pair.after(1, pair.one).is_leader for _ in range(2)] == [False, True]


def test_released_lead_goes_to_another_at_the_second_attempt_so_that_cron_does_not_change_it(
    pair: Pair,
) -> None:
    for _ in range(2):
        assert pair.after(1, pair.one).is_leader
        assert not pair.after(0, pair.two).is_leader
        pair.one.release()
        assert not pair.after(1, pair.two).is_leader
        pair.one = LeaderCandidate(pair.store, "one", pair.clock)
    pair.after(1, pair.one)
    pair.one.release()
    assert [pair.after(2, pair.two).is_leader for _ in range(2)] == [False, True]


def test_outage_of_consul_counts_as_nobodys_silence(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.one.attempt()
    pair.two.attempt()
    with monkeypatch.context() as away:
        away.setattr(
            pair.store, "get", lambda _: (_ for _ in ()).throw(ConsulUnavailableError("answers with an error (500)"))
        )
        for _ in range(6):
            assert pair.after(2, pair.one) == LeadershipStatus(
                False, pair.clock.now, problem="answers with an error (500)"
            )
            assert not pair.after(0.1, pair.two).is_leader
    assert not pair.after(0.1, pair.two).is_leader  # it is back, and whoever leads has time to say so
    assert pair.after(1, pair.one).is_leader
    assert not pair.after(1, pair.two).is_leader
    assert not pair.after(6, pair.two).is_leader


def test_after_consul_lost_its_data_nobody_leads_before_the_old_lease_ends(
    pair: Pair, store: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.one.attempt()
    pair.two.attempt()
    store.call("PUT", f"/v1/session/destroy/{pair.one.session}")
    store.delete("leader")
    assert not pair.after(1, pair.two).is_leader
    assert not pair.after(5.9, pair.two).is_leader
    assert pair.after(0.2, pair.two).is_leader
    pair.two.release()
    with monkeypatch.context() as away:
        away.setattr(pair.store, "get", lambda _: (_ for _ in ()).throw(ConsulUnavailableError("does not answer")))
        assert not pair.after(1, pair.one).is_leader
    pair.one.session = None
    assert not pair.after(5.9, pair.one).is_leader
    assert pair.after(0.2, pair.one).is_leader


def test_silence_counts_from_when_the_response_arrives(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.one.attempt()
    get = pair.store.get

    def slow(key: str) -> KvValue | None:
        pair.clock.now += 2.9
        return get(key)

    with monkeypatch.context() as late:
        late.setattr(pair.store, "get", slow)
        pair.two.attempt()
    assert not pair.after(7.9, pair.two).is_leader
    assert pair.after(0.2, pair.two).is_leader


def test_health_check_of_an_agent_ends_no_session(pair: Pair, store: Hosts) -> None:
    pair.one.attempt()
    (session,) = store.call("GET", f"/v1/session/info/{pair.one.session}")
    assert not session.get("Checks")
    assert not session.get("NodeChecks")


def test_a_session_that_consul_ended_is_replaced(pair: Pair, store: Hosts) -> None:
    pair.one.attempt()
    store.call("PUT", f"/v1/session/destroy/{pair.one.session}")
    assert [pair.after(2, pair.one).is_leader for _ in range(2)][-1]


def test_leader_key_with_nonsense_belongs_to_somebody(pair: Pair, store: Hosts) -> None:
    pair.one.attempt()
    session = pair.one.session
    for content in (b"\x1b[31m", b"x" * 5000, b"", b"../x beat 1"):
        store.call("PUT", f"/v1/kv/{PREFIX}/leader?acquire={session}", content)
        assert pair.after(0.1, pair.two).leader == "somebody"


# The process beside a builder


def wait_for(lead: Leadership, leads: bool = True) -> None:
    end = time.monotonic() + PATIENCE
    while lead.is_leader() != leads:
        assert time.monotonic() < end, lead.status
        time.sleep(0.05)


@pytest.mark.slow
def test_a_builder_that_ends_gives_the_lead_away_and_one_without_consul_does_not_lead(
    store: Hosts, tmp_path: Path
) -> None:
    access = kv_fixtures.access(store.address)
    first_lead = Leadership(tmp_path, access)
    try:
        assert first_lead.is_leader(PATIENCE)
        assert first_lead.name == leader.load_leader_builder_name(tmp_path)  # it keeps its name
        second_folder = tmp_path / "other"
        second_folder.mkdir()
        two = Leadership(second_folder, access)
        try:
            assert not two.is_leader(PATIENCE)
            assert two.status
            assert two.status.leader == first_lead.name
            first_lead.close()
            wait_for(two)
            process = two.process
            process.kill()
            process.wait()
            assert not two.is_leader()  # it is started again, and first has to find out
            assert two.process is not process
        finally:
            two.close()
    finally:
        first_lead.close()
    away = Leadership(tmp_path, kv_fixtures.access(f"127.0.0.1:{free_port()}"))
    try:
        assert not away.is_leader(PATIENCE)
        assert away.status
        assert away.status.problem == "does not answer (connection refused)"
    finally:
        away.close()


@pytest.mark.slow
def test_heartbeat_counts_for_6_seconds(store: Hosts, tmp_path: Path) -> None:
    lead = Leadership(tmp_path, kv_fixtures.access(store.address))
    try:
        assert lead.is_leader(PATIENCE)
        lead.status = LeadershipStatus(True, time.monotonic() - leader.LEASE_S)
        lead.read_status = lambda: None  # type: ignore[method-assign] # the process hangs
        assert not lead.is_leader()
    finally:
        lead.close()


# One site that several write


@pytest.mark.slow
def test_shared_site_is_written_only_by_the_leader(store: Hosts, tmp_path: Path) -> None:
    store.push("atlas", gpu())
    labs = [Lab(tmp_path / name) for name in ("one", "two")]
    www = tmp_path / "www"
    access = kv_fixtures.access(store.address)
    builder = Builder(labs[0].settings(kv=access, www=www), build_interval_s=1)
    assert builder.leadership
    wait_for(builder.leadership)
    two = Builder(labs[1].settings(kv=access, www=www), build_interval_s=1)
    assert two.leadership
    try:
        assert "index.html" in builder.build(time.time()).written_files
        assert (www / ".builder").read_text() == f"{builder.leadership.name}\n"
        store.push("atlas", gpu(0, 9000, 97))
        report = two.build(time.time())
        assert (report.host_count, report.written_files, two.is_leader) == (1, [], False)
        builder.close()
        wait_for(two.leadership)
        builder = Builder(labs[0].settings(kv=access, www=www), build_interval_s=1)
        assert "index.html" in two.build(time.time()).written_files
        assert (www / ".builder").read_text() == f"{two.leadership.name}\n"
        assert builder.build(time.time()).written_files == []
        assert b'"state":"busy"' in (www / "status.json").read_bytes()
    finally:
        builder.close()
        two.close()


@pytest.mark.slow
def test_builders_with_separate_sites_all_write(store: Hosts, tmp_path: Path) -> None:
    store.push("atlas")
    labs = [Lab(tmp_path / name) for name in ("one", "two")]
    builders = [Builder(lab.settings(kv=kv_fixtures.access(store.address)), build_interval_s=1) for lab in labs]
    try:
        for builder in builders:
            assert "index.html" in builder.build(time.time()).written_files
        assert [builder.is_leader for builder in builders].count(
            True
        ) == 1  # with the first build, which may be the only one
    finally:
        for builder in builders:
            builder.close()


def test_first_status_is_a_decision_since_some_builders_read_no_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.one.attempt()
    pair.one.release()
    monkeypatch.setattr(leader, "HEARTBEAT_INTERVAL_S", 0.1)
    (builder, here), (words, tell) = os.pipe(), os.pipe()
    thread = threading.Thread(target=leader.run_leader_candidate, args=(pair.two, builder, tell))
    thread.start()
    first = json.loads(os.read(words, 65536).split(b"\n")[0])
    os.close(here)
    thread.join(PATIENCE)
    for handle in (builder, words, tell):
        os.close(handle)
    assert first["is_leader"]


@pytest.mark.slow
def test_the_process_beside_a_builder_holds_none_of_its_locks(store: Hosts, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "one")
    held = os.open(lab.state / "lock", os.O_RDWR | os.O_CREAT)
    builder = Builder(lab.settings(kv=kv_fixtures.access(store.address)), build_interval_s=1)
    assert builder.leadership
    try:
        files = Path(f"/proc/{builder.leadership.process.pid}/fd")
        assert str(lab.state / "lock") not in [str(link.readlink()) for link in files.iterdir()]
    finally:
        builder.close()
        os.close(held)
