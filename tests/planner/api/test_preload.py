"""What computations are forked from: all that they import is there, and out of their garbage collections' way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contract.graphs import chain_bytes

PROGRAM = """
import gc, sys
from planner.api.computing import PRELOADED
for name in PRELOADED:
    __import__(name)
assert gc.isenabled()
assert gc.get_freeze_count() > len(gc.get_objects())
before = set(sys.modules)
import planner.api.tasks
from planner.cost.inventory import Device, Inventory
from planner.plan.options import BalancedMode, CutMode, OptimalMode, PlanOptions
from planner.planning import make_plan
from planner.wire.graph import graph_from_bytes

graph = graph_from_bytes(bytes.fromhex(sys.argv[1]))
devices = tuple(Device(id=name, kind="cpu", host="host", memory_bytes=1 << 30) for name in ("one", "other"))
for mode in (BalancedMode(num_stages=2), CutMode(module_paths=("layers.0",)), OptimalMode()):
    make_plan(graph, "id", Inventory(devices=devices), PlanOptions(mode=mode))
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.services
def test_computations_import_nothing_and_collect_only_their_own() -> None:
    command = [sys.executable, "-c", PROGRAM, chain_bytes().hex()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == []
