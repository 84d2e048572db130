"""--help: each command with examples that it understands, under a heading for those who need it."""

from __future__ import annotations

import re
from inspect import cleandoc

import click
import pytest

from site_builder.cli import COMMAND_GROUPS, COMMANDS, load_command
from tests.support.docs import ALL_COMMANDS, command_of, help_of, is_valid

# In a line for a shell, gpuboard may be the inner command, and something may follow it.
WITHIN = re.compile(r"\$\((gpuboard [^)]*)\)")
BEHIND = re.compile(r" (?:[|>]|&&) .*")


def examples(name: str) -> list[str]:
    """The lines of the blocks in its help that are printed as they stand."""
    blocks = [part for part in cleandoc(command_of(name).help or "").split("\n\n") if part.startswith("\b\n")]
    return [line.strip() for block in blocks for line in block.splitlines()[1:] if "gpuboard" in line]


def ours(line: str) -> list[str]:
    """What a line has for gpuboard."""
    return WITHIN.findall(line) or [BEHIND.sub("", line)]


def test_every_command_has_an_example_in_its_help() -> None:
    assert [name for name in ALL_COMMANDS if not examples(name)] == []


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_the_examples_of_a_command_are_of_that_command_and_understood(name: str) -> None:
    example_commands = [words for line in examples(name) for words in ours(line)]
    assert [words for words in example_commands if f"{words} ".startswith(f"gpuboard {name} ")]
    assert [words for words in example_commands if not is_valid(words)] == []


def test_an_example_that_is_not_understood_would_be_noticed() -> None:
    assert [is_valid(words) for words in ours("x=$(gpuboard config --fast) y")] == [False]
    assert ours("gpuboard config --json | jq .") == ["gpuboard config --json"]


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_an_example_stands_in_the_help_on_a_line_of_its_own(name: str) -> None:
    lines = [line.strip() for line in help_of(f"gpuboard {name}").splitlines()]
    assert [line for line in examples(name) if line not in lines] == []


def test_the_help_of_gpuboard_has_each_command_once_under_its_heading() -> None:
    help_text = help_of("gpuboard").partition("Options:")[2]
    for title, names in COMMAND_GROUPS.items():
        section = re.search(rf"^{title}:\n((?:  .*\n?)*)", help_text, re.MULTILINE)
        listed_names = re.findall(r"^  (\w+) ", section[1], re.MULTILINE) if section else []
        assert listed_names == list(names)


@pytest.mark.parametrize(("name", "summary"), [(name, summary) for name, (_, summary) in COMMANDS.items()])
def test_help_line_is_the_first_line_of_the_docstring(name: str, summary: str) -> None:
    assert cleandoc(load_command(name).help or "").split("\n")[0] == summary


def list_subcommands(name: str) -> list[click.Command]:
    """Return a command with the commands below it."""
    command = command_of(name)
    return [command, *(command.commands.values() if isinstance(command, click.Group) else ())]


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_each_command_and_option_says_in_60_characters_what_it_does(name: str) -> None:
    for command in list_subcommands(name):
        first_line = cleandoc(command.help or "").split("\n")[0]
        assert len(first_line) <= 60, first_line
        assert re.fullmatch(r"[A-Z][a-z]+ .*\.", first_line), first_line
        for option in command.params:
            if isinstance(option, click.Option):
                text = re.sub(r"  \[default: .*\]$", "", option.help or "")
                assert re.fullmatch(r"[A-Z].{1,58}\.|ssh .{1,55}\.", text), f"{command.name} {option.name}: {text}"


@pytest.mark.parametrize("name", ["", *ALL_COMMANDS])
def test_no_help_is_cut_at_80_columns(name: str) -> None:
    lines = help_of(f"gpuboard {name}".strip()).splitlines()
    assert [line for line in lines if len(line) > 80 or (line.endswith("...") and "Usage:" not in line)] == []
