"""How many examples Hypothesis tries: all of them in a full run, a share in `./install.sh test quick`.

A failure prints how to repeat it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

EXAMPLES = {"full": 100, "quick": 15}
LEAST = 5


def load(profile: str) -> None:
    """Let tests without a number of their own try this many."""
    for name, examples in EXAMPLES.items():
        settings.register_profile(name, max_examples=examples, deadline=None, print_blob=True)
    settings.load_profile(profile)


def examples(full: int, **more: Any) -> settings:  # noqa: ANN401 # as settings has them
    """Try so many in a full run, and the share of them in a quick one."""
    share = settings().max_examples / EXAMPLES["full"]
    return settings(max_examples=max(LEAST, round(full * share)), **more)
