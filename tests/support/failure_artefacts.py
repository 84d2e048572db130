"""Keep what explains a failed test, in a folder of its own below that which GPUBOARD_TEST_ARTEFACTS names."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import Error as PlaywrightError

ARTEFACTS = os.environ.get("GPUBOARD_TEST_ARTEFACTS", "")
# Logs, pages, and what the builder wrote beside them.
KEPT_FILES = re.compile(r"log(-\d+)?|.*\.(log|html|json|conf|txt|csv)")
MAX_BYTES = 1_000_000
MAX_FILES = 200


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of this run, for the workers too; --hypothesis-seed repeats one."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Print the seed if something failed."""
    if exitstatus:
        seed = terminalreporter.config.option.hypothesis_seed
        terminalreporter.write_line(f"Repeat the generated examples of this run with --hypothesis-seed={seed}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Save logs, pages and screenshots of a test that failed, before its fixtures end."""
    report = yield
    if ARTEFACTS and report.failed and call.excinfo:
        name = re.sub(r"[^\w.-]+", "-", item.nodeid.removeprefix("tests/")).strip("-")[:150]
        folder = Path(ARTEFACTS, f"{name}-{report.when}")
        folder.mkdir(parents=True, exist_ok=True)
        sections = [f"{title}\n{text}" for title, text in report.sections]
        (folder / "failure.txt").write_text("\n\n".join([report.longreprtext, *sections]), errors="backslashreplace")
        arguments = getattr(item, "funcargs", {})
        if isinstance(tmp_path := arguments.get("tmp_path"), Path):
            copy_files(tmp_path, folder / "files")
        if isinstance(browser := arguments.get("browser"), Browser):
            save_pages(browser, folder)
    return report


def files_to_keep(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if KEPT_FILES.fullmatch(path.name) and path.is_file() and path.stat().st_size <= MAX_BYTES:
            yield path


def copy_files(source: Path, target: Path) -> None:
    for path, _ in zip(files_to_keep(source), range(MAX_FILES)):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def save_pages(browser: Browser, folder: Path) -> None:
    """Save a screenshot and the HTML of each open page."""
    pages = [page for context in browser.contexts for page in context.pages]
    for number, page in enumerate(pages):
        try:
            (folder / f"page-{number}.html").write_text(f"<!-- {page.url} -->\n{page.content()}")
            page.screenshot(path=folder / f"page-{number}.png", full_page=True, timeout=5000)
        except PlaywrightError as error:
            (folder / f"page-{number}.txt").write_text(str(error))
