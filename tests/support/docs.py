"""The pages of the project, taken apart: headings, blocks, commands, links, and words in the type of a program."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from site_builder.cli import COMMANDS, main
from tests.support.command_line import run_gpuboard

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
SCRIPTS = ("./install.sh", "scripts/gpu-check.sh", "scripts/gpu-run.sh", "scripts/gpu-doctor.sh", "bench/run")

FENCED = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"')
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block; a page may have several of a kind."""

    page: str
    kind: str
    text: str


def text_of(page: str) -> str:
    """A page as it is written."""
    return (ROOT / page).read_text()


def prose_of(page: str) -> str:
    """The same without its blocks."""
    return FENCED.sub("", text_of(page))


def blocks(*kinds: str) -> list[Block]:
    """All blocks of all pages, or those of some kinds."""
    all_blocks = [Block(page, kind, text) for page in PAGES for kind, text in FENCED.findall(text_of(page))]
    return [block for block in all_blocks if not kinds or block.kind in kinds]


def commands(page: str) -> list[str]:
    """The lines of its sh blocks; one that ends in a backslash goes on in the next."""
    lines = "\n".join(block.text for block in blocks("sh") if block.page == page).replace("\\\n", "").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def inline(page: str) -> list[str]:
    """The words in the type of a program, within sentences and tables."""
    return INLINE.findall(prose_of(page))


def links(page: str) -> list[str]:
    """What it links to, and its pictures."""
    return [link or picture for link, picture in LINK.findall(INLINE.sub("", prose_of(page)))]


def anchors(page: str) -> set[str]:
    """The names of its headings, as GitHub makes them."""
    anchor_names: set[str] = set()
    for heading in HEADING.findall(prose_of(page)):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        number = next(number for number in range(99) if (f"{name}-{number}" if number else name) not in anchor_names)
        anchor_names.add(f"{name}-{number}" if number else name)
    return anchor_names


@cache
def help_of(program: str) -> str:
    """What a program of ours prints when it is asked for help."""
    if program.startswith("gpuboard"):
        done = run_gpuboard(ROOT, *program.split()[1:], "--help")
    else:
        done = subprocess.run([program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command_of(words: str) -> click.Command:
    """A command as click has it; `alerts test` is one of a command."""
    command: click.Command | None = main
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command
    return command


def with_inner(name: str) -> list[str]:
    """A command, and those that it has."""
    command = command_of(name)
    inner = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ()
    return [name, *(f"{name} {subcommand}" for subcommand in inner)]


ALL_COMMANDS = tuple(words for name in COMMANDS for words in with_inner(name))


def programs() -> list[str]:
    """All that have a help."""
    return [*SCRIPTS, "gpuboard", *(f"gpuboard {name}" for name in ALL_COMMANDS)]


PLACEHOLDER = re.compile(r"[A-Z]+|\[[A-Z]+\]|…")


def is_valid(text: str) -> bool:
    """Whether a program of ours takes these words."""
    program, *words = shlex.split(text.partition(" > ")[0], comments=True)
    words = [word for word in words if not PLACEHOLDER.fullmatch(word) or program == "gpuboard"]
    if program == "gpuboard":
        return is_valid_command(words)
    if program == "./install.sh":
        verb = words[0] if words else "--help"
        part = re.search(rf"\./install\.sh {verb}\b.*?(?=\./install\.sh|\n\n|\Z)", help_of(program), re.DOTALL)
        return verb == "--help" or (part is not None and all_told(words[1:], part[0]))
    if program == "bench/run":
        return all(re.search(rf"\b{word}\b", help_of(program)) for word in words)
    if program in ("gpu-check.sh", "gpu-doctor.sh"):
        return all_told([word for word in words if word not in ("status", "kill")], help_of(f"scripts/{program}"))
    return all(f"{program} {word} " in help_of(f"scripts/{program}") for word in words)


def is_valid_command(words: list[str]) -> bool:
    """The same for gpuboard; click itself parses them."""
    if not words or words[0] in ("--version", "--debug", "--help"):
        return bool(words)
    group: click.Group = main
    command = group.get_command(click.Context(group), words[0])
    while isinstance(command, click.Group) and words[1:] and not words[1].startswith("-"):
        group, words = command, words[1:]
        command = group.get_command(click.Context(group), words[0])
    try:
        return command is not None and bool(command.make_context(words[0], words[1:], **main.context_settings))
    except click.UsageError:
        return False


def all_told(words: list[str], searched_text: str) -> bool:
    """Whether each option, and each plain word that follows none, is told."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    plain = [
        word for before, word in zip(["", *words], words) if not word.startswith("-") and not before.startswith("-")
    ]
    return all(re.search(rf"{flag}\b", searched_text) for flag in flags) and all(
        re.search(rf"\b{word}\b", searched_text) for word in plain
    )


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of the tables that begin with this title."""
    tables = [part.split("\n\n")[0] for part in prose_of(page).split(f"\n| {title} |")[1:]]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
