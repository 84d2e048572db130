"""data/bookings/: the folder that every account which books may write to, where there are several.

They may not write in data/ itself: there they could put links in the way of what others write.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from site_builder.core.names import BOOKINGS

FILE, WATCHES = "comments.json", "watches.json"


def booking_folder(data: Path) -> Path:
    """Return the folder of the bookings: data/bookings/ if the owner of data/ or root made it, else data/ itself."""
    inner = data / BOOKINGS
    try:
        status = os.lstat(inner)
        owners = {0, os.stat(data).st_uid}  # noqa: PTH116 # at each build, several times
    except (FileNotFoundError, NotADirectoryError):
        return data
    except OSError:
        return inner  # whoever reads there is told why they cannot
    return inner if stat.S_ISDIR(status.st_mode) and status.st_uid in owners else data


def booking_file(data: Path) -> Path:
    """Return the path of comments.json."""
    return booking_folder(data) / FILE


def is_pointer(path: str | Path) -> bool:
    """Return True for the link that data/ has in the place of a file which is in data/bookings/ now.

    No program follows it. It leads people who edit the file by hand, and stops programs of older versions.
    """
    name = os.path.basename(path)  # noqa: PTH119 # for each link in data/
    try:
        return name in {FILE, WATCHES} and os.readlink(path) == f"{BOOKINGS}/{name}"  # noqa: PTH115 # the same
    except OSError:
        return False
