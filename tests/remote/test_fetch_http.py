"""`gpuboard pull http://…`: a host that serves its files; what its server does cannot hurt, and old never looks new."""

from __future__ import annotations

import http.server
import os
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_builder.remote.fetch import HttpFetcher, PullError, write_pulled_files
from site_builder.remote.targets import Target
from tests.support import booking_servers
from tests.support.board_fixture import Lab
from tests.support.command_line import run_gpuboard
from tests.support.consul_server import make_certificates
from tests.support.docs import blocks
from tests.support.ports import free_port

FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
HUGE = 9 * 1024 * 1024


class Handler(http.server.SimpleHTTPRequestHandler):
    """A folder of hosts, and some servers that nobody would like to meet, by the first part of the path."""

    protocol_version = "HTTP/1.1"
    server: Served

    def log_message(self, *_: object) -> None:
        """Kept, not printed."""

    def log_request(self, code: int | str = "-", _: int | str = "-") -> None:
        """Note it."""
        self.server.log.append((self.path, int(code)))

    def do_GET(self) -> None:
        """Answer, in one way or another."""
        kind = self.path.split("/")[1]
        if kind == "secret" and self.headers.get("Authorization") != "Basic bGFiOnAgdw==":  # lab:p w
            self.send_error(401)
        elif kind == "away":
            self.answer(302, b"", Location=f"http://127.0.0.1:{self.server.elsewhere}{self.path}")
        elif kind == "forged":  # a header may go on in the next line
            self.answer(302, b"", Location="/\r\n gpuboard: all is well")
        elif kind == "huge":
            self.answer(200, b"x" * HUGE)
        elif kind == "packed":
            self.answer(200, b"x", **{"Content-Encoding": "gzip"})
        elif kind == "broken":
            self.wfile.write(b"no web server\r\n\r\n")
            self.close_connection = True
        elif kind == "drip":
            self.drip(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        elif kind == "heads":
            self.drip(b"HTTP/1.1 200 OK\r\n")
        else:
            super().do_GET()

    def answer(self, code: int, body: bytes, **headers: str) -> None:
        """A whole one."""
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def drip(self, first: bytes) -> None:
        """A byte now and then, until nobody listens."""
        self.wfile.write(first)
        try:
            while not self.server.ends.wait(0.3):
                self.wfile.write(b"x")
        except OSError:
            self.close_connection = True


class Served(http.server.ThreadingHTTPServer):
    """A real server on a free port, and a lab whose hosts it serves."""

    daemon_threads = True

    def __init__(self, folder: Path, context: ssl.SSLContext | None = None) -> None:
        self.lab = Lab(folder)
        self.log: list[tuple[str, int]] = []
        self.ends = threading.Event()
        self.elsewhere = 0
        super().__init__(("127.0.0.1", 0), lambda *words: Handler(*words, directory=str(self.lab.data)))
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """Whoever hangs up on us may."""

    def stop(self) -> None:
        self.ends.set()
        self.shutdown()
        self.server_close()

    def address(self, name: str, path: str = "") -> str:
        return f"{name}=http://127.0.0.1:{self.port}/{path or name}/"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    host_server = Served(tmp_path / "host")
    yield host_server
    host_server.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ctime_ns for path in folder.iterdir()}


@pytest.mark.slow
def test_what_a_host_serves_arrives_as_it_is_and_is_not_written_again(served: Served, data: Path) -> None:
    served.lab.host("atlas", every=60)
    # a proxy of the environment would see what is not its business
    proxy = {"http_proxy": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9"}
    done = run_gpuboard(data.parent, "pull", served.address("atlas"), **proxy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path for path, _ in served.log] == [f"/atlas/{file}" for file in FILES]
    for file in FILES:
        assert (data / "atlas" / file).read_bytes() == (served.lab.data / "atlas" / file).read_bytes()
        assert (data / "atlas" / file).stat().st_mode & 0o7777 == 0o640
    before = times(data / "atlas")
    served.lab.write("atlas", "ps.txt", "pid\tcommand\n", every=60, time=int(time.time()) + 1)
    served.log.clear()
    done = run_gpuboard(data.parent, "pull", served.address("atlas"), "--every", "1", "--for", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert [code for _, code in served.log] == [200] * 4 + [304] * 4
    changed = [file for file, moment in times(data / "atlas").items() if moment != before[file]]
    assert changed == ["ps.txt"]


def test_what_was_served_long_ago_never_looks_fresh(served: Served, data: Path) -> None:
    served.lab.host("atlas", every=20, time=int(time.time()) - 3 * 86400 + 1800)
    done = run_gpuboard(data.parent, "pull", served.address("atlas"))
    assert done.returncode == 1
    assert done.stderr == (
        f"gpuboard: atlas: the files on 127.0.0.1:{served.port} are 3 d old: do the loops of gpu-check.sh run there?\n"
    )
    assert not (data / "atlas").exists()


@pytest.mark.slow
def test_servers_that_misbehave_cost_their_own_host_only_and_no_more_time_than_allowed(
    served: Served, data: Path, tmp_path: Path
) -> None:
    second_server = Served(tmp_path / "other")
    served.elsewhere = second_server.port
    for name in ("well", "secret", "torn"):
        served.lab.host(name, every=60)
    served.lab.write("torn", "gpus.csv", "index\n", end="", every=60)
    kinds = ("away", "forged", "huge", "packed", "broken", "drip", "heads", "nothing")
    closed = Served(tmp_path / "closed")
    closed.stop()
    targets = [served.address(name) for name in ("well", "torn", *kinds)]
    targets += [
        served.address("liar", "well"),
        served.address("locked", "secret"),
        f"secret=http://lab:p%20w@127.0.0.1:{served.port}/secret",
        closed.address("gone"),
    ]
    began = time.monotonic()
    done = run_gpuboard(data.parent, "pull", *targets, "--limit", "3")
    assert time.monotonic() - began < 20
    second_server.stop()
    here = f"127.0.0.1:{served.port}"
    errors_by_host = dict(line.removeprefix("gpuboard: ").split(": ", 1) for line in done.stderr.splitlines())
    assert {name: words[:400] for name, words in errors_by_host.items()} == {
        "away": f"{here}/away/gpus.csv redirects to http://127.0.0.1:{second_server.port}/away/gpus.csv, "
        "which is not followed: use that address",
        "forged": f"{here}/forged/gpus.csv redirects to / gpuboard: all is well, "
        "which is not followed: use that address",
        "huge": f"{here}: it sends a file larger than 8 MiB",
        "packed": f"{here}: it sends compressed files although it was asked not to",
        "broken": f"{here} did not answer like a web server",
        "drip": errors_by_host["drip"],
        "heads": errors_by_host["heads"],
        "nothing": f"{here}/nothing/gpus.csv does not exist: is this the folder that the loops of that host push to?",
        "torn": "gpus.csv is ignored: the file is incomplete: its end is missing",
        "liar": "; ".join(f"{file} says host=well: pull it by that name" for file in FILES),
        "locked": f"{here}/secret/gpus.csv asks for a password: "
        "use name=https://user:password@host/path/ in a file that only you can read",
        "gone": f"127.0.0.1:{closed.port} does not answer: is a web server running there?",
    }
    assert {errors_by_host[name].partition("within")[0] for name in ("drip", "heads")} <= {
        "no complete answer ",
        f"{here} did not answer in time",
    }
    assert done.returncode == 1
    assert second_server.log == []
    assert sorted(path.name for path in data.iterdir()) == ["secret", "torn", "well"]
    assert sorted(times(data / "torn")) == ["host.txt", "processes.csv", "ps.txt"]
    assert "p%20w" not in done.stderr


@pytest.mark.slow
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, data: Path) -> None:
    keys = make_certificates(tmp_path / "keys")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    safe = Served(tmp_path / "safe", context)
    safe.lab.host("atlas", every=60)
    address = safe.address("atlas").replace("http:", "https:")
    refused = run_gpuboard(data.parent, "pull", address)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"gpuboard: atlas: the certificate of 127.0.0.1:{safe.port} is not trusted: ")
    assert safe.log == []
    done = run_gpuboard(data.parent, "pull", address, SSL_CERT_FILE=str(keys / "ca.pem"))
    safe.stop()
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(times(data / "atlas")) == sorted(FILES)


@pytest.mark.slow
def test_nginx_serves_them_as_the_page_says(tmp_path: Path, data: Path) -> None:
    place = booking_servers.Place(tmp_path)
    place.lab.host("atlas", every=60)
    (block,) = blocks("nginx-spool")
    port = free_port()
    content = block.text.replace("/srv/gpuboard/", f"{place.lab.data}/")
    with booking_servers.nginx(place, f"server {{\nlisten 127.0.0.1:{port};\n{content}}}", port):
        address = f"atlas=http://127.0.0.1:{port}/gpuboard/atlas/"
        done = run_gpuboard(data.parent, "pull", address, "--every", "1", "--for", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(times(data / "atlas")) == sorted(FILES)


# Hosts of the original gpu-monitor, of which a fork serves the folder of its scripts

GPU_ROW = "0, GPU-1, T4, 3, 15360, 0, 0, 40, 2026/11/16 09:00:00.123\n"
LEGACY = {
    "gpus.csv": GPU_ROW * 2,  # what a loop has written, beside the host's own file
    "processes.csv": "",
    "pa4_gpus.csv": GPU_ROW,
    "pa4_processes.csv": "2026/11/16 09:00:01.1, GPU-1, 512, python, 42\n",
    "pa4_users.csv": "42 alice Mon Nov 16 08:00:00 2026\n",
    "pa4_status.csv": "96\n",
    "pa4_cpus.csv": "0;96\n",
}


class PlainHandler(http.server.SimpleHTTPRequestHandler):
    """What `python -m SimpleHTTPServer` does: HTTP/1.0, a listing, and one connection for each file."""

    def log_message(self, *_: object) -> None:
        """Kept, not printed."""


@pytest.fixture
def readings(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    folder = tmp_path / "gpuReadings"
    folder.mkdir()
    for name, content in LEGACY.items():
        (folder / name).write_text(content)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *words: PlainHandler(*words, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield folder, server.server_address[1]
    server.shutdown()
    server.server_close()


def test_the_folder_of_the_original_scripts_arrives_under_the_name_on_the_board(
    readings: tuple[Path, int], data: Path
) -> None:
    folder, port = readings
    for name in ("atlas", "pa4.lab.org"):
        done = run_gpuboard(data.parent, "pull", f"{name}=http://127.0.0.1:{port}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    endings = ("gpus.csv", "processes.csv", "status.csv", "users.csv")
    assert sorted(path.name for path in data.iterdir()) == [
        f"{n}_{end}" for n in ("atlas", "pa4.lab.org") for end in endings
    ]
    for ending in endings:
        assert (data / f"atlas_{ending}").read_text() == LEGACY[f"pa4_{ending}"]
        assert (data / f"atlas_{ending}").stat().st_mode & 0o7777 == 0o640
    before = times(data)
    (folder / "pa4_gpus.csv").write_text(GPU_ROW.replace("40", "41"))
    assert run_gpuboard(data.parent, "pull", f"atlas=http://127.0.0.1:{port}").returncode == 0
    assert [name for name, changed_at in times(data).items() if changed_at != before[name]] == ["atlas_gpus.csv"]


def test_a_host_that_gets_our_scripts_is_pulled_on_by_the_same_process(
    readings: tuple[Path, int], data: Path, tmp_path: Path
) -> None:
    folder, port = readings
    fetcher = HttpFetcher(Target(f"http://127.0.0.1:{port}/", "atlas"))
    write_pulled_files(data, "atlas", fetcher.fetch(time.monotonic() + 20))
    assert (data / "atlas_gpus.csv").exists()
    for path in folder.iterdir():
        path.unlink()
    lab = Lab(tmp_path / "new")
    lab.host("atlas", every=60)
    for file in FILES:
        (lab.data / "atlas" / file).rename(folder / file)
    with pytest.raises(PullError, match="does not exist"):
        fetcher.fetch(time.monotonic() + 20)
    write_pulled_files(data, "atlas", fetcher.fetch(time.monotonic() + 20))
    assert sorted(path.name for path in (data / "atlas").iterdir()) == sorted(FILES)
    fetcher.close()


def test_files_that_the_original_scripts_write_later_are_pulled_too(readings: tuple[Path, int], data: Path) -> None:
    folder, port = readings
    (folder / "pa4_processes.csv").rename(folder / "later")
    fetcher = HttpFetcher(Target(f"http://127.0.0.1:{port}/", "atlas"))
    write_pulled_files(data, "atlas", fetcher.fetch(time.monotonic() + 20))
    assert not (data / "atlas_processes.csv").exists()
    (folder / "later").rename(folder / "pa4_processes.csv")
    write_pulled_files(data, "atlas", fetcher.fetch(time.monotonic() + 20))
    assert (data / "atlas_processes.csv").read_text() == LEGACY["pa4_processes.csv"]
    fetcher.close()


def test_files_of_the_original_scripts_that_are_old_or_of_several_hosts_are_refused(
    readings: tuple[Path, int], data: Path
) -> None:
    folder, port = readings
    old = time.time() - 3 * 86400 + 60  # rounded up
    os.utime(folder / "pa4_gpus.csv", (old, old))
    done = run_gpuboard(data.parent, "pull", f"atlas=http://127.0.0.1:{port}")
    assert (done.returncode, done.stderr) == (
        1,
        f"gpuboard: atlas: the files on 127.0.0.1:{port} are 3 d old: does the loop of gpu-run.sh 3 run there?\n",
    )
    (folder / "pa5_gpus.csv").write_text(GPU_ROW)
    done = run_gpuboard(data.parent, "pull", f"atlas=http://127.0.0.1:{port}")
    assert f"127.0.0.1:{port} serves the files of 2 hosts (pa4, pa5): name one" in done.stderr
    assert list(data.iterdir()) == []
    assert run_gpuboard(data.parent, "pull", f"pa5=http://127.0.0.1:{port}").returncode == 0
    assert [path.name for path in data.iterdir()] == ["pa5_gpus.csv"]
