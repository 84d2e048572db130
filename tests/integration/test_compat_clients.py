"""Clients written after the READMEs of vesta and of the GPU Cluster Status Monitor, against `gpuboard serve`."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from site_builder.history.model import ProcessSample
from site_builder.history.writer import HistoryWriter
from site_builder.web.rate_limit import BUCKET_CAPACITY
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.command_line import run_gpuboard
from tests.support.history_fixtures import gpu as then
from tests.support.history_fixtures import host as past_host
from tests.support.history_fixtures import record
from tests.support.serve_fixtures import Reader, serve_settings

NAME = "NVIDIA A100-SXM4-80GB"
COMMAND = "/usr/bin/python3 train.py --lr 0.1"
FACTS = "cpus=4\nload=1 1 1\ninterface=eno1 192.0.2.3/24\n"
PASSWORD = "8888"  # noqa: S105 # as in the README


class Answer(NamedTuple):
    """What `requests` would return: a status and a body that may be JSON."""

    status_code: int
    body: bytes

    def json(self) -> Any:  # noqa: ANN401
        return json.loads(self.body)


def post(board: Reader, path: str, content: object, host: str = "") -> Answer:
    """Send what `requests.post(url, json=…)` sends."""
    body = json.dumps(content).encode()
    headers = {"Content_Type": "application/json", "Accept_Encoding": "gzip, deflate"}
    got = board.get(path, "POST", body, Host=host or f"127.0.0.1:{board.port}", **headers)
    return Answer(got.status, got.body)


def get(board: Reader, path: str) -> Answer:
    got = board.get(path)
    return Answer(got.status, got.body)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """One host: a GPU that alice uses, and a free one."""
    lab = Lab(tmp_path)
    processes = process(42, memory=6400) + process(43, memory=600)
    lab.host("gpu01", gpu(0, 7000, 97) + gpu(1), processes, person(42, "alice", COMMAND), FACTS)
    lab.build()
    return lab


def add_host(lab: Lab, name: str, address: str) -> None:
    lab.host(name, gpu(0, uuid=f"GPU-{name}"), facts=f"cpus=4\nload=1 1 1\ninterface=eno1 {address}/24\n")
    lab.build()


@pytest.fixture
def board(lab: Lab) -> Iterator[Reader]:
    with serve_settings(lab.www, lab.settings()) as reader:
        yield reader


# GPU Cluster Status Monitor: requests.post('http://192.168.0.3:7080/get-status', json={'passwd': '8888'})


def read_node(answer: Answer) -> dict[str, Any]:
    """Read every field that its README names, with its type."""
    assert answer.status_code == 200
    node = answer.json()
    assert isinstance(node["hostname"], str)
    last_update = datetime.fromisoformat(node["last_update"])
    assert abs(last_update.replace(tzinfo=timezone.utc).timestamp() - time.time()) < 60
    for interface, address in node["ips"]:
        assert isinstance(interface, str) and isinstance(address, str)
    for gpu_entry in node["gpus"]:
        for field in ("index", "use_mem", "tot_mem", "utilize", "temp"):
            assert type(gpu_entry[field]) is int
        assert isinstance(gpu_entry["name"], str)
        for user in gpu_entry["users"]:
            assert user.keys() == {"pid", "username", "mem(MiB)", "command"}
    return dict(node)


def test_a_client_of_the_monitor_reads_every_field_of_the_only_node(board: Reader) -> None:
    node = read_node(post(board, "/get-status", {"passwd": PASSWORD}))
    assert (node["hostname"], node["ips"]) == ("gpu01", [["eno1", "192.0.2.3"]])
    busy, free = node["gpus"]
    assert (busy["index"], busy["name"], busy["use_mem"], busy["tot_mem"]) == (0, NAME, 7000, 81920)
    assert (busy["utilize"], busy["temp"]) == (97, 41)
    assert busy["users"][0] == {"pid": 42, "username": "alice", "mem(MiB)": 6400, "command": COMMAND}
    assert busy["users"][1]["username"] is None
    assert free["users"] == []


def test_the_main_node_of_the_monitor_lists_all_hosts_by_their_names_and_addresses(lab: Lab, board: Reader) -> None:
    add_host(lab, "Gpu02.lab.org", "192.0.2.4")
    with serve_settings(lab.www, lab.settings(url="https://gpus.lab.org/")) as named_board:
        hosts = ["gpu01:7080", "GPU01", "gpu01.gpus.lab.org:7080", "192.0.2.3:7080", "gpu02.lab.org", "192.0.2.4"]
        nodes = [read_node(post(named_board, "/get-status", {"passwd": PASSWORD}, host)) for host in hosts]
    assert [node["hostname"] for node in nodes] == [*["gpu01"] * 4, *["Gpu02.lab.org"] * 2]
    names = [read_node(post(board, f"/nodes/{name}/get-status", {}))["hostname"] for name in ("gpu01", "Gpu02.lab.org")]
    assert names == ["gpu01", "Gpu02.lab.org"]
    assert [node["hostname"] for node in get(board, "/get-status").json()["Nodes"]] == names
    assert read_node(get(board, "/nodes/gpu01/get-status"))["hostname"] == "gpu01"


def test_a_request_that_names_no_node_of_several_says_how_to_name_one(lab: Lab, board: Reader) -> None:
    add_host(lab, "gpu02", "192.0.2.3")  # the same address, as of a bridge
    for host in ("", "192.0.2.3", "localhost"):
        answer = post(board, "/get-status", {"passwd": PASSWORD}, host)
        assert answer.status_code == 404
        assert b"<p>This board has several hosts: name one of them in the path" in answer.body
    assert post(board, "/nodes/gpu03/get-status", {}).status_code == 404


@pytest.mark.parametrize("host", ["gpu01.evil.example", "evil.example", "gpu02"])
def test_under_a_name_that_is_not_the_board_s_there_is_no_node(board: Reader, host: str) -> None:
    assert post(board, "/get-status", {"passwd": PASSWORD}, host).status_code == 421


def test_a_node_without_current_data_does_not_answer_with_old_ones(lab: Lab, board: Reader) -> None:
    lab.build(after=3600)
    answer = post(board, "/get-status", {"passwd": PASSWORD})
    assert answer.status_code == 503
    assert b"<p>gpu01 is down: no snapshot since " in answer.body
    with pytest.raises(ValueError, match="Expecting value"):
        answer.json()


def test_users_are_an_empty_list_where_nobody_knows_them(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "silent")
    lab.host("gpu01", gpu(0, 7000, 97) + gpu(1))
    (lab.data / "gpu01/processes.csv").unlink()
    lab.build()
    with serve_settings(lab.www, lab.settings()) as board:
        busy, unknown = read_node(post(board, "/get-status", {}))["gpus"]
    assert (busy["users"], busy["state"]) == ([], "busy")
    assert (unknown["users"], unknown["state"]) == ([], "unknown")


def test_a_node_is_as_fresh_as_status_json(lab: Lab, board: Reader) -> None:
    assert read_node(post(board, "/get-status", {}))["gpus"][1]["use_mem"] == 4
    lab.host("gpu01", gpu(0, 7000, 97) + gpu(1, 5))
    lab.build()
    (lab.www / "nodes/gpu01.json").write_bytes(b"{}")  # it may be a minute old
    (lab.www / "nodes/index.json").write_bytes(b"{}")
    assert read_node(post(board, "/get-status", {}))["gpus"][1]["use_mem"] == 5
    assert get(board, "/get-status").json()["Nodes"][0]["gpus"][1]["use_mem"] == 5
    assert get(board, "/nodes/gpu01.json").json()["gpus"][1]["use_mem"] == 5


def test_a_board_that_is_not_built_answers_no_client(lab: Lab, board: Reader) -> None:
    (lab.www / "status.json").unlink()
    for answer in (post(board, "/get-status", {}), get(board, "/gpu_status")):
        assert answer.status_code == 503
        assert b"has not been built yet" in answer.body


@pytest.mark.parametrize("body", [{"passwd": "8889"}, {"passwd": 8888}, {"passwd": None}, {}, [], "8888", None])
def test_a_node_with_a_password_refuses_all_others(lab: Lab, body: object) -> None:
    with serve_settings(lab.www, lab.settings(node_password=PASSWORD)) as board:
        assert read_node(post(board, "/get-status", {"passwd": PASSWORD}))["hostname"] == "gpu01"
        for path in ("/get-status", "/nodes/gpu01/get-status"):
            answer = post(board, path, body)
            assert answer.status_code == 403
            assert b"<p>The password of this request is wrong.</p>" in answer.body
        line = http.client.HTTPConnection("127.0.0.1", board.port, timeout=20)
        line.request("POST", "/get-status", b"\xff{")
        assert line.getresponse().status == 403
        line.close()


def test_passwords_of_a_node_cannot_be_tried_out(lab: Lab) -> None:
    with serve_settings(lab.www, lab.settings(node_password=PASSWORD)) as board:
        statuses = [post(board, "/get-status", {"passwd": str(number)}).status_code for number in range(11)]
        assert statuses == [403] * 10 + [429]
        assert post(board, "/get-status", {"passwd": PASSWORD}).status_code == 429
        assert get(board, "/get-status").status_code == 200
    assert BUCKET_CAPACITY == 60


def test_the_password_of_nodes_is_never_printed(tmp_path: Path) -> None:
    secret = "not-for-your-eyes"  # noqa: S105
    shown = run_gpuboard(tmp_path, "config", GPUBOARD_NODE_PASSWORD=secret)
    assert shown.returncode == 0
    assert "GPUBOARD_NODE_PASSWORD" in shown.stdout
    for words in (("config",), ("config", "--json")):
        shown = run_gpuboard(tmp_path, *words, GPUBOARD_NODE_PASSWORD=secret)
        assert secret not in shown.stdout + shown.stderr
    refused = run_gpuboard(tmp_path, "config", GPUBOARD_NODE_PASSWORD=f"{secret}\x1b")
    assert refused.returncode == 2
    assert "GPUBOARD_NODE_PASSWORD is set (environment), but must be a password" in refused.stderr
    assert secret not in refused.stderr


# vesta: curl http://<server_address>/states/, /states/<host_name>/?fetch_num=<# you want>, /?term=true&detail=true


def read_states(answer: Answer) -> dict[str, Any]:
    """Read every field that its README names."""
    assert answer.status_code == 200
    hosts = answer.json()
    for host in hosts.values():
        assert isinstance(host["ip_address"], str)
        stamps = [datetime.strptime(str(entry["timestamp"]), "%Y%m%d%H%M%S") for entry in host["data"]]
        assert stamps == sorted(stamps)
        for entry in host["data"]:
            for key, gpu_entry in entry["gpu_data"].items():
                assert key == f"gpu:{gpu_entry['device_num']}"
                for field in ("available_memory", "gpu_volatile", "temperature", "total_memory", "used_memory"):
                    assert int(gpu_entry[field]) >= 0
                assert gpu_entry["gpu_name"] == NAME
                assert gpu_entry["uuid"].startswith("GPU-")
                datetime.strptime(gpu_entry["timestamp"], "%Y/%m/%d %H:%M:%S.%f")
                for gpu_process in gpu_entry["processes"]:
                    assert isinstance(gpu_process["name"], str)
                    assert isinstance(gpu_process["pid"], str)
                    assert isinstance(gpu_process["used_memory"], int)
                    assert "user" in gpu_process
    return dict(hosts)


def test_a_client_of_vesta_reads_every_field_of_all_hosts(lab: Lab, board: Reader) -> None:
    add_host(lab, "gpu02", "192.0.2.4")
    hosts = read_states(get(board, "/states/"))
    assert list(hosts) == ["gpu01", "gpu02"]
    assert hosts["gpu01"]["ip_address"] == "192.0.2.3"
    (entry,) = hosts["gpu01"]["data"]
    first, second = entry["gpu_data"]["gpu:0"]["processes"]
    assert first == {"name": "python3", "pid": "42", "used_memory": 6400, "user": "alice", "command": COMMAND}
    assert (second["pid"], second["name"], second["user"]) == ("43", "python", None)
    assert read_states(get(board, "/states/gpu01/")) == {"gpu01": hosts["gpu01"]}


def test_a_client_of_vesta_gets_as_many_entries_as_it_wants_of_one_host_and_of_all(lab: Lab, board: Reader) -> None:
    history = HistoryWriter(lab.state, timezone.utc)
    start = (int(time.time()) // 60 - 20) * 60
    processes = [ProcessSample(31415, "train1", 6400, "bob"), ProcessSample(27182, "train2", 1618, "carol")]
    past = [then("busy", ["bob", "carol"], use=5, memory=8018, processes=processes), then(index=1, processes=[])]
    record(history, start, 10, lambda _: [past_host(*past, name="gpu01")])
    history.close()
    for path in ("/states/?fetch_num=4", "/states/gpu01/?fetch_num=4"):
        entries = read_states(get(board, path))["gpu01"]["data"]
        assert [entry["gpu_data"]["gpu:0"]["gpu_volatile"] for entry in entries] == [5, 5, 5, 97]
        for entry in entries[:3]:
            first, second = entry["gpu_data"]["gpu:0"]["processes"]
            assert (first["name"], first["pid"], first["used_memory"], first["user"]) == (
                "train1",
                "31415",
                6400,
                "bob",
            )
            assert (second["name"], second["pid"], second["user"]) == ("train2", "27182", "carol")
            assert entry["gpu_data"]["gpu:1"]["processes"] == []


def test_a_client_of_vesta_reads_that_a_host_is_unknown(board: Reader) -> None:
    answer = get(board, "/states/nobody/")
    assert answer.json()["status_code"] == answer.status_code == 404


@pytest.mark.parametrize("word", ["true", "True", "1"])
def test_a_terminal_gets_the_table_and_the_boxes(lab: Lab, board: Reader, word: str) -> None:
    assert get(board, f"/?term={word}").body == (lab.www / "term.txt").read_bytes()
    assert get(board, f"/?term={word}&detail={word}").body == (lab.www / "detail.txt").read_bytes()


def test_states_are_as_fresh_as_status_json(lab: Lab, board: Reader) -> None:
    first = board.get("/states/")
    assert board.get("/states/", If_None_Match=first.headers["Etag"]).status == 304
    lab.host("gpu01", gpu(0, 7001, 98) + gpu(1), process(42, memory=6400), facts=FACTS)
    lab.build()
    for path in ("states/index.json", "states/gpu01/index.json"):
        (lab.www / path).write_bytes(b"{}")
    for path in ("/states/", "/states/gpu01/"):
        (entry,) = read_states(get(board, path))["gpu01"]["data"]
        assert entry["gpu_data"]["gpu:0"]["used_memory"] == 7001
    assert board.get("/states/", If_None_Match=first.headers["Etag"]).status == 200


def test_a_host_that_left_the_board_is_unknown_at_once_and_one_that_is_new_is_known(lab: Lab, board: Reader) -> None:
    add_host(lab, "gpu02", "192.0.2.4")
    (lab.www / "states/gpu02/index.json").unlink()
    assert list(read_states(get(board, "/states/gpu02/"))) == ["gpu02"]
    (lab.data / "hosts.txt").write_text("gpu02, hidden\n")
    lab.build()
    assert get(board, "/states/gpu02/").status_code == 404


# nvgpu: requests.get(agent + '/gpu_status'), for which tests/integration/test_nvgpu.py has the real master


def test_an_agent_of_nvgpu_is_named_as_a_node_is(lab: Lab, board: Reader) -> None:
    assert get(board, "/gpu_status").json()["hostname"] == "gpu01"
    add_host(lab, "gpu02", "192.0.2.4")
    assert get(board, "/gpu_status").status_code == 404
    answer = board.get("/gpu_status", Host="gpu02")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert json.loads(answer.body)["hostname"] == "gpu02"
    assert get(board, "/nvgpu/gpu02/gpu_status").json() == json.loads(answer.body)
    assert [host["hostname"] for host in get(board, "/cluster_status").json()] == ["gpu01", "gpu02"]


@pytest.mark.parametrize(
    ("path", "methods"), [("/gpu_status", "GET and HEAD"), ("/get-status", "GET, HEAD and POST"), ("/", "GET and HEAD")]
)
def test_another_method_is_told_those_that_there_are(board: Reader, path: str, methods: str) -> None:
    for method in ("PUT", "OPTIONS", *(("POST",) if "POST" not in methods else ())):
        answer = board.get(path, method, b"{}")
        assert (answer.status, answer.headers["Allow"]) == (405, methods.replace(" and ", ", "))
        assert f"<p>Only {methods} are allowed.</p>".encode() in answer.body
