"""Options that hold something else than they are declared to hold are refused where they are made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner.errors import OptionsError
from planner.partition.objective import Objective, Training
from planner.plan.options import CutMode, OptimalMode, PlanOptions, ShapeBucket


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: PlanOptions(objective="latency"),
            r"options.objective is 'latency', needs one of Objective\.THROUGHPUT, ",
        ),
        (lambda: PlanOptions(mode="optimal"), r"options.mode is 'optimal', needs Mode"),
        (lambda: PlanOptions(mode=OptimalMode), r"options.mode is <class .*OptimalMode'>, needs Mode"),
        (lambda: PlanOptions(training={}), r"options.training is {}, needs Training or None"),
        (lambda: PlanOptions(symbol_values={"rows": 1}), r"options.symbol_values is .*, needs tuple of \(str, int\)"),
        (lambda: PlanOptions(fixed=(("layer",),)), r"options.fixed is \(\('layer',\),\), needs tuple of \(str, str\)"),
        (lambda: PlanOptions(together=("layer",)), r"options.together is .*, needs tuple of tuple of str"),
        (lambda: PlanOptions(microbatches_in_flight=-1), r"options.microbatches_in_flight is -1, needs 0 or more"),
        (lambda: PlanOptions(saturate_host=1), r"options.saturate_host is 1, needs bool"),
        (lambda: CutMode(module_paths="layers.0"), r"options.cut.module_paths is 'layers.0', needs tuple of str"),
        (lambda: CutMode(module_paths=()), r"options.cut.module_paths is empty"),
        (lambda: OptimalMode(num_stages=2.0), r"options.optimal.num_stages is 2.0, needs int"),
        (lambda: OptimalMode(num_stages=True), r"options.optimal.num_stages is True, needs int"),
        (lambda: OptimalMode(num_stages=-1), r"options.optimal.num_stages is -1, needs 0 to 100000"),
        (lambda: OptimalMode(effort="1"), r"options.optimal.effort is '1', needs float"),
        (
            lambda: OptimalMode(num_stages=2**63),
            "options.optimal.num_stages is 9223.*, needs integers of at",
        ),
        (lambda: OptimalMode(effort=10**400), "options.optimal.effort is 1000.*, needs integers of at most 64 bits"),
        (lambda: PlanOptions(symbol_values=(("rows", -(2**63)),)), "options.symbol_values is .*, needs integers of at"),
        (lambda: PlanOptions(symbol_values=(("\udcff", 1),)), "options.symbol_values is .*, and text of UTF-8"),
        (lambda: Training(microbatches="8"), r"training.microbatches is '8', needs int"),
        (lambda: ShapeBucket(symbol_values=(), weight=None), r"shape bucket.weight is None, needs float"),
    ],
)
def test_another_type_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        make()


def test_numbers_of_other_libraries_and_whole_ones_for_fractions_are_taken() -> None:
    assert OptimalMode(num_stages=np.int64(3), effort=2).num_stages == 3
    options = PlanOptions(objective=Objective.STEP_TIME, training=Training(), symbol_values=(("rows", 3), ("cols", 4)))
    assert options.training == Training()
