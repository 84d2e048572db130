"""A fingerprint of gpuboard's own code: after an update, everything that is cached is made again."""

from __future__ import annotations

from site_builder import __version__
from site_builder.core.files import PACKAGE_FOLDER


def compute_code_fingerprint() -> tuple[object, ...]:
    """Return the version, and the name, size and time of every module and template."""
    paths = [*PACKAGE_FOLDER.rglob("*.py"), *PACKAGE_FOLDER.rglob("*.html")]
    stats = {str(path.relative_to(PACKAGE_FOLDER)): path.stat() for path in paths}
    return __version__, tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()))


# Computed once: what this process has loaded is what it builds with, whatever is installed meanwhile.
CODE_FINGERPRINT = compute_code_fingerprint()
