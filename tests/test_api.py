"""The functions for Python programs: in the shapes that users of nvgpu know, typed, and from the same sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import site_builder
from site_builder import available_gpus, gpu_info, load_fleet
from site_builder.client.model import Fleet, FleetGpu
from site_builder.core.model import FleetUnavailableError
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.booking_fixtures import lab_of, served
from tests.support.command_line import clean_environment
from tests.support.docs import ROOT, Block, blocks
from tests.support.own_gpus import HERE, OwnGpus, row, uuid


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnGpus:
    """This machine, with nothing set up."""
    machine = OwnGpus(tmp_path / "own", row(0, 7881, "NVIDIA GeForce GTX 1070", 8119), row(1))
    for name in ("GPUBOARD_URL", "GPUBOARD_DATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**machine.environment, "GPUBOARD_CONF": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    return machine


@pytest.fixture
def lab(tmp_path: Path, own: OwnGpus) -> Lab:  # noqa: ARG001 # it sets the environment
    prepared_lab = lab_of(tmp_path / "lab")
    prepared_lab.host(HERE, gpu(0, uuid=uuid(0)) + gpu(1, 7000, 50, uuid=uuid(1)), process(7, uuid(1)), person(7))
    return prepared_lab


def test_the_gpus_of_this_machine_that_can_be_had(own: OwnGpus) -> None:
    assert available_gpus() == ["1"]
    own.tell(row(0), row(1), row(2, 5, "NVIDIA H100 80GB HBM3"))
    assert available_gpus() == ["2", "0", "1"]
    assert available_gpus(limit=1) == ["2"]
    assert available_gpus(model="A100") == ["0", "1"]
    assert available_gpus(min_memory=100_000) == []
    assert available_gpus(order="index") == ["0", "1", "2"]


def test_the_rule_of_nvgpu_goes_by_used_memory_alone(own: OwnGpus) -> None:
    own.tell(row(0, 16384, use=90), row(1, 16385), row(2))
    own.process(0, 7, "python train.py")
    assert available_gpus() == ["2"]
    assert available_gpus(max_used_percent=20, order="index") == ["0", "2"]
    assert available_gpus(max_used_percent=100, order="index", limit=2) == ["0", "1"]
    with pytest.raises(ValueError, match="order is 'size', but must be best or index"):
        available_gpus(order="size")


def test_what_is_reported_of_each_gpu_has_the_form_that_people_know(own: OwnGpus) -> None:
    first = gpu_info()[0]
    assert first == {
        "index": "0",
        "mem_total": 8119,
        "mem_used": 7881,
        "mem_used_percent": pytest.approx(97.06860450794433),
        "type": "NVIDIA GeForce GTX 1070",
        "uuid": uuid(0),
    }
    assert isinstance(first["mem_total"], int)
    assert len(own.environment) == 3


def test_what_the_driver_does_not_report_is_none_and_never_0(own: OwnGpus) -> None:
    own.tell(f"0, {uuid(0)}, Orin (nvgpu), [N/A], [N/A], 12, 41, 900\n")
    (gpu_row,) = gpu_info()
    assert (gpu_row["mem_used"], gpu_row["mem_total"], gpu_row["mem_used_percent"]) == (None, None, None)


@pytest.mark.slow
def test_the_fleet_of_a_folder_and_of_a_url_are_the_same_and_typed(lab: Lab, own: OwnGpus) -> None:
    own.tell(row(0), row(1, 7000, use=50))
    by_path, by_text = load_fleet(lab.data), load_fleet(str(lab.data))
    with served(lab) as url:
        by_url = load_fleet(url)
        assert available_gpus(source=url) == ["0"]
    assert isinstance(by_path, Fleet)
    assert by_path.hosts[0].gpus == by_text.hosts[0].gpus == by_url.hosts[0].gpus
    assert [entry.name for entry in by_path.hosts] == [entry.name for entry in by_url.hosts]
    there = by_path.find_host(HERE)
    assert there
    assert isinstance(there.gpus[1], FleetGpu)
    assert [(entry.user, entry.command) for entry in there.gpus[1].processes] == [("alice", "python train.py")]


def test_the_settings_of_the_environment_say_where_the_fleet_is(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.book({HERE: {"0": {"name": "bob", "date": soon(7200)}}})
    monkeypatch.setenv("GPUBOARD_DATA", str(lab.data))
    assert available_gpus() == []
    assert [gpu_row["type"] for gpu_row in gpu_info()] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert len(load_fleet().hosts) == 3
    (booking,) = (load_fleet().find_host(HERE) or pytest.fail()).gpus[0].bookings
    assert (booking.name, booking.until.tzinfo is not None) == ("bob", True)


@pytest.mark.usefixtures("own")
def test_what_goes_wrong_is_one_exception_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FleetUnavailableError, match="nothing answers at"):
        load_fleet("http://127.0.0.1:9/")
    with pytest.raises(FleetUnavailableError, match="there is no folder"):
        load_fleet(tmp_path / "nowhere")
    with pytest.raises(FleetUnavailableError, match="GPUBOARD_URL is"):
        load_fleet("http://not a url")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetUnavailableError, match="no nvidia-smi"):
        gpu_info()


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: str(block.page))
def test_what_the_docs_show_runs(block: Block, own: OwnGpus, tmp_path: Path) -> None:
    own.tell(row(0), row(1))
    environment = clean_environment(**own.environment)
    command = [sys.executable, "-c", block.text]
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == "".join(f"{HERE} {index} A100 80 GB free []\n" for index in range(2))


@pytest.mark.slow
def test_a_type_checker_knows_the_functions(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from site_builder import available_gpus, gpu_info, load_fleet\n"
        "a: list[str] = available_gpus(limit=2)\n"
        "b: int | None = load_fleet().hosts[0].gpus[0].index\n"
        "c: object = gpu_info()[0]['index']\n"
        "available_gpus(limit='2')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", str(program)]
    environment = clean_environment(MYPYPATH=str(ROOT))
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert 'program.py:5: error: Argument "limit"' in finished.stdout
    assert "Found 1 error in 1 file" in finished.stdout
    assert (ROOT / "site_builder/py.typed").is_file()


def test_to_import_the_package_imports_nothing_else() -> None:
    script = "import sys, site_builder; print(sorted(one for one in sys.modules if one.startswith('site_builder')))"
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "['site_builder']\n"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = site_builder.nothing
