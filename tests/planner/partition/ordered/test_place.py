"""Given stages on devices, against every choice."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.ordered.place import place
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import chain, problems
from tests.random_examples import random_examples


@pytest.mark.slow
@random_examples(100)
@given(problem=problems(max_nodes=6, max_devices=4), data=st.data())
def test_is_the_best_choice_of_devices(problem: PartitionProblem, data: st.DataObject) -> None:
    inner = st.sets(st.integers(1, problem.num_nodes), max_size=3)
    boundaries = sorted({0, problem.num_nodes} | data.draw(inner))
    count = len(boundaries) - 1
    best = None
    for devices in permutations(range(problem.num_devices), count):
        evaluation = evaluate(problem, contiguous(problem, boundaries, devices, [""] * count))
        if (np.array(evaluation.device_peak_bytes) <= problem.device_memory_bytes).all():
            best = min(evaluation.bottleneck_seconds, best if best is not None else np.inf)
    if best is None:
        with pytest.raises(Infeasible):
            place(problem, boundaries)
        return
    placement = place(problem, boundaries)
    assert placement.bottleneck_seconds == pytest.approx(best, abs=1e-9)
    assert placement.lower_bound_seconds == pytest.approx(best, abs=1e-9)


def test_the_stage_that_lacks_memory_is_named_with_its_bytes() -> None:
    problem = chain(
        [[1.0] * 4] * 2,
        states=[(50, (0,)), (90, (3,))],
        memory_bytes=[80, 40],
        value_bytes=[0] * 5,
    )
    with pytest.raises(Infeasible, match="stage 1") as caught:
        place(problem, (0, 2, 4))
    assert caught.value.metadata["lacking_bytes"] == "10"
    assert caught.value.metadata["device"] == "d0"


def test_more_stages_than_devices() -> None:
    with pytest.raises(Infeasible, match="3 stages for 2 devices"):
        place(chain([[1.0] * 4] * 2), (0, 1, 2, 4))
