"""What computations are forked from: all that they import is there, and out of their garbage collections' way."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from planner.api.computing import PRELOADED
for name in PRELOADED:
    __import__(name)
assert gc.isenabled()
assert gc.get_freeze_count() > len(gc.get_objects())
before = set(sys.modules)
import planner.api.tasks, planner.planning
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.services
def test_computations_import_nothing_and_collect_only_their_own() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == []
