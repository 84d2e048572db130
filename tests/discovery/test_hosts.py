"""Hosts come from Consul, from hosts.txt and hosts.json, and from data/; a missing list costs no host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings import parser as booking_parser
from site_builder.consul import client
from site_builder.consul.client import ConsulRequest
from site_builder.core import people
from site_builder.core.model import ConsulAccess, DiscoveredHost, Problem
from site_builder.core.names import is_host_name
from site_builder.discovery import hosts
from site_builder.discovery.hosts import DiscoveredNode, HostDiscovery
from site_builder.fleet import gpu_models
from tests.support.consul_server import READ_ALL, ROOT, TOOLS, ConsulServer, free_ports, make_certificates, missing
from tests.support.pace import wall, within

Answer = Callable[[BaseHTTPRequestHandler], None]
SERVES = "; the list of 20"


class Lab:
    """A data folder, a builder's memory, and what it asks."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.state = folder / "state"
        self.data.mkdir()
        self.state.mkdir()

    def discovery(self, address: str | None = None, service: str = "gpu", **options: object) -> HostDiscovery:
        access = ConsulAccess(service, address=address, **options) if address else None  # type: ignore[arg-type]
        return HostDiscovery(self.data, self.state, access)

    def read(
        self, *in_data: str, address: str | None = None, **options: object
    ) -> tuple[dict[str, DiscoveredHost], list[str]]:
        """The hosts, and the problems as sentences; in no more time than there is."""
        return read(self.discovery(address, **options), *in_data)  # type: ignore[arg-type]


def read(discovery: HostDiscovery, *in_data: str) -> tuple[dict[str, DiscoveredHost], list[str]]:
    with within(30, wall):
        hosts, problems = discovery.list_hosts(in_data)
    return hosts, [f"{problem.where}: {problem.what}" for problem in problems]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def server(consul: ConsulServer) -> ConsulServer:
    """A Consul without ACLs that knows some hosts, by http and by https."""
    fill(consul)
    return consul


@pytest.fixture(scope="session")
def certificates(shared_consul: ConsulServer) -> Path:
    assert shared_consul.certificates
    return shared_consul.certificates


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[ConsulServer]:
    """A Consul that denies by default, and takes https only from those with a certificate."""
    folder = tmp_path_factory.mktemp("consul") / "locked"
    consul = ConsulServer(folder, acl=True, certificates=certificates, verify_incoming_https=True)
    try:
        consul.register("atlas", "gpu")
        yield consul
    finally:
        consul.stop()


def check(status: str, output: str = "", **fields: str) -> dict[str, str]:
    return {"CheckID": "nvidia", "Name": "nvidia-smi answers", "Status": status, "Output": output, **fields}


def fill(server: ConsulServer) -> None:
    server.register("atlas", "gpu", ("vision", "a100"), (check("passing", "all is well"),), title="The big one")
    alive = {"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing"}
    server.register("hydra.lab.example", "gpu", (), (alive, check("critical", "driver\nis \x1b[31mgone")))
    server.register("rack-7", "gpu", (), (check("warning", ServiceID="gpu"),), host="titan")
    closed = {"CheckID": "_node_maintenance", "Status": "critical", "Notes": "new fans"}
    server.register("kronos", "gpu", (), (check("passing"), closed))


def test_consul_lists_hosts_with_title_tags_and_state(lab: Lab, server: ConsulServer) -> None:
    hosts, problems = lab.read(address=server.address)
    assert problems == []
    by_consul = ("Consul",)
    assert hosts == {
        "atlas": DiscoveredHost(
            "atlas", "The big one", ("vision", "a100"), listed_by=by_consul, consul_status="passing"
        ),
        "hydra": DiscoveredHost(
            "hydra", listed_by=by_consul, consul_status="critical", consul_message="driver is ?[31mgone"
        ),
        "kronos": DiscoveredHost("kronos", maintenance="new fans", listed_by=by_consul, consul_status="passing"),
        "titan": DiscoveredHost(
            "titan", listed_by=by_consul, consul_status="warning", consul_message="nvidia-smi answers"
        ),
    }


def test_a_host_in_data_is_found_by_meta_by_name_and_by_short_name(lab: Lab, server: ConsulServer) -> None:
    hosts, problems = lab.read("Titan", "HYDRA", "atlas", "elsewhere", address=server.address)
    assert problems == []
    assert {name: host.consul_status for name, host in hosts.items()} == {
        "HYDRA": "critical",
        "Titan": "warning",
        "atlas": "passing",
        "elsewhere": None,
        "kronos": "passing",
    }
    assert [name for name, host in hosts.items() if host.is_missing_in_consul] == ["elsewhere"]


def test_the_full_name_is_matched_before_the_short_one(lab: Lab, server: ConsulServer) -> None:
    hosts, _ = lab.read("hydra.lab.example", "hydra", address=server.address)
    assert (hosts["hydra.lab.example"].consul_status, hosts["hydra"].is_missing_in_consul) == ("critical", True)


def test_maintenance_mode_of_an_agent_is_maintenance_and_no_failure(lab: Lab, server: ConsulServer) -> None:
    ttl = {"CheckID": "alive", "Name": "alive", "TTL": "60s", "Status": "passing"}
    server.call("PUT", "/v1/agent/service/register", {"Name": "own", "ID": "own-1", "Tags": ["x"], "Check": ttl})
    server.call("PUT", "/v1/agent/service/maintenance/own-1?enable=true&reason=disk%20swap")
    hosts, problems = lab.read(address=server.address, service="own")
    assert problems == []
    assert hosts == {
        "agent": DiscoveredHost(
            "agent", tags=("x",), maintenance="disk swap", listed_by=("Consul",), consul_status="passing"
        )
    }
    server.call("PUT", "/v1/agent/service/maintenance/own-1?enable=true")
    hosts, _ = lab.read(address=server.address, service="own")
    assert hosts["agent"].maintenance == "disk swap"  # Consul keeps the first reason
    server.call("PUT", "/v1/agent/service/maintenance/own-1?enable=false")
    server.call("PUT", "/v1/agent/maintenance?enable=true")
    hosts, _ = lab.read(address=server.address, service="own")
    server.call("PUT", "/v1/agent/maintenance?enable=false")
    assert hosts["agent"].maintenance == "no reason given"


def test_service_without_hosts_is_reported(lab: Lab, server: ConsulServer) -> None:
    hosts, (problem,) = lab.read("atlas", address=server.address, service="gpus")
    assert hosts == {"atlas": DiscoveredHost("atlas", is_missing_in_consul=True)}
    assert problem.startswith(
        f"Consul at {server.address}: no host has the service gpus; correct GPUBOARD_CONSUL_SERVICE, or"
    )


def test_unknown_datacenter_is_reported(lab: Lab, server: ConsulServer) -> None:
    hosts, (problem,) = lab.read("atlas", address=server.address, datacenter="mars")
    assert hosts == {"atlas": DiscoveredHost("atlas")}
    assert problem == (
        f"Consul at {server.address}: does not know the datacenter mars (No path to datacenter);"
        " correct GPUBOARD_CONSUL_DATACENTER; there is no earlier list that could serve"
    )
    assert lab.read(address=server.address, datacenter="dc1")[1] == []


def test_unknown_token_is_reported_with_the_rights_needed(lab: Lab, locked: ConsulServer) -> None:
    bad = "5e0c1f7a-0000-4000-8000-00000000bad0"
    hosts, (problem,) = lab.read(address=locked.address, token=bad)
    assert hosts == {}
    assert "refuses the question (ACL not found); the token needs `service:read` and `node:read`" in problem
    assert bad not in problem


def test_without_rights_consul_shows_nobody_and_the_token_is_named_as_the_reason(
    lab: Lab, locked: ConsulServer
) -> None:
    assert (
        "if Consul has ACLs, CONSUL_HTTP_TOKEN must be set, and the token needs"
        in lab.read(address=locked.address)[1][0]
    )
    weak = locked.new_token('key_prefix "" { policy = "read" }')
    assert "if Consul has ACLs, the token needs" in lab.read(address=locked.address, token=weak)[1][0]


def test_a_good_token_is_enough_and_is_written_nowhere(lab: Lab, locked: ConsulServer) -> None:
    good = locked.new_token(READ_ALL)
    hosts, problems = lab.read(address=locked.address, token=good)
    assert (list(hosts), problems) == (["atlas"], [])
    assert good not in (lab.state / "consul.json").read_text()
    assert good not in locked.log.read_text()


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "https://127.0.0.1:{}"])
def test_tls_with_its_own_ca(lab: Lab, server: ConsulServer, certificates: Path, form: str) -> None:
    hosts, problems = lab.read(
        address=form.format(server.tls_port), tls=not form.startswith("https"), ca=str(certificates / "ca.pem")
    )
    assert (sorted(hosts), problems) == (["atlas", "hydra", "kronos", "titan"], [])


def test_tls_of_another_ca_is_refused_in_one_sentence(lab: Lab, server: ConsulServer, tmp_path: Path) -> None:
    other_certificates = make_certificates(tmp_path / "other", "another")
    hosts, (problem,) = lab.read(address=f"https://127.0.0.1:{server.tls_port}", ca=str(other_certificates / "ca.pem"))
    assert hosts == {}
    assert "has a certificate that is not accepted (" in problem
    assert "set CONSUL_CACERT to the CA that signed it" in problem


def test_tls_that_is_not_verified_is_a_choice(lab: Lab, server: ConsulServer) -> None:
    _, (problem,) = lab.read(address=f"https://127.0.0.1:{server.tls_port}")
    assert "certificate that is not accepted" in problem
    hosts, problems = lab.read(address=f"https://127.0.0.1:{server.tls_port}", verify=False)
    assert (len(hosts), problems) == (4, [])


def test_a_certificate_of_our_own_opens_a_consul_that_asks_for_one(
    lab: Lab, locked: ConsulServer, certificates: Path
) -> None:
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "server.pem", "server.key"))
    access = {"address": f"https://127.0.0.1:{locked.tls_port}", "token": locked.new_token(READ_ALL), "ca": ca}
    assert "by TLS" in lab.read(**access)[1][0]
    hosts, problems = lab.read(**access, cert=cert, key=key)
    assert (list(hosts), problems) == (["atlas"], [])


@pytest.mark.parametrize(
    ("port", "words"), [("tls_port", "answers with an error (400: Client sent an HTTP request"), ("port", "by TLS")]
)
def test_wrong_scheme_is_reported(lab: Lab, server: ConsulServer, port: str, words: str) -> None:
    scheme = "http" if port == "tls_port" else "https"
    _, (problem,) = lab.read(address=f"{scheme}://127.0.0.1:{getattr(server, port)}")
    assert words in problem


def test_missing_ca_is_reported(lab: Lab, server: ConsulServer) -> None:
    _, (problem,) = lab.read(address=f"https://127.0.0.1:{server.tls_port}", ca="nowhere.pem")
    assert "cannot be asked: nowhere.pem cannot be read; correct the settings of its certificates" in problem


def test_the_last_good_list_serves_while_consul_is_down_also_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    server = ConsulServer(tmp_path / "consul")
    try:
        server.register("atlas", "gpu", ("vision",), (check("critical", "gone"),), title="Big")
        discovery = lab.discovery(server.address)
        before, problems = read(discovery, "hydra")
        assert problems == []
    finally:
        server.stop()
    for again in (discovery, lab.discovery(server.address)):
        hosts, (problem,) = read(again, "hydra")
        assert hosts == before
        assert hosts["hydra"].is_missing_in_consul
        now = time.strftime("%Y-%m-%d %H:")
        assert problem.startswith(
            f"Consul at {server.address}: does not answer (connection refused); the list of {now}"
        )
    hosts, (problem,) = lab.read("hydra", address=server.address, service="other")
    assert hosts == {"hydra": DiscoveredHost("hydra")}
    assert problem.endswith("; there is no earlier list that could serve")


def test_the_list_is_kept_for_the_builder_alone_and_written_only_when_it_changed(
    lab: Lab, server: ConsulServer
) -> None:
    discovery = lab.discovery(server.address)
    kept = lab.state / "consul.json"
    read(discovery)
    before = kept.stat()
    assert stat.S_IMODE(before.st_mode) == 0o600
    os.utime(kept, (0, 0))
    read(discovery)
    read(lab.discovery(server.address))
    after = kept.stat()
    assert (after.st_ino, after.st_mtime > 1e9) == (before.st_ino, True)
    server.register("new", "gpu")
    read(discovery)
    server.call("PUT", "/v1/catalog/deregister", {"Node": "new"})
    assert kept.stat().st_ino != before.st_ino
    assert [path.name for path in lab.state.iterdir()] == ["consul.json"]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"service": "gpu", "datacenter": null, "nodes": 7}', b"[" * 100_000]
)
def test_a_damaged_last_good_list_is_as_if_absent(lab: Lab, damage: bytes) -> None:
    (lab.state / "consul.json").write_bytes(damage)
    hosts, (problem,) = lab.read("atlas", address=f"127.0.0.1:{free_ports(1)[0]}")
    assert hosts == {"atlas": DiscoveredHost("atlas")}
    assert problem.endswith("there is no earlier list that could serve")


def test_state_folder_that_cannot_be_written_is_reported(lab: Lab, server: ConsulServer) -> None:
    (lab.data / "hosts.txt").write_text("atlas\n")
    shutil.rmtree(lab.state)
    discovery = lab.discovery(server.address)
    for _ in range(2):
        hosts, problems = read(discovery)
        assert len(hosts) == 4
        assert problems == [
            "state/hosts.txt: data/hosts.txt could not be kept: No such file or directory",
            "state/consul.json: the list of Consul could not be kept: No such file or directory",
        ]
    lab.state.mkdir()
    assert read(discovery)[1] == []


def test_only_the_settings_decide_where_consul_is(
    lab: Lab, server: ConsulServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "CONSUL_HTTP_ADDR": "https://[::1]:1",
        "CONSUL_HTTP_TOKEN": "not-a-token",
        "CONSUL_HTTP_SSL": "true",
        "CONSUL_HTTP_SSL_VERIFY": "false",
        "http_proxy": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    hosts, problems = lab.read(address=f"http://{server.address}")
    assert (len(hosts), problems) == (4, [])


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


def says(body: bytes | str, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        content = body.encode() if isinstance(body, str) else body
        handler.send_response(status)
        all_headers = {"X_Consul_Index": "7", "Content_Length": str(len(content)), **headers}
        for name, value in all_headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte at a time, for ever: no single wait is ever long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nX-Slow: ")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.2)


def drip_body(handler: BaseHTTPRequestHandler) -> None:
    says("", Content_Length="1000000")(handler)
    while True:
        handler.wfile.write(b"[")
        time.sleep(0.2)


def never(_: BaseHTTPRequestHandler) -> None:
    time.sleep(8)


def endless(handler: BaseHTTPRequestHandler) -> None:
    says("", Content_Length=str(1 << 40))(handler)
    while True:
        handler.wfile.write(b"[" * 100_000)


def entry(node: object, **fields: object) -> dict[str, object]:
    return {"Node": {"Node": node}, "Service": {"Tags": None, "Meta": None}, "Checks": [], **fields}


def keep_a_list(lab: Lab) -> None:
    content = {"service": "gpu", "datacenter": None, "nodes": [entry("atlas")]}
    (lab.state / "consul.json").write_text(json.dumps(content))


@pytest.mark.parametrize("slow", [never, drip, drip_body])
def test_a_consul_that_does_not_answer_in_time_is_not_waited_for(
    lab: Lab, stand_in: Callable[[Answer], str], slow: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.6)
    keep_a_list(lab)
    discovery = lab.discovery(stand_in(slow))
    discovery.start_consul_request()
    hosts, (problem,) = read(discovery)
    assert list(hosts) == ["atlas"]
    assert "does not answer within 3 s" + SERVES in problem
    assert discovery.consul_list
    assert discovery.consul_list.request is None or not threads_after(discovery.consul_list.request, 30)


def threads_after(question: ConsulRequest, seconds: float) -> bool:
    """Whether the thread still lives then."""
    question.thread.join(seconds)
    return question.thread.is_alive()


def test_while_a_question_hangs_no_second_one_is_asked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    asked: list[object] = []

    def hang(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        go_on.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.3)
    keep_a_list(lab)
    discovery = lab.discovery("consul.example:8500")
    assert "does not answer within 3 s" + SERVES in read(discovery)[1][0]
    for _ in range(2):
        discovery.start_consul_request()
        hosts, (problem,) = read(discovery)
        assert list(hosts) == ["atlas"]
        assert "still hangs on an earlier question, so that it was not asked again" + SERVES in problem
    assert len(asked) == 1
    go_on.set()
    assert discovery.consul_list
    assert discovery.consul_list.request
    assert not threads_after(discovery.consul_list.request, 5)
    assert "cannot be found (Name or service not known); correct CONSUL_HTTP_ADDR" in read(discovery)[1][0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says("<html>Welcome to nginx</html>"), "answers with a page in HTML; correct CONSUL_HTTP_ADDR"),
        (says("hello"), "answers with what is not a list of Consul"),
        (says('{"Node": 1}'), "answers with what is not a list of Consul"),
        (says("null"), "answers with what is not a list of Consul"),
        (says("[1, 2"), "answers with what is not JSON"),
        (says("[" * 200_000), "answers with what is not JSON"),
        (says(b"[\xff\xfe]"), "answers with what is not JSON"),
        (says("[1, 2]"), "answers, but none of its entries is that of a service"),
        (says(b"\x1f\x8b\x08\x00", Content_Encoding="gzip"), "answers with what is not a list of Consul"),
        (says("[]", Content_Length="100"), "ends the connection in the middle of its answer"),
        (endless, "sends more than the 16 MB that are read"),
        (says("", 302, Location="http://127.0.0.1:1/"), "answers with a redirect (302), which is not followed"),
        (says("No cluster leader", 500), "has no leader just now, or does not reach it"),
        (says("<html>Bad gateway</html>", 502), "answers with an error (502)"),
        (says("", 404), "answers with an error (404)"),
        (says("no secret-token here\x1b", 403), "refuses the question (no (token) here?); the token needs"),
        (lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH\r\n"), "does not speak HTTP; correct CONSUL_HTTP_ADDR"),
        (lambda _: None, "ends the connection without an answer"),
    ],
)
def test_nonsense_is_reported_in_one_sentence_and_the_last_good_list_serves(
    lab: Lab, stand_in: Callable[[Answer], str], answer: Answer, words: str
) -> None:
    keep_a_list(lab)
    address = stand_in(answer)
    hosts, (problem,) = lab.read(address=address, token="secret-token")  # noqa: S106 of nobody
    assert list(hosts) == ["atlas"]
    assert problem.startswith(f"Consul at {address}: {words}")
    assert SERVES in problem
    assert "secret-token" not in problem


def test_a_malformed_entry_costs_that_entry(lab: Lab, stand_in: Callable[[Answer], str]) -> None:
    entries = [entry("atlas"), 7, entry(None), entry("x", Service=[]), entry("y", Checks="all"), entry("hydra")]
    hosts, problems = lab.read(address=stand_in(says(json.dumps(entries))))
    assert list(hosts) == ["atlas", "hydra"]
    assert [problem.partition(": ")[2] for problem in problems] == [
        "entry 2 of its answer does not count: it is not an object",
        "entry 3 of its answer does not count: its node has no name",
        "entry 4 of its answer does not count: Service is not an object",
        "entry 5 of its answer does not count: Checks is not a list",
    ]


def test_an_answer_that_came_before_it_was_wanted_is_used(lab: Lab, stand_in: Callable[[Answer], str]) -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        says(json.dumps([entry("atlas")]))(handler)

    discovery = lab.discovery(stand_in(answer), datacenter="dc 1")
    for number in (1, 2, 3):
        discovery.start_consul_request()
        time.sleep(0.2)
        assert (list(read(discovery)[0]), len(asked)) == (["atlas"], number)
    assert set(asked) == {"/v1/health/service/gpu?dc=dc+1"}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("unix:///run/consul.sock", "its address is not host:port"),
        ("ftp://consul:8500", "its address is not host:port, http://host:port or https://host:port"),
        ("consul:99999", "its address is not host:port"),
        ("http://me:secret@consul:8500", "its address is not host:port"),
        ("two words", "its address is not host:port"),
    ],
)
def test_invalid_address_is_reported(lab: Lab, address: str, words: str) -> None:
    _, (problem,) = lab.read(address=address)
    assert words in problem
    assert "secret" not in problem


def test_an_address_of_ipv6_is_asked(lab: Lab) -> None:
    class Six(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            says(json.dumps([entry("atlas")]))(self)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = Six(("::1", 0), Handler)
    except OSError:
        missing("this machine has no IPv6")
    with server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert list(lab.read(address=f"[::1]:{server.server_address[1]}")[0]) == ["atlas"]


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
        (lambda path: path.write_bytes(b" " * 1_048_577), "not read: it has 1048577 bytes, more than the 1048576"),
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
        ('{"atlas": "atl', "line 1, column 11: the text that begins here"),
        ("", "line 1, column 1: a value should stand here"),
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
    assert dump.problems == ("'../x' is not a host name", "the full name of hydra is not a text")


# What is understood of an answer.


def nodes(*names: str) -> list[DiscoveredNode]:
    return [DiscoveredNode(name) for name in names]


def test_short_names_are_used_where_they_are_unique() -> None:
    matched, problems = hosts.match_discovered_nodes_to_hosts(nodes("a.x", "b.x", "b.y", "c", "10.0.0.1"), [])
    assert ({host: node.node for host, node in matched.items()}, problems) == (
        {"a": "a.x", "b.x": "b.x", "b.y": "b.y", "c": "c", "10.0.0.1": "10.0.0.1"},
        [],
    )


def test_two_nodes_with_one_host_name_are_reported_and_both_shown() -> None:
    matched, problems = hosts.match_discovered_nodes_to_hosts(nodes("b.x", "b.y", "B"), ["b"])
    assert {host: node.node for host, node in matched.items()} == {"b": "B", "b.x": "b.x", "b.y": "b.y"}
    assert problems == [
        "the nodes B and b.x are both the host b: B counts",
        "the nodes B and b.y are both the host b: B counts",
    ]


def test_meta_host_counts_before_the_node_name_and_must_be_valid() -> None:
    listed_nodes = [
        DiscoveredNode("x", host="atlas"),
        DiscoveredNode("atlas"),
        DiscoveredNode("y", host="../z"),
        DiscoveredNode("ü", host="new"),
    ]
    matched, problems = hosts.match_discovered_nodes_to_hosts(listed_nodes, ["atlas"])
    assert {host: node.node for host, node in matched.items()} == {"atlas": "x", "y": "y", "new": "ü"}
    assert problems == [
        "the nodes x and atlas are both the host atlas: x counts",
        "the node y has '../z' as its meta host, which is not a host name",
    ]


def test_node_with_an_invalid_host_name_is_reported() -> None:
    assert hosts.match_discovered_nodes_to_hosts(nodes("ü", "a b"), []) == (
        {},
        [f"the node '{name}' is not shown: that cannot be the name of a host" for name in ("ü", "a b")],
    )


def test_two_instances_on_a_node_are_one_host_in_the_worse_state() -> None:
    first = entry("atlas", Service={"Tags": ["a", "b"]}, Checks=[check("warning", "hot")])
    second = entry("atlas", Service={"Tags": ["b", "c"], "Meta": {"title": "T"}}, Checks=[check("critical", "gone")])
    dump = hosts.parse_discovered_nodes([first, second, entry("atlas")])
    assert dump.rows == (DiscoveredNode("atlas", None, "T", ("a", "b", "c"), "critical", "gone"),)


def test_nothing_of_consul_is_longer_than_it_may_be() -> None:
    service = {"Tags": [f"{n:03}{'x' * 99}" for n in range(99)], "Meta": {"title": "t\x00" * 999}}
    (node,) = hosts.parse_discovered_nodes(
        [entry("atlas", Service=service, Checks=[check("critical", "o\n" * 9999)])]
    ).rows
    assert (len(node.tags), len(node.tags[0]), len(node.title or ""), len(node.message or "")) == (50, 60, 200, 199)
    assert "\x00" not in (node.title or "")
    dump = hosts.parse_discovered_nodes([entry(f"n{number}") for number in range(20_001)])
    assert (len(dump.rows), dump.problems) == (
        20_000,
        ("its answer has 20001 entries; only the first 20000 count",),
    )
    problems = hosts.parse_discovered_nodes([entry("atlas"), *[7] * 500]).problems
    assert (len(problems), problems[-1]) == (11, "490 more entries of its answer do not count either")


def test_unknown_check_status_is_critical() -> None:
    (node,) = hosts.parse_discovered_nodes([entry("atlas", Checks=[check("odd"), check("passing")])]).rows
    assert (node.status, node.message) == ("critical", "nvidia-smi answers")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
CHECK = st.fixed_dictionaries(
    {},
    optional={
        key: JSON | st.sampled_from(hosts.STATUSES_WORST_FIRST) for key in ("CheckID", "Status", "Output", "Notes")
    },
)
ENTRY = st.fixed_dictionaries(
    {
        "Node": st.fixed_dictionaries({"Node": st.text() | st.sampled_from(["a", "A", "a.b", "a.c"]) | JSON}),
        "Service": st.fixed_dictionaries({}, optional={"Tags": JSON, "Meta": st.dictionaries(st.text(), JSON) | JSON}),
        "Checks": st.lists(CHECK) | JSON,
    }
)


@given(JSON | st.lists(ENTRY | JSON, max_size=5), st.lists(st.sampled_from(["a", "A", "a.b", "b"])))
def test_any_response_is_parsed_and_stored_nodes_are_the_same(answer: object, names: list[str]) -> None:
    dump = hosts.parse_discovered_nodes(answer)
    matched, problems = hosts.match_discovered_nodes_to_hosts(dump.rows, names)
    assert all(is_host_name(name) for name in matched)
    "".join((*dump.problems, *problems, *(str(node) for node in dump.rows))).encode()
    again = hosts.parse_discovered_nodes(json.loads(json.dumps(hosts.discovered_nodes_to_json(dump.rows))))
    assert again.rows == dump.rows


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_hosts_json_is_parsed(data: bytes) -> None:
    "".join(
        (*(str(host) for host in hosts.parse_hosts_json(data).rows), *hosts.parse_hosts_json(data).problems)
    ).encode()


# The maintained continuation of python-consul.

CONFORMANCE = """
import json, sys
from importlib.metadata import distribution
from pathlib import Path
from site_builder.core.model import ConsulAccess
from site_builder.discovery.hosts import HostDiscovery
import consul
assert Path(consul.__file__).is_relative_to(sys.argv[1]), consul.__file__
told = []
for access in json.loads(sys.argv[3]):
    folder = Path(sys.argv[2])
    hosts, problems = HostDiscovery(folder, folder, ConsulAccess(**access)).list_hosts([])
    told.append([{name: host.consul_status for name, host in hosts.items()}, [problem.what for problem in problems]])
print(json.dumps(told))
"""


def test_the_maintained_continuation_of_the_library_does_the_same(
    tmp_path: Path, server: ConsulServer, locked: ConsulServer, certificates: Path
) -> None:
    library = TOOLS / "py-consul"
    if sys.version_info < (3, 10):
        pytest.skip("py-consul needs Python 3.10")
    if not library.is_dir():
        missing("py-consul is not here; ./install.sh test fetches it")
    down = f"127.0.0.1:{free_ports(1)[0]}"
    asked: list[dict[str, object]] = [
        {"service": "gpu", "address": server.address},
        {"service": "x", "address": f"https://127.0.0.1:{server.tls_port}", "ca": str(certificates / "ca.pem")},
        {"service": "gpu", "address": server.address, "datacenter": "mars"},
        {"service": "gpu", "address": locked.address, "token": "5e0c1f7a-0000-4000-8000-00000000bad0"},
        {"service": "gpu", "address": locked.address, "token": locked.new_token(READ_ALL)},
        {"service": "gpu", "address": down},
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(library), str(ROOT)]),
        "CONSUL_HTTP_ADDR": "127.0.0.1:1",
        "CONSUL_HTTP_TOKEN": "not-a-token",
    }
    command = [sys.executable, "-W", "error", "-c", CONFORMANCE, str(library), str(tmp_path), json.dumps(asked)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    (tmp_path / "consul.json").unlink()
    expected: list[tuple[dict[str, str | None], list[str]]] = []
    for access in asked:
        hosts, problems = HostDiscovery(tmp_path, tmp_path, ConsulAccess(**access)).list_hosts([])  # type: ignore[arg-type]
        expected.append(
            ({name: host.consul_status for name, host in hosts.items()}, [problem.what for problem in problems])
        )
    assert json.loads(result.stdout) == json.loads(json.dumps(expected))
    assert expected[0] == ({"atlas": "passing", "hydra": "critical", "kronos": "passing", "titan": "warning"}, [])
    assert "ACL not found" in expected[3][1][0]
    assert "connection refused" in expected[5][1][0]


def test_consul_is_imported_only_when_it_is_asked(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from site_builder.discovery.hosts import HostDiscovery;"
        "HostDiscovery(Path('.'), Path('.'), None).list_hosts([]);"
        "print('consul' in sys.modules or 'requests' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, capture_output=True, cwd=tmp_path, check=True).stdout == b"False\n"


def test_a_problem_is_one_sentence_with_its_place() -> None:
    host_list = hosts.ConsulHostList(Path("nowhere"), ConsulAccess("gpu", address="consul.lab"))
    assert host_list.build_problem("does not answer") == Problem(
        "Consul at consul.lab", "does not answer; there is no earlier list that could serve"
    )


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("atlas", DiscoveredHost("atlas")),
        ("192.168.0.1", DiscoveredHost("192.168.0.1")),
        ("atlas, The big one, vision nlp  # in room 7", DiscoveredHost("atlas", "The big one", ("vision", "nlp"))),
        ("atlas,,vision", DiscoveredHost("atlas", None, ("vision",))),
        ("atlas, hidden", DiscoveredHost("atlas", is_hidden=True)),
        ("atlas, Big, a b, hidden", DiscoveredHost("atlas", "Big", ("a", "b"), is_hidden=True)),
        (
            "atlas, maintenance: new fans, back on Monday",
            DiscoveredHost("atlas", maintenance="new fans, back on Monday"),
        ),
        ("atlas, Big, maintenance", DiscoveredHost("atlas", "Big", maintenance="no reason given")),
        ("atlas, Big, a, hidden, maintenance: x", DiscoveredHost("atlas", "Big", ("a",), "x", is_hidden=True)),
    ],
)
def test_line_of_hosts_txt(line: str, host: DiscoveredHost) -> None:
    dump = hosts.parse_hosts_txt(f"# our hosts\n\n{line}\r\n".encode())
    assert (dump.rows, dump.problems) == ((host,), ())


def test_invalid_and_repeated_names_are_reported() -> None:
    dump = hosts.parse_hosts_txt(b"atlas\n../../etc\natlas, again\na b\n")
    assert dump.rows == (DiscoveredHost("atlas"),)
    assert dump.problems == (
        "line 2: '../../etc' is not a host name",
        "line 3: atlas stands there twice; the first line counts",
        "line 4: 'a b' is not a host name; put commas between name, title and tags",
    )


@pytest.mark.parametrize("name", ["../x", "a/b", 'a b"<x>', "", ".x", "-x", "a\n", "ü", "a" * 64])
def test_invalid_host_names(name: str) -> None:
    assert not is_host_name(name)


@pytest.mark.parametrize("name", ["a", "gpu01", "GPU_1", "a.b-c", "a" * 63, "1"])
def test_valid_host_names(name: str) -> None:
    assert is_host_name(name)


def test_last_alias_is_the_display_name_and_case_is_ignored() -> None:
    shown = people.parse_aliases(b"carol, caro, Carol C.  # note\n\n# alone\nbob\n")
    assert shown == {"carol": "Carol C.", "caro": "Carol C.", "carol c.": "Carol C.", "bob": "bob"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80 GB"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA GeForce RTX 2080 SUPER", "RTX 2080 SUPER"),
        ("GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("Tesla P100-PCIE-16GB", "P100 16 GB"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA H200", "H200"),
        ("Orin (nvgpu)", "Orin (nvgpu)"),
        ("NVIDIA", "NVIDIA"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("Aqua Vanjaram [Instinct MI300A]", "MI300A"),
        ("Arcturus GL-XL [Instinct MI100]", "MI100"),
        ("AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI200"),
        ("Radeon Instinct MI50 32GB", "MI50 32 GB"),
        ("Navi 22 [Radeon RX 6700/6700 XT / 6800M]", "RX 6700/6700 XT / 6800M"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("AMD Radeon PRO W7900", "PRO W7900"),
        ("Vega 20 [Radeon VII]", "Radeon VII"),
        ("AMD Radeon Graphics", "Radeon Graphics"),
        ("My GPU", "the old one"),
    ],
)
def test_short_gpu_names(name: str, expected: str) -> None:
    assert (
        gpu_models.shorten_gpu_name(
            name, gpu_models.parse_gpu_model_names(b"# ours\nMy GPU, the old one\nbroken line\n")
        )
        == expected
    )


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_content_is_parsed(data: bytes) -> None:
    hosts.parse_hosts_txt(data)
    hosts.parse_hosts_txt(b"atlas, " + data)
    people.parse_aliases(data)
    assert gpu_models.shorten_gpu_name(data.decode("latin-1"), gpu_models.parse_gpu_model_names(data)) is not None


def test_the_examples_in_data_are_understood() -> None:
    data = ROOT / "data"
    bookings = booking_parser.parse_bookings((data / "comments.json.example").read_bytes(), timezone.utc)
    listed = hosts.parse_hosts_txt((data / "hosts.txt.example").read_bytes())
    assert (len(bookings.rows), bookings.problems, bookings.is_complete) == (3, (), True)
    assert (len(listed.rows), listed.problems, listed.rows[2].maintenance) == (
        4,
        (),
        "new power supply, back on Friday",
    )
    assert people.parse_aliases((data / "aliases.csv.example").read_bytes())["carol"] == "Carol C."
    assert gpu_models.parse_gpu_model_names((data / "gpu-names.csv.example").read_bytes()) == {
        "NVIDIA A100-SXM4-80GB": "the big one"
    }
