"""Render docs/gpuboard.1, the manual page, from the help of the commands: `python -m tests.support.manual_page`."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click

from site_builder import __version__
from site_builder.cli import main
from site_builder.config.schema import SETTINGS

# Fixed, so that generating an unchanged page changes nothing.
PAGE_DATE = "2026-11-16"
# Characters that roff would take for commands, or print as other characters than people type.
ROFF_ESCAPES = {"\\": r"\e", "-": r"\-", "'": r"\(aq", '"': r"\(dq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
EXIT_CODES = {
    "0": "Done. Problems in the data are told, and no failure.",
    "1": "The answer is no: it is taken, it is not there, or nobody may.",
    "2": "It was called in a wrong way, or it failed; one sentence on stderr says why.",
}
FILE_DESCRIPTIONS = {
    "./gpuboard.conf, ~/.config/gpuboard/gpuboard.conf, /etc/gpuboard/gpuboard.conf": "The settings, as KEY=value "
    "lines: the first of these that is there, or the one that --conf or GPUBOARD_CONF names.",
    "data/HOST/": "What each GPU host pushes.",
    "data/comments.json": "The bookings; in data/bookings/ where that is there, for several accounts that book.",
    "data/watches.json": "Who waits for which GPUs; beside the bookings.",
    "www/": "The site.",
    "state/": "What the builder remembers.",
}


def render_manpage(group: click.Group) -> str:
    """Render the manual page as roff with the macros of man(7)."""
    ctx = click.Context(group, info_name="gpuboard", **group.context_settings)
    lines = [
        f'.TH GPUBOARD 1 "{PAGE_DATE}" "gpuboard {__version__}" "User Commands"',
        *(".SH NAME", r"gpuboard \- a board of shared GPUs: free, in use, booked"),
        *(".SH SYNOPSIS", ".B gpuboard", escape_manpage_text(" ".join(group.collect_usage_pieces(ctx)))),
        *(".SH DESCRIPTION", *render_manpage_help(group, ctx)),
        ".SH COMMANDS",
    ]
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command:
            lines += render_manpage_command(command, click.Context(command, info_name=name, parent=ctx))
    lines += [".SH EXIT STATUS", *render_manpage_definitions(EXIT_CODES)]
    lines += [".PP", escape_manpage_text("gpuboard run ends with the code of what it ran.")]
    lines += [".SH ENVIRONMENT"]
    lines += [escape_manpage_text("Each counts in the environment and, as a line KEY=value, in the settings file.")]
    for name, setting in SETTINGS.items():
        default = f" Default: {setting.default}." if setting.default else ""
        sentence = f"{setting.description[:1].upper()}{setting.description[1:]}.{default}"
        lines += render_manpage_definitions({name: sentence})
    lines += [".SH FILES", *render_manpage_definitions(FILE_DESCRIPTIONS)]
    lines += [".SH SEE ALSO", r".BR nvidia\-smi (1)"]
    return "\n".join(lines) + "\n"


def render_manpage_command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield usage, help, examples and options of a command."""
    yield f".SS {escape_manpage_text(' '.join((ctx.command_path, *command.collect_usage_pieces(ctx))))}"
    yield from render_manpage_help(command, ctx)
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from render_manpage_command(inner, click.Context(inner, info_name=name, parent=ctx))


def render_manpage_help(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield paragraphs, preformatted blocks and options."""
    for number, part in enumerate(cleandoc(command.help or "").split("\n\n")):
        first, *rest = part.split("\n")
        if first == "\b":
            yield from (".PP", ".RS 4", ".nf", *map(escape_manpage_text, rest), ".fi", ".RE")
        else:
            yield from ((".PP",) if number else ())
            yield escape_manpage_text(" ".join(part.split()))
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record:
            yield from render_manpage_definitions({record[0]: " ".join(record[1].split())})


def render_manpage_definitions(rows: dict[str, str]) -> Iterator[str]:
    for word, meaning in rows.items():
        yield from (".TP", f".B {escape_manpage_text(word)}", escape_manpage_text(meaning))


def escape_manpage_text(text: str) -> str:
    """Escape text so that roff prints it as it is, also at the beginning of a line."""
    escaped = "".join(
        ROFF_ESCAPES.get(character, character if character.isascii() else rf"\[u{ord(character):04X}]")
        for character in text
    )
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    click.echo(render_manpage(main), nl=False)
