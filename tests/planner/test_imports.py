"""torch stays out of the planner: it is not installed where planner-server runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

pytestmark = pytest.mark.services

# One process imports them one after the other, and says which was the first to load what it should not.
PROGRAM = """
import importlib, sys
modules, unwanted = map(str.split, sys.argv[1:])
for module in modules:
    importlib.import_module(module)
    if loaded := [name for name in unwanted if name in sys.modules]:
        sys.exit(f"importing {module} loads {loaded}")
"""


def assert_import_without(unwanted: Sequence[str], modules: Sequence[str]) -> None:
    arguments = [" ".join(modules), " ".join(unwanted)]
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_importing_loads_no_torch() -> None:
    modules = [
        "planner",
        "planner.__main__",
        "planner.api.server",
        "planner.planning",
        "planner.dispatch",
        "planner.client",
        "planner.cli.__main__",
    ]
    assert_import_without(["torch"], modules)


def test_what_only_computes_assignments_needs_the_compiler() -> None:
    """It takes a third of a second, and the processes that compute have it."""
    assert_import_without(["numba"], ["planner.cli.commands.plan", "planner.cli.commands.submit", "planner.api.server"])


def test_commands_that_read_no_tensor_load_no_numpy_and_no_yaml() -> None:
    commands = ["device", "graph", "plan", "profile", "submit"]
    assert_import_without(["numpy", "yaml"], [f"planner.cli.commands.{command}" for command in commands])
