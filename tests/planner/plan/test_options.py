"""Options that cannot be meant are refused; documents of options give back what they were made of."""

from __future__ import annotations

import json
import math

import pytest

from planner.errors import OptionsError
from planner.partition.objective import Objective, Training
from planner.plan.options import CutMode, Mode, OptimalMode, PlanOptions, Routing, ShapeBucket
from planner.plan.options_document import options_document, options_from_document
from tests.builders.options import MODES, full_options


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
@pytest.mark.parametrize("routing", Routing)
def test_a_document_gives_back_the_options(mode: Mode, routing: Routing) -> None:
    options = full_options(mode, routing)
    assert options_from_document(json.loads(json.dumps(options_document(options)))) == options


def test_default_options_survive_too() -> None:
    assert options_from_document(json.loads(json.dumps(options_document(PlanOptions())))) == PlanOptions()


@pytest.mark.parametrize("effort", [0.0, -1.0, math.nan, math.inf, 1000.5])
def test_efforts_are_bounded(effort: float) -> None:
    with pytest.raises(OptionsError, match=f"effort is {effort}"):
        OptimalMode(effort=effort)
    assert OptimalMode(effort=1000.0).effort == 1000.0


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, 1.1e9])
def test_weights_of_buckets_are_bounded(weight: float) -> None:
    with pytest.raises(OptionsError, match=r"weight is"):
        ShapeBucket(symbol_values=(), weight=weight)
    assert ShapeBucket(symbol_values=(), weight=1e9).weight == 1e9


def test_a_cut_names_modules() -> None:
    with pytest.raises(OptionsError, match="name at least one module") as refused:
        CutMode(module_paths=())
    assert refused.value.metadata["field"] == "options.cut.module_paths"


def test_step_time_is_of_a_training_step() -> None:
    with pytest.raises(OptionsError, match="step_time needs a training schedule"):
        PlanOptions(objective=Objective.STEP_TIME)
    assert PlanOptions(objective=Objective.STEP_TIME, training=Training()).training == Training()
