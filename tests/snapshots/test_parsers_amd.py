"""AMD's GPUs: what is understood of rocm-smi and amd-smi, in their many versions."""

from __future__ import annotations

import json

import pytest

from site_builder.core.model import Gpu, GpuProcessRow, ParsedFile, SharedMemory
from site_builder.snapshots import gpu_tools
from tests.support.amd_fixtures import CARD, card, listed, metric, part, running, static, value
from tests.support.samples import snapshot

TABLE = """
======================= ROCm System Management Interface =======================
================================ Concise Info ==================================
Device  Node  IDs              Temp    Power  Partitions          SCLK     MCLK     Fan     Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Edge)  (Avg)  (Mem, Compute, ID)
================================================================================
0       3     0x7550,   45211  54.0°C  41.0W  N/A, N/A, 0         1626Mhz  1124Mhz  0%      high  330.0W  6%     33%
1       2     0x74a1,   43088  45.0°C  N/A    N/A, N/A, 0         41Mhz    1124Mhz  24.71%  high  300.0W  61%    3%
================================================================================
"""


def told(*parts: bytes) -> ParsedFile[Gpu]:
    return gpu_tools.parse_gpus_of_tools(snapshot("gpus", b"".join(parts)))


def on(*parts: bytes) -> ParsedFile[GpuProcessRow]:
    return gpu_tools.parse_processes_of_tools(snapshot("processes", b"".join(parts)))


def one(*parts: bytes) -> Gpu:
    (parsed_gpu,) = told(*parts).rows
    return parsed_gpu


def test_a_card_of_rocm_smi_is_a_gpu_under_nvidia_smis_names() -> None:
    gpu = one(part("rocm-smi", {"card0": CARD, "system": {"Driver version": "6.7.0"}}))
    assert (gpu.index, gpu.uuid, gpu.name, gpu.vendor) == (0, "GPU-abc0000000000001", "Instinct MI210", "amd")
    assert (gpu.memory_used, gpu.memory_total) == (8192, 65536)
    assert (gpu.utilization_gpu, gpu.utilization_memory, gpu.temperature) == (37, 12, 41)
    assert (gpu.power_draw, gpu.power_limit, gpu.clock) == (120, 300, 1500)
    gpu_fields = gpu.raw_fields
    assert (gpu_fields["pci.bus_id"], gpu_fields["serial"], gpu_fields["vbios_version"]) == (
        "0000:0C:00.0",
        "77",
        "113-XYZ-001",
    )
    assert (gpu_fields["driver_version"], gpu_fields["fan.speed"], gpu_fields["temperature.memory"]) == (
        "6.7.0",
        "23",
        "44",
    )
    assert (gpu_fields["pcie.link.width.current"], gpu_fields["pcie.link.gen.current"]) == ("8", "4")


def test_a_gpu_of_amd_smi_is_the_same_from_several_questions() -> None:
    gpu = one(
        part("amd-smi/names", [listed()]),
        part("amd-smi/static", {"gpu_data": [static()]}),
        part("amd-smi/metric", {"gpu_data": [metric()]}),
    )
    assert (gpu.index, gpu.uuid, gpu.name, gpu.vendor) == (0, "GPU-abc0000000000001", "AMD Instinct MI300X", "amd")
    assert (gpu.memory_used, gpu.memory_total) == (8192, 196592)
    assert (gpu.utilization_gpu, gpu.utilization_memory, gpu.temperature) == (37, 12, 47)
    assert (gpu.power_draw, gpu.power_limit, gpu.clock) == (140, 700, 1500)
    gpu_fields = gpu.raw_fields
    assert (gpu_fields["ecc.errors.corrected.volatile.total"], gpu_fields["ecc.errors.uncorrected.volatile.total"]) == (
        "3",
        "0",
    )
    assert (gpu_fields["driver_version"], gpu_fields["vbios_version"], gpu_fields["pcie.link.gen.current"]) == (
        "6.10.5",
        "113-XYZ-002",
        "5",
    )
    assert "fan.speed" not in gpu_fields


def test_amd_smi_and_rocm_smi_give_a_gpu_the_same_uuid() -> None:
    """As ROCR_VISIBLE_DEVICES takes it; history and bookings stay with a GPU when the tool changes."""
    of_rocm = one(part("rocm-smi", {"card0": CARD}))
    bare = {"gpu": 0, "uuid": listed()["uuid"], "bdf": "0000:0c:00.0"}
    by_serial = static(asic={"market_name": "x", "asic_serial": "0xABC0000000000001"})
    uuids = [one(part("amd-smi/names", [row])).uuid for row in (listed(), bare, by_serial)]
    assert uuids == [of_rocm.uuid] * 3


@pytest.mark.parametrize(
    "nothing", ["N/A", "N/A (Secondary die)", "unsupported", "Not supported", "UNKNOWN", "", "nan", "-1"]
)
def test_what_is_not_reported_is_not_available(nothing: str) -> None:
    empty = dict.fromkeys(CARD, nothing)
    gpu = one(part("rocm-smi", {"card0": empty}))
    assert gpu == Gpu(0, None, gpu.name, bus_id=gpu.bus_id, columns=gpu.columns, cells=gpu.cells, vendor="amd")
    assert set(gpu.columns) <= {"index", "name", "serial", "vbios_version", "pci.bus_id"}


@pytest.mark.parametrize(
    "nothing", ["N/A", None, "", {}, [], {"value": "N/A", "unit": "%"}, {"value": 65535, "unit": "%"}, True]
)
def test_missing_values_in_amd_smi_json_are_not_available(nothing: object) -> None:
    gpu = one(part("amd-smi/metric", [metric(usage={"gfx_activity": nothing}, mem_usage=nothing)]))
    assert (gpu.utilization_gpu, gpu.memory_used, gpu.memory_total) == (None, None, None)
    assert gpu.power_draw == 140


@pytest.mark.parametrize(
    ("engines", "error"),
    [
        ("[0 %, N/A, N/A]", None),
        ("[N/A, 0 %]", None),
        ("[N/A]", None),
        ("[]", None),
        ("[0 %, AMDSMI_STATUS_TIMEOUT]", "its use cannot be read: AMDSMI_STATUS_TIMEOUT"),
    ],
)
def test_a_list_in_the_text_of_amd_smi_has_a_value_for_each_engine(engines: str, error: str | None) -> None:
    text = f"GPU: 0\n    USAGE:\n        GFX_ACTIVITY: 7 %\n        VCN_ACTIVITY: {engines}\n"
    gpu = one(part("amd-smi/metric", text))
    assert (gpu.utilization_gpu, gpu.error) == (7, error)


def test_temperature_is_that_of_the_edge_or_else_of_the_hottest_place() -> None:
    hot = {key: reading for key, reading in CARD.items() if "edge" not in key}
    assert one(part("rocm-smi", {"card0": hot})).temperature == 47
    assert (
        one(part("amd-smi", [metric(temperature={"edge": value(40, "C"), "hotspot": value(47, "C")})])).temperature
        == 40
    )


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ({"Card series": "0x1002"}, "AMD Instinct MI300X"),
        ({"Card series": "0x1002", "GPU ID": "0x73df", "Card SKU": "67XA6S"}, "AMD GPU 67XA6S"),
        ({"Card series": "N/A", "GPU ID": "0x73df"}, "AMD GPU 0x73df"),
        ({"Card series": "N/A", "GPU ID": "0x73df", "Card model": "FirePro W4300"}, "FirePro W4300"),
        ({"Card series": "0x1002", "Device Name": "Navi 22 [Radeon RX 6700 XT]"}, "Navi 22 [Radeon RX 6700 XT]"),
    ],
)
def test_a_number_is_no_name(names: dict[str, str], shown: str) -> None:
    assert one(part("rocm-smi", {"card0": {**CARD, **names}})).name == shown


def test_the_number_is_hips_where_it_can_be_known() -> None:
    """HIP counts the nodes of the driver; rocm-smi and amd-smi count PCI addresses, or cards of the display driver."""
    cards = {"card0": card(0, Node_ID="5"), "card1": card(1, Node_ID="4"), "card2": card(2, Node_ID="7")}
    index_by_bus = {gpu.raw_fields["pci.bus_id"][5:7]: gpu.index for gpu in told(part("rocm-smi", cards)).rows}
    assert index_by_bus == {"0C": 1, "0D": 0, "0E": 3}  # the GPU of node 6 is not told
    rows = told(part("amd-smi/names", [listed(0, hip_id=1), listed(1, hip_id=0)])).rows
    assert [gpu.uuid for gpu in rows] == ["GPU-abc0000000000002", "GPU-abc0000000000001"]
    older = [{**listed(n), "hip_id": "N/A", "node_id": 9 - n} for n in (0, 1)]
    assert [gpu.uuid for gpu in told(part("amd-smi/names", older)).rows] == [
        "GPU-abc0000000000002",
        "GPU-abc0000000000001",
    ]


def test_one_that_hip_does_not_see_changes_no_number() -> None:
    listed_gpus = [listed(0, hip_id=1), {**listed(1), "hip_id": "N/A", "node_id": "N/A"}, listed(2, hip_id=0)]
    index_by_uuid = {gpu.uuid: gpu.index for gpu in told(part("amd-smi/names", listed_gpus)).rows}
    assert index_by_uuid == {"GPU-abc0000000000001": 1, "GPU-abc0000000000002": 2, "GPU-abc0000000000003": 0}


def test_where_it_cannot_the_tools_own_number_counts() -> None:
    cards = {"card3": card(3), "card0": card(0), "card1": card(1, Node_ID="1")}
    assert [gpu.index for gpu in told(part("rocm-smi", cards)).rows] == [0, 1, 3]
    same = [listed(n, hip_id=0, node_id=1) for n in (0, 1)]
    assert [gpu.index for gpu in told(part("amd-smi/names", same)).rows] == [0, 1]


def test_parts_of_one_gpu_have_no_uuid_of_their_own() -> None:
    of_one = [listed(n, hip_uuid="GPU-abc0000000000001", partition_id=n) for n in (0, 1)]
    rows = told(part("amd-smi/names", of_one)).rows
    assert [(gpu.index, gpu.uuid, gpu.process_key) for gpu in rows] == [(0, None, "amd 0"), (1, None, "amd 1")]


def test_warnings_around_the_json_are_messages_and_empty_lines_are_not() -> None:
    text = f"""WARNING: User is missing the following required groups: render
[INFO] starting
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status
{json.dumps({"card0": CARD})}
Traceback (most recent call last):
  File "rocm_smi.py", line 1, in <module>
ValueError: odd
"""
    dump = told(part("rocm-smi", text))
    assert [gpu.index for gpu in dump.rows] == [0]
    assert dump.messages == (
        "WARNING: User is missing the following required groups: render",
        "[INFO] starting",
        "ValueError: odd",
    )
    assert dump.problems == ()


@pytest.mark.parametrize("form", ["rocm-smi", "amd-smi"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{\n "card0": {\n  "GPU use (%)": "1',
            "its JSON cannot be read: line 3, column 18: this text",
        ),
        ('[\n {"gpu": 0,\n', "its JSON cannot be read: line 2, column"),
        ('{"card0": {"GPU use (%)": "1"', "its JSON cannot be read: line 1, column"),
        ("[" * 200_000, "its JSON cannot be read: "),
        ('{"card0": {}, "card0": {"GPU use (%)": "1"}}', "“card0” occurs twice; the last is used"),
    ],
)
def test_broken_json_is_reported_in_one_sentence(form: str, text: str, problem: str) -> None:
    dump = told(part(form, text))
    assert len(dump.problems) == 1
    assert dump.problems[0].startswith(problem)


def test_nan_and_monstrous_numbers_are_no_readings() -> None:
    odd = '[{"gpu": 0, "usage": {"gfx_activity": NaN, "umc_activity": %s}, "power": {"socket_power": Infinity}}]' % (
        "9" * 5000
    )
    gpu = one(part("amd-smi", odd))
    assert (gpu.utilization_gpu, gpu.utilization_memory, gpu.power_draw) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ERROR:root:Driver not initialized (amdgpu not found in modules)", "ERROR:root:Driver not initialized"),
        ("WARNING: No AMD GPUs specified", "WARNING: No AMD GPUs specified"),
    ],
)
def test_a_tool_that_sees_no_gpu_says_why(text: str, said: str) -> None:
    dump = told(part("rocm-smi", text, rc=2))
    assert (dump.rows, dump.tool_results[0].rc) == ((), 2)
    assert dump.messages[0].startswith(said)


def test_an_error_of_amd_smi_is_reported_in_its_words() -> None:
    dump = told(part("amd-smi", {"error": "Device not found", "code": -3}, rc=253))
    assert (dump.rows, dump.messages) == ((), ("Device not found",))


def test_the_table_for_people_is_understood_too() -> None:
    parsed_gpus = told(part("rocm-smi", TABLE))
    assert parsed_gpus.messages == ()
    first, second = parsed_gpus.rows
    assert (first.index, first.name, first.temperature, first.utilization_gpu) == (0, "AMD Instinct MI300X", 45, 3)
    assert (first.power_draw, first.power_limit, first.clock) == (None, 300, 41)
    assert (second.index, second.name, second.power_draw) == (1, "AMD GPU 0x7550", 41)
    assert (first.memory_used, first.memory_total) == (None, None)  # a part of what is not told


def test_processes_of_amd_smi() -> None:
    told_ = [running(0, ("python3", 71, 2**30), ("N/A", "72", 0)), running(1)]
    dump = on(part("amd-smi/names", [listed(0), listed(1)]), part("amd-smi/processes", told_))
    assert dump.rows == (
        GpuProcessRow("GPU-abc0000000000001", 71, 1024, "python3"),
        GpuProcessRow("GPU-abc0000000000001", 72, 0, None),
    )
    assert dump.tool_results[0].is_complete


def test_a_process_that_has_memory_on_one_gpu_is_not_on_those_that_it_only_opened() -> None:
    process_lists = [running(0, ("a", 71, 2**30), ("b", 72, 0)), running(1, ("a", 71, 0), ("b", 72, 0))]
    dump = on(part("amd-smi/names", [listed(0), listed(1)]), part("amd-smi/processes", process_lists))
    assert [(row.gpu_key[-1], row.pid) for row in dump.rows] == [("1", 71), ("1", 72), ("2", 72)]


@pytest.mark.parametrize(
    "memory",
    [{"mem_usage": value(0, "B")}, {}, {"memory_usage": "N/A"}, {"mem_usage": "N/A"}, {"vram_mem": "UNKNOWN"}],
)
def test_a_memory_that_is_not_reported_is_not_zero(memory: dict[str, object]) -> None:
    info = {"gpu": 0, "process_list": [{"process_info": {"pid": 7, "name": "x", **memory}}]}
    assert on(part("amd-smi/processes", [info])).rows == (GpuProcessRow("amd 0", 7, None, "x"),)


@pytest.mark.parametrize(
    ("told_", "words"),
    [
        ([running(1)], "amd-smi does not list them"),
        ([{"gpu": 0, "process_list": [{"process_info": "N/A"}]}, running(1)], "N/A"),
        ([{"gpu": 0, "process_list": "N/A"}, running(1)], "N/A"),
        ([{"gpu": 0, "process_list": "Not supported"}, running(1)], "Not supported"),
        ([{"gpu": 0, "process_list": None}, running(1)], "amd-smi does not list them"),
        ([{"gpu": 0, "process_list": [{"process_info": {"name": "no pid"}}]}, running(1)], "N/A"),
        ("GPU: 0\n    PROCESS_INFO: N/A\n\nGPU: 1\n    PROCESS_INFO: No running processes detected\n", "N/A"),
    ],
)
def test_a_gpu_whose_processes_amd_smi_does_not_report_has_none_and_its_words(told_: object, words: str) -> None:
    dump = on(part("amd-smi/names", [listed(0), listed(1)]), part("amd-smi/processes", told_))
    assert (dump.rows, dump.unreported) == ((), {"GPU-abc0000000000001": words})
    assert dump.tool_results[0].is_complete


@pytest.mark.parametrize(
    "told_",
    [
        [],
        {"error": "no permission"},
    ],
)
def test_an_incomplete_process_list_is_unknown(told_: object) -> None:
    dump = on(part("amd-smi/names", [listed(0), listed(1)]), part("amd-smi/processes", told_))
    assert not dump.tool_results[0].is_complete


def test_processes_of_rocm_smi_by_its_text() -> None:
    """JSON never tells on which cards a process is."""
    text = """
===================================== KFD Processes ======================================
KFD process information:
PID    \tPROCESS NAME    \tGPU(s)\tVRAM USED \tSDMA USED\tCU OCCUPANCY\t
71     \tpt main_thread  \t1     \t1073741824\t0        \t4           \t
72     \tUNKNOWN         \t2     \t1073741824\t0        \tUNKNOWN     \t
73     \tlooks_only      \t0     \t0         \t0        \t0           \t
74     \told_kernel      \t1     \tUNKNOWN   \tUNKNOWN  \tUNKNOWN     \t
==========================================================================================
================================== GPUs Indexed by PID ===================================
PID 71 is using 1 DRM device(s):
1
PID 72 is using 2 DRM device(s):
0 1
PID 73 is using 0 DRM device(s)
"""
    dump = on(part("rocm-smi/names", {"card0": card(0), "card1": card(1)}), part("rocm-smi/processes", text))
    assert dump.rows == (
        GpuProcessRow("GPU-abc0000000000002", 71, 1024, "pt main_thread"),
        GpuProcessRow("GPU-abc0000000000001", 72, None, None),
        GpuProcessRow("GPU-abc0000000000002", 72, None, None),
        GpuProcessRow("amd ?", 74, None, "old_kernel"),
    )
    assert dump.tool_results[0].is_complete
    assert dump.messages == ()


def test_processes_of_rocm_smi_by_its_json() -> None:
    system = {"PID104": "a, b, 1, 1048576, 0, 0", "PID105": "c, 0, 0, 0, 0", "Driver version": "6"}
    dump = on(part("rocm-smi", {"card0": CARD, "system": system}))
    assert dump.rows == (GpuProcessRow("GPU-abc0000000000001", 104, 1, "a, b"),)  # there is but one card
    assert on(part("rocm-smi", {"card0": CARD, "card1": card(1), "system": system})).rows[0].gpu_key == "amd ?"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("PID 7 is using 2 DRM device(s):\n0 1 \n", ["GPU-abc0000000000001", "GPU-abc0000000000002"]),
        ("PID 7 is using 2 DRM device(s):\n0\n1\n", ["GPU-abc0000000000001", "GPU-abc0000000000002"]),
        ("PID 7 is using 2 DRM device(s):\n1\n===\n", ["GPU-abc0000000000002", "amd ?"]),
        ("PID 7 is using 1 DRM device(s):\nN/A\n", ["amd ?"]),
        ("PID 7 is using 1 DRM device(s):\n", ["amd ?"]),
        ("PID 7 is using 0 DRM device(s)\n", []),
        ("PID\tPROCESS NAME\tGPU(s)\tVRAM USED\n7\tpython3\t0\t1048576\t0\t0\n", ["amd ?"]),
        ("PID\tPROCESS NAME\tGPU(s)\tVRAM USED\n7\tpython3\t0\t0\t0\t0\n", []),
        ("PID\tPROCESS NAME\tGPU(s)\tVRAM USED\n7\tpython3\tUNKNOWN\tUNKNOWN\tUNKNOWN\n", ["amd ?"]),
    ],
)
def test_a_process_is_on_every_card_that_lists_it(text: str, where: list[str]) -> None:
    names = part("rocm-smi/names", {"card0": CARD, "card1": card(1)})
    assert [row.gpu_key for row in on(names, part("rocm-smi/processes", text)).rows] == where


@pytest.mark.parametrize(
    ("text", "answered"),
    [
        ("No KFD PIDs currently running", True),
        ("WARNING: No JSON data to report", True),
        ("{}", True),
        ('{"system": {}}', True),
        ('{"card0": {"GPU use (%)": "0"}}', False),
        ("Not supported on the given system", False),
        ("GPU[0]\t\t: Not supported", False),
        ("ERROR:root:Driver not initialized", False),
        (TABLE, False),
        ("", False),
    ],
)
def test_no_process_counts_only_if_the_tool_says_so(text: str, answered: bool) -> None:
    dump = on(part("rocm-smi/names", {"card0": CARD}), part("rocm-smi/processes", text))
    assert (dump.rows, dump.tool_results[0].is_complete) == ((), answered)


def test_the_first_tool_of_a_maker_that_lists_gpus_counts() -> None:
    dump = told(part("amd-smi", "[]"), part("rocm-smi", {"card0": CARD}), part("amd-smi/metric", [metric(1)]))
    assert [(gpu.label, gpu.memory_used is None) for gpu in dump.rows] == [("1", False)]
    assert dump.problems == ("GPUs of amd are reported by two parts; the first is used",)
    dump = told(part("amd-smi", "[]"), part("rocm-smi", {"card0": CARD}))
    assert [gpu.label for gpu in dump.rows] == ["0"]


def test_gpus_of_two_makers_stand_side_by_side() -> None:
    csv = b"# part nvidia-csv rc=0\nindex, uuid, name, memory.used [MiB], memory.total [MiB]\n0, GPU-1, T4, 1, 16384\n"
    rows = told(csv, part("amd-smi", [metric()])).rows
    assert [(gpu.label, gpu.vendor, gpu.index) for gpu in rows] == [("0", "nvidia", 0), ("amd0", "amd", 0)]
    assert [gpu.label for gpu in told(part("amd-smi", [metric()])).rows] == ["0"]


# Memory that is shared with the host

GTT_OF_ROCM_SMI = {"GTT Total Memory (B)": str(32 * 2**30), "GTT Total Used Memory (B)": str(2**30)}
VRAM_AND_GTT = {
    "total_vram": value(512, "MB"),
    "used_vram": value(100, "MB"),
    "total_gtt": value(60_000, "MB"),
    "used_gtt": value(2000, "MB"),
}


def apu(asic: dict[str, object], memory_type: str = "UNKNOWN", **memory: object) -> Gpu:
    """What amd-smi tells of a GPU, on the chip of the CPU or not."""
    return one(
        part("amd-smi/static", [static(asic=asic, board={}, vram={"type": memory_type})]),
        part("amd-smi/metric", [metric(mem_usage={**VRAM_AND_GTT, **memory})]),
    )


@pytest.mark.parametrize(
    ("asic", "memory_type"),
    [
        ({"target_graphics_version": "gfx1151"}, "GDDR7"),  # as amd-smi calls LPDDR5
        ({"target_graphics_version": "gfx90c:xnack-"}, "N/A"),
        ({"device_id": "0x15BF"}, "UNKNOWN"),
        ({}, "LPDDR5"),
        ({}, "DDR4"),
    ],
)
def test_an_apu_has_vram_and_gtt_together(asic: dict[str, object], memory_type: str) -> None:
    gpu = apu(asic, memory_type)
    assert (gpu.memory_used, gpu.memory_total) == (2100, 60_512)
    assert gpu.shared_memory == SharedMemory(total=60_000, used=2000)
    # each is in the fields of the driver
    assert [gpu.raw_fields[name] for name in ("memory.used", "memory.total", "gtt.used", "gtt.total")] == [
        *("100", "512", "2000", "60000")
    ]


@pytest.mark.parametrize(
    ("asic", "memory_type"),
    [
        ({"target_graphics_version": "gfx1100", "device_id": "0x744c"}, "GDDR6"),
        ({"market_name": "AMD Radeon Graphics"}, "UNKNOWN"),  # also of cards that a driver does not know
        ({"target_graphics_version": "gfx942", "market_name": "AMD Instinct MI300X"}, "HBM"),
        ({"market_name": "AMD Radeon R7 240"}, "DDR3"),
        ({}, "GDDR7"),
    ],
)
def test_what_is_not_certainly_an_apu_has_its_vram_alone(asic: dict[str, object], memory_type: str) -> None:
    gpu = apu(asic, memory_type)
    assert (gpu.memory_used, gpu.memory_total, gpu.shared_memory) == (100, 512, None)
    assert "gtt.total" not in gpu.raw_fields


@pytest.mark.parametrize("asic", [{"device_id": "0x74a0"}, {"market_name": "AMD Instinct MI300A"}])
def test_the_memory_of_an_mi300a_is_one_and_gtt_a_part_of_it(asic: dict[str, object]) -> None:
    gpu = apu(asic, "HBM", total_vram=value(131_072, "MB"))
    assert (gpu.memory_used, gpu.memory_total, gpu.is_memory_shared) == (100, 131_072, True)


@pytest.mark.parametrize("missing", ["N/A", None])
def test_an_apu_without_its_gtt_has_unknown_memory(missing: object) -> None:
    gpu = apu({"target_graphics_version": "gfx1151"}, total_gtt=missing)
    assert (gpu.memory_used, gpu.memory_total, gpu.shared_memory) == (None, None, SharedMemory())
    used_missing = apu({"target_graphics_version": "gfx1151"}, used_gtt=missing)
    assert (used_missing.memory_used, used_missing.memory_total) == (None, 60_512)


def test_an_apu_of_rocm_smi() -> None:
    shared = {"card0": card(GPU_ID="0x1586") | GTT_OF_ROCM_SMI, "card1": card(1) | GTT_OF_ROCM_SMI}
    integrated, discrete = told(part("rocm-smi", shared)).rows
    assert (integrated.memory_used, integrated.memory_total) == (9 * 1024, 96 * 1024)
    assert (discrete.memory_used, discrete.memory_total, discrete.shared_memory) == (8 * 1024, 64 * 1024, None)
    (by_architecture,) = told(part("rocm-smi", {"card0": card(GFX_Version="gfx1103") | GTT_OF_ROCM_SMI})).rows
    assert by_architecture.shared_memory == SharedMemory(total=32 * 1024, used=1024)


def test_a_process_on_an_apu_has_vram_and_gtt() -> None:
    info = {"pid": 7, "name": "x", "memory_usage": {"gtt_mem": value(3 * 2**30, "B"), "vram_mem": value(2**30, "B")}}
    processes = part("amd-smi/processes", [{"gpu": 0, "process_list": [{"process_info": info}]}])

    def read_memory(asic: dict[str, object]) -> float | None:
        (row,) = on(part("amd-smi/static", [static(asic=asic, board={}, vram={})]), processes).rows
        return row.used_memory

    assert read_memory({"target_graphics_version": "gfx1151"}) == 4096
    assert read_memory({"target_graphics_version": "gfx1100"}) == 1024
