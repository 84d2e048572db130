"""The command `gpuboard`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from site_builder import __version__

# The module of each command, in which it is a function of its own name. What is slow to import is imported inside it.
GROUPS: dict[str, dict[str, str]] = {
    "For everybody": {
        "list": "client.list_command",
        "available": "client.available_command",
        "wait": "client.wait_command",
        "notify": "watches.commands",
        "run": "client.run_command",
    },
    "Bookings": {
        "book": "bookings.book_command",
        "bookings": "bookings.list_command",
        "change": "bookings.change_command",
        "release": "bookings.release_command",
        "edit": "bookings.edit_command",
    },
    "Use and waste": {
        "stats": "usage.commands",
        "waste": "waste.commands",
        "report": "reports.commands",
        "export": "history.commands",
    },
    "For the admin": {
        "alerts": "alerts.commands",
        "build": "board.commands",
        "config": "config.commands",
        "demo": "demo.commands",
        "deploy": "deploy.commands",
        "doctor": "doctor.commands",
        "forget": "board.forget_command",
        "here": "demo.here_command",
        "pull": "remote.commands",
        "serve": "web.commands",
        "slack": "slack.commands",
        "token": "bookings.token_command",
        "completion": "config.completion_command",
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}


class Commands(click.Group):
    """Imports only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # click's own form
        """Their names, as the help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"site_builder.{COMMANDS[cmd_name]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Under a heading for each kind of people."""
        width = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            found = [(f"{name:{width}}", self.get_command(ctx, name)) for name in names]
            rows = [(name, one.get_short_help_str(formatter.width - 6 - width)) for name, one in found if one]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 # click's own form
        """Run it, or answer a shell that asks what TAB offers."""
        if "_GPUBOARD_COMPLETE" in os.environ:
            from site_builder.config import completion_command  # noqa: PLC0415

            completion_command.register()
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run it; what nobody foresaw is one sentence too, unless somebody wants to know more."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):  # `| head` is no failure
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            from site_builder.core.command_options import Failure  # noqa: PLC0415

            what = f"{type(error).__name__}: {error}; this should not happen, and `gpuboard --debug` tells where it did"
            raise Failure(what) from None


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",  # as the newer versions of click have it by themselves
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
        from site_builder.client import list_command  # noqa: PLC0415 # --help needs none of it

        with list_command.list.make_context("list", [], ctx) as alone:
            list_command.list.invoke(alone)
