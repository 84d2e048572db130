"""Texts in the cells of a terminal, as the C library counts them."""

from __future__ import annotations

import ctypes
import locale
from collections.abc import Iterator

import pytest

from site_builder.core.terminal_text import (
    fit_text,
    flatten_terminal_text,
    measure_width,
    truncate_terminal_text,
    wrap_text,
)

TEXTS = ("atlas", "日本語", "héllo", "e\u0301", "\u1112\u1161\u11ab", "so\u00adft", "\u0600a", "🎉 run", "عربي", "Ⅷ½")


@pytest.fixture
def counted() -> Iterator[ctypes.CDLL]:
    """wcswidth, in UTF-8."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    yield ctypes.CDLL(None)
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.mark.parametrize("text", TEXTS)
def test_width_equals_that_of_the_c_library(text: str, counted: ctypes.CDLL) -> None:
    assert measure_width(text) == counted.wcswidth(ctypes.c_wchar_p(text), len(text))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("cells", [1, 2, 3, 5, 12])
def test_fit_text_has_exactly_the_width(text: str, cells: int) -> None:
    assert measure_width(truncate_terminal_text(text, cells)) <= cells
    assert measure_width(fit_text(text, cells)) == measure_width(fit_text(text, cells, right=True)) == cells
    assert text.startswith(truncate_terminal_text(text, cells).rstrip("…"))


def test_flatten_text_joins_lines() -> None:
    assert flatten_terminal_text("a\n b\tc\r\n\u200fd ") == "a b c d"


@pytest.mark.parametrize("most", [2, 3, 7, 80])
def test_wrap_text_fits_the_width_and_loses_no_letter(most: int) -> None:
    text = f"{' '.join(TEXTS)} {'日本語' * 9} {'x' * 100}"
    lines = wrap_text(text, most)
    assert [line for line in lines if measure_width(line) > most] == []
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap_text("", most) == []
