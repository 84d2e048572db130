"""docs/gpuboard.1: the manual page, made of the commands' own help and of the table of settings.

`python -m site_builder.config.manpage` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click

from site_builder import __version__
from site_builder.config.schema import SETTINGS

# A day of the manual's own, since a page that is made anew without a change must stay the same.
DATE = "2026-11-16"
# What roff would take for a command of its own, or would print as another letter than the one that people type.
LETTERS = {"\\": r"\e", "-": r"\-", "'": r"\(aq", '"': r"\(dq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
EXITS = {
    "0": "Done. Problems in the data are told, and no failure.",
    "1": "The answer is no: it is taken, it is not there, or nobody may.",
    "2": "It was called in a wrong way, or it failed; one sentence on stderr says why.",
}
FILES = {
    "./gpuboard.conf, ~/.config/gpuboard/gpuboard.conf, /etc/gpuboard/gpuboard.conf": "The settings, as KEY=value "
    "lines: the first of these that is there, or the one that --conf or GPUBOARD_CONF names.",
    "data/HOST/": "What each GPU host pushes.",
    "data/comments.json": "The bookings; in data/bookings/ where that is there, for several accounts that book.",
    "data/watches.json": "Who waits for which GPUs; beside the bookings.",
    "www/": "The site.",
    "state/": "What the builder remembers.",
}


def page(group: click.Group) -> str:
    """All of it, as roff with the macros of man(7)."""
    ctx = click.Context(group, info_name="gpuboard", **group.context_settings)
    commands = [(name, group.get_command(ctx, name)) for name in group.list_commands(ctx)]
    lines = [
        f'.TH GPUBOARD 1 "{DATE}" "gpuboard {__version__}" "User Commands"',
        *(".SH NAME", r"gpuboard \- a board of shared GPUs: free, used, promised"),
        *(".SH SYNOPSIS", ".B gpuboard", text(" ".join(group.collect_usage_pieces(ctx)))),
        *(".SH DESCRIPTION", *prose(group), *options(group, ctx)),
        ".SH COMMANDS",
    ]
    for name, command in commands:
        if command:
            lines += section(command, click.Context(command, info_name=name, parent=ctx))
    lines += [".SH EXIT STATUS", *table(EXITS), ".PP", text("gpuboard run ends with the code of what it ran.")]
    lines += [".SH ENVIRONMENT", text("Each counts in the environment and, as a line KEY=value, in the settings file.")]
    lines += table({setting.name: about(setting.what, setting.default) for setting in SETTINGS})
    lines += [".SH FILES", *table(FILES)]
    lines += [".SH SEE ALSO", r".BR nvidia\-smi (1)"]
    return "\n".join(lines) + "\n"


def section(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """One command: how it is called, what it does, its examples and its options."""
    yield f".SS {text(' '.join((ctx.command_path, *command.collect_usage_pieces(ctx))))}"
    yield from prose(command)
    yield from options(command, ctx)
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from section(inner, click.Context(inner, info_name=name, parent=ctx))


def prose(command: click.Command) -> Iterator[str]:
    """Its help: paragraphs, and what is printed as it stands."""
    for number, part in enumerate(cleandoc(command.help or "").split("\n\n")):
        first, *rest = part.split("\n")
        if first == "\b":
            yield from (".PP", ".RS 4", ".nf", *map(text, rest), ".fi", ".RE")
        else:
            yield from ((".PP",) if number else ())
            yield text(" ".join(part.split()))


def options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """What click tells of each."""
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record:
            yield from (".TP", f".B {text(record[0])}", text(" ".join(record[1].split())))


def table(rows: dict[str, str]) -> Iterator[str]:
    """Words, and what each means."""
    for word, what in rows.items():
        yield from (".TP", f".B {text(word)}", text(what))


def about(what: str, default: str) -> str:
    """What a setting is, as a sentence."""
    return f"{what[:1].upper()}{what[1:]}." + (f" Default: {default}." if default else "")


def text(words: str) -> str:
    """Words that roff prints as they are, also at the beginning of a line."""
    safe = "".join(LETTERS.get(one, one if one.isascii() else rf"\[u{ord(one):04X}]") for one in words)
    return rf"\&{safe}" if safe.startswith(".") else safe


if __name__ == "__main__":
    from site_builder.cli import main

    click.echo(page(main), nl=False)
