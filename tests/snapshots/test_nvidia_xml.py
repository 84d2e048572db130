"""nvidia-smi's XML: the same as its CSV tells, and of a GPU that is cut into instances each of these."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import Gpu, GpuProcessRow, ParsedFile, ToolResult
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers.nvidia_xml import XML_FIELDS
from tests.support.nvidia_xml import LIST, MIG, document, gpu, process, running
from tests.support.samples import list_queried_fields, snapshot


def told(xml: str, listed: str = "", rc: int = 0) -> bytes:
    list_part = f"# part nvidia-xml/list rc=0\n{listed}" if listed else ""
    return f"# part nvidia-xml rc={rc}\n{xml}\n{list_part}".encode()


def read(xml: str, listed: str = "", rc: int = 0) -> ParsedFile[Gpu]:
    return gpu_tools.parse_gpus_of_tools(snapshot("gpus", told(xml, listed, rc), rc))


def on(xml: str, listed: str = "") -> list[tuple[str, int | None]]:
    return [(process_row.gpu_key, process_row.pid) for process_row in read_processes(xml, listed).rows]


def read_processes(xml: str, listed: str = "") -> ParsedFile[GpuProcessRow]:
    return gpu_tools.parse_processes_of_tools(snapshot("processes", told(xml, listed)))


def test_a_gpu_is_reported_under_the_names_of_the_csv() -> None:
    dump = read(document(gpu(1)))
    (parsed_gpu,) = dump.rows
    assert (parsed_gpu.index, parsed_gpu.uuid, parsed_gpu.name) == (0, "GPU-1", "NVIDIA H100 80GB HBM3")
    assert (parsed_gpu.memory_used, parsed_gpu.memory_total, parsed_gpu.utilization_gpu, parsed_gpu.temperature) == (
        1024,
        81559,
        37,
        41,
    )
    assert (parsed_gpu.raw_fields["driver_version"], parsed_gpu.raw_fields["memory.reserved"]) == ("590.48.01", "551")
    assert (parsed_gpu.raw_fields["pci.bus_id"], parsed_gpu.power_draw, parsed_gpu.lost) == (
        "00000000:01:00.0",
        None,
        None,
    )
    assert (dump.problems, dump.messages, dump.tool_results) == ((), (), (ToolResult("nvidia-smi", "nvidia", 0),))


def test_every_field_of_ours_is_asked_of_the_csv_too() -> None:
    """So that a page shows the same of both; what only the XML has is listed here."""
    assert set(XML_FIELDS) - set(list_queried_fields()) <= {"pcie.link.gen.max", "pcie.link.width.max"}


@pytest.mark.parametrize(
    ("readings", "draw", "limit", "enforced"),
    [
        ("<power_readings><power_draw>9 W</power_draw><power_limit>250.00 W</power_limit>"
         "<enforced_power_limit>240.00 W</enforced_power_limit></power_readings>", 9, 250, "240.00"),
        ("<gpu_power_readings><power_draw>67.03 W</power_draw><current_power_limit>400.00 W</current_power_limit>"
         "<requested_power_limit>500.00 W</requested_power_limit></gpu_power_readings>", 67.03, 500, "400.00"),
        ("<gpu_power_readings><average_power_draw>N/A</average_power_draw><instant_power_draw>97.75 W"
         "</instant_power_draw></gpu_power_readings><module_power_readings><average_power_draw>467 W"
         "</average_power_draw></module_power_readings>", 97.75, None, "[N/A]"),
        ("<gpu_power_readings><average_power_draw>8 W</average_power_draw><instant_power_draw>7 W</instant_power_draw>"
         "<gpu_ceiling_power_limit><current_power_limit>70 W</current_power_limit><requested_power_limit>75 W"
         "</requested_power_limit></gpu_ceiling_power_limit></gpu_power_readings>", 8, 75, "70"),
    ],
)  # fmt: skip
def test_power_is_found_by_the_names_of_each_driver(
    readings: str, draw: float, limit: float | None, enforced: str
) -> None:
    (parsed_gpu,) = read(document(gpu(1, readings))).rows
    assert (parsed_gpu.power_draw, parsed_gpu.power_limit, parsed_gpu.raw_fields["enforced.power.limit"]) == (
        draw,
        limit,
        enforced,
    )


@pytest.mark.parametrize("word", ["clocks_event_reason", "clocks_throttle_reason"])
def test_the_reasons_of_the_clocks_are_one_mask_whatever_they_are_called(word: str) -> None:
    active = {"gpu_idle", "hw_thermal_slowdown", "display_clocks_setting"}
    names = ["gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "display_clocks_setting", "news"]
    lines = "".join(f"<{word}_{name}>{'Active' if name in active else 'Not Active'}</{word}_{name}>" for name in names)
    (parsed_gpu,) = read(document(gpu(1, f"<{word}s>{lines}</{word}s>"))).rows
    assert parsed_gpu.raw_fields["clocks_event_reasons.active"] == "0x0000000000000141"
    assert parsed_gpu.health.clock_reasons == 0x141


def test_missing_clock_reasons_are_not_the_same_as_none() -> None:
    (parsed_gpu,) = read(document(gpu(1, "<clocks_throttle_reasons>N/A</clocks_throttle_reasons>"))).rows
    assert parsed_gpu.raw_fields["clocks_event_reasons.active"] == "[N/A]"
    assert parsed_gpu.health.clock_reasons is None


@pytest.mark.parametrize(
    ("errors", "corrected", "uncorrected"),
    [
        ("<single_bit><device_memory>1</device_memory><total>3</total></single_bit>"
         "<double_bit><total>2</total></double_bit>", 3, 2),
        ("<sram_correctable>1</sram_correctable><sram_uncorrectable>2</sram_uncorrectable>"
         "<dram_correctable>3</dram_correctable><dram_uncorrectable>5</dram_uncorrectable>", 4, 7),
        ("<sram_correctable>0</sram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>"
         "<sram_uncorrectable_secded>2</sram_uncorrectable_secded><dram_correctable>0</dram_correctable>"
         "<dram_uncorrectable>4</dram_uncorrectable>", 0, 7),
        ("<sram_correctable>N/A</sram_correctable><dram_correctable>N/A</dram_correctable>", None, None),
    ],
)  # fmt: skip
def test_errors_of_memory_are_added_up_as_each_generation_reports_them(
    errors: str, corrected: int | None, uncorrected: int | None
) -> None:
    (parsed_gpu,) = read(document(gpu(1, f"<ecc_errors><volatile>{errors}</volatile></ecc_errors>"))).rows
    assert (parsed_gpu.health.error_counts.corrected, parsed_gpu.health.error_counts.uncorrected) == (
        corrected,
        uncorrected,
    )


def test_gpus_are_numbered_by_where_they_sit_and_not_by_their_minor_numbers() -> None:
    dump = read(document(gpu(0xB2) + gpu(0x29) + gpu(3, bus="0000:1A:00.0")))
    assert [(parsed_gpu.index, parsed_gpu.uuid) for parsed_gpu in dump.rows] == [
        (0, "GPU-3"),
        (1, "GPU-41"),
        (2, "GPU-178"),
    ]


def test_the_list_is_right_about_numbers() -> None:
    listed = "GPU 2: NVIDIA H100 (UUID: GPU-1)\nGPU 0: NVIDIA H100 (UUID: GPU-2)\n"
    rows = read(document(gpu(1) + gpu(2) + gpu(3)), listed).rows
    assert [(parsed_gpu.index, parsed_gpu.uuid) for parsed_gpu in rows] == [(0, "GPU-2"), (1, "GPU-3"), (2, "GPU-1")]


def test_no_two_gpus_have_the_same_number() -> None:
    lost = "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error\n"
    both = read(lost + document(gpu(2)), "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n").rows
    assert sorted((gpu_row.index, gpu_row.uuid) for gpu_row in both) == [(0, None), (1, "GPU-2")]
    for odd in "<index>0</index>", "<index>N/A</index>":
        parts = read(document(gpu(1, MIG.replace("<index>1</index>", odd))), LIST).rows
        assert [(gpu_row.label, gpu_row.uuid) for gpu_row in parts] == [("0:0", "MIG-a"), ("0:1", "MIG-b")]


def test_an_instance_stands_in_the_place_of_its_gpu() -> None:
    first, second = read(document(gpu(1, MIG)), LIST).rows
    assert (first.index, first.label, first.uuid, first.profile) == (0, "0:0", "MIG-a", "3g.40gb")
    assert (second.label, second.uuid, second.profile) == ("0:1", "MIG-b", "2g.20gb")
    assert (first.memory_used, first.memory_total, second.memory_total) == (26, 40448, 20096)
    assert (first.utilization_gpu, first.temperature, first.power_draw, first.columns) == (None, None, None, ())
    assert first.parent
    assert (first.parent.uuid, first.parent.temperature, first.parent.raw_fields["mig.mode.current"]) == (
        "GPU-1", 41, "Enabled")  # fmt: skip


def test_instances_missing_in_the_list_are_distinct() -> None:
    xml = document(gpu(1, MIG, running(process(7, gi=5, ci=0))))
    first, second = read(xml).rows
    assert (first.uuid, first.profile, first.process_key, second.process_key) == (
        None,
        None,
        "nvidia 0:0",
        "nvidia 0:1",
    )
    assert on(xml) == [("nvidia 0:1", 7)]


def test_the_list_of_an_old_driver_is_understood() -> None:
    listed = "GPU 0: A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb Device 1: (UUID: MIG-GPU-1/5/0)\n"
    assert [(parsed_gpu.uuid, parsed_gpu.profile) for parsed_gpu in read(document(gpu(1, MIG)), listed).rows] == [
        (None, None),
        ("MIG-GPU-1/5/0", "1g.5gb"),
    ]


def test_a_gpu_in_mig_mode_without_instances_is_a_row_itself() -> None:
    mode = "<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>None</mig_devices>"
    (parsed_gpu,) = read(document(gpu(1, mode)), LIST).rows
    assert (parsed_gpu.uuid, parsed_gpu.place, parsed_gpu.raw_fields["mig.mode.current"]) == ("GPU-1", None, "Enabled")


def test_processes_are_on_their_instances() -> None:
    processes = process(1, gi=1, ci=0), process(2, gi=5, ci=0), process(3, gi=5), process(4), process(5, gi=9, ci=0)
    assert on(document(gpu(1, MIG, running(*processes))), LIST) == [
        ("MIG-a", 1),
        ("MIG-b", 2),
        ("MIG-b", 3),
        ("GPU-1", 4),  # which no row has: no instance is called free then
        ("GPU-1", 5),
    ]


@pytest.mark.parametrize(("kind", "counts"), [("C", 1), ("C+G", 1), ("M+C", 1), ("G", 0), ("N/A", 1), ("", 1)])
def test_what_computes_counts_and_what_only_draws_does_not(kind: str, counts: int) -> None:
    assert len(on(document(gpu(1, running(process(42, kind)))))) == counts


def test_one_process_counts_once_and_those_that_hide_their_pid_each() -> None:
    hidden = process("Insufficient Permissions", name="Insufficient Permissions")
    xml = document(gpu(1, running(process(42), process(42), hidden, hidden)) + gpu(2, running(process(42))))
    assert on(xml) == [("GPU-1", 42), ("GPU-1", None), ("GPU-1", None), ("GPU-2", 42)]


def test_processes_of_the_oldest_drivers_are_found() -> None:
    old = "<process_info><pid>42</pid><process_name>a</process_name><used_memory>1 MiB</used_memory></process_info>"
    assert on(document(gpu(1, f"<compute_processes>{old}</compute_processes>"))) == [("GPU-1", 42)]


def test_a_gpu_that_does_not_report_its_processes_is_not_called_empty() -> None:
    for word in "N/A", "Unknown Error", "GPU is lost", "something new":
        dump = read_processes(document(gpu(1, f"<processes>{word}</processes>")))
        assert (dump.rows, dump.unreported) == ((), {"GPU-1": word})
    dump = read_processes(document(gpu(1) + gpu(2, "<processes />")))
    assert (dump.rows, dump.unreported) == ((), {"GPU-1": "nvidia-smi does not list them"})


def test_an_empty_list_of_processes_is_an_answer() -> None:
    dump = read_processes(document(gpu(1, "<processes>\n</processes>") + gpu(2, "<processes />")))
    assert (dump.rows, dump.unreported, dump.tool_results[0].is_complete) == ((), {}, True)


def test_a_process_without_any_value_is_ignored() -> None:
    hidden = re.sub("512 MiB|42|python", "N/A", process(42))
    dump = read_processes(document(gpu(1, running(process(7), hidden)) + gpu(2, MIG, running())), LIST)
    assert [(process_row.gpu_key, process_row.pid) for process_row in dump.rows] == [("GPU-1", 7)]
    assert dump.unreported == {"GPU-1": "nvidia-smi hides one of them"}


def test_a_name_may_hold_anything() -> None:
    names = ["a &amp; b", "a & b", "x < y", "[celeryd: w1] (-A run)", "--handle=1,2,3", "C:\\Program Files\\a b.exe"]
    xml = document(gpu(1, running(*("\n" + process(n, name=name) for n, name in enumerate(names)))))
    assert [parsed_row.name for parsed_row in read_processes(xml).rows] == ["a & b", "a & b", "x < y", *names[3:]]
    assert [parsed_row.uuid for parsed_row in read(xml).rows] == ["GPU-1"]


@pytest.mark.parametrize("word", ["", "N/A", "Not Found", "Function Not Found", "Insufficient Permissions"])
def test_a_name_that_is_not_reported_is_not_available(word: str) -> None:
    (process_row,) = read_processes(document(gpu(1, running(process(1, name=word))))).rows
    assert process_row.name is None


@pytest.mark.parametrize("word", ["GPU is lost", "Unknown Error", "GPU requires reset"])
def test_a_lost_gpu_keeps_its_row_and_the_others_theirs(word: str) -> None:
    lost = re.sub(r">[0-9]+ (MiB|%|C)<", f">{word}<", gpu(1))
    first, second = read(document(lost + gpu(2))).rows
    assert (first.index, first.uuid, first.lost, second.lost) == (0, "GPU-1", word, None)


def test_a_gpu_with_hardly_any_values_is_lost() -> None:
    xml = document('<gpu id="00000000:01:00.0"/>\n<gpu id=""><product_brand>Tesla</product_brand></gpu>\n' + gpu(3))
    rows = read(xml).rows
    assert [parsed_gpu.lost for parsed_gpu in rows] == ["nvidia-smi does not report it"] * 2 + [None]
    assert rows[0].raw_fields["pci.bus_id"] == "00000000:01:00.0"


@pytest.mark.parametrize(("tag", "reading"), [("utilization", "use"), ("fb_memory_usage", "memory")])
def test_readings_that_are_printed_twice_are_none(tag: str, reading: str) -> None:
    (parsed_gpu,) = read(document(gpu(1, f"<{tag}><used>0 MiB</used><gpu_util>0 %</gpu_util></{tag}>"))).rows
    assert parsed_gpu.error == f"its {reading} cannot be read: printed twice"


MESSAGE = "Unable to determine the device handle for GPU1: 0000:02:00.0: Unknown Error\n"


@pytest.mark.parametrize(
    "xml",
    [
        MESSAGE + document(gpu(1) + gpu(3), attached=3),
        document(gpu(1) + MESSAGE + gpu(3), attached=3),
        document(gpu(1) + gpu(3), attached=3) + MESSAGE,
        document(gpu(1) + f'<gpu id="00000000:02:00.0">{MESSAGE}</gpu>' + gpu(3)),
        MESSAGE + document(gpu(1) + '<gpu id="00000000:02:00.0"></gpu>' + gpu(3)),
    ],
    ids=["before", "between", "behind", "within", "with-its-row"],
)
def test_a_message_about_a_gpu_is_a_row_in_its_place(xml: str) -> None:
    dump = read(xml, rc=15)
    assert [(parsed_gpu.index, parsed_gpu.uuid, parsed_gpu.lost) for parsed_gpu in dump.rows] == [
        (0, "GPU-1", None),
        (1, None, "Unknown Error"),
        (2, "GPU-3", None),
    ]
    assert dump.problems == ()


def test_words_around_the_xml_are_words() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:41:00.0"
    dump = read(f"{warning}\n{document(gpu(1) + warning)}{warning}")
    assert [parsed_gpu.uuid for parsed_gpu in dump.rows] == ["GPU-1"]
    assert dump.messages == (warning,) * 3


def test_words_in_the_place_of_xml_are_the_reason() -> None:
    dump = read("No devices were found", rc=6)
    assert (dump.rows, dump.messages, dump.problems) == ((), ("No devices were found",), ())
    assert read_processes("Failed to initialize NVML: Unknown Error").tool_results[0].is_complete is False


def test_messages_in_the_head_are_kept() -> None:
    dump = read(
        "<nvidia_smi_log><attached_gpus>0</attached_gpus><error_string>no driver</error_string></nvidia_smi_log>"
    )
    assert (dump.rows, dump.messages) == ((), ("no driver",))


WHOLE = document(gpu(1) + gpu(2, running(process(42))) + gpu(3))


@pytest.mark.parametrize("place", range(0, len(WHOLE), 7))
def test_a_log_cut_anywhere_keeps_the_gpus_before_the_cut(place: int) -> None:
    """Those that are whole are read; the one that is cut is none, or it could look idle."""
    dump = read(WHOLE[:place])
    whole = WHOLE[:place].count("</gpu>")
    assert [parsed_gpu.uuid for parsed_gpu in dump.rows] == [f"GPU-{n + 1}" for n in range(whole)]
    assert whole == 3 or bool(dump.problems) or place < WHOLE.index("<attached_gpus>3</attached_gpus>") + 32
    if place < len(WHOLE) and whole < 3 and "<gpu" in WHOLE[:place].rpartition("</gpu>")[2]:
        assert read_processes(WHOLE[:place]).tool_results[0].is_complete is False


def test_a_gpu_that_is_broken_costs_itself_alone_and_keeps_its_number() -> None:
    broken = gpu(2).replace("</temperature>", "")
    dump = read(document(gpu(1) + broken + gpu(3)))
    assert [(parsed_gpu.index, parsed_gpu.uuid) for parsed_gpu in dump.rows] == [(0, "GPU-1"), (2, "GPU-3")]
    (what,) = dump.problems
    assert what.startswith("a row has XML that cannot be read (mismatched tag)")
    assert "00000000:02:00.0" in what
    assert dump.has_missing_gpu


def test_a_gpu_without_its_end_costs_itself_alone() -> None:
    dump = read(document(gpu(1).replace("</gpu>", "") + gpu(2)))
    assert [(parsed_gpu.index, parsed_gpu.uuid) for parsed_gpu in dump.rows] == [(1, "GPU-2")]
    assert dump.problems[0].startswith("a row has no end")


def test_fewer_gpus_than_are_attached_are_a_problem() -> None:
    dump = read(document(gpu(1), attached=8))
    assert dump.problems == ("a row is missing: 8 GPUs are attached, but nvidia-smi reports 1",)
    assert dump.has_missing_gpu


def test_a_log_that_is_written_twice_reports_each_gpu_once() -> None:
    dump = read(document(gpu(1) + gpu(2)) * 2)
    assert [parsed_gpu.index for parsed_gpu in dump.rows] == [0, 1]
    assert dump.problems == tuple(f"the GPU at 00000000:0{n}:00.0 is reported twice; the first is used" for n in (1, 2))


def test_a_second_copy_of_a_gpu_that_is_broken_may_have_been_another_gpu() -> None:
    dump = read(document(gpu(1) + gpu(1).replace("</temperature>", ""), attached=1))
    assert [parsed_gpu.uuid for parsed_gpu in dump.rows] == ["GPU-1"]
    assert dump.has_missing_gpu


LAUGHS = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    "xml",
    [
        f"{LAUGHS}<nvidia_smi_log>{gpu(1).replace('NVIDIA H100 80GB HBM3', '&b;')}</nvidia_smi_log>",
        f'<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]>{document(gpu(1).replace("41 C", "&x;"))}',
        document(gpu(1).replace("<uuid>", "<!DOCTYPE x [<!ENTITY a 'b'>]><uuid>")),
    ],
)
def test_entities_are_refused(xml: str) -> None:
    dump = read(xml)
    assert dump.rows == ()
    assert dump.problems == ("it declares entities, which nvidia-smi never does: the file is ignored",)


def test_the_types_of_an_old_head_are_no_words() -> None:
    head = "<!DOCTYPE nvidia_smi_log [\n<!-- v7 -->\n<!ELEMENT gpu (uuid)>\n<!ATTLIST gpu id CDATA #REQUIRED>\n]>\n"
    dump = read(f'<?xml version="1.0" ?>\n{head}<nvidia_smi_log>\n{gpu(1)}</nvidia_smi_log>')
    assert ([parsed_gpu.uuid for parsed_gpu in dump.rows], dump.messages, dump.problems) == (["GPU-1"], (), ())


def test_line_ends_of_windows_do_no_harm() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", told(document(gpu(1))).replace(b"\n", b"\r\n")))
    assert ([parsed_gpu.uuid for parsed_gpu in dump.rows], dump.problems) == (["GPU-1"], ())


SIZE = 1024 * 1024
FLOODS = {
    "deep": document(f'<gpu id="0000:01:00.0">{"<a>" * (SIZE // 3)}'),
    "deep-and-closed": document(f'<gpu id="0000:01:00.0">{"<a>" * 70_000}{"</a>" * 70_000}</gpu>'),
    "gpus": "<gpu>" * (SIZE // 5),
    "gpus-closed": '<gpu id="0000:01:00.0"/>' * (SIZE // 24),
    "comments": "<!--" * (SIZE // 4) + gpu(1),
    "types": "<!DOCTYPE [" * (SIZE // 11) + gpu(1),
    "tags": "<" * SIZE + gpu(1),
    "head": "<a>" * (SIZE // 3) + gpu(1),
    "ands": document(gpu(1, f"<a>{'&' * 400_000}</a>")) * 2,
    "names": document(gpu(1, f"<a>{'<process_name>' * 30_000}</a>")) * 2,
    "words": "Unable to determine the device handle for GPU1: 0000:02:00.0: x\n" * 15_000,
    "instances": document(gpu(1, f"<mig_devices>{'<mig_device/>' * 30_000}</mig_devices>")) * 2,
    "processes": document(gpu(1, running(process(7) * 2000))) * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_takes_bounded_time_and_memory(flood: str) -> None:
    data, listed = told(flood[:SIZE]), told(document(gpu(1)), "GPU 0: " * (SIZE // 8))
    began = time.process_time()
    gpu_tools.parse_gpus_of_tools(snapshot("gpus", data))
    gpu_tools.parse_processes_of_tools(snapshot("processes", data))
    gpu_tools.parse_gpus_of_tools(snapshot("gpus", listed))
    assert time.process_time() - began < 2
    tracemalloc.start()
    gpu_tools.parse_gpus_of_tools(snapshot("gpus", data))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * SIZE


TEXTS = ["", "N/A", "Unknown Error", "GPU is lost", "0", "-1", "1e99", "512 MiB", "<", "&", "&a;", "]]>", "\x00", "é"]
PARTS = st.sampled_from(
    [line for line in re.split(r"(?<=>)", document(gpu(1, MIG, running(process(42, gi=1, ci=0))) + gpu(2))) if line]
)
ANY = st.one_of(
    PARTS,
    st.sampled_from(["<gpu>", "</gpu>", "<gpu id='", "<!--", "-->", "<![CDATA[", "<?x", MESSAGE, LIST, "\n# part "]),
    st.sampled_from(TEXTS),
    st.text(max_size=20),
)


@given(st.lists(ANY, max_size=60), st.lists(st.one_of(st.sampled_from(LIST.split("\n")), st.text()), max_size=5))
def test_nothing_makes_the_reader_fail(parts: list[str], listed: list[str]) -> None:
    body = "".join(parts).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    lines = "\n".join(listed).encode("utf-8", "replace").decode()
    for parsed_gpu in read(body, lines).rows:
        assert parsed_gpu.memory_used is None or parsed_gpu.memory_used >= 0
        assert parsed_gpu.parent is None or parsed_gpu.utilization_gpu is None
    read_processes(body, lines)


MUTABLE = [line for line in re.split(r"(?<=>)", document(gpu(1, MIG) + gpu(2, running(process(42))) + gpu(3))) if line]


@given(st.data())
def test_real_shapes_that_are_damaged_lose_no_more_than_is_damaged(data: st.DataObject) -> None:
    """Elements are dropped, doubled, moved or filled with something else: a GPU is read right, or it is none."""
    pieces = list(MUTABLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(pieces) - 1))
        act = data.draw(st.sampled_from(["drop", "double", "move", "fill"]))
        if act == "drop":
            del pieces[place]
        elif act == "double":
            pieces.insert(place, pieces[place])
        elif act == "move":
            pieces.insert(data.draw(st.integers(0, len(pieces) - 1)), pieces.pop(place))
        else:
            pieces.insert(place, data.draw(st.sampled_from(TEXTS)))
    dump = read("".join(pieces), LIST)
    assert len(dump.rows) <= 5
    for parsed_gpu in dump.rows:
        assert parsed_gpu.memory_used in {None, 0, 512, 1024, 26, 17, 1, 551, 81559, 40448, 20096, 9}
    if len(dump.rows) < 4:
        assert dump.problems or "attached" in "".join(pieces)
