"""The command `gpuboard`."""

import click

from site_builder import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuboard")
def main() -> None:
    """Which GPU is free, who is on the others, and which are promised to somebody."""
