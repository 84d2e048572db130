"""Compute from what the GPUs of a host report what is stored and exported of their health."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from site_builder.core.model import Gpu, GpuHealth, HostStatus
from site_builder.health.model import HostHealthMetrics, PackedHealthMetrics
from site_builder.health.store import pack_stored_health_metrics, unpack_stored_health_metrics
from site_builder.history import model as history_model

# Bits of GpuHealth.clock_reasons.
POWER_LIMIT_BIT, SLOWDOWN_BIT, HEAT_BIT, HARDWARE_HEAT_BIT, POWER_BRAKE_BIT = 0x4, 0x8, 0x20, 0x40, 0x80
MAX_KEY_CHARACTERS, MAX_REASON_CHARACTERS = 100, 80
# In °C, where the driver does not report the distance to the vendor's limit.
DEFAULT_LIMIT_CELSIUS = 90
# Anything beyond is no temperature.
MAX_CELSIUS = 500


class GpuHealthReadings(NamedTuple):
    """Fan speed, memory errors since the driver was loaded, and the health flags of a GPU."""

    fan_percent: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    is_repair_pending: bool | None = None
    has_repair_failed: bool | None = None
    is_recovery_needed: bool | None = None
    is_slowed_by_heat: bool | None = None
    is_slowed_by_power: bool | None = None


# Most GPUs of a fleet report the same.
@lru_cache(maxsize=4096)
def build_gpu_health_readings(health: GpuHealth, fan_speed: float | None) -> GpuHealthReadings:
    counts = health.error_counts
    is_slowed_by_heat, is_slowed_by_power = decide_gpu_health_slowdown(health.clock_reasons)
    return GpuHealthReadings(
        fan_percent=fan_speed,
        ecc_corrected=None if counts.corrected is None else float(counts.corrected),
        ecc_uncorrected=None if counts.uncorrected is None else float(counts.uncorrected),
        is_repair_pending=health.is_repair_pending,
        has_repair_failed=health.has_repair_failed,
        is_recovery_needed=None if health.recovery_action is None else bool(health.recovery_action),
        is_slowed_by_heat=is_slowed_by_heat,
        is_slowed_by_power=is_slowed_by_power,
    )


def decide_gpu_health_slowdown(clock_reasons: int | None) -> tuple[bool | None, bool | None]:
    """Return whether a GPU is slowed by heat, and by power: its limit, or the brake of the hardware."""
    if clock_reasons is None:
        return None, None
    if clock_reasons & SLOWDOWN_BIT and not clock_reasons & (HARDWARE_HEAT_BIT | POWER_BRAKE_BIT):
        return None, None  # by heat or by power, but by which?
    is_slowed_by_heat = bool(clock_reasons & (HEAT_BIT | HARDWARE_HEAT_BIT))
    return is_slowed_by_heat, bool(clock_reasons & (POWER_LIMIT_BIT | POWER_BRAKE_BIT))


def pack_gpu_health(host: HostStatus, taken_at: float | None) -> PackedHealthMetrics | None:
    """Return the metrics of a fresh host, from a snapshot of that time; None for any other."""
    if host.state != "fresh":
        return None
    rows: list[tuple[object, ...]] = []
    driver = None
    for gpu, key in zip(list_gpu_health_gpus(host), list_gpu_health_keys(host)):
        health = gpu.health
        is_slowed_by_heat, is_slowed_by_power = decide_gpu_health_slowdown(health.clock_reasons)
        # in the order of GpuHealthMetrics, which would take longer to build
        row = (
            key,
            gpu.number,
            normalize_bus_id(gpu.bus_id) if gpu.bus_id else None,
            gpu.lost and gpu.lost[:MAX_REASON_CHARACTERS],
            health.error_counts,
            health.recovery_action,
            health.is_repair_pending,
            health.has_repair_failed,
            is_slowed_by_heat,
            is_slowed_by_power,
            find_gpu_overheating(gpu),
        )
        rows.append(row)
        driver = driver or health.driver
    return PackedHealthMetrics(pack_stored_health_metrics(driver, rows, not host.has_missing_gpu), taken_at)


def build_host_health_metrics(host: HostStatus) -> HostHealthMetrics | None:
    metrics = pack_gpu_health(host, None)
    return unpack_stored_health_metrics(metrics.packed) if metrics else None


def list_gpu_health_keys(host: HostStatus) -> list[str]:
    """Return what identifies each physical GPU of a host in an event."""
    return [key[:MAX_KEY_CHARACTERS] for key in history_model.list_host_gpu_keys(list_gpu_health_gpus(host))]


def list_gpu_health_gpus(host: HostStatus) -> list[Gpu]:
    """Return the physical GPUs of a host: one in MIG mode once, in place of its instances."""
    gpus = [status.gpu for status in host.gpus]
    if not any(gpu.parent for gpu in gpus):
        return gpus
    groups: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.parent or gpu).key, []).append(gpu)
    return [gpu for group in groups.values() for gpu in ([group[0].parent] if group[0].parent else group)]


@lru_cache(maxsize=16384)
def normalize_bus_id(bus_id: str) -> str | None:
    """Return a bus id without leading zeros: some messages write fewer of them than the table does."""
    return bus_id.lower().lstrip("0:") or None


def find_gpu_overheating(gpu: Gpu) -> tuple[int, ...] | None:
    """Return the temperature and the limit that it has reached; empty below the limit."""
    temperature, margin = gpu.temperature, gpu.temperature_margin
    if temperature is None or temperature >= MAX_CELSIUS:
        return None
    limit = DEFAULT_LIMIT_CELSIUS if margin is None else temperature + margin
    return (int(temperature), int(limit)) if temperature >= limit else ()
