"""`gpuboard forget HOST`: take a host off the board for good."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.core.command_options import Failure, refuse_foreign, tell, with_settings

if TYPE_CHECKING:
    from site_builder.config.settings import Settings

STILL_PUSHES = 600


@click.command()
@click.argument("host", shell_complete=completion.hosts)
@with_settings
def forget(settings: Settings, host: str) -> None:
    """Remove HOST: its files in data/, its entry in Consul's KV store, and all that is remembered of it.

    It is gone from the page at the next build. A host that still pushes comes back, and one that hosts.txt or Consul
    lists is shown as unseen: stop its gpu-check.sh and take it off the list first.

    \b
    gpuboard forget atlas
    """
    from site_builder.core.names import is_host  # noqa: PLC0415 # --help needs none of it
    from site_builder.discovery import discover  # noqa: PLC0415
    from site_builder.snapshots import store as snapshots_store  # noqa: PLC0415

    if not is_host(host):
        message = f"{host!r} is not a host name"
        raise Failure(message)
    refuse_foreign(settings)
    try:
        kept = snapshots_store.Snapshots(settings.data, settings.state)
        told = {one.name: one for one in kept.read()[0]}.get(host)
        lists, _ = discover.Discovery(settings.data, settings.state, None).read(())
        if told is None and host in lists:
            tell(f"{host} never pushed; {' and '.join(lists[host].listed_by)} list it: take it off there")
            sys.exit(1)
        if told is None:
            tell(f"there is no host {host} in {settings.data}, nor remembered in {settings.state}")
            sys.exit(1)
        delete_entry(settings, host)
        settings.state.joinpath("forget").mkdir(parents=True, exist_ok=True)
        left = snapshots_store.remove(settings.data, host)
        settings.state.joinpath("forget", host).touch()
    except OSError as error:
        raise Failure(f"{error.filename or settings.data} could not be removed: {error.strerror}") from None
    tell(f"{host} is gone from the page at the next build")
    if left:
        tell(f"{settings.data / host} stays, since there are other files in it: {', '.join(left[:5])}")
    if max((one.arrived for one in told.files.values()), default=0) > time.time() - STILL_PUSHES:
        tell(f"{host} pushed within the last 10 minutes: stop gpu-check.sh there, or it comes back")
    if host in lists:
        tell(f"{' and '.join(lists[host].listed_by)} still list it: take it off there, or it is shown as unseen")


def delete_entry(settings: Settings, host: str) -> None:
    """Take a host out of Consul first: else the next build would copy it again."""
    if settings.kv is None:
        return
    from site_builder.consul.client import Unusable  # noqa: PLC0415
    from site_builder.consul.kv import KvStore  # noqa: PLC0415

    try:
        KvStore(settings.kv).delete(f"data/{host}")
    except Unusable as why:
        raise Failure(f"{settings.kv.where} {why}; {host} is still there, and nothing was removed") from None
