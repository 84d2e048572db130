"""docs/scaling.md, typed as it stands there, into a real Consul with ACLs."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.consul_server import ConsulServer, program
from tests.support.docs import blocks

PAGE = "docs/scaling.md"
SECRET = re.compile(r"^SecretID: +(\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulServer]:
    consul_server = ConsulServer(tmp_path_factory.mktemp("consul") / "locked", acl=True)
    try:
        yield consul_server
    finally:
        consul_server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where somebody has made the files that the page shows."""
    scaling_folder = tmp_path_factory.mktemp("scaling")
    for block in blocks("hcl"):
        name = block.text.split("\n", 1)[0].removeprefix("# ")
        (scaling_folder / name).write_text(block.text)
    (scaling_folder / "comments.json").write_text("{}")
    (scaling_folder / "hosts.txt").write_text("gpu1\n")
    return scaling_folder


def typed(text: str, folder: Path, server: ConsulServer) -> str:
    """What it says; it must end well."""
    path = f"{Path(program()).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "CONSUL_HTTP_ADDR": server.address, "CONSUL_HTTP_TOKEN": server.token}
    done = subprocess.run(
        ["/bin/sh", "-euc", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(server: ConsulServer, token: str, method: str, path: str, body: object = None) -> int:
    """How Consul answers who has that token."""
    content = None if body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, f"/v1/{path}", content, {"X-Consul-Token": token})
        return connection.getresponse().status
    finally:
        connection.close()


def test_what_the_page_sets_up_lets_each_do_its_own_and_nothing_else(server: ConsulServer, folder: Path) -> None:
    rights, files = (block.text for block in blocks("consul"))
    first, second, builder = SECRET.findall(typed(rights, folder, server))
    typed(files, folder, server)

    def may(token: str, method: str, path: str, body: object = None) -> bool:
        code = status(server, token, method, path, body)
        assert code in (200, 403)
        return code == 200

    assert may(first, "PUT", "kv/gpuboard/data/gpu1", "x")
    assert may(second, "PUT", "kv/gpuboard/data/gpu2", "x")
    assert may(first, "PUT", "agent/service/register", {"Name": "gpuboard", "ID": "gpuboard-gpu1"})
    for path in (
        "gpuboard/data/gpu2",
        "gpuboard/data/gpu11",
        "gpuboard/data/comments.json",
        "gpuboard/leader",
        "other",
    ):
        assert not may(first, "PUT", f"kv/{path}", "x")
    assert not may(first, "PUT", "agent/service/register", {"Name": "web"})
    assert not may(first, "PUT", "session/create", {})
    assert may(builder, "GET", "kv/gpuboard/data/?recurse")
    for path in ("data/comments.json?cas=1", "leader"):
        assert may(builder, "PUT", f"kv/gpuboard/{path}", "x")
    assert may(builder, "PUT", "session/create", {"TTL": "30s"})
    assert may(builder, "GET", "health/service/gpuboard")
    assert not may(builder, "PUT", "kv/other", "x")
    assert not may(builder, "PUT", "acl/policy", {"Name": "mine"})


def test_consul_takes_the_settings_of_a_server(folder: Path) -> None:
    done = subprocess.run(
        [program(), "validate", "server.hcl"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
