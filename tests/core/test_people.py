"""Who somebody is: users without a name, names that were cut, and the people behind root's processes."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from site_builder.board import card
from site_builder.board.builder import Builder
from site_builder.core.model import HostSnapshot, PrivacySettings, ProcessStatus, PsRow
from site_builder.core.people import PeopleDirectory, parse_login_uid
from site_builder.fleet.processes import format_process_container
from site_builder.snapshots.parsers import legacy_files
from tests.support.board_fixture import GPU_COLUMNS, PROCESS_COLUMNS, PS_COLUMNS, Lab, gpu, process
from tests.support.generated_fleet import booking, decide, only_gpu, person, reason, state, used_by
from tests.support.samples import SAMPLES

NEW_COLUMNS = PS_COLUMNS.replace("container", "container\timage\tpod\tperson")


def by_uid(user: str, uid: str | None) -> HostSnapshot:
    return used_by("x", ps=[person(user=user, uid=uid)])


def the_process(data: HostSnapshot, **options: object) -> ProcessStatus:
    (process_status,) = only_gpu(data, **options).processes
    return process_status


# Numbers


@pytest.mark.parametrize(
    ("user", "number"),
    [
        ("1234", 1234),
        ("uid 1234", 1234),
        ("-294967296", 4_000_000_000),
        ("4000000000", 4_000_000_000),
        ("alice", None),
        ("4000000+", None),
        ("uid alice", None),
        ("", None),
        ("-", None),
        ("1" * 30, None),
        ("١٢٣", None),
    ],
)
def test_user_ids_are_parsed(user: str, number: int | None) -> None:
    assert parse_login_uid(user) == number


@pytest.mark.parametrize(
    ("user", "uid", "expected"),
    [
        ("64999", "64999", "uid 64999"),
        ("64999", None, "uid 64999"),
        ("4000000000", "4000000000", "uid 4000000000"),
        ("4000000000", "-294967296", "uid 4000000000"),
        ("12345678", "60007", "12345678"),  # a name of digits
    ],
)
def test_user_without_a_name_is_shown_as_uid(user: str, uid: str | None, expected: str) -> None:
    assert the_process(by_uid(user, uid)).user == expected


def test_unknown_uid_gives_no_conflict() -> None:
    assert state(by_uid("1234", "1234"), booking("alice")) == "busy"


@pytest.mark.parametrize("alias", ["1234", "uid 1234"])
def test_uid_in_aliases_is_that_person(alias: str) -> None:
    aliases = {alias: "alice", "alice": "alice"}
    data = by_uid("1234", "1234")
    assert the_process(data, aliases=aliases).user == "alice"
    assert state(data, booking("alice"), aliases=aliases) == "busy"
    assert reason(data, booking("bob"), aliases=aliases) == "conflict: booked by bob, used by alice"


@pytest.mark.parametrize("spelling", ["4000000000", "uid 4000000000", "-294967296", "4000000+"])
def test_spellings_of_a_uid_are_one_user(spelling: str) -> None:
    people = PeopleDirectory({}, ["uid 4000000000"])
    assert people.resolve_user(spelling) == "uid 4000000000"
    assert PeopleDirectory({"4000000000": "Dora"}).resolve_user(spelling) == "dora"
    assert people.choose_display_name([spelling, "uid 4000000000"]) == "uid 4000000000"


def test_ambiguous_truncated_uid_stays_as_it_is() -> None:
    people = PeopleDirectory({}, ["uid 4000000000", "uid 4000000001", "alice"])
    assert (people.display_login("4000000+"), people.find_person("4000000+")) == ("4000000+", None)


def test_long_uids_are_remembered_since_ps_may_truncate_them() -> None:
    ps = [person(42, "4000000000", uid="4000000000"), person(43, "64999", uid="64999")]
    assert decide(used_by("x", "y", ps=ps)).logins == {"uid 4000000000"}


# Names that were cut


def test_truncated_login_is_completed_if_only_one_fits() -> None:
    people = PeopleDirectory({}, ["maximilian", "Alexander", "alexandra"])
    assert people.display_login("maximil+") == "maximilian"
    assert people.display_login("alexand+") == "alexand+"
    assert people.display_login("nobody.+") == "nobody.+"
    assert PeopleDirectory({}, ["Maximilian"]).display_login("Maximil+") == "Maximilian"
    assert PeopleDirectory({"maximilian": "Max M.", "max m.": "Max M."}).display_login("maximil+") == "Max M."
    assert (
        PeopleDirectory({}, ["an-account-of-the-lab-for-all"]).display_login("an-account-of-the-l+")
        == "an-account-of-the-lab-for-all"
    )


def test_short_login_is_no_completion_of_a_truncated_one() -> None:
    people = PeopleDirectory({}, ["maximil", "maximilian"])
    assert people.display_login("maximil+") == "maximilian"


def test_alias_of_a_truncated_login_comes_first() -> None:
    people = PeopleDirectory({"alexand+": "Alexandra"}, ["alexander", "alexandrov"])
    assert (people.display_login("alexand+"), people.find_person("alexand+")) == ("Alexandra", "alexandra")


def test_two_spellings_of_one_login_on_a_gpu_are_one_person() -> None:
    gpu_status = only_gpu(used_by("maximil+", "maximilian"), logins=["maximilian"])
    assert gpu_status.people.users == ("maximil+",)
    assert gpu_status.reason == "in use by maximilian"


def read_logins(name: str) -> list[str]:
    return [row.split()[1] for row in (SAMPLES / "ps" / name).read_text().splitlines()[1:]]


def test_odd_logins_of_ps_are_completed_or_left_alone() -> None:
    seen_before = ["maximilian", "anna.schmidt@lab", "LABOR\\carol", "jörg", "uid 3000000000"]
    people = PeopleDirectory({}, seen_before)
    assert {login: people.display_login(login) for login in read_logins("pid-user-etime-cmd.txt")} == {
        "60001": "60001",  # a number or a name of digits: `ps.txt` has the uid beside it
        "maximil+": "maximilian",
        "jörg": "jörg",
        "LABOR\\c+": "LABOR\\carol",
        "anna.sc+": "anna.schmidt@lab",
        "lab-pc$": "lab-pc$",
        "20260101": "20260101",
        "bob": "bob",
        "李雷": "李雷",
        "64999": "64999",
        "3000000+": "uid 3000000000",
        "root": "root",
    }


def test_logins_without_their_letters_are_nobody_else() -> None:
    """With LC_ALL=C, ps prints ? for each byte of a letter that is not ASCII."""
    people = PeopleDirectory({}, ["jörg", "李雷", "jürg"])
    assert [people.display_login(login) for login in read_logins("LC_ALL-C.txt")] == ["j??rg", "??????"]


@pytest.mark.parametrize("name", ["john doe", "DOMAIN\\john doe", "müller", "a@b", "machine$", "x " * 50 + "x"])
def test_original_scripts_may_report_names_with_spaces(name: str) -> None:
    (row,) = legacy_files.parse_legacy_users(
        f"  42 {name}  Thu Oct  4 09:12:01 2018\n".encode(), datetime(2018, 10, 4, 10)
    ).rows
    assert row.user == name


def test_line_of_blanks_is_parsed_quickly() -> None:
    began = time.monotonic()
    legacy_files.parse_legacy_users(b"1 " + b"x " * 200_000 + b"\n" + b"1 " + b" " * 200_000 + b"\n", None)
    assert time.monotonic() - began < 2


# The people behind root's processes


def in_container(**fields: Any) -> PsRow:  # noqa: ANN401
    plain: dict[str, Any] = {
        "user": "root",
        "uid": "0",
        "container": "docker:0123456789ab",
        "person": "alice",
        "image": "torch:2",
    }
    return person(**{**plain, **fields})


def test_person_behind_a_process_of_root_is_its_user() -> None:
    data = used_by("x", ps=[in_container()])
    assert state(data, booking("alice")) == "busy"
    assert reason(data, booking("bob")) == "conflict: booked by bob, used by alice"
    process_status = the_process(data)
    assert (process_status.user, process_status.runs_as, process_status.image) == ("alice", "root", "torch:2")
    assert only_gpu(data).people.users == ("alice",)
    assert "alice" in decide(data, logins=()).logins


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"uid": "1002", "user": "bob"}, ("bob", None)),
        ({"uid": "1002", "user": "root"}, ("root", None)),
        ({"uid": None}, ("alice", "root")),
        ({"user": None}, ("alice", "uid 0")),
        ({"uid": "1001", "user": "1001"}, ("alice", "uid 1001")),
        ({"uid": "0", "user": "toor"}, ("alice", "toor")),
        ({"uid": "0", "user": "0"}, ("alice", "uid 0")),
        ({"person": None}, ("root", None)),
    ],
)
def test_only_root_and_unnamed_users_have_a_person_behind_them(
    fields: dict[str, object], expected: tuple[str, str | None]
) -> None:
    process_status = the_process(used_by("x", ps=[in_container(**fields)]))
    assert (process_status.user, process_status.runs_as) == expected


def test_uid_in_aliases_has_no_other_person_behind_it() -> None:
    data = used_by("x", ps=[in_container(uid="1001", user="1001")])
    assert the_process(data, aliases={"1001": "carol"}).user == "carol"


def test_the_person_behind_a_process_has_all_of_their_names() -> None:
    data = used_by("x", ps=[in_container()])
    assert the_process(data, aliases={"alice": "Alice B."}).user == "Alice B."


@pytest.mark.parametrize(
    ("fields", "short", "full"),
    [
        ({"container": None, "image": None, "runs_as": None}, "", ""),
        ({"image": None, "runs_as": None}, "docker:01", "docker:01"),
        ({"runs_as": None}, "docker torch:2", "docker:01 torch:2"),
        ({}, "as root in docker torch:2", "docker:01 torch:2"),
        ({"container": None, "image": None}, "as root", ""),
        ({"image": "registry.lab:5000/a/b:1", "runs_as": None}, "docker a/b:1", "docker:01 registry.lab:5000/a/b:1"),
        ({"image": "a/b:1", "runs_as": None}, "docker a/b:1", "docker:01 a/b:1"),
        (
            {"container": "kubernetes:1-2/01", "pod": "ml/train-0", "runs_as": None},
            "kubernetes ml/train-0",
            "kubernetes:1-2/01 ml/train-0 torch:2",
        ),
        ({"container": "apptainer", "image": "t.sif", "runs_as": None}, "apptainer t.sif", "apptainer t.sif"),
    ],
)
def test_container_has_the_name_that_people_know(fields: dict[str, object], short: str, full: str) -> None:
    plain: dict[str, object] = {"container": "docker:01", "image": "torch:2", "runs_as": "root"}
    all_fields = {"pid": 1, "user": "alice", "command": "x", "used_memory": 1, "started": 1, **plain, **fields}
    process_status = ProcessStatus(**all_fields)  # type: ignore[arg-type]
    assert (card.describe_card_container(process_status), format_process_container(process_status)) == (short, full)


@pytest.mark.parametrize("hidden", [PrivacySettings("none"), PrivacySettings(users=False)])
def test_images_and_pods_are_hidden_with_containers(hidden: PrivacySettings) -> None:
    process_status = the_process(used_by("x", ps=[in_container(pod="alice/x")]), shown=hidden)
    assert (process_status.container, process_status.image, process_status.pod) == (None, None, None)
    assert (process_status.user, process_status.runs_as) == (("alice", "root") if hidden.users else (None, None))


# The whole board


def row(pid: int, user: str, uid: object = 1000, **fields: str) -> str:
    columns = {"container": "-", "image": "-", "pod": "-", "person": "-", **fields}
    cells = (pid, 1, pid, pid, uid, user, 3600, 99.0, 2048, "S", *columns.values(), "python train.py")
    return "\t".join(map(str, cells)) + "\n"


def host(lab: Lab, name: str, *rows: str) -> None:
    """A host with a process on its only GPU for each row."""
    uuid = f"GPU-{name}"
    lab.write(name, "gpus.csv", f"{GPU_COLUMNS}\n{gpu(0, 9000, 90, uuid=uuid)}")
    apps = "".join(process(int(line.split("\t")[0]), uuid) for line in rows)
    lab.write(name, "processes.csv", f"{PROCESS_COLUMNS}\n{apps}")
    lab.write(name, "ps.txt", f"{NEW_COLUMNS}\n{''.join(rows)}")
    lab.write(name, "host.txt", "cpus=4\n")


def users(lab: Lab, name: str) -> list[str]:
    return [process_row["user"] for process_row in lab.host_status(name)["gpus"][0]["processes"]]


def book(lab: Lab, name: str, host_name: str = "atlas") -> None:
    until = (datetime.now(timezone.utc) + timedelta(hours=3)).isoformat()
    (lab.data / "comments.json").write_text(json.dumps({host_name: {"0": {"name": name, "date": until}}}))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_container_of_root_is_its_persons_on_the_page(lab: Lab) -> None:
    host(lab, "atlas", row(42, "root", 0, container="docker:0123456789ab", image="torch:2", person="alice"))
    host(lab, "vega", row(43, "alice"))
    book(lab, "alice")
    lab.build()
    assert (lab.states(), users(lab, "atlas")) == (["busy"], ["alice"])
    assert "as root in docker torch:2" in lab.page()
    page = (lab.www / "hosts/atlas.html").read_text()
    assert "alice (as root)" in page
    assert "docker:0123456789ab torch:2" in page


@pytest.mark.parametrize("shown", [PrivacySettings("none"), PrivacySettings(users=False)])
def test_www_has_no_images_where_containers_are_hidden(lab: Lab, shown: PrivacySettings) -> None:
    container_fields = {"container": "docker:0123456789ab", "image": "dora/torch", "pod": "dora-ns/train"}
    host(lab, "atlas", row(42, "root", 0, **container_fields, person="dora.s"))
    lab.build(privacy=shown)
    for path in lab.www.rglob("*"):
        text = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        assert b"dora/" not in text
        assert b"dora-ns" not in text
        assert shown.users or b"dora.s" not in text


def test_truncated_login_is_completed_once_another_host_reports_it(lab: Lab) -> None:
    host(lab, "atlas", row(42, "maximil+"))
    host(lab, "vega", row(43, "bob"))
    builder = Builder(lab.settings())
    builder.build(time.time())
    assert users(lab, "atlas") == ["maximil+"]
    host(lab, "vega", row(43, "maximilian"))
    builder.build(time.time())
    assert users(lab, "atlas") == ["maximilian"]
    host(lab, "vega", row(43, "maximilia"))
    builder.build(time.time())
    assert users(lab, "atlas") == ["maximil+"]  # who may be two people
    (lab.data / "aliases.csv").write_text("maximilian, maximilia, Max\n")
    builder.build(time.time())
    assert users(lab, "atlas") == ["Max"]
    builder.close()


def test_new_login_rebuilds_only_hosts_with_truncated_logins(lab: Lab) -> None:
    host(lab, "atlas", row(42, "alice"))
    builder = Builder(lab.settings())
    builder.build(time.time())
    card = builder.pipeline.built_hosts["atlas"]
    host(lab, "vega", row(43, "bob"))
    builder.build(time.time())
    assert builder.pipeline.built_hosts["atlas"] is card
    builder.close()


def test_uid_and_its_person_are_one_row_of_users(lab: Lab) -> None:
    (lab.data / "aliases.csv").write_text("1234, alice\n")
    host(lab, "atlas", row(42, "1234", 1234))
    host(lab, "vega", row(43, "alice", 1234))
    book(lab, "alice")
    lab.build()
    assert lab.states() == ["busy"]
    page = (lab.www / "users.html").read_text()
    rows = re.findall("<tr data-person=[^>]*><th scope=row>(.*?)<td", page.partition("<tfoot>")[0])
    assert [re.sub("<[^>]*>", "", row) for row in rows] == ["alice"]


def test_hostile_container_names_do_no_harm(lab: Lab) -> None:
    script = "<script>alert(1)</script>"
    container_fields = {"container": f"docker:{script}", "image": script, "pod": script + "x" * 5000, "person": script}
    host(lab, "atlas", row(42, "root", 0, **container_fields))
    report = lab.build()
    assert report.problems == []
    assert script not in lab.page()
    assert script not in (lab.www / "hosts/atlas.html").read_text()
    assert lab.states() == ["busy"]
