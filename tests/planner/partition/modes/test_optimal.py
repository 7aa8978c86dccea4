"""Mode "optimal" against every assignment of stages and devices, and against every other mode."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.modes.balanced import balanced
from planner.partition.modes.optimal import optimal
from planner.partition.modes.single import offer_single_devices
from planner.partition.objective import NAMED_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.portfolio.orders import offer_other_orders
from planner.partition.portfolio.portfolio import Portfolio, Search, run_in_turn
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of, program_orders, reordered
from planner.partition.registry import partition
from planner.partition.request import Request
from tests.planner.partition.bounds.forks import forks_and_joins, schedules
from tests.planner.partition.exact import all_contiguous, every_assignment, fits, least, value_of
from tests.planner.partition.problems import chain, problems, trainings
from tests.planner.partition.problems import problem as problem_of
from tests.random_examples import random_examples, random_seeds

INFERENCE = [Objective.THROUGHPUT, Objective.LATENCY, Objective.MEMORY]


def asked(objective: Objective = Objective.THROUGHPUT, **more: object) -> Request:
    """With a fifth of the usual effort, plenty for programs so small."""
    return Request(mode="optimal", objective=objective, **{"effort": 0.2, **more})


def check_is_valid(problem: PartitionProblem, assignment: Assignment) -> None:
    stages = np.array(assignment.stage_of_node)
    made = problem.value_producer[problem.read_value]
    inside = made >= 0
    assert (stages[made[inside]] <= stages[problem.read_node[inside]]).all()
    assert sorted(set(assignment.stage_of_node)) == list(range(assignment.num_stages))
    for group in range(problem.node_group.max(initial=-1) + 1):
        assert np.unique(stages[problem.node_group == group]).size == 1
    assert len(assignment.reasons) == assignment.num_stages
    assert fits(problem, assignment)


def check_against(problem: PartitionProblem, request: Request, candidates: Iterator[Assignment]) -> None:
    objective = request.objective
    expected = least(problem, objective, candidates)
    try:
        assignment = optimal(problem, request)
    except Infeasible:
        assert np.isinf(expected)
        return
    check_is_valid(problem, assignment)
    value = value_of(problem, assignment, objective)
    assert assignment.lower_bound_seconds <= value
    assert assignment.lower_bound_seconds <= expected * (1 + 1e-9)
    if not request.free:
        assert len(set(assignment.device_of_stage)) == assignment.num_stages
        assert value >= expected * (1 - 1e-9)


@pytest.mark.slow
@random_examples(20)
@pytest.mark.parametrize("objective", INFERENCE)
@given(problem=problems(max_nodes=5, max_devices=3, barred=True))
def test_value_and_bound_stand_beside_the_optimum(problem: PartitionProblem, objective: Objective) -> None:
    check_against(problem, asked(objective), every_assignment(problem))


@pytest.mark.slow
@random_examples(25)
@given(
    problem=problems(max_nodes=5, max_devices=3, equal_links=True, barred=True),
    objective=st.sampled_from([Objective.THROUGHPUT, Objective.MEMORY]),
)
def test_small_programs_are_exact_over_equal_links(problem: PartitionProblem, objective: Objective) -> None:
    best = least(problem, objective, every_assignment(problem))
    if np.isinf(best):
        with pytest.raises(Infeasible):
            optimal(problem, asked(objective))
        return
    assignment = optimal(problem, asked(objective))
    assert value_of(problem, assignment, objective) == pytest.approx(best, abs=1e-12)
    assert assignment.lower_bound_seconds == pytest.approx(best, rel=1e-8)


@random_examples(8)
@given(problem=problems(max_nodes=4, max_devices=2))
def test_free_bounds_hold(problem: PartitionProblem) -> None:
    check_against(problem, asked(free=True), every_assignment(problem, free=True))


OTHER_MODES = ("balanced", "cost_aware", "kl_based", "single", "size_based", "sparse_nn")


@pytest.mark.slow
@random_examples(6)
@given(
    problem=problems(max_nodes=10, max_devices=4),
    objective=st.sampled_from(INFERENCE),
    copies=st.sampled_from([{}, {"saturate_host": True}]),
)
def test_no_other_mode_is_better(problem: PartitionProblem, objective: Objective, copies: dict[str, bool]) -> None:
    request = asked(objective, **copies)
    others = [replace(request, mode=mode) for mode in OTHER_MODES]
    try:
        assignment = partition(problem, request)
    except Infeasible:
        for other in others:
            with pytest.raises((Infeasible, OptionsError)):
                partition(problem, other)
        return
    check_is_valid(problem, assignment)
    assert assignment == partition(problem, request)
    value = value_of(problem, assignment, objective)
    assert assignment.lower_bound_seconds <= value
    for other in others:
        with suppress(Infeasible, OptionsError):
            assert value <= value_of(problem, partition(problem, other), objective) * (1 + 1e-9), other.mode


@pytest.mark.slow
@random_examples(8)
@given(problem=problems(max_nodes=6, max_devices=4), num_stages=st.sampled_from([0, 0, 2]))
def test_copies_only_help(problem: PartitionProblem, num_stages: int) -> None:
    try:
        alone = optimal(problem, asked(num_stages=num_stages))
    except (Infeasible, OptionsError):
        return
    assignment = optimal(problem, asked(num_stages=num_stages, replicate=True))
    value = value_of(problem, assignment, Objective.THROUGHPUT)
    assert fits(problem, assignment)
    assert assignment.lower_bound_seconds <= value <= value_of(problem, alone, Objective.THROUGHPUT) * (1 + 1e-9)


@pytest.mark.parametrize("copies", [{"replicate": True}, {"saturate_host": True}])
def test_copies_only_help_where_bundles_move_from_stage_to_stage(copies: dict[str, bool]) -> None:
    """Nodes 0 and 2 on the quickest device, and 1 on another: 3.0. Segments of the program's order take 3.1."""
    drawn = problem_of(
        compute_seconds=[[1.5, 0.5, 1.5, 0.0, 0.0], [6.0, 2.0, 6.0, 0.0, 0.0], [3.0, 1.0, 3.0, 0.0, 0.0]],
        reads=[[], [0], [0], [], []],
        value_bytes=[0] * 6,
        returned=(2,),
        microbatches_in_flight=1,
        latency=[[0.0, 0.0, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 0.0]],
        per_byte=[[0.0, 0.0, 0.025], [0.0, 0.0, 0.0], [0.025, 0.0, 0.0]],
    )
    assignment = optimal(drawn, asked(**copies))
    assert value_of(drawn, assignment, Objective.THROUGHPUT) == pytest.approx(3.0)


def test_the_slowest_stage_gets_the_idle_devices() -> None:
    problem = chain([[1.0, 8.0, 1.0]] * 5, latency=0.25)
    assignment = optimal(problem, asked(num_stages=3, replicate=True))
    assert [len(devices) for devices in assignment.devices_of_stage] == [1, 3, 1]


@random_examples(60)
@given(problem=problems(max_nodes=8, max_devices=2))
def test_orders_are_topological_and_keep_what_they_reorder(problem: PartitionProblem) -> None:
    bundles = bundles_of(problem)
    for order in program_orders(problem, bundles):
        assert sorted(order.tolist()) == list(range(problem.num_nodes))
        other = reordered(problem, order, bundles)
        assert (other.value_producer[other.read_value] < other.read_node).all()
        assert other.compute_seconds.sum() == pytest.approx(problem.compute_seconds.sum())


def test_a_group_that_spans_other_nodes_has_an_order_that_the_program_has_not() -> None:
    """Nodes 0 and 2 stay together, and node 1 may run after both: then no byte is sent, where the program sends one."""
    problem = problem_of(
        compute_seconds=[[0.0, 0.0, 1.0, 1.0]] * 2,
        reads=[[], [0], [], [1]],
        value_bytes=[0, 1, 0, 0],
        num_inputs=0,
        groups=[(0, 2)],
        latency=0.25,
        per_byte=0.0625,
    )
    assignment = optimal(problem, asked())
    assert assignment.stage_of_node == (0, 1, 0, 1)
    assert value_of(problem, assignment, Objective.THROUGHPUT) == assignment.lower_bound_seconds == 1.25


def two_branches(**more: object) -> PartitionProblem:
    """Two chains of four from one input, interleaved in program order; the last node joins them."""
    reads = [[0], [0], *[[node - 1] for node in range(2, 8)], [7, 8]]
    sizes = [1, *[64] * 8, 1]
    return problem_of(compute_seconds=[[1.0] * 9] * 2, reads=reads, value_bytes=sizes, per_byte=0.05, **more)


def test_branches_are_not_cut_across() -> None:
    """Any cut of the program order parts both chains; a chain on its own sends one tensor."""
    problem = two_branches()
    assignment = optimal(problem, asked())
    value = value_of(problem, assignment, Objective.THROUGHPUT)
    assert value < value_of(problem, balanced(problem), Objective.THROUGHPUT)
    assert assignment.lower_bound_seconds == pytest.approx(value)


def test_other_orders_are_cut_by_what_stages_exchange_over_their_own_links() -> None:
    """Two chains interleaved, on two hosts of two devices: no cut of the program order is as good, nor any layout that
    is chosen by what its stages exchange at least (8.72)."""
    draw = random.Random(95)
    seconds = [draw.choice([1.0, 2.0, 3.0]) for _ in range(9)]
    problem = problem_of(
        compute_seconds=[seconds] * 4,
        reads=[[0], [0], *[[node - 1] for node in range(2, 8)], [7, 8]],
        value_bytes=[1, *[draw.choice([1, 4, 12]) for _ in range(9)]],
        per_byte=[[0.01 if one // 2 == other // 2 else 0.3 for other in range(4)] for one in range(4)],
    )
    portfolio, orders = Portfolio(problem, asked()), program_orders(problem, bundles_of(problem))
    in_orders = [reordered(problem, order, bundles_of(problem)) for order in orders]
    offer_other_orders(portfolio)
    assert portfolio.best is not None
    assert portfolio.best.value == pytest.approx(
        min(least(one, Objective.THROUGHPUT, all_contiguous(one)) for one in in_orders)
    )


def test_cheap_nodes_run_as_soon_as_they_can_in_one_order() -> None:
    """Shares of one value, each taken just before what is done with it, are taken first."""
    reads = [[0], *[reads for share in range(3) for reads in ([1], [2 + 2 * share])], [3, 5, 7]]
    problem = problem_of(compute_seconds=[[1.0, *[1e-4, 1.0] * 3, 1.0]] * 2, reads=reads, value_bytes=[1] * 9)
    orders = [order.tolist() for order in program_orders(problem, bundles_of(problem))]
    assert [0, 1, 3, 5, 2, 4, 6, 7] in orders


def test_lone_batch_stays_on_the_fastest_device() -> None:
    problem = chain([[2.0] * 6, [1.0] * 6, [3.0] * 6], latency=0.5)
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert assignment.device_of_stage == (1,)
    assert assignment.lower_bound_seconds == pytest.approx(6.0)


def beside_the_path(pairs: int, devices: int, **more: object) -> PartitionProblem:
    """A path of nodes of one second, with a node of half a second beside every other one."""
    reads = [[0]]
    for pair in range(pairs):
        first = 3 * pair
        reads += [[first + 1], [first + 1], [first + 2, first + 3]]
    seconds = [1.0, *[1.0, 0.5, 1.0] * pairs]
    arguments = {"value_bytes": [1] * (len(reads) + 1), "returned": (len(reads),), **more}
    return problem_of(compute_seconds=[seconds] * devices, reads=reads, **arguments)


def test_what_stands_beside_the_path_runs_in_turn_on_three_devices() -> None:
    """What runs side by side needs two stages between two others."""
    problem = beside_the_path(10, 3, latency=0.2)
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(26.0)
    assert assignment.lower_bound_seconds == pytest.approx(26.0)


@pytest.mark.parametrize(("devices", "blocks"), [(4, 1), (6, 1), (7, 2), (10, 3)])
def test_blocks_are_parted_as_far_as_devices_go(devices: int, blocks: int) -> None:
    """Of a second and a half beside and along the path, half a second is spared, for which two messages of 0.1 s."""
    problem = beside_the_path(10, devices, latency=0.1)
    assignment = optimal(problem, asked(Objective.LATENCY))
    expected = 26.0 - blocks * (0.5 - 0.2)
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(expected)
    # The bound pays one message, of two, for what the path runs past.
    assert assignment.lower_bound_seconds is not None
    assert expected - (blocks + 1e-5) * 0.1 <= assignment.lower_bound_seconds <= expected


def branches_between(seconds: list[float], speeds: list[float], **more: object) -> PartitionProblem:
    """A node of a second, branches of so many, and two more nodes of a second."""
    count = len(seconds)
    every = [1.0, *seconds, 1.0, 1.0]
    return problem_of(
        compute_seconds=[[one * speed for one in every] for speed in speeds],
        reads=[[0], *([1] for _ in range(count)), list(range(2, count + 2)), [count + 2]],
        value_bytes=[1] * (count + 4),
        returned=(count + 3,),
        **more,
    )


def test_branches_run_side_by_side_and_the_longest_stages_are_on_the_quickest_devices() -> None:
    """17 bundles, too many to try all stages: 17 s in turn. The first node takes two seconds on the slow device."""
    problem = branches_between([1.0] * 14, [2.0, 1.0, 1.0, 1.0], latency=0.1)
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert assignment.num_stages == 4
    assert assignment.device_of_stage[0] == 0
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(2 * 1.0 + 7.0 + 2.0 + 0.2)


def test_branches_that_are_added_up_term_by_term_run_side_by_side() -> None:
    """Each term's sum stands right behind its branch in the program, so that no two branches stand side by side."""
    reads, seconds = [[0]], [1.0]
    for _ in range(3):
        start = total = len(reads)
        for _ in range(8):
            reads += [[start], [len(reads) + 1, total]]
            total = len(reads)
            seconds += [1.0, 0.01]
        reads.append([total])
        seconds.append(1.0)
    problem = problem_of(
        compute_seconds=[seconds] * 6,
        reads=reads,
        value_bytes=[1] * (len(reads) + 1),
        returned=(len(reads),),
        latency=0.1,
    )
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert assignment.num_stages == 6
    # Of three sums of eight seconds each, one takes two: on four devices between two others.
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(1.0 + 3 * (8.0 + 0.08 + 1.0) - 6.0 + 0.2)


def test_branches_go_to_slower_devices_that_are_near_rather_than_to_quick_ones_far_away() -> None:
    is_far = np.array([False] * 4 + [True] * 2)
    latency = np.where(is_far[:, None] == is_far, 0.1, 5.0)
    problem = replace(branches_between([1.0] * 14, [1.0, 1.0, 1.2, 1.2, 1.0, 1.0]), link_latency_seconds=latency)
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(1.2 + 7.0 + 2.4 + 0.2)


def test_branches_stay_together_where_messages_take_longer_than_they_spare() -> None:
    problem = branches_between([1.0] * 14, [1.0] * 4, latency=3.6)
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert assignment.num_stages == 1
    assert assignment.lower_bound_seconds == pytest.approx(17.0)


def test_a_lone_batch_passes_the_quick_device_as_far_as_its_memory_goes() -> None:
    states = [(10, (node,)) for node in range(12)]
    seconds = [[3.0] * 12, [1.0] * 12, [2.0] * 12]
    problem = chain(seconds, states=states, memory_bytes=[90, 60, 60], value_bytes=[0] * 13, latency=0.1)
    assignment = optimal(problem, asked(Objective.LATENCY))
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(6 * 1.0 + 6 * 2.0 + 0.1)


def test_memory_is_spread_by_room() -> None:
    states = [(10, (node,)) for node in range(6)]
    problem = chain([[1.0] * 6] * 2, states=states, memory_bytes=[100, 50], value_bytes=[0] * 7)
    assignment = optimal(problem, asked(Objective.MEMORY))
    assert value_of(problem, assignment, Objective.MEMORY) == pytest.approx(0.4)


@pytest.mark.parametrize("objective", INFERENCE)
def test_number_of_stages_is_kept(objective: Objective) -> None:
    assignment = optimal(chain([[1.0] * 8] * 4), asked(objective, num_stages=3))
    assert assignment.num_stages == 3


def test_more_stages_than_devices_names_the_mode() -> None:
    with pytest.raises(Infeasible, match="mode optimal: 5 stages"):
        optimal(chain([[1.0] * 8] * 4), asked(num_stages=5))
    with pytest.raises(OptionsError, match="mode optimal"):
        optimal(chain([[1.0] * 3] * 4), asked(num_stages=4))


def test_what_fits_nowhere_says_what_is_lacking() -> None:
    states = [(100, (node,)) for node in range(4)]
    problem = chain([[1.0] * 4] * 2, states=states, memory_bytes=[150, 150], value_bytes=[0] * 5)
    with pytest.raises(Infeasible, match=r"mode optimal: no cut .* lacks"):
        optimal(problem, asked())


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [*NAMED_SCHEDULES, PipelineSchedule.BEST])
def test_training_step_is_bounded_and_no_worse_than_balanced(schedule: PipelineSchedule) -> None:
    seconds = [1.0 + 3 * node % 5 for node in range(12)]
    base = chain([seconds] * 3, latency=0.1)
    training = Training(schedule=schedule, microbatches=4)
    problem = replace(base, training=training, node_has_gradient=np.ones(12, dtype=np.bool_))
    assignment = optimal(problem, asked(Objective.STEP_TIME, effort=0.05))
    value = value_of(problem, assignment, Objective.STEP_TIME)
    assert 0 < assignment.lower_bound_seconds <= value
    assert value <= value_of(problem, balanced(problem), Objective.STEP_TIME)


def test_nodes_stay_where_they_are_fixed() -> None:
    base = chain([[1.0] * 6] * 3)
    fixed = np.full(6, -1)
    fixed[[0, 5]] = 2, 1
    problem = replace(base, fixed_device=fixed)
    assignment = optimal(problem, asked())
    assert assignment.device_of_stage[assignment.stage_of_node[0]] == 2
    assert assignment.device_of_stage[assignment.stage_of_node[5]] == 1
    assert value_of(problem, assignment, Objective.THROUGHPUT) == pytest.approx(2.0)


@pytest.mark.slow
@random_examples(10)
@given(
    problem=problems(max_nodes=9, max_devices=3, barred=True, training=st.one_of(st.none(), trainings)),
    objective=st.sampled_from(Objective),
    more=st.sampled_from([{}, {"saturate_host": True}, {"recompute": True}, {"num_stages": 2}]),
)
def test_freedom_is_never_worse_than_one_stage_for_each_device(
    problem: PartitionProblem, objective: Objective, more: dict[str, Any]
) -> None:
    if problem.training is None and objective is Objective.STEP_TIME:
        objective = Objective.LATENCY
    try:
        bound_to_one = optimal(problem, asked(objective, **more))
    except (Infeasible, OptionsError):
        return
    assignment = optimal(problem, asked(objective, free=True, **more))
    assert fits(problem, assignment)
    assert value_of(problem, assignment, objective) <= value_of(problem, bound_to_one, objective) * (1 + 1e-9)


@pytest.mark.slow
def test_a_lone_batch_passes_branches_side_by_side() -> None:
    """Four of a second each on two devices, then a node that takes no time."""
    problem = problem_of(
        compute_seconds=[[0.0, 1.0, 1.0, 1.0, 1.0, 0.0]] * 2,
        reads=[[0], [1], [1], [1], [1], [2, 3, 4, 5]],
        value_bytes=[1] * 7,
        returned=(6,),
        latency=0.01,
    )
    assignment = optimal(problem, asked(Objective.LATENCY, free=True))
    check_is_valid(problem, assignment)
    assert value_of(problem, assignment, Objective.LATENCY) <= 2.0 + 3 * 0.01 + 1e-9
    assert assignment.lower_bound_seconds >= 2.0 + 0.01 - 1e-6


def test_what_the_program_takes_is_handed_on_by_the_first_stage_and_what_it_returns_reaches_the_last() -> None:
    """Four branches that nothing joins: the first and the last each run alone, for what others wait for them for."""
    problem = problem_of(
        compute_seconds=[[1.0] * 4] * 2, reads=[[0]] * 4, value_bytes=[1] * 5, returned=(1, 2, 3, 4), latency=0.01
    )
    assignment = optimal(problem, asked(Objective.LATENCY, free=True))
    assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(3.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.fuzz
def test_schedules_of_forks_and_joins_stand_beside_the_best() -> None:
    ratios = []
    for seed in random_seeds(10):
        choice = random.Random(seed)
        problem = forks_and_joins(choice)
        best = least(problem, Objective.LATENCY, schedules(problem, choice))
        assignment = optimal(problem, asked(Objective.LATENCY, free=True))
        check_is_valid(problem, assignment)
        ratios.append(value_of(problem, assignment, Objective.LATENCY) / best)
    assert max(ratios) <= 1.15
    assert np.mean(ratios) <= 1.03


@pytest.mark.parametrize("seed", list(range(4)))
def test_branches_that_are_added_up_one_by_one_part_as_those_that_are_joined_at_once(seed: int) -> None:
    """Eight of them behind one node, as loops over experts write them: each sum follows its term in the program."""
    draw = np.random.default_rng(seed)
    work = draw.uniform(0.5, 2.0, 9).tolist()
    at_once = problem_of(
        compute_seconds=[[*work, 0.07]] * 4,
        reads=[[0], *[[1]] * 8, list(range(2, 10))],
        value_bytes=[1] * 11,
        returned=(10,),
        latency=0.05,
    )
    reads, seconds, total = [[0], [1]], work[:2], 2
    for term in work[2:]:
        reads += [[1], [total, len(reads) + 1]]
        seconds += [term, 0.01]
        total = len(reads)
    one_by_one = problem_of(
        compute_seconds=[seconds] * 4,
        reads=reads,
        value_bytes=[1] * (len(reads) + 1),
        returned=(total,),
        latency=0.05,
    )
    values = [value_of(one, optimal(one, asked(Objective.LATENCY)), Objective.LATENCY) for one in (at_once, one_by_one)]
    assert values[1] <= 1.02 * values[0]


def test_free_stages_return_to_a_device() -> None:
    """The ends are fixed to one device and the middle to another: no order of two devices runs it. Of more nodes than
    are searched whole."""
    problem = replace(chain([[1.0] * 15] * 2, latency=0.1), fixed_device=np.repeat([0, 1, 0], 5))
    with pytest.raises(Infeasible):
        optimal(problem, asked())
    assignment = optimal(problem, asked(free=True))
    assert assignment.device_of_stage == (0, 1, 0)


def test_out_of_time_the_first_assignment_is_the_answer() -> None:
    problem = chain([[2.0, 3.0, 1.0, 4.0, 2.0, 3.0]] * 3)
    at_once = optimal(problem, asked(out_of_time=lambda: True))
    in_full = optimal(problem, asked())
    check_is_valid(problem, at_once)
    assert at_once.num_stages == 1 < in_full.num_stages
    assert at_once.lower_bound_seconds <= value_of(problem, in_full, Objective.THROUGHPUT)


def test_searches_run_in_turn_where_they_apply_until_it_is_over() -> None:
    problem = chain([[1.0, 1.0]] * 2)
    portfolio, ran = Portfolio(problem, asked()), []

    def search(name: str, *, applies: bool = True, proves: float = 0.0) -> Search:
        def run(portfolio: Portfolio) -> None:
            ran.append(name)
            offer_single_devices(portfolio)
            portfolio.prove(proves)

        return Search(name=name, run=run, applies=lambda _: applies)

    ends = value_of(problem, contiguous(problem, (0, 2), (0,), ("",)), Objective.THROUGHPUT)
    run_in_turn(portfolio, (search("a"), search("b", applies=False), search("c", proves=ends), search("d")))
    assert ran == ["a", "c"]
