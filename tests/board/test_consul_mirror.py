"""data/ as a copy of Consul's KV store: what moved is new, what did not grows old, and nothing else gets in."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.board import consul_mirror
from site_builder.board.builder import Builder, BuildReport
from site_builder.config.schema import parse_kv_setting
from site_builder.consul import kv
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import KvStore
from site_builder.consul.leader import LeaderCandidate
from site_builder.snapshots import envelope
from tests.support import kv_fixtures
from tests.support.board_fixture import Lab, gpu, words
from tests.support.booking_fixtures import done
from tests.support.command_line import run_gpuboard
from tests.support.consul_server import ROOT, TOOLS, ConsulServer
from tests.support.kv_fixtures import PREFIX, Hosts
from tests.support.missing import missing
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads is no question here."""
    monkeypatch.setattr("site_builder.consul.leader.Leadership", kv_fixtures.Alone)


@pytest.fixture
def hosts(tmp_path: Path, consul: ConsulServer) -> Hosts:
    return Hosts(tmp_path / "hosts", consul.address)


class Web:
    """A web host: its folders, and a builder that builds again and again."""

    def __init__(self, folder: Path, address: str) -> None:
        self.lab = Lab(folder)
        self.settings = self.lab.settings(kv=kv_fixtures.access(address))
        self.builder = Builder(self.settings, build_interval_s=1)

    def build(self, after: float = 0) -> BuildReport:
        return self.builder.build(time.time() + after)

    def again(self) -> None:
        """As after a restart."""
        self.builder.close()
        self.builder = Builder(self.settings, build_interval_s=1)

    def states(self) -> dict[str, str]:
        return {host["name"]: host["state"] for host in self.lab.status()["hosts"]}


@contextmanager
def web_of(folder: Path, address: str) -> Iterator[Web]:
    web_host = Web(folder, address)
    try:
        yield web_host
    finally:
        web_host.builder.close()


@pytest.fixture
def web(tmp_path: Path, consul: ConsulServer) -> Iterator[Web]:
    with web_of(tmp_path / "web", consul.address) as web_host:
        yield web_host


@pytest.mark.slow
def test_what_hosts_put_there_is_on_the_board_as_the_usual_files(hosts: Hosts, web: Web) -> None:
    hosts.push("atlas", gpu(0), gpu(1, 9000, 97))
    hosts.push("zeus")
    assert words(web.build()) == ""
    assert web.states() == {"atlas": "fresh", "zeus": "fresh"}
    assert web.lab.states("atlas") == ["free", "busy"]
    folder = web.lab.data / "atlas"
    assert kv_fixtures.names_in(folder) == ["gpus.csv", "host.txt", "processes.csv", "ps.txt"]
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert stat.S_IMODE((folder / "gpus.csv").stat().st_mode) == 0o640
    hosts.push("atlas", gpu(0, 9000, 97), ago=-2)
    web.build()
    snapshot = gzip.decompress(hosts.get("data/atlas") or b"")
    assert b"".join((folder / file).read_bytes() for file in kv_fixtures.FILES) == snapshot


@pytest.mark.slow
def test_only_what_moved_is_written_and_of_that_only_the_files_that_are_others(hosts: Hosts, web: Web) -> None:
    hosts.push("atlas")
    hosts.push("zeus")
    web.build()
    moment = int(time.time())
    hosts.push("atlas", time=moment)
    web.build()
    before = {path: path.stat().st_ino for path in web.lab.data.glob("*/*")}
    old, new = (hosts.value("atlas", time=moment + later, every=10) for later in (0, 5))
    kept = old.split(b"# end\n")[:3] + new.split(b"# end\n")[3:]
    hosts.put("data/atlas", gzip.compress(b"# end\n".join(kept)))
    web.build()
    after = {path: path.stat().st_ino for path in web.lab.data.glob("*/*")}
    assert [f"{path.parent.name}/{path.name}" for path in after if after[path] != before[path]] == ["atlas/host.txt"]


@pytest.mark.slow
def test_the_age_of_a_host_is_when_the_builder_saw_its_entry_move_whatever_its_clock_says(
    hosts: Hosts, web: Web
) -> None:
    hosts.push("atlas", ago=3600)
    web.build()
    assert web.states() == {"atlas": "down"}
    hosts.push("atlas", ago=3590)
    hosts.push("zeus", ago=7200)  # a host that begins while we look on
    web.build()
    assert web.states() == {"atlas": "fresh", "zeus": "fresh"}
    web.build(70)
    assert web.states() == {"atlas": "stale", "zeus": "stale"}


@pytest.mark.slow
def test_an_old_entry_is_not_new_to_a_builder_that_has_just_begun(hosts: Hosts, web: Web) -> None:
    hosts.push("dead", ago=600)
    hosts.push("late", ago=90)
    hosts.push("alive", ago=2)
    web.build()
    assert web.states() == {"alive": "fresh", "dead": "down", "late": "stale"}
    assert 600 <= web.lab.host_status("dead")["age"] <= 620


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["state", "data", "both"])
def test_an_old_snapshot_never_looks_new_after_state_or_data_was_lost(hosts: Hosts, web: Web, lost: str) -> None:
    hosts.push("dead", ago=600)
    hosts.push("alive")
    web.build()
    web.builder.close()
    for folder in (web.lab.state, web.lab.data):
        if lost in (folder.name, "both"):
            shutil.rmtree(folder)
            folder.mkdir()
    web.builder = Builder(web.settings, build_interval_s=1)
    hosts.push("alive")
    web.build()
    assert web.states() == {"alive": "fresh", "dead": "down"}


@pytest.mark.slow
def test_an_entry_that_changed_before_the_builder_started_is_as_old_as_it_says(hosts: Hosts, web: Web) -> None:
    hosts.push("dead", ago=4000)
    hosts.push("ahead", ago=-4000)
    web.build()
    web.build()
    web.builder.close()
    kv_fixtures.made_old(web.lab.state, 3600)
    web.builder = Builder(web.settings, build_interval_s=1)
    hosts.push("dead", ago=1800)
    hosts.push("ahead", ago=-4100)
    hosts.push("alive", ago=1)
    web.build()
    assert web.states() == {"ahead": "down", "alive": "fresh", "dead": "down"}
    assert 1800 <= web.lab.host_status("dead")["age"] <= 1820
    assert 3600 <= web.lab.host_status("ahead")["age"] <= 3660  # no more is known of it


@pytest.mark.slow
def test_an_old_snapshot_never_looks_new_after_a_restore_or_rewrite(hosts: Hosts, web: Web) -> None:
    same, older = (gzip.compress(hosts.value("dead", time=int(time.time()) - ago, every=10)) for ago in (700, 4000))
    hosts.put("data/dead", same)
    web.build()
    for content in (same, older):
        hosts.delete("data/dead")  # else Consul does not count the same content as a move
        hosts.put("data/dead", content)
        web.build()
        assert web.states() == {"dead": "down"}
        web.again()
    hosts.push("dead", ago=690)
    web.build()
    assert web.states() == {"dead": "fresh"}


@pytest.mark.slow
def test_an_old_entry_stays_old_for_a_builder_whose_clock_is_behind(hosts: Hosts, web: Web) -> None:
    hosts.push("dead", ago=4000)
    web.build()
    web.builder.close()
    kv_fixtures.made_old(web.lab.state, -7200)
    web.builder = Builder(web.settings, build_interval_s=1)
    hosts.push("dead", ago=3000)
    web.build()
    assert web.states() == {"dead": "down"}


@pytest.mark.slow
def test_an_old_snapshot_never_looks_new_by_a_forged_first_line(hosts: Hosts, web: Web) -> None:
    snapshot = hosts.value("dead", time=int(time.time()) - 4000, every=10)
    first = next(line for line in snapshot.split(b"\n") if b" task=host " in line)
    as_of_now = b"\n# as of %d" % time.time()
    for forged_suffix in (600 * b"\r", as_of_now, 600 * b"\r" + as_of_now):
        hosts.put("data/dead", gzip.compress(snapshot.replace(first, first + forged_suffix)))
        shutil.rmtree(web.lab.state)
        web.lab.state.mkdir()
        web.again()
        web.build()
        assert web.states() == {"dead": "down"}, forged_suffix


@pytest.mark.slow
def test_gpus_that_changed_within_the_same_second_are_copied_too(hosts: Hosts, web: Web) -> None:
    moment = int(time.time())
    hosts.push("atlas", time=moment)
    web.build()
    hosts.push("atlas", gpu(0, 9000, 97), time=moment)  # the GPUs are told more often than the host
    web.build()
    assert web.lab.states("atlas") == ["busy"]


@pytest.mark.slow
def test_a_site_whose_writer_has_gone_is_written_by_who_does_not_lead(hosts: Hosts, web: Web) -> None:
    hosts.push("atlas")
    web.build()
    (web.lab.www / ".builder").write_text("who-lost-its-state\n")
    web.builder.leadership.is_leader = lambda _=0: False  # type: ignore[union-attr,method-assign]
    assert web.build().written_files == []
    assert web.build(400).written_files


@pytest.mark.slow
def test_an_entry_with_a_clock_ahead_is_reported_and_shown_once_it_changes(hosts: Hosts, web: Web) -> None:
    hosts.push("atlas", ago=-600)
    for _ in range(2):
        assert "data/atlas is not copied: its clock is " in words(web.build())
        web.again()
    web.build()
    hosts.push("atlas", ago=-610)
    assert "not copied" not in words(web.build())
    assert web.states() == {"atlas": "fresh"}


@pytest.mark.slow
def test_a_host_whose_entry_is_deleted_grows_old(hosts: Hosts, web: Web) -> None:
    hosts.push("atlas")
    web.build()
    hosts.delete("data/atlas")
    assert f"{PREFIX}/data/ has no entries; correct GPUBOARD_KV, or if Consul has ACLs, the" in words(web.build())
    assert web.states() == {"atlas": "fresh"}
    web.build(700)
    assert web.states() == {"atlas": "down"}


def bomb() -> bytes:
    return gzip.compress(b"\0" * (64 << 20), 1)


@pytest.mark.slow
def test_a_foreign_entry_is_reported_and_the_old_data_stays(hosts: Hosts, web: Web, consul: ConsulServer) -> None:
    hosts.push("atlas")
    hosts.push("zeus")
    web.build()
    good = hosts.value("atlas")
    before = {path.name: path.read_bytes() for path in (web.lab.data / "atlas").iterdir()}
    cases = [
        (b"hello", "it is not gzip data"),
        (b"", "it is empty"),
        (gzip.compress(good)[:-20], "its gzip data is cut off"),
        (gzip.compress(good)[:-8] + b"\0" * 8, "its gzip data is damaged"),
        (gzip.compress(good) + b"more", "it has data after the end of its gzip data"),
        (gzip.compress(b""), "it is empty"),
        (gzip.compress(good[:-20]), "the file is incomplete: its end is missing"),
        (gzip.compress(good + good), "it has gpus.csv twice"),
        (gzip.compress(b"index, uuid\n# end\n"), "it is not a snapshot of gpuboard"),
        (gzip.compress(good.replace(b"task=ps", b"task=passwd")), "it has a snapshot of passwd, which is unknown"),
        (
            gzip.compress(good.replace(b"gpuboard 1 task=ps", b"gpuboard 9 task=ps")),
            "its snapshot format has version 9, which this gpuboard does not support",
        ),
        (gzip.compress(hosts.value("zeus")), "it says host=zeus, which does not match its key"),
        (bomb()[: 500 << 10], "it is larger than 8 MB"),
    ]
    for content, why in cases:
        hosts.put("data/atlas", content)
        assert words(web.build()) == f"Consul at {consul.address}: {PREFIX}/data/atlas is not copied: {why}", why
        assert web.states() == {"atlas": "fresh", "zeus": "fresh"}
    web.again()
    assert "larger than 8 MB" in words(web.build())  # a builder that begins anew tells it too
    assert {path.name: path.read_bytes() for path in (web.lab.data / "atlas").iterdir()} == before
    hosts.push("atlas")
    assert words(web.build()) == ""


@pytest.mark.slow
def test_keys_that_cannot_be_hosts_are_reported_and_not_copied(hosts: Hosts, web: Web, tmp_path: Path) -> None:
    hosts.push("atlas")
    for name in (
        "",
        "a/b",
        "../../x",
        "..",
        ".new",
        "-x",
        "x y",
        "\x1b[31m",
        "h\u00fc",
        *(f"bad {n}" for n in range(20)),
    ):
        hosts.put_odd(f"data/{name}", b"x" if name else b"")
    problem_lines = words(web.build()).splitlines()
    assert len(problem_lines) == 11
    assert sum("its name is neither a valid host name nor a known file" in line for line in problem_lines) == 10
    assert "18 more entries are not copied" in problem_lines[0]
    assert "\x1b" not in "".join(problem_lines)
    assert kv_fixtures.names_in(web.lab.data) == ["atlas"]
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_no_host_takes_the_place_of_a_file_that_gpuboard_makes_itself(hosts: Hosts, web: Web) -> None:
    hosts.push("bookings.log")
    hosts.push("comments.json.by-hand")
    assert words(web.build()).count("its name is neither a valid host name") == 2
    assert kv_fixtures.names_in(web.lab.data) == []


@pytest.mark.slow
def test_a_folder_of_a_host_that_is_a_link_is_not_written_into(hosts: Hosts, web: Web, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (web.lab.data / "atlas").symlink_to(tmp_path / "elsewhere")
    hosts.push("atlas")
    hosts.push("zeus")
    assert "data/atlas cannot be written: Not a directory" in words(web.build())
    assert not any((tmp_path / "elsewhere").iterdir())
    assert web.states() == {"zeus": "fresh"}


@pytest.mark.slow
def test_while_consul_is_away_the_last_data_serves_and_grows_old(tmp_path: Path) -> None:
    own = ConsulServer(tmp_path / "own")
    hosts = Hosts(tmp_path / "hosts", own.address)
    with web_of(tmp_path / "other", own.address) as web:
        try:
            hosts.push("atlas")
            web.build()
        finally:
            own.stop()
        for after, state in ((0, "fresh"), (70, "stale"), (700, "down")):
            problem_text = words(web.build(after))
            assert f"Consul at {own.address}: does not answer (connection refused); its data of 20" in problem_text
            assert "is used" in problem_text
            assert web.states() == {"atlas": state}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * 100_000, "does not answer with JSON"),
        (b"{}", "does not answer with a list of keys"),
        (b"", "does not answer with JSON"),
    ],
)
def test_a_malformed_response_is_reported(body: bytes, why: str) -> None:
    dump = kv.parse_kv_entries(body, "p/data/")
    assert (dump.is_complete, dump.problems) == (False, (why,))


def test_entries_that_consul_never_writes_cost_themselves() -> None:
    kv_entries = [
        7,
        None,
        {},
        {"Key": "q/data/x", "ModifyIndex": 1, "Value": ""},
        {"Key": "p/data/x", "ModifyIndex": "1"},
    ]
    kv_entries += [{"Key": "p/data/atlas", "ModifyIndex": 3, "Value": "eA=="}, {"Key": "p/data/", "ModifyIndex": 3}]
    dump = kv.parse_kv_entries(json.dumps(kv_entries).encode(), "p/data/")
    assert dump.rows == (kv.KvEntry("atlas", 3, "eA=="),)
    assert dump.problems == ("5 entries of its answer are not keys under p/data/ and are ignored",)
    many = [{"Key": f"p/data/h{number}", "ModifyIndex": 1, "Value": None} for number in range(20_001)]
    dump = kv.parse_kv_entries(json.dumps(many).encode(), "p/data/")
    assert (len(dump.rows), dump.problems) == (20_000, ("p/data/ has 20001 keys; only the first 20000 count",))


@pytest.mark.slow
@given(st.binary() | st.binary().map(gzip.compress), st.sampled_from(["atlas", "x"]))
def test_no_value_makes_us_fail(value: bytes, host: str) -> None:
    bundle = envelope.parse_bundle(value, host)
    assert bool(bundle.files) != bool(bundle.problem)


@pytest.mark.slow
def test_a_real_host_that_pushes_into_consul_is_on_the_board(
    hosts: Hosts, web: Web, consul: ConsulServer, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HOST": "atlas",
        "GPUBOARD_SPOOL": str(tmp_path / "spool"),
        "GPUBOARD_DEST": f"consul://{consul.address}/{PREFIX}",
    }
    run([str(ROOT / "scripts/gpu-run.sh"), "once"], env=environment, cwd=home, check=True)
    assert "not copied" not in words(web.build())
    assert web.states() == {"atlas": "failed"}  # this machine has no driver, which is its news
    assert web.lab.host_status()["cpus"] == os.cpu_count()
    assert hosts.get("data/atlas")


# The files that people write


@pytest.mark.slow
def test_the_files_that_people_write_are_copied_too(hosts: Hosts, web: Web) -> None:
    hosts.push("atlas")
    hosts.put("data/hosts.txt", b"atlas, The big one\nzeus\n")
    hosts.put("data/aliases.csv", b"alice,Alice A.\n")
    assert words(web.build()) == ""
    assert web.lab.host_status()["title"] == "The big one"
    assert web.states()["zeus"] == "unseen"
    inode = (web.lab.data / "hosts.txt").stat().st_ino
    web.build()
    web.again()
    web.build()
    assert (web.lab.data / "hosts.txt").stat().st_ino == inode
    hosts.put("data/hosts.txt", b"atlas, Ours\n")
    web.build()
    assert web.lab.host_status()["title"] == "Ours"


@pytest.mark.slow
def test_a_copy_changed_by_hand_is_kept_beside_and_reported(hosts: Hosts, web: Web) -> None:
    hosts.put("data/hosts.txt", b"atlas\n")
    web.build()
    (web.lab.data / "hosts.txt").write_text("atlas, Mine\n")
    hosts.put("data/aliases.csv", b"alice,Alice A.\n")
    problem_text = words(web.build())
    assert (
        "data/hosts.txt: was edited by hand, but is stored in Consul: your version is in data/hosts.txt.by-hand"
        in problem_text
    )
    assert (web.lab.data / "aliases.csv").exists()
    assert (web.lab.data / "hosts.txt").read_text() == "atlas\n"
    assert (web.lab.data / "hosts.txt.by-hand").read_text() == "atlas, Mine\n"
    (web.lab.data / "hosts.txt.by-hand").unlink()
    assert words(web.build()) == ""


# Forgetting


@pytest.mark.slow
def test_a_forgotten_host_is_gone_from_consul_too(hosts: Hosts, web: Web, consul: ConsulServer, tmp_path: Path) -> None:
    hosts.push("atlas")
    hosts.push("zeus")
    web.build()
    folder, settings = tmp_path / "web", kv_fixtures.environment(consul.address)
    done(folder, "forget", "atlas", **settings)
    assert hosts.get("data/atlas") is None
    web.build()
    assert web.states() == {"zeus": "fresh"}
    web.again()
    web.build()
    assert web.states() == {"zeus": "fresh"}
    away = run_gpuboard(folder, "forget", "zeus", GPUBOARD_KV=f"consul://127.0.0.1:{free_port()}/x")
    assert away.returncode == 2
    assert "nothing was removed" in away.stderr
    assert (web.lab.data / "zeus/host.txt").exists()


# Rights

BUILDER = f'''
key_prefix "{PREFIX}/" {{ policy = "write" }}
session_prefix "" {{ policy = "write" }}
'''


@pytest.mark.slow
def test_a_token_with_the_rights_that_the_docs_name_is_enough_and_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("data", "state"):
        (tmp_path / name).mkdir()
    locked = ConsulServer(tmp_path / "consul", acl=True)
    try:
        good, weak = (locked.new_token(rules) for rules in (BUILDER, BUILDER.replace("write", "read")))
        stores = [KvStore(kv_fixtures.access(locked.address, token=token)) for token in (good, weak, "unknown", None)]
        assert stores[0].put("data/hosts.txt", b"atlas\n")
        looks = [
            consul_mirror.ConsulMirror(tmp_path / "data", tmp_path / "state", store.access).copy_changes()
            for store in stores
        ]
        assert looks[:2] == [[], []]
        assert "refuses the request (ACL not found); the token needs `key_prefix`" in looks[2][0].what
        assert "has no entries; correct GPUBOARD_KV, or if Consul has ACLs, the token needs" in looks[3][0].what
        assert (tmp_path / "data/hosts.txt").read_text() == "atlas\n"
        candidates = [LeaderCandidate(store, "one") for store in stores[:2]]
        assert [entry.attempt().is_leader for entry in candidates] == [True, False]
        candidates[0].release()
        stores[0].delete("leader")
        unable = locked.new_token(BUILDER.replace("session_prefix", "agent_prefix"))
        lab = Lab(tmp_path / "web")
        monkeypatch.undo()  # this time it is a question who leads
        monkeypatch.setattr("site_builder.board.builder.LEADERSHIP_TIMEOUT_S", 60)
        builder = Builder(lab.settings(kv=kv_fixtures.access(locked.address, token=unable)), build_interval_s=1)
        try:
            builder.build(time.time())
            problem_texts = [entry.what for entry in builder.build(time.time()).problems]
        finally:
            builder.close()
        assert (
            "refuses the request (Permission denied); the token needs `session_prefix` with `write`" in problem_texts[0]
        )
        assert "this builder cannot lead" in problem_texts[0]
        with pytest.raises(
            ConsulUnavailableError, match=r"refuses the request .Permission denied.; the token needs `key_prefix`"
        ):
            stores[1].put("data/hosts.txt", b"mine")
        assert good not in locked.log.read_text()
        assert good not in (tmp_path / "state/kv.json").read_text()
    finally:
        locked.stop()


# Both libraries

CONFORMANCE = """
import sys
from pathlib import Path
import consul
assert Path(consul.__file__).is_relative_to(sys.argv[1]), consul.__file__
from site_builder.board.consul_mirror import ConsulMirror
from site_builder.bookings.consul_store import ConsulBookingStore
from site_builder.consul.leader import LeaderCandidate
from tests.support import kv_fixtures
folder, access = Path(sys.argv[2]), kv_fixtures.access(sys.argv[3])
print(ConsulMirror(folder / "data", folder / "state", access).copy_changes())
bookings = ConsulBookingStore(folder / "data", access)
bookings.read()
print(bookings.write(b"{}"), bookings.write(b"{ }"), ConsulBookingStore(folder / "data", access).read())
first, second = (LeaderCandidate(bookings.kv_store, name) for name in ("one", "two"))
print(first.attempt().is_leader, second.attempt().leader, first.attempt().is_leader)
first.release()
is_leader = second.attempt().is_leader or second.attempt().is_leader
print(is_leader, bookings.kv_store.delete("leader"), bookings.kv_store.get("leader"))
second.release()
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["python-consul", "py-consul"])
def test_python_consul_and_py_consul_behave_the_same(
    hosts: Hosts, consul: ConsulServer, tmp_path: Path, library: str
) -> None:
    if library == "py-consul" and sys.version_info < (3, 10):
        pytest.skip("py-consul needs Python 3.10")
    place = TOOLS / library
    if library == "py-consul" and not place.is_dir():
        missing("py-consul is not here; ./install.sh test fetches it")
    hosts.push("atlas")
    for name in ("data", "state"):
        (tmp_path / library / name).mkdir(parents=True)
    paths = [str(place), str(ROOT)] if library == "py-consul" else [str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CONSUL_HTTP_ADDR": "127.0.0.1:1"}
    where = str(place) if library == "py-consul" else "/"
    command = [sys.executable, "-W", "error", "-c", CONFORMANCE, where, str(tmp_path / library), consul.address]
    finished = run(command, env=environment, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.splitlines() == ["[]", "True False b'{}'", "True one True", "True None None"]
    assert kv_fixtures.names_in(tmp_path / library / "data") == ["atlas", "comments.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("consul://127.0.0.1:8501/gpuboard", ("127.0.0.1:8501", "gpuboard")),
        ("consul://consul.lab/a/b.c/", ("consul.lab:8500", "a/b.c")),
        ("consul://[::1]:81/x", ("[::1]:81", "x")),
        ("", None),
    ],
)
def test_the_setting_that_names_the_store(text: str, expected: object) -> None:
    assert parse_kv_setting(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("consul://a:8500", "consul://a:8500/", "consul://a:99999/x", "consul://u:p@a/x", "http://a/x"),
        *("consul://a/../x", "consul://a/x//y", "consul:///x", "consul://a/x y", "consul://a/x?dc=y"),
        "consul://a/" + 201 * "x",
    ],
)
def test_what_names_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"consul|http|99999"):
        parse_kv_setting(text)


def test_the_time_limits_leave_no_moment_in_which_two_lead() -> None:
    from site_builder.consul import leader  # noqa: PLC0415

    assert leader.HEARTBEAT_INTERVAL_S < leader.LEASE_S < leader.TAKEOVER_AFTER_S
    assert 2 * leader.HEARTBEAT_INTERVAL_S + leader.TAKEOVER_AFTER_S < 15
    assert consul_mirror.RECENT_CHECK_S > 60
