"""`gpuboard config`, and the docs of the settings."""

from __future__ import annotations

import os
import re
import textwrap
from configparser import ConfigParser
from pathlib import Path

from site_builder.config.schema import (
    HOST_SETTINGS,
    SETTINGS,
)
from site_builder.config.settings import (
    ConfFile,
    load_conf_file,
)
from tests.support.settings_fixtures import EXAMPLE, ROOT, as_sh_reads, parsed

DOCS = ROOT / "docs/settings.md"
TABLE = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
TABLE.read(ROOT / "site_builder/config/settings.ini", "utf-8")


# Docs that cannot drift (GPUBOARD_UPDATE_GOLDEN=1 writes them anew)


def test_host_settings_are_those_of_the_scripts() -> None:
    reader = (ROOT / "scripts/lib/settings.sh").read_text().partition("\nread_conf_file()")[2].partition("\n}\n")[0]
    cases = re.findall(r"^ +(GPUBOARD_[A-Z_ |]+)\) ;;$", reader, re.MULTILINE)
    assert set(" ".join(cases).replace("|", " ").split()) == set(HOST_SETTINGS)
    of_both = re.findall(r"^ +(CONSUL_[A-Z_ |]+)\) ;;", reader, re.MULTILINE)
    names = set(" ".join(of_both).replace("|", " ").split())
    assert names == {name for name in SETTINGS if name.startswith("CONSUL_")} | {"GPUBOARD_CONSUL_SERVICE"}


def kept(path: Path, part: str, start: str) -> None:
    """The part of a file from the line `start` up to an empty line is this."""
    text = path.read_text()
    before, separator, after = text.partition(start)
    assert separator
    if os.environ.get("GPUBOARD_UPDATE_GOLDEN"):
        text = before + part + "\n" + after[after.index("\n\n") + 1 :]
        path.write_text(text)
    assert f"{part}\n" in text


def settings_of_docs() -> str:
    """The settings as a list below a heading for each group."""
    lines: list[str] = []
    for name, setting in SETTINGS.items():
        if "group" in TABLE[name]:
            lines += ["", f"### {TABLE[name]['group']}", ""]
        flag = f", `{setting.flag}`" if setting.flag else ""
        item = f"- `{name}={setting.default}`{flag}: {setting.description}"
        item += f". Prevents {setting.prevented_failure}" if setting.prevented_failure else ""
        whole = re.sub("`.*?`", lambda code: code[0].replace(" ", "\0"), item)
        wrapped = textwrap.fill(whole, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        lines.append(wrapped.replace("\0", " "))
    return "\n".join(lines) + "\n"


def test_the_docs_have_every_setting_with_its_default() -> None:
    text = DOCS.read_text()
    before = text.partition("\n### ")[0]
    if os.environ.get("GPUBOARD_UPDATE_GOLDEN"):
        text = before + settings_of_docs()
        DOCS.write_text(text)
    assert text == before + settings_of_docs()


# The settings that most labs set, with values to fill in.
FIRST_SETTINGS = {
    "GPUBOARD_ZONE": "Europe/Berlin",
    "GPUBOARD_LISTEN": "0.0.0.0:8080",
    "GPUBOARD_URL": "http://gpus.lab.org:8080/",
    "GPUBOARD_BOOK_URL": "book",
    "GPUBOARD_NOTIFY": "mailtos://gpus:password@smtp.lab.org?from=gpus@lab.org&to=ops@lab.org",
}


def example_lines(name: str, value: str) -> list[str]:
    description = SETTINGS[name].description
    return [f"# {description[0].upper()}{description[1:]}.", f"#{name}={value}"]


def test_the_example_begins_with_the_five_settings_that_most_labs_set() -> None:
    names = re.findall(r"^#([A-Z_]+)=", EXAMPLE.read_text(), re.MULTILINE)
    assert names[:5] == list(FIRST_SETTINGS)
    assert len(names) == len(set(names)) == len(SETTINGS) + len(HOST_SETTINGS)
    settings = parsed(environment=FIRST_SETTINGS)
    assert (str(settings.zone), settings.listen[1], settings.url) == (
        "Europe/Berlin",
        8080,
        "http://gpus.lab.org:8080/",
    )
    first_line = EXAMPLE.read_text().splitlines().index("# --- The five settings that most labs set ---")
    assert first_line <= 6


def test_the_example_has_every_setting_with_its_default_in_groups() -> None:
    lines = ["# --- The five settings that most labs set ---"]
    for name, value in FIRST_SETTINGS.items():
        lines += example_lines(name, value)
    kept(EXAMPLE, "\n".join(lines), lines[0])
    groups: dict[str, list[str]] = {}
    for name, setting in SETTINGS.items():
        lines = groups.setdefault(TABLE[name].get("group") or list(groups)[-1], [])
        lines += example_lines(name, setting.default) if name not in FIRST_SETTINGS else []
    for group, lines in groups.items():
        kept(EXAMPLE, "\n".join([f"# --- {group} ---", *lines]), f"# --- {group} ---")
    assert set(re.findall(r"^#([A-Z_]+)=", EXAMPLE.read_text(), re.MULTILINE)) == {*SETTINGS, *HOST_SETTINGS}


def test_the_example_can_be_used_as_it_is_and_with_every_line_on(tmp_path: Path) -> None:
    assert load_conf_file(str(EXAMPLE), {}) == ConfFile(EXAMPLE, {})
    file = tmp_path / "my.conf"
    text = EXAMPLE.read_text()
    for name, value in FIRST_SETTINGS.items():
        assert f"#{name}={value}\n" in text
        text = text.replace(f"#{name}={value}\n", f"#{name}={SETTINGS[name].default}\n")
    file.write_text(re.sub(r"^#([A-Z_]+=)", r"\1", text, flags=re.MULTILINE))
    loaded = load_conf_file(str(file), {})
    assert (len(loaded.values), loaded.warnings) == (len(SETTINGS) + len(HOST_SETTINGS), ())
    environment = {"TZ": "Europe/Paris"}
    assert parsed(environment=environment, file=file.read_text()) == parsed(environment=environment)
    assert as_sh_reads(file) == as_sh_reads(EXAMPLE)


def test_every_name_in_the_code_is_documented() -> None:
    names = re.compile(r"\b(?:GPUBOARD|CONSUL)(?:_[A-Z]+)+\b")
    used: set[str] = set()
    for module in (ROOT / "site_builder").rglob("*.py"):
        used |= set(names.findall(module.read_text()))
    documented = set(names.findall(DOCS.read_text())) | set(names.findall((ROOT / "docs/hosts.md").read_text()))
    assert used - documented == set()


def test_misspelt_variable_causes_a_warning(tmp_path: Path) -> None:
    environment = {"GPUBOARD_SHOW_COMANDS": "none", "GPUBOARD_TEST_SHELL": "dash", "GPUBOARD_CONF": ""}
    (warning,) = load_conf_file(None, environment, [tmp_path / "gpuboard.conf"]).warnings
    assert warning == "GPUBOARD_SHOW_COMANDS in the environment is not a setting; did you mean GPUBOARD_SHOW_COMMANDS?"
