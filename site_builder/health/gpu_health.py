"""Compute from what the GPUs of a host report what is stored and exported of their health."""

from __future__ import annotations

from functools import lru_cache

from site_builder.core.model import Gpu, HostStatus
from site_builder.health.model import GpuHealthMetrics, HostHealthMetrics, PackedHealthMetrics
from site_builder.health.store import pack_stored_health_metrics
from site_builder.history import model as history_model

# Bits of GpuHealth.clock_reasons.
POWER_LIMIT_BIT, SLOWDOWN_BIT, HEAT_BIT, HARDWARE_HEAT_BIT, POWER_BRAKE_BIT = 0x4, 0x8, 0x20, 0x40, 0x80
MAX_KEY_CHARACTERS, MAX_REASON_CHARACTERS = 100, 80
# In °C, where the driver does not report the distance to the vendor's limit.
DEFAULT_LIMIT_CELSIUS = 90
# Anything beyond is not a temperature.
MAX_CELSIUS = 500


def decide_gpu_health_slowdown(clock_reasons: int | None) -> tuple[bool | None, bool | None]:
    """Return whether a GPU is slowed by heat, and by power: its limit, or the brake of the hardware."""
    if clock_reasons is None:
        return None, None
    if clock_reasons & SLOWDOWN_BIT and not clock_reasons & (HARDWARE_HEAT_BIT | POWER_BRAKE_BIT):
        return None, None  # by heat or by power, but by which?
    is_slowed_by_heat = bool(clock_reasons & (HEAT_BIT | HARDWARE_HEAT_BIT))
    return is_slowed_by_heat, bool(clock_reasons & (POWER_LIMIT_BIT | POWER_BRAKE_BIT))


def build_host_health_metrics(host: HostStatus) -> HostHealthMetrics | None:
    """Build the metrics of a fresh host; None for any other."""
    if host.state != "fresh":
        return None
    gpus, metrics = list_gpu_health_gpus(host), []
    for gpu, key in zip(gpus, list_gpu_health_keys(host)):
        health = gpu.health
        is_slowed_by_heat, is_slowed_by_power = decide_gpu_health_slowdown(health.clock_reasons)
        gpu_metrics = GpuHealthMetrics(
            key=key,
            index=gpu.number,
            bus=normalize_bus_id(gpu.bus_id) if gpu.bus_id else None,
            lost=gpu.lost and gpu.lost[:MAX_REASON_CHARACTERS],
            counts=health.error_counts,
            recovery=health.recovery_action,
            pending=health.is_repair_pending,
            failed=health.has_repair_failed,
            heat=is_slowed_by_heat,
            power=is_slowed_by_power,
            hot=find_gpu_overheating(gpu),
        )
        metrics.append(gpu_metrics)
    xids = host.facts.xids if host.facts else ()
    driver = next((gpu.health.driver for gpu in gpus if gpu.health.driver), None)
    return HostHealthMetrics(
        driver=driver,
        gpus=tuple(metrics),
        is_complete=not host.has_missing_gpu,
        xids=tuple([xid._replace(bus=normalize_xid_bus(xid.bus)) for xid in xids]),
    )


def pack_gpu_health(host: HostStatus, taken_at: float | None) -> PackedHealthMetrics | None:
    """Return the metrics of a fresh host, from a snapshot of that time; None for any other."""
    metrics = build_host_health_metrics(host)
    if metrics is None:
        return None
    rows = [tuple(gpu_metrics) for gpu_metrics in metrics.gpus]  # orjson would need a function to write their type
    xids = [tuple(xid) for xid in metrics.xids]
    return PackedHealthMetrics(pack_stored_health_metrics(metrics.driver, rows, metrics.is_complete, xids), taken_at)


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


def normalize_xid_bus(bus_id: str) -> str:
    """Return a bus id without the function, which the kernel log does not name."""
    return (normalize_bus_id(bus_id) or "0").partition(".")[0]


def find_gpu_overheating(gpu: Gpu) -> tuple[int, ...] | None:
    """Return the temperature and the limit that it has reached; empty below the limit."""
    temperature, margin = gpu.temperature, gpu.temperature_margin
    if temperature is None or temperature >= MAX_CELSIUS:
        return None
    limit = DEFAULT_LIMIT_CELSIUS if margin is None else temperature + margin
    return (int(temperature), int(limit)) if temperature >= limit else ()
