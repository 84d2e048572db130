"""Bookings that live in Consul: two web hosts, one set of bookings, and nobody gets what another has."""

from __future__ import annotations

import json
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from site_builder.board.builder import Builder
from site_builder.bookings import service as booking_service
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import MAX_VALUE_BYTES, KvStore
from site_builder.core.locks import LockedFileError
from site_builder.core.model import AlertSettings, ConsulAccess
from site_builder.watches import store as watch_store
from site_builder.watches.board_requests import handle_board_request
from tests.support import kv_fixtures
from tests.support.board_fixture import Lab, words
from tests.support.booking_fixtures import done, lab_of
from tests.support.command_line import run_gpuboard
from tests.support.consul_server import ConsulServer
from tests.support.kv_fixtures import Hosts
from tests.support.ports import free_port

ALICE, BOB = BookingUser("alice"), BookingUser("bob")


@pytest.fixture
def store(tmp_path: Path, consul: ConsulServer) -> Hosts:
    return Hosts(tmp_path / "hosts", consul.address)


@pytest.fixture
def access(consul: ConsulServer) -> ConsulAccess:
    return kv_fixtures.access(consul.address)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Lab, Lab]:
    """Two web hosts that know the same GPU hosts."""
    return lab_of(tmp_path / "one"), lab_of(tmp_path / "two")


def book(lab: Lab, access: ConsulAccess, who: BookingUser, *gpus: str, **extra_fields: Any) -> dict[str, Any]:  # noqa: ANN401
    service = BookingService(lab.settings(kv=access))
    return booking_service.handle_service_request(
        service, {"do": "book", "gpus": list(gpus), "for": "2h", **extra_fields}, who
    )


def names(content: bytes | None) -> list[str]:
    bookings_by_host = json.loads(content or b"{}")
    return sorted(entry["name"] for gpus in bookings_by_host.values() for entry in gpus.values())


def test_a_booking_at_one_web_host_is_known_at_the_other_at_once(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]
) -> None:
    first_host, second_host = two
    book(first_host, access, ALICE, "atlas:0")
    assert names(store.get("data/comments.json")) == ["alice"]
    assert (first_host.data / "comments.json").read_bytes() == store.get(
        "data/comments.json"
    )  # who booked sees it there
    with pytest.raises(BookingRefusedError) as refusal:
        book(second_host, access, BOB, "atlas:0")
    assert "alice" in str(refusal.value)
    book(second_host, access, BOB, "atlas:1")
    (mine,) = book(first_host, access, ALICE, "atlas:2")["bookings"]
    booking_service.handle_service_request(
        BookingService(second_host.settings(kv=access)), {"do": "release", "id": mine["id"]}, ALICE
    )
    assert names(store.get("data/comments.json")) == ["alice", "bob"]
    for lab, who in ((first_host, ["book", "book"]), (second_host, ["book", "release"])):
        log = [json.loads(line) for line in (lab.data / "bookings.log").read_text().splitlines()]
        assert [line["what"] for line in log] == who


def test_only_one_of_two_web_hosts_books_the_gpu_at_once(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]
) -> None:
    answers: list[str] = []
    ready = threading.Barrier(8)

    def try_it(number: int) -> None:
        ready.wait()
        try:
            book(two[number % 2], access, BookingUser(f"user{number}"), "zeus:0")
            answers.append(f"user{number} has it")
        except BookingRefusedError as why:
            answers.append(str(why))

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(8)]
    for attempt in threads:
        attempt.start()
    for attempt in threads:
        attempt.join(60)
    (winner,) = (attempt.split()[0] for attempt in answers if attempt.endswith(" has it"))
    assert names(store.get("data/comments.json")) == [winner]
    assert sum(f"{winner}" in attempt for attempt in answers) == 8


def test_bookings_at_both_web_hosts_are_all_kept(store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]) -> None:
    places = [("atlas:0", 0), ("atlas:1", 1), ("atlas:2", 0), ("atlas:3", 1)]
    threads = [threading.Thread(target=book, args=(two[service], access, ALICE, place)) for place, service in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(json.loads(store.get("data/comments.json") or b"")["atlas"]) == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_the_first_booking_puts_those_of_data_into_consul(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]
) -> None:
    first_host, second_host = two
    first_host.book({"atlas": {"0": {"name": "carol", "date": "2199-01-01"}}})
    assert [
        listed_booking["name"]
        for listed_booking in booking_service.list_service_bookings(
            BookingService(first_host.settings(kv=access)).begin_read(ALICE)
        )["bookings"]
    ] == ["carol"]
    assert store.get("data/comments.json") is None
    book(first_host, access, ALICE, "atlas:1")
    assert names(store.get("data/comments.json")) == ["alice", "carol"]
    second_host.book({"zeus": {"0": {"name": "dave", "date": "2199-01-01"}}})
    report = build(second_host, access)
    assert names((second_host.data / "comments.json").read_bytes()) == ["alice", "carol"]
    assert names((second_host.data / "comments.json.by-hand").read_bytes()) == ["dave"]
    assert "data/comments.json: was edited by hand, but is stored in Consul" in report


def build(lab: Lab, access: ConsulAccess) -> str:
    builder = Builder(lab.settings(kv=access), build_interval_s=1)
    try:
        return words(builder.build(time.time()))
    finally:
        builder.close()


def test_the_commands_book_change_release_and_edit_there(
    store: Hosts, consul: ConsulServer, two: tuple[Lab, Lab], tmp_path: Path
) -> None:
    settings = kv_fixtures.environment(consul.address)
    first_folder, second_folder = (lab.data.parent for lab in two)
    booking = ["book", "atlas:0", "--from", "tomorrow 9:00", "--for", "2h", "--json"]
    booked = json.loads(done(first_folder, *booking, **settings).stdout)
    (name,) = (new_booking["id"] for new_booking in booked["bookings"])
    done(second_folder, "change", name, "--comment", "for the paper", **settings)
    assert b"for the paper" in (store.get("data/comments.json") or b"")
    script = tmp_path / "editor"
    script.write_text("#!/bin/sh\nsed -i 's/for the paper/for the talk/' \"$1\"\n")
    script.chmod(0o755)
    done(first_folder, "edit", EDITOR=shlex.quote(str(script)), VISUAL="", **settings)
    assert b"for the talk" in (store.get("data/comments.json") or b"")
    done(second_folder, "release", name, **settings)
    assert names(store.get("data/comments.json")) == []
    away = run_gpuboard(
        first_folder, "book", "atlas:0", "--for", "1h", GPUBOARD_KV=f"consul://127.0.0.1:{free_port()}/x"
    )
    assert away.returncode == 2
    assert "bookings are stored there, and nothing is written until it answers" in away.stderr
    assert done(first_folder, "bookings", GPUBOARD_KV=f"consul://127.0.0.1:{free_port()}/x").stdout is not None


def test_where_the_answer_to_a_write_is_lost_it_is_looked_for(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = KvStore.put

    def lost(self: KvStore, key: str, content: bytes, **how: Any) -> bool:  # noqa: ANN401
        put(self, key, content, **how)
        raise ConsulUnavailableError("does not answer within 3 s")

    monkeypatch.setattr(KvStore, "put", lost)
    book(two[0], access, ALICE, "atlas:0")
    assert names(store.get("data/comments.json")) == ["alice"]

    def never(self: KvStore, key: str, content: bytes, **how: Any) -> bool:  # noqa: ANN401, ARG001
        raise ConsulUnavailableError("does not answer within 3 s")

    monkeypatch.setattr(KvStore, "put", never)
    with pytest.raises(
        LockedFileError, match="does not answer within 3 s, and nothing has been written: check the bookings"
    ):
        book(two[0], access, ALICE, "atlas:1")
    assert names(store.get("data/comments.json")) == ["alice"]

    def overtaken(self: KvStore, key: str, content: bytes, **how: Any) -> bool:  # noqa: ANN401
        lost_here = put(self, key, content, **how)
        store.put(key, content + b"\n")
        assert lost_here
        raise ConsulUnavailableError("does not answer within 3 s")

    monkeypatch.setattr(KvStore, "put", overtaken)
    with pytest.raises(LockedFileError, match="so the change may be missing: check the bookings"):
        book(two[0], access, ALICE, "atlas:1")


@pytest.mark.slow
def test_a_value_that_somebody_emptied_is_not_taken_for_no_bookings(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]
) -> None:
    book(two[0], access, ALICE, "atlas:0")
    build(two[0], access)
    store.put("data/comments.json", b"")
    with pytest.raises(LockedFileError, match=r"is empty in Consul, though .* has bookings: store that"):
        book(two[0], access, BOB, "atlas:0")
    store.put("data/comments.json", b"{}")
    book(two[0], access, BOB, "atlas:0")


def test_more_than_consul_takes_is_refused(store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]) -> None:
    full = {"atlas": {"0": {"name": "carol", "date": "2199-01-01", "comment": "x" * (MAX_VALUE_BYTES - 100)}}}
    store.put("data/comments.json", json.dumps(full).encode())
    with pytest.raises(BookingRefusedError, match=r"comments\.json is full: the limit is 524288 bytes"):
        book(two[0], access, ALICE, "atlas:1")


def test_where_others_always_come_first_it_ends(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvStore, "put", lambda *_, **__: False)
    with pytest.raises(LockedFileError, match="keeps being changed by others: try again"):
        book(two[0], access, ALICE, "atlas:0")
    assert store.get("data/comments.json") is None


@pytest.mark.slow
def test_who_waits_for_gpus_waits_on_all_web_hosts_and_is_taken_off_on_all(
    two: tuple[Lab, Lab], access: ConsulAccess, store: Hosts
) -> None:
    alerts = AlertSettings(mail_url="mailto://127.0.0.1:1", mail_domain="lab.example.org")
    first, second = (BookingService(lab.settings(kv=access, alerts=alerts)) for lab in two)
    alice_watch = handle_board_request(first, {"do": "watch", "when": "9 H100"}, ALICE)["watches"][0]
    bob_watch = handle_board_request(second, {"do": "watch", "when": "9 H100"}, BOB)["watches"][0]
    assert [each.id for each in watch_store.parse_watches(store.get("data/watches.json") or b"").rows] == [
        alice_watch["id"],
        bob_watch["id"],
    ]
    store.push("atlas")
    for lab in two:
        builder = Builder(lab.settings(kv=access))
        builder.build(time.time())
        builder.close()
        assert (lab.data / "watches.json").read_bytes() == store.get("data/watches.json")
    handle_board_request(second, {"do": "unwatch", "id": alice_watch["id"]}, ALICE)
    assert [each.name for each in watch_store.parse_watches(store.get("data/watches.json") or b"").rows] == ["bob"]
    silent = kv_fixtures.access(f"127.0.0.1:{free_port()}")
    with pytest.raises(LockedFileError, match="notifications are stored there, and nothing is written"):
        handle_board_request(
            BookingService(two[0].settings(kv=silent, alerts=alerts)), {"do": "watch", "when": "8 H100"}, ALICE
        )


@pytest.mark.slow
def test_copies_of_what_accounts_book_are_in_the_folder_that_these_may_write_to(
    store: Hosts, access: ConsulAccess, two: tuple[Lab, Lab]
) -> None:
    first_host, second_host = two
    for lab in two:
        (lab.data / "bookings").mkdir()
    book(first_host, access, ALICE, "atlas:0")
    store.put("data/hosts.txt", b"atlas, Vision lab\n")
    second_host.build(kv=access)
    copy = second_host.data / "bookings/comments.json"
    assert names(copy.read_bytes()) == ["alice"]
    assert (second_host.data / "bookings/.comments.json.copy").exists()
    assert (second_host.data / "hosts.txt").exists()
    assert not (second_host.data / "comments.json").exists()
    copy.write_text("{}")
    assert "data/comments.json.by-hand" in words(second_host.build(kv=access))
    assert (second_host.data / "bookings/comments.json.by-hand").exists()
    assert names(copy.read_bytes()) == ["alice"]
