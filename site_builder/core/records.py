"""Store typed values in files that can execute nothing."""

from __future__ import annotations

import ast
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

Decoder = Callable[[Any], Any]


class MismatchError(ValueError):
    """A value is not of the type that is expected there."""


def dump_json(value: object) -> bytes:
    """Encode tuples, dataclasses and what they hold; a TypeError says what cannot be encoded."""
    return orjson.dumps(value, default=simplify)


def simplify(value: Any) -> object:  # noqa: ANN401 whatever orjson does not know
    """Give orjson something that it knows; a NamedTuple becomes a list."""
    if isinstance(value, tuple):
        return tuple(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)


def list_pairs(value: Any) -> Any:  # noqa: ANN401 whatever is to be encoded
    """Replace every dict whose keys are no text by a list of pairs, at any depth, as `make_decoder` expects them."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: list_pairs(item) for key, item in value.items()}
        return [[list_pairs(key), list_pairs(item)] for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [list_pairs(item) for item in value]
    if is_dataclass(value):
        return {field.name: list_pairs(getattr(value, field.name)) for field in fields(value)}
    return value


@cache
def make_decoder(kind: Any) -> Decoder:  # noqa: ANN401 a type, or what typing makes of several
    """Return a function that turns parsed JSON into `kind` or raises MismatchError."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if get_origin(kind):
        return make_generic_decoder(get_origin(kind), get_args(kind))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return decode_row(field_types(kind), kind._make)  # type: ignore[attr-defined]
    if is_dataclass(kind):
        return decode_dataclass(kind)
    message = f"no decoder for {kind!r}"
    raise TypeError(message)


def make_generic_decoder(origin: Any, inner: tuple[Any, ...]) -> Decoder:  # noqa: ANN401
    """Do the same for a type that is made of others."""
    if origin is Union:
        return decode_union(inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return decode_row(inner, tuple)
    if origin in (tuple, list, set, frozenset):
        return decode_many(inner[0], origin)
    if origin is dict:
        return decode_mapping(*inner)
    message = f"no decoder for {origin!r}"
    raise TypeError(message)


@cache
def leaf_types(kind: Any) -> frozenset[type]:  # noqa: ANN401
    """Return which types of JSON's own `kind` allows; none where it is not made of these alone."""
    if get_origin(kind) is Union:
        inner = [leaf_types(one) for one in get_args(kind)]
        return frozenset().union(*inner) if all(inner) else frozenset()
    return LEAVES.get(kind, frozenset())


def check_type(*types: type) -> Decoder:
    """Return a decoder of values that JSON has; a bool is no int here."""

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) in types:
            return value
        raise MismatchError

    return decode


def convert_text(convert: Callable[[str], Any]) -> Decoder:
    """Return a decoder of what JSON has only as text."""

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not str:
            raise MismatchError
        return convert(value)

    return decode


LEAVES: dict[Any, frozenset[type]] = {
    str: frozenset({str}),
    int: frozenset({int}),
    float: frozenset({float, int}),
    bool: frozenset({bool}),
    type(None): frozenset({type(None)}),
}
SIMPLE: dict[Any, Decoder] = {
    **{kind: check_type(*types) for kind, types in LEAVES.items()},
    bytes: convert_text(bytes.fromhex),
    date: convert_text(date.fromisoformat),
    Path: convert_text(Path),
}


def decode_union(kinds: tuple[Any, ...]) -> Decoder:
    """Return a decoder for the first of several types that fits."""
    decoders = [make_decoder(kind) for kind in kinds if kind is not type(None)]
    is_optional = len(decoders) < len(kinds)

    def decode(value: Any) -> Any:  # noqa: ANN401
        if value is None and is_optional:
            return None
        for one in decoders[:-1]:
            try:
                return one(value)
            except ValueError:
                continue
        return decoders[-1](value)

    return decode


def decode_many(kind: Any, make: Callable[[Any], Any]) -> Decoder:  # noqa: ANN401
    """Return a decoder for any number of one type."""
    item, leaves = make_decoder(kind), leaf_types(kind)

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not list:
            raise MismatchError
        if leaves.issuperset(map(type, value)):  # a thousand hosts have many of these
            return make(value)
        return make(map(item, value))

    return decode


def decode_row(kinds: Sequence[Any], make: Callable[[Any], Any]) -> Decoder:
    """Return a decoder for a tuple with these types."""
    items, count = [make_decoder(kind) for kind in kinds], len(kinds)
    is_flat = all(map(leaf_types, kinds))
    right: set[tuple[type, ...]] = set()  # types of rows that were right before

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not list or len(value) != count:
            raise MismatchError
        if is_flat and tuple(map(type, value)) in right:
            return make(value)
        row = make([item(one) for item, one in zip(items, value)])
        if is_flat:
            right.add(tuple(map(type, value)))
        return row

    return decode


def decode_mapping(key_type: Any, value_type: Any) -> Decoder:  # noqa: ANN401
    """Return a decoder for a dict; where its keys are no text, JSON has a list of pairs."""
    if key_type is not str:
        pairs = decode_many(tuple[key_type, value_type], dict)
        return lambda value: {} if value == {} else pairs(value)
    item = make_decoder(value_type)

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict:
            raise MismatchError
        return {key: item(one) for key, one in value.items()}

    return decode


def decode_dataclass(kind: Any, **given: object) -> Decoder:  # noqa: ANN401
    """Return a decoder for a dataclass; every field that is not given must be there, and no other."""
    types = dict(zip([field.name for field in fields(kind)], field_types(kind)))
    items = {name: make_decoder(one) for name, one in types.items() if name not in given}

    def decode(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict or value.keys() != items.keys():
            raise MismatchError
        return kind(**{name: item(value[name]) for name, item in items.items()}, **given)

    return decode


def field_types(kind: type) -> list[Any]:
    """Return the types of a class's fields, in their order."""
    names = {**vars(sys.modules[kind.__module__]), "Union": Union}
    return [evaluate(getattr(one, "__forward_arg__", one), names) for one in kind.__annotations__.values()]


def evaluate(annotation: Any, names: dict[str, Any]) -> Any:  # noqa: ANN401
    """Evaluate an annotation of our own code; Python 3.9 does not know `int | None`."""
    if not isinstance(annotation, str):
        return annotation
    tree = ast.fix_missing_locations(Unions().visit(ast.parse(annotation, mode="eval")))
    return eval(compile(tree, "<annotation>", "eval"), names)  # noqa: S307 # text of our own source files


class Unions(ast.NodeTransformer):
    """Turn `X | Y` into `Union[X, Y]`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace one."""
        self.generic_visit(node)
        both = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("Union", ast.Load()), both, ast.Load())


# Bytes of a whole file: more than 20,000 hosts can need.
LIMIT = 4 * 1024**3
LONGEST_LINE = 1024
SIZES = re.compile(rb"[0-9]{1,10}(?: [0-9]{1,10}){0,63}")
Record = tuple[bytes, Sequence[bytes]]


class DamagedFileError(Exception):
    """A file is not what was written."""


def write_records(path: Path, title: str, records: Iterable[Record]) -> None:
    """Write a file record by record: all of it in memory would be as much again."""

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


def read_records(path: Path, title: str) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield what was written; only who gets to the end without an error knows that it is whole."""
    try:
        handle = os.open(path, files.READ_FLAGS)
    except OSError as error:
        raise DamagedFileError(error.strerror) from error
    with os.fdopen(handle, "rb") as file:
        try:
            files.check_file(os.fstat(handle))
            yield from parse_records(file, title)
        except (OSError, files.FileRefusedError) as why:
            raise DamagedFileError(str(why)) from why


def parse_records(file: IO[bytes], title: str) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the records of an open file."""
    left = os.fstat(file.fileno()).st_size
    if left > LIMIT or read_line(file) != title.encode():
        raise DamagedFileError(title)
    total = count = 0
    while not (line := read_line(file)).startswith(b"end "):
        if not SIZES.fullmatch(line):
            raise DamagedFileError(title)
        ends = list(accumulate(map(int, line.split())))
        left -= ends[-1]
        if left < 0:  # before anything of that size is made
            raise DamagedFileError(title)
        payload = file.read(ends[-1])
        if len(payload) != ends[-1] or file.read(1) != b"\n":
            raise DamagedFileError(title)
        total = zlib.crc32(payload, total)
        count += 1
        yield payload[: ends[0]], [payload[start:end] for start, end in zip(ends, ends[1:])]
    if line != b"end %d %08x" % (count, total) or file.read(1):
        raise DamagedFileError(title)


def read_line(file: IO[bytes]) -> bytes:
    """Return a line without its end; a file that ends within it is damaged."""
    line = file.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise DamagedFileError(line[:80])
    return line[:-1]
