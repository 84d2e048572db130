"""`gpuboard available`: which GPUs can be had now, for CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from site_builder.client.command_common import check, for_cuda, printed, refuse, with_picker
from site_builder.core.command_options import failing

if TYPE_CHECKING:
    from site_builder.client.picker import Picker

MOST = click.IntRange(1, 100_000)


@click.command()
@click.option("--limit", "-l", type=MOST, metavar="N", help="The best N at most.")
@click.option("--at-least", type=MOST, default=1, metavar="N", help="With fewer than N: none, and exit 1.")
@click.option("--all", "everywhere", is_flag=True, help="Of all hosts, as atlas:2 hydra:3.")
@with_picker
def available(picker: Picker, limit: int | None, at_least: int, everywhere: bool) -> None:
    """Print the GPUs that can be had now, the best first.

    They are free, or booked by you and unused. On this host they are printed as CUDA_VISIBLE_DEVICES takes them, those
    of AMD as HIP_VISIBLE_DEVICES does; CUDA's numbers are nvidia-smi's, so set CUDA_DEVICE_ORDER=PCI_BUS_ID too. The
    best have the most free memory, then the newest model, then the host with the least load. A process can use one MIG
    instance only: one is printed, by its UUID, where no whole GPU can be had; all of them with --model 1g.10gb. Exit 1
    if there is none.

    \b
    export CUDA_VISIBLE_DEVICES=$(gpuboard available -l 1)
    export HIP_VISIBLE_DEVICES=$(gpuboard available --vendor amd)
    gpuboard available --all --model A100 --min-memory 40GiB
    gpuboard available --at-least 2 --limit 2
    """
    if limit is not None and limit < at_least:
        message = f"--limit {limit} is less than --at-least {at_least}"
        raise click.UsageError(message)
    check(picker, everywhere)
    with failing():
        found = for_cuda(picker.found(everywhere), picker.wish, everywhere)
    if len(found.choices) < at_least:
        raise refuse(found, picker.wish, at_least)
    click.echo(printed(found.choices[:limit], everywhere))
