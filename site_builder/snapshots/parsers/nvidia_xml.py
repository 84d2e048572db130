"""What nvidia-smi tells as XML (`-q -x`), with `-L` beside it: more than its CSV where a GPU is cut into instances."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.core.terminal_text import clean_excerpt
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import BAD_ROW_PREFIX, ToolOutput, ToolParts
from site_builder.snapshots.parsers import nvidia_csv, xml_tree
from site_builder.snapshots.parsers.nvidia_csv import MAX_PROCESS_NAME_CHARACTERS, NO_PROCESS_CELLS
from site_builder.snapshots.parsers.values import (
    MAX_ERROR_CHARACTERS,
    UNIT_SUFFIX,
    find_column_positions,
    find_lost_words,
    find_reading_error,
    parse_cell,
    parse_integer,
    parse_number,
)
from site_builder.snapshots.parsers.xml_tree import GpuList, XmlDevice, assign_distinct_numbers

# Where each field of --query-gpu stands, by the names that it has had: what tells a value first counts. `a + b` is the
# sum of what is told of both.
XML_FIELDS: dict[str, tuple[str, ...]] = {
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
XML_PATHS = tuple(
    tuple(tuple(tuple(path.split("/")) for path in way.split(" + ")) for way in ways) for ways in XML_FIELDS.values()
)
XML_COLUMNS = ("index", "driver_version", "clocks_event_reasons.active", *XML_FIELDS)
COLUMN_POSITIONS = find_column_positions(XML_COLUMNS, nvidia_csv.GPU_COLUMNS)
# The bits of clocks_event_reasons.active, which the XML tells one by one.
CLOCK_REASON_BITS = {
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
NO_VALUE_WORDS = frozenset(
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
NOT_AVAILABLE_CELL = "[N/A]"
NO_DATA_MESSAGE = "nvidia-smi tells nothing of it"
# The elements whose errors make the state of a GPU unknown, and the word for each.
WATCHED_ELEMENTS = {"fb_memory_usage": "memory", "utilization": "use", "temperature": "temperature"}
# The elements that have the words of people, who may call a program what they like.
USER_TEXT_ELEMENTS = frozenset({"processes", "compute_processes", "accounted_processes", "mig_devices"})
NO_LIST_MESSAGE, HIDDEN_PROCESS_MESSAGE = "nvidia-smi has no list of them", "nvidia-smi hides one of them"
MAX_CELL_CHARACTERS = 200
MAX_INSTANCES = 64
MAX_PROCESSES = 10_000
# An instance of a GPU, with the numbers by which processes name it.
MigInstance = tuple[tuple[str, str], Gpu]


def parse_gpus(told: ToolParts) -> ToolOutput[Gpu]:
    """Every GPU; one that is cut into instances as these, so that each can be free or busy by itself."""
    log, listed = xml_tree.parse_xml_log(told)
    driver = to_csv_cell(log.head_values.get("driver_version") or log.head_values.get("kmd_version"))
    rows: list[Gpu] = []
    for index, device in log.devices:
        if device.lost_reason or not device.is_damaged:
            rows += build_gpu_rows(index, device, listed, driver)
    attached, told_of = log.head_values.get("attached_gpus", ""), len(log.devices)
    if attached.isdecimal() and len(attached) <= 4 and int(attached) > told_of:
        log.problems.append(f"{BAD_ROW_PREFIX}gone: {attached} GPUs are attached, and nvidia-smi tells {told_of}")
    return ToolOutput(tuple(rows), log.messages, log.problems)


def parse_processes(told: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Every process that computes, each on its instance where the GPU has any; one that only draws is none."""
    log, listed = xml_tree.parse_xml_log(told)
    found: list[GpuProcessRow] = []
    unreported: dict[str, str] = {}
    for index, device in log.devices:
        if device.element is not None:
            found += parse_device_processes(index, device, listed, MAX_PROCESSES - len(found), log.problems, unreported)
    heard = any(device.element is not None for _, device in log.devices)
    return ToolOutput(tuple(found), log.messages, log.problems, heard and not log.problems, unreported)


def build_gpu_rows(index: int, device: XmlDevice, listed: GpuList, driver: str) -> list[Gpu]:
    """A GPU, or its instances."""
    whole = build_gpu_from_xml(index, device, driver)
    parts = build_mig_instances(whole, device.element, listed)
    return [part for _, part in parts] or [whole]


def build_gpu_from_xml(index: int, device: XmlDevice, driver: str) -> Gpu:
    """A GPU by what its element tells; a lost one keeps its row."""
    element = device.element
    if element is None:
        lost = device.lost_reason or NO_DATA_MESSAGE
        return Gpu(index, None, None, lost=lost, columns=("pci.bus_id",), cells=(device.bus_id,))
    top = {child.tag: child for child in element}
    row = [str(index), driver, compute_clock_reason_mask(top), *(find_first_value(top, ways) for ways in XML_PATHS)]
    bus = XML_COLUMNS.index("pci.bus_id")
    row[bus] = row[bus] if parse_cell(row[bus]) else device.bus_id or NOT_AVAILABLE_CELL
    found = add_reading_errors(nvidia_csv.build_gpu_from_cells(XML_COLUMNS, row, COLUMN_POSITIONS), element)
    return found if found.lost or not (why := explain_lost_gpu(device, found)) else found._replace(lost=why)


def add_reading_errors(found: Gpu, element: Element) -> Gpu:
    """Add the errors in elements that are no column of ours."""
    own = [child for child in element if child.tag not in USER_TEXT_ELEMENTS]
    lost = found.lost or find_lost_words(text for child in own for text in child.itertext())
    error = find_reading_error(
        (WATCHED_ELEMENTS[child.tag], text)
        for child in own
        if child.tag in WATCHED_ELEMENTS
        for text in child.itertext()
    )
    if error and not found.error:
        found = found._replace(error=f"its {error[0]} cannot be read: {error[1]}")
    return found if lost == found.lost else found._replace(lost=lost)


def explain_lost_gpu(device: XmlDevice, found: Gpu) -> str | None:
    """Why a GPU is lost whose fields do not say so: by a message, or since hardly anything is told of it."""
    message = nvidia_csv.HANDLE_ERROR.search(device.element.text or "") if device.element is not None else None
    why = device.lost_reason or (message[3].strip().rstrip(".") if message else None)
    return why or (
        NO_DATA_MESSAGE if found.uuid is None and found.name is None and not has_live_reading(found) else None
    )


def has_live_reading(found: Gpu) -> bool:
    """Return whether a reading came through that only a GPU at work can give."""
    return any(value is not None for value in (found.memory_used, found.utilization_gpu, found.temperature))


def find_first_value(top: dict[str, Element], ways: tuple[tuple[tuple[str, ...], ...], ...]) -> str:
    """The first of several places that tells a value, else the first word for there being none."""
    word = ""
    for way in ways:
        told = sum_cells([to_csv_cell(find_text_at_path(top, path)) for path in way])
        if parse_cell(told) is not None:
            return told
        word = word or told
    return word or NOT_AVAILABLE_CELL


def sum_cells(cells: list[str]) -> str:
    """One cell, or the sum of the numbers in several."""
    if len(cells) == 1:
        return cells[0]
    told = [one for one in map(parse_integer, cells) if one is not None]
    return str(sum(told)) if told else next(filter(None, cells), "")


def find_text_at_path(top: dict[str, Element], path: tuple[str, ...]) -> str | None:
    """The text at a path, or of the first on the way that has no further element: `<remapped_rows>N/A</…>`."""
    element = top.get(path[0])
    for tag in path[1:]:
        if element is None or not len(element):
            break
        element = element.find(tag)
    return None if element is None else element.text


def to_csv_cell(text: str | None) -> str:
    """As CSV has it: no unit, and words for what is not told in brackets."""
    told = (text or "").strip()
    if told in NO_VALUE_WORDS:
        return f"[{told}]"
    told = UNIT_SUFFIX.sub("", told)[:MAX_CELL_CHARACTERS]
    return told[:-1] if told[-1:] == "x" and told[:-1].isdecimal() else told  # 16x: the lanes of a link


def compute_clock_reason_mask(top: dict[str, Element]) -> str:
    """Why the clocks are not at their highest, as one number; the word for there being none, where none is told."""
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = top.get(name)
        if reasons is None:
            continue
        told = {child.tag.partition("_reason_")[2]: (child.text or "").strip() for child in reasons}
        if any(told.get(reason) in {"Active", "Not Active"} for reason in CLOCK_REASON_BITS):
            return f"0x{sum(bit for reason, bit in CLOCK_REASON_BITS.items() if told.get(reason) == 'Active'):016X}"
    return NOT_AVAILABLE_CELL


def build_mig_instances(whole: Gpu, element: Element | None, listed: GpuList) -> list[MigInstance]:
    """The instances of a GPU; their use is told by nothing."""
    found: list[MigInstance] = []
    several = element.find("mig_devices") if element is not None else None
    names = listed.instances_by_uuid.get(whole.uuid or "", {})
    elements = [] if several is None else list(islice(several.iterfind("mig_device"), MAX_INSTANCES))
    for device, one in zip(
        assign_distinct_numbers([parse_integer(to_csv_cell(one.findtext("index"))) for one in elements]), elements
    ):
        profile, uuid = names.get(device, (None, None))
        error = find_reading_error(("memory", text) for text in list_texts_at(one, "fb_memory_usage"))
        part = Gpu(
            whole.index,
            uuid,
            whole.name,
            parse_number(to_csv_cell(one.findtext("fb_memory_usage/used"))),
            parse_number(to_csv_cell(one.findtext("fb_memory_usage/total"))),
            lost=whole.lost or find_lost_words(one.itertext()),
            place=f"{whole.index}:{device}",
            profile=profile,
            parent=whole,
            error=f"its {error[0]} cannot be read: {error[1]}" if error else None,
        )
        found.append((parse_instance_ids(one), part))
    return found


def list_texts_at(element: Element, tag: str) -> Iterator[str]:
    """Yield all texts in an element's child."""
    child = element.find(tag)
    return iter(()) if child is None else child.itertext()


def parse_instance_ids(element: Element) -> tuple[str, str]:
    """Which part of a GPU, and which part of that."""
    return to_csv_cell(element.findtext("gpu_instance_id")), to_csv_cell(element.findtext("compute_instance_id"))


def parse_device_processes(  # what is read, and the three kinds of what comes of it
    index: int, device: XmlDevice, listed: GpuList, most: int, problems: list[str], unreported: dict[str, str]
) -> list[GpuProcessRow]:
    """The processes on one GPU, as many as are read; one that is told twice in the same words counts once.

    A word stands where the processes should if they cannot be told: then somebody may be on it.
    """
    element = device.element
    if element is None:
        return []
    whole = Gpu(index, parse_cell(to_csv_cell(element.findtext("uuid"))), None)
    parts = build_mig_instances(whole, element, listed)
    found: list[GpuProcessRow] = []
    several = [*element.iterfind("processes"), *element.iterfind("compute_processes")]  # the latter up to driver 331
    for all_of_it in several:
        room = max(0, most - len(found))
        told = list(islice(all_of_it.iterfind("process_info"), room + 1))
        if len(told) > room:
            envelope.note_problem(
                problems, f"more than {MAX_PROCESSES} processes are told; only the first {MAX_PROCESSES} count"
            )
        found += [parse_xml_process(one, whole, parts) for one in told[:room] if is_compute_process(one)]
    words = [text for one in several if (text := clean_excerpt(one.text or "", MAX_ERROR_CHARACTERS))]
    if words or not several:
        unreported[whole.process_key] = words[0] if words else NO_LIST_MESSAGE
    for one in found:
        if one[1:] == NO_PROCESS_CELLS:
            unreported.setdefault(one.gpu_key, HIDDEN_PROCESS_MESSAGE)
    known = [one for one in found if one[1:] != NO_PROCESS_CELLS]
    return [*dict.fromkeys(one for one in known if one.pid is not None), *(one for one in known if one.pid is None)]


def is_compute_process(process_info: Element) -> bool:
    """Whether it does more than draw, as --query-compute-apps sees it; old drivers do not tell."""
    kind = parse_cell(to_csv_cell(process_info.findtext("type")))
    return kind is None or "C" in kind.split("+")


def parse_xml_process(told: Element, whole: Gpu, parts: list[MigInstance]) -> GpuProcessRow:
    """One process, where it is."""
    pid, memory = (
        parse_integer(to_csv_cell(told.findtext("pid"))),
        parse_number(to_csv_cell(told.findtext("used_memory"))),
    )
    return GpuProcessRow(
        find_process_gpu(told, whole, parts).process_key, pid, memory, parse_process_name(told.findtext("process_name"))
    )


def parse_process_name(text: str | None) -> str | None:
    """The name of a process, which may be a whole command."""
    told = (text or "").strip()[:MAX_PROCESS_NAME_CHARACTERS]
    return None if told in NO_VALUE_WORDS else parse_cell(told)


def find_process_gpu(told: Element, whole: Gpu, parts: list[MigInstance]) -> Gpu:
    """Where a process is; where a GPU has instances and that is not told, no row has it, and none is called free."""
    ids = parse_instance_ids(told)
    same = [part for key, part in parts if key == ids] or [part for key, part in parts if key[0] == ids[0]]
    return same[0] if len(same) == 1 else whole
