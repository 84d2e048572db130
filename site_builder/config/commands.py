"""`gpuboard config` and `gpuboard completion`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from site_builder.config.schema import HOST_SETTINGS, SETTINGS
from site_builder.config.settings import SECRET_MASK, LoadedSettings, mask_setting_credentials
from site_builder.core.command_options import with_loaded_settings
from site_builder.core.terminal_text import replace_unencodable

TERMINAL_WIDTH = 80
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    """Print the script for shell completion.

    It completes commands, options, folders, and the hosts and GPUs of the data folder. `./install.sh web` installs
    it for bash (with bash-completion) and fish. Otherwise add a line to ~/.bashrc, to ~/.zshrc (below compinit), or
    to ~/.config/fish/config.fish:

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
