"""Addresses that users of other systems know, by `gpuboard serve`, and by nginx and Apache with files of the docs."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from site_builder.board.outputs import host_json
from tests.support import booking_servers, web_servers
from tests.support.board_fixture import gpu, person, process
from tests.support.booking_servers import Place
from tests.support.docs import blocks, text_of
from tests.support.ports import free_port
from tests.support.web_servers import Stage

PAGE = "docs/outputs.md"
BOARD = "https://gpus.lab.org"
FILES = {
    "/": "index.html",
    "/?wall": "index.html",
    "/?term=yes": "index.html",
    "/?detail=true": "index.html",
    "/?term=true": "term.txt",
    "/?term=true&detail=false": "term.txt",
    "/?term=true&detail=true": "detail.txt",
    "/?detail=true&term=true": "detail.txt",
    "/?term=true&detail=true&color=true": "detail.txt",
    "/?term=true&color=true": "term-ansi.txt",
    "/?color=true&term=true": "term-ansi.txt",
    "/?term=true&detail=x&color=true": "term-ansi.txt",
    "/?term=true&term=false": "term.txt",
    "/?term=false&term=true": "index.html",
    "/?term=&term=true": "index.html",
    "/?term&term=true": "term.txt",
    "/?term=true&detail=false&detail=true": "term.txt",
    "/?term=true&color=no&color=true": "term.txt",
    "/?TERM=true": "term.txt",
    "/?term=TRUE": "term.txt",
    "/?term=1": "term.txt",
    "/?term=True&detail=1": "detail.txt",
    "/?term=1&color=True": "term-ansi.txt",
    "/?term=0": "index.html",
    "/?term=11": "index.html",
    "/?%74erm=true": "index.html",
    "/?term=tru%65": "index.html",
    "/?term=true%00": "index.html",
    "/?xterm=true&term=false": "index.html",
    "/?x=&term=true": "term.txt",
    "/?x;term=true": "index.html",
    f"/?{'&'.join(['x=1'] * 500)}&term=true": "term.txt",
    "/term.txt": "term.txt",
    "/available.txt": "available.txt",
    "/available/gpu01.txt": "available/gpu01.txt",
    "/available/hydra.txt": "available/hydra.txt",
    "/states/": "states/index.json",
    "/states/?fetch_num=3": "states/index.json",
    "/states/gpu01/": "states/gpu01/index.json",
    "/states/gpu01/index.json": "states/gpu01/index.json",
    "/nodes/": "nodes/index.json",
    "/nodes/gpu01.json": "nodes/gpu01.json",
    "/get-status": "nodes/index.json",
    "/nodes/gpu01/get-status": "nodes/gpu01.json",
    "/nvgpu/": "nvgpu/cluster_status",
    "/nvgpu/gpu01/": "nvgpu/gpu01/gpu_status",
    "/nvgpu/gpu01/gpu_status": "nvgpu/gpu01/gpu_status",
    "/cluster_status": "nvgpu/cluster_status",
    "/metrics": "metrics",
}
SERVERS = ("serve", "nginx", "apache")
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Web(NamedTuple):
    """A board that one of the servers hands out."""

    kind: str
    place: Place
    port: int

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Got:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = line.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            line.close()

    def file(self, name: str) -> bytes:
        return (self.place.lab.www / name).read_bytes()

    def shell(self, text: str) -> str:
        """What lines of the docs print, of this board."""
        command = text.replace(BOARD, f"http://127.0.0.1:{self.port}")
        done = subprocess.run(["/bin/sh", "-eu", "-c", command], capture_output=True, text=True, timeout=30, check=True)
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="module", params=SERVERS)
def web(request: pytest.FixtureRequest) -> Iterator[Web]:
    with booking_servers.place() as place:
        lab = place.lab
        lab.host("gpu01", gpu(0) + gpu(1, 7000, 50) + gpu(2), process(42, "GPU-1"), person(42, "alice"))
        lab.host("hydra", gpu(0, 7000, 50, uuid="GPU-h"), process(43, "GPU-h"))
        for path in (lab.data / "atlas").iterdir():
            path.unlink()
        (lab.data / "atlas").rmdir()
        lab.build()
        place.set(ZONE="UTC")  # as it was built
        if request.param == "serve":
            with booking_servers.serve(place) as served:
                yield Web("serve", place, served.port)
        else:
            start = {"nginx": web_servers.nginx_files, "apache": web_servers.apache_files}[request.param]
            with start(Stage(place), False, f"{request.param}-outputs.conf") as server:
                yield Web(request.param, place, server.port)


@pytest.mark.parametrize(("path", "name"), FILES.items(), ids=[path[:40] for path in FILES])
def test_each_address_is_answered_with_its_file(web: Web, path: str, name: str) -> None:
    got = web.ask(path)
    assert (got.status, got.body) == (200, web.file(name))
    kinds = {"html": "text/html", "txt": "text/plain", "metrics": "text/plain"}
    kind = got.headers["Content-Type"]
    assert kind.startswith(kinds.get(name.rpartition(".")[2], "application/json"))
    assert kind == "application/json" or re.search("charset=utf-8", kind, re.IGNORECASE)
    assert kind == METRICS or name != "metrics"


def test_no_question_makes_a_server_complain(web: Web) -> None:
    for path in FILES:
        web.ask(path)
    assert "[warn]" not in web.place.words()


@pytest.mark.parametrize("server", ["nginx", "apache"])
def test_all_that_the_docs_give_for_a_server_over_www_can_stand_in_one(server: str) -> None:
    with booking_servers.place() as place:
        web_servers.certificate(place)
        docs, port = web_servers.Docs(Stage(place)), free_port()
        parts = tuple(f"{server}-{part}" for part in ("outputs.conf", "cgi", "gpus"))
        if server == "nginx":
            conf = place.folder / "nginx.conf"
            content, _ = docs.nginx(port, *parts, location="nginx")
            conf.write_text(booking_servers.NGINX.format(folder=place.folder, content=content))
            command = [booking_servers.program("nginx"), "-e", str(place.folder / "error.log"), "-c", str(conf), "-t"]
        else:
            conf = web_servers.apache_conf(place, port, docs.apache(port, *parts)[0])
            command = [booking_servers.program("apache2"), "-f", str(conf), "-t"]
        done = subprocess.run([*place.become, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("warn|emerg|overlap", done.stderr), done.stderr


@pytest.mark.parametrize("path", ["/states", "/nodes", "/states/gpu01"])
def test_a_folder_without_its_slash_leads_to_the_folder(web: Web, path: str) -> None:
    got = web.ask(path)
    assert got.status in (301, 308)
    # relative, or absolute, as the server likes it
    assert got.headers["Location"].endswith(f"{path.rpartition('/')[2]}/")


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5", "1e3", "", "%32", "%32x", "9" * 30])
def test_a_number_of_entries_that_is_none_is_refused(web: Web, number: str) -> None:
    got = web.ask(f"/states/gpu01/?fetch_num={number}")
    assert got.status == 400
    assert web.ask(f"/states/gpu01/?FETCH_NUM=1&fetch_num={number}&fetch_num=2").status == 400
    if web.kind == "serve":
        assert b"<p>fetch_num must be a whole number of at least 1.</p>" in got.body


@pytest.mark.parametrize("body", [b'{"passwd": "8888"}', b""])
def test_a_post_gets_the_node_that_its_path_or_its_host_names(web: Web, body: bytes) -> None:
    for path, host in (("/nodes/gpu01/get-status", "127.0.0.1"), ("/get-status", f"gpu01:{web.port}")):
        got = web.ask(path, "POST", body, Content_Type="application/json", Host=host)
        assert (got.status, got.body) == (200, web.file("nodes/gpu01.json"))
    assert web.ask("/get-status", "POST", body, Host=f"hydra:{web.port}").body == web.file("nodes/hydra.json")
    assert web.ask("/get-status", Host="hydra").body == web.file("nodes/index.json")


def test_a_post_that_names_no_node_of_several_is_refused(web: Web) -> None:
    for path in ("/get-status", "/nodes/nobody/get-status"):
        got = web.ask(path, "POST", b'{"passwd": "8888"}')
        assert got.status == 404
        assert not got.body.startswith(b"{")


def test_an_agent_of_nvgpu_is_the_host_that_the_request_is_sent_to(web: Web) -> None:
    got = web.ask("/gpu_status", Host=f"gpu01:{web.port}")
    assert (got.status, got.body, got.headers["Content-Type"]) == (
        200,
        web.file("nvgpu/gpu01/gpu_status"),
        "application/json",
    )
    assert web.ask("/gpu_status").status == 404


def test_a_host_that_is_not_there_has_no_file(web: Web) -> None:
    for path in ("/nodes/nobody.json", "/available/nobody.txt", "/get-status/x", "/nvgpu/nobody/gpu_status"):
        assert web.ask(path).status == 404
    assert web.ask("/available/").status in (403, 404)


@pytest.mark.parametrize("path", ["/states/nobody/", "/states/nobody/?fetch_num=3"])
def test_vesta_s_clients_read_that_a_host_is_not_there(web: Web, path: str) -> None:
    got = web.ask(path)
    assert got.status == 404
    assert json.loads(got.body) == {"status": "ERROR", "status_code": 404, "message": "not found"}


def test_a_host_with_the_name_of_the_file_of_all_is_where_the_docs_say() -> None:
    docs_text = text_of(PAGE)
    assert f"`{host_json.build_host_json_node_path('index')}`" in docs_text
    assert f"`{host_json.build_host_json_states_path('index.json').removesuffix('index.json')}`" in docs_text
    assert f"`{host_json.build_host_json_nvgpu_path('cluster_status').removesuffix('gpu_status')}`" in docs_text


def test_every_line_of_the_docs_for_curl_prints_what_it_says(web: Web) -> None:
    booking_servers.program("curl")
    outputs_by_line = {}
    for block in blocks("curl"):
        for line in filter(None, block.text.splitlines()):
            outputs_by_line[line.partition("  #")[0].strip()] = web.shell(line)
    assert len(outputs_by_line) == 12
    lines = iter(outputs_by_line.values())
    for name in ("term.txt", "detail.txt", "term-ansi.txt"):
        assert next(lines).encode() == web.file(name)
    assert [next(lines) for _ in range(4)] == ["", "", "gpu01:0\n", "0,2\n"]
    for name in (
        "states/index.json",
        "states/gpu01/index.json",
        "nodes/gpu01.json",
        "nodes/index.json",
        "nodes/gpu01.json",
    ):
        assert next(lines).encode() == web.file(name)


def test_cuda_visible_devices_is_set_by_the_line_of_the_docs(web: Web) -> None:
    (line,) = (line for block in blocks("curl") for line in block.text.splitlines() if line.startswith("export CUDA"))
    for host, devices in (("gpu01", "0,2"), ("hydra", ""), ("nobody", "")):
        script = f'{line.replace("gpu01", host)} || :; echo "<$CUDA_VISIBLE_DEVICES>"'
        assert web.shell(script) == f"<{devices}>\n"


def test_a_careful_script_takes_no_gpu_from_a_board_that_stands(web: Web) -> None:
    (line,) = (line for block in blocks("curl") for line in block.text.splitlines() if " -z " in line)
    path = web.place.lab.www / "available/gpu01.txt"
    assert web.shell(line) == "0,2\n"
    try:
        os.utime(path, (time.time() - 3600,) * 2)
        assert web.shell(line) == ""
    finally:
        os.utime(path)


# What `gpuboard serve` alone can do


@pytest.fixture(scope="module")
def serve() -> Iterator[Web]:
    with booking_servers.place() as place:
        place.lab.build()
        with booking_servers.serve(place) as served:
            yield Web("serve", place, served.port)


@pytest.mark.parametrize(
    "path", ["/", "/states/", "/nodes/", "/nodes/index.json", "/get-status/", "//get-status", "/x"]
)
def test_serve_takes_a_post_nowhere_else(serve: Web, path: str) -> None:
    got = serve.ask(path, "POST", b"{}")
    assert (got.status, got.headers["Allow"]) == (405, "GET, HEAD")


def test_serve_takes_no_other_method_and_no_long_body(serve: Web) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        got = serve.ask("/get-status", method, b"")
        assert (got.status, got.headers["Allow"]) == (405, "GET, HEAD, POST")
    assert serve.ask("/get-status", "POST", b"x" * 1024).status == 200
    assert serve.ask("/get-status", "POST", b"x" * 1025).status == 413
    assert serve.ask("/get-status", "GET", b"x").status == 413
    assert serve.ask("/get-status", "POST", b"", If_None_Match="*").status == 200
    assert serve.ask("/nodes/atlas/get-status", "POST", b"{}").status == 200
    head = serve.ask("/get-status", "HEAD")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("path", ["/?%ff=%ff&term", "/?&&=&", "/index.html?term=true"])
def test_an_odd_query_gets_the_board(serve: Web, path: str) -> None:
    assert serve.ask(path).body == serve.file("index.html")


def test_a_board_that_is_not_built_has_none_of_it() -> None:
    with booking_servers.place() as place, booking_servers.serve(place) as served:
        web = Web("serve", place, served.port)
        (place.lab.www / "index.html").unlink()
        for path in ("/?term=true", "/states/", "/states", "/nodes/", "/get-status", "/available.txt"):
            assert web.ask(path).status == 404
        assert web.ask("/").status == 503
