"""A booking is shown under the display name of its person, wherever it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from site_builder.client.loader import load_data_fleet, parse_status
from site_builder.config.settings import load_settings
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.command_line import run_gpuboard


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A host whose first GPU is booked, whose second is free until a booking, and whose third has a conflict."""
    lab = Lab(tmp_path)
    (lab.data / "aliases.csv").write_text("ada, Ada Lovelace\ngrace, Grace Hopper\n")
    rows = gpu(0) + gpu(1) + gpu(2, 8000)
    lab.host("atlas", rows, process(77, "GPU-2"), person(77, "grace"))
    booking = {"name": "ada", "date": soon(7200), "comment": "thesis"}
    lab.book({"atlas": {"0": [booking], "1": [{**booking, "from": soon(3600)}], "2": [booking]}})
    lab.build()
    return lab


def test_every_file_of_the_site_has_the_display_name_and_none_the_alias(lab: Lab) -> None:
    names = ["index.html", "bookings.html", "bookings.ics", "hosts/atlas.html", "detail.txt", "metrics"]
    names += ("states/atlas/index.json", "nodes/atlas.json", "live.json", "term.txt")
    texts = {name: (lab.www / name).read_text().replace("\r\n ", "") for name in names}
    with_name = [name for name in names if "Ada Lovelace" in texts[name]]
    assert with_name == [name for name in names if name not in {"live.json", "term.txt"}]
    words = {"index.html": ">ada<", "bookings.html": ">ada<", "bookings.ics": "SUMMARY:atlas:0 ada"}
    assert not [name for name, word in words.items() if word in texts[name]]
    reasons = [gpu["reason"] for gpu in lab.host_status()["gpus"]]
    assert "booked by Ada Lovelace until" in reasons[0]
    assert reasons[1].endswith("then booked by Ada Lovelace")
    assert reasons[2] == "booked by Ada Lovelace, used by Grace Hopper"


def test_status_json_also_has_the_name_as_it_is_written(lab: Lab) -> None:
    (booking,) = lab.host_status()["gpus"][0]["bookings"]
    assert (booking["name"], booking["written_name"]) == ("Ada Lovelace", "ada")
    lab.book({"atlas": {"0": [{"name": "Ada Lovelace", "date": soon(7200)}]}})
    lab.build()
    (booking,) = lab.host_status()["gpus"][0]["bookings"]
    assert booking["name"] == "Ada Lovelace"
    assert "written_name" not in booking


def test_clients_know_both_names_of_a_booking(lab: Lab) -> None:
    fleet, _ = parse_status((lab.www / "status.json").read_bytes())
    from_data = load_data_fleet(load_settings(None, {"GPUBOARD_DATA": str(lab.data)}, {}).settings)
    for source in (fleet, from_data):
        assert source is not None
        assert source.hosts[0].gpus[0].bookings[0].names == ("Ada Lovelace", "ada")


def test_list_and_bookings_print_the_display_name(lab: Lab) -> None:
    folder = lab.data.parent
    assert "booked: Ada Lovelace until" in run_gpuboard(folder, "list", GPUBOARD_DATA="data").stdout
    table = run_gpuboard(folder, "bookings", GPUBOARD_DATA="data").stdout
    assert table.count("Ada Lovelace") == 2
    assert " ada " not in table
    rows = json.loads(run_gpuboard(folder, "bookings", "--json", GPUBOARD_DATA="data").stdout)
    assert {(row["name"], row["person"]) for row in rows} == {("ada", "Ada Lovelace")}


def test_a_booking_under_an_alias_keeps_what_is_known_of_its_use(lab: Lab) -> None:
    """Its use is remembered under the name as it is written, whatever aliases.csv says later."""
    (lab.data / "aliases.csv").unlink()
    remembered = (lab.state / "memory.json").read_text()
    assert " ada" in remembered
    assert "Ada Lovelace" not in remembered
