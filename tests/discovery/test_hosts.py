"""Hosts come from Consul, from hosts.txt and hosts.json, and from data/; a missing list costs no host."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_builder.core.model import DiscoveredHost
from tests.support.consul_server import READ_ALL, ConsulServer, make_certificates
from tests.support.discovery_fixtures import Lab, check, fill, read
from tests.support.ports import free_port


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
        " correct GPUBOARD_CONSUL_DATACENTER; there is no earlier list to use"
    )
    assert lab.read(address=server.address, datacenter="dc1")[1] == []


def test_unknown_token_is_reported_with_the_rights_needed(lab: Lab, locked: ConsulServer) -> None:
    bad = "5e0c1f7a-0000-4000-8000-00000000bad0"
    hosts, (problem,) = lab.read(address=locked.address, token=bad)
    assert hosts == {}
    assert "refuses the request (ACL not found); the token needs `service:read` and `node:read`" in problem
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
    assert "has an untrusted certificate (" in problem
    assert "set CONSUL_CACERT to the CA that signed it" in problem


def test_tls_that_is_not_verified_is_a_choice(lab: Lab, server: ConsulServer) -> None:
    _, (problem,) = lab.read(address=f"https://127.0.0.1:{server.tls_port}")
    assert "untrusted certificate" in problem
    hosts, problems = lab.read(address=f"https://127.0.0.1:{server.tls_port}", verify=False)
    assert (len(hosts), problems) == (4, [])


def test_a_certificate_of_our_own_opens_a_consul_that_asks_for_one(
    lab: Lab, locked: ConsulServer, certificates: Path
) -> None:
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "server.pem", "server.key"))
    access = {"address": f"https://127.0.0.1:{locked.tls_port}", "token": locked.new_token(READ_ALL), "ca": ca}
    assert "over TLS" in lab.read(**access)[1][0]
    hosts, problems = lab.read(**access, cert=cert, key=key)
    assert (list(hosts), problems) == (["atlas"], [])


@pytest.mark.parametrize(
    ("port", "words"), [("tls_port", "answers with an error (400: Client sent an HTTP request"), ("port", "over TLS")]
)
def test_wrong_scheme_is_reported(lab: Lab, server: ConsulServer, port: str, words: str) -> None:
    scheme = "http" if port == "tls_port" else "https"
    _, (problem,) = lab.read(address=f"{scheme}://127.0.0.1:{getattr(server, port)}")
    assert words in problem


def test_missing_ca_is_reported(lab: Lab, server: ConsulServer) -> None:
    _, (problem,) = lab.read(address=f"https://127.0.0.1:{server.tls_port}", ca="nowhere.pem")
    assert "cannot be queried: nowhere.pem cannot be read; correct the certificate settings" in problem


@pytest.mark.slow
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
    assert problem.endswith("; there is no earlier list to use")


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
    hosts, (problem,) = lab.read("atlas", address=f"127.0.0.1:{free_port()}")
    assert hosts == {"atlas": DiscoveredHost("atlas")}
    assert problem.endswith("there is no earlier list to use")


def test_state_folder_that_cannot_be_written_is_reported(lab: Lab, server: ConsulServer) -> None:
    (lab.data / "hosts.txt").write_text("atlas\n")
    shutil.rmtree(lab.state)
    discovery = lab.discovery(server.address)
    for _ in range(2):
        hosts, problems = read(discovery)
        assert len(hosts) == 4
        assert problems == [
            "state/hosts.txt: data/hosts.txt could not be saved: No such file or directory",
            "state/consul.json: Consul's list could not be saved: No such file or directory",
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
