"""Which test files can run where torch is not installed: those that reach it through no import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDING = ("torch", "transformers", "stage_daemon", "planner.client.export", "planner.fx_compat")


@cache
def needs_torch(path: Path) -> bool:
    """Follows imports through `tests`, and through the conftest files above `path`."""
    return any(
        _is_needing(module) or any(needs_torch(path) for path in _test_files(module))
        for file in (path, *_conftests(path))
        for module in _imported(file)
    )


def _is_needing(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in NEEDING)


def _imported(file: Path) -> set[str]:
    """`from a import b` counts as a and as a.b: either may be a module."""
    files: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            files.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            files.add(node.module)
            files.update(f"{node.module}.{alias.name}" for alias in node.names)
    return files


def _test_files(module: str) -> list[Path]:
    if not module.startswith(("tests.", "examples.")):
        return []
    file = ROOT / Path(*module.split(".")).with_suffix(".py")
    return [file] if file.is_file() else []


def _conftests(path: Path) -> list[Path]:
    folders = [folder for folder in path.parents if (ROOT / "tests") in folder.parents]
    return [file for folder in folders if (file := folder / "conftest.py").is_file() and file != path]
