"""comments.json: every form that people write, and every fault."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from dateutil import tz
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings import parser as booking_parser
from site_builder.core.model import Booking

PARIS = tz.gettz("Europe/Paris") or timezone.utc
ALICE = {"name": "alice", "date": "2027-03-01 18:00", "comment": "ICML run"}


def read(text: str) -> tuple[list[Booking], list[str]]:
    dump = booking_parser.parse_bookings(text.encode(), PARIS)
    assert dump.is_complete
    return list(dump.rows), list(dump.problems)


def one(content: object) -> Booking:
    ((booking,), problems) = read(json.dumps(content))
    assert problems == []
    return booking


def test_a_list_books_the_gpus_by_their_place() -> None:
    bookings, problems = read(json.dumps({"atlas": [ALICE, None, {}, {**ALICE, "name": "bob"}]}))
    assert [(booking.host, booking.gpu, booking.name) for booking in bookings] == [
        ("atlas", "0", "alice"),
        ("atlas", "3", "bob"),
    ]
    assert problems == []


def test_an_object_books_by_index_uuid_or_the_whole_host() -> None:
    bookings, _ = read(json.dumps({"atlas": {"1": ALICE, "GPU-1234": ALICE, "*": ALICE}}))
    assert [booking.gpu for booking in bookings] == ["1", "GPU-1234", "*"]


def test_one_gpu_may_have_several_bookings() -> None:
    bookings, _ = read(json.dumps({"atlas": {"1": [ALICE, {**ALICE, "name": "bob"}]}}))
    assert [booking.name for booking in bookings] == ["alice", "bob"]


def test_a_booking_has_all_that_it_may_have() -> None:
    booking = one({"atlas": [{**ALICE, "from": "2027-02-28 09:00", "id": "b1", "rrule": "FREQ=WEEKLY", "more": 1}]})
    assert booking.until == datetime(2027, 3, 1, 18, tzinfo=PARIS)
    assert booking.since == datetime(2027, 2, 28, 9, tzinfo=PARIS)
    assert (booking.comment, booking.id, booking.rrule) == ("ICML run", "b1", "FREQ=WEEKLY")


def test_deleted_empty_and_null_entries_are_none() -> None:
    gone = {"name": "", "date": "", "comment": ""}
    assert read(
        json.dumps({"a": [gone, None, {}], "b": [], "c": None, "d": {}, "e": {"0": gone, "1": None, "2": []}})
    ) == ([], [])


def test_comments_trailing_commas_and_escaped_slashes_are_forgiven() -> None:
    text = """{ // who has what
      "atlas": [ /* the
                    new one */
        {"name": "alice", "date": "2027-03-01 18:00", "comment": "see http:\\/\\/x // not a comment, }",},
      ],
    }"""
    ((booking,), problems) = read(text)
    assert (booking.comment, problems) == ("see http://x // not a comment, }", [])


def test_latin_1_and_a_byte_order_mark_are_forgiven() -> None:
    text = '{"atlas": [{"name": "Père Noël", "date": "2027-12-24 18:00", "comment": ""}]}'
    for data in (text.encode("latin-1"), b"\xef\xbb\xbf" + text.encode()):
        assert [booking.name for booking in booking_parser.parse_bookings(data, PARIS).rows] == ["Père Noël"]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_file_may_be_about_to_be_written_and_is_not_read(text: str) -> None:
    dump = booking_parser.parse_bookings(text.encode(), PARIS)
    assert (dump.is_complete, dump.problems) == (False, ("it is empty; write {} where there are no bookings",))


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("2027-03-01", datetime(2027, 3, 1, tzinfo=PARIS)),
        ("2027-03-01T18:00:30", datetime(2027, 3, 1, 18, 0, 30, tzinfo=PARIS)),
        ("2027-03-01T18:00Z", datetime(2027, 3, 1, 18, tzinfo=timezone.utc)),
        ("2027-03-01 18:00+05:30", datetime(2027, 3, 1, 18, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        ("1 March 2027 6pm", datetime(2027, 3, 1, 18, tzinfo=PARIS)),
        ("Mon, 01 Mar 2027 18:00:00 +0000", datetime(2027, 3, 1, 18, tzinfo=timezone.utc)),
        ("2027-07-01 18:00 CET", datetime(2027, 7, 1, 16, tzinfo=timezone.utc)),
        ("31/12/2027", datetime(2027, 12, 31, tzinfo=PARIS)),
        ("05/05/2027", datetime(2027, 5, 5, tzinfo=PARIS)),
    ],
)
def test_dates_as_people_write_them(date: str, expected: datetime) -> None:
    assert one({"atlas": [{**ALICE, "date": date}]}).until == expected


@pytest.mark.parametrize(
    ("date", "why"),
    [
        ("5h", "is not a full date"),
        ("10", "is not a full date"),
        ("18:00", "is not a full date"),
        ("March 2027", "is not a full date"),
        ("CET", "is not a date"),
        ("soon", "is not a date"),
        ("2027-13-45", "is not a date"),
        ("99999999999999999999", "is not a date"),
        ("03/04/2027", "could be 4 March or 3 April: write 2027-03-04 or 2027-04-03"),
        ("2027-03-01 18:00 QQQT", "names an unknown time zone: QQQT"),
        ("x" * 200, "is too long for a date"),
    ],
)
def test_a_date_that_could_mean_two_or_none_is_a_problem(date: str, why: str) -> None:
    bookings, (problem,) = read(json.dumps({"atlas": [{**ALICE, "date": date}, ALICE]}))
    assert [booking.gpu for booking in bookings] == ["1"]
    assert problem.startswith(f'line 1, atlas, GPU 0: the date "{date}" {why}')


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"name": "alice", "date": "", "comment": "x"}, "the booking of alice has no date and is ignored"),
        ({**ALICE, "from": "2028-01-01"}, "the booking of alice ends before it begins and is ignored"),
        ({**ALICE, "from": "tomorrow-ish"}, 'the start "tomorrow-ish" is not a date'),
        (7, "a booking must be an object with name, date and comment"),
        (["x"], "a booking must be an object with name, date and comment"),
    ],
)
def test_an_entry_that_cannot_count_is_reported(entry: object, problem: str) -> None:
    assert read(json.dumps({"atlas": {"2": entry}})) == ([], [f"line 1, atlas, GPU 2: {problem}"])


def test_a_doubled_key_is_reported_and_the_last_one_counts() -> None:
    text = f'{{"atlas": {{"0": {json.dumps(ALICE)}, "0": {json.dumps({**ALICE, "name": "bob"})}}}}}'
    bookings, problems = read(text)
    assert [booking.name for booking in bookings] == ["bob"]
    assert problems == ['the key "0" occurs twice; the last one counts']


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"atlas": [\n{"name": "alice"', "line 2, column 17: "),
        ('{\n// fine\n"atlas": [}', "line 3, column 11: "),
        ("[1, 2]", "it must be an object of hosts"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_names_the_line(text: str, problem: str) -> None:
    dump = booking_parser.parse_bookings(text.encode(), PARIS)
    assert (dump.is_complete, dump.rows) == (False, ())
    assert dump.problems[0].startswith(problem)


def test_the_gpus_of_one_booking_have_one_id_and_what_was_copied_and_changed_has_another() -> None:
    by_hand, uncommented, ours, copied = (
        {**ALICE, **extra_fields} for extra_fields in ({}, {"comment": ""}, {"id": "b1"}, {"id": "b1"})
    )
    copied["date"] = "2027-03-02"
    bookings, _ = read(
        json.dumps({"atlas": {"0": [by_hand, ours], "1": [by_hand, ours, copied, uncommented]}, "zeus": [ours]})
    )
    ids = [booking.id for booking in bookings]
    assert (ids[0], ids[1], ids[6]) == (ids[2], "b1", "b1")
    assert ids[3] == "b1"
    assert len(set(ids)) == 4
    assert read(json.dumps({"atlas": [by_hand]}))[0][0].id == ids[0]


@pytest.mark.parametrize("booking_id", ["", " ", "<b>", "a b", "x" * 200, "é"])
def test_an_id_that_no_command_could_name_is_not_used(booking_id: str) -> None:
    assert re.fullmatch("x([0-9a-f]{8}|x{79})", one({"atlas": [{**ALICE, "id": booking_id}]}).id or "")


def test_script_and_escapes_are_text() -> None:
    booking = one({"atlas": [{**ALICE, "comment": "<script>\u001b[31m", "name": 42}]})
    assert (booking.comment, booking.name) == ("<script>?[31m", "42")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("2027-03-01")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(), st.sampled_from(["name", "date", "from", "comment", "*", "0"])), inner, max_size=4
        ),
    ),
)


@given(st.one_of(st.binary(), JSON.map(lambda content: json.dumps(content).encode())))
def test_nothing_makes_the_reader_fail(data: bytes) -> None:
    booking_parser.parse_bookings(data, PARIS)
    booking_parser.parse_bookings(b'{"atlas": [{"name": "a", "date": "' + data + b'"}]}', PARIS)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("RRULE:freq=weekly;byday=MO,WE;", "FREQ=WEEKLY;BYDAY=MO,WE"),
        ("FREQ=DAILY;UNTIL=20270301", "FREQ=DAILY;UNTIL=20270301T225959Z"),
    ],
)
def test_a_booking_may_repeat(rule: str, expected: str) -> None:
    assert one({"atlas": [{**ALICE, "from": "2027-03-01 09:00", "rrule": rule}]}).rrule == expected


@pytest.mark.parametrize("rule", ["FREQ=DAILY;COUNT=3;UNTIL=20270301", "FREQ=DAILY;UNTIL=20270301T000000Z;COUNT=3"])
def test_repeats_end_after_a_number_or_at_a_time_and_not_by_both(rule: str) -> None:
    (booking,), (problem,) = read(json.dumps({"atlas": [{**ALICE, "from": "2027-03-01 09:00", "rrule": rule}]}))
    assert booking.rrule is None
    assert problem.endswith("has both COUNT and UNTIL: use only one; the booking counts once")


def test_what_repeats_keeps_its_hour_when_the_clocks_change_whatever_its_offset() -> None:
    winter = {"from": "2027-03-23 09:00+01:00", "date": "2027-03-23 11:00Z", "rrule": "FREQ=WEEKLY"}
    booking = one({"atlas": [{"name": "alice", **winter}]})
    assert (booking.since, booking.since and booking.since.tzinfo) == (datetime(2027, 3, 23, 9, tzinfo=PARIS), PARIS)
    assert (booking.until.tzinfo, booking.until.hour) == (PARIS, 12)


def test_a_booking_that_repeats_needs_its_beginning() -> None:
    (booking,), (problem,) = read(json.dumps({"atlas": [{**ALICE, "rrule": "FREQ=DAILY"}]}))
    assert booking.rrule is None
    assert problem == 'line 1, atlas, GPU 0: the rrule "FREQ=DAILY" needs a `from`; the booking counts once'
