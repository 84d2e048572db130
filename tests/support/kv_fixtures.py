"""Hosts and builders that know each other only by Consul's KV store."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import time
from pathlib import Path
from typing import Any

from site_builder.core.model import ConsulAccess, Problem
from tests.support.board_fixture import Lab, gpu

PREFIX = "lab/gpuboard"
FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")


def access(address: str, **options: Any) -> ConsulAccess:  # noqa: ANN401
    """As GPUBOARD_KV says it."""
    return ConsulAccess("", address=address, address_setting="GPUBOARD_KV", prefix=PREFIX, **options)


class Hosts:
    """GPU hosts that put their snapshots into a store."""

    def __init__(self, folder: Path, address: str, prefix: str = PREFIX) -> None:
        self.lab = Lab(folder)
        self.address, self.prefix = address, prefix

    def value(self, host: str, *rows: str, **header: object) -> bytes:
        """All that a host puts there."""
        self.lab.host(host, "".join(rows) or gpu(uuid=f"GPU-{host}"), **header)  # type: ignore[arg-type]
        return b"".join((self.lab.data / host / file).read_bytes() for file in FILES)

    def push(self, host: str, *rows: str, ago: float = 0, **header: object) -> None:
        """A snapshot that the host took so many seconds ago."""
        header_fields = {"time": int(time.time() - ago), "every": 10, **header}
        self.put(f"data/{host}", gzip.compress(self.value(host, *rows, **header_fields)))

    def put(self, key: str, content: bytes) -> None:
        """A key below the prefix."""
        assert self.call("PUT", f"/v1/kv/{self.prefix}/{key}", content) is True

    def put_odd(self, key: str, content: bytes) -> None:
        """The same by a way on which Consul takes any name."""
        operation = {"Verb": "set", "Key": f"{self.prefix}/{key}", "Value": base64.b64encode(content).decode()}
        self.call("PUT", "/v1/txn", json.dumps([{"KV": operation}]).encode())

    def delete(self, key: str) -> None:
        """Take it away."""
        self.call("DELETE", f"/v1/kv/{self.prefix}/{key}")

    def get(self, key: str) -> bytes | None:
        """What stands there."""
        kv_entries = self.call("GET", f"/v1/kv/{self.prefix}/{key}")
        return base64.b64decode(kv_entries[0]["Value"] or "") if kv_entries else None

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401 whatever Consul says
        """Ask its API."""
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            text = response.read()
            assert response.status in (200, 404), (path, response.status, text)
            return json.loads(text or b"null")
        finally:
            connection.close()


class Alone:
    """A lead that nobody contests, without a process."""

    def __init__(self, *_: object) -> None:
        self.name, self.status = "alone", None

    def is_leader(self, _: float = 0) -> bool:
        return True

    def list_problems(self) -> list[Problem]:
        return []

    def close(self) -> None:
        pass


def made_old(state: Path, seconds: float) -> None:
    """Let the builder's last look be so long ago."""
    kv_state = json.loads((state / "kv.json").read_bytes())
    (state / "kv.json").write_text(json.dumps({**kv_state, "looked": kv_state["looked"] - seconds}))


def environment(address: str) -> dict[str, str]:
    """Settings of a command."""
    return {"GPUBOARD_KV": f"consul://{address}/{PREFIX}"}


def names_in(folder: Path) -> list[str]:
    """What stands in a folder, but for hidden files."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
