"""`gpuboard doctor`: what is wrong on the web host, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from site_builder import __version__
from site_builder.config.commands import printable
from site_builder.core.command_options import with_names

if TYPE_CHECKING:
    from site_builder.doctor.check_result import Case, Result

WIDTH = 80
COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}
# Before the words: status and id.
INDENT = 22


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--verbose", is_flag=True, help="What does not apply here too, and nothing cut.")
@click.option("--url", metavar="URL", help="Where the board is served.")
@with_names
def doctor(conf: str | None, options: dict[str, str | None], as_json: bool, verbose: bool) -> None:
    """Look at all that the board needs on the web host.

    Each check passes, warns, fails or is skipped, and says what to do: docs/doctor.md. It changes nothing. Call it
    as the user who builds. On a GPU host, scripts/gpu-doctor.sh does the same there.

    Exit 0 if nothing is wrong, 1 if something is but the board works (warn), 2 if something does not (fail).

    \b
    gpuboard doctor
    gpuboard doctor --url https://gpus.example.org/
    gpuboard doctor --json
    """
    from site_builder.client.loader import here  # noqa: PLC0415
    from site_builder.doctor import check_result  # noqa: PLC0415 # --help needs none of it
    from site_builder.doctor.checks import CHECKS  # noqa: PLC0415

    results: list[Result] = []
    if not as_json:
        click.echo(f"{here()} (gpuboard {__version__})")
    for result in check_result.look_at(CHECKS, case_of(conf, options)):
        if not as_json:
            if not results or results[-1].check.group != result.check.group:
                click.echo(f"\n{result.check.group}")
            for line in lines(result, verbose):
                click.echo(line)
        results.append(result)
    if as_json:
        click.echo(printable(check_result.as_json(results, here())))
    else:
        count = Counter(one.found.status for one in results)
        click.echo("\n" + ", ".join(f"{count[status]} {status}" for status in ("pass", "warn", "fail", "skip")))
    sys.exit(check_result.EXITS.get(check_result.worst(results), 0))


def case_of(conf: str | None, options: dict[str, str | None]) -> Case:
    """What is looked at; settings that are wrong are a finding, too."""
    from site_builder.config.conf_file import in_force  # noqa: PLC0415
    from site_builder.config.settings import Wrong  # noqa: PLC0415
    from site_builder.doctor.check_result import Case  # noqa: PLC0415 # --help needs none of it

    flags = {f"GPUBOARD_{name.upper()}": value for name, value in options.items() if value is not None}
    try:
        return Case(in_force(conf, flags, os.environ))
    except Wrong as why:
        return Case(None, str(why))


def lines(result: Result, verbose: bool) -> Iterator[str]:
    """One check: what passes keeps to its line, all else is told in full."""
    check, found = result
    if found.apart and not verbose:
        return
    width = max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH
    status = click.style(f"{found.status:4}", fg=COLOURS.get(found.status)) if is_coloured() else f"{found.status:4}"
    room = width - INDENT - 1
    words = " ".join(shown(found.what).split())
    several = textwrap.wrap(words, room) or [""]
    if found.status == "pass" and not verbose and len(several) > 1:
        several = [words[: room - 3] + "..."]
    yield printable(f"  {status}  {check.id:12}  {several[0]}")
    yield from (printable(" " * INDENT + line) for line in several[1:])
    for number, line in enumerate(textwrap.wrap(" ".join(shown(found.advice).split()), room)):
        yield printable((" " * INDENT if number else f"{'->':>{INDENT - 1}} ") + line)


def shown(text: str) -> str:
    """For a terminal: what a host or a server says moves no cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def is_coloured() -> bool:
    """Whether there is somebody to see colours, who wants some."""
    from site_builder.client.list_command import is_coloured as wanted  # noqa: PLC0415 # the same for all

    return wanted()
