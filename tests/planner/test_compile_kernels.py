"""What compiles the kernels ahead calls all of them, and the plans that it makes are the same as plain Python's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner import compile_kernels
from planner.errors import Infeasible
from planner.partition.placement.compiled import WITHOUT_COMPILER

pytestmark = [pytest.mark.services, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# Once for both questions: as plain Python the searches take most of ten seconds.
SCRIPT = """
import functools, importlib, json, pkgutil, sys

sys.modules["numba"] = None
from planner.partition.placement import compiled

called = set()
as_it_is = compiled.compiled

def recorded(function):
    kernel = as_it_is(function)
    assert kernel is function
    @functools.wraps(kernel)
    def call(*arguments):
        called.add(kernel)
        return kernel(*arguments)
    return call

compiled.compiled = recorded
import planner.cost_graphs, planner.partition
from tests.planner.test_compile_kernels import plans_of_searches

for package in (planner.partition, planner.cost_graphs):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
plans = plans_of_searches()
reached = [kernel for kernel in compiled.KERNELS if kernel in called]
# What a kernel names is compiled with it, whether these problems come to it or not.
for kernel in reached:
    named = [kernel.__globals__.get(name) for name in kernel.__code__.co_names]
    others = {getattr(other, "__wrapped__", None) for other in named if callable(other)}
    reached += [other for other in compiled.KERNELS if other in others and other not in reached]
left = sorted(kernel.__qualname__ for kernel in compiled.KERNELS if kernel not in reached)
print(json.dumps([plans, len(compiled.KERNELS), left]))
"""


class Interpreted(NamedTuple):
    """What plain Python printed."""

    plans: list[str]
    num_kernels: int
    kernels_left: list[str]
    messages: str


def plans_of_searches() -> list[str]:
    """What compiles the kernels is run, and its plans, or why there is none, are listed."""
    plans: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_kernels, "make_plan", partial(_listed, plans, compile_kernels.make_plan))
        for search in compile_kernels.SEARCHES:
            search()
    return plans


def _listed(plans: list[str], make_plan: Any, *arguments: Any) -> None:
    try:
        plans.append(str(make_plan(*arguments)))
    except Infeasible as error:
        plans.append(str(error))
        raise


@pytest.fixture(scope="module")
def interpreted() -> Interpreted:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return Interpreted(*json.loads(finished.stdout), messages=finished.stderr)


def test_no_kernel_is_left_for_a_users_plan(interpreted: Interpreted) -> None:
    assert interpreted.num_kernels > 50
    assert not interpreted.kernels_left


def test_without_a_compiler_plans_are_the_same_and_it_is_said_once(interpreted: Interpreted) -> None:
    assert interpreted.plans == plans_of_searches()
    assert sum("stages" in plan for plan in interpreted.plans) > 5
    assert interpreted.messages.count(WITHOUT_COMPILER) == 1
