"""The templates of the page."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

LOADER = PackageLoader("site_builder", "templates")
# Escapes all that is put into a template.
ESCAPING = Environment(loader=LOADER, autoescape=True, undefined=StrictUndefined, auto_reload=False)
# Escapes nothing: for what is Html already, and for that alone.
READY = Environment(loader=LOADER, autoescape=False, undefined=StrictUndefined, auto_reload=False)  # noqa: S701
