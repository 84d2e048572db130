"""With users not shown, nobody is named: not by what was published, drawn and kept while they still were."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest

from site_builder.core.model import PrivacySettings
from site_builder.history.reader import HistoryReader, read_first_history_day
from site_builder.reports import collect
from tests.support import waste_fixtures
from tests.support.board_fixture import Lab
from tests.support.browser import ROOT

PEOPLE = re.compile(rb"\b(alice|bob|carol|dave|erin)\b")
HIDDEN = PrivacySettings(users=False)


def report(lab: Lab, shown: str) -> None:
    """Of the week in which the lab was built."""
    past = HistoryReader(lab.state, timezone.utc)
    day = read_first_history_day(past)
    past.close()
    assert day
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "GPUBOARD_SHOW_USERS": shown}
    command = [sys.executable, "-m", "site_builder", "report", "--week", collect.format_report_week(day)]
    subprocess.run(command, cwd=lab.data.parent, env=environment, check=True)


def naming(lab: Lab) -> set[str]:
    """The files of the site that name somebody, in themselves or by what they are called."""
    files = {str(path.relative_to(lab.www)): path for path in lab.www.rglob("*") if path.is_file()}
    return {name for name, path in files.items() if PEOPLE.search(name.encode() + b"\n" + path.read_bytes())}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, set[str]]]:
    """A lab that named people everywhere, and then no more; with the files in which it did."""
    lab = waste_fixtures.make(tmp_path_factory.mktemp("privacy"))
    report(lab, "yes")
    before = naming(lab)
    lab.build(100, privacy=HIDDEN)
    yield lab, before


def test_while_people_are_shown_they_are_on_every_page_and_in_the_report(known: tuple[Lab, set[str]]) -> None:
    pages = {"index.html", "users.html", "waste.json", "hosts/atlas.html", "hosts/hydra.html", "cards/_waste.html"}
    assert pages < known[1]
    assert any(name.startswith("reports/") for name in known[1])


def test_once_they_are_not_shown_no_file_names_anybody(known: tuple[Lab, set[str]]) -> None:
    assert naming(known[0]) == set()


def test_a_report_does_not_repeat_what_was_published_while_people_were_shown(tmp_path: Path) -> None:
    lab = waste_fixtures.make(tmp_path)
    report(lab, "no")
    (page,) = (lab.www / "reports").iterdir()
    assert not PEOPLE.search(page.read_bytes())
