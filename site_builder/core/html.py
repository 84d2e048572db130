"""Text that may stand in a page as it is.

The card is rendered a thousand times a build, and escaping each value in the template took half of that. So what goes
into it is escaped here, and only once; mypy sees to it that nothing else gets there.
"""

from __future__ import annotations

import html
from typing import NewType

Html = NewType("Html", str)
NOTHING = Html("")


def escaped(text: object) -> Html:
    """Any text, so that a page shows it and does nothing else with it; None is nothing."""
    return NOTHING if text is None else Html(html.escape(str(text)))
