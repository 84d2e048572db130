"""comments.json with one entry more, less or other: all that people wrote around it stays, letter by letter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from site_builder.bookings import parser
from site_builder.bookings.parser import BookingEntry, JsonMember

EntryContent = Mapping[str, object]
# A list of bookings has a place for each GPU of a host, and no host has more.
MAX_LISTED_GPUS = 64


class EntryPlacementError(Exception):
    """Why an entry has no place in the file as it is."""


@dataclass(frozen=True)
class BookingDocument:
    """The file as it is written, and as plain JSON in which every place is the same."""

    text: str
    plain_json: str
    encoding: str

    @staticmethod
    def from_bytes(data: bytes) -> BookingDocument:
        """Take it up; `BookingFileError` says why it cannot be read."""
        text = parser.decode_bookings_file(data)
        encoding = "utf-8"
        if text.encode("utf-8", "replace") != data:
            encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "latin-1"
        return BookingDocument(text, parser.to_plain_json(text, []), encoding)

    @property
    def content(self) -> bytes:
        """The file again; should Latin-1 be left that reads as UTF-8, it is UTF-8 from now on."""
        data = self.text.encode(self.encoding)
        return data if parser.decode_bookings_file(data) == self.text else self.text.encode()

    def list_entries(self) -> list[BookingEntry]:
        """Every entry that counts."""
        return list(parser.iterate_entries(self.plain_json, []))

    def list_hosts(self) -> list[JsonMember]:
        """The hosts, each with all that stands under it."""
        return parser.list_members(self.plain_json, self.root_position)

    @property
    def root_position(self) -> int:
        """Where the object begins that holds all."""
        return parser.skip_whitespace(self.plain_json, 0)

    def format_value(self, content: object) -> str:
        """A value as it may be written here."""
        text = json.dumps(content, ensure_ascii=False)
        # half a letter, which JSON can hold and no encoding, stays escaped, as does what Latin-1 does not have
        return (
            text if can_encode(text, "ascii" if self.encoding == "latin-1" else self.encoding) else json.dumps(content)
        )

    def splice(self, *changes: tuple[int, int, str]) -> BookingDocument:
        """With other words in these places, of which none touches another."""
        text = self.text
        for start, end, new in sorted(changes, reverse=True):
            text = text[:start] + new + text[end:]
        return BookingDocument(text, parser.to_plain_json(text, []), self.encoding)


def add_entry(file: BookingDocument, host: str, gpu: str, content: EntryContent) -> BookingDocument:
    """With one entry more; a host, a GPU or a list of bookings is begun where there is none."""
    return add_entries(file, host, [(gpu, content)])


def add_entries(file: BookingDocument, host: str, several: Sequence[tuple[str, EntryContent]]) -> BookingDocument:
    """With several entries more under the key of a host, those of GPUs that have none all at once."""
    there = {one.key: one for one in file.list_hosts()}.get(host)
    if there is None:
        return add_entries(insert_members(file, file.root_position, f"{file.format_value(host)}: {{}}"), host, several)
    if isinstance(there.content, list) and all(gpu.isdecimal() and int(gpu) < MAX_LISTED_GPUS for gpu, _ in several):
        for gpu, content in several:
            host_now = {one.key: one for one in file.list_hosts()}[host]
            file = add_to_host_list(file, host_now, int(gpu), file.format_value(content))
        return file
    if isinstance(there.content, list):
        return add_entries(convert_list_to_object(file, there), host, several)
    if not isinstance(there.content, dict):
        if there.content:
            message = (
                f"line {parser.find_line_number(file.plain_json, there.start)}: what stands under {host} is no booking"
            )
            raise EntryPlacementError(message)
        return add_entries(file.splice((there.value_start, there.end, "{}")), host, several)
    new: dict[str, EntryContent] = {}
    rest: list[tuple[str, EntryContent]] = []
    for gpu, content in several:
        mine = find_gpu_member(parser.list_members(file.plain_json, there.value_start), gpu)
        if mine is None and gpu not in new:
            new[gpu] = content
        elif mine is None:
            rest.append((gpu, content))
        else:
            file = add_to_gpu(file, mine, file.format_value(content))
            there = {one.key: one for one in file.list_hosts()}[host]
    if new:
        texts = [f"{file.format_value(gpu)}: {file.format_value(content)}" for gpu, content in new.items()]
        file = insert_members(file, there.value_start, *texts)
    return add_entries(file, host, rest) if rest else file


def add_to_host_list(file: BookingDocument, host: JsonMember, gpu: int, new: str) -> BookingDocument:
    """A list has a place for each GPU; those that nobody has booked are {}."""
    found = parser.list_members(file.plain_json, host.value_start)
    if gpu < len(found):
        return add_to_gpu(file, found[gpu], new)
    for _ in range(gpu - len(found)):
        file = insert_members(file, host.value_start, "{}")
    return insert_members(file, host.value_start, new)


def add_to_gpu(file: BookingDocument, mine: JsonMember, new: str) -> BookingDocument:
    """One more for a GPU: in its list, in the place of what is empty, or in a list that begins with what is there."""
    if isinstance(mine.content, list):
        return insert_members(file, mine.value_start, new)
    if is_empty_content(mine.content):
        return file.splice((mine.value_start, mine.end, new))
    return file.splice((mine.value_start, mine.value_start, "["), (mine.end, mine.end, f", {new}]"))


def convert_list_to_object(file: BookingDocument, host: JsonMember) -> BookingDocument:
    """A list of GPUs as an object by index, which alone can hold `*` and UUIDs."""
    found = parser.list_members(file.plain_json, host.value_start)
    keys = [(one.value_start, one.value_start, f'"{one.key}": ') for one in found]
    return file.splice((host.value_start, host.value_start + 1, "{"), (host.end - 1, host.end, "}"), *keys)


def remove_entry(file: BookingDocument, entry: BookingEntry) -> BookingDocument:
    """Without an entry; the GPUs behind it in a list keep their places."""
    host = find_enclosing_member(file.list_hosts(), entry)
    gpu = find_enclosing_member(parser.list_members(file.plain_json, host.value_start), entry)
    if isinstance(gpu.content, list) and len(gpu.content) > 1:
        return remove_member(
            file,
            gpu.value_start,
            find_enclosing_member(parser.list_members(file.plain_json, gpu.value_start), entry),
        )
    if isinstance(host.content, list):
        return file.splice((gpu.value_start, gpu.end, "{}"))
    return remove_member(file, host.value_start, gpu)


def update_entry(file: BookingDocument, entry: BookingEntry, content: EntryContent) -> BookingDocument:
    """With other values in an entry: what is not named in `content` stays, what is None there goes."""
    for key, value in content.items():
        mine = {one.key: one for one in parser.list_members(file.plain_json, entry.start)}.get(key)
        if mine and value is None:
            file = remove_member(file, entry.start, mine)
        elif mine and mine.content != value:
            file = file.splice((mine.value_start, mine.end, file.format_value(value)))
        elif mine is None and value is not None:
            file = insert_members(file, entry.start, f"{file.format_value(key)}: {file.format_value(value)}")
    return file


def insert_members(file: BookingDocument, at: int, *several: str) -> BookingDocument:
    """With members more at the end of the object or list that begins there, in lines of their own if others are."""
    found = parser.list_members(file.plain_json, at)
    new = ", ".join(several)
    if not found:
        return file.splice((at + 1, at + 1, new))
    end, start = found[-1].end, found[-1].start
    close = parser.skip_whitespace(file.plain_json, end)
    comma = parser.blank_comments(file.text).find(",", end, close)
    line = file.text.rfind("\n", 0, start) + 1
    broken = file.text.find("\n", max(end, comma), close)
    if broken < 0 or file.text[line:start].strip() or "/*" in file.text[end:close]:
        return file.splice((end, end, f", {new}") if comma < 0 else (comma + 1, comma + 1, f" {new}"))
    return_, broken = ("\r\n", broken - 1) if file.text[broken - 1] == "\r" else ("\n", broken)
    lines = ",".join(f"{return_}{file.text[line:start]}{one}" for one in several)
    behind = (broken, broken, f"{lines}{',' if comma >= 0 else ''}")
    if comma >= 0:
        return file.splice(behind)
    if broken == end:
        return file.splice((end, end, f",{behind[2]}"))
    return file.splice((end, end, ","), behind)


def remove_member(file: BookingDocument, at: int, member: JsonMember) -> BookingDocument:
    """Without a member, without its comma, and without its line if nothing else is in it."""
    found = parser.list_members(file.plain_json, at)
    place = [one.start for one in found].index(member.start)
    bare, text = parser.blank_comments(file.text), file.text
    follows = found[place + 1].start if place + 1 < len(found) else parser.skip_whitespace(file.plain_json, member.end)
    comma = bare.find(",", member.end, follows)
    start, end = member.start, member.end
    gone: list[tuple[int, int, str]] = []
    if comma >= 0:
        if text[end:comma].strip():
            gone.append((comma, comma + 1, ""))
        else:
            end = comma + 1
    elif place:
        before = bare.find(",", found[place - 1].end, member.start)
        if text[before + 1 : start].strip() or "\n" in text[before:start]:
            gone.append((before, before + 1, ""))
        else:
            start = before
    line = text.rfind("\n", 0, start) + 1
    broken = text.find("\n", end)
    if line and broken >= 0 and not text[line:start].strip() and not text[end:broken].strip():
        start, end = line, broken + 1
    return file.splice((start, end, ""), *gone)


def find_gpu_member(several: Sequence[JsonMember], gpu: str) -> JsonMember | None:
    """The one under which the bookings of a GPU stand, of which the last counts; a UUID may be in another case."""
    found = [one for one in several if one.key.strip().lower() == gpu.lower()]
    return found[-1] if found else None


def find_enclosing_member(several: list[JsonMember], entry: BookingEntry) -> JsonMember:
    """The one in which an entry stands."""
    (found,) = (one for one in several if one.value_start <= entry.start and entry.end <= one.end)
    return found


def is_empty_content(content: object) -> bool:
    """Whether nothing is lost if another content takes its place."""
    return not content or (isinstance(content, dict) and not any(content.values()))


def can_encode(text: str, encoding: str) -> bool:
    """Whether a text has an encoding."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
