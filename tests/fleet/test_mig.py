"""GPUs in MIG mode: each instance has a state of its own, and the GPU is what they are together."""

from __future__ import annotations

from typing import Any

import pytest

from site_builder.core.model import Booking, Gpu, GpuHealth, GpuStatus, HostStatus
from site_builder.fleet.mig import WholeGpu, list_whole_gpus
from tests.support.generated_fleet import booking, decide, gpu, host_data, idle_for, person, process
from tests.support.mig_fixtures import instance, instances, whole

A100 = gpu(1)


def states(board: HostStatus) -> dict[str, str]:
    return {gpu_status.gpu.label: gpu_status.state for gpu_status in board.gpus}


def of_gpus(*gpus: Gpu, bookings: tuple[Booking, ...] = (), **snapshot_fields: Any) -> HostStatus:  # noqa: ANN401
    return decide(host_data(list(gpus), **snapshot_fields), bookings)


def gpu_0(board: HostStatus) -> GpuStatus:
    return list_whole_gpus(board)[0].status


# Names


def test_an_instance_has_the_name_of_its_gpu_and_its_profile() -> None:
    assert [gpu_status.model for gpu_status in of_gpus(*instances()).gpus] == [
        "H100 3g.40gb",
        "H100 2g.20gb",
        "H100 1g.10gb",
        "H100 1g.10gb",
    ]


def test_an_instance_without_a_profile_is_labelled_as_one() -> None:
    assert of_gpus(instance(profile=None)).gpus[0].model == "H100 MIG"


def test_a_lab_may_call_the_gpu_as_it_likes() -> None:
    board = decide(host_data(instances()), names={"NVIDIA H100 80GB HBM3": "Big one"})
    assert board.gpus[0].model == "Big one 3g.40gb"
    assert gpu_0(board).model == "Big one"


def test_the_gpu_keeps_its_own_name_and_memory() -> None:
    assert gpu_0(of_gpus(*instances())).model == "H100 80 GB"


# States


def test_the_memory_that_an_empty_instance_needs_is_not_taken() -> None:
    assert set(states(of_gpus(*(instance(number, 26.0) for number in range(4)))).values()) == {"free"}


def test_each_instance_has_a_state_of_its_own() -> None:
    board = of_gpus(*instances(_1=7014), A100, processes=[process(on="MIG-0-1")], ps=[person()])
    assert states(board) == {"0:0": "free", "0:1": "busy", "0:2": "free", "0:3": "free", "1": "free"}
    assert board.gpus[1].reason == "in use by alice"


def test_an_instance_with_memory_that_no_process_explains_is_busy() -> None:
    assert of_gpus(*instances(_2=4000)).gpus[2].reason == "3.9 GiB in use without a process"


def test_an_instance_is_never_held_since_its_use_is_unknown() -> None:
    data = host_data(instances(_1=7014), processes=[process(on="MIG-0-1")], ps=[person()])
    board = decide(data, idle=idle_for(90_000, key="MIG-0-1"))
    assert board.gpus[1].state == "busy"
    assert board.gpus[1].idle_since is None


def test_an_instance_that_reports_neither_memory_nor_use_is_unknown() -> None:
    assert of_gpus(instance(used=None)).gpus[0].state == "unknown"


def test_a_host_that_is_not_fresh_keeps_only_its_list_of_instances() -> None:
    board = decide(host_data(instances(), ages={"host.txt": 300}))
    assert states(board) == dict.fromkeys(("0:0", "0:1", "0:2", "0:3"), "unknown")
    assert board.gpus[0].model == "H100 3g.40gb"
    assert gpu_0(board).reason == "its host is stale"
    assert gpu_0(board).gpu.temperature is None


def test_the_instances_of_a_gpu_that_is_lost_are_lost() -> None:
    board = of_gpus(*instances(whole(lost="GPU is lost")))
    assert set(states(board).values()) == {"lost"}


# Without instances


@pytest.mark.parametrize("used", [0.0, 87.0])
def test_a_gpu_in_mig_mode_that_reports_no_instances_is_never_free(used: float) -> None:
    (only,) = of_gpus(whole(memory_used=used, utilization_gpu=None)).gpus
    assert only.state == "unknown"
    assert only.reason == "it is in MIG mode without instances, so nothing can run on it"


def test_an_instance_with_a_process_is_busy() -> None:
    assert of_gpus(whole(), processes=[process()], ps=[person()]).gpus[0].state == "busy"


def test_an_instance_with_memory_taken_is_busy() -> None:
    assert of_gpus(whole(memory_used=30000.0)).gpus[0].state == "busy"


def test_a_gpu_that_is_not_in_mig_mode_is_as_ever() -> None:
    plain = whole(health=GpuHealth())
    assert of_gpus(plain).gpus[0].state == "free"


# Processes of which it is not told on which instance they are


def test_a_process_on_the_gpu_makes_its_empty_instances_unknown_and_no_others() -> None:
    board = of_gpus(*instances(_1=7014), A100, processes=[process(7), process(on="MIG-0-1")], ps=[person(7, "bob")])
    assert states(board) == {"0:0": "unknown", "0:1": "busy", "0:2": "unknown", "0:3": "unknown", "1": "free"}
    assert board.gpus[0].reason == "its GPU has processes on an unknown instance"
    assert board.unmatched_processes == ()
    assert [one.user for one in gpu_0(board).processes if one.user] == ["bob"]


def test_instances_without_a_uuid_have_processes_by_their_place() -> None:
    board = of_gpus(instance(0, uuid=None), instance(1, uuid=None), processes=[process(on="nvidia 0:1")], ps=[person()])
    assert states(board) == {"0:0": "free", "0:1": "busy"}
    assert [gpu_status.key for gpu_status in board.gpus] == ["index 0:0", "index 0:1"]


# Bookings


@pytest.mark.parametrize("key", ["0:2", "MIG-0-2", "mig-0-2"])
def test_a_booking_of_an_instance_books_that_instance_alone(key: str) -> None:
    board = of_gpus(*instances(), bookings=(booking(gpu=key),))
    assert states(board) == {"0:0": "free", "0:1": "free", "0:2": "booked", "0:3": "free"}
    assert not board.problems


@pytest.mark.parametrize("key", ["0", "GPU-0", "*"])
def test_a_booking_of_the_gpu_or_the_host_books_all_of_its_instances(key: str) -> None:
    board = of_gpus(*instances(), bookings=(booking(gpu=key),))
    assert set(states(board).values()) == {"booked"}
    assert [one.is_whole_gpu for one in board.gpus[0].bookings] == [key != "*"]
    assert not board.problems


def test_a_booking_of_another_gpu_books_no_instance() -> None:
    assert set(states(of_gpus(*instances(), A100, bookings=(booking(gpu="1"),))).values()) == {"free", "booked"}


def test_an_instance_can_be_in_conflict() -> None:
    data = {"processes": [process(on="MIG-0-1")], "ps": [person(user="bob")]}
    board = of_gpus(*instances(_1=7014), bookings=(booking("alice", gpu="0:1"),), **data)
    assert board.gpus[1].state == "conflict"


def test_a_booking_of_a_missing_instance_is_reported() -> None:
    (problem,) = of_gpus(*instances(), A100, bookings=(booking(gpu="0:9"),)).problems
    assert problem.what == "atlas has no GPU 0:9, only GPUs 0:0, 0:1, 0:2, 0:3, 1"


# The GPU as a whole


def test_a_gpu_in_mig_mode_is_free_only_if_all_of_its_instances_are() -> None:
    assert gpu_0(of_gpus(*instances())).state == "free"
    assert gpu_0(of_gpus(*instances())).reason == "4 of 4 instances are free: 0:0, 0:1, 0:2, 0:3"
    some = gpu_0(of_gpus(*instances(_1=7000), bookings=(booking(gpu="0:2"),)))
    assert (some.state, some.reason) == ("busy", "2 of 4 instances are free: 0:0, 0:3")


def test_a_single_free_instance_is_in_the_singular() -> None:
    assert gpu_0(of_gpus(*instances(_0=7e3, _1=7e3, _2=7e3))).reason == "1 of 4 instances is free: 0:3"


def test_no_free_instance_is_stated() -> None:
    assert gpu_0(of_gpus(*instances(_0=7e3, _1=6e3, _2=5e3, _3=4e3))).reason == "none of its 4 instances is free"


def test_whoever_is_on_an_instance_is_on_the_gpu() -> None:
    board = of_gpus(*instances(_1=7014), processes=[process(on="MIG-0-1")], ps=[person()])
    assert [one.user for one in gpu_0(board).processes] == ["alice"]


def test_a_booking_of_all_instances_is_one_booking_of_the_gpu() -> None:
    assert len(gpu_0(of_gpus(*instances(), bookings=(booking(gpu="0"),))).bookings) == 1


def test_gpus_that_are_not_cut_are_as_they_are() -> None:
    board = of_gpus(gpu(0), *instances(whole(1)), gpu(2))
    whole_gpus = list_whole_gpus(board)
    assert [whole_gpu.status.gpu.label for whole_gpu in whole_gpus] == ["0", "1", "2"]
    assert [len(whole_gpu.instances) for whole_gpu in whole_gpus] == [0, 4, 0]
    assert whole_gpus[0] == WholeGpu(board.gpus[0])
