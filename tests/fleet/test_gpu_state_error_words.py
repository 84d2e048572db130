"""An error in a cell never looks like a free GPU: every parser, every cell, every word that drivers print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from site_builder.core.model import GpuStatus, HostStatus
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers import legacy_files
from site_builder.snapshots.parsers.values import MAX_ERROR_CHARACTERS
from tests.support.amd_fixtures import card, listed, metric, part, running, static, value
from tests.support.error_words import (
    AMD_ERRORS,
    AMD_REFUSALS,
    LOST_WORDS,
    NO_READING,
    NVIDIA_ERRORS,
    NVIDIA_REFUSALS,
    add_brackets,
)
from tests.support.generated_fleet import NOW, decide, host_data
from tests.support.samples import list_queried_fields, snapshot

NVIDIA_WORDS = (*add_brackets({**NVIDIA_ERRORS, **NVIDIA_REFUSALS}), "nan")
AMD_WORDS = (*AMD_ERRORS, *AMD_REFUSALS)


class Answer(NamedTuple):
    """What a tool prints of a GPU that is free: how it is made of its cells, and which of these are watched."""

    cells: dict[str, str]
    make: Callable[[dict[str, str]], bytes]
    watched: re.Pattern[str]
    no_process: bytes
    errors: tuple[str, ...]


CSV = {
    **{name: "N/A" if name.startswith("fabric.") else "0" for name in list_queried_fields()},
    **{"index": "0", "uuid": "GPU-1", "name": "NVIDIA A100-SXM4-80GB", "pci.bus_id": "00000000:01:00.0"},
    **{"memory.total": "81920", "memory.used": "4", "memory.free": "81916", "temperature.gpu": "41"},
    **{"driver_version": "550.54", "pstate": "P0", "power.limit": "400.00", "compute_mode": "Default"},
    **{"persistence_mode": "Enabled"},
    **{"gpu_recovery_action": "None", "mig.mode.current": "Disabled", "temperature.gpu.tlimit": "45"},
    **{"reset_status.reset_required": "No", "reset_status.drain_and_reset_recommended": "No"},
}
APPS = b"gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
XML = {
    **{"product_name": "NVIDIA A100", "uuid": "GPU-1", "vbios_version": "92.00", "fan_speed": "30 %"},
    **{"gpu_reset_status/reset_required": "No", "gpu_recovery_action": "None", "persistence_mode": "Enabled"},
    **{"fb_memory_usage/total": "81920 MiB", "fb_memory_usage/used": "4 MiB", "fb_memory_usage/free": "81916 MiB"},
    **{"utilization/gpu_util": "0 %", "utilization/memory_util": "0 %", "utilization/encoder_util": "0 %"},
    **{"temperature/gpu_temp": "41 C", "temperature/gpu_temp_max_threshold": "95 C", "temperature/memory_temp": "N/A"},
    **{"gpu_power_readings/power_draw": "60 W", "ecc_mode/current_ecc": "Enabled", "fabric/state": "N/A"},
    "ecc_mode/pending_ecc": "Enabled",
}
MIG_XML = {
    **{name: text for name, text in XML.items() if not name.startswith("utilization")},
    **{"mig_mode/current_mig": "Enabled", "instance/used": "14 MiB", "instance/total": "40448 MiB"},
}
LIST = b"GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 3g.40gb     Device  0: (UUID: MIG-a)\n"
IDLE = {
    **static(),
    **metric(
        mem_usage={"total_vram": value(1000, "MB"), "used_vram": value(4, "MB")},
        usage={"gfx_activity": value(0, "%"), "umc_activity": value(0, "%"), "vcn_activity": ["N/A"]},
    ),
}
CARD = {**card(), "VRAM Total Used Memory (B)": "1048576", "GPU use (%)": "0"}
TABLE = {
    **{"GPU": "0", "Temp (DieEdge)": "53.0c", "AvgPwr": "20.0W", "SCLK": "1576Mhz", "MCLK": "945Mhz"},
    **{"Fan": "10.98%", "Perf": "auto", "PwrCap": "220.0W", "VRAM%": "1%", "GPU%": "0%"},
}
LEGACY = {
    **{"index": "0", "uuid": "GPU-1", "name": "NVIDIA A100", "memory.used": "4", "memory.total": "81920"},
    **{"utilization.gpu": "0", "utilization.memory": "0", "temperature.gpu": "41", "time": "2026/11/16 12:00:00.000"},
}


def csv(cells: dict[str, str]) -> bytes:
    return f"{', '.join(cells)}\n{', '.join(cells.values())}\n".encode()


def xml(cells: dict[str, str], *extra_elements: str) -> bytes:
    groups: dict[str, str] = {}
    for name, text in cells.items():
        group, _, tag = name.partition("/")
        if group != "instance":
            groups[group] = groups.get(group, "") + (f"<{tag}>{text}</{tag}>\n" if tag else text)
    body = "\n".join(f"<{tag}>{text}</{tag}>" for tag, text in groups.items())
    body += "\n" + "".join(extra_elements)
    return f"<nvidia_smi_log>\n<gpu id='00000000:01:00.0'>\n{body}</gpu>\n</nvidia_smi_log>\n".encode()


def xml_part(cells: dict[str, str]) -> bytes:
    return b"# part nvidia-xml rc=0\n" + xml(cells, "<processes>\n</processes>\n")


def mig_part(cells: dict[str, str]) -> bytes:
    memory = "".join(
        f"<{name.partition('/')[2]}>{text}</{name.partition('/')[2]}>"
        for name, text in cells.items()
        if name.startswith("instance/")
    )
    device = (
        "<mig_devices><mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0"
        f"</compute_instance_id><fb_memory_usage>{memory}</fb_memory_usage></mig_device></mig_devices>\n"
    )
    gpu_xml = xml(cells, device, "<processes>\n</processes>\n")
    return b"# part nvidia-xml rc=0\n" + gpu_xml + b"# part nvidia-xml/list rc=0\n" + LIST


def leaves(node: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each value in JSON."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if inner is None:
        yield path, str(node)
        return
    for name, child in inner:
        yield from leaves(child, f"{path}/{name}".lstrip("/"))


def replaced(node: object, cells: dict[str, str], path: str = "") -> object:
    """Return the same with the texts of `cells`."""
    if isinstance(node, dict):
        return {name: replaced(child, cells, f"{path}/{name}".lstrip("/")) for name, child in node.items()}
    if isinstance(node, list):
        return [replaced(child, cells, f"{path}/{number}".lstrip("/")) for number, child in enumerate(node)]
    return node if cells[path] == str(node) else cells[path]


def amd_json(cells: dict[str, str]) -> bytes:
    return part("amd-smi/names", [listed()]) + part("amd-smi/metric", [replaced(IDLE, cells)])


def amd_lines(node: object, cells: dict[str, str], path: str = "", depth: int = 1) -> Iterator[str]:
    for name, child in node.items() if isinstance(node, dict) else ():
        where = f"{path}/{name}".lstrip("/")
        if where == "gpu" or isinstance(child, list):
            continue
        if isinstance(child, dict) and "value" in child:
            word = cells[f"{where}/value"]
            unit = f" {child['unit']}" if word == str(child["value"]) else ""
            yield f"{'    ' * depth}{name.upper()}: {word}{unit}"
        elif isinstance(child, dict):
            yield f"{'    ' * depth}{name.upper()}:"
            yield from amd_lines(child, cells, where, depth + 1)
        else:
            yield f"{'    ' * depth}{name.upper()}: {cells[where]}"


def amd_text(cells: dict[str, str]) -> bytes:
    lines = "\n".join(amd_lines(IDLE, cells))
    return part("amd-smi/names", [listed()]) + part("amd-smi/metric", f"GPU: 0\n{lines}")


def rocm_json(cells: dict[str, str]) -> bytes:
    return part("rocm-smi/names", {"card0": CARD}) + part("rocm-smi/metric", {"card0": cells})


def rocm_text(cells: dict[str, str]) -> bytes:
    lines = "\n".join(f"GPU[0]\t\t: {name.rstrip(':')}: {text}" for name, text in cells.items())
    return part("rocm-smi/metric", f"===== ROCm System Management Interface =====\n{lines}")


def rocm_table(cells: dict[str, str]) -> bytes:
    return part("rocm-smi/metric", f"{'  '.join(cells)}\n{'  '.join(cells.values())}")


NAMED = re.compile(r"(memory|utilization|temperature)\.")
GROUPED = re.compile(r"(?:fb_memory_usage|utilization|temperature|instance)/")
OF_AMD_SMI = re.compile(r"(?:mem_usage|usage|temperature)/.*(?<!/unit)$|vram/size/value$")
OF_ROCM = re.compile(r"Temperature|GPU use|GPU memory use|VRAM Total|Temp |VRAM%|GPU%")
AMD_NONE = part("amd-smi/names", [listed()]) + part("amd-smi/processes", [running(0)])
ROCM_NONE = part("rocm-smi/names", {"card0": card()}) + part("rocm-smi/processes", "No KFD PIDs currently running")
ANSWERS = {
    "nvidia-smi csv": Answer(CSV, csv, NAMED, APPS, NVIDIA_WORDS),
    "nvidia-smi xml": Answer(XML, xml_part, GROUPED, xml_part(XML), NVIDIA_WORDS),
    "nvidia-smi xml, MIG": Answer(MIG_XML, mig_part, GROUPED, mig_part(MIG_XML), NVIDIA_WORDS),
    "amd-smi json": Answer(dict(leaves(IDLE)), amd_json, OF_AMD_SMI, AMD_NONE, AMD_WORDS),
    "amd-smi text": Answer(
        {path: text for path, text in leaves(IDLE) if not re.search(r"/unit$|/\d+$|^gpu$", path)},
        *(amd_text, OF_AMD_SMI, AMD_NONE, AMD_WORDS),
    ),
    "rocm-smi json": Answer({name: str(text) for name, text in CARD.items()}, rocm_json, OF_ROCM, ROCM_NONE, AMD_WORDS),
    "rocm-smi text": Answer({name: str(text) for name, text in CARD.items()}, rocm_text, OF_ROCM, ROCM_NONE, AMD_WORDS),
    "rocm-smi table": Answer(TABLE, rocm_table, OF_ROCM, ROCM_NONE, AMD_WORDS),
}
FORMS = pytest.mark.parametrize("form", sorted(ANSWERS))


def board(form: str, **changed_cells: str) -> HostStatus:
    """What the board says of the host; `other` has a cell that is not as in the good answer."""
    answer = ANSWERS[form]
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", answer.make({**answer.cells, **changed_cells})))
    return decide(host_data(parsed_gpus, gpu_tools.parse_processes_of_tools(snapshot("processes", answer.no_process))))


def handed_out(host: HostStatus) -> list[GpuStatus]:
    return [gpu_status for gpu_status in host.gpus if gpu_status.state in {"free", "booked"}]


@FORMS
def test_the_good_answer_is_of_a_free_gpu(form: str) -> None:
    (gpu_status,) = board(form).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("free", False), gpu_status.reason


@pytest.mark.slow
@FORMS
def test_lost_or_requires_reset_in_any_cell_is_never_free(form: str) -> None:
    for cell in ANSWERS[form].cells:
        for word in LOST_WORDS:
            assert not handed_out(board(form, **{cell: word})), f"{cell}: {word}"


@FORMS
def test_lost_or_requires_reset_in_a_reading_is_lost_with_these_words(form: str) -> None:
    for cell in filter(ANSWERS[form].watched.match, ANSWERS[form].cells):
        for word in LOST_WORDS:
            if form == "rocm-smi table" and "  " in word:
                continue  # two spaces are what separates its cells
            (gpu_status,) = board(form, **{cell: word}).gpus
            words = " ".join(word.strip("[]").split())
            assert (gpu_status.state, gpu_status.reason) == ("lost", f"the driver cannot reach it: {words}"), cell
            assert gpu_status.is_avoided


@pytest.mark.slow
@FORMS
def test_an_error_in_memory_use_or_temperature_is_never_free_and_its_words_are_the_reason(form: str) -> None:
    watched = list(filter(ANSWERS[form].watched.match, ANSWERS[form].cells))
    assert watched
    for cell in watched:
        for word in ANSWERS[form].errors:
            (gpu_status,) = board(form, **{cell: word}).gpus
            assert gpu_status.state == "unknown", f"{cell}: {word}"
            assert word.strip("[]")[:MAX_ERROR_CHARACTERS] in gpu_status.reason
            assert re.match(r"its (memory|use|temperature) cannot be read: ", gpu_status.reason)
            assert gpu_status.is_avoided


@FORMS
def test_an_error_in_all_readings_is_lost(form: str) -> None:
    """Power limits, sizes and names do not prove that a GPU works."""
    answer = ANSWERS[form]
    (gpu_status,) = board(form, **dict.fromkeys(filter(answer.watched.match, answer.cells), answer.errors[0])).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("lost", True)
    assert answer.errors[0].strip("[]") in gpu_status.reason


@pytest.mark.parametrize(
    ("form", "word"),
    # AMD's tools print no brackets
    [(form, word) for form in sorted(ANSWERS) for word in NO_READING if not (form[0] in "ar" and word[0] == "[")],
)
def test_a_reading_that_there_is_none_of_is_no_error(form: str, word: str) -> None:
    for cell in filter(ANSWERS[form].watched.match, ANSWERS[form].cells):
        for gpu_status in board(form, **{cell: word}).gpus:
            assert (gpu_status.gpu.lost, gpu_status.gpu.error) == (None, None), cell
            assert gpu_status.state in {"free", "unknown"}


@pytest.mark.parametrize("word", NVIDIA_WORDS[:5])
@pytest.mark.parametrize(
    ("cell", "kind"),
    [("fan.speed", "fan"), ("power.draw", "power"), ("power.limit", "power"), ("enforced.power.limit", "power")],
)
def test_an_error_in_fan_or_power_alone_is_a_warning(cell: str, kind: str, word: str) -> None:
    (gpu_status,) = board("nvidia-smi csv", **{cell: word}).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("free", False)
    assert [(problem.kind, problem.severity) for problem in gpu_status.problems] == [(kind, "warning")]


@pytest.mark.parametrize(("cell", "kind"), [("Fan speed (%)", "fan"), ("Average Graphics Package Power (W)", "power")])
def test_an_error_word_in_other_cells_of_amd_is_a_warning(cell: str, kind: str) -> None:
    (gpu_status,) = board("rocm-smi text", **{cell: "Unknown error"}).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("free", False)
    assert [(problem.kind, problem.severity) for problem in gpu_status.problems] == [(kind, "warning")]


@pytest.mark.parametrize(
    ("form", "cell", "name"),
    [
        ("nvidia-smi csv", "serial", "serial"),
        ("nvidia-smi csv", "ecc.mode.current", "ecc.mode.current"),
        ("nvidia-smi xml", "vbios_version", "vbios_version"),
        ("nvidia-smi xml", "ecc_mode/current_ecc", "ecc.mode.current"),
        ("nvidia-smi xml, MIG", "ecc_mode/pending_ecc", "ecc_mode/pending_ecc"),
        ("amd-smi json", "ecc/total_correctable_count", "ecc.total_correctable_count"),
        ("rocm-smi text", "Serial Number", "serial number"),
        ("rocm-smi table", "Perf", "Perf"),
    ],
)
def test_an_error_in_any_other_cell_makes_a_gpu_unknown_that_would_be_free(form: str, cell: str, name: str) -> None:
    (gpu_status,) = board(form, **{cell: "Unknown Error"}).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("unknown", True)
    assert gpu_status.reason == f"the driver reports an error in {name}: Unknown Error"
    assert [problem.kind for problem in gpu_status.problems] == ["unreadable"]


def test_an_error_in_any_other_cell_hides_nobody_who_is_on_the_gpu() -> None:
    cells = {**CSV, "serial": "[Unknown Error]", "memory.used": "7000"}
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", csv(cells)))
    parsed_processes = gpu_tools.parse_processes_of_tools(snapshot("processes", APPS + b"GPU-1, 42, 7000, python\n"))
    (gpu_status,) = decide(host_data(parsed_gpus, parsed_processes)).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("busy", True)


def test_missing_permissions_are_an_error_of_memory_use_and_temperature_alone() -> None:
    for cell in CSV:
        (gpu_status,) = board("nvidia-smi csv", **{cell: "[Insufficient Permissions]"}).gpus
        assert gpu_status.state == ("unknown" if NAMED.match(cell) else "free"), cell


def test_the_addressing_mode_is_unknown_on_gpus_that_are_well() -> None:
    assert board("nvidia-smi xml", addressing_mode="Unknown Error").gpus[0].state == "free"
    assert board("nvidia-smi csv", addressing_mode="[Unknown Error]").gpus[0].state == "free"
    assert board("nvidia-smi csv", addressing_mode="[Timeout]").gpus[0].state == "unknown"


def test_an_error_in_the_number_of_a_gpu_may_be_about_any_of_them() -> None:
    names = part("amd-smi/names", [listed(0), {**listed(1), "gpu": "Unknown error"}])
    metrics = part("amd-smi/metric", [{**IDLE, "gpu": 0}, {**IDLE, "gpu": 1}])
    read = gpu_tools.parse_gpus_of_tools(snapshot("gpus", names + metrics))
    host = decide(host_data(read, gpu_tools.parse_processes_of_tools(snapshot("processes", AMD_NONE))))
    reason = "the driver reports an error in the number of a GPU: Unknown error"
    assert [(gpu_status.state, gpu_status.reason) for gpu_status in host.gpus] == [("unknown", reason)] * 2


@pytest.mark.parametrize("order", [("Unknown error", "auto"), ("auto", "Unknown error")])
def test_of_facts_that_are_printed_twice_an_error_counts(order: tuple[str, str]) -> None:
    parts = (
        part(f"rocm-smi/metric{n}", {"card0": {**CARD, "Performance Level": word}}) for n, word in enumerate(order)
    )
    read = gpu_tools.parse_gpus_of_tools(snapshot("gpus", b"".join(parts)))
    (gpu_status,) = decide(host_data(read, gpu_tools.parse_processes_of_tools(snapshot("processes", ROCM_NONE)))).gpus
    assert gpu_status.reason == "the driver reports an error in performance level: Unknown error"


def test_sizes_and_limits_alone_do_not_prove_that_a_gpu_works() -> None:
    failed = dict.fromkeys(("memory.used", "utilization.gpu", "temperature.gpu", "fan.speed"), "[Unknown Error]")
    (gpu_status,) = board("nvidia-smi csv", **failed).gpus
    assert (gpu_status.state, gpu_status.reason) == ("lost", "the driver cannot reach it: Unknown Error")
    assert (gpu_status.gpu.memory_total, gpu_status.gpu.power_limit) == (81920, 400)


@pytest.mark.parametrize(
    ("form", "cell"),
    [("nvidia-smi csv", "reset_status.reset_required"), ("nvidia-smi xml", "gpu_reset_status/reset_required")],
)
def test_a_gpu_of_which_the_driver_says_that_it_must_be_reset_is_lost(form: str, cell: str) -> None:
    (gpu_status,) = board(form, **{cell: "Yes"}).gpus
    assert (gpu_status.state, gpu_status.reason) == ("lost", "the driver cannot reach it: GPU requires reset")
    assert (gpu_status.is_avoided, [problem.kind for problem in gpu_status.problems]) == (True, ["reset"])


@pytest.mark.parametrize("form", ["nvidia-smi csv", "nvidia-smi xml", "nvidia-smi xml, MIG"])
@pytest.mark.parametrize(
    ("action", "state"),
    [
        *(("Reset", "lost"), ("GPU Reset", "lost"), ("Reboot", "lost"), ("Node Reboot", "lost"), ("Bus Reset", "lost")),
        *(("Drain P2P", "unknown"), ("Drain and Reset", "unknown"), ("Something new", "unknown")),
    ],
)
def test_a_gpu_that_is_to_be_recovered_is_never_free(form: str, action: str, state: str) -> None:
    (gpu_status,) = board(form, gpu_recovery_action=action).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == (state, True)
    assert gpu_status.reason == f"the driver asks for recovery: {action}"


@pytest.mark.parametrize("word", ["None", "none", "[N/A]", "[Requested functionality has been deprecated]"])
def test_a_gpu_that_needs_no_recovery_is_free(word: str) -> None:
    assert [gpu_status.state for gpu_status in board("nvidia-smi csv", gpu_recovery_action=word).gpus] == ["free"]


def test_what_is_to_be_drained_stays_busy_while_somebody_is_on_it() -> None:
    cells = {**CSV, "gpu_recovery_action": "Drain and Reset", "memory.used": "7000"}
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", csv(cells)))
    (gpu_status,) = decide(
        host_data(
            parsed_gpus, gpu_tools.parse_processes_of_tools(snapshot("processes", APPS + b"GPU-1, 42, 7000, python\n"))
        )
    ).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("busy", True)


def test_a_drain_that_an_older_driver_recommends_is_one() -> None:
    (gpu_status,) = board("nvidia-smi csv", **{"reset_status.drain_and_reset_recommended": "Yes"}).gpus
    assert (gpu_status.state, gpu_status.is_avoided) == ("unknown", True)
    assert "Drain and Reset" in gpu_status.reason


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error",
        "GPU 00000000:01:00.0: GPU requires reset",
        "GPU 0: GPU is lost",
    ],
)
@pytest.mark.parametrize("form", ["nvidia-smi csv", "nvidia-smi xml"])
def test_a_message_beside_the_rows_that_calls_a_gpu_lost_counts_for_that_gpu(form: str, line: str) -> None:
    answer = ANSWERS[form]
    head, _, rest = answer.make(answer.cells).partition(b"\n")
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", head + b"\n" + line.encode() + b"\n" + rest))
    host = decide(host_data(parsed_gpus, gpu_tools.parse_processes_of_tools(snapshot("processes", answer.no_process))))
    assert {gpu_status.state for gpu_status in host.gpus} == {"lost"}


def test_a_message_of_rocm_smi_that_calls_a_card_lost_counts() -> None:
    rocm_output = rocm_text({name: str(text) for name, text in CARD.items()}) + b"GPU[0]\t\t: GPU is lost\n"
    read = gpu_tools.parse_gpus_of_tools(snapshot("gpus", rocm_output))
    (gpu_status,) = decide(host_data(read, gpu_tools.parse_processes_of_tools(snapshot("processes", ROCM_NONE)))).gpus
    assert (gpu_status.state, gpu_status.reason) == ("lost", "the driver cannot reach it: GPU is lost")


def test_instances_of_a_gpu_with_an_error_share_it() -> None:
    (gpu_status,) = board("nvidia-smi xml, MIG", **{"temperature/gpu_temp": "Unknown Error"}).gpus
    assert (gpu_status.gpu.label, gpu_status.state) == ("0:0", "unknown")
    assert gpu_status.reason == "its temperature cannot be read: Unknown Error"


def old_board(cells: dict[str, str], *rows: str) -> HostStatus:
    text = "".join(f"{row}\n" for row in (", ".join(cells.values()), *rows))
    parsed_gpus, newest = legacy_files.parse_legacy_gpus(text.encode())
    data = host_data(
        parsed_gpus, legacy_files.parse_legacy_processes(b"", newest), is_legacy=True, taken_at={"gpus.csv": NOW}
    )
    return decide(data)


def test_in_the_files_of_the_original_scripts_no_error_is_free_either() -> None:
    assert [gpu_status.state for gpu_status in old_board(LEGACY).gpus] == ["free"]
    for cell in filter(NAMED.match, LEGACY):
        for word in NVIDIA_WORDS:
            assert [gpu_status.state for gpu_status in old_board({**LEGACY, cell: word}).gpus] == ["unknown"], (
                f"{cell}: {word}"
            )
    for cell in set(LEGACY) - {"uuid"}:
        for word in LOST_WORDS:
            assert [gpu_status.state for gpu_status in old_board({**LEGACY, cell: word}).gpus] == ["lost"], (
                f"{cell}: {word}"
            )


@pytest.mark.parametrize("moment", ["12:10:00.000", "12:00:20.000"])
def test_a_row_of_the_original_scripts_that_errors_follow_is_not_free(moment: str) -> None:
    """A loop that lost its GPU prints rows of errors without a UUID from then on."""
    error = ", ".join([*["[Unknown Error]"] * 8, f"2026/11/16 {moment}"])
    (gpu_status,) = old_board(LEGACY, error).gpus
    assert (gpu_status.state, gpu_status.reason) == ("unknown", "missing from the newest rows of its host")


@pytest.mark.parametrize("form", ["nvidia-smi xml", "amd-smi json", "rocm-smi json"])
@pytest.mark.parametrize("word", ["GPU is lost{}\n now", "Unknown {}\n Error", "Bad{}" + "x" * 5000])
def test_words_of_a_hostile_host_are_short_and_steer_nothing(form: str, word: str) -> None:
    sign = "&#x202e;" if "xml" in form else "\u202e"
    for cell in filter(ANSWERS[form].watched.match, ANSWERS[form].cells):
        (gpu_status,) = board(form, **{cell: word.format(sign)}).gpus
        assert gpu_status.state in {"lost", "unknown"}
        assert len(gpu_status.reason) < 150
        assert not re.search("[\n\u202e]", gpu_status.reason)
