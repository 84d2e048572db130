"""The templates of the page."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

LOADER = PackageLoader("site_builder", "templates")
# Escapes all that is put into a template.
ESCAPING = Environment(loader=LOADER, autoescape=True, undefined=StrictUndefined, auto_reload=False)
# Escapes nothing: for what is Html already, and for that alone.
READY = Environment(loader=LOADER, autoescape=False, undefined=StrictUndefined, auto_reload=False)  # noqa: S701


@lru_cache
def escaping(name: str) -> Template:
    """A template that escapes all that is put into it."""
    return ESCAPING.get_template(name)


@lru_cache
def ready(name: str) -> Template:
    """A template for Html."""
    return READY.get_template(name)
