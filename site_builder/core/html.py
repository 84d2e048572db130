"""Write HTML: escaping and Jinja templates."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import NewType

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from site_builder.core import formatting
from site_builder.core.clock import Now

Html = NewType("Html", str)
EMPTY_HTML = Html("")


def escape_html(text: object) -> Html:
    """Any text, so that a page shows it and does nothing else with it; None is nothing."""
    return EMPTY_HTML if text is None else Html(html.escape(str(text)))


def render_epoch(epoch: int, now: Now) -> Html:
    """Render a moment given as seconds since 1970."""
    return render_moment(datetime.fromtimestamp(epoch, now.zone), now)


def render_moment(moment: datetime, now: Now) -> Html:
    """Render a moment for people, and for the page's script, which shows it in their time zone."""
    iso = now.to_local(moment).isoformat(timespec="minutes")
    return Html(f'<time class=at datetime="{iso}">{formatting.format_moment(moment, now)}</time>')


LINE_BREAK = re.compile(r"\s*\n\s*")


class LineJoiner(Extension):
    """Join the lines of a template: line breaks and indentation are for its readers, and are not sent.

    A space that counts stands within a line.
    """

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Drop line breaks, with the blanks around them, from what stands between tags."""
        for token in stream:
            if token.type != "data":
                yield token
            elif text := LINE_BREAK.sub("", token.value):
                yield Token(token.lineno, token.type, text)


TEMPLATE_LOADER = PackageLoader("site_builder", "templates")
# Escapes all that is put into a template.
ESCAPING_ENVIRONMENT = Environment(
    loader=TEMPLATE_LOADER, autoescape=True, undefined=StrictUndefined, auto_reload=False
)
# Escapes nothing: for what is Html already, and for that alone.
RAW_ENVIRONMENT = Environment(loader=TEMPLATE_LOADER, autoescape=False, undefined=StrictUndefined, auto_reload=False)  # noqa: S701
# The same, with the lines of a template joined: for the card, of which a page may hold a thousand.
COMPACT_ENVIRONMENT = Environment(
    loader=TEMPLATE_LOADER,
    autoescape=False,  # noqa: S701
    undefined=StrictUndefined,
    auto_reload=False,
    extensions=[LineJoiner],
)


@lru_cache
def load_template(name: str) -> Template:
    """A template that escapes all that is put into it."""
    return ESCAPING_ENVIRONMENT.get_template(name)


@lru_cache
def load_raw_template(name: str) -> Template:
    """A template for Html."""
    return RAW_ENVIRONMENT.get_template(name)


@lru_cache
def load_compact_template(name: str) -> Template:
    """Load a template for Html whose line breaks and indentation are not sent."""
    return COMPACT_ENVIRONMENT.get_template(name)
