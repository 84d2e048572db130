"""Docs that do not rot: links lead somewhere, examples are understood, and what is named is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from site_builder.cli import COMMAND_GROUPS
from site_builder.config.schema import ENVIRONMENT_ONLY, HOST_SETTINGS, SETTINGS
from site_builder.config.settings import load_conf_file
from site_builder.core import people
from site_builder.discovery import hosts
from site_builder.fleet import gpu_models
from site_builder.web.static_files import SECURITY_HEADERS
from tests.support.board_fixture import Lab, gpu
from tests.support.docs import (
    ALL_COMMANDS,
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    commands,
    help_of,
    inline,
    is_valid,
    links,
    programs,
    prose_of,
    rows,
    text_of,
)
from tests.support.missing import missing

# Who reads a block of each kind: the tests below, or one of test_docs_run.py, test_*servers.py, test_prometheus.py, or
# for py, test_export.py, for hcl and consul, test_scaling.py.
KINDS = {"sh", "text", "json", "conf", "hosts", "aliases", "gpu-names", "crontab", "authorized_keys", "systemd"} | {
    *("nginx", "nginx-proxy", "nginx-login", "nginx-gpus", "nginx-cgi", "nginx-open", "nginx-spool"),
    *("apache", "apache-proxy", "apache-gpus", "apache-cgi", "apache-token", "apache-open"),
    *("caddy-proxy", "caddy-login", "caddy-gpumonitor", "lighttpd", "lighttpd-proxy", "lighttpd-cgi"),
    *("curl", "prometheus", "promql", "python", "py", "sshd_config", "hcl", "consul"),
}
COMMAND_LINE = re.compile(
    r"(?:\$ |\./install\.sh|gpuboard |gpu-(?:check|run|doctor)\.sh |bench/run|sudo |git |apt)", re.MULTILINE
)
OURS = ("./install.sh", "gpuboard ", "gpu-check.sh", "gpu-run.sh", "gpu-doctor.sh", "bench/run")
COMMANDS_PAGE = "docs/commands.md"  # generated
UPDATE = bool(os.environ.get("GPUBOARD_UPDATE_GOLDEN"))
PAGES_FOR_USERS = [
    f"docs/{name}.md"
    for name in (
        *("board", "bookings", "booking-service", "calendar", "watch", "picking", "terminal", "commands", "people"),
        *("waste", "report", "history", "slack", "prometheus", "outputs"),
    )
]
# Words with a letter or a digit: the lines of tables are none.
MOST_README_WORDS = 1000
MOST_USER_WORDS = 10_500
MOST_WORDS = 30_000
VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
FULL_RUN = "3.11"  # the job that runs everything has this one
KINDS |= {"ansible", "ansible-hosts"}  # by test_ansible.py
KINDS |= {"answer", "reader", "collector"}  # by test_adding_a_gpu.py
KINDS |= {"diff"}  # by test_recipes.py
KINDS |= {"nvgpu"}  # by test_nvgpu.py
KINDS |= {"alerts", "contacts"}  # by tests/alerts/test_rules.py


def block_id(block: Block) -> str:
    return f"{block.page}: {block.text.partition(chr(10))[0][:40]}"


# Links, and what the blocks are


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "data/README.md"])
def test_every_link_and_picture_leads_somewhere(page: str) -> None:
    lost = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = os.path.normpath(Path(page).parent / file) if file else page
        if not (ROOT / target).is_file() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_the_index_links_every_page() -> None:
    linked = {os.path.normpath(Path("docs") / link.partition("#")[0]) for link in links("docs/README.md")}
    assert {*PAGES} - {"README.md", "docs/README.md"} - linked == set()
    assert {"docs/README.md", "docs/quick-start.md"} <= {*links("README.md")}


@pytest.mark.parametrize("page", PAGES)
def test_no_block_and_no_word_is_written_so_that_the_tests_would_miss_it(page: str) -> None:
    assert text_of(page).count("```") == 2 * sum(block.page == page for block in blocks())
    assert [line for line in prose_of(page).splitlines() if line.count("`") % 2] == []
    assert [line for line in prose_of(page).splitlines() if line.startswith(("    ", "\t", "<pre", "~~~"))] == []


@pytest.mark.parametrize("block", blocks(), ids=block_id)
def test_every_block_is_of_a_kind_that_is_tested(block: Block) -> None:
    assert block.kind in KINDS


@pytest.mark.parametrize("block", blocks("text"), ids=block_id)
def test_no_command_stands_where_no_test_runs_it(block: Block) -> None:
    command_lines = [line for line in block.text.splitlines() if COMMAND_LINE.match(line)]
    assert command_lines == [] or block.page == COMMANDS_PAGE or block.text.strip() in map(help_of, programs())


# Words that people will type


TYPED = sorted({text for page in PAGES for text in [*inline(page), *commands(page)] if text.startswith(OURS)})


@pytest.mark.parametrize("text", TYPED)
def test_what_people_will_type_is_understood(text: str) -> None:
    assert is_valid(text)


@pytest.mark.parametrize(
    "text",
    [
        "gpuboard paint",
        "gpuboard build --fast",
        "gpuboard forget",
        "gpuboard alerts paint",
        "gpuboard alerts test --fast",
        "./install.sh web --dest x",
        "./install.sh test slow",
        "./install.sh fly",
        "gpu-check.sh --fast",
        "gpu-run.sh 4",
        "bench/run paint",
    ],
)
def test_what_is_not_understood_would_be_noticed(text: str) -> None:
    assert not is_valid(text)


SHARED_OPTIONS = ("--conf ", "--data ", "--www ", "--state ", "--url ", "--json ", "-y, ", "-h, ")


def reference_of(name: str) -> str:
    """Return what docs/commands.md shows of a command's help: its arguments, its summary and the options of its own."""
    usage, summary, *parts = help_of(name).split("\n\n")
    arguments = usage.partition("[OPTIONS]")[2].replace("COMMAND [ARGS]...", "")
    options = next((part.splitlines()[1:] for part in parts if part.startswith("Options:")), [])
    text = "\n".join(without_repeated_options(name, options))
    heading = f"### {name}{arguments}".strip()
    return f"{heading}\n\n{' '.join(summary.split())}" + (f"\n\n```text\n{text}\n```" if text else "")


def without_repeated_options(name: str, lines: list[str]) -> list[str]:
    """Leave out options that many commands have, and those of `available` from the others that pick GPUs."""
    elsewhere = help_of("gpuboard available") if name in ("gpuboard wait", "gpuboard run") else ""
    options = re.split(r"\n(?=  -)", "\n".join(lines))
    own = [option for option in options if not option.strip().startswith(SHARED_OPTIONS) and option not in elsewhere]
    return dedent("\n".join(own)).splitlines()


def commands_page() -> str:
    """docs/commands.md as it should be."""
    parts = [
        "# Commands",
        "Every command with its options. `--help` and `man gpuboard` ([gpuboard.1](gpuboard.1)) say more, with "
        "examples. The scripts of a GPU host are in [hosts.md](hosts.md#the-two-commands); the installer has "
        "`./install.sh --help`.",
        "Most commands also take `--conf FILE` (the settings file), `--data`, `--www` and `--state FOLDER`, which win "
        "over [the settings](settings.md); those that read a board `--url URL`; those that print a table `--json`; "
        "those that ask `-y` for yes. `wait` and `run` pick GPUs by the same options as `available`.",
    ]
    for title, group in COMMAND_GROUPS.items():
        parts.append(f"## {title}")
        parts += [reference_of(f"gpuboard {name}") for name in ALL_COMMANDS if name.split()[0] in group]
    return "\n\n".join(parts) + "\n"


def test_the_docs_have_every_command() -> None:
    page = ROOT / COMMANDS_PAGE
    if UPDATE:
        page.write_text(commands_page())
    assert page.read_text() == commands_page()


# Examples, read by our own readers


@pytest.mark.parametrize("block", blocks("json"), ids=block_id)
def test_a_booking_of_the_docs_is_understood_and_shown(block: Block, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    for host in ("atlas", "hydra"):
        lab.host(host, "".join(gpu(index, uuid=f"GPU-{host}-{index}") for index in range(4)))
    lab.book(block.text.replace("2027-", "2199-"))
    assert lab.build().problems == []
    assert lab.states("atlas")[0] == "booked"
    assert lab.host_status("hydra")["gpus"][3]["bookings"][-1]["name"] in ("bob", "admin")


@pytest.mark.parametrize("block", blocks("conf"), ids=block_id)
def test_settings_of_the_docs_are_understood(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "gpuboard.conf"
    file.write_text(block.text)
    file.chmod(0o600)  # some have a token in them
    parsed_settings = load_conf_file(str(file), {})
    assert (len(parsed_settings.values), parsed_settings.warnings) == (len(block.text.splitlines()), ())
    for name, value in parsed_settings.values.items():
        if name in SETTINGS:
            SETTINGS[name].value_type.parse(value.text)


@pytest.mark.parametrize("block", blocks("hosts"), ids=block_id)
def test_a_host_list_of_the_docs_is_understood(block: Block) -> None:
    parsed_hosts = hosts.parse_hosts_txt(block.text.encode())
    assert (len(parsed_hosts.rows), parsed_hosts.problems) == (len(block.text.splitlines()), ())


@pytest.mark.parametrize("block", blocks("aliases", "gpu-names"), ids=block_id)
def test_names_of_the_docs_are_understood(block: Block) -> None:
    reader = {"aliases": people.parse_aliases, "gpu-names": gpu_models.parse_gpu_model_names}[block.kind]
    assert set(reader(block.text.encode()).values()) == {block.text.strip().rpartition(", ")[2]}


@pytest.mark.parametrize("block", blocks("crontab"), ids=block_id)
def test_cron_understands_the_lines_of_the_docs(block: Block, tmp_path: Path) -> None:
    (tmp_path / "table").write_text(block.text)
    program = shutil.which("crontab") or missing("crontab is not here; ./install.sh test installs cron")
    subprocess.run([program, "-n", str(tmp_path / "table")], check=True)


# What is said of the code


def normal(code: str) -> str:
    """Code in which a string that goes on in the next line is one."""
    return re.sub(r'"\n\s*f?"', "", code)


CODE = [
    normal(path.read_text())
    for folder in ("scripts", "install", "site_builder", "www/assets")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".sh", ".awk", ".py", ".html", ".js"}
]


@pytest.mark.parametrize("words", sorted(set(re.findall("“([^”]*)”", text_of("docs/troubleshooting.md")))))
def test_a_sentence_in_quotation_marks_is_one_of_ours(words: str) -> None:
    parts = [part.strip() for part in words.split("…") if part.strip()]
    assert len("".join(parts)) >= 5
    wanted = re.compile(".{0,160}?".join(map(re.escape, parts)))
    assert any(wanted.search(code) for code in CODE)


def test_the_map_lists_every_package_in_the_order_of_the_import_contract() -> None:
    folder = ROOT / "site_builder"
    present = {path.name for path in folder.glob("*.py")}
    present |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}  # an old clone may have empty folders
    listed = re.findall(r"^- `([\w./]+)`: ", text_of("docs/architecture.md"), re.MULTILINE)
    assert sorted(listed) == sorted(present)
    contract = re.search(r"layers = \[(.*?)\]", text_of("pyproject.toml"), re.DOTALL)
    assert contract
    layers = re.findall(r'"(\w+)"', contract[1])
    packages = [name.strip("/") for name in listed if name.strip("/") in layers]
    assert packages == [layer for layer in reversed(layers) if f"{layer}/" in present]


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "docs/hosts.md", "docs/board.md"])
def test_every_file_of_ours_that_a_page_names_is_there(page: str) -> None:
    packages = "|".join(path.name for path in (ROOT / "site_builder").iterdir() if path.is_dir())
    folders = f"scripts|site_builder|tests|install|bench|{packages}"
    named = [word for word in inline(page) if re.fullmatch(rf"(?:{folders})/[\w./*-]*", word) and "X" not in word]
    assert [word for word in named if not any(list(base.glob(word)) for base in (ROOT, ROOT / "site_builder"))] == []


def test_the_headers_of_the_docs_are_those_that_are_sent() -> None:
    documented_headers = [(row[0].strip("`"), row[1].strip("`")) for row in rows("docs/security.md", "header")]
    assert documented_headers == [*SECURITY_HEADERS]


def test_the_settings_in_the_readme_have_their_defaults() -> None:
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    for name, default, _ in rows("README.md", "setting"):
        assert default.strip("`") == (defaults[name.strip("`")] or default)
    assert len(rows("README.md", "setting")) == 5


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_that_a_page_names_is_one(page: str) -> None:
    setting_names = {*SETTINGS, *HOST_SETTINGS, *ENVIRONMENT_ONLY}
    named = set(re.findall(r"\b(?:GPUBOARD|CONSUL)(?:_[A-Z]+)+\b", text_of(page)))
    assert named - setting_names - {"GPUBOARD_UPDATE_GOLDEN", "GPUBOARD_TEST_ARTEFACTS", "GPUBOARD_CONTACT"} == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_value_that_a_page_gives_a_setting_is_allowed(page: str) -> None:
    kinds = {name: setting.value_type for name, setting in SETTINGS.items()}
    for word in inline(page):
        name, equals, value = word.partition("=")
        if equals and name in kinds:
            kinds[name].parse(value)


def test_the_docs_are_short() -> None:
    words = {page: len(re.findall(r"\S*\w\S*", text_of(page))) for page in PAGES}
    assert words["README.md"] <= MOST_README_WORDS
    assert sum(words[page] for page in PAGES_FOR_USERS) <= MOST_USER_WORDS
    assert sum(words[page] for page in PAGES if page.startswith("docs/")) <= MOST_WORDS


# GitHub


def test_the_workflow_tests_the_pythons_that_we_promise() -> None:
    workflow = text_of(".github/workflows/test.yml")
    version_match = re.search(r"python: \[(.*)\]", workflow)
    assert version_match
    assert re.findall(r'"([\d.]+)"', version_match[1]) == [
        *(version for version in VERSIONS if version != FULL_RUN),
        "3.14",
    ]
    assert f"image: python:{FULL_RUN}-bookworm" in workflow
    assert f'requires-python = ">={VERSIONS[0]}"' in text_of("pyproject.toml")
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"{VERSIONS[0]} to {VERSIONS[-1]}" in text_of(page)


def test_the_workflow_runs_the_command_of_the_readme_with_no_rights_to_the_repository() -> None:
    workflow = text_of(".github/workflows/test.yml")
    for line in (
        "on: [push, pull_request]",
        "permissions:\n  contents: read",
        "fail-fast: false",
        "timeout-minutes: 30",
        "image: python:${{ matrix.python }}-bookworm",
        "options: --privileged",
        "uses: actions/checkout@v4",
        "run: ./install.sh test\n",
        "run: ./install.sh test python\n",
    ):
        assert line in workflow
    assert "secrets" not in workflow
