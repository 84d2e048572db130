"""What goes to a host: the scripts and their installer, in one packed file; and how to know them there."""

from __future__ import annotations

import hashlib
import io
import tarfile
from base64 import encodebytes
from pathlib import Path

from site_builder.core.resources import installer, scripts_folder

# In the home, where programs may be started: /tmp often forbids it. What a killed one left goes with the next.
UNPACK = """set -eu
full() {{ echo "the scripts cannot be unpacked in $HOME: is its disk full, or your quota?" >&2; exit 2; }}
find "$HOME" -maxdepth 1 -name '.gpuboard-deploy.??????' -user "$(id -u)" -mmin +60 -exec rm -rf {{}} + 2>/dev/null || :
work=$(mktemp -d "$HOME/.gpuboard-deploy.XXXXXX" 2>/dev/null) || full
trap 'cd / && rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
base64 -d <<'END' | tar -xzf - -C "$work" 2>/dev/null || full
{packed}END
cd "$work"
"""


def host_files() -> list[Path]:
    """The scripts that a GPU host has, as `./install.sh host` copies them; seen from their folder."""
    folder = scripts_folder()
    library = [path for path in (folder / "lib").rglob("*") if path.is_file()]
    found = [path for path in library if not path.name.startswith(".") and not path.name.endswith("~")]
    return sorted(path.relative_to(folder) for path in [*found, *folder.glob("*.sh")])


def digest() -> str:
    """What install/look.sh makes of the same files on the host."""
    names = sorted(f"./{path}" for path in host_files())
    lines = [f"{hashlib.sha256((scripts_folder() / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def packed() -> str:
    """All of it, for a program of sh."""
    script = installer()
    files = {"install.sh": script}
    files.update({f"install/{path.name}": path for path in sorted((script.parent / "install").glob("*.*"))})
    files.update({f"scripts/{path}": scripts_folder() / path for path in host_files()})
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, path in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return UNPACK.format(packed=encodebytes(content.getvalue()).decode())


def look_program() -> str:
    """What is asked before anything is copied."""
    return (installer().parent / "install" / "look.sh").read_text()
