"""Families that all tests of a run share as exported, since torch takes seconds for each."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from planner.client.export import ExportedModel, export, load_exported
from tests.builders.case import Case
from tests.builders.registry import FAMILIES

# What test processes of one run share; conftest.py makes it, and pytest removes it.
FOLDER_VARIABLE = "PLANNER_TESTS_SHARED"


# The fewest layers that have all of a family's operators.
SMALL: Mapping[str, Mapping[str, int]] = {
    "bert": {"layers": 1},
    "gpt2": {"layers": 1},
    "llama": {"layers": 1},
    "t5": {"layers": 1},
    "unet": {"depth": 1},
    "vit": {"layers": 1},
    "mixture": {"blocks": 1, "experts": 1},
}


def small(family: str) -> Case:
    """In training mode: random numbers and statistics besides what evaluation does, which is what daemons run."""
    return FAMILIES[family](train=True, **SMALL.get(family, {}))


def exported_small(family: str) -> ExportedModel:
    return exported(family, train=True, **SMALL.get(family, {}))


@cache
def exported(family: str, **arguments: int) -> ExportedModel:
    """What the family's builder gives for these arguments, with the weights that it always has.

    The first process of the run that asks exports it; others wait for that.
    """
    shared = os.environ.get(FOLDER_VARIABLE)
    if shared is None:
        return _export(family, arguments)
    name = "-".join([family, *(f"{argument}={value}" for argument, value in sorted(arguments.items()))])
    with (Path(shared) / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(shared) / name
        if not folder.exists():
            _export(family, arguments).save(folder.with_suffix(".part")).rename(folder)
    return load_exported(folder)


def _export(family: str, arguments: Mapping[str, int]) -> ExportedModel:
    case = FAMILIES[family](**arguments)
    return export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes, name=family)
