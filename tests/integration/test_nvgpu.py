"""The real nvgpu: its master lists the hosts of `gpuboard serve`, and `gpuboard available` knows its rule."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from site_builder import available_gpus, gpu_info
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.docs import blocks
from tests.support.machine import keep_tool
from tests.support.missing import missing
from tests.support.own_gpus import OwnGpus, row
from tests.support.ports import free_port
from tests.support.serve_fixtures import Running, clean_environment, running

# The newest one whose page shows agents, and the newest of all, without what both need.
PAGE_VERSION, NEWEST_VERSION = "0.9.0", "0.10.0"
NEWEST_FOLDER = "newest"


def install(folder: Path, *words: str) -> None:
    """Run pip, or leave the test out where it finds no packages for this Python."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(folder),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        missing(f"nvgpu cannot be installed for this Python: {done.stderr[-300:]}")


def fill(folder: Path) -> None:
    install(folder, f"nvgpu=={PAGE_VERSION}")
    install(folder / NEWEST_FOLDER, "--no-deps", f"nvgpu=={NEWEST_VERSION}")


@pytest.fixture(scope="module")
def nvgpu() -> Path:
    """A folder with nvgpu and all that it needs."""
    return keep_tool("nvgpu", fill, sys.executable)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Running]:
    """A busy host, one whose GPU nobody known uses, and one that is silent."""
    lab = Lab(tmp_path / "lab")
    lab.host("atlas", gpu(0, 7000, 97) + gpu(1), process(42), person(42, "alice", "python train.py --lr 1", 7300))
    lab.host("hydra", gpu(0, 7000, 3, uuid="GPU-h"), process(43, "GPU-h"))
    (lab.data / "hosts.txt").write_text("atlas\nhydra\ntiber\n")
    lab.build()
    with running(lab.data.parent) as served:
        yield served


@contextmanager
def run_master(folder: Path, packages: Sequence[Path], agents: Sequence[str]) -> Iterator[str]:
    """Run nvgpu's web application as its README says, and yield its address."""
    config, port = folder / "nvgpu_master.cfg", free_port()
    config.write_text(f"AGENTS = {list(agents)!r}\n")
    environment = clean_environment(NVGPU_CLUSTER_CFG=str(config), FLASK_APP="nvgpu.webapp")
    environment["PYTHONPATH"] = ":".join(map(str, packages))
    command = [sys.executable, "-m", "flask", "run", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "master.log"
    with log.open("wb") as output:
        master = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 120
        while "Running on" not in log.read_text():
            assert master.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        master.terminate()
        master.wait(20)


def read(url: str) -> str:
    with urlopen(url, timeout=60) as answer:  # noqa: S310 # our own
        return str(answer.read().decode())


def read_page_lines(url: str) -> list[str]:
    """Read the text of a page, with single blanks."""
    text = html.unescape(re.sub("<[^>]*>", "", read(url)))
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.slow
def test_the_master_shows_the_hosts_of_the_board(nvgpu: Path, board: Running, tmp_path: Path) -> None:
    agents = [f"http://127.0.0.1:{board.port}/nvgpu/{host}" for host in ("atlas", "hydra", "tiber", "nobody")]
    with run_master(tmp_path, [nvgpu], agents) as url:
        lines = read_page_lines(url)
        reports = json.loads(read(f"{url}cluster_status"))
    assert f"{agents[0]} (atlas)" in lines
    # the clock, which nvidia-smi does not report here, is shown as pandas likes it
    rows = [re.sub(" (41|42)( nan| None)?( |$)", r" \1\3", line) for line in lines]
    assert "0 [~] NVIDIA A100-SXM4-80GB 97 % 41 alice 2 hours ago 42 train.py" in rows
    assert "1 [ ] NVIDIA A100-SXM4-80GB 0 % 41" in rows
    assert "0 [!] NVIDIA A100-SXM4-80GB 3 % 41 ? 43 python" in rows
    position = lines.index(agents[2])
    assert lines[position + 1].startswith("tiber is unseen: ")
    assert "Bad response (404: Not Found)" in lines
    own_reports = json.loads(read(f"http://127.0.0.1:{board.port}/cluster_status"))
    assert reports[:3] == own_reports


@pytest.mark.slow
def test_the_newest_master_answers_with_the_hosts_of_the_board(nvgpu: Path, board: Running, tmp_path: Path) -> None:
    agents = [f"http://127.0.0.1:{board.port}/nvgpu/atlas"]
    with run_master(tmp_path, [nvgpu / NEWEST_FOLDER, nvgpu], agents) as url:
        (report,) = json.loads(read(f"{url}cluster_status"))
        with pytest.raises(URLError, match="500"):  # as with any agent: then docs/outputs.md can say so no longer
            read(url)
    assert report["hostname"] == "atlas"
    assert [gpu_entry["is_available"] for gpu_entry in report["gpus"]] == [False, True]


@pytest.mark.slow
def test_the_agents_of_the_docs_are_addresses_of_the_board(board: Running) -> None:
    settings: dict[str, Any] = {}
    (text,) = (block.text for block in blocks("nvgpu"))
    exec(text, settings)  # noqa: S102 # as nvgpu reads it
    paths = [agent.partition("gpus.lab.org")[2].replace("gpu01", "atlas") for agent in settings["AGENTS"]]
    assert json.loads(board.get(f"{paths[0]}/gpu_status").body)["hostname"] == "atlas"


@pytest.mark.slow
def test_its_rule_picks_the_gpus_that_it_would_pick(
    nvgpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = (4, 16384, 16385, 81920, 0, 16383)
    own = OwnGpus(tmp_path / "own", *(row(number, mib, use=50) for number, mib in enumerate(used)))
    for name in ("GPUBOARD_URL", "GPUBOARD_DATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**own.environment, "GPUBOARD_CONF": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    script = "import json, nvgpu, sys; nvgpu.gpu_info = lambda: json.load(sys.stdin); print(nvgpu.available_gpus(20))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(gpu_info()),
        env={"PYTHONPATH": str(nvgpu)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['0', '1', '4', '5']\n"
    assert str(available_gpus(max_used_percent=20, order="index")) == done.stdout.strip()
