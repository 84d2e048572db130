"""GPUs that share the memory of their host: how much a program can allocate, and what their states are."""

from __future__ import annotations

from typing import Any

import pytest

from site_builder.core.model import Gpu, HostFacts, HostStatus, ParsedFile, SharedMemory
from site_builder.fleet import summary
from site_builder.fleet.shared_memory import add_host_memory
from tests.support.generated_fleet import NOW, decide, gpu, head, host_data, idle_for, only_gpu, reason, state, used_by

ALL = SharedMemory(is_all=True)


def gb10(**overrides: Any) -> Gpu:  # noqa: ANN401
    """A GPU without memory of its own, whose driver reports none."""
    plain: dict[str, Any] = {"used": None, "memory_total": None, "name": "NVIDIA GB10", "shared_memory": ALL}
    return gpu(**{**plain, **overrides})


def apu(vram: float = 512, vram_used: float = 100, gtt: float = 60_000, gtt_used: float = 300) -> Gpu:
    """A GPU whose tool reports VRAM and GTT."""
    shared = SharedMemory(total=gtt, used=gtt_used)
    return gpu(used=vram_used + gtt_used, memory_total=vram + gtt, shared_memory=shared)


def facts(total: float | None = 122_000, available: float | None = 90_000) -> dict[str, Any]:
    """The facts of the host, as a file of its snapshot."""
    return {"facts": ParsedFile((HostFacts(cpus=4, memory_total=total, memory_available=available),), head("host"))}


def memory(shown: Gpu) -> tuple[float | None, float | None]:
    return shown.memory_used, shown.memory_total


def free_gpus(status: HostStatus) -> list[float]:
    return [free.memory_total for free in summary.summarize_host(status, NOW).free_gpus]


def test_a_gpu_without_memory_of_its_own_has_that_of_its_host() -> None:
    shown = only_gpu(host_data([gb10()], **facts())).gpu
    assert memory(shown) == (32_000, 122_000)
    assert shown.is_memory_shared


@pytest.mark.parametrize(
    ("total", "available", "expected"),
    [(None, None, (None, None)), (122_000, None, (None, 122_000)), (None, 90_000, (None, None)), (10, 20, (0, 10))],
)
def test_memory_of_the_host_that_is_not_known_stays_unknown(
    total: float | None, available: float | None, expected: tuple[float | None, float | None]
) -> None:
    assert memory(only_gpu(host_data([gb10()], **facts(total, available))).gpu) == expected


def test_without_facts_of_the_host_the_memory_is_unknown() -> None:
    assert memory(add_host_memory(gb10(), None)) == (None, None)
    assert memory(only_gpu(host_data([gb10()], facts=None)).gpu) == (None, None)


def test_a_gpu_whose_memory_is_unknown_for_another_reason_gets_none_of_its_host() -> None:
    shown = only_gpu(host_data([gpu(used=None, memory_total=None, name="GRID A100-10C")], **facts())).gpu
    assert (memory(shown), shown.is_memory_shared) == ((None, None), False)


def test_programs_on_the_host_make_no_gpu_busy() -> None:
    assert (
        reason(host_data([gb10()], **facts(available=500))) == "free: no process; the driver does not report its memory"
    )
    assert state(host_data([apu()], **facts(available=500))) == "free"


def test_a_job_on_a_gpu_with_shared_memory_is_never_overlooked() -> None:
    plenty = facts(available=121_999)
    assert state(used_by("alice", gpus=[gb10(use=0)], **plenty)) == "busy"
    assert state(host_data([gb10(use=70)], **plenty)) == "busy"
    assert state(host_data([gb10()], processes=None, **plenty)) == "unknown"
    assert state(host_data([gb10(use=None)], **plenty)) == "unknown"
    # programs that the tool does not list, such as those of Vulkan, still have memory of the GPU
    assert reason(host_data([apu(gtt_used=40_000)], **plenty)) == "busy: 39 GiB in use without a process"


def test_held_memory_is_that_of_the_processes_not_of_the_host() -> None:
    held = used_by("alice", gpus=[gb10(use=0)], **facts(available=500))
    assert reason(held, idle=idle_for(9000)).startswith("held: 6.8 GiB taken by alice")


def test_memory_in_use_by_the_host_is_not_unexplained_memory_of_the_gpu() -> None:
    assert not only_gpu(host_data([gb10(use=70)], **facts(available=500))).has_unexplained_memory


def test_an_apu_has_its_vram_and_its_gtt() -> None:
    assert memory(only_gpu(host_data([apu()], **facts())).gpu) == (400, 60_512)


def test_what_other_programs_have_of_the_hosts_memory_cannot_be_allocated() -> None:
    """412 MiB of VRAM and 5,000 MiB of the host are left."""
    assert memory(only_gpu(host_data([apu()], **facts(available=5000))).gpu) == (60_512 - 412 - 5000, 60_512)


def test_gtt_is_no_larger_than_the_memory_that_the_host_has() -> None:
    assert memory(only_gpu(host_data([apu(gtt=131_072)], **facts())).gpu) == (122_512 - 412 - 90_000, 122_512)


def test_memory_of_an_apu_that_its_tool_reports_as_a_whole_is_left_as_it_is() -> None:
    mi300a = gpu(used=300, memory_total=131_072, shared_memory=SharedMemory(total=0, used=0))
    assert memory(only_gpu(host_data([mi300a], **facts(total=500_000, available=400_000))).gpu) == (300, 131_072)


@pytest.mark.parametrize("facts_of_host", [{}, facts(None, None), {"facts": None}])
def test_without_the_memory_of_the_host_an_apu_has_what_its_tool_reports(facts_of_host: dict[str, Any]) -> None:
    assert memory(only_gpu(host_data([apu()], **facts_of_host)).gpu) == (400, 60_512)


def test_an_apu_whose_gtt_is_not_known_has_unknown_memory() -> None:
    unknown = gpu(used=None, memory_total=None, shared_memory=SharedMemory())
    assert memory(only_gpu(host_data([unknown], **facts())).gpu) == (None, None)


def test_a_silent_host_keeps_the_size_of_the_memory_and_that_it_is_shared() -> None:
    (status,) = decide(
        host_data([gb10()], ages={"host.txt": 300, "gpus.csv": 300}, last_seen=NOW - 300, **facts())
    ).gpus
    assert (memory(status.gpu), status.gpu.is_memory_shared) == ((None, 122_000), True)


def test_a_watch_counts_what_can_be_allocated_now() -> None:
    status = decide(host_data([gb10(), gpu(1, name="Tesla T4", memory_total=16_384)], **facts(available=8192)))
    assert free_gpus(status) == [8192, 16_384]
    assert free_gpus(decide(host_data([gb10()], **facts(available=None)))) == [0]


def test_gpus_with_memory_of_their_own_are_better_however_much_others_share() -> None:
    status = decide(host_data([gb10(), gpu(1, name="Tesla T4", memory_total=16_384)], **facts()))
    host_summary = summary.summarize_host(status, NOW)
    assert [available.index for available in sorted(host_summary.available_gpus)] == [1, 0]
    assert [(model.model, model.memory_gib) for model in host_summary.models] == [("GB10", 0), ("T4 16 GB", 16)]
    mi300a = gpu(memory_total=131_072, name="MI300A", shared_memory=SharedMemory(total=0, used=0))
    (model,) = summary.summarize_host(decide(host_data([mi300a])), NOW).models
    assert model.memory_gib == 128


def test_models_keep_their_names() -> None:
    assert only_gpu(host_data([gb10()], **facts())).model == "GB10"
