"""A real Consul for the tests: in dev mode, on free ports of 127.0.0.1, ended by its own pid; tests share one."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.missing import missing
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"
AGENT = "agent.lab.example"
ROOT_TOKEN = "5e0c1f7a-0000-4000-8000-000000000001"  # noqa: S105 of a Consul that lives for one test run
READ_ALL = 'service_prefix "" { policy = "read" }\nnode_prefix "" { policy = "read" }\n'


def program() -> str:
    """The Consul to run."""
    consul_path = shutil.which("consul") or shutil.which("consul", path=str(TOOLS / "usr/bin"))
    return consul_path or missing("consul is not here; ./install.sh test fetches it")


def make_certificates(folder: Path, name: str = "ca") -> Path:
    """A CA, and a certificate of it for 127.0.0.1: ca.pem, server.pem and server.key in the folder."""
    folder.mkdir()
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca = ["-x509", "-days", "2", "-subj", f"/CN={name}", "-keyout", "ca.key", "-out", "ca.pem"]
    ca += ["-addext", "keyUsage=critical,keyCertSign"]
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    request = ["-subj", "/CN=consul", "-keyout", "server.key", "-out", "server.csr"]
    sign = ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    sign += ["-days", "2", "-extfile", "names", "-out", "server.pem"]
    openssl = shutil.which("openssl") or missing("openssl is not here")
    for arguments in ([*new, *ca], [*new, *request], sign):
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)
    return folder


class ConsulServer:
    """One Consul; `port` speaks http, `tls_port` https where it has certificates."""

    def __init__(
        self, folder: Path, *, acl: bool = False, certificates: Path | None = None, **extra_settings: object
    ) -> None:
        """Start it, and wait until it leads."""
        folder.mkdir()
        self.port, self.tls_port, server, lan, wan = free_ports(5)
        self.token = ROOT_TOKEN if acl else ""
        self.certificates = certificates
        ports = {"http": self.port, "dns": -1, "grpc": -1, "server": server, "serf_lan": lan, "serf_wan": wan}
        settings: dict[str, object] = {"disable_update_check": True, **extra_settings, "ports": ports}
        if acl:
            settings["acl"] = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT_TOKEN}}
        if certificates:
            ports["https"] = self.tls_port
            files = {"ca_file": "ca.pem", "cert_file": "server.pem", "key_file": "server.key"}
            settings.update({key: str(certificates / file) for key, file in files.items()})
        (folder / "settings.json").write_text(json.dumps(settings))
        command = [program(), "agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", f"-node={AGENT}"]
        command += [f"-config-file={folder / 'settings.json'}"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CONSUL_")}
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
        try:
            self.wait_until_it_leads()
        except BaseException:
            self.stop()
            raise

    def wait_until_it_leads(self) -> None:
        """Wait until it takes registrations."""
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.call("GET", "/v1/status/leader") and self.call("GET", "/v1/catalog/nodes"):
                    return
            except (OSError, AssertionError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        pytest.fail(f"consul did not start: {self.log.read_text()[-2000:]}")

    @property
    def address(self) -> str:
        """Where it speaks http."""
        return f"127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 whatever Consul says
        """Ask its API, with all rights."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"X-Consul-Token": self.token} if self.token else {})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, (path, response.status, text)
            return json.loads(text or b"null")
        finally:
            connection.close()

    def register(
        self, node: str, service: str, tags: tuple[str, ...] = (), checks: tuple[dict[str, str], ...] = (), **meta: str
    ) -> None:
        """A node with the service, as if an agent of its own had told of it."""
        instance = {"ID": service, "Service": service, "Tags": list(tags), "Meta": meta}
        entry = {"Node": node, "Address": "127.0.0.1", "Service": instance, "Checks": list(checks)}
        self.call("PUT", "/v1/catalog/register", entry)

    def new_token(self, rules: str) -> str:
        """A token with these rights."""
        name = f"policy-{time.monotonic_ns()}"
        self.call("PUT", "/v1/acl/policy", {"Name": name, "Rules": rules})
        token: str = self.call("PUT", "/v1/acl/token", {"Policies": [{"Name": name}]})["SecretID"]
        return token

    def clear(self) -> None:
        """Remove what tests have put there: keys, sessions, services and nodes."""
        self.call("DELETE", "/v1/kv/?recurse=true")
        for session in self.call("GET", "/v1/session/list"):
            self.call("PUT", f"/v1/session/destroy/{session['ID']}")
        for service in self.call("GET", "/v1/agent/services"):
            self.call("PUT", f"/v1/agent/service/deregister/{service}")
        for node in self.call("GET", "/v1/catalog/nodes"):
            if node["Node"] != AGENT:
                self.call("PUT", "/v1/catalog/deregister", {"Node": node["Node"]})

    def stop(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def shared_consul(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulServer]:
    """The Consul without ACLs of all tests, by http and by https; ask for `consul`, which is empty."""
    folder = tmp_path_factory.mktemp("consul")
    server = ConsulServer(folder / "server", certificates=make_certificates(folder / "tls"))
    yield server
    server.stop()


@pytest.fixture
def consul(shared_consul: ConsulServer) -> ConsulServer:
    """A Consul in which nothing is."""
    shared_consul.clear()
    return shared_consul
