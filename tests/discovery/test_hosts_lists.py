"""Which hosts there are, by the lists that people write."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from site_builder.core.model import DiscoveredHost
from site_builder.discovery import hosts
from tests.support.consul_server import ConsulServer
from tests.support.discovery_fixtures import Answer, Lab, entry, fill, read, says


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def server(consul: ConsulServer) -> ConsulServer:
    """A Consul without ACLs that knows some hosts, by http and by https."""
    fill(consul)
    return consul


# Servers that are no good Consul.


@pytest.fixture
def stand_in() -> Iterator[Callable[[Answer], str]]:
    """Makes small HTTP servers that answer as they are told."""
    servers: list[ThreadingHTTPServer] = []

    def make(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):
                    answer(self)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"127.0.0.1:{server.server_address[1]}"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


# The lists that people write.


def test_without_any_list_the_hosts_are_those_in_data(lab: Lab) -> None:
    assert lab.read("hydra", "atlas") == ({"atlas": DiscoveredHost("atlas"), "hydra": DiscoveredHost("hydra")}, [])


def test_hosts_txt_counts_before_consul_and_that_before_hosts_json(lab: Lab, stand_in: Callable[[Answer], str]) -> None:
    (lab.data / "hosts.txt").write_text("atlas, Ours, b a, hidden\nhydra,, maintenance: fans\n")
    (lab.data / "hosts.json").write_text('{"atlas": "atlas.x", "hydra": "hydra.x", "titan": "titan", "old": "old.x"}')
    service = {"Tags": ["c", "b"], "Meta": {"title": "Theirs"}}
    nodes = [entry("atlas", Service=service), entry("hydra", Service=service), entry("titan"), entry("old.y")]
    hosts, problems = lab.read("atlas", address=stand_in(says(json.dumps(nodes))))
    every = ("Consul", "hosts.txt", "hosts.json")
    assert problems == []
    assert hosts == {
        "atlas": DiscoveredHost(
            "atlas", "Ours", ("b", "a", "c"), is_hidden=True, listed_by=every, consul_status="passing"
        ),
        "hydra": DiscoveredHost(
            "hydra", "Theirs", ("c", "b"), maintenance="fans", listed_by=every, consul_status="passing"
        ),
        "old": DiscoveredHost("old", "old.x", listed_by=("Consul", "hosts.json"), consul_status="passing"),
        "titan": DiscoveredHost("titan", listed_by=("Consul", "hosts.json"), consul_status="passing"),
    }


def break_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("name", ["hosts.txt", "hosts.json"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_by_link, "not read: it is a link, and links are not followed"),
        (lambda path: path.write_bytes(b" " * 1_048_577), "not read: it has 1048577 bytes, and the limit is 1048576"),
        (lambda path: path.unlink() or path.mkdir(), "not read: it is not a plain file"),
    ],
)
def test_a_list_that_cannot_be_read_is_answered_by_the_last_good_one(
    lab: Lab, name: str, damage: Callable[[Path], object], words: str
) -> None:
    path = lab.data / name
    path.write_text("atlas\n" if name == "hosts.txt" else '{"atlas": "atlas"}')
    discovery = lab.discovery()
    before, _ = read(discovery)
    assert stat.S_IMODE((lab.state / name).stat().st_mode) == 0o600
    damage(path)
    for again in (discovery, discovery, lab.discovery()):
        hosts, (problem,) = read(again)
        assert hosts == before == {"atlas": DiscoveredHost("atlas", listed_by=(name,))}
        assert problem.startswith(f"data/{name}: {words}")
        assert "; its content of 20" in problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"atlas": "atl', "line 1, column 11: this text"),
        ("", "line 1, column 1: a value is missing here"),
        ("[]", "it must be an object of names"),
        ("[" * 100_000, "it is nested too deeply to be read"),
    ],
)
def test_a_legacy_list_that_is_cut_or_no_json_is_answered_by_the_last_good_one(
    lab: Lab, content: str, words: str
) -> None:
    path = lab.data / "hosts.json"
    path.write_text('{"atlas": "atlas.x"}')
    discovery = lab.discovery()
    before, _ = read(discovery)
    path.write_text(content)
    for again in (discovery, discovery, lab.discovery()):
        hosts, (problem,) = read(again)
        assert hosts == before
        assert problem.startswith(f"data/hosts.json: not read: {words}")
        assert "; its content of 20" in problem


def test_a_list_that_is_removed_is_empty_and_not_remembered(lab: Lab) -> None:
    path = lab.data / "hosts.txt"
    path.write_text("atlas\n")
    discovery = lab.discovery()
    assert list(read(discovery)[0]) == ["atlas"]
    path.unlink()
    assert read(discovery) == ({}, [])
    assert list(lab.state.iterdir()) == []


def test_lists_that_did_not_change_are_not_parsed_again(lab: Lab) -> None:
    parsed: list[bytes] = []
    path = lab.data / "hosts.txt"
    path.write_text("atlas\na/b\n")
    discovery = lab.discovery()
    reader = discovery.hosts_txt_file.parser
    discovery.hosts_txt_file.parser = lambda data: parsed.append(data) or reader(data)  # type: ignore[func-returns-value]
    for _ in range(3):
        assert read(discovery)[1] == ["data/hosts.txt: line 2: 'a/b' is not a host name"]
    path.write_text("hydra\n")
    assert list(read(discovery)[0]) == ["hydra"]
    assert parsed == [b"atlas\na/b\n", b"hydra\n"]


def test_hosts_json_reports_what_does_not_count() -> None:
    dump = hosts.parse_hosts_json(b'\xef\xbb\xbf{"atlas": "a.x", "../x": "y", "hydra": 7, "titan": null}')
    assert dump.rows == (DiscoveredHost("atlas", "a.x"), DiscoveredHost("titan"))
    assert dump.problems == ("'../x' is not a host name", "the full name of hydra is not text")
