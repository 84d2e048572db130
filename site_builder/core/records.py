"""Store typed values in files that can execute nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Union, get_args, get_origin

import orjson

from site_builder.core import files
from site_builder.core.terminal_text import clean_text, flatten_terminal_text

Decoder = Callable[[Any], Any]
JSON_TYPES: dict[Any, frozenset[type]] = {kind: frozenset({kind}) for kind in (str, int, bool, type(None))}
JSON_TYPES[float] = frozenset({float, int})
# Types that JSON has as text.
TEXT_CONVERTERS: dict[Any, Decoder] = {bytes: bytes.fromhex, date: date.fromisoformat, Path: Path}
# Bytes of a file: more than 20,000 hosts need.
MAX_RECORDS_BYTES = 4 * 1024**3
MAX_LINE_BYTES = 1024
SIZE_LINE = re.compile(rb"[0-9]{1,10}(?: [0-9]{1,10}){0,63}")
Record = tuple[bytes, Sequence[bytes]]
NUMBER_TYPES = (int, float)
MAX_NUMBER = 1e15


JSON_ERROR_MEANINGS = {
    "Expecting ',' delimiter": "a comma or a closing bracket is missing before this",
    "Expecting ':' delimiter": "a colon is missing before this",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing here",
    "Expecting value": "a value is missing here",
    "Unterminated string starting at": "this text has no closing quotation mark",
    "Extra data": "there is more text after the end",
}


class WrongTypeError(ValueError):
    """A value does not have the expected type."""


class DamagedFileError(Exception):
    """A file is not as it was written."""


def encode_record(value: object) -> bytes:
    """Encode tuples, dataclasses and their content; raise TypeError for anything else."""
    return orjson.dumps(value, default=convert_for_json)


def convert_for_json(value: Any) -> object:  # noqa: ANN401 # anything that orjson cannot encode
    """Convert to something that orjson can encode; a NamedTuple becomes a list."""
    if isinstance(value, tuple):
        return tuple(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)


def describe_json_error(error: json.JSONDecodeError) -> str:
    return f"line {error.lineno}, column {error.colno}: {JSON_ERROR_MEANINGS.get(error.msg, error.msg)}"


def replace_dicts_by_pairs(value: Any) -> Any:  # noqa: ANN401 # any value to encode
    """Replace every dict with keys other than text by a list of pairs, as `make_record_decoder` expects."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: replace_dicts_by_pairs(entry) for key, entry in value.items()}
        return [[replace_dicts_by_pairs(key), replace_dicts_by_pairs(entry)] for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return [replace_dicts_by_pairs(entry) for entry in value]
    if is_dataclass(value):
        return {field.name: replace_dicts_by_pairs(getattr(value, field.name)) for field in fields(value)}
    return value


@cache
def make_record_decoder(kind: Any) -> Decoder:  # noqa: ANN401 # a type or a typing construct
    """Return a function that turns parsed JSON into `kind` or raises WrongTypeError."""
    if kind in SIMPLE_DECODERS:
        return SIMPLE_DECODERS[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Union:
        return build_union_decoder(inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return build_tuple_decoder(inner, tuple)
    if origin in (tuple, list, set, frozenset):
        return build_collection_decoder(inner[0], origin)
    if origin is dict:
        return build_mapping_decoder(*inner)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return build_tuple_decoder(list_field_types(kind), kind._make)  # type: ignore[attr-defined]
    if is_dataclass(kind):
        return build_dataclass_decoder(kind)
    raise TypeError(f"no decoder for {kind!r}")


def build_simple_decoder(types: frozenset[type], convert: Decoder | None = None) -> Decoder:
    """Return a decoder of JSON's own types, or of one that JSON has as text; a bool is not an int here."""

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) in types:
            return value
        raise WrongTypeError

    return decode if convert is None else lambda value: convert(decode(value))


SIMPLE_DECODERS: dict[Any, Decoder] = {
    **{kind: build_simple_decoder(types) for kind, types in JSON_TYPES.items()},
    **{kind: build_simple_decoder(JSON_TYPES[str], convert) for kind, convert in TEXT_CONVERTERS.items()},
}


@cache
def list_leaf_types(kind: Any) -> frozenset[type]:  # noqa: ANN401
    """Return the JSON types that `kind` allows; none if it is not made of these alone."""
    if get_origin(kind) is Union:
        inner = [list_leaf_types(part) for part in get_args(kind)]
        return frozenset().union(*inner) if all(inner) else frozenset()
    return JSON_TYPES.get(kind, frozenset())


def build_union_decoder(kinds: tuple[Any, ...]) -> Decoder:
    decoders = [make_record_decoder(kind) for kind in kinds if kind is not type(None)]
    is_optional = len(decoders) < len(kinds)

    def decode(value: Any) -> Any:  # noqa: ANN401
        if value is None and is_optional:
            return None
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except ValueError:
                continue
        return decoders[-1](value)

    return decode


def build_collection_decoder(kind: Any, build: Callable[[Any], Any]) -> Decoder:  # noqa: ANN401
    decode_item, leaves = make_record_decoder(kind), list_leaf_types(kind)

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not list:
            raise WrongTypeError
        if leaves.issuperset(map(type, value)):  # a fast path: a thousand hosts have many of these
            return build(value)
        return build(map(decode_item, value))

    return decode


def build_tuple_decoder(kinds: Sequence[Any], build: Callable[[Any], Any]) -> Decoder:
    decoders, count = [make_record_decoder(kind) for kind in kinds], len(kinds)
    is_flat = all(map(list_leaf_types, kinds))
    valid_types: set[tuple[type, ...]] = set()  # of the cells in rows decoded before

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not list or len(value) != count:
            raise WrongTypeError
        if is_flat and tuple(map(type, value)) in valid_types:
            return build(value)
        row = build([decoder(cell) for decoder, cell in zip(decoders, value)])
        if is_flat:
            valid_types.add(tuple(map(type, value)))
        return row

    return decode


def build_mapping_decoder(key_type: Any, value_type: Any) -> Decoder:  # noqa: ANN401
    """Return a decoder for a dict; with keys other than text, JSON has a list of pairs."""
    if key_type is not str:
        decode_pairs = build_collection_decoder(tuple[key_type, value_type], dict)
        return lambda value: {} if value == {} else decode_pairs(value)
    decode_item = make_record_decoder(value_type)

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict:
            raise WrongTypeError
        return {key: decode_item(entry) for key, entry in value.items()}

    return decode


def build_dataclass_decoder(kind: Any, **fixed_fields: object) -> Decoder:  # noqa: ANN401
    """Return a decoder for a dataclass; all fields must be there except the fixed ones, and no others."""
    types = dict(zip([field.name for field in fields(kind)], list_field_types(kind)))
    decoders = {name: make_record_decoder(field_type) for name, field_type in types.items() if name not in fixed_fields}

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict or value.keys() != decoders.keys():
            raise WrongTypeError
        return kind(**{name: decoder(value[name]) for name, decoder in decoders.items()}, **fixed_fields)

    return decode


def list_field_types(kind: type) -> list[Any]:
    """Evaluate the annotations of our own code; Python 3.9 does not know `int | None`."""
    names = {**vars(sys.modules[kind.__module__]), "Union": Union}
    types = []
    for annotation in kind.__annotations__.values():
        field_type = getattr(annotation, "__forward_arg__", annotation)
        if isinstance(field_type, str):
            tree = ast.fix_missing_locations(UnionRewriter().visit(ast.parse(field_type, mode="eval")))
            field_type = eval(compile(tree, "<annotation>", "eval"), names)  # noqa: S307 # in our own source files
        types.append(field_type)
    return types


class UnionRewriter(ast.NodeTransformer):
    """Turn `X | Y` into `Union[X, Y]`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        both = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("Union", ast.Load()), both, ast.Load())


def write_record_file(path: Path, title: str, records: Iterable[Record]) -> None:
    """Write a file record by record, so that it is never in memory as a whole."""

    def write(file: IO[bytes]) -> None:
        total = count = 0
        file.write(f"{title}\n".encode())
        for text, blobs in records:
            parts = [text, *blobs]
            file.write(b" ".join(b"%d" % len(part) for part in parts) + b"\n")
            payload = b"".join(parts)
            total = zlib.crc32(payload, total)
            file.write(payload)
            file.write(b"\n")
            count += 1
        file.write(b"end %d %08x\n" % (count, total))

    files.write_atomically(path, write, 0o600)


def read_record_file(path: Path, title: str) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the records; the file is whole only if this ends without an error."""
    try:
        handle = os.open(path, files.READ_FLAGS)
    except OSError as error:
        raise DamagedFileError(error.strerror) from error
    with os.fdopen(handle, "rb") as file:
        try:
            status = os.fstat(handle)
            files.check_own_file(status)
            left = status.st_size
            if left > MAX_RECORDS_BYTES or read_record_line(file) != title.encode():
                raise DamagedFileError(title)
            total = count = 0
            while not (line := read_record_line(file)).startswith(b"end "):
                if not SIZE_LINE.fullmatch(line):
                    raise DamagedFileError(title)
                ends = list(accumulate(map(int, line.split())))
                left -= ends[-1]
                payload = file.read(ends[-1]) if left >= 0 else b""  # memory of that size is taken first
                if len(payload) != ends[-1] or file.read(1) != b"\n":
                    raise DamagedFileError(title)
                total = zlib.crc32(payload, total)
                count += 1
                yield payload[: ends[0]], [payload[start:end] for start, end in zip(ends, ends[1:])]
            if line != b"end %d %08x" % (count, total) or file.read(1):
                raise DamagedFileError(title)
        except (OSError, files.FileRefusedError) as error:
            raise DamagedFileError(str(error)) from error


def read_record_line(file: IO[bytes]) -> bytes:
    """Return a line without its end; raise if the file ends within it."""
    line = file.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise DamagedFileError(line[:80])
    return line[:-1]


def as_text(value: object) -> str | None:
    """Return a text that is known to be clean."""
    return value if isinstance(value, str) else None


def as_clean_text(value: object) -> str | None:
    """Return a text in one line, without characters that control a terminal or the direction of writing."""
    if not isinstance(value, str) or (value.isascii() and value.isprintable()):  # nearly all texts are clean
        return as_text(value)
    return flatten_terminal_text(clean_text(value))


def as_number(value: object) -> float | None:
    """Return a plausible number from 0 up; true and false are not numbers."""
    return value if type(value) in NUMBER_TYPES and 0 <= value < MAX_NUMBER else None  # type: ignore[operator,return-value]


def as_integer(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
