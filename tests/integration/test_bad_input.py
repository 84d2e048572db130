"""Bad input, each in a whole build: a clear problem, everything else shown, nothing lost, nothing outside read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from site_builder.board.builder import BuildReport
from tests.support.board_fixture import GPU_COLUMNS, PROCESS_COLUMNS, Lab, gpu, person, process, soon, words
from tests.support.pace import within

SCRIPT = "<script>alert('x')</script>"
ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab with a good host, which must be shown whatever else there is."""
    made = Lab(tmp_path)
    made.host("good", gpu(0, 7000, 97, uuid="GPU-good"), process(1, "GPU-good"), person(1, "alice"))
    return made


def build(lab: Lab) -> BuildReport:
    report = lab.build()
    assert lab.states("good") == ["busy"]
    assert "<b>alice</b>" in lab.page()
    return report


# Names and files


@pytest.mark.parametrize("name", ['a b"<x>', "x" * 200, "..x", "a\x1b[31mb", "é"])
def test_a_folder_that_cannot_be_a_host(lab: Lab, name: str) -> None:
    (lab.data / name).mkdir()
    (lab.data / name / "host.txt").write_text("x")
    if name.startswith("."):  # as all that begins with a dot, it is nobody's business
        assert build(lab).problems == []
        return
    assert words(build(lab)) == f"data/{name[:80]!a}: its name is not a valid host name"
    assert "\x1b" not in lab.page()
    assert "<x>" not in lab.page()


def test_a_host_in_a_list_or_a_booking_that_would_lead_elsewhere(lab: Lab) -> None:
    (lab.data / "hosts.txt").write_text("../../etc, evil\n")
    (lab.data / "hosts.json").write_text('{"../../etc": "x", "a b": "y"}')
    lab.book({"../../etc": [{"name": "x", "date": soon(900)}]})
    problem_text = words(build(lab))
    assert "data/hosts.txt: line 1: '../../etc' is not a host name" in problem_text
    assert "data/comments.json: no host ../../etc" in problem_text
    assert len(lab.status()["hosts"]) == 1


def test_links_in_data_are_not_followed(lab: Lab, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "host.txt").write_text("secret")
    (outside / "comments.json").write_text('{"good": [{"name": "secret", "date": "2199-01-01"}]}')
    (lab.data / "evil").symlink_to(outside)
    (lab.data / "comments.json").symlink_to(outside / "comments.json")
    (lab.data / "hosts.txt").symlink_to("/etc/passwd")
    (lab.data / "good/ps.txt").unlink()
    (lab.data / "good/ps.txt").symlink_to("/etc/passwd")
    report = lab.build()
    assert [problem.where for problem in report.problems] == [
        "data/'comments.json'",
        "data/'evil'",
        "data/'hosts.txt'",
        "data/comments.json",
        "data/good/ps.txt",
        "data/hosts.txt",
    ]
    assert all("links are not followed" in problem.what for problem in report.problems)
    assert "secret" not in lab.page()
    assert "root:" not in lab.page()
    assert lab.states("good") == ["busy"]


@pytest.mark.parametrize("file", ["good/gpus.csv", "comments.json", "aliases.csv", "gpu-names.csv", "hosts.txt"])
def test_a_file_of_200_mb_is_refused(lab: Lab, file: str) -> None:
    lab.build()
    path = lab.data / file
    path.touch()
    os.truncate(path, 200_000_000)
    with within(3):
        assert "200000000 bytes, and the limit is" in words(build(lab))


def test_nul_bytes_invalid_utf_8_and_terminal_escapes_are_replaced(lab: Lab) -> None:
    lab.host("odd", gpu(0, 7000, 97), process(42), "")
    row = person(42, "b\udcffb", "py\x00thon \x1b[31mred\x1b]0;title\x07 caf\udce9")
    lab.host("odd", gpu(0, 7000, 97), process(42), row)
    build(lab)
    (found,) = lab.host_status("odd")["gpus"][0]["processes"]
    assert (found["user"], found["command"]) == ("b\ufffdb", "py?thon ?[31mred?]0;title? caf\ufffd")
    assert "\x00" not in lab.page()
    assert "\x1b" not in lab.page()


def test_a_file_of_nul_bytes_is_a_problem(lab: Lab) -> None:
    (lab.data / "zero").mkdir()
    (lab.data / "zero/host.txt").write_bytes(b"\0" * 4096)
    assert "data/zero/host.txt: the first line is not a gpuboard snapshot header" in words(build(lab))
    assert lab.host_status("zero")["state"] == "unseen"


def test_markup_is_escaped_in_every_text(lab: Lab) -> None:
    facts = f"disk=10 5 /{SCRIPT}\ndisk_use=9G /{SCRIPT}\nload=1 1 1\n"
    ps = person(42, SCRIPT, SCRIPT, container=SCRIPT)
    lab.host("odd", gpu(0, 7000, 97, SCRIPT) + gpu(1), process(42, name=SCRIPT), ps, facts)
    lab.write("broken", "gpus.csv", f"{SCRIPT}\n", rc=9)
    lab.write("broken", "host.txt")
    (lab.data / "hosts.txt").write_text(f"odd, {SCRIPT}, {SCRIPT}\ngone, maintenance: {SCRIPT}\n")
    lab.book(
        {"odd": [{"name": SCRIPT, "date": soon(900), "comment": SCRIPT}], SCRIPT: [{"name": "x", "date": soon(9)}]}
    )
    build(lab)
    page = lab.page()
    assert page.count("<script") == page.count('<script src="assets/')  # our own
    assert page.count(ESCAPED) >= 12
    assert lab.host_status("odd")["gpus"][0]["processes"][0]["command"] == SCRIPT


def test_a_table_of_500_columns_is_parsed(lab: Lab) -> None:
    names = ", ".join(f"new.{n}" for n in range(500))
    values = ", ".join("1" for _ in range(500))
    lab.host("wide")
    lab.write("wide", "gpus.csv", f"{names}, {GPU_COLUMNS}\n{values}, {gpu(0, uuid='GPU-w')}")
    assert (words(build(lab)), lab.states("wide")) == ("", ["free"])


def test_10_000_processes_are_counted_and_twenty_shown(lab: Lab) -> None:
    many = range(10, 10_010)
    lab.host(
        "many",
        gpu(0, 70_000, 97),
        "".join(process(pid, memory=7) for pid in many),
        "".join(person(pid) for pid in many),
    )
    with within(5):
        build(lab)
    assert "and 9980 more processes" in lab.page()
    assert len(lab.host_status("many")["gpus"][0]["processes"]) == 10_000


def told_as_xml(lab: Lab, host: str, xml: str) -> None:
    """A host that tells this as XML, GPUs and processes alike."""
    lab.host(host)
    for file in "gpus.csv", "processes.csv":
        lab.write(host, file, f"# part nvidia-xml rc=0\n{xml}\n")


def test_xml_with_markup_and_xml_that_declares_entities(lab: Lab) -> None:
    odd = "&lt;script>alert('x')&lt;/script>"
    device = (
        f"<product_name>{odd}</product_name><uuid>GPU-x</uuid><fb_memory_usage><used>9 MiB</used></fb_memory_usage>"
    )
    info = f"<processes><process_info><pid>7</pid><process_name>{odd}</process_name></process_info></processes>"
    told_as_xml(lab, "odd", f'<nvidia_smi_log><gpu id="0000:01:00.0">{device}{info}</gpu></nvidia_smi_log>')
    told_as_xml(lab, "bomb", f'<!DOCTYPE x [<!ENTITY a "ha">]><x><gpu id="0000:01:00.0">{device}</gpu></x>')
    empty = device.replace("GPU-x", "GPU-y") + "<processes></processes>"
    told_as_xml(lab, "cut", f'<x><gpu id="0000:01:00.0">{empty}</gpu><gpu id="0000:02:00.0">')
    problem_text = words(build(lab))
    assert "data/bomb/gpus.csv: it declares entities, which nvidia-smi never does: the file is ignored" in problem_text
    assert "data/cut/gpus.csv: a row has no end and is ignored: the GPU 0000:02:00.0" in problem_text
    assert (lab.states("odd"), lab.states("cut"), lab.host_status("bomb")["state"]) == (["busy"], ["unknown"], "failed")
    assert lab.host_status("odd")["gpus"][0]["name"] == SCRIPT
    assert lab.page().count("<script") == lab.page().count('<script src="assets/')


def test_the_busier_row_of_a_gpu_listed_twice_counts(lab: Lab) -> None:
    lab.host("twice", gpu(0, 7000, 97, uuid="GPU-t") + gpu(0, 4, 0, uuid="GPU-t"))
    assert words(build(lab)) == "data/twice/gpus.csv: the GPU GPU-t is reported twice; the busier row is used"
    assert lab.states("twice") == ["busy"]


def test_the_same_uuid_on_two_hosts_is_a_problem(lab: Lab) -> None:
    lab.host("thief", gpu(0, uuid="GPU-good"))
    assert words(build(lab)) == "data/thief/gpus.csv: good also reports the GPU GPU-good"
    assert lab.states("thief") == ["free"]


def test_the_host_of_another_host(lab: Lab) -> None:
    shutil.copytree(lab.data / "good", lab.data / "liar")
    problem_text = words(build(lab))
    assert "data/liar/gpus.csv: it says host=good, which does not match its folder, and is ignored" in problem_text
    assert lab.host_status("liar")["gpus"] == []


def test_a_clock_a_year_ahead(lab: Lab) -> None:
    lab.host("future", gpu(0, 7000, 97), process(42), person(42, elapsed=600), time=int(time.time()) + 31_536_000)
    problem_text = words(build(lab))
    assert "future: the clock of this host is 365 d ahead" in problem_text
    assert (lab.states("future"), lab.host_status("future")["age"] < 60) == (["busy"], True)
    assert abs(lab.host_status("future")["gpus"][0]["processes"][0]["started"] - (time.time() - 600)) < 60


def test_a_clock_a_year_ahead_does_not_keep_a_dead_host_alive(lab: Lab) -> None:
    lab.host("future", time=int(time.time()) + 31_536_000)
    lab.build(after=900)
    assert lab.host_status("future")["state"] == "down"


def test_intervals_that_would_keep_a_dead_host_alive(lab: Lab) -> None:
    lab.host("slow", every=999_999)
    lab.build(after=900)
    assert lab.host_status("slow")["state"] == "down"


# comments.json

LONG = {"good": [{"name": "alice", "date": "2199-01-01", "comment": "ICML"}]}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            '{"good": [{"name": "alice", "da',
            "not read: line 1, column 29: this text has no closing quotation mark",
        ),
        (
            '{"good": [\n{"name": "alice"}\n',
            "not read: line 3, column 1: a comma or a closing bracket is missing before this",
        ),
        ("[]", "not read: it must be an object of hosts: {host: [ … ]}"),
        ("", "not read: it is empty; write {} where there are no bookings"),
        ('{"good": ' + "[" * 100_000, "not read: it is nested too deeply to be read"),
        ('{"x": "' + "y" * 50_000_000 + '"}', "not read: it has 50000009 bytes, and the limit is 4194304"),
    ],
    ids=["cut in half", "cut at a line", "a list", "empty", "deep", "50 MB"],
)
def test_a_file_that_cannot_be_read_leaves_the_last_good_bookings(lab: Lab, content: str, what: str) -> None:
    lab.book(LONG)
    lab.build()
    lab.book(content)
    problem_text = words(build(lab))
    assert problem_text.startswith(f"data/comments.json: {what}; its content of ")
    assert "is used" in problem_text
    assert "ICML" in lab.page()


def test_doubled_keys_are_reported(lab: Lab) -> None:
    lab.book('{"good": {"0": {"name": "a", "date": "2199-01-01"}, "0": {"name": "b", "date": "2199-01-01"}}}')
    assert words(build(lab)) == 'data/comments.json: the key "0" occurs twice; the last one counts'
    assert "<b>b</b> until" in lab.page()


def test_a_booking_for_gpu_99_or_an_unknown_host(lab: Lab) -> None:
    lab.book({"good": {"99": {"name": "a", "date": soon(900)}}, "goood": [{"name": "a", "date": soon(900)}]})
    assert words(build(lab)).splitlines() == [
        "data/comments.json: good has no GPU 99, only GPU 0",
        "data/comments.json: no host goood; did you mean good?",
    ]


@pytest.mark.parametrize(
    ("date", "what"),
    [
        ("5h", 'the date "5h" is not a full date: write year, month and day'),
        ("10", 'the date "10" is not a full date: write year, month and day'),
        (
            "03/04/2027",
            'the date "03/04/2027" could be 4 March or 3 April: write 2027-03-04 or 2027-04-03',
        ),
        ("2027-05-05 10:00 XYZ", 'the date "2027-05-05 10:00 XYZ" names an unknown time zone: XYZ'),
    ],
)
def test_dates_that_cannot_be_known(lab: Lab, date: str, what: str) -> None:
    lab.book({"good": [{"name": "a", "date": date}]})
    assert words(build(lab)) == f"data/comments.json: line 1, good, GPU 0: {what}"


def test_a_date_in_cet_is_in_cet(lab: Lab) -> None:
    lab.book({"good": [{"name": "a", "date": "2199-01-10 10:00 CET"}]})
    assert words(build(lab)) == ""
    assert lab.host_status("good")["gpus"][0]["bookings"][0]["date"] == "2199-01-10T10:00:00+01:00"


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("FREQ=SOMETIMES", "cannot be understood: write FREQ=DAILY, WEEKLY, MONTHLY or YEARLY first"),
        ("FREQ=SECONDLY", "repeats too often: once a day at most"),
        (
            "FREQ=DAILY;BYEASTER=1",
            "has BYEASTER, but only FREQ, INTERVAL, COUNT, UNTIL, WKST, BYDAY, BYMONTHDAY are supported",
        ),
        ("FREQ=DAILY;INTERVAL=0", "has INTERVAL=0, which cannot be understood"),
        ("FREQ=MONTHLY;BYMONTHDAY=30", "has BYMONTHDAY=30, which cannot be understood"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", "would never, or hardly ever, occur again"),
        ("FREQ=MONTHLY;BYDAY=4MO;BYMONTHDAY=1", "would never, or hardly ever, occur again"),
        ("FREQ=DAILY;UNTIL=22010102T000000Z", "has UNTIL=22010102T000000Z, which is outside the years 1970 to 2200"),
        ("FREQ=DAILY;UNTIL=20261332", "has UNTIL=20261332T235959Z, which cannot be understood"),
    ],
)
def test_an_rrule_that_cannot_be_followed(lab: Lab, rule: str, what: str) -> None:
    lab.book({"good": [{"name": "bob", "from": "1970-01-01", "date": "2199-01-02", "rrule": rule}]})
    problem_text = f'the rrule "{rule}" {what}; the booking counts once'
    assert words(build(lab)) == f"data/comments.json: line 1, good, GPU 0: {problem_text}"
    assert "<b>bob</b>" in lab.page()


@pytest.mark.parametrize(
    "rule", ["FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,TU", "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=YEARLY;INTERVAL=999"]
)
@pytest.mark.parametrize("since", ["0002-01-01", "1970-01-01", "2199-12-30", "9998-01-01"])
def test_an_rrule_from_long_ago_or_far_ahead_costs_no_time(lab: Lab, rule: str, since: str) -> None:
    lab.book({"good": [{"name": "a", "from": f"{since} 08:00", "date": f"{since} 09:00", "rrule": rule}]})
    with within(2):
        build(lab)


def test_a_lone_surrogate_breaks_nothing(lab: Lab) -> None:
    lab.book('{"good": [{"name": "a\\ud800b", "date": "2199-01-01", "comment": "\\udfff"}]}')
    build(lab)
    assert lab.host_status("good")["gpus"][0]["bookings"][0]["name"] == "a?b"


# What would hold the builder up, or fill its memory


@pytest.mark.parametrize(
    "text", ['{"a":' + "/* " * 500_000, '{"a":' + '"\\' * 500_000, "{" + ", " * 500_000, '"' * 500_000]
)
def test_a_booking_file_that_is_made_to_be_slow(lab: Lab, text: str) -> None:
    lab.book(text)
    with within(3):
        assert "data/comments.json: not read: line 1" in words(build(lab))


def test_a_gpu_name_that_is_made_to_be_slow(lab: Lab) -> None:
    lab.host("slow", gpu(0, name="NVIDIA " * 150_000, uuid="GPU-s"))
    with within(3):
        build(lab)


@pytest.mark.parametrize(
    ("file", "line"), [("hosts.txt", "!\n"), ("hosts.txt", "atlas\n"), ("good/ps.txt", "x\n"), ("comments.json", None)]
)
def test_a_file_with_more_faults_than_anybody_reads(lab: Lab, file: str, line: str | None) -> None:
    (lab.data / file).write_text(line * 100_000 if line else '{"' + "h" * 20_000 + '": [' + "1, " * 10_000 + "1]}")
    with within(4):
        report = lab.build()
        assert len(report.problems) <= 60
        assert max(len(problem.what) for problem in report.problems) < 400


def test_thousands_of_odd_names_in_data(lab: Lab) -> None:
    for number in range(1500):
        (lab.data / f"odd {number}").mkdir()
    report = build(lab)
    assert len(report.problems) == 1001
    assert report.problems[-1].what == "and 500 more problems"


def test_thousands_of_bookings_of_one_host(lab: Lab) -> None:
    many = [
        {"name": f"n{n}", "date": "1 May 2199", "from": soon(n), "rrule": "FREQ=DAILY;COUNT=9999"} for n in range(3000)
    ]
    lab.book({"good": {"*": many}})
    with within(8):
        assert "good has more than 500 bookings; the rest is ignored" in words(build(lab))


# What would make a GPU look free


def test_rows_of_processes_that_cannot_be_understood(lab: Lab) -> None:
    lab.host("odd", gpu(0), "[Unknown Error], 123, 400, python\n")
    assert "data/odd/processes.csv: a row that cannot be parsed: [Unknown Error], 123" in words(build(lab))
    assert lab.states("odd") == ["unknown"]


def test_rows_of_processes_without_blanks(lab: Lab) -> None:
    lab.host("odd", gpu(0), "GPU-0,123,400,python\n")
    assert (words(build(lab)), lab.states("odd")) == ("", ["busy"])


def test_a_first_file_that_is_torn_does_not_count(lab: Lab) -> None:
    lab.host("odd", gpu(0) + gpu(1))
    lab.write("odd", "processes.csv", PROCESS_COLUMNS, end="")
    assert "data/odd/processes.csv: the file is incomplete" in words(build(lab))
    assert lab.states("odd") == ["unknown", "unknown"]
    lab.write("half", "host.txt")
    lab.write("half", "gpus.csv", f"{GPU_COLUMNS}\n{gpu(0)}", end="")
    lab.build()
    assert lab.host_status("half")["state"] == "failed"


def test_a_first_original_file_that_is_torn_does_not_count(lab: Lab) -> None:
    stamp = time.strftime("%Y/%m/%d %H:%M:%S.000")
    lab.original("old", gpus=f"0, GPU-o, Tesla T4, 3, 15360, 0, 0, 40, {stamp}\n", processes=f"{stamp}, GPU-o, 51")
    assert "data/old_processes.csv: the file is incomplete: its last line is cut off" in words(build(lab))
    assert lab.states("old") == ["unknown"]
    lab.original("old", processes="")
    lab.build()
    assert lab.states("old") == ["free"]


def test_a_host_folder_with_nothing_in_it_is_a_host_that_never_pushed(lab: Lab) -> None:
    (lab.data / "new").mkdir()
    build(lab)
    assert lab.host_status("new")["state"] == "unseen"
