"""The command `gpuboard`."""

from __future__ import annotations

from importlib import import_module

import click

from site_builder import __version__

# Each is a function of its own name in site_builder/commands; what is slow to import is imported inside it.
# First what people do every day, then what keeps the board alive.
COMMANDS = (
    *("book", "bookings", "change", "release", "edit"),
    *("build", "config", "demo", "forget", "run", "serve", "token"),
)


class Commands(click.Group):
    """Imports only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # click's own form
        """Their names, as the help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"site_builder.commands.{cmd_name}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run it; what nobody foresaw is one sentence too, unless somebody wants to know more."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            from site_builder.commands.options import Failure  # noqa: PLC0415

            what = f"{type(error).__name__}: {error}; this should not happen, and `gpuboard --debug` tells where it did"
            raise Failure(what) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuboard")
@click.option("--debug", is_flag=True, help="Show where in the program an error came from.")
def main(debug: bool) -> None:  # read by invoke
    """Which GPU is free, who is on the others, and which are promised to somebody."""
