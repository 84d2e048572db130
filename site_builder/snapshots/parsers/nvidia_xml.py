"""What nvidia-smi tells as XML (`-q -x`), with `-L` beside it: more than its CSV where a GPU is cut into instances."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

from site_builder.core.model import Gpu, GpuProcess
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import Pieces, one_line
from site_builder.snapshots.parse_result import ODD_ROW, Understood
from site_builder.snapshots.parsers import nvidia_csv, xml_tree
from site_builder.snapshots.parsers.csv_values import (
    LONGEST_WORDS,
    UNIT,
    available,
    find_lost_words,
    find_reading_error,
    number,
    places,
    whole_number,
)
from site_builder.snapshots.parsers.nvidia_csv import LONGEST_TITLE, NOTHING_REPORTED
from site_builder.snapshots.parsers.xml_tree import Device, Listed, distinct_numbers

# Where each field of --query-gpu stands, by the names that it has had: what tells a value first counts. `a + b` is the
# sum of what is told of both.
FIELDS: dict[str, tuple[str, ...]] = {
    "uuid": ("uuid",),
    "name": ("product_name",),
    "pci.bus_id": ("pci/pci_bus_id",),
    "serial": ("serial",),
    "vbios_version": ("vbios_version",),
    "memory.total": ("fb_memory_usage/total",),
    "memory.used": ("fb_memory_usage/used",),
    "memory.free": ("fb_memory_usage/free",),
    "memory.reserved": ("fb_memory_usage/reserved",),
    "utilization.gpu": ("utilization/gpu_util",),
    "utilization.memory": ("utilization/memory_util",),
    "utilization.encoder": ("utilization/encoder_util",),
    "utilization.decoder": ("utilization/decoder_util",),
    "temperature.gpu": ("temperature/gpu_temp",),
    "temperature.gpu.tlimit": ("temperature/gpu_temp_tlimit",),
    "temperature.memory": ("temperature/memory_temp",),
    "power.draw": (
        "gpu_power_readings/power_draw",
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/instant_power_draw",
        "power_readings/power_draw",
    ),
    "power.limit": (
        "gpu_power_readings/requested_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/requested_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/power_limit",
    ),
    "enforced.power.limit": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit",
        "gpu_power_readings/enforced_power_limit",
        "power_readings/enforced_power_limit",
    ),
    "fan.speed": ("fan_speed",),
    "pstate": ("performance_state", "gpu_power_readings/power_state", "power_readings/power_state"),
    "clocks.current.graphics": ("clocks/graphics_clock",),
    "clocks.current.sm": ("clocks/sm_clock",),
    "clocks.current.memory": ("clocks/mem_clock",),
    "clocks.max.sm": ("max_clocks/sm_clock",),
    "persistence_mode": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
    "mig.mode.current": ("mig_mode/current_mig",),
    "display_active": ("display_active",),
    "pcie.link.gen.gpucurrent": (
        "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    ),
    "pcie.link.gen.max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie.link.width.current": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie.link.width.max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "ecc.mode.current": ("ecc_mode/current_ecc",),
    "ecc.errors.corrected.volatile.total": (
        "ecc_errors/volatile/single_bit/total",
        "ecc_errors/volatile/sram_correctable + ecc_errors/volatile/dram_correctable",
    ),
    "ecc.errors.uncorrected.volatile.total": (
        "ecc_errors/volatile/double_bit/total",
        "ecc_errors/volatile/sram_uncorrectable + ecc_errors/volatile/sram_uncorrectable_parity"
        " + ecc_errors/volatile/sram_uncorrectable_secded + ecc_errors/volatile/dram_uncorrectable",
    ),
    "ecc.errors.corrected.aggregate.total": (
        "ecc_errors/aggregate/single_bit/total",
        "ecc_errors/aggregate/sram_correctable + ecc_errors/aggregate/dram_correctable",
    ),
    "ecc.errors.uncorrected.aggregate.total": (
        "ecc_errors/aggregate/double_bit/total",
        "ecc_errors/aggregate/sram_uncorrectable + ecc_errors/aggregate/sram_uncorrectable_parity"
        " + ecc_errors/aggregate/sram_uncorrectable_secded + ecc_errors/aggregate/dram_uncorrectable",
    ),
    "remapped_rows.correctable": ("remapped_rows/remapped_row_corr",),
    "remapped_rows.uncorrectable": ("remapped_rows/remapped_row_unc",),
    "remapped_rows.pending": ("remapped_rows/remapped_row_pending",),
    "remapped_rows.failure": ("remapped_rows/remapped_row_failure",),
    "retired_pages.single_bit_ecc.count": ("retired_pages/multiple_single_bit_retirement/retired_count",),
    "retired_pages.double_bit.count": ("retired_pages/double_bit_retirement/retired_count",),
    "retired_pages.pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "gpu_recovery_action": ("gpu_recovery_action",),
    "reset_status.reset_required": ("gpu_reset_status/reset_required",),
    "reset_status.drain_and_reset_recommended": ("gpu_reset_status/drain_and_reset_recommended",),
}
PATHS = tuple(
    tuple(tuple(tuple(path.split("/")) for path in way.split(" + ")) for way in ways) for ways in FIELDS.values()
)
COLUMNS = ("index", "driver_version", "clocks_event_reasons.active", *FIELDS)
WHERE = places(COLUMNS, nvidia_csv.COLUMNS)
# The bits of clocks_event_reasons.active, which the XML tells one by one.
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}
# The words for what is not told, which CSV has in brackets.
WORDS = frozenset(
    {
        "N/A",
        "Not Supported",
        "Not Found",
        "Unknown Error",
        "GPU is lost",
        "GPU requires reset",
        "Insufficient Permissions",
        "Function Not Found",
        "Requested functionality has been deprecated",
    }
)
NOT_TOLD = "[N/A]"
NOTHING = "nvidia-smi tells nothing of it"
# The elements whose errors make the state of a GPU unknown, and the word for each.
WATCHED = {"fb_memory_usage": "memory", "utilization": "use", "temperature": "temperature"}
# The elements that have the words of people, who may call a program what they like.
OF_PEOPLE = frozenset({"processes", "compute_processes", "accounted_processes", "mig_devices"})
NO_LIST, HIDDEN = "nvidia-smi has no list of them", "nvidia-smi hides one of them"
LONGEST_CELL = 200
MOST_INSTANCES = 64
MOST_PROCESSES = 10_000
# An instance of a GPU, with the numbers by which processes name it.
Part = tuple[tuple[str, str], Gpu]


def gpus(told: Pieces) -> Understood[Gpu]:
    """Every GPU; one that is cut into instances as these, so that each can be free or busy by itself."""
    log, listed = xml_tree.read(told)
    driver = cell(log.head.get("driver_version") or log.head.get("kmd_version"))
    rows: list[Gpu] = []
    for index, device in log.devices:
        if device.lost or not device.damaged:
            rows += rows_of(index, device, listed, driver)
    attached, told_of = log.head.get("attached_gpus", ""), len(log.devices)
    if attached.isdecimal() and len(attached) <= 4 and int(attached) > told_of:
        log.problems.append(f"{ODD_ROW}gone: {attached} GPUs are attached, and nvidia-smi tells {told_of}")
    return Understood(tuple(rows), log.said, log.problems)


def processes(told: Pieces) -> Understood[GpuProcess]:
    """Every process that computes, each on its instance where the GPU has any; one that only draws is none."""
    log, listed = xml_tree.read(told)
    found: list[GpuProcess] = []
    unreported: dict[str, str] = {}
    for index, device in log.devices:
        if device.element is not None:
            found += processes_of(index, device, listed, MOST_PROCESSES - len(found), log.problems, unreported)
    heard = any(device.element is not None for _, device in log.devices)
    return Understood(tuple(found), log.said, log.problems, heard and not log.problems, unreported)


def rows_of(index: int, device: Device, listed: Listed, driver: str) -> list[Gpu]:
    """A GPU, or its instances."""
    whole = gpu(index, device, driver)
    parts = instances(whole, device.element, listed)
    return [part for _, part in parts] or [whole]


def gpu(index: int, device: Device, driver: str) -> Gpu:
    """A GPU by what its element tells; a lost one keeps its row."""
    element = device.element
    if element is None:
        lost = device.lost or NOTHING
        return Gpu(index, None, None, lost=lost, columns=("pci.bus_id",), cells=(device.bus,))
    top = {child.tag: child for child in element}
    row = [str(index), driver, mask(top), *(first_told(top, ways) for ways in PATHS)]
    bus = COLUMNS.index("pci.bus_id")
    row[bus] = row[bus] if available(row[bus]) else device.bus or NOT_TOLD
    found = with_errors(nvidia_csv.gpu(COLUMNS, row, WHERE), element)
    return found if found.lost or not (why := lost_by(device, found)) else found._replace(lost=why)


def with_errors(found: Gpu, element: Element) -> Gpu:
    """Add the errors in elements that are no column of ours."""
    own = [child for child in element if child.tag not in OF_PEOPLE]
    lost = found.lost or find_lost_words(text for child in own for text in child.itertext())
    error = find_reading_error(
        (WATCHED[child.tag], text) for child in own if child.tag in WATCHED for text in child.itertext()
    )
    if error and not found.error:
        found = found._replace(error=f"its {error[0]} cannot be read: {error[1]}")
    return found if lost == found.lost else found._replace(lost=lost)


def lost_by(device: Device, found: Gpu) -> str | None:
    """Why a GPU is lost whose fields do not say so: by a message, or since hardly anything is told of it."""
    message = nvidia_csv.HANDLE.search(device.element.text or "") if device.element is not None else None
    why = device.lost or (message[3].strip().rstrip(".") if message else None)
    return why or (NOTHING if found.uuid is None and found.name is None and not proves_life(found) else None)


def proves_life(found: Gpu) -> bool:
    """Return whether a reading came through that only a GPU at work can give."""
    return any(value is not None for value in (found.memory_used, found.utilization_gpu, found.temperature))


def first_told(top: dict[str, Element], ways: tuple[tuple[tuple[str, ...], ...], ...]) -> str:
    """The first of several places that tells a value, else the first word for there being none."""
    word = ""
    for way in ways:
        told = summed([cell(at(top, path)) for path in way])
        if available(told) is not None:
            return told
        word = word or told
    return word or NOT_TOLD


def summed(cells: list[str]) -> str:
    """One cell, or the sum of the numbers in several."""
    if len(cells) == 1:
        return cells[0]
    told = [one for one in map(whole_number, cells) if one is not None]
    return str(sum(told)) if told else next(filter(None, cells), "")


def at(top: dict[str, Element], path: tuple[str, ...]) -> str | None:
    """The text at a path, or of the first on the way that has no further element: `<remapped_rows>N/A</…>`."""
    element = top.get(path[0])
    for tag in path[1:]:
        if element is None or not len(element):
            break
        element = element.find(tag)
    return None if element is None else element.text


def cell(text: str | None) -> str:
    """As CSV has it: no unit, and words for what is not told in brackets."""
    told = (text or "").strip()
    if told in WORDS:
        return f"[{told}]"
    told = UNIT.sub("", told)[:LONGEST_CELL]
    return told[:-1] if told[-1:] == "x" and told[:-1].isdecimal() else told  # 16x: the lanes of a link


def mask(top: dict[str, Element]) -> str:
    """Why the clocks are not at their highest, as one number; the word for there being none, where none is told."""
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = top.get(name)
        if reasons is None:
            continue
        told = {child.tag.partition("_reason_")[2]: (child.text or "").strip() for child in reasons}
        if any(told.get(reason) in {"Active", "Not Active"} for reason in REASONS):
            return f"0x{sum(bit for reason, bit in REASONS.items() if told.get(reason) == 'Active'):016X}"
    return NOT_TOLD


def instances(whole: Gpu, element: Element | None, listed: Listed) -> list[Part]:
    """The instances of a GPU; their use is told by nothing."""
    found: list[Part] = []
    several = element.find("mig_devices") if element is not None else None
    names = listed.parts.get(whole.uuid or "", {})
    elements = [] if several is None else list(islice(several.iterfind("mig_device"), MOST_INSTANCES))
    for device, one in zip(distinct_numbers([whole_number(cell(one.findtext("index"))) for one in elements]), elements):
        profile, uuid = names.get(device, (None, None))
        error = find_reading_error(("memory", text) for text in texts_at(one, "fb_memory_usage"))
        part = Gpu(
            whole.index,
            uuid,
            whole.name,
            number(cell(one.findtext("fb_memory_usage/used"))),
            number(cell(one.findtext("fb_memory_usage/total"))),
            lost=whole.lost or find_lost_words(one.itertext()),
            place=f"{whole.index}:{device}",
            profile=profile,
            parent=whole,
            error=f"its {error[0]} cannot be read: {error[1]}" if error else None,
        )
        found.append((instance_ids(one), part))
    return found


def texts_at(element: Element, tag: str) -> Iterator[str]:
    """Yield all texts in an element's child."""
    child = element.find(tag)
    return iter(()) if child is None else child.itertext()


def instance_ids(element: Element) -> tuple[str, str]:
    """Which part of a GPU, and which part of that."""
    return cell(element.findtext("gpu_instance_id")), cell(element.findtext("compute_instance_id"))


def processes_of(  # noqa: PLR0913, PLR0917 # what is read, and the three kinds of what comes of it
    index: int, device: Device, listed: Listed, most: int, problems: list[str], unreported: dict[str, str]
) -> list[GpuProcess]:
    """The processes on one GPU, as many as are read; one that is told twice in the same words counts once.

    A word stands where the processes should if they cannot be told: then somebody may be on it.
    """
    element = device.element
    if element is None:
        return []
    whole = Gpu(index, available(cell(element.findtext("uuid"))), None)
    parts = instances(whole, element, listed)
    found: list[GpuProcess] = []
    several = [*element.iterfind("processes"), *element.iterfind("compute_processes")]  # the latter up to driver 331
    for all_of_it in several:
        room = max(0, most - len(found))
        told = list(islice(all_of_it.iterfind("process_info"), room + 1))
        if len(told) > room:
            envelope.note(
                problems, f"more than {MOST_PROCESSES} processes are told; only the first {MOST_PROCESSES} count"
            )
        found += [process(one, whole, parts) for one in told[:room] if computes(one)]
    words = [text for one in several if (text := one_line(one.text or "", LONGEST_WORDS))]
    if words or not several:
        unreported[whole.handle] = words[0] if words else NO_LIST
    for one in found:
        if one[1:] == NOTHING_REPORTED:
            unreported.setdefault(one.gpu, HIDDEN)
    known = [one for one in found if one[1:] != NOTHING_REPORTED]
    return [*dict.fromkeys(one for one in known if one.pid is not None), *(one for one in known if one.pid is None)]


def computes(process_info: Element) -> bool:
    """Whether it does more than draw, as --query-compute-apps sees it; old drivers do not tell."""
    kind = available(cell(process_info.findtext("type")))
    return kind is None or "C" in kind.split("+")


def process(told: Element, whole: Gpu, parts: list[Part]) -> GpuProcess:
    """One process, where it is."""
    pid, memory = whole_number(cell(told.findtext("pid"))), number(cell(told.findtext("used_memory")))
    return GpuProcess(place_of(told, whole, parts).handle, pid, memory, title(told.findtext("process_name")))


def title(text: str | None) -> str | None:
    """The name of a process, which may be a whole command."""
    told = (text or "").strip()[:LONGEST_TITLE]
    return None if told in WORDS else available(told)


def place_of(told: Element, whole: Gpu, parts: list[Part]) -> Gpu:
    """Where a process is; where a GPU has instances and that is not told, no row has it, and none is called free."""
    ids = instance_ids(told)
    same = [part for key, part in parts if key == ids] or [part for key, part in parts if key[0] == ids[0]]
    return same[0] if len(same) == 1 else whole
