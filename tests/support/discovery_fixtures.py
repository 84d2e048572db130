"""A data folder, and what Consul answers, for tests of the discovery."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from site_builder.core.model import ConsulAccess, DiscoveredHost
from site_builder.discovery.hosts import DiscoveredNode, HostDiscovery
from tests.support.consul_server import ConsulServer
from tests.support.pace import wall, within

Answer = Callable[[BaseHTTPRequestHandler], None]


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


def check(status: str, output: str = "", **fields: str) -> dict[str, str]:
    return {"CheckID": "nvidia", "Name": "nvidia-smi answers", "Status": status, "Output": output, **fields}


def fill(server: ConsulServer) -> None:
    server.register("atlas", "gpu", ("vision", "a100"), (check("passing", "all is well"),), title="The big one")
    alive = {"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing"}
    server.register("hydra.lab.example", "gpu", (), (alive, check("critical", "driver\nis \x1b[31mgone")))
    server.register("rack-7", "gpu", (), (check("warning", ServiceID="gpu"),), host="titan")
    closed = {"CheckID": "_node_maintenance", "Status": "critical", "Notes": "new fans"}
    server.register("kronos", "gpu", (), (check("passing"), closed))


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


def entry(node: object, **fields: object) -> dict[str, object]:
    return {"Node": {"Node": node}, "Service": {"Tags": None, "Meta": None}, "Checks": [], **fields}


def nodes(*names: str) -> list[DiscoveredNode]:
    return [DiscoveredNode(name) for name in names]
