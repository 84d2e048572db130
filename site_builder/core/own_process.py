"""A process of our own beside this one."""

from __future__ import annotations

import os
import sys

# Nothing is imported from the folder in which the builder was started: that may be one where others write.
CODE = "import sys; sys.path[:] = filter(None, sys.path); from {0} import {1}; {1}.main()"


def command(package: str, module: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """What runs `main` of a module with the Python and the folders that we have, and its environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    return [sys.executable, "-c", CODE.format(package, module), *words], environment
