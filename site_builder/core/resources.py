"""Where what comes with the program stands: in the installed package, or in the folders of a checkout."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parents[1]


def assets_folder() -> Path:
    """The style, the script and the icon of the page."""
    packed = HERE / "assets"
    return packed if packed.is_dir() else HERE.parent / "www/assets"


def scripts_folder() -> Path:
    """All that runs on a GPU host."""
    packed = HERE / "scripts"
    return packed if packed.is_dir() else HERE.parent / "scripts"


def installer() -> Path:
    """install.sh, beside which is what it reads: the folder `install`."""
    packed = HERE / "install.sh"
    return packed if packed.is_file() else HERE.parent / "install.sh"
