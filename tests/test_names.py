"""Variables are named for what they are, not for having been found."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["access", "benchmarks", "examples", "planner", "stage_daemon", "tests"]


def bound_names(tree: ast.AST) -> set[tuple[str, int]]:
    """Of variables, parameters and attributes, with their lines."""
    names: set[tuple[str, int]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add((node.id, node.lineno))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add((node.attr, node.lineno))
        elif isinstance(node, ast.arg):
            names.add((node.arg, node.lineno))
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_called_found(package: str) -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if re.search(r"\b_*found_*\b", text := path.read_text())
        for name, line in bound_names(ast.parse(text))
        if name.strip("_") == "found"
    ]
    assert lines == []


def test_each_way_to_bind_a_name_is_seen() -> None:
    tree = ast.parse("a = 1\nself.b = 2\ndef f(c, *, d): ...\nlambda e: [0 for f in e]\nwith x as g: h: int = 0")
    assert {name for name, _ in bound_names(tree)} == set("abcdefgh")
