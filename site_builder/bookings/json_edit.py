"""Read and edit the JSON of comments.json; everything that people wrote around its entries stays byte for byte."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined] # the stubs do not have it
from typing import NamedTuple

from site_builder.core.records import describe_json_error
from site_builder.core.terminal_text import clean_text

EntryContent = Mapping[str, object]
# A list of bookings has a place for each GPU of a host, and no host has more.
MAX_LISTED_GPUS = 64
MAX_NAME_CHARACTERS = 80
JSON_DECODER = json.JSONDecoder(strict=False)
WHITESPACE = re.compile(r"[ \t\n\r]*")
# An unclosed string or comment matches to the end, so that a hostile file takes no longer than another.
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
STRING_OR_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|,\s*(?P<end>[\]}])?', re.DOTALL)
TRAILING_COMMA = re.compile(r",\s*[\]}]")
NON_NEWLINE = re.compile(r"[^\n]")


class EntryPlacementError(Exception):
    """Why an entry has no place in the file as it is."""


class BookingJsonError(Exception):
    """Why nothing of the file can be read."""


class JsonMember(NamedTuple):
    """A value in an object or a list: its key or index, where both begin, and where it ends."""

    key: str
    start: int
    value_start: int
    end: int
    content: object


class JsonEntry(NamedTuple):
    """A booking as it is written: its host and GPU, and its position in the text."""

    host: str
    gpu: str
    content: dict[str, object]
    start: int
    end: int


@dataclass(frozen=True)
class JsonDocument:
    """The file as it is written, and as plain JSON in which every position is the same."""

    text: str
    plain_json: str
    encoding: str

    @staticmethod
    def from_bytes(data: bytes) -> JsonDocument:
        """Decode a file; raises BookingJsonError if it cannot be read."""
        text = decode_json_file(data)
        encoding = "utf-8"
        if text.encode("utf-8", "replace") != data:
            encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "latin-1"
        return JsonDocument(text, text_to_plain_json(text, []), encoding)

    @property
    def content(self) -> bytes:
        """Return the file as bytes; if Latin-1 would read as UTF-8 now, it becomes UTF-8."""
        data = self.text.encode(self.encoding)
        return data if decode_json_file(data) == self.text else self.text.encode()

    def list_entries(self) -> list[JsonEntry]:
        return list(iterate_json_entries(self.plain_json, []))

    def list_hosts(self) -> list[JsonMember]:
        return list_json_members(self.plain_json, self.root_position)

    def index_hosts(self) -> dict[str, JsonMember]:
        return index_json_members(self.plain_json, self.root_position)

    @property
    def root_position(self) -> int:
        return skip_json_whitespace(self.plain_json, 0)

    def format_value(self, content: object) -> str:
        """Return a value as JSON that the encoding of this file can hold."""
        text = json.dumps(content, ensure_ascii=False)
        try:
            text.encode("ascii" if self.encoding == "latin-1" else self.encoding)
        except UnicodeEncodeError:  # a surrogate, which no encoding can hold, or what Latin-1 does not have
            return json.dumps(content)
        return text

    def splice(self, *changes: tuple[int, int, str]) -> JsonDocument:
        """Replace texts at positions that do not overlap."""
        text = self.text
        for start, end, new in sorted(changes, reverse=True):
            text = text[:start] + new + text[end:]
        return JsonDocument(text, text_to_plain_json(text, []), self.encoding)


def add_json_entries(document: JsonDocument, host: str, entries: Sequence[tuple[str, EntryContent]]) -> JsonDocument:
    """Add entries under the key of a host, those of GPUs without an entry all at once; begin what is missing."""
    host_member = document.index_hosts().get(host)
    if host_member is None:
        document = insert_json_members(document, document.root_position, f"{document.format_value(host)}: {{}}")
    elif isinstance(host_member.content, list):
        if all(gpu.isdecimal() and int(gpu) < MAX_LISTED_GPUS for gpu, _ in entries):
            for gpu, content in entries:
                start, text = document.index_hosts()[host].value_start, document.format_value(content)
                members = list_json_members(document.plain_json, start)
                if int(gpu) < len(members):
                    document = add_entry_to_gpu(document, members[int(gpu)], text)
                else:  # places without a booking are {}
                    document = insert_json_members(document, start, *["{}"] * (int(gpu) - len(members)), text)
            return document
        # only an object by index can hold `*` and UUIDs
        members = list_json_members(document.plain_json, host_member.value_start)
        keys = [(member.value_start, member.value_start, f'"{member.key}": ') for member in members]
        start, end = host_member.value_start, host_member.end
        document = document.splice((start, start + 1, "{"), (end - 1, end, "}"), *keys)
    elif not isinstance(host_member.content, dict):
        if host_member.content:
            line = find_json_line_number(document.plain_json, host_member.start)
            raise EntryPlacementError(f"line {line}: the entry of {host} is not a booking")
        document = document.splice((host_member.value_start, host_member.end, "{}"))
    host_member = document.index_hosts()[host]
    new_gpus: dict[str, list[str]] = {}
    for gpu, content in entries:
        members = list_json_members(document.plain_json, host_member.value_start)
        same_gpu = [member for member in members if member.key.strip().lower() == gpu.lower()]
        if same_gpu:  # of several the last counts
            document = add_entry_to_gpu(document, same_gpu[-1], document.format_value(content))
            host_member = document.index_hosts()[host]
        else:
            new_gpus.setdefault(gpu, []).append(document.format_value(content))
    texts = [
        f"{document.format_value(gpu)}: " + (new[0] if len(new) == 1 else f"[{', '.join(new)}]")
        for gpu, new in new_gpus.items()
    ]
    return insert_json_members(document, host_member.value_start, *texts) if texts else document


def add_entry_to_gpu(document: JsonDocument, gpu_member: JsonMember, new_text: str) -> JsonDocument:
    """Add an entry to a GPU: to its list, in place of an empty one, or in a new list with the present one."""
    if isinstance(gpu_member.content, list):
        return insert_json_members(document, gpu_member.value_start, new_text)
    if is_empty_json_entry(gpu_member.content):
        return document.splice((gpu_member.value_start, gpu_member.end, new_text))
    start, end = gpu_member.value_start, gpu_member.end
    return document.splice((start, start, "["), (end, end, f", {new_text}]"))


def find_json_gpu(document: JsonDocument, host: str, gpu: str) -> JsonMember | None:
    """Return what is written under a GPU of a host, as a key of the file; of several the last counts."""
    host_member = document.index_hosts().get(host)
    if host_member is None or not isinstance(host_member.content, (dict, list)):
        return None
    members = list_json_members(document.plain_json, host_member.value_start)
    return next((member for member in reversed(members) if member.key.strip().lower() == gpu.lower()), None)


def clear_json_gpus(document: JsonDocument, gpu_members: Sequence[JsonMember]) -> JsonDocument:
    """Empty the places of GPUs, which the next entries of these GPUs take."""
    return document.splice(*((member.value_start, member.end, "{}") for member in gpu_members))


def remove_json_entry(document: JsonDocument, entry: JsonEntry) -> JsonDocument:
    """Remove an entry; the GPUs behind it in a list keep their places."""
    host = find_enclosing_json_member(document.list_hosts(), entry)
    gpu = find_enclosing_json_member(list_json_members(document.plain_json, host.value_start), entry)
    if isinstance(gpu.content, list) and len(gpu.content) > 1:
        member = find_enclosing_json_member(list_json_members(document.plain_json, gpu.value_start), entry)
        return remove_json_member(document, gpu.value_start, member)
    if isinstance(host.content, list):
        return document.splice((gpu.value_start, gpu.end, "{}"))
    return remove_json_member(document, host.value_start, gpu)


def update_json_entry(document: JsonDocument, entry: JsonEntry, content: EntryContent) -> JsonDocument:
    """Change values of an entry: keys that `content` lacks stay, None removes one."""
    for key, value in content.items():
        member = index_json_members(document.plain_json, entry.start).get(key)
        if member and value is None:
            document = remove_json_member(document, entry.start, member)
        elif member and member.content != value:
            document = document.splice((member.value_start, member.end, document.format_value(value)))
        elif member is None and value is not None:
            text = f"{document.format_value(key)}: {document.format_value(value)}"
            document = insert_json_members(document, entry.start, text)
    return document


def insert_json_members(document: JsonDocument, position: int, *texts: str) -> JsonDocument:
    """Insert members at the end of the object or list at a position, on lines of their own if others are."""
    members = list_json_members(document.plain_json, position)
    new = ", ".join(texts)
    if not members:
        return document.splice((position + 1, position + 1, new))
    end, start = members[-1].end, members[-1].start
    closing_position = skip_json_whitespace(document.plain_json, end)
    comma = blank_json_comments(document.text).find(",", end, closing_position)
    line_start = document.text.rfind("\n", 0, start) + 1
    line_end = document.text.find("\n", max(end, comma), closing_position)
    if line_end < 0 or document.text[line_start:start].strip() or "/*" in document.text[end:closing_position]:
        return document.splice((end, end, f", {new}") if comma < 0 else (comma + 1, comma + 1, f" {new}"))
    newline, line_end = ("\r\n", line_end - 1) if document.text[line_end - 1] == "\r" else ("\n", line_end)
    lines = ",".join(f"{newline}{document.text[line_start:start]}{text}" for text in texts)
    new_lines = (line_end, line_end, f"{lines}{',' if comma >= 0 else ''}")
    if comma >= 0:
        return document.splice(new_lines)
    if line_end == end:
        return document.splice((end, end, f",{new_lines[2]}"))
    return document.splice((end, end, ","), new_lines)


def remove_json_member(document: JsonDocument, position: int, member: JsonMember) -> JsonDocument:
    """Remove a member with its comma, and with its line if nothing else is on it."""
    members = list_json_members(document.plain_json, position)
    index = [sibling.start for sibling in members].index(member.start)
    text_without_comments, text = blank_json_comments(document.text), document.text
    is_last = index + 1 == len(members)
    next_start = skip_json_whitespace(document.plain_json, member.end) if is_last else members[index + 1].start
    comma = text_without_comments.find(",", member.end, next_start)
    start, end = member.start, member.end
    removed: list[tuple[int, int, str]] = []
    if comma >= 0:
        if text[end:comma].strip():
            removed.append((comma, comma + 1, ""))
        else:
            end = comma + 1
    elif index:
        previous_comma = text_without_comments.find(",", members[index - 1].end, member.start)
        if text[previous_comma + 1 : start].strip() or "\n" in text[previous_comma:start]:
            removed.append((previous_comma, previous_comma + 1, ""))
        else:
            start = previous_comma
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    if line_start and line_end >= 0 and not text[line_start:start].strip() and not text[end:line_end].strip():
        start, end = line_start, line_end + 1
    return document.splice((start, end, ""), *removed)


def find_enclosing_json_member(members: list[JsonMember], entry: JsonEntry) -> JsonMember:
    (enclosing,) = (member for member in members if member.value_start <= entry.start and entry.end <= member.end)
    return enclosing


def is_empty_json_entry(content: object) -> bool:
    """Return whether nothing is lost if another content takes its place."""
    return not content or (isinstance(content, dict) and not any(content.values()))


# Reading JSON, with the position of each value


def decode_json_file(data: bytes) -> str:
    """Decode UTF-8, or else Latin-1, which old editors write."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def text_to_plain_json(text: str, problems: list[str]) -> str:
    """Return plain JSON, with comments and trailing commas blanked out, so that every position stays the same."""
    if not text.strip():  # an editor may be about to write it
        raise BookingJsonError("it is empty; write {} where there are no bookings")
    text = blank_json_comments(text)
    if TRAILING_COMMA.search(text):
        text = STRING_OR_COMMA.sub(lambda match: f" {match[0][1:]}" if match["end"] else match[0], text)

    def check_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    problems.append(f'the key "{clean_text(key)[:80]}" occurs twice; the last one counts')
                seen.add(key)
        return members

    try:
        content = json.loads(text, object_pairs_hook=check_duplicates, strict=False)
    except json.JSONDecodeError as error:
        raise BookingJsonError(describe_json_error(error)) from None
    except (ValueError, RecursionError):
        raise BookingJsonError("it is nested too deeply to be read") from None
    if not isinstance(content, dict):
        raise BookingJsonError("it must be an object of hosts: {host: [ … ]}")
    return text


def blank_json_comments(text: str) -> str:
    if "//" not in text and "/*" not in text:  # which is soon seen, and mostly so
        return text
    return STRING_OR_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else NON_NEWLINE.sub(" ", match[0]), text)


def iterate_json_entries(text: str, problems: list[str]) -> Iterator[JsonEntry]:
    """Yield every entry of a plain text, under its host and GPU: an index, a UUID, or `*`; null and empty are none."""
    for host in index_json_members(text, skip_json_whitespace(text, 0)).values():
        name = clean_text(host.key)[:MAX_NAME_CHARACTERS]
        if not host.content:
            continue
        if not isinstance(host.content, (dict, list)):
            problems.append(f"{name}: must be a list of bookings, or an object with a key per GPU")
            continue
        for gpu in index_json_members(text, host.value_start).values():
            key = clean_text(gpu.key).strip()[:MAX_NAME_CHARACTERS]
            for member in list_json_members(text, gpu.value_start) if isinstance(gpu.content, list) else (gpu,):
                if isinstance(member.content, dict):
                    yield JsonEntry(name, key, member.content, member.value_start, member.end)
                elif member.content:
                    location = f"line {find_json_line_number(text, member.value_start)}, {name}, GPU {key}"
                    problems.append(f"{location}: a booking must be an object with name, date and comment")


def index_json_members(text: str, position: int) -> dict[str, JsonMember]:
    """Return the members of an object or list by their keys; of those with the same key the last."""
    return {member.key: member for member in list_json_members(text, position)}


def list_json_members(text: str, position: int) -> list[JsonMember]:
    """List the values of the object or list that begins at a position, in valid JSON."""
    members: list[JsonMember] = []
    closing_bracket = {"{": "}", "[": "]"}[text[position]]
    start = skip_json_whitespace(text, position + 1)
    while text[start] != closing_bracket:
        key, value_start = str(len(members)), start
        if closing_bracket == "}":
            key, value_start = scanstring(text, start + 1, False)
            value_start = skip_json_whitespace(text, skip_json_whitespace(text, value_start) + 1)
        content, end = JSON_DECODER.raw_decode(text, value_start)
        members.append(JsonMember(key, start, value_start, end, content))
        start = skip_json_whitespace(text, end)
        if text[start] == ",":
            start = skip_json_whitespace(text, start + 1)
    return members


def skip_json_whitespace(text: str, position: int) -> int:
    match = WHITESPACE.match(text, position)
    return match.end() if match else position


def find_json_line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def is_readable_json(content: bytes) -> bool:
    try:
        return bool(JsonDocument.from_bytes(content))
    except BookingJsonError:
        return False


def build_json_entry_key(entry: JsonEntry) -> str:
    return json.dumps([entry.host, entry.gpu, entry.content])


def count_json_entries(document: JsonDocument) -> Counter[str]:
    """Count the entries of a file by their keys; two that are equal are two."""
    entries = (entry for entry in document.list_entries() if not is_empty_json_entry(entry.content))
    return Counter(map(build_json_entry_key, entries))


def count_json_remarks(document: JsonDocument) -> Counter[str]:
    """Count the comments and other values that people wrote beside the entries."""
    tokens = (match[0] for match in STRING_OR_COMMENT.finditer(document.text))
    comments = [token.strip() for token in tokens if not token.startswith('"')]
    others = [member for member in document.list_hosts() if not isinstance(member.content, (dict, list))]
    return Counter([*comments, *(f"{member.key}: {member.content}" for member in others)])
