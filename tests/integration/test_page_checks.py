"""The checks that tests make of every page find what they are there for."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.page_checks import (
    LAPTOP,
    PHONE,
    TOO_WIDE,
    each_view,
    find_accessibility_faults,
    find_parse_errors,
    validate_elements,
)

PAGE = """<!doctype html><html lang=en><meta name=viewport content="width=device-width"><title>page</title>
<style>{style}</style><main><h1>Page</h1>{content}</main>"""


@pytest.mark.parametrize(
    ("style", "content", "rules"),
    [
        ("", "<p>text</p>", []),
        ("", "<p>text</p><img src=''>", ["image-alt"]),
        ("p { color: #bbb; background: white }", "<p>text</p>", ["color-contrast"] * 2),
        (
            "@media (prefers-color-scheme: dark) { p { color: #333; background: black } }",
            "<p>text</p>",
            ["color-contrast"],
        ),
        ("@media (max-width: 500px) { p { color: #bbb; background: white } }", "<p>text</p>", ["color-contrast"]),
        (
            "a { display: block; height: 40px } @media (max-width: 500px) { a { width: 9px; height: 9px } }",
            "<a href=a>a</a><a href=b>b</a>",
            ["target-size"],
        ),
    ],
)
def test_axe_finds_faults_of_each_view(browser: Browser, style: str, content: str, rules: list[str]) -> None:
    page = browser.new_page()
    page.set_content(PAGE.format(style=style, content=content))
    faults = find_accessibility_faults(page)
    page.context.close()
    assert [rule for rule, _ in faults] == rules


def test_what_is_too_wide_is_named(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(PAGE.format(style="div { width: 500px }", content="<div class=host>text</div>"))
    wide = [page.evaluate(TOO_WIDE) for _ in each_view(page, LAPTOP, PHONE)]
    page.context.close()
    assert wide == [[], ["HTML"]]


def test_html_that_is_not_valid_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<!doctype html><p><table></p>")
    assert find_parse_errors(tmp_path / "bad.html") != []
    content = '<!doctype html>\n<html lang="en"><head><title>page</title></head><body>{}</body></html>\n'
    assert validate_elements(tmp_path, {"good": content.format("<p>text</p>")}) == ""
    assert "element-permitted-content" in validate_elements(tmp_path, {"bad": content.format("<b><p>text</p></b>")})
