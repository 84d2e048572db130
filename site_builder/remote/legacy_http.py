"""What a host of the original gpu-monitor serves: `python -m SimpleHTTPServer 8114` over the folder of its scripts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import unquote

from site_builder.core import files
from site_builder.core.names import is_host_name
from site_builder.core.terminal_text import decode_text
from site_builder.snapshots.parsers.legacy_files import LEGACY_FILES
from site_builder.snapshots.store import MAX_SNAPSHOT_BYTES, open_snapshot_folder

GPU_FILE = "_gpus.csv"
PROCESS_FILES = ("_processes.csv", "_users.csv")
# The last loop of those scripts writes all its files every 10 s.
MAX_AGE_S = 90
LISTED_FILE = re.compile(r"""href=["']([^"'/?#]{1,300})["']""", re.IGNORECASE)
MAX_NAMED_HOSTS = 3


class UnclearListingError(Exception):
    """Why nobody can say which of the files are those of a host."""


def parse_legacy_listing(listing: bytes, name: str) -> dict[str, str]:
    """Map the names that files get in data/ to those in a listing; the file of the GPUs, whose age counts, is last."""
    listed = {unquote(match) for match in LISTED_FILE.findall(decode_text(listing))}
    hosts = {file[: -len(GPU_FILE)] for file in listed if file.endswith(GPU_FILE)}
    hosts = {host for host in hosts if is_host_name(host)}
    if not hosts:
        return {}
    own = next((host for host in (name, name.partition(".")[0]) if host in hosts), None)
    if own is None and len(hosts) > 1:
        some = ", ".join(sorted(hosts)[:MAX_NAMED_HOSTS])
        raise UnclearListingError(f"serves the files of {len(hosts)} hosts ({some}): name one, as in HOST=http://…")
    host = own or hosts.pop()
    ordered = sorted((f"_{file}" for file in LEGACY_FILES), key=lambda ending: ending == GPU_FILE)
    return {f"{name}{ending}": f"{host}{ending}" for ending in ordered if f"{host}{ending}" in listed}


def has_legacy_files(contents: Mapping[str, bytes]) -> bool:
    return any(name.endswith(tuple(f"_{file}" for file in LEGACY_FILES)) for name in contents)


def has_legacy_processes(names: Collection[str]) -> bool:
    """Return True if there are the files with the processes and their users."""
    return all(any(name.endswith(ending) for name in names) for ending in PROCESS_FILES)


def write_legacy_files(data: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files that changed into data/ itself, as the original scripts do."""
    with open_snapshot_folder(data, files.ROOT_FOLDER_FLAGS) as folder:
        for name, content in contents.items():
            try:
                _, stored = files.read_file(name, folder, MAX_SNAPSHOT_BYTES)
            except (files.FileRefusedError, FileNotFoundError):
                stored = None
            if stored != content:
                files.write_atomically_in_folder(folder, name, content)
