"""GPUs of AMD from end to end: on this machine, on the board, and in the hands of whoever picks one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from site_builder.client import picker
from site_builder.client.model import FleetGpu, FleetHost
from site_builder.client.picker import GpuChoice
from site_builder.client.run_command import build_run_environment
from site_builder.core import model, subprocesses
from tests.support.amd_fixtures import listed, metric, part, running, static
from tests.support.board_fixture import Lab, gpu
from tests.support.browser import served
from tests.support.command_line import clean_environment, run_gpuboard, run_in_own_process
from tests.support.own_gpus import HERE, STAND_INS, OwnGpus, row

SHOW = 'echo "${CUDA_VISIBLE_DEVICES-unset} ${HIP_VISIBLE_DEVICES-unset} ${ROCR_VISIBLE_DEVICES-unset}"'
PLAIN = "/usr/local/bin:/usr/bin:/bin"


class AmdMachine:
    """This machine with GPUs of AMD, and of NVIDIA if `nvidia`, told by stand-ins."""

    def __init__(self, folder: Path, tool: str = "amd-smi", nvidia: bool = False) -> None:
        """Two MI300X that are free."""
        self.own = OwnGpus(folder / "own", row(0), row(1))
        self.amd = self.own.smi / "amd"
        self.amd.mkdir()
        bin_ = folder / "bin"
        bin_.mkdir()
        for name in [f"amd/{tool}", *(["nvidia-smi"] if nvidia else [])]:
            (bin_ / Path(name).name).symlink_to(STAND_INS / name)
        self.environment = {**self.own.environment, "PATH": f"{bin_}:{PLAIN}", "ROCM_PATH": str(folder / "none")}

    def __call__(self, *words: str, **extra_environment: str) -> subprocess.CompletedProcess[str]:
        return run_gpuboard(self.amd, *words, **{**self.environment, **extra_environment})


def amd_host(lab: Lab, name: str = "hip", nvidia: str = "", *processes: tuple[object, ...]) -> None:
    """A host with two GPUs of AMD, of which the second is HIP's first; with these of NVIDIA before them."""
    names = part("amd-smi/names", [listed(0, hip_id=1), listed(1, hip_id=0)])
    snapshot = names + part("amd-smi/static", [static(0), static(1)]) + part("amd-smi/metric", [metric(0), metric(1)])
    idle = snapshot.replace(b'"value": 8192', b'"value": 283')
    lab.host(name, nvidia)
    on = names + part("amd-smi/processes", [running(0, *processes), running(1)])
    for file, body in (("gpus.csv", idle), ("processes.csv", on)):
        path = lab.data / name / file
        first, _, rest = path.read_bytes().partition(b"\n")
        csv = b"# part nvidia-csv rc=0\n" + rest.removesuffix(b"# end\n") if nvidia else b""
        path.write_bytes(first + b"\n" + csv + body + b"# end\n")


# On this machine


@pytest.mark.parametrize("tool", ["amd-smi", "rocm-smi"])
def test_on_this_machine_the_tools_of_amd_are_asked(tmp_path: Path, tool: str) -> None:
    here = AmdMachine(tmp_path, tool)
    (here.amd / "nodes").write_text("2 1\n")
    here.own.process(0, 71, "python train.py")
    (here.amd / "apps").write_text(f"0 71 {8 * 2**30} python\n")
    (here.amd / "memory").write_text("8192 283\n")
    amd_gpus = json.loads(here("list", "--json").stdout)["hosts"][0]["gpus"]
    assert [(one["index"], one["vendor"], one["model"]) for one in amd_gpus] == [
        (0, "amd", "MI300X 192 GB"),
        (1, "amd", "MI300X 192 GB"),
    ]
    assert [one["state"] for one in amd_gpus] == ["free", "busy"]  # HIP's 0 is the second of the tool
    assert amd_gpus[1]["processes"][0]["command"] == "python train.py"
    assert here("available").stdout == "0\n"
    assert here("available", "--all").stdout.strip() == f"{HERE}:0"


def test_an_older_amd_smi_is_asked_as_it_can_be(tmp_path: Path) -> None:
    here = AmdMachine(tmp_path)
    (here.amd / "old").touch()
    assert here("available").stdout == "0,1\n"


def test_where_the_better_tool_fails_the_other_is_asked(tmp_path: Path) -> None:
    here = AmdMachine(tmp_path)
    (tmp_path / "bin/rocm-smi").symlink_to(STAND_INS / "amd/rocm-smi")
    (here.amd / "say").write_text("ModuleNotFoundError: No module named 'amdsmi'\n")
    (here.amd / "rc").write_text("1")
    # in a process of its own, for it leaves the other queries of the tool that fails to themselves
    finished = run_in_own_process(here.amd, clean_environment(**here.environment), "available")
    assert finished.stdout == "0,1\n"


def test_a_tool_of_amd_that_fails_says_why(tmp_path: Path) -> None:
    here = AmdMachine(tmp_path)
    (here.amd / "say").write_text("Driver not initialized (amdgpu not found in modules)\n")
    (here.amd / "rc").write_text("255")
    finished = here("available")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "amd-smi ended with exit code 255: Driver not initialized" in finished.stderr


def test_no_line_of_a_tool_passes_for_one_of_ours() -> None:
    code_and_output = subprocesses.LimitedProcess(
        ("/bin/printf", "# a\\r# part x rc=0\\n# end\\r\\nb\\r\\n")
    ).read_output()
    assert code_and_output == (0, b" # a?# part x rc=0\n # end\nb\n")


def test_no_second_one_is_started_while_one_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocesses, "TIMEOUT_S", 0.2)
    tool = tmp_path / "amd-smi"
    tool.write_text("#!/bin/sh\nexec sleep 20\n")
    tool.chmod(0o755)
    first = subprocesses.LimitedProcess((str(tool),))
    monkeypatch.setattr(os, "killpg", lambda *_: None)  # one that cannot be killed
    assert first.read_output() == (model.EXIT_TIMED_OUT, b"")
    try:
        assert subprocesses.LimitedProcess((str(tool),)).read_output() == (model.EXIT_STILL_HANGS, b"")
        assert subprocesses.LimitedProcess(("/bin/echo", "x")).read_output() == (
            0,
            b"x\n",
        )  # another program is none of its concern
    finally:
        first.process.kill()
        first.process.communicate()
        subprocesses.HUNG_PROCESSES.clear()


def test_numbers_of_two_makers_are_never_mixed(tmp_path: Path) -> None:
    here = AmdMachine(tmp_path, nvidia=True)
    assert here("available").stdout == "0,1\n"
    assert here("available", "--vendor", "amd").stdout == "0,1\n"
    here.own.tell(row(0, 70000), row(1, 70000))
    finished = here("available")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert here("available", "--vendor", "amd", "-l", "1").stdout == "0\n"
    assert here("available", "--all").stdout.split() == [f"{HERE}:amd0", f"{HERE}:amd1"]
    refused = here("available", "--vendor", "intel")
    assert refused.returncode == 2


def test_a_missing_gpu_of_a_maker_is_reported(tmp_path: Path) -> None:
    finished = AmdMachine(tmp_path)("available", "--vendor", "nvidia")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "none of its 2 GPUs is of this maker" in finished.stderr


@pytest.mark.parametrize(
    ("nvidia", "words", "shown"),
    [
        (False, (), "unset 0 unset"),
        (True, ("--vendor", "amd"), " 0 unset"),
        (True, (), "0  1"),
    ],
)
def test_a_run_sees_its_gpus_and_none_of_the_other_maker(
    tmp_path: Path, nvidia: bool, words: tuple[str, ...], shown: str
) -> None:
    here = AmdMachine(tmp_path, nvidia=nvidia)
    finished = here("run", *words, "--", "sh", "-c", SHOW, CUDA_VISIBLE_DEVICES="7", ROCR_VISIBLE_DEVICES="1")
    assert finished.stdout.rstrip("\n") == shown, finished.stderr


def test_a_card_without_a_uuid_can_be_run_on_and_is_given_to_one_alone(tmp_path: Path) -> None:
    here = AmdMachine(tmp_path, "rocm-smi")
    bare = {"card0": {"Unique ID": "N/A", "Device Name": "Radeon RX 7900 XT"}}
    moving = {"card0": {"GPU use (%)": "0", "VRAM Total Memory (B)": "21458059264", "VRAM Total Used Memory (B)": "27"}}
    (here.amd / "rocm-names").write_text(json.dumps(bare))
    (here.amd / "rocm-metric").write_text(json.dumps(moving))
    finished = here("run", "--", "sh", "-c", f"{SHOW}; {sys.executable} -m site_builder available")
    assert finished.stdout == "unset 0 unset\n"
    assert "taken by another run" in finished.stderr


def test_several_gpus_for_one_process_are_of_one_maker() -> None:
    gpus = [
        FleetGpu(n, f"{maker}-{n}", None, "x", "free", "", vendor=maker) for maker in ("nvidia", "amd") for n in (0, 1)
    ]
    host = FleetHost("a", None, (), "fresh", "", gpus=tuple(gpus))
    choices = [GpuChoice(host, candidate) for candidate in (gpus[0], gpus[2], gpus[3], gpus[1])]
    assert [candidate.gpu.uuid for candidate in picker.select_gpus_on_one_host(choices, 2, picker.GpuRequest())] == [
        "amd-0",
        "amd-1",
    ]
    assert build_run_environment(choices[1:3], {"CUDA_VISIBLE_DEVICES": "5"}) == {
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "0,1",
    }


# On the board


def test_a_host_of_amd_is_on_the_board_with_its_people(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    amd_host(lab, "hip", "", ("python", 71, 2**30))
    lab.build()
    host = lab.host_status("hip")
    assert [(one["index"], one["uuid"], one["vendor"], one["state"]) for one in host["gpus"]] == [
        (0, "GPU-abc0000000000002", "amd", "free"),
        (1, "GPU-abc0000000000001", "amd", "busy"),
    ]
    assert host["gpus"][1]["processes"][0]["used_gpu_memory"] == 1024
    assert (lab.www / "available/hip.txt").read_text() == "0\n"
    assert (lab.www / "available-amd/hip.txt").read_text() == "0\n"
    assert (lab.www / "available.txt").read_text() == "hip:0\n"
    card = (lab.www / "cards/hip.html").read_text()
    assert 'data-see="HIP_VISIBLE_DEVICES=0"' in card


def test_a_host_of_two_makers_has_a_file_for_each(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    amd_host(lab, "both", gpu(0, 4) + gpu(1, 70000))
    lab.host("plain", gpu(0, 4, uuid="GPU-plain"))
    lab.build()
    assert [one.get("place") for one in lab.host_status("both")["gpus"]] == [None, None, "amd0", "amd1"]
    assert (lab.www / "available/both.txt").read_text() == "0\n"
    assert (lab.www / "available-amd/both.txt").read_text() == "0,1\n"
    assert set((lab.www / "available.txt").read_text().split()) == {"both:0", "both:amd0", "both:amd1", "plain:0"}
    assert not (lab.www / "available-amd/plain.txt").exists()
    lab.host("both", gpu(0, 4) + gpu(1, 70000))  # the cards were taken out
    lab.build()
    assert not (lab.www / "available-amd/both.txt").exists()
    assert (lab.www / "available/both.txt").read_text() == "0\n"


def test_what_is_copied_on_the_page_is_what_the_makers_programs_read(tmp_path: Path, browser: Browser) -> None:
    lab = Lab(tmp_path / "lab")
    amd_host(lab, "both", gpu(0, 4))
    lab.build()
    with served(lab.www, tmp_path / "server") as site:
        page = browser.new_page()
        page.goto(site.url)
        page.locator("tr button.copy").nth(2).wait_for()
        titles = page.locator("tr button.copy").evaluate_all("(several) => several.map((one) => one.title)")
        page.close()
    assert titles == [
        "Copy CUDA_VISIBLE_DEVICES=0",
        "Copy HIP_VISIBLE_DEVICES=0",
        "Copy HIP_VISIBLE_DEVICES=1",
    ]


def test_a_host_of_amd_that_does_not_answer_is_never_free(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    amd_host(lab)
    path = lab.data / "hip/processes.csv"
    head = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(
        head + b"\n" + part("amd-smi/names", [listed(0), listed(1)]) + b"# part amd-smi/processes rc=124\n# end\n"
    )
    lab.build()
    state_reasons = {f"{one['state']}: {one['reason']}" for one in lab.host_status("hip")["gpus"]}
    assert state_reasons == {"busy: 37 % used; the processes on it could not be read: amd-smi does not list them"}
    assert (lab.www / "available/hip.txt").read_text() == ""


def test_who_reads_the_board_elsewhere_gets_hips_numbers(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    amd_host(lab, "both", gpu(0, 70000))
    environment = {"GPUBOARD_DATA": str(lab.data), "PATH": os.environ["PATH"]}
    assert run_gpuboard(tmp_path, "available", "--host", "both", "--vendor", "amd", **environment).stdout == "0,1\n"
    assert run_gpuboard(tmp_path, "available", "--host", "both", **environment).returncode == 1
