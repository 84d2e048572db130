"""`python -m site_builder` is `gpuboard`."""

from site_builder.cli import main

main(prog_name="gpuboard")
