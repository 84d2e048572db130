"""What tells of a GPU's health, from what nvidia-smi says."""

from __future__ import annotations

from typing import Any

import pytest

from site_builder.core.model import Gpu, GpuStatus, HostStatus
from site_builder.health.gpu_health import (
    MAX_KEY_CHARACTERS,
    build_host_health_metrics,
    list_gpu_health_keys,
    pack_gpu_health,
)
from site_builder.health.model import GpuHealthMetrics, PackedHealthMetrics
from tests.support.health_fixtures import parse_health_cells

COUNTS = {
    "ecc.errors.corrected.volatile.total": "1",
    "ecc.errors.uncorrected.volatile.total": "2",
    "ecc.errors.corrected.aggregate.total": "3",
    "ecc.errors.uncorrected.aggregate.total": "4",
    "remapped_rows.correctable": "5",
    "remapped_rows.uncorrectable": "6",
    "retired_pages.single_bit_ecc.count": "7",
    "retired_pages.double_bit.count": "8",
}


def host(*gpus: Gpu, state: str = "fresh", has_missing_gpu: bool = False) -> HostStatus:
    statuses = tuple(GpuStatus(row, "A100", "free", "") for row in gpus)
    return HostStatus("atlas", None, (), state, "", gpus=statuses, has_missing_gpu=has_missing_gpu)


def gpu(cells: dict[str, str] | None = None, **overrides: Any) -> Gpu:  # noqa: ANN401
    return parse_health_cells({"index": "0", **(cells or {})}, **{"temperature": 40.0, **overrides})


def only(single_gpu: Gpu) -> GpuHealthMetrics:
    health_metrics = build_host_health_metrics(host(single_gpu))
    assert health_metrics
    return health_metrics.gpus[0]


def told(host_status: HostStatus) -> PackedHealthMetrics:
    packed_metrics = pack_gpu_health(host_status, None)
    assert packed_metrics
    return packed_metrics


def test_each_count_is_in_its_place() -> None:
    assert only(gpu(COUNTS)).counts == (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "[Unknown Error]", "", "-3", "nan", "1e300", "many", "9" * 5000])
def test_what_is_no_number_is_not_available(cell: str) -> None:
    assert only(gpu(dict.fromkeys(COUNTS, cell))).counts == (None,) * 8


def test_a_gpu_without_readings_has_no_health_metrics() -> None:
    metrics = only(gpu(temperature=None))
    assert metrics == GpuHealthMetrics("GPU-0", 0, None, None, (None,) * 8, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("temperature", "margin", "hot"),
    [
        (89, "", ()),
        (90, "", (90, 90)),
        (95, "[N/A]", (95, 90)),
        (95, "12", ()),
        (80, "0", (80, 80)),
        (85, "-3", (85, 82)),
        (85, "-3 C", (85, 82)),
        (None, "5", None),
        (5000, "", None),
        (40, "-1e9", ()),
    ],
)
def test_too_warm_is_the_makers_limit_or_90_degrees(
    temperature: float | None, margin: str, hot: tuple[int, ...] | None
) -> None:
    assert only(gpu({"temperature.gpu.tlimit": margin}, temperature=temperature)).hot == hot


@pytest.mark.parametrize(
    ("mask", "heat", "power"),
    [
        ("0x0000000000000001", False, False),
        ("0x0000000000000004", False, True),
        ("0x0000000000000020", True, False),
        ("0x0000000000000064", True, True),
        ("0x0000000000000008", None, None),
        ("[N/A]", None, None),
    ],
)
@pytest.mark.parametrize("name", ["clocks_event_reasons.active", "clocks_throttle_reasons.active"])
def test_by_what_it_is_slowed(name: str, mask: str, heat: bool | None, power: bool | None) -> None:
    metrics = only(gpu({name: mask}))
    assert (metrics.heat, metrics.power) == (heat, power)


@pytest.mark.parametrize(
    ("cell", "recovery"),
    [
        ("None", ""),
        ("Reset", "Reset"),
        ("[N/A]", None),
        ("", None),
        ("Requested functionality has been deprecated", None),
    ],
)
def test_what_must_be_done_to_it(cell: str, recovery: str | None) -> None:
    assert only(gpu({"gpu_recovery_action": cell})).recovery == recovery


@pytest.mark.parametrize(
    ("remapped", "retired", "pending"), [("Yes", "", True), ("No", "[N/A]", False), ("", "1", True)]
)
def test_a_pending_repair_is_parsed(remapped: str, retired: str, pending: bool) -> None:
    assert only(gpu({"remapped_rows.pending": remapped, "retired_pages.pending": retired})).pending is pending


@pytest.mark.parametrize("cell", ["00000000:17:00.0", "0000:17:00.0", "00000000:17:00.0".upper()])
def test_where_it_sits_is_the_same_in_each_spelling(cell: str) -> None:
    assert only(gpu({"pci.bus_id": cell})).bus == "17:00.0"


@pytest.mark.parametrize("cells", [{"driver_version": "590.1"}, {"driver_version": "[N/A]", "kmd_version": "590.1"}])
def test_the_driver_of_a_host_is_what_the_first_gpu_says_that_does(cells: dict[str, str]) -> None:
    host_metrics = build_host_health_metrics(host(gpu(lost="Unknown Error"), gpu(cells, uuid="GPU-1")))
    assert host_metrics
    assert host_metrics.driver == "590.1"


def test_a_host_that_is_not_fresh_has_none() -> None:
    assert pack_gpu_health(host(gpu(COUNTS), state="stale"), None) is None


def test_a_host_with_a_gpu_that_could_not_be_read_is_not_complete() -> None:
    host_metrics = build_host_health_metrics(host(gpu(), has_missing_gpu=True))
    assert host_metrics
    assert not host_metrics.is_complete


def test_health_metrics_stay_equal_while_only_readings_change() -> None:
    readings = {"utilization.gpu": "3", "fan.speed": "30", "clocks_event_reasons.active": "0x1"}
    later = {"utilization.gpu": "99", "fan.speed": "80", "clocks_event_reasons.active": "0x0"}
    first = gpu({**COUNTS, **readings}, temperature=35.0, power_draw=60.0)
    assert told(host(first)) == told(host(gpu({**COUNTS, **later}, temperature=71.0, power_draw=390.0)))


def test_gpus_under_one_name_are_two() -> None:
    assert list_gpu_health_keys(host(gpu(), gpu())) == ["GPU-0", "GPU-0 #2"]


def test_hostile_rows_are_no_larger_than_others() -> None:
    long = gpu({**dict.fromkeys(COUNTS, "x" * 100_000), "gpu_recovery_action": "y" * 100_000}, uuid="z" * 100_000)
    many = gpu({f"field{number}": "1" for number in range(5000)}, lost="w" * 100_000)
    assert len(told(host(long, many)).packed) < 1000
    assert len(list_gpu_health_keys(host(long))[0]) == MAX_KEY_CHARACTERS
