"""gpuboard: from a folder of snapshots to a static GPU board.

Programs have `available_gpus`, `gpu_info` and `load_fleet`; see docs/picking.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from site_builder.api import available_gpus, gpu_info, load_fleet

__version__ = "0.1.0"
__all__ = ["available_gpus", "gpu_info", "load_fleet"]


def __getattr__(name: str) -> object:
    """Import what programs ask for, and no sooner: the command line needs none of it."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from site_builder import api  # noqa: PLC0415

    return getattr(api, name)
