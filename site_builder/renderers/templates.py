"""The templates of the page."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined, Template

LOADER = PackageLoader("site_builder", "templates")
# Escapes all that is put into a template.
ESCAPING = Environment(loader=LOADER, autoescape=True, undefined=StrictUndefined, auto_reload=False)
# Escapes nothing: for what is Html already, and for that alone.
READY = Environment(loader=LOADER, autoescape=False, undefined=StrictUndefined, auto_reload=False)  # noqa: S701


def keep_compiled(folder: str) -> None:
    """Keep what templates are compiled to, which takes as long as a small build, in a folder of the builder's own."""
    ESCAPING.bytecode_cache = READY.bytecode_cache = FileSystemBytecodeCache(folder, "%s.template")


@lru_cache
def escaping(name: str) -> Template:
    """A template that escapes all that is put into it."""
    return ESCAPING.get_template(name)


@lru_cache
def ready(name: str) -> Template:
    """A template for Html."""
    return READY.get_template(name)
