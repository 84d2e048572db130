"""gpuboard: from a folder of snapshots to a static GPU board.

Programs can use `available_gpus`, `gpu_info` and `load_fleet`; see docs/picking.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # see __getattr__
    from site_builder.api import available_gpus, gpu_info, load_fleet

__version__ = "0.1.0"
__all__ = ["available_gpus", "gpu_info", "load_fleet"]


def __getattr__(name: str) -> object:
    """Import what programs use only when they use it: the command line does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("site_builder.api"), name)
