"""The files of rules and contacts: who may own them, when they are read, and what counts while they are unreadable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from site_builder.alerts.contacts import MAX_CONTACTS_BYTES, Contacts, ContactsAndRules, load_contacts
from site_builder.alerts.model import AlertRule
from site_builder.alerts.rules import DEFAULT_RULES
from site_builder.config.settings import Settings, load_settings
from site_builder.core import files
from site_builder.core.model import AlertSettings, Problem
from tests.support.alert_fixtures import list_addresses
from tests.support.board_fixture import Lab

RULES, CONTACTS = b"[host-down]\ndelay = 7m\n", b"alice,alice@lab.org\n"


class Desk:
    """A lab whose admin has written both files, at home."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder / "lab")
        self.lab.www.mkdir()
        self.home = folder / "home"
        self.home.mkdir()
        self.rules, self.contacts = self.home / "alerts.conf", self.home / "contacts.csv"
        for path, content in ((self.rules, RULES), (self.contacts, CONTACTS)):
            path.write_bytes(content)
            path.chmod(0o600)

    def files(self, **overrides: str) -> ContactsAndRules:
        """As a builder has them that has just begun."""
        alerts = AlertSettings(
            channels=(("lab", "json://x"),),
            mail_domain="lab.org",
            **{"rules_file": str(self.rules), "contacts_file": str(self.contacts), **overrides},  # type: ignore[arg-type]
        )
        return ContactsAndRules(alerts, self.lab.data, self.lab.www, self.lab.state)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class Config(NamedTuple):
    rules: dict[str, AlertRule]
    contacts: Contacts
    problems: list[Problem]


def read(files: ContactsAndRules) -> Config:
    """Read both files as a build does."""
    return Config(files.read_rules()[0], files.read_contacts()[0], files.list_problems())


def told(files: ContactsAndRules) -> list[str]:
    return [f"{problem.where}: {problem.what}" for problem in read(files).problems]


def hold(files: ContactsAndRules) -> int:
    return read(files).rules["host-down"].delay


def test_without_files_the_defaults_count_and_people_have_the_address_of_their_login(desk: Desk) -> None:
    loaded_files = read(ContactsAndRules(AlertSettings(mail_domain="lab.org"), desk.lab.data, desk.lab.www))
    assert (loaded_files.rules, loaded_files.problems, loaded_files.contacts.is_complete) == (DEFAULT_RULES, [], True)
    assert list_addresses(loaded_files.contacts, "bob") == ("bob@lab.org",)


def test_both_files_are_read_and_read_again_when_they_change(desk: Desk) -> None:
    files = desk.files()
    loaded_files = read(files)
    assert (loaded_files.rules["host-down"].delay, loaded_files.problems) == (420, [])
    assert list_addresses(loaded_files.contacts, "alice") == ("alice@lab.org",)
    assert read(files).rules is loaded_files.rules, "nothing changed"
    assert read(files).contacts is loaded_files.contacts
    desk.rules.write_bytes(b"[host-down]\ndelay = 8m\nto = zebra\nx\n")
    desk.contacts.write_bytes(b"alice,slack:U0A\nbob\n")
    assert hold(files) == 480
    assert list_addresses(read(files).contacts, "alice") == ("slack:U0A",)
    assert told(files) == [
        "GPUBOARD_ALERTS (alerts.conf): line 4: must be a [section] or `key = value`",
        "GPUBOARD_ALERTS (alerts.conf): host-down should go to zebra, but GPUBOARD_NOTIFY has no such channel; "
        "allowed: lab, all, hooks, none, person",
        "GPUBOARD_CONTACTS (contacts.csv): line 2: must be login,address",
    ]


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grown(path: Path) -> None:
    path.write_bytes(b"#" * (MAX_CONTACTS_BYTES + 1))


def refolded(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (Path.unlink, "No such file or directory"),
        (linked, "it is a link, and links are not followed"),
        (piped, "it is not a plain file"),
        (refolded, "it is not a plain file"),
        (grown, "it has 1048577 bytes, and the limit is "),
        (lambda path: path.chmod(0o646), "other users can write it; fix: chmod "),
    ],
)
def test_an_unreadable_file_keeps_the_previous_rules_and_is_reported(
    desk: Desk, harm: Callable[[Path], None], words: str
) -> None:
    files = desk.files()
    read(files)
    harm(desk.rules)
    harm(desk.contacts)
    loaded_files = read(files)
    assert loaded_files.rules["host-down"].delay == 420
    assert list_addresses(loaded_files.contacts, "alice") == ("alice@lab.org",)
    first, second = told(files)
    assert first.startswith(f"GPUBOARD_ALERTS (alerts.conf): it is not read: {words}")
    assert first.endswith("; the previous rules stay in effect")
    assert second.startswith(f"GPUBOARD_CONTACTS (contacts.csv): it is not read: {words}")
    assert second.endswith("; the previous contacts stay in effect")
    # a builder that begins now has the last good rules in state/, but no copy of the secrets in the contacts
    begun = read(desk.files())
    assert begun.rules["host-down"].delay == 420
    assert (begun.contacts.is_complete, list_addresses(begun.contacts, "bob")) == (False, ())
    assert [problem.what.rpartition("; ")[2] for problem in begun.problems] == [
        "the previous rules stay in effect",
        "notifications to people wait",
    ]


def test_the_copy_of_the_rules_is_private_and_contacts_are_not_copied(desk: Desk) -> None:
    read(desk.files())
    (kept,) = desk.lab.state.iterdir()
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (RULES, 0o600)


def test_the_first_file_that_cannot_be_read_means_the_defaults(desk: Desk) -> None:
    desk.rules.unlink()
    files = desk.files()
    assert read(files).rules == DEFAULT_RULES
    assert told(files)[0].endswith("; the defaults apply")


def test_a_file_counts_at_once_when_it_is_readable_again(desk: Desk) -> None:
    files = desk.files()
    read(files)
    desk.rules.rename(desk.home / "away")
    assert len(told(files)) == 1
    (desk.home / "away").rename(desk.rules)
    assert told(files) == []
    desk.rules.write_bytes(b"")
    assert hold(files) == DEFAULT_RULES["host-down"].delay, "an empty file is one that changes nothing"


def test_contacts_that_a_group_can_write_are_not_read_and_rules_are(desk: Desk) -> None:
    desk.rules.chmod(0o664)
    desk.contacts.chmod(0o660)
    files = desk.files()
    assert hold(files) == 420
    assert told(files) == [
        "GPUBOARD_CONTACTS (contacts.csv): it is not read: other users can write it; fix: chmod 600 contacts.csv; "
        "notifications to people wait"
    ]
    desk.contacts.chmod(0o600)
    assert told(files) == []


def test_a_file_of_another_user_is_not_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(desk.contacts, 12345, -1)
        os.chown(desk.rules, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert [problem.rpartition("; its owner")[0].rpartition(": ")[2] for problem in told(desk.files())] == [
        "it belongs to another user"
    ] * 2


@pytest.mark.parametrize("place", ["data", "data/sub", "www", "link"])
def test_nothing_is_read_from_data_or_www_where_others_write_or_read(desk: Desk, place: str) -> None:
    (desk.lab.data.parent / "link").symlink_to(desk.lab.data)
    folder = desk.lab.data.parent / place
    folder.mkdir(exist_ok=True)
    for name, content in (("a.conf", RULES), ("c.csv", CONTACTS)):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    files = desk.files(rules_file=str(folder / "a.conf"), contacts_file=str(folder / "c.csv"))
    loaded_files = read(files)
    assert (loaded_files.rules, loaded_files.contacts.is_complete) == (DEFAULT_RULES, False)
    assert len(loaded_files.problems) == 2
    assert all(
        "/, where others can write; put it next to gpuboard.conf" in problem.what for problem in loaded_files.problems
    )


def test_no_secret_of_the_contacts_is_in_a_problem_or_repr(desk: Desk) -> None:
    desk.contacts.write_bytes(b"alice,tgram://s3cr3t/1\ns3cr3t\nx,s3cr3t\nslack://s3cr3t/x,alice\n")
    files = desk.files()
    loaded_files = read(files)
    assert len(loaded_files.problems) == 3
    assert "s3cr3t" not in f"{loaded_files} {loaded_files.contacts.find_contacts('alice')}"


def test_a_full_disk_costs_only_the_copy_of_the_rules(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomically", full)
    assert (hold(desk.files()), told(desk.files())) == (420, [])


def settings_of(desk: Desk) -> Settings:
    lab = desk.lab
    folders = {"GPUBOARD_DATA": lab.data, "GPUBOARD_WWW": lab.www, "GPUBOARD_STATE": lab.state}
    environment = {"GPUBOARD_CONTACTS": desk.contacts, "GPUBOARD_MAIL_DOMAIN": "lab.org", **folders}
    return load_settings("/dev/null", {}, {key: str(value) for key, value in environment.items()}).settings


def test_the_contacts_of_whoever_sends_know_all_names_of_a_person(desk: Desk) -> None:
    (desk.lab.data / "aliases.csv").write_text("alice, Alice L.\ncarol, Caroline\n")
    contacts = load_contacts(settings_of(desk))
    assert list_addresses(contacts, "Alice L.") == ("alice@lab.org",)
    assert list_addresses(contacts, "caroline") == ("carol@lab.org",)
    assert list(desk.lab.state.iterdir()) == [], "only the builder keeps what it read"


def test_while_aliases_cannot_be_read_no_address_is_made_of_a_name(desk: Desk) -> None:
    (desk.lab.data / "aliases.csv").mkdir()
    contacts = load_contacts(settings_of(desk))
    assert list_addresses(contacts, "alice") == ("alice@lab.org",)
    assert (contacts.is_complete, list_addresses(contacts, "caroline")) == (False, ())
