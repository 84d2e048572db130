"""The templates of the page."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined, Template
from jinja2.bccache import Bucket

LOADER = PackageLoader("site_builder", "templates")
# Escapes all that is put into a template.
ESCAPING = Environment(loader=LOADER, autoescape=True, undefined=StrictUndefined, auto_reload=False)
# Escapes nothing: for what is Html already, and for that alone.
READY = Environment(loader=LOADER, autoescape=False, undefined=StrictUndefined, auto_reload=False)  # noqa: S701


class Compiled(FileSystemBytecodeCache):
    """What templates are compiled to; a disk that is full costs no more than the time to do it again."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep one, if there is room."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def keep_compiled(folder: str) -> None:
    """Keep what templates are compiled to, which takes as long as a small build, in a folder of the builder's own."""
    ESCAPING.bytecode_cache = READY.bytecode_cache = Compiled(folder, "%s.template")


@lru_cache
def escaping(name: str) -> Template:
    """A template that escapes all that is put into it."""
    return ESCAPING.get_template(name)


@lru_cache
def ready(name: str) -> Template:
    """A template for Html."""
    return READY.get_template(name)
