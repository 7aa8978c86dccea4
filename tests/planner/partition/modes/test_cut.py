"""Mode "cut": boundaries after named modules."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.inventory import Device, Inventory
from planner.errors import Infeasible, OptionsError
from planner.graph.ir import Graph
from planner.partition.assignment import contiguous
from planner.partition.modes.cut import cut
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.plan.options import CutMode, PlanOptions, Routing
from planner.plan.plan import Plan
from planner.planning import make_plan
from tests.planner.partition.exact import least, value_of
from tests.planner.partition.problems import chain, problems
from tests.random_examples import random_examples

PATHS = ["a.1", "a.1.x", "a.10", "a.10", "", "b.0", "b.1", "b.1"]


def stages(*paths: str, **more: object) -> tuple[int, ...]:
    problem = chain([[1.0] * len(PATHS)] * 5, module_paths=PATHS, **more)
    return cut(problem, paths).stage_of_node


def test_a_module_ends_with_its_last_inner_node() -> None:
    assert stages("a.1") == (0, 0, 1, 1, 1, 1, 1, 1)


def test_components_match_whole() -> None:
    assert stages("a.10", "a.1") == (0, 0, 1, 1, 2, 2, 2, 2)


def test_any_depth_in_any_order() -> None:
    assert stages("b.0", "a", "a.1.x") == (0, 0, 1, 1, 2, 2, 3, 3)


def test_repeated_paths_count_once() -> None:
    assert stages("a", "a") == stages("a")


def test_a_module_that_runs_again_ends_the_last_time() -> None:
    problem = chain([[1.0] * 4] * 2, module_paths=["m", "n", "m", "n"])
    assert cut(problem, ("m",)).stage_of_node == (0, 0, 0, 1)


def test_unknown_module_is_answered_with_near_ones() -> None:
    with pytest.raises(OptionsError, match=r"'a\.11'; did you mean .*'a\.1'"):
        stages("a.11")


def test_module_unlike_any_other_is_answered_with_the_top() -> None:
    with pytest.raises(OptionsError, match="top modules are 'a', 'b'"):
        stages("zzzzzz")


def test_graph_without_paths_says_so() -> None:
    with pytest.raises(OptionsError, match="no module paths"):
        cut(chain([[1.0] * 3]), ("a",))


def test_two_modules_that_end_together_leave_an_empty_stage() -> None:
    with pytest.raises(OptionsError, match=r"'a' and 'a\.10' end at the same place"):
        stages("a", "a.10")


def test_cut_after_the_last_node_leaves_an_empty_stage() -> None:
    with pytest.raises(OptionsError, match=r"after 'b'"):
        stages("a", "b")


def test_a_cut_inside_a_group_moves_to_its_nearest_end_and_says_so() -> None:
    problem = chain([[1.0] * len(PATHS)] * 5, module_paths=PATHS, groups=[(1, 4)])
    assignment = cut(problem, ("a",))
    assert assignment.stage_of_node == (0, 0, 0, 0, 0, 1, 1, 1)
    assert "1 nodes later" in assignment.reasons[0]


def test_a_group_that_swallows_a_stage_is_an_error() -> None:
    problem = chain([[1.0] * len(PATHS)] * 5, module_paths=PATHS, groups=[(0, 5)])
    with pytest.raises(OptionsError, match=r"before 'a\.1'.*share storage"):
        cut(problem, ("a.1", "a"))


def test_the_larger_stage_gets_the_larger_device() -> None:
    states = [(100, (0,)), (10, (7,))]
    problem = chain([[1.0] * 8] * 2, module_paths=PATHS, states=states, memory_bytes=[40, 140], value_bytes=[0] * 9)
    assert cut(problem, ("a",)).device_of_stage == (1, 0)


@pytest.mark.slow
@random_examples(60)
@given(problem=problems(max_nodes=6, max_devices=4), data=st.data())
def test_it_is_the_best_choice_of_devices(problem: PartitionProblem, data: st.DataObject) -> None:
    allowed = [str(position) for position in range(1, problem.num_nodes) if problem.cut_allowed[position]]
    if not allowed:
        return
    paths = data.draw(st.sets(st.sampled_from(allowed), min_size=1, max_size=3))
    ends = tuple(str(node + 1) for node in range(problem.num_nodes))
    problem = replace(problem, labels=replace(problem.labels, module_paths=ends))
    boundaries = [0, *sorted(map(int, paths)), problem.num_nodes]
    choices = permutations(range(problem.num_devices), len(paths) + 1)
    best = least(problem, Objective.THROUGHPUT, (contiguous(problem, boundaries, devices) for devices in choices))
    if np.isinf(best):
        with pytest.raises(Infeasible):
            cut(problem, tuple(paths))
        return
    assignment = cut(problem, tuple(paths))
    assert value_of(problem, assignment, Objective.THROUGHPUT) == pytest.approx(best, abs=1e-9)
    assert assignment.lower_bound_seconds == pytest.approx(best, abs=1e-9)


def test_the_stage_that_lacks_memory_is_named_with_its_bytes() -> None:
    states = [(30, (0,)), (90, (7,))]
    with pytest.raises(Infeasible, match="stage 1") as caught:
        stages("a", states=states, memory_bytes=[80, 40, 0, 0, 0], value_bytes=[0] * 9)
    assert caught.value.metadata["lacking_bytes"] == "10"
    assert caught.value.metadata["device"] == "d0"


def test_more_stages_than_devices() -> None:
    problem = chain([[1.0] * len(PATHS)] * 2, module_paths=PATHS)
    with pytest.raises(Infeasible, match="3 stages asked for, one device each"):
        cut(problem, ("a.1", "a"))


@pytest.fixture(scope="module")
def t5_graph() -> Graph:
    from tests.builders.exported import exported

    return exported("t5").graph


def t5_plan(graph: Graph, paths: tuple[str, ...], routing: Routing) -> Plan:
    devices = tuple(Device(id=f"d{index}", kind="cpu", host="h", memory_bytes=1 << 30) for index in range(4))
    options = PlanOptions(mode=CutMode(module_paths=paths), routing=routing)
    return make_plan(graph, "t5", Inventory(devices=devices), options)


@pytest.mark.slow
@pytest.mark.parametrize("routing", list(Routing))
def test_t5_encoder_and_both_halves_give_four_stages(t5_graph: Graph, routing: Routing) -> None:
    plan = t5_plan(t5_graph, ("encoder.block.0", "encoder", "decoder.block.0"), routing)
    last_paths = [t5_graph.nodes[stage.node_ranges[-1][1] - 1].module_path for stage in plan.stages]
    assert len(plan.stages) == 4
    assert last_paths[0].startswith("encoder.block.0")
    assert last_paths[1].startswith("encoder.")
    assert last_paths[2].startswith("decoder.block.0")


@pytest.mark.slow
@pytest.mark.parametrize("routing", list(Routing))
def test_t5_both_halves_give_three_stages(t5_graph: Graph, routing: Routing) -> None:
    plan = t5_plan(t5_graph, ("encoder.block.0", "decoder.block.0"), routing)
    assert len(plan.stages) == 3
    middle = {t5_graph.nodes[index].module_path.split(".")[0] for index in plan.stages[1].node_indexes()}
    assert {"encoder", "decoder"} <= middle
