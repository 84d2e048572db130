"""Texts that try to be something else than text, and whether a page shows them as they are."""

from __future__ import annotations

import re

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '"><img src=x onload=alert(1)>',
    "quotes": "' \" ` &amp; &lt;b&gt; </code></li></title>",
    "link": "javascript:alert(1)",
    "bidi": "\u202eabc def",
    "long": "x" * 4000,
    "control": "\x1b[31mred\x07\x00\x9b2J\x7f",
    "template": "{{ 7 * 7 }}{% raw %}${7 * 7}",
}


def cleaned(text: str) -> str:
    """Without what steers a terminal or turns the direction of text."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", "?", text)


def is_shown(shown_text: str | None, expected_text: str) -> bool:
    """Whether a text stands there as it is, or as much of a long one as there is room for."""
    shown_text, expected_text = cleaned(shown_text or "").strip(), cleaned(expected_text).strip()
    return shown_text == expected_text or (
        len(expected_text) > 1000 and len(shown_text) >= 79 and expected_text.startswith(shown_text.rstrip("…"))
    )
