"""Changes to the text of comments.json: what was readable stays readable, and nothing else is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings import json_edit
from site_builder.bookings.json_edit import JsonDocument, JsonEntry

ALICE = {"name": "alice", "date": "2027-03-01 18:00"}
BOB = {"name": "bob", "date": "2027-03-01 18:00"}
A, B = json.dumps(ALICE), json.dumps(BOB)


def add_entry(document: JsonDocument, host: str, gpu: str, content: json_edit.EntryContent) -> JsonDocument:
    return json_edit.add_json_entries(document, host, [(gpu, content)])


def text(content: str) -> JsonDocument:
    return JsonDocument.from_bytes(content.encode())


def said(file: JsonDocument) -> list[tuple[str, str, str]]:
    return [
        (entry.host, entry.gpu, str(entry.content.get("name", ""))) for entry in file.list_entries() if entry.content
    ]


def entry_of(file: JsonDocument, name: str) -> JsonEntry:
    (matching_entry,) = (entry for entry in file.list_entries() if entry.content.get("name") == name)
    return matching_entry


@pytest.mark.parametrize(
    ("before", "host", "gpu", "after"),
    [
        ("{}", "atlas", "0", f'{{"atlas": {{"0": {B}}}}}'),
        ('{"zeus": []}\n', "atlas", "*", f'{{"zeus": [], "atlas": {{"*": {B}}}}}\n'),
        ('{"atlas": null}', "atlas", "0", f'{{"atlas": {{"0": {B}}}}}'),
        ('{"atlas": []}', "atlas", "2", f'{{"atlas": [{{}}, {{}}, {B}]}}'),
        (f'{{"atlas": [{A}]}}', "atlas", "0", f'{{"atlas": [[{A}, {B}]]}}'),
        (f'{{"atlas": [{A}, {{}}]}}', "atlas", "1", f'{{"atlas": [{A}, {B}]}}'),
        (f'{{"atlas": [{A}, null]}}', "atlas", "*", f'{{"atlas": {{"0": {A}, "1": null, "*": {B}}}}}'),
        (f'{{"atlas": {{"0": {A}}}}}', "atlas", "0", f'{{"atlas": {{"0": [{A}, {B}]}}}}'),
        (f'{{"atlas": {{"0": [{A}]}}}}', "atlas", "0", f'{{"atlas": {{"0": [{A}, {B}]}}}}'),
        ('{"atlas": {"0": {"name": "", "date": ""}}}', "atlas", "0", f'{{"atlas": {{"0": {B}}}}}'),
        (f'{{"atlas": {{"gpu-aB": {A}}}}}', "atlas", "GPU-Ab", f'{{"atlas": {{"gpu-aB": [{A}, {B}]}}}}'),
        ('{\n  "zeus": []\n}\n', "atlas", "0", f'{{\n  "zeus": [],\n  "atlas": {{"0": {B}}}\n}}\n'),
        ('{\n  "zeus": [], // old\n}\n', "atlas", "0", f'{{\n  "zeus": [], // old\n  "atlas": {{"0": {B}}},\n}}\n'),
        ('{\r\n\t"zeus": [] // old\r\n}', "atlas", "0", f'{{\r\n\t"zeus": [], // old\r\n\t"atlas": {{"0": {B}}}\r\n}}'),
        ('{"zeus": [] /* a,\n b */ }', "atlas", "0", f'{{"zeus": [], "atlas": {{"0": {B}}} /* a,\n b */ }}'),
        ("{ // nobody, yet\n}", "atlas", "0", f'{{"atlas": {{"0": {B}}} // nobody, yet\n}}'),
    ],
)
def test_an_entry_is_added_in_the_form_that_is_there(before: str, host: str, gpu: str, after: str) -> None:
    assert add_entry(text(before), host, gpu, BOB).text == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f'{{"atlas": [{B}, {A}]}}', f'{{"atlas": [{{}}, {A}]}}'),
        (f'{{"atlas": {{"0": {B}, "1": {A}}}}}', f'{{"atlas": {{ "1": {A}}}}}'),
        (f'{{"atlas": {{"0": {A}, "1": {B}}}}}', f'{{"atlas": {{"0": {A}}}}}'),
        (f'{{"atlas": {{"0": {B}}}}}', '{"atlas": {}}'),
        (f'{{"atlas": {{"0": [{A}, {B}]}}}}', f'{{"atlas": {{"0": [{A}]}}}}'),
        (f'{{"atlas": [[{B}], {A}]}}', f'{{"atlas": [{{}}, {A}]}}'),
        (
            f'{{"atlas": {{\n  "0": {A}, // hers\n  "1": {B} // his, long\n}}}}',
            f'{{"atlas": {{\n  "0": {A} // hers\n   // his, long\n}}}}',
        ),
        (f'{{"atlas": {{\n  "0": {B},\n  "1": {A},\n}}}}', f'{{"atlas": {{\n  "1": {A},\n}}}}'),
        (f'{{"atlas": {{\n  "0": {A},\n  "1": {B}\n}}}}', f'{{"atlas": {{\n  "0": {A}\n}}}}'),
        (f'{{"atlas": {{"0": {B} /* , */ , "1": {A}}}}}', f'{{"atlas": {{ /* , */  "1": {A}}}}}'),
    ],
)
def test_an_entry_is_removed_and_the_others_keep_their_places(before: str, after: str) -> None:
    file = text(before)
    assert json_edit.remove_json_entry(file, entry_of(file, "bob")).text == after


def test_only_the_changed_fields_of_an_entry_change() -> None:
    file = text('{"atlas": [{ "name": "bob", // him\n "team": [1, 2],\n "date": "2027-03-01", "from": "2027-02-28" }]}')
    new = json_edit.update_json_entry(
        file, entry_of(file, "bob"), {"date": "2027-03-02", "from": None, "comment": "Straße", "name": "bob"}
    )
    assert new.text == (
        '{"atlas": [{ "name": "bob", // him\n "team": [1, 2],\n "date": "2027-03-02", "comment": "Straße" }]}'
    )


def test_several_are_added_at_once() -> None:
    file = text(f'{{\n "atlas": {{\n  "0": {A}\n }}\n}}')
    new = json_edit.add_json_entries(file, "atlas", [("1", BOB), ("0", BOB), ("2", BOB), ("1", ALICE)])
    assert new.text == f'{{\n "atlas": {{\n  "0": [{A}, {B}],\n  "1": [{B}, {A}],\n  "2": {B}\n }}\n}}'


def test_half_a_letter_stays_as_it_was_written() -> None:
    file = text('{"atlas": [{"name": "bob", "comment": "\\ud83d"}]}')
    new = add_entry(
        json_edit.update_json_entry(file, file.list_entries()[0], {"date": "2027-03-01"}),
        "atlas",
        "1",
        file.list_entries()[0].content,
    )
    assert new.content.count(b"\\ud83d") == 2


def test_what_is_no_booking_is_not_written_over() -> None:
    with pytest.raises(json_edit.EntryPlacementError, match="line 2: the entry of atlas is not a booking"):
        add_entry(text('{\n"atlas": 7}'), "atlas", "0", BOB)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_file_keeps_its_encoding(encoding: str) -> None:
    content = '{"atlas": [{"name": "Père Noël"}]}'
    file = add_entry(JsonDocument.from_bytes(content.encode(encoding)), "atlas", "1", {"name": "Zoë 😀"})
    assert file.content.startswith(content.encode(encoding)[:-2])
    assert [name for _, _, name in said(JsonDocument.from_bytes(file.content))] == ["Père Noël", "Zoë 😀"]


def test_latin_1_that_would_read_as_utf_8_becomes_utf_8() -> None:
    file = JsonDocument.from_bytes('{"a": [{"name": "Ã©"}, {"name": "é"}]}'.encode("latin-1"))
    file = json_edit.remove_json_entry(file, file.list_entries()[1])
    assert said(JsonDocument.from_bytes(file.content)) == [("a", "0", "Ã©")]


def test_the_last_of_two_equal_keys_is_changed() -> None:
    file = add_entry(text(f'{{"atlas": {{"0": {A}}}, "atlas": {{"1": {A}}}}}'), "atlas", "2", BOB)
    assert said(file) == [("atlas", "1", "alice"), ("atlas", "2", "bob")]


# Whatever people wrote, and whatever is done to it

UNKNOWN = st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=3)
ENTRY = st.builds(
    lambda name, more: {**more, "name": name, "date": "2027-03-01"}, st.text(min_size=1, max_size=5), UNKNOWN
)
GPU = st.one_of(st.none(), st.just({}), ENTRY, st.lists(ENTRY, max_size=3))
KEY = st.sampled_from(["0", "1", "2", "*", "GPU-1", " x"])
HOST = st.one_of(st.none(), st.lists(GPU, max_size=4), st.dictionaries(KEY, GPU, max_size=4))
NAME = st.sampled_from(["atlas", "zeus", "Hydra.lab"])
FILE = st.dictionaries(st.one_of(NAME, st.text(max_size=3)), HOST, max_size=4)
NOISE = st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", ' // a, "b" }\n', "/* , ] */", "/* \n */"])
CHANGE = st.tuples(
    st.sampled_from(["add", "remove", "replace"]),
    NAME,
    st.sampled_from(["0", "1", "5", "*", "GPU-1"]),
    ENTRY,
    st.integers(0, 50),
)


def noisy(content: object, draw: Any) -> str:  # noqa: ANN401
    """JSON as people might write it: with comments, trailing commas and blanks anywhere."""
    if isinstance(content, (dict, list)):
        parts = (
            [
                f"{draw(NOISE)}{json.dumps(key)}{draw(NOISE)}:{draw(NOISE)}{noisy(child, draw)}"
                for key, child in content.items()
            ]
            if isinstance(content, dict)
            else [f"{draw(NOISE)}{noisy(child, draw)}" for child in content]
        )
        inner = f"{draw(NOISE)},".join(parts) + draw(NOISE)
        if parts and draw(st.booleans()):
            inner += f",{draw(NOISE)}"
        return f"{{{inner}}}" if isinstance(content, dict) else f"[{inner}]"
    return json.dumps(content, ensure_ascii=draw(st.booleans()))


def pictured(file: JsonDocument) -> list[str]:
    """Each entry with its place, in no order."""
    return sorted(
        repr((entry.host, entry.gpu, sorted(entry.content.items(), key=repr)))
        for entry in file.list_entries()
        if entry.content
    )


@given(st.data())
def test_any_changes_leave_all_else_as_it_was(data: st.DataObject) -> None:
    written = noisy(data.draw(FILE), data.draw)
    file = JsonDocument.from_bytes(written.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode())
    for kind, host, gpu, content, which in data.draw(st.lists(CHANGE, max_size=6)):
        before, entries = (
            pictured(file),
            [entry_or_field for entry_or_field in file.list_entries() if entry_or_field.content],
        )
        if kind == "add":
            file = add_entry(file, host, gpu, content)
            gone, new = 0, 1
        elif not entries:
            continue
        elif kind == "remove":
            file = json_edit.remove_json_entry(file, entries[which % len(entries)])
            gone, new = 1, 0
        else:
            old = entries[which % len(entries)]
            file = json_edit.update_json_entry(file, old, content)
            wanted = {
                **old.content,
                **{key: entry_or_field for key, entry_or_field in content.items() if entry_or_field is not None},
            }
            wanted = {
                key: entry_or_field
                for key, entry_or_field in wanted.items()
                if not (key in content and content[key] is None)
            }
            assert wanted in [entry_or_field.content for entry_or_field in file.list_entries()]
            gone, new = 1, 1
        file = JsonDocument.from_bytes(file.content)
        after = pictured(file)
        left = [entry_or_field for entry_or_field in before if entry_or_field in after]
        assert len(left) >= len(before) - gone
        assert len(after) == len(before) - gone + new
