"""What holds for every page: axe finds no fault on any screen in any colours, and the HTML is valid."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import html5lib
from playwright.sync_api import Page

from tests.support.browser import node_module

PHONE, LAPTOP = 390, 1440
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
# What depends on colours and on the width; all other rules see the same elements on each screen.
LAYOUT_RULES = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll(".host, .part, .plot, .bar, .panel")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.id || one.className || one.tagName)"""
# Only what we read leaves the browser: the full report takes longer than the checks themselves.
RUN_AXE = """async ([context, rules]) => {
    const report = await axe.run(context ?? document, { runOnly: rules, selectors: false });
    const faults = (results) => results.map((rule) => [rule.id, rule.nodes.map((node) => node.html.slice(0, 300))]);
    const contrast = (results) => results.filter((rule) => rule.id === "color-contrast");
    return [
        faults(report.violations),
        faults(contrast(report.incomplete)),
        contrast(report.passes).reduce((count, rule) => count + rule.nodes.length, 0),
    ];
}"""


class AxeReport(NamedTuple):
    """Faults with the HTML of their elements, and of how many texts axe knows the contrast."""

    faults: list[tuple[str, list[str]]]
    unclear_contrast: list[tuple[str, list[str]]]
    contrast_count: int


def run_axe(page: Page, rules: Sequence[str] = RULES, context: str | Mapping[str, str] | None = None) -> AxeReport:
    """Let axe check the page, or only this part of it: a selector, or `{"exclude": selector}`."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(node_module("axe-core/axe.min.js").read_text())
    return AxeReport(*page.evaluate(RUN_AXE, [context, [*rules]]))


def each_view(page: Page, laptop: int = LAPTOP, phone: int = PHONE) -> Iterator[tuple[str, ...]]:
    """Show the page on a light laptop, which all rules check, and on a dark phone; yield the rules of each."""
    height = (page.viewport_size or {"height": 900})["height"]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": laptop, "height": height})
    yield RULES
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": phone, "height": height})
    yield LAYOUT_RULES


def remove_charts(page: Page) -> None:
    """Leave out the charts, which are most of a host's page; test_chart_pages.py checks them."""
    page.evaluate("document.querySelectorAll('.charts').forEach((one) => one.remove())")


def find_accessibility_faults(page: Page) -> list[tuple[str, list[str]]]:
    """Return the faults of each view of a page."""
    return [fault for rules in each_view(page) for fault in run_axe(page, rules).faults]


def find_parse_errors(*files: Path) -> list[object]:
    """Return what a parser of HTML objects to in these files."""
    errors: list[object] = []
    for file in files:
        parser = html5lib.HTMLParser()
        parser.parse(file.read_text())
        errors += [(file.name, error) for error in parser.errors]
    return errors


def validate_elements(folder: Path, pages: Mapping[str, str]) -> str:
    """Return what html-validate objects to in these pages, which need the end tags that we leave out."""
    program = node_module("html-validate/bin/html-validate.mjs")
    (folder / "rules.json").write_text(json.dumps({"extends": ["html-validate:standard"], "elements": ["html5"]}))
    for name, content in pages.items():
        (folder / f"{name}.html").write_text(content)
    command = ["node", str(program), "--config", "rules.json", *(f"{name}.html" for name in pages)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr + (f"exit code {result.returncode}" if result.returncode else "")
