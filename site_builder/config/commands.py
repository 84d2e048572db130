"""`gpuboard config` and `gpuboard completion`, and the manual page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from site_builder import __version__
from site_builder.config.schema import HOST_SETTINGS, SETTINGS
from site_builder.config.settings import SECRET_MASK, LoadedSettings, mask_setting_credentials
from site_builder.core.command_options import with_loaded_settings
from site_builder.core.terminal_text import replace_unencodable

TERMINAL_WIDTH = 80
SHELLS = ("bash", "zsh", "fish")
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


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@with_loaded_settings
def config(loaded: LoadedSettings, as_json: bool) -> None:
    """Print the settings in force, and where each comes from.

    \b
    gpuboard config
    gpuboard config --json
    """
    rows = []
    for name, setting in SETTINGS.items():
        value = loaded.given[name]
        text = mask_setting_credentials(setting.value_type.format_value(value.text))
        if setting.is_secret and value.text:
            text = SECRET_MASK
        if name == "GPUBOARD_ZONE" and not text:
            text = str(getattr(loaded.settings.zone, "key", None) or "this machine's")
        rows.append((name, text, value))
    web_count, in_file = len(rows), loaded.conf.values
    rows += [
        (name, mask_setting_credentials(in_file[name].text), in_file[name]) for name in HOST_SETTINGS if name in in_file
    ]
    if as_json:
        records = [{"name": name, "value": text or None, "from": value.where} for name, text, value in rows]
        click.echo(json.dumps(records, indent=1))
        return
    # aligned to a terminal's width; a value that is too long moves only its own line
    cells = [(name, text or "-", value.short_where) for name, text, value in rows]
    name_width = max(len(name) for name, _, _ in cells)
    max_text_width = TERMINAL_WIDTH - name_width - 4 - max(len(origin) for _, _, origin in cells)
    text_width = max((len(text) for _, text, _ in cells if len(text) <= max_text_width), default=0)
    table = [f"{name:{name_width}}  {text:{text_width}}  {origin}" for name, text, origin in cells]
    lines = [f"# {loaded.conf.path or 'no gpuboard.conf here, in ~/.config/gpuboard or in /etc/gpuboard'}"]
    lines += table[:web_count]
    if table[web_count:]:
        lines += ["# on the GPU hosts (docs/hosts.md)", *table[web_count:]]
    click.echo("\n".join(replace_unencodable(line) for line in lines))


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands.

    It offers commands, options, folders, and the hosts and GPUs of the data folder. `./install.sh web` puts it where
    bash (with bash-completion) and fish look for it. Otherwise a line does it, in ~/.bashrc, in ~/.zshrc (below
    compinit), or in ~/.config/fish/config.fish:

    \b
    eval "$(gpuboard completion bash)"
    eval "$(gpuboard completion zsh)"
    gpuboard completion fish | source
    """
    # each script passes the line up to the cursor to `gpuboard`, which prints lines of kind, value and help
    click.echo((Path(__file__).parent / f"completions/gpuboard.{shell}").read_text("utf-8"), nl=False)


def register_shell_completion() -> None:
    """Let click answer completion requests of our scripts."""
    for shell in SHELLS:
        add_completion_class(GpuboardShellComplete, shell)


class GpuboardShellComplete(ShellComplete):
    """Print the same lines to all shells, in place of click's own."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the beginning of the last."""
        # the extra letter shows whether a word has begun
        *words, last = split_arg_string(os.environ.get("_GPUBOARD_LINE", "") + "x")
        return words[1:], last[:-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Format as kind, value and help."""
        return "\t".join((item.type, item.value, " ".join((item.help or "").split())))


def render_manpage(group: click.Group) -> str:
    """Render the manual page as roff with the macros of man(7)."""
    ctx = click.Context(group, info_name="gpuboard", **group.context_settings)
    lines = [
        f'.TH GPUBOARD 1 "{PAGE_DATE}" "gpuboard {__version__}" "User Commands"',
        *(".SH NAME", r"gpuboard \- a board of shared GPUs: free, used, promised"),
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
    from site_builder.cli import main

    click.echo(render_manpage(main), nl=False)
