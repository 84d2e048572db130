"""docs/architecture.md does what it says: each recipe is applied to a copy of the package and run."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import ROOT, blocks, text_of

PAGE = "docs/architecture.md"
RECIPES = ("command", "page", "setting", "alert rule")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, beside what it needs."""
    for name in ("site_builder", "scripts", "www/assets", "install", "install.sh"):
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return tmp_path


def apply_recipe(copy: Path, name: str) -> None:
    diff = [block.text for block in blocks("diff") if block.page == PAGE][RECIPES.index(name)]
    command = ["git", "apply", "-p0", "--whitespace=nowarn", "-"]
    subprocess.run(command, cwd=copy, input=diff, text=True, check=True)


def run(copy: Path, *words: str) -> str:
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_command_recipe(copy: Path) -> None:
    apply_recipe(copy, "command")
    assert "List everybody in the history of this board." in run(copy, "-m", "site_builder", "--help")
    run(copy, "-m", "site_builder", "demo", "--once", "--hosts", "1", "--folder", "lab")
    names = run(copy, "-m", "site_builder", "people", "--state", "lab/state").split()
    assert "alice" in names


def test_page_recipe(copy: Path) -> None:
    apply_recipe(copy, "page")
    run(copy, "-m", "site_builder", "demo", "--once", "--hosts", "1", "--folder", "lab")
    assert "<li>atlas: 8" in (copy / "lab/www/counts.html").read_text()


def test_setting_recipe(copy: Path) -> None:
    apply_recipe(copy, "setting")
    (copy / "gpuboard.conf").write_text("GPUBOARD_CONTACT=ask alice\n")
    assert "ask alice" in run(copy, "-m", "site_builder", "config", "--conf", "gpuboard.conf")


def test_alert_rule_recipe(copy: Path) -> None:
    apply_recipe(copy, "alert rule")
    code = """
from datetime import timezone
from site_builder.alerts.conditions import find_conditions
from site_builder.alerts.rules import DEFAULT_RULES
from site_builder.core.clock import Now
from site_builder.core.model import HostFacts, HostStatus
facts = HostFacts(load=(90.0, 1.0, 1.0), cpus=8)
status = HostStatus("atlas", None, (), "fresh", "", facts=facts)
found = find_conditions(status, (), None, None, Now(0, timezone.utc))
print([condition.rule for condition in found], "host-overloaded" in DEFAULT_RULES)
"""
    assert run(copy, "-c", code).strip() == "['host-overloaded'] True"


def test_every_function_of_the_code_paths_exists() -> None:
    steps = re.findall(r"^\d+\. ((?:`[\w/.]+`,?\s+)+`[\w.]+`): ", text_of(PAGE), re.MULTILINE)
    assert len(steps) == len(re.findall(r"^\d+\. ", text_of(PAGE), re.MULTILINE)) > 20
    for step in steps:
        names = set()
        for file in re.findall(r"`([\w/]+\.py)`", step):
            for node in ast.parse((ROOT / "site_builder" / file).read_text()).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
                    names |= {node.name, *(f"{node.name}.{method.name}" for method in methods)}
        functions = {name for name in re.findall(r"`([\w.]+)`", step) if not name.endswith(".py")}
        assert functions <= names, step
        assert functions


def test_the_glossary_has_at_most_thirty_words() -> None:
    glossary = text_of(PAGE).partition("## Glossary\n")[2].partition("\n## ")[0]
    assert 10 <= len(re.findall(r"^- \*\*", glossary, re.MULTILINE)) <= 30
