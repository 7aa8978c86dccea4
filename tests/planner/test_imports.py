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
