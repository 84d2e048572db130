"""The cluster that other tests stand on: three servers, one of which can be lost."""

import http.client
from base64 import b64decode
from pathlib import Path

from tests.support.consul_cluster import ConsulCluster


def test_a_cluster_of_three_outlives_its_leader_and_takes_it_back(tmp_path: Path) -> None:
    cluster = ConsulCluster(tmp_path / "consul")
    try:
        first = cluster.wait_for_leader()
        cluster.call("PUT", "/v1/kv/gpuboard/data/gpu1", b"before", server=cluster.followers()[0])
        first.kill()
        second = cluster.wait_for_leader()
        assert second is not first
        (entry,) = cluster.call("GET", "/v1/kv/gpuboard/data/gpu1")
        assert b64decode(entry["Value"]) == b"before"
        cluster.call("PUT", "/v1/kv/gpuboard/data/gpu1", b"after")
        first.start()

        def caught_up() -> bool:
            try:
                (entry,) = cluster.call("GET", "/v1/kv/gpuboard/data/gpu1?stale", server=first)
            except (OSError, AssertionError, http.client.HTTPException):
                return False
            return b64decode(entry["Value"]) == b"after"

        cluster.wait_until(caught_up, "the server that came back did not catch up")
    finally:
        cluster.end()
    assert not cluster.running
