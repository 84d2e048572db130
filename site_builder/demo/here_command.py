"""`gpuboard here`: the board of this machine's own GPUs."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.core.command_options import Failure, tell, with_loaded
from site_builder.demo.live_board import backstage, show, until_told_to_end

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded

SNAPSHOT_EVERY = 10


@click.command()
@click.option("--listen", metavar="ADDRESS:PORT", help="Where.  [default: 127.0.0.1, from 8080 on]")
@with_loaded
def here(loaded: Loaded) -> None:
    """Show the GPUs of this machine until Ctrl-C.

    Takes a snapshot every 10 seconds as a GPU host does, builds the site, and serves it on a port that is free.
    Other hosts that push to data/ are on it too.

    \b
    gpuboard here
    gpuboard here --listen 0.0.0.0:8080
    """
    from site_builder.core.files import make_closed  # noqa: PLC0415
    from site_builder.core.resources import scripts_folder  # noqa: PLC0415 # --help needs none of it

    settings = loaded.settings
    listen = None if loaded.given["GPUBOARD_LISTEN"].origin == "default" else settings.listen
    name = platform.node().partition(".")[0]
    script = str(scripts_folder() / "gpu-run.sh")
    conf = str(Path(loaded.conf.path).absolute()) if loaded.conf.path else os.devnull
    ours = {key: value for key, value in os.environ.items() if key.startswith(("GPUBOARD_", "CONSUL_"))}
    folders = {f"GPUBOARD_{key.upper()}": str(getattr(settings, key).absolute()) for key in ("data", "www", "state")}

    with until_told_to_end(), backstage() as spool:
        environment = {
            **os.environ,
            "HOST": name,
            "GPUBOARD_CONF": conf,
            "GPUBOARD_SPOOL": str(spool),
            "GPUBOARD_DEST": folders["GPUBOARD_DATA"],
            **{f"GPUBOARD_{task}_EVERY": str(SNAPSHOT_EVERY) for task in ("GPUS", "PROCESSES", "PS")},
        }

        def turn() -> float:
            ended = subprocess.run([script, "once"], env=environment, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise Failure(f"no snapshot of this machine could be taken: {ended.stderr.strip()}")
            return SNAPSHOT_EVERY

        def ready(url: str) -> None:
            tell(f"the board of {name} is at {url} until Ctrl-C")
            tell(f"to book a GPU, edit {folders['GPUBOARD_DATA']}/comments.json")

        try:
            make_closed(settings.data)
            show(Path(folders["GPUBOARD_WWW"]), listen, lambda: {**ours, **folders, "GPUBOARD_CONF": conf}, turn, ready)
        except OSError as error:
            place = error.filename or folders["GPUBOARD_WWW"]
            raise Failure(f"{place} cannot be written: {error.strerror}") from None
