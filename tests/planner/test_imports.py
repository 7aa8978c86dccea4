"""torch stays out of the planner: it is not installed where planner-server runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.services


@pytest.mark.parametrize(
    "module",
    [
        "planner",
        "planner.__main__",
        "planner.api.server",
        "planner.planning",
        "planner.dispatch",
        "planner.client",
        "planner.cli.__main__",
    ],
)
def test_importing_loads_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr or f"importing {module} loads torch"


@pytest.mark.parametrize("module", ["planner.api.server", "planner.cli.commands.plan", "planner.cli.commands.submit"])
def test_what_only_computes_assignments_needs_the_compiler(module: str) -> None:
    """It takes a third of a second, and the processes that compute have it."""
    program = f"import sys, {module}; sys.exit('numba' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr or f"importing {module} loads numba"


@pytest.mark.parametrize("command", ["device", "graph", "plan", "profile", "submit"])
def test_commands_that_read_no_tensor_load_no_numpy_and_no_yaml(command: str) -> None:
    program = f"import sys, planner.cli.commands.{command}; sys.exit(bool({{'numpy', 'yaml'}} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr or f"planner-cli {command} loads numpy or yaml"
