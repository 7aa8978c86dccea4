"""Packages whose docstring is a map name every module and folder that they have, and nothing that is gone."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

MAPS = [
    "access",
    "planner.client.export",
    "planner.fx_compat.byte_model",
    "planner.partition",
    "planner.cost_graphs.hybrid",
    "planner.partition.ordered",
    "planner.partition.placement",
    "planner.cost_graphs.placement",
    "planner.cost_graphs.placement.ideals",
    "planner.cost_graphs.placement.netlists",
    "planner.cost_graphs.single_pass",
    "planner.partition.portfolio",
]
# Its docstring says all there is to say of it.
OF_EACH_PACKAGE = {"__init__", "__pycache__", "errors"}


@pytest.mark.parametrize("package", MAPS)
def test_a_map_shows_what_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__
    assert module.__file__
    entries = Path(module.__file__).parent.iterdir()
    here = {entry.stem for entry in entries if entry.suffix == ".py" or any(entry.glob("*.py"))} - OF_EACH_PACKAGE
    assert here - set(re.findall(r"\w+", module.__doc__)) == set()


@pytest.mark.parametrize("package", MAPS)
def test_what_a_map_calls_a_module_is_one(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__
    assert module.__file__
    folder = Path(module.__file__).parent
    for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", module.__doc__):
        assert (folder / f"{name}.py").exists(), name
