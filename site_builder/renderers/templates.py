"""The templates of the page: everything that is put into one is escaped."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

ENVIRONMENT = Environment(
    loader=PackageLoader("site_builder", "templates"), autoescape=True, undefined=StrictUndefined, auto_reload=False
)
