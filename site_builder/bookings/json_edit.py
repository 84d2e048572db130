"""comments.json with one entry more, less or other: all that people wrote around it stays, letter by letter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from site_builder.bookings import json_positions, parser
from site_builder.bookings.json_positions import Member
from site_builder.bookings.parser import Entry

Content = Mapping[str, object]
# A list of bookings has a place for each GPU of a host, and no host has more.
MOST_GPUS = 64


class Odd(Exception):
    """Why an entry has no place in the file as it is."""


@dataclass(frozen=True)
class Text:
    """The file as it is written, and as plain JSON in which every place is the same."""

    text: str
    plain: str
    encoding: str

    @staticmethod
    def of(data: bytes) -> Text:
        """Take it up; `Unreadable` says why it cannot be read."""
        text = parser.text_of(data)
        encoding = "utf-8"
        if text.encode("utf-8", "replace") != data:
            encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "latin-1"
        return Text(text, parser.plain(text, []), encoding)

    @property
    def data(self) -> bytes:
        """The file again; should Latin-1 be left that reads as UTF-8, it is UTF-8 from now on."""
        data = self.text.encode(self.encoding)
        return data if parser.text_of(data) == self.text else self.text.encode()

    def entries(self) -> list[Entry]:
        """Every entry that counts."""
        return list(parser.entries(self.plain, []))

    def hosts(self) -> list[Member]:
        """The hosts, each with all that stands under it."""
        return json_positions.members(self.plain, self.top)

    @property
    def top(self) -> int:
        """Where the object begins that holds all."""
        return json_positions.after_blank(self.plain, 0)

    def json(self, content: object) -> str:
        """A value as it may be written here."""
        text = json.dumps(content, ensure_ascii=False)
        # half a letter, which JSON can hold and no encoding, stays escaped, as does what Latin-1 does not have
        return text if can_be(text, "ascii" if self.encoding == "latin-1" else self.encoding) else json.dumps(content)

    def spliced(self, *changes: tuple[int, int, str]) -> Text:
        """With other words in these places, of which none touches another."""
        text = self.text
        for start, end, new in sorted(changes, reverse=True):
            text = text[:start] + new + text[end:]
        return Text(text, parser.plain(text, []), self.encoding)


def added(file: Text, host: str, gpu: str, content: Content) -> Text:
    """With one entry more; a host, a GPU or a list of bookings is begun where there is none."""
    return added_all(file, host, [(gpu, content)])


def added_all(file: Text, host: str, several: Sequence[tuple[str, Content]]) -> Text:
    """With several entries more under the key of a host, those of GPUs that have none all at once."""
    there = {one.key: one for one in file.hosts()}.get(host)
    if there is None:
        return added_all(inserted(file, file.top, f"{file.json(host)}: {{}}"), host, several)
    if isinstance(there.content, list) and all(gpu.isdecimal() and int(gpu) < MOST_GPUS for gpu, _ in several):
        for gpu, content in several:
            host_now = {one.key: one for one in file.hosts()}[host]
            file = added_to_list(file, host_now, int(gpu), file.json(content))
        return file
    if isinstance(there.content, list):
        return added_all(keyed(file, there), host, several)
    if not isinstance(there.content, dict):
        if there.content:
            message = f"line {json_positions.line(file.plain, there.start)}: what stands under {host} is no booking"
            raise Odd(message)
        return added_all(file.spliced((there.value, there.end, "{}")), host, several)
    new: dict[str, Content] = {}
    rest: list[tuple[str, Content]] = []
    for gpu, content in several:
        mine = gpu_of(json_positions.members(file.plain, there.value), gpu)
        if mine is None and gpu not in new:
            new[gpu] = content
        elif mine is None:
            rest.append((gpu, content))
        else:
            file = added_to(file, mine, file.json(content))
            there = {one.key: one for one in file.hosts()}[host]
    if new:
        texts = [f"{file.json(gpu)}: {file.json(content)}" for gpu, content in new.items()]
        file = inserted(file, there.value, *texts)
    return added_all(file, host, rest) if rest else file


def added_to_list(file: Text, host: Member, gpu: int, new: str) -> Text:
    """A list has a place for each GPU; those that nobody has booked are {}."""
    found = json_positions.members(file.plain, host.value)
    if gpu < len(found):
        return added_to(file, found[gpu], new)
    for _ in range(gpu - len(found)):
        file = inserted(file, host.value, "{}")
    return inserted(file, host.value, new)


def added_to(file: Text, mine: Member, new: str) -> Text:
    """One more for a GPU: in its list, in the place of what is empty, or in a list that begins with what is there."""
    if isinstance(mine.content, list):
        return inserted(file, mine.value, new)
    if is_empty(mine.content):
        return file.spliced((mine.value, mine.end, new))
    return file.spliced((mine.value, mine.value, "["), (mine.end, mine.end, f", {new}]"))


def keyed(file: Text, host: Member) -> Text:
    """A list of GPUs as an object by index, which alone can hold `*` and UUIDs."""
    found = json_positions.members(file.plain, host.value)
    keys = [(one.value, one.value, f'"{one.key}": ') for one in found]
    return file.spliced((host.value, host.value + 1, "{"), (host.end - 1, host.end, "}"), *keys)


def removed(file: Text, entry: Entry) -> Text:
    """Without an entry; the GPUs behind it in a list keep their places."""
    host = around(file.hosts(), entry)
    gpu = around(json_positions.members(file.plain, host.value), entry)
    if isinstance(gpu.content, list) and len(gpu.content) > 1:
        return dropped(file, gpu.value, around(json_positions.members(file.plain, gpu.value), entry))
    if isinstance(host.content, list):
        return file.spliced((gpu.value, gpu.end, "{}"))
    return dropped(file, host.value, gpu)


def replaced(file: Text, entry: Entry, content: Content) -> Text:
    """With other values in an entry: what is not named in `content` stays, what is None there goes."""
    for key, value in content.items():
        mine = {one.key: one for one in json_positions.members(file.plain, entry.start)}.get(key)
        if mine and value is None:
            file = dropped(file, entry.start, mine)
        elif mine and mine.content != value:
            file = file.spliced((mine.value, mine.end, file.json(value)))
        elif mine is None and value is not None:
            file = inserted(file, entry.start, f"{file.json(key)}: {file.json(value)}")
    return file


def inserted(file: Text, at: int, *several: str) -> Text:
    """With members more at the end of the object or list that begins there, in lines of their own if others are."""
    found = json_positions.members(file.plain, at)
    new = ", ".join(several)
    if not found:
        return file.spliced((at + 1, at + 1, new))
    end, start = found[-1].end, found[-1].start
    close = json_positions.after_blank(file.plain, end)
    comma = parser.uncommented(file.text).find(",", end, close)
    line = file.text.rfind("\n", 0, start) + 1
    broken = file.text.find("\n", max(end, comma), close)
    if broken < 0 or file.text[line:start].strip() or "/*" in file.text[end:close]:
        return file.spliced((end, end, f", {new}") if comma < 0 else (comma + 1, comma + 1, f" {new}"))
    return_, broken = ("\r\n", broken - 1) if file.text[broken - 1] == "\r" else ("\n", broken)
    lines = ",".join(f"{return_}{file.text[line:start]}{one}" for one in several)
    behind = (broken, broken, f"{lines}{',' if comma >= 0 else ''}")
    if comma >= 0:
        return file.spliced(behind)
    if broken == end:
        return file.spliced((end, end, f",{behind[2]}"))
    return file.spliced((end, end, ","), behind)


def dropped(file: Text, at: int, member: Member) -> Text:
    """Without a member, without its comma, and without its line if nothing else is in it."""
    found = json_positions.members(file.plain, at)
    place = [one.start for one in found].index(member.start)
    bare, text = parser.uncommented(file.text), file.text
    follows = found[place + 1].start if place + 1 < len(found) else json_positions.after_blank(file.plain, member.end)
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
    return file.spliced((start, end, ""), *gone)


def gpu_of(several: Sequence[Member], gpu: str) -> Member | None:
    """The one under which the bookings of a GPU stand, of which the last counts; a UUID may be in another case."""
    found = [one for one in several if one.key.strip().lower() == gpu.lower()]
    return found[-1] if found else None


def around(several: list[Member], entry: Entry) -> Member:
    """The one in which an entry stands."""
    (found,) = (one for one in several if one.value <= entry.start and entry.end <= one.end)
    return found


def is_empty(content: object) -> bool:
    """Whether nothing is lost if another content takes its place."""
    return not content or (isinstance(content, dict) and not any(content.values()))


def can_be(text: str, encoding: str) -> bool:
    """Whether a text has an encoding."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
