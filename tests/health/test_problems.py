"""What is wrong with a GPU now: each kind of problem and its near miss, from what drivers say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import Gpu, GpuProblem, ParsedFile, SnapshotHeader, ToolResult
from site_builder.fleet import host_state
from site_builder.health.model import PROBLEM_KINDS, SEVERITIES
from site_builder.health.problems import (
    EXIT_CODE_KINDS,
    MESSAGE_KINDS,
    MIN_CORRECTED_ERRORS,
    WARM_CELSIUS,
    ProblemFinder,
    build_problem,
    format_problem_advice,
)
from site_builder.snapshots.parsers.health_columns import HEALTH_COLUMNS
from tests.support.health_fixtures import parse_health_cells
from tests.support.samples import SAMPLES, list_samples, read_gpus

COLUMNS = ("fan.speed", "temperature.gpu.tlimit", "power.draw", *HEALTH_COLUMNS)
WELL = {
    "pci.bus_id": "00000000:41:00.0",
    "fan.speed": "30",
    "temperature.gpu.tlimit": "40",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "remapped_rows.pending": "No",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.failure": "No",
    "gpu_recovery_action": "None",
    "clocks_event_reasons.active": "0x0000000000000000",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pstate": "P0",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
}


def gpu(temperature: float | None = 45.0, lost: str | None = None, vendor: str = "nvidia", /, **cells: str) -> Gpu:
    """A GPU that is well but for these cells; `__` stands for a dot."""
    gpu_cells = {**WELL, **{name.replace("__", "."): cell for name, cell in cells.items()}}
    return parse_health_cells(gpu_cells, index=3, temperature=temperature, lost=lost, vendor=vendor)


def found(checked_gpu: Gpu, *tool_messages: str, took: int = 100, rc: int = 0) -> tuple[GpuProblem, ...]:
    header = SnapshotHeader("gpus", "atlas", 1700000000, 20, took, rc)
    return ProblemFinder(
        ParsedFile((checked_gpu,), header), [ToolResult("nvidia-smi", "nvidia", rc, tool_messages)]
    ).find_problems(checked_gpu)


def kinds(checked_gpu: Gpu, *tool_messages: str) -> list[str]:
    return [problem.kind for problem in found(checked_gpu, *tool_messages)]


def only(checked_gpu: Gpu, *tool_messages: str, took: int = 100) -> GpuProblem:
    (problem,) = found(checked_gpu, *tool_messages, took=took)
    return problem


def test_a_gpu_that_is_well_has_no_problem() -> None:
    assert found(gpu()) == ()


@pytest.mark.parametrize(
    "cell",
    [
        "[N/A]",
        "N/A",
        "",
        "[Not Supported]",
        "[Insufficient Permissions]",
        "[Requested functionality has been deprecated]",
        "Requested functionality has been deprecated",
        "[Function Not Found]",
        "-",
    ],
)
def test_what_is_not_available_is_no_problem(cell: str) -> None:
    assert found(parse_health_cells(dict.fromkeys(WELL, cell), temperature=45.0)) == ()


def test_a_gpu_without_readings_has_no_problems() -> None:
    assert found(Gpu(0, "GPU-0", "A100")) == ()


# Why it runs slowly


@pytest.mark.parametrize(
    ("mask", "kind", "what"),
    [
        ("0x0000000000000020", "heat", "slowed by heat"),
        ("0x0000000000000040", "heat", "slowed by heat to half of its clock speed or less"),
        ("0x0000000000000048", "heat", "slowed by heat to half of its clock speed or less"),
        ("0x0000000000000080", "power-brake", "slowed by the hardware power brake"),
        ("0x0000000000000088", "power-brake", "slowed by the hardware power brake"),
        ("0x0000000000000008", "slowdown", "slowed by the hardware for an unknown reason"),
    ],
)
def test_the_reason_of_a_slowdown_is_named(mask: str, kind: str, what: str) -> None:
    problem = only(gpu(clocks_event_reasons__active=mask))
    assert (problem.kind, problem.what, problem.severity, problem.avoid) == (kind, what, "warning", False)


@pytest.mark.parametrize("bit", [0x0, 0x1, 0x2, 0x4, 0x5, 0x10, 0x100, 0x1000])
def test_rest_and_full_load_and_what_an_admin_has_set_are_no_problems(bit: int) -> None:
    assert found(gpu(clocks_event_reasons__active=f"0x{bit:016x}")) == ()


def test_older_drivers_call_it_throttling() -> None:
    slowed_gpu = gpu(clocks_event_reasons__active="[N/A]", clocks_throttle_reasons__active="0x0000000000000040")
    assert kinds(slowed_gpu) == ["heat"]


def test_heat_and_power_brake_are_both_reported() -> None:
    assert kinds(gpu(clocks_event_reasons__active="0x00000000000000e8")) == ["heat", "power-brake"]


@pytest.mark.parametrize("mask", ["0x", "0xzz", "Active", "7", "0x" + "f" * 40])
def test_a_mask_that_is_none_says_nothing(mask: str) -> None:
    assert found(gpu(clocks_event_reasons__active=mask)) == ()


@pytest.mark.parametrize(
    ("temperature", "margin", "what"),
    [
        (91.0, "[N/A]", "too hot: at its limit of 90 °C"),
        (85.0, "-2", "too hot: at its limit of 83 °C"),
        (89.0, "[N/A]", None),
        (95.0, "3", None),
        (None, "-5", None),
    ],
)
def test_too_warm_is_reported_as_in_the_timeline(temperature: float | None, margin: str, what: str | None) -> None:
    problems = found(gpu(temperature, temperature__gpu__tlimit=margin))
    assert [problem.what for problem in problems] == ([what] if what else [])


def test_slowed_by_heat_includes_too_warm() -> None:
    assert kinds(gpu(95.0, temperature__gpu__tlimit="[N/A]", clocks_event_reasons__active="0x20")) == ["heat"]


# Its memory


@pytest.mark.parametrize(
    ("count", "what"), [("1", "1 uncorrected ECC error"), ("1234", "1,234 uncorrected ECC errors")]
)
def test_uncorrected_errors_since_the_driver_was_loaded_are_critical(count: str, what: str) -> None:
    problem = only(gpu(ecc__errors__uncorrected__volatile__total=count, ecc__errors__uncorrected__aggregate__total="9"))
    assert (problem.kind, problem.severity, problem.avoid) == ("ecc-uncorrected", "critical", True)
    assert problem.what == f"{what} since the driver was loaded"
    assert "nvidia-smi --gpu-reset -i 3" in problem.advice


def test_lifetime_errors_are_info_only() -> None:
    problem = only(gpu(ecc__errors__uncorrected__aggregate__total="2"))
    assert (problem.kind, problem.severity, problem.avoid) == ("ecc-before", "info", False)
    assert problem.what == "2 uncorrected ECC errors in its lifetime, none since the driver was loaded"


def test_no_recent_errors_is_stated_only_where_known() -> None:
    cells = {"ecc__errors__uncorrected__volatile__total": "[N/A]", "ecc__errors__uncorrected__aggregate__total": "1"}
    assert only(gpu(45.0, **cells)).what == "1 uncorrected ECC error in its lifetime"


def test_corrected_errors_are_reported_where_there_are_many() -> None:
    assert found(gpu(ecc__errors__corrected__volatile__total=str(MIN_CORRECTED_ERRORS - 1))) == ()
    problem = only(gpu(ecc__errors__corrected__volatile__total=str(MIN_CORRECTED_ERRORS)))
    assert (problem.kind, problem.severity, problem.what[:5]) == ("ecc-corrected", "info", "1,000")


@pytest.mark.parametrize("column", ["remapped_rows__pending", "retired_pages__pending"])
@pytest.mark.parametrize(("cell", "so"), [("Yes", True), ("1", True), ("No", False), ("0", False), ("3 rows", False)])
def test_a_repair_that_waits_is_worth_a_look_and_the_gpu_may_be_used(column: str, cell: str, so: bool) -> None:
    problems = found(gpu(**{column: cell}))
    assert [(problem.kind, problem.severity, problem.avoid) for problem in problems] == (
        [("repair-pending", "warning", False)] if so else []
    )


def test_a_repair_that_failed_is_critical() -> None:
    problem = only(gpu(remapped_rows__failure="Yes"))
    assert (problem.kind, problem.severity, problem.avoid) == ("repair-failed", "critical", True)


# What its driver asks for


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        ("Reset", "stop its processes and reset it (as root: nvidia-smi --gpu-reset -i 3)"),
        ("Reboot", "reboot the host"),
        ("Drain P2P", "start nothing new on it"),
        ("Drain and Reset", "start nothing new on it"),
        ("Something new", "do that when the GPU is not in use"),
    ],
)
def test_a_recovery_action_has_advice(action: str, advice: str) -> None:
    problem = only(gpu(gpu_recovery_action=action))
    assert (problem.kind, problem.severity, problem.avoid) == ("recovery", "critical", True)
    assert problem.what == f"the driver asks for recovery: {action}"
    assert problem.advice.startswith(advice)


@pytest.mark.parametrize(
    ("lost", "kind"),
    [
        ("GPU requires reset", "reset"),
        ("GPU is lost", "off-bus"),
        ("GPU is lost.  Reboot the system to recover this GPU", "off-bus"),
        ("Unknown Error", "lost"),
        ("Insufficient External Power", "power-cable"),
        ("Interrupt Request Issue", "interrupts"),
        ("Corrupted infoROM", "lost"),
    ],
)
def test_an_unreachable_gpu_has_advice_for_its_message(lost: str, kind: str) -> None:
    problem = only(gpu(None, lost, fan__speed=f"[{lost}]"))
    assert (problem.kind, problem.severity, problem.avoid) == (kind, "critical", True)


# Its fan


@pytest.mark.parametrize(
    ("fan", "temperature", "has_failed"),
    [
        ("[Unknown Error]", 45.0, True),
        ("ERR!", 45.0, True),
        ("0", float(WARM_CELSIUS), True),
        ("0 %", 80.0, True),
        ("0", WARM_CELSIUS - 1.0, False),
        ("0", None, False),
        ("[N/A]", 85.0, False),
        ("[Not Supported]", 85.0, False),
        ("1", 85.0, False),
        ("[Unknown Error]", None, False),
    ],
)
def test_a_fan_has_failed_if_it_errs_or_stands_still_while_the_gpu_is_warm(
    fan: str, temperature: float | None, has_failed: bool
) -> None:
    assert kinds(gpu(temperature, fan__speed=fan)) == (["fan"] if has_failed else [])


# How it is set up


@pytest.mark.parametrize(
    ("width", "widest", "state", "severity"),
    [
        ("1", "16", "P2", "warning"),
        ("4", "16", "P0", "warning"),
        ("8", "16", "P0", "info"),
        ("8x", "16x", "P0", "info"),
        ("16", "16", "P0", None),
        ("4", "4", "P0", None),
        ("1", "16", "P8", None),
        ("8", "16", "P5", None),
        ("8", "16", "[N/A]", None),
        ("[N/A]", "16", "P0", None),
        ("8", "[N/A]", "P0", None),
        ("0", "16", "P0", None),
        ("8", "999", "P0", None),
    ],
)
def test_a_narrow_link_is_judged_while_the_gpu_works(width: str, widest: str, state: str, severity: str | None) -> None:
    cells = {"pcie__link__width__current": width, "pcie__link__width__max": widest, "pstate": state}
    assert [(problem.kind, problem.severity) for problem in found(gpu(45.0, **cells))] == (
        [("link", severity)] if severity else []
    )


def test_persistence_mode_off_names_the_query_time_where_it_is_long() -> None:
    off = gpu(persistence_mode="Disabled")
    assert only(off).what == "persistence mode is off: every query reloads the driver"
    problem = only(off, took=1740)
    assert (problem.kind, problem.severity, problem.avoid) == ("persistence", "info", False)
    assert problem.what.endswith("reloads the driver, which takes 1.5 s")
    assert found(gpu(), took=9000) == ()


def test_the_doctor_on_the_host_gives_the_same_advice() -> None:
    script = (Path(__file__).parents[2] / "scripts/lib/doctor_nvidia.sh").read_text()
    assert f"'{PROBLEM_KINDS['persistence'].advice}'" in script
    assert "every query reloads the driver, which takes" in script


@pytest.mark.parametrize(
    ("mode", "is_prohibited"), [("Prohibited", True), ("Default", False), ("Exclusive_Process", False)]
)
def test_nobody_is_given_a_gpu_that_no_program_may_use(mode: str, is_prohibited: bool) -> None:
    problems = found(gpu(compute_mode=mode))
    assert [(problem.kind, problem.severity, problem.avoid) for problem in problems] == (
        [("prohibited", "warning", True)] if is_prohibited else []
    )


# Its NVLink fabric


@pytest.mark.parametrize(
    ("cells", "kind", "severity", "what"),
    [
        (
            {"fabric.state": "In Progress"},
            *("fabric-setup", "critical", "its NVLink fabric is not set up: In Progress"),
        ),
        (
            {"fabric.health.bandwidth": "Degraded"},
            *("fabric", "critical", "its NVLink fabric is unhealthy: bandwidth degraded"),
        ),
        (
            {"fabric.status": "In Use"},
            *("fabric", "critical", "its NVLink fabric is unhealthy: registration failed (In Use)"),
        ),
        (
            {"fabric.state": "Parked"},
            *("fabric-unknown", "warning", "its NVLink fabric is in an unknown state: fabric.state Parked"),
        ),
    ],
)
def test_a_gpu_whose_fabric_is_not_well_is_not_handed_out(
    cells: dict[str, str], kind: str, severity: str, what: str
) -> None:
    healthy = {"fabric.state": "Completed", "fabric.status": "Success", "fabric.health.bandwidth": "Full"}
    assert found(parse_health_cells({**WELL, **healthy}, temperature=45.0)) == ()
    problem = only(parse_health_cells({**WELL, **healthy, **cells}, index=3, temperature=45.0))
    assert (problem.kind, problem.severity, problem.what, problem.avoid) == (kind, severity, what, True)
    assert "{" not in problem.advice


@pytest.mark.parametrize("words", ["GPU is lost", "Unknown Error"])
def test_nothing_is_said_of_the_fabric_of_a_gpu_that_cannot_be_reached(words: str) -> None:
    cells = {"fabric.state": f"[{words}]", "fabric.status": f"[{words}]"}
    (problem,) = found(parse_health_cells({**WELL, **cells}, lost=words))
    assert problem.kind in {"off-bus", "lost"}


def test_an_instance_has_the_fabric_of_its_gpu() -> None:
    parent = parse_health_cells({**WELL, "fabric.state": "Not Started"}, temperature=45.0)
    assert kinds(Gpu(0, "MIG-1", "A100", parent=parent)) == ["fabric-setup"]


# What is said beside the rows

INFOROM = "WARNING: infoROM is corrupted at gpu 0000:41:00.0"


def test_a_message_that_names_its_place_on_the_bus_is_its_own() -> None:
    problem = only(gpu(), INFOROM)
    assert (problem.kind, problem.severity, problem.avoid) == ("inforom", "warning", False)
    assert found(gpu(), INFOROM.replace(":41:", ":42:")) == ()
    assert found(gpu(), INFOROM.replace("0000:", "0001:")) == ()


def test_a_message_may_name_it_by_its_number() -> None:
    assert kinds(gpu(), "WARNING: GPU 3: not all of its power cables are plugged in") == ["power-cable"]
    assert found(gpu(), "WARNING: GPU 13: not all of its power cables are plugged in") == ()


def test_an_unknown_message_is_shown_as_it_is() -> None:
    problem = only(gpu(), "WARNING: gpu 0000:41:00.0 is tired")
    assert (problem.kind, problem.what) == ("said", "driver message: WARNING: gpu 0000:41:00.0 is tired")


def test_what_one_tool_says_is_not_about_the_gpus_of_another_maker() -> None:
    assert found(gpu(45.0, None, "amd"), INFOROM) == ()


def test_what_names_no_gpu_is_nobodys() -> None:
    assert found(gpu(), "WARNING: something", "GPU", "0000:41") == ()


@pytest.mark.parametrize(("code", "kind"), EXIT_CODE_KINDS.items())
def test_an_exit_code_that_names_no_gpu_is_a_problem_of_the_host_with_advice(code: int, kind: str) -> None:
    dump = ParsedFile[Gpu](tool_results=(ToolResult("nvidia-smi", "nvidia", code),))
    description = host_state.describe_host_tool_failures(dump)
    assert description.startswith(f"nvidia-smi ended with exit code {code}; ")
    assert PROBLEM_KINDS[kind].advice[:12] in description or "Xid" in description


def test_one_that_names_a_gpu_leaves_the_advice_to_that() -> None:
    dump = ParsedFile[Gpu](tool_results=(ToolResult("nvidia-smi", "nvidia", 14, (INFOROM,)),))
    assert host_state.describe_host_tool_failures(dump) == f"nvidia-smi ended with exit code 14: {INFOROM}"


# All together


def test_an_instance_has_the_problems_of_its_gpu() -> None:
    instance = Gpu(0, "MIG-1", "A100", parent=gpu(remapped_rows__failure="Yes"))
    assert kinds(instance) == ["repair-failed"]


def test_critical_problems_come_first_and_each_kind_once() -> None:
    troubled_gpu = gpu(
        persistence_mode="Disabled", clocks_event_reasons__active="0x20", ecc__errors__uncorrected__volatile__total="1"
    )
    assert kinds(troubled_gpu, INFOROM, INFOROM) == ["ecc-uncorrected", "inforom", "heat", "persistence"]


def test_advice_is_for_the_tools_of_its_maker() -> None:
    cells = {"ecc__errors__uncorrected__volatile__total": "1"}
    assert "amd-smi reset" in only(gpu(45.0, None, "amd", **cells)).advice
    assert "manufacturer's tool" in only(gpu(45.0, None, "other", **cells)).advice


def test_one_without_a_number_is_named_by_its_place() -> None:
    problem = only(gpu(None, "Unknown Error")._replace(index=None))
    assert "nvidia-smi --gpu-reset -i 00000000:41:00.0" in problem.advice


def test_each_kind_has_a_severity_and_advice() -> None:
    for kind, problem_kind in PROBLEM_KINDS.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind)
        assert problem_kind.severity in SEVERITIES
        assert problem_kind.what and problem_kind.advice
        problem = build_problem(kind, "", "")
        assert problem.avoid or problem_kind.severity != "critical"  # what is critical is never handed out
    assert {kind for _, kind in MESSAGE_KINDS} | set(EXIT_CODE_KINDS.values()) <= set(PROBLEM_KINDS)


RESET_COMMAND = format_problem_advice("{reset}", "nvidia")
VALUES = {"link": ("4", "16"), "ecc-before": ("2 uncorrected ECC errors", ", none since the driver was loaded")}
FIRST = {
    **dict.fromkeys(("lost", "off-bus", "power-cable", "interrupts", "recovery", "said", "power"), "…"),
    "fabric-setup": "In Progress",
    "fabric": "bandwidth degraded",
    "fabric-unknown": "…",
    "unreadable": "its temperature cannot be read: …",
    "ecc-uncorrected": "2 uncorrected ECC errors",
    "xid": "79 at 14:02: …",
    "heat": "",
    "hot": "90",
    "fan": "its fan does not respond, or does not turn although the GPU is warm",
    "ecc-corrected": "1,000",
    "persistence": ", which takes 1.5 s",
}


def table_of_docs() -> str:
    """A row for each kind, below a row for each severity, from the worst on."""
    lines = ["| kind | what is said | what to do |", "| --- | --- | --- |"]
    for severity in SEVERITIES:
        lines.append(f"| **{severity}{', not handed out' if severity == 'critical' else ''}** | | |")
        for kind, problem_kind in PROBLEM_KINDS.items():
            if problem_kind.severity == severity:
                what = problem_kind.what.format(*VALUES.get(kind, (FIRST.get(kind, ""),)))
                is_exception = severity != "critical" and build_problem(kind, "", "").avoid
                advice = format_problem_advice(problem_kind.advice, "nvidia").replace(f" ({RESET_COMMAND})", "")
                lines.append(f"| `{kind}` | {what}{' (not handed out)' if is_exception else ''} | {advice} |")
    return "\n".join(lines)


def test_the_documentation_has_each_kind_in_the_words_of_the_board() -> None:
    """With GPUBOARD_UPDATE_GOLDEN=1 the table is written anew; the page has the command for a reset above it."""
    path = Path(__file__).parents[2] / "docs/health.md"
    before, begin, rest = path.read_text().partition("| kind |")
    table, end, after = rest.partition("\n\n")
    if os.environ.get("GPUBOARD_UPDATE_GOLDEN"):
        path.write_text(f"{before}{table_of_docs()}{end}{after}")
        begin, table = "", table_of_docs()
    assert begin + table == table_of_docs()
    for vendor in ("nvidia", "amd"):
        assert f"`{format_problem_advice('{reset}', vendor).partition(': ')[2]}`" in before


anything = st.one_of(
    st.sampled_from(
        ["", "[N/A]", "Yes", "No", "0", "1", "16", "P0", "0x48", "None", "Reset", "Disabled", "Prohibited"]
    ),
    st.text(max_size=300),
)


@given(
    st.lists(anything, min_size=len(COLUMNS), max_size=len(COLUMNS)),
    st.one_of(st.none(), st.text(max_size=300)),
    st.one_of(st.none(), st.floats(0, 1e6)),
    st.lists(st.one_of(st.text(max_size=300), st.just(INFOROM)), max_size=3),
)
def test_whatever_a_host_reports_its_problems_are_few_and_short(
    cells: list[str], lost: str | None, temperature: float | None, said: list[str]
) -> None:
    parsed_gpu = parse_health_cells(dict(zip(COLUMNS, cells)), temperature=temperature, lost=lost)
    problems = found(parsed_gpu, *said)
    assert len({problem.kind for problem in problems}) == len(problems) <= len(PROBLEM_KINDS)
    for problem in problems:
        assert problem.kind in PROBLEM_KINDS
        assert len(problem.what) <= 400
        assert len(problem.advice) <= 400
        assert "{" not in problem.advice


def test_a_row_of_fewer_cells_than_columns_costs_nothing_but_itself() -> None:
    many = tuple(f"c{n}" for n in range(500))
    assert found(parse_health_cells(dict(zip(many, many)))) == ()


# Samples of machines

REAL_PROBLEMS = {
    "525-rtx-a6000": {1: ["heat"]},
    "550-h100": {2: ["ecc-uncorrected"], 3: ["repair-pending"]},
    "570-rtx-5090": {1: ["recovery"]},
    "580-gb300-fabric": {
        **{1: ["fabric"], 2: ["fabric"], 3: ["fabric-setup"]},
        **{4: ["unreadable", "fabric"], 5: ["fabric"], 6: ["fabric-unknown"]},
    },
    "590-h200": {2: ["recovery"]},
    "595-rtx-pro-6000": {0: ["persistence"], 1: ["persistence"]},
}


def find_kinds(path: Path) -> dict[int | None, list[str]]:
    """Return the kinds of the problems of each GPU that has any, by its number."""
    parsed_gpus = read_gpus(path)
    finder = ProblemFinder(parsed_gpus, parsed_gpus.tool_results)
    kinds_by_gpu = {row.index: [problem.kind for problem in finder.find_problems(row)] for row in parsed_gpus.rows}
    return {index: gpu_kinds for index, gpu_kinds in kinds_by_gpu.items() if gpu_kinds}


@pytest.mark.parametrize("folder", ["gpus", "xml"])
def test_machines_of_all_drivers_have_only_their_real_problems(folder: str) -> None:
    kinds_by_machine = {
        path.stem: find_kinds(path) for path in list_samples(f"nvidia/{folder}") if path.name[0].isdigit()
    }
    assert len(kinds_by_machine) > 25
    assert {name: gpu_kinds for name, gpu_kinds in kinds_by_machine.items() if gpu_kinds} == REAL_PROBLEMS


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("gpus/error-requires-reset.csv", {1: ["reset"]}),
        ("gpus/error-gpu-is-lost.csv", {1: ["off-bus"]}),
        ("gpus/rc14-inforom-between.csv", {1: ["inforom"]}),
        ("gpus/rc15-handle-old-between-rows.csv", {None: ["off-bus"]}),
        ("gpus/rc255-handle-new-with-error-row.csv", {1: ["lost"]}),
        ("xml/error-requires-reset.xml", {1: ["reset"]}),
        ("xml/rc14-inforom-between.xml", {1: ["inforom"]}),
        ("xml/rc15-handle-old-before.xml", {1: ["off-bus"]}),
        ("xml/rc255-handle-new-after.xml", {1: ["lost"]}),
        ("errors/rc255-handle-then-table.txt", {1: ["lost"]}),
    ],
)
def test_errors_that_tools_print_are_problems_of_their_gpus(place: str, expected: dict[int | None, list[str]]) -> None:
    assert find_kinds(SAMPLES / "nvidia" / place) == expected
