"""The command `gpuboard`: the list of its commands, of which only the one called is imported; and its manual page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from site_builder import __version__

# The module and the help line of each command, so that `gpuboard --help` imports none of them.
COMMAND_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "For everybody": {
        "list": ("client.commands", "List the GPUs of all hosts, or those that match WORDS."),
        "available": ("client.commands", "List available GPUs, best first."),
        "wait": ("client.commands", "Wait until GPUs are available, then print them."),
        "notify": ("watches.commands", "Get notified when GPUs are free."),
        "run": ("client.run_command", "Run COMMAND on free GPUs of this machine, and book them."),
    },
    "Bookings": {
        "book": ("bookings.commands", "Book GPUs, all or none."),
        "bookings": ("bookings.commands", "List bookings of all hosts or of HOST."),
        "change": ("bookings.commands", "Change a booking; what is not named stays."),
        "release": ("bookings.commands", "Release bookings by id, or your bookings of GPUs."),
        "edit": ("bookings.edit_command", "Edit comments.json in your editor, safely."),
    },
    "Use and waste": {
        "stats": ("usage.commands", "List GPU-hours by person, model, host or month."),
        "waste": ("waste.commands", "List wasted GPU time and what to do about it."),
        "report": ("reports.commands", "Write the weekly report: use, people, waste and health."),
        "export": ("history.commands", "Export the history of each GPU as CSV or JSON."),
    },
    "For the admin": {
        "alerts": ("alerts.commands", "Show problems and who was notified; test and silence."),
        "build": ("board.commands", "Build the site in www/ from the files in data/."),
        "config": ("config.commands", "Print the settings in force, and where each comes from."),
        "demo": ("demo.commands", "Show a simulated lab until Ctrl-C."),
        "deploy": ("deploy.commands", "Install or upgrade gpuboard on each HOST over ssh."),
        "doctor": ("doctor.commands", "Check everything that the board needs on the web host."),
        "forget": ("board.commands", "Remove HOST: its files in data/ and its entry in Consul."),
        "here": ("web.commands", "Show the GPUs of this machine until Ctrl-C."),
        "pull": ("remote.commands", "Fetch a snapshot of each HOST into data/."),
        "serve": ("web.commands", "Serve the site in www/ until Ctrl-C."),
        "slack": ("slack.commands", "Run the Slack bot until Ctrl-C."),
        "token": ("bookings.commands", "Create a booking token for NAME, and print it once."),
        "completion": ("cli", "Print the script by which a shell completes commands."),
    },
}
COMMANDS = {name: command for group in COMMAND_GROUPS.values() for name, command in group.items()}
SHELLS = ("bash", "zsh", "fish")
# Fixed, so that generating an unchanged page changes nothing.
MANPAGE_DATE = "2026-11-16"
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


def import_command(name: str) -> click.Command:
    module = import_module(f"site_builder.{COMMANDS[name][0]}")
    commands = (value for value in vars(module).values() if isinstance(value, click.Command))
    return next(command for command in commands if command.name == name)


class LazyCommandGroup(click.Group):
    """Import only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return import_command(cmd_name) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer commands with their help lines; click would import every command to get them."""
        commands = [
            CompletionItem(name, help=click.Command(name, help=summary).get_short_help_str())
            for name, (_, summary) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands under a heading for each group."""
        width = max(map(len, COMMANDS))
        for title, group in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", summary) for name, (_, summary) in group.items()])

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 # click's signature
        """Run the command, or answer a shell that asks for completions."""
        if "_GPUBOARD_COMPLETE" in os.environ:
            register_shell_completion()
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; report an unforeseen exception in one sentence, unless --debug is set."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):  # `| head` is not a failure
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            what = f"{type(error).__name__}: {error}; this should not happen, and `gpuboard --debug` tells where it did"
            raise import_module("site_builder.core.command_options").CommandError(what) from None


@click.group(
    cls=LazyCommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",  # the default of newer versions of click
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gpuboard")
@click.option("--debug", is_flag=True, help="Show where in the program an error came from.")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:  # noqa: ARG001 # read by invoke
    """Which GPU is free, who is on the others, and which are promised to somebody.

    Without a command, it lists the GPUs: `gpuboard list`.
    """
    if ctx.invoked_subcommand is None:
        list_command = import_command("list")
        with list_command.make_context("list", [], ctx) as list_context:
            list_command.invoke(list_context)


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
    from pathlib import Path  # noqa: PLC0415 # only this needs it

    # each script passes the line up to the cursor to `gpuboard`, which prints lines of kind, value and help
    click.echo((Path(__file__).parent / f"config/completions/gpuboard.{shell}").read_text("utf-8"), nl=False)


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
    from site_builder.config.schema import SETTINGS  # noqa: PLC0415 # only this needs it

    ctx = click.Context(group, info_name="gpuboard", **group.context_settings)
    lines = [
        f'.TH GPUBOARD 1 "{MANPAGE_DATE}" "gpuboard {__version__}" "User Commands"',
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
    click.echo(render_manpage(main), nl=False)
