"""Free placements against every assignment of small problems, and against what must hold of any."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from planner.cost_graphs.cost_graph import read_cost_graph
from planner.cost_graphs.placement.costs import device_bytes, device_loads
from planner.cost_graphs.placement.free import first_incumbent
from planner.cost_graphs.placement.netlists.netlist import netlist_of
from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.errors import Infeasible
from tests.nightly import nightly
from tests.planner.cost_graphs.placement.one_process import best_free
from tests.planner.cost_graphs.placement.small_problems import random_problem
from tests.random_examples import random_seeds

_INSTANCES = Path(__file__).parents[4] / "benchmarks" / "instances" / "throughput"


def _is_allowed(problem: PlacementProblem, devices: np.ndarray) -> bool:
    classes = problem.class_of_device
    runs = np.isfinite(problem.seconds[classes[devices], np.arange(devices.size)]).all()
    fits = (device_bytes(problem, devices) <= problem.class_bytes[classes]).all()
    together = all(np.unique(devices[problem.colocation == group]).size == 1 for group in np.unique(problem.colocation))
    return bool(runs and fits and together)


def _best_of_all(problem: PlacementProblem) -> float:
    groups = int(problem.colocation.max()) + 1
    best = np.inf
    for choice in itertools.product(range(problem.num_devices), repeat=groups):
        devices = np.array(choice)[problem.colocation]
        if _is_allowed(problem, devices):
            best = min(best, float(device_loads(problem, devices).max()))
    return best


@pytest.mark.fuzz
def test_reaches_the_best_of_all_assignments_of_a_small_problem() -> None:
    for number in random_seeds(20):
        problem = random_problem(number, nodes=6, classes=(1, 2))
        best = _best_of_all(problem)
        if np.isinf(best):
            with pytest.raises(Infeasible):
                best_free(problem, effort=5_000)
            continue
        placement = best_free(problem, effort=5_000)
        assert placement.value_seconds == pytest.approx(best, rel=2e-6), number
        assert placement.lower_bound_seconds <= best * (1 + 1e-9), number
        assert placement.gap <= 3e-6, number


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, *nightly(range(2, 5))])
def test_keeps_to_memory_support_and_colocation(number: int) -> None:
    problem = random_problem(number, nodes=40, classes=(1, 3, 1), tightness=1.3)
    try:
        placement = best_free(problem, effort=20_000)
    except Infeasible:
        pytest.fail("a problem with a third of the memory to spare was called infeasible")
    devices = np.array(placement.device_of_node)
    assert _is_allowed(problem, devices)
    assert placement.value_seconds == device_loads(problem, devices).max()
    assert placement.lower_bound_seconds <= placement.value_seconds


def test_the_best_start_that_fits_is_begun_with() -> None:
    problem = random_problem(3, nodes=50, classes=(1, 3))
    long, short = (best_free(problem, effort=effort) for effort in (20_000, 1))
    assert long.value_seconds < short.value_seconds
    begun = first_incumbent(problem, netlist_of(problem), (short, long))
    assert begun.value_seconds == pytest.approx(long.value_seconds)


def test_a_start_that_does_not_fit_is_left_aside() -> None:
    problem = random_problem(5, nodes=30, classes=(1, 3), tightness=1.3)
    netlist = netlist_of(problem)
    crowded = Placement(device_of_node=(0,) * 30, value_seconds=1.0, lower_bound_seconds=0.0)
    begun = first_incumbent(problem, netlist, (crowded,))
    assert _is_allowed(problem, begun.devices[netlist.cell_of_node])


def test_the_same_question_has_the_same_answer() -> None:
    problem = random_problem(4, nodes=50, classes=(1, 3))
    assert best_free(problem, effort=50_000) == best_free(problem, effort=50_000)


def test_every_device_a_class_of_its_own() -> None:
    problem = random_problem(6, nodes=60, classes=(1,) * 16)
    placement = best_free(problem, effort=20_000)
    assert _is_allowed(problem, np.array(placement.device_of_node))
    assert placement.value_seconds < 0.8 * device_loads(problem, [0] * 60)[0]


def test_one_device_takes_everything_and_is_proven() -> None:
    problem = random_problem(7, nodes=20, classes=(1,), tightness=np.inf)
    placement = best_free(problem)
    assert set(placement.device_of_node) == {0}
    assert placement.gap == pytest.approx(0.0, abs=1e-9)


def test_a_clock_ends_the_search() -> None:
    problem = random_problem(8, nodes=50, classes=(1, 3))
    placement = best_free(problem, effort=10**15, out_of_time=lambda: True)
    assert _is_allowed(problem, np.array(placement.device_of_node))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best_known"),
    [
        ("OperatorGraphs_bert_l-3_inference", 21.908376),
        *nightly([("OperatorGraphs_bert_l-3_training", 54.207399)]),
    ],
)
def test_profiled_graphs_reach_the_best_known_value(name: str, best_known: float) -> None:
    problem = read_cost_graph(json.loads((_INSTANCES / f"{name}.json").read_text())).problem
    placement = best_free(problem, effort=2_000_000)
    assert placement.value_seconds <= best_known + 1e-6
    assert _is_allowed(problem, np.array(placement.device_of_node))
    assert placement.lower_bound_seconds <= placement.value_seconds


def test_a_node_that_nothing_runs_is_named() -> None:
    problem = random_problem(1, nodes=6, classes=(1, 2))
    problem.seconds[:, 4] = np.inf
    with pytest.raises(Infeasible, match="'n4' runs on no device"):
        best_free(problem)


def test_a_group_without_a_common_class_is_named() -> None:
    problem = random_problem(1, nodes=6, classes=(1, 2), groups=1)
    problem.seconds[0, 1] = problem.seconds[1, 2] = np.inf
    with pytest.raises(Infeasible, match="no class of 'class0', 'class1' supports all of them"):
        best_free(problem)


def test_a_group_larger_than_any_device_says_what_lacks() -> None:
    problem = random_problem(1, nodes=4, classes=(1, 2), groups=1)
    problem.node_bytes[:] = 100.0
    problem.seconds[:] = 1.0
    problem.class_bytes[:] = (250.0, 300.0)
    with pytest.raises(
        Infeasible, match="hold 400 bytes, and the largest device that runs them has 300 bytes"
    ) as caught:
        best_free(problem)
    assert caught.value.metadata["lacking_bytes"] == "100.0"


def test_too_little_memory_in_all_says_what_lacks() -> None:
    problem = random_problem(1, nodes=8, classes=(1, 2), groups=8)
    problem.node_bytes[:] = 100.0
    problem.class_bytes[:] = (100.0, 200.0)
    problem.seconds[:] = 1.0
    with pytest.raises(Infeasible, match=r"hold 800 bytes.*500 bytes in all.*300 bytes are lacking"):
        best_free(problem)


def test_memory_too_finely_divided_is_infeasible() -> None:
    problem = random_problem(1, nodes=3, classes=(2,), groups=3)
    problem.node_bytes[:] = 60.0
    problem.class_bytes[:] = 100.0
    with pytest.raises(Infeasible, match="hold 180 bytes and the devices have 200 bytes"):
        best_free(problem)
