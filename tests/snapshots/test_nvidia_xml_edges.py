"""nvidia-smi's XML at its edges: errors anywhere in a GPU, instances, limits, and what stands around the GPUs."""

from __future__ import annotations

import pytest

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.snapshots.envelope import SnapshotPart, ToolOutput
from site_builder.snapshots.parsers import nvidia_xml
from site_builder.snapshots.parsers.nvidia_xml import MAX_GPUS, MAX_PROCESSES, xml_bus_sort_key, xml_value_to_csv_cell
from tests.support.nvidia_xml import document

LIVE = "<fb_memory_usage><total>81559 MiB</total><used>1024 MiB</used></fb_memory_usage>"


def device(*elements: str, number: int = 1) -> str:
    return f'<gpu id="00000000:{number:02X}:00.0">\n<uuid>GPU-{number}</uuid>{"".join(elements)}</gpu>\n'


def parts_of(text: str, listed: str = "") -> dict[str, SnapshotPart]:
    return {name: SnapshotPart(0, body.split("\n")) for name, body in (("", text), ("list", listed)) if body}


def parsed_gpus(text: str, listed: str = "") -> ToolOutput[Gpu]:
    return nvidia_xml.parse_nvidia_xml_gpus(parts_of(text, listed))


def parsed_gpu(*elements: str) -> Gpu:
    (gpu,) = parsed_gpus(document(device(*elements))).rows
    return gpu


def parsed_processes(text: str) -> ToolOutput[GpuProcessRow]:
    return nvidia_xml.parse_nvidia_xml_processes(parts_of(text))


def process(pid: object, kind: str = "C", gi: object = "N/A", ci: object = "N/A", name: str = "python") -> str:
    return (
        f"<process_info><gpu_instance_id>{gi}</gpu_instance_id><compute_instance_id>{ci}</compute_instance_id>"
        f"<pid>{pid}</pid><type>{kind}</type><process_name>{name}</process_name>"
        "<used_memory>512 MiB</used_memory></process_info>\n"
    )


def running(*processes: str) -> str:
    return f"<processes>\n{''.join(processes)}</processes>\n"


def instance(index: object, gi: int, ci: int = 0, memory: str = "26 MiB", more: str = "") -> str:
    return (
        f"<mig_device><index>{index}</index><gpu_instance_id>{gi}</gpu_instance_id>"
        f"<compute_instance_id>{ci}</compute_instance_id><fb_memory_usage><total>40448 MiB</total>"
        f"<used>{memory}</used></fb_memory_usage>{more}</mig_device>"
    )


def mig(*instances: str) -> str:
    return f"<mig_devices>{''.join(instances)}</mig_devices>"


# Errors


@pytest.mark.parametrize(
    ("element", "error"),
    [
        (LIVE.replace("</used>", "</used><reserved>ERR!</reserved>"), "memory cannot be read"),
        ("<utilization><encoder_util>ERR!</encoder_util></utilization>", "use cannot be read"),
        ("<temperature><gpu_temp_max_threshold>Timeout</gpu_temp_max_threshold></temperature>", "temperature cannot"),
        ("<clocks><graphics_clock>Timeout</graphics_clock></clocks>", None),
    ],
)
def test_an_error_in_an_element_that_is_no_column_counts(element: str, error: str | None) -> None:
    gpu = parsed_gpu(LIVE, element)
    assert gpu.lost is None
    assert gpu.error is None if error is None else error in str(gpu.error)


def test_the_error_of_a_column_comes_first() -> None:
    gpu = parsed_gpu(
        "<fb_memory_usage><used>ERR!</used></fb_memory_usage>",
        "<temperature><gpu_temp>41 C</gpu_temp><x>Timeout</x></temperature>",
    )
    assert gpu.error == "its memory cannot be read: ERR!"


def test_a_word_in_any_element_but_those_of_users_says_that_a_gpu_is_lost() -> None:
    assert parsed_gpu(LIVE, "<clocks><sm_clock>GPU is lost</sm_clock></clocks>").lost == "GPU is lost"
    assert parsed_gpu(LIVE, "<ecc_mode>GPU requires reset</ecc_mode>").lost == "GPU requires reset"
    assert parsed_gpu(LIVE, "<encoder_stats><session_count>GPU is lost</session_count></encoder_stats>").lost == (
        "GPU is lost"
    )
    assert parsed_gpu(LIVE, running(process(1, name="all is lost"))).lost is None


def test_an_element_that_is_printed_twice_and_is_no_reading_is_no_error() -> None:
    gpu = parsed_gpu(LIVE, "<encoder_stats/><encoder_stats/>")
    assert (gpu.memory_used, gpu.error, gpu.lost) == (1024, None, None)


@pytest.mark.parametrize("reading", [LIVE, "<utilization><gpu_util>0 %</gpu_util></utilization>"])
def test_a_gpu_with_one_live_reading_is_not_lost_without_its_name_and_uuid(reading: str) -> None:
    (gpu,) = parsed_gpus(document(f'<gpu id="00000000:01:00.0">{reading}</gpu>')).rows
    assert gpu.lost is None
    (gpu,) = parsed_gpus(document('<gpu id="00000000:01:00.0"></gpu>')).rows
    assert gpu.lost == nvidia_xml.NO_DATA_MESSAGE


def test_a_message_in_a_gpu_is_why_it_is_lost() -> None:
    handle = "Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error."
    (gpu,) = parsed_gpus(document(f'<gpu id="00000000:01:00.0">{handle}\n{LIVE}</gpu>')).rows
    assert gpu.lost == "Unknown Error"
    output = parsed_gpus(document(device(LIVE)) + handle.replace("GPU ", "GPU5: "))
    assert [(gpu.index, gpu.lost) for gpu in output.rows] == [(5, "Unknown Error")]


def test_a_message_about_a_gpu_without_its_number_is_a_row_too() -> None:
    message = "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error\n"
    rows = parsed_gpus(message + document(device(LIVE))).rows
    assert [(gpu.index, gpu.uuid, gpu.lost) for gpu in rows] == [(0, "GPU-1", None), (1, None, "Unknown Error")]


def test_messages_about_gpus_whose_addresses_are_cut_are_a_row_each() -> None:
    message = "Unable to determine the device handle for GPU{}: 0000:0{}: Unknown Error\n"
    rows = parsed_gpus(message.format(1, 1) + message.format(2, 2)).rows
    assert [(gpu.index, gpu.lost) for gpu in rows] == [(1, "Unknown Error"), (2, "Unknown Error")]


# Instances


def test_instances_have_their_own_numbers_memory_and_errors() -> None:
    listed = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n  MIG 1g.10gb     Device  3: (UUID: MIG-c)\n"
    instances = mig(instance(3, 1), instance(1, 2, memory="ERR!"), instance(2, 3, more="<x>GPU is lost</x>"))
    name = "<product_name>NVIDIA H100</product_name>"
    rows = parsed_gpus(document(device(LIVE, name, instances)), listed).rows
    assert [(row.place, row.uuid, row.profile, row.name) for row in rows] == [
        ("0:3", "MIG-c", "1g.10gb", "NVIDIA H100"),
        ("0:1", None, None, "NVIDIA H100"),
        ("0:2", None, None, "NVIDIA H100"),
    ]
    assert [(row.memory_used, row.error, row.lost) for row in rows] == [
        (26, None, None),
        (None, "its memory cannot be read: ERR!", None),
        (26, None, "GPU is lost"),
    ]


def test_the_instances_of_a_lost_gpu_are_lost() -> None:
    rows = parsed_gpus(document(device(LIVE, "<ecc_mode>GPU is lost</ecc_mode>", mig(instance(0, 1))))).rows
    assert [row.lost for row in rows] == ["GPU is lost"]


def test_a_gpu_has_at_most_64_instances() -> None:
    text = document(device(LIVE, mig(*(instance(number, number) for number in range(65)))))
    assert len(parsed_gpus(text).rows) == 64


def test_two_compute_instances_of_one_gpu_instance_have_their_own_processes() -> None:
    processes = running(process(7, gi=1, ci=0), process(8, gi=1, ci=1), process(9, gi=1, ci=2), process(10, gi=4))
    text = document(device(LIVE, mig(instance(0, 1, 0), instance(1, 1, 1)), processes))
    first, second = (row.process_key for row in parsed_gpus(text).rows)
    keys = [(row.gpu_key, row.pid) for row in parsed_processes(text).rows]
    assert keys == [(first, 7), (second, 8), ("GPU-1", 9), ("GPU-1", 10)]


# Processes


def test_what_only_draws_hides_no_process_behind_it() -> None:
    text = document(device(LIVE, running(process(7, "G"), process(8, "C"), process(9, "C+G"), process(10, "N/A"))))
    assert [row.pid for row in parsed_processes(text).rows] == [8, 9, 10]


def test_ten_thousand_processes_on_all_gpus_count_and_more_are_a_problem() -> None:
    thousand = [process(pid) for pid in range(1000)]
    nine = "".join(device(running(*thousand), number=number) for number in range(9))
    for more in (0, 1):
        output = parsed_processes(document(nine + device(running(*thousand, *[process(1000)] * more), number=9)))
        problem = f"more than {MAX_PROCESSES} processes are reported; only the first {MAX_PROCESSES} are used"
        assert (len(output.rows), output.problems) == (MAX_PROCESSES, [problem] * more)


def test_long_words_in_the_place_of_processes_are_cut() -> None:
    output = parsed_processes(document(device(LIVE, f"<processes>{'x' * 100}</processes>")))
    assert len(output.unreported["GPU-1"]) <= 80


def test_a_name_with_tags_in_it_is_escaped() -> None:
    names = ["a <b> c", "<process_name>x</process_name>", ""]
    text = document(device(LIVE, running(*(process(7 + number, name=name) for number, name in enumerate(names)))))
    assert [row.name for row in parsed_processes(text).rows] == ["a <b> c", "<process_name>x</process_name>", None]


def test_a_name_that_must_be_escaped_leaves_the_list_of_processes_complete() -> None:
    element = process(7, name="a < b & c").replace("<process_name>", "\n<process_name>")
    output = parsed_processes(document(device(LIVE, running(element, process(8)))))
    assert [(row.pid, row.name) for row in output.rows] == [(7, "a < b & c"), (8, "python")]
    assert (output.unreported, output.messages, output.problems) == ({}, [], [])


# Around the GPUs


@pytest.mark.parametrize("name", ["driver_version", "kmd_version"])
def test_the_driver_stands_in_the_head(name: str) -> None:
    text = f"<nvidia_smi_log><{name}>570.1 [x]</{name}>{device(LIVE)}</nvidia_smi_log>"
    assert [gpu.health.driver for gpu in parsed_gpus(text).rows] == ["570.1"]


@pytest.mark.parametrize(("attached", "is_missing"), [("1", False), ("2", True), ("1000", True), ("10000", False)])
def test_gpus_that_are_attached_and_not_reported_are_missing(attached: str, is_missing: bool) -> None:
    text = f"<nvidia_smi_log><attached_gpus>{attached}</attached_gpus>{device(LIVE)}</nvidia_smi_log>"
    output = parsed_gpus(text)
    problem = f"a row is missing: {attached} GPUs are attached, but nvidia-smi reports 1"
    assert (output.has_missing_gpu, output.problems) == (is_missing, [problem] if is_missing else [])


@pytest.mark.parametrize(
    ("head", "messages"),
    [
        ("<!-- a > b -->words", ["words"]),
        ("<!-- a --> b <!-- c -->", ["b"]),
        ("<!DOCTYPE a SYSTEM 'x'>words", ["words"]),
        ("<!DOCTYPE a [\n<!ELEMENT b (c)>\n]>words", ["words"]),
        ("<!-- a > b --> c <!-- d > e -->", ["c"]),
        ("<!DOCTYPE a>words [<b>] ]>", ["words [] ]>"]),
        ("[x] <!DOCTYPE a>words ]>", ["[x] words ]>"]),
        ("]> <!DOCTYPE a [\n<!ELEMENT b (c)>\n]>words ]>", ["]> words ]>"]),
        ("words <!-- that never end", ["words <!-- that never end"]),
    ],
)
def test_comments_and_types_are_no_messages(head: str, messages: list[str]) -> None:
    output = parsed_gpus(head + "\n" + device(LIVE))
    assert (output.messages, len(output.rows)) == (messages, 1)


def test_without_its_xml_a_list_of_gpus_is_nothing() -> None:
    output = parsed_gpus("", "GPU 0: NVIDIA H100 (UUID: GPU-1)")
    assert (output.rows, output.messages, output.problems) == ((), [], [])


def test_tags_behind_a_gpu_are_no_part_of_it() -> None:
    output = parsed_gpus(document(device(LIVE) + "<topology/>\n" + device(LIVE, number=2) + "words</gpu>"))
    assert [gpu.uuid for gpu in output.rows] == ["GPU-1", "GPU-2"]
    assert (output.messages, output.problems) == (["words"], [])


@pytest.mark.parametrize("cut", ['<gpu id="00000000:02:00.0"\n', '<gpu id="00000000:02:00.0"><uuid>GPU-2</uuid><x/>\n'])
def test_nothing_of_a_gpu_without_its_end_is_a_message_or_another_gpu(cut: str) -> None:
    whole = device(LIVE), device(LIVE, number=3)
    output = parsed_gpus(document(whole[0] + cut + whole[1]))
    assert [gpu.uuid for gpu in output.rows] == ["GPU-1", "GPU-3"]
    assert output.messages == []
    assert output.problems == ["a row has no end and is ignored: the GPU 00000000:02:00.0"]
    output = parsed_gpus(device(LIVE) + cut + '<gpu id="00000000:03:00.0"/>')
    assert [gpu.bus_id for gpu in output.rows] == ["00000000:01:00.0", "00000000:03:00.0"]
    assert output.problems == ["a row has no end and is ignored: the GPU 00000000:02:00.0"]


def test_of_more_gpus_than_any_host_has_the_first_count() -> None:
    short = '<gpu id="x"/>'
    output = parsed_gpus(short * MAX_GPUS)
    assert (len(output.rows), output.problems) == (MAX_GPUS, [])
    output = parsed_gpus(short * (MAX_GPUS + 2))
    assert len(output.rows) == MAX_GPUS
    assert output.problems == [f"more than {MAX_GPUS} GPUs are reported; only the first {MAX_GPUS} are used"]


def test_a_gpu_of_half_a_megabyte_is_used() -> None:
    length = nvidia_xml.MAX_GPU_CHARACTERS - len(device("<x></x>").strip())
    assert [gpu.uuid for gpu in parsed_gpus(device(f"<x>{'y' * length}</x>")).rows] == ["GPU-1"]
    (problem,) = parsed_gpus(device(f"<x>{'y' * (length + 1)}</x>")).problems
    assert "512 KiB of XML, which is too large" in problem


def test_a_gpu_of_more_than_half_a_megabyte_is_left_out() -> None:
    output = parsed_gpus(device(f"<x>{'y' * 600 * 1024}</x>") + device(LIVE, number=2))
    assert [gpu.uuid for gpu in output.rows] == ["GPU-2"]
    assert output.problems == ["a row has 600 KiB of XML, which is too large and is ignored: the GPU 00000000:01:00.0"]


def test_a_broken_gpu_without_an_address_is_named_so() -> None:
    (problem,) = parsed_gpus("<gpu><x></gpu>" + device(LIVE)).problems
    assert problem == (
        "a row has XML that cannot be read (mismatched tag) and is ignored: the GPU with an unknown bus id"
    )


def test_an_address_is_the_same_with_more_zeros() -> None:
    assert xml_bus_sort_key("00000000:1A:00.0") == xml_bus_sort_key("0000:1a:00.0") == (0, 26, 0, 0)
    assert xml_bus_sort_key("x") == ()


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        (None, ""),
        (" 7 MiB ", "7"),
        ("N/A", "[N/A]"),
        ("16x", "16"),
        ("1x", "1"),
        ("x", "x"),
        ("1.5x", "1.5x"),
        ("16X", "16X"),
        ("y" * 300, "y" * 200),
    ],
)
def test_a_value_is_written_as_the_csv_has_it(text: str | None, cell: str) -> None:
    assert xml_value_to_csv_cell(text) == cell


@pytest.mark.parametrize(
    ("states", "mask"),
    [
        ({"gpu_idle": "Active", "sw_power_cap": "Not Active"}, 1),
        ({"gpu_idle": "Active", "hw_slowdown": "Active"}, 9),
        ({"gpu_idle": "Not Active"}, 0),
        ({"gpu_idle": "N/A"}, None),
        ({"unheard_of": "Active"}, None),
    ],
)
def test_the_reasons_of_a_clock_make_a_mask(states: dict[str, str], mask: int | None) -> None:
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = "".join(f"<{name[:-1]}_{reason}>{state}</{name[:-1]}_{reason}>" for reason, state in states.items())
        assert parsed_gpu(LIVE, f"<{name}>{reasons}</{name}>").health.clock_reasons == mask


def test_a_number_of_one_element_is_kept_as_it_is_printed() -> None:
    assert parsed_gpu("<serial>012345678901</serial>").raw_fields["serial"] == "012345678901"


@pytest.mark.parametrize("errors", ["", "<ecc_errors><volatile><dram_correctable/></volatile></ecc_errors>"])
def test_a_sum_of_elements_that_are_not_printed_or_empty_has_no_value(errors: str) -> None:
    gpu = parsed_gpu(LIVE, errors)
    assert gpu.raw_fields["ecc.errors.corrected.volatile.total"] == nvidia_xml.NOT_AVAILABLE_CELL
    assert gpu.health.error_counts.corrected is None
