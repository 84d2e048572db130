"""Write HTML: escaping and Jinja templates."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, NewType

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.files import PACKAGE_FOLDER

Html = NewType("Html", str)
EMPTY_HTML = Html("")
LINE_BREAK = re.compile(r"\s*\n\s*")


def escape_html(text: object) -> Html:
    """Escape a text for HTML; None becomes an empty text."""
    return EMPTY_HTML if text is None else Html(html.escape(str(text)))


class BuildTimeHtml(NamedTuple):
    """When a page was built: for its script, for machines and for people."""

    milliseconds: int
    iso: str
    clock: str


def build_time_html(now: Now, timespec: str = "seconds") -> BuildTimeHtml:
    """Format the time of the build to the second or, with `minutes`, to the minute."""
    clock = now.local.time().isoformat(timespec)
    return BuildTimeHtml(int(now.epoch * 1000), now.local.isoformat(" ", timespec), clock)


def render_epoch_html(epoch: float, now: Now) -> Html:
    """Render a moment given as seconds since 1970."""
    return render_moment_html(datetime.fromtimestamp(epoch, now.zone), now)


def render_moment_html(moment: datetime, now: Now) -> Html:
    """Render a moment for people, and for the page's script, which shows it in their time zone."""
    iso = now.to_local(moment).isoformat(timespec="minutes")
    return Html(f'<time class=at datetime="{iso}">{formatting.format_moment(moment, now)}</time>')


class HtmlLineJoiner(Extension):
    """Join the lines of a template: neither line breaks nor indentation are sent, only spaces within a line."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Drop line breaks, with the blanks around them, from the text between tags."""
        for token in stream:
            if token.type != "data":
                yield token
            elif text := LINE_BREAK.sub("", token.value):
                yield Token(token.lineno, token.type, text)


# Each feature keeps its templates beside its page; board/templates has those that all pages include.
TEMPLATES = FileSystemLoader(sorted(PACKAGE_FOLDER.glob("*/templates")))
# Templates that escape every value.
ESCAPING_ENVIRONMENT = Environment(loader=TEMPLATES, autoescape=True, undefined=StrictUndefined, auto_reload=False)
# The same, without the line breaks and indentation of a template.
COMPACT_ENVIRONMENT = ESCAPING_ENVIRONMENT.overlay(extensions=[HtmlLineJoiner])
# The same, for values that are Html already: nothing is escaped.
RAW_COMPACT_ENVIRONMENT = COMPACT_ENVIRONMENT.overlay(autoescape=False)
# Load a template by its name, once.
load_html_template = lru_cache(ESCAPING_ENVIRONMENT.get_template)
load_compact_html_template = lru_cache(COMPACT_ENVIRONMENT.get_template)
load_raw_html_template = lru_cache(RAW_COMPACT_ENVIRONMENT.get_template)
