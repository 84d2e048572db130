"""The command `gpuboard`: the list of its commands; only the one that is called is imported."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

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
        "change": ("bookings.commands", "Change a booking."),
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
        "completion": ("config.commands", "Print the script for shell completion."),
    },
}
COMMANDS = {name: command for group in COMMAND_GROUPS.values() for name, command in group.items()}


def load_command(name: str) -> click.Command:
    module = import_module(f"site_builder.{COMMANDS[name][0]}")
    commands = (value for value in vars(module).values() if isinstance(value, click.Command))
    return next(command for command in commands if command.name == name)


class LazyCommandGroup(click.Group):
    """Import only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return load_command(cmd_name) if cmd_name in COMMANDS else None

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
            import_module("site_builder.config.commands").register_shell_completion()
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
            what = f"{type(error).__name__}: {error}; this is a bug: `gpuboard --debug` shows where"
            raise import_module("site_builder.core.command_options").CommandError(what) from None


@click.group(
    cls=LazyCommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",  # the default of newer versions of click
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gpuboard")
@click.option("--debug", is_flag=True, help="Show where in the code an error occurred.")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:  # noqa: ARG001 # read by invoke
    """Show which GPUs are free, who uses the others, and which are booked.

    Without a command, it runs `gpuboard list`.
    """
    if ctx.invoked_subcommand is None:
        list_command = load_command("list")
        with list_command.make_context("list", [], ctx) as list_context:
            list_command.invoke(list_context)
