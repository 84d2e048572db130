"""Run `gpuboard` as `python -m site_builder`."""

from site_builder.cli import main

main(prog_name="gpuboard")
