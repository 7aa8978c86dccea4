"""Every bound on a partition against the optimum: never above it on any small problem, and at it where it can be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.partition.bounds.fewer_nodes import without_nodes
from planner.partition.bounds.large_values import large_values_bound, least_exchanged
from planner.partition.bounds.latency import block_bound, path_bound
from planner.partition.bounds.least_load import least_load_bound
from planner.partition.bounds.least_memory import least_memory_bound
from planner.partition.bounds.serial_latency import serial_bound
from planner.partition.bounds.transfers import transfer_bound
from planner.partition.bounds.work import largest_bundle_bound, memory_bound, work_bound
from planner.partition.evaluate import evaluate
from planner.partition.objective import Objective
from planner.partition.portfolio.exact_ideals import least_over_ideals
from planner.partition.portfolio.ideal_stages import IdealStages, all_ideals
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.registry import partition
from planner.partition.request import Request
from planner.partition.traffic import traffic
from tests.planner.partition.bounds import known_optima
from tests.planner.partition.bounds.forks import (
    devices_told_apart,
    fork_on_many_devices,
    fork_over_two_hosts,
    forks_and_joins,
    forks_in_a_row,
    schedules,
    stages_in_order,
)
from tests.planner.partition.exact import all_contiguous, every_assignment, least, optima
from tests.planner.partition.ordered.programs_on_hosts import random_program
from tests.planner.partition.problems import chain, problems, trainings
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.reckoning import Reckoner
from tests.random_examples import random_examples, random_seeds

INFERENCE = [Objective.THROUGHPUT, Objective.LATENCY, Objective.MEMORY]
# Of the optimum: a bound on transfers holds for values up to a limit, and answers no finer than a share of that.
LIMITS = (1.0, 1.3, 2.5)

Made = tuple[PartitionProblem, float]
Maker = Callable[[np.random.Generator], Made]


def of_all(problem: PartitionProblem, best: float) -> Iterator[tuple[str, Objective, float]]:
    """Bounds that hold whatever runs where."""
    bundles = bundles_of(problem)
    yield "work", Objective.THROUGHPUT, work_bound(problem)
    yield "largest bundle", Objective.THROUGHPUT, largest_bundle_bound(problem, bundles)
    for limit in LIMITS:
        yield f"transfers up to {limit}", Objective.THROUGHPUT, transfer_bound(problem, best * limit)
    yield "large values", Objective.THROUGHPUT, large_values_bound(problem, 0.0, best * LIMITS[-1])
    yield "least load", Objective.THROUGHPUT, least_load_bound(problem, bundles, 0.0)
    yield "path", Objective.LATENCY, path_bound(problem, bundles)
    yield "blocks", Objective.LATENCY, block_bound(problem, bundles)
    yield "memory", Objective.MEMORY, memory_bound(problem)
    yield "least memory", Objective.MEMORY, least_memory_bound(problem, bundles, 0.0)


@pytest.mark.slow
@random_examples(35)
@given(problem=problems(max_nodes=5, max_devices=3, barred=True))
def test_none_is_above_the_optimum(problem: PartitionProblem) -> None:
    bundles = bundles_of(problem)
    best = optima(problem, INFERENCE, every_assignment(problem))
    for name, objective, bound in of_all(problem, best[Objective.THROUGHPUT]):
        assert bound <= best[objective] * (1 + 1e-9), name
    assert serial_bound(problem, bundles) <= best[Objective.LATENCY] * (1 + 1e-9)


@pytest.mark.slow
@random_examples(15)
@given(problem=problems(max_nodes=4, max_devices=2, barred=True))
def test_none_is_above_the_optimum_of_free_stages(problem: PartitionProblem) -> None:
    """But for a lone batch's: its stages count as running beside each other also where they share a device."""
    best = optima(problem, INFERENCE, every_assignment(problem, free=True))
    for name, objective, bound in of_all(problem, best[Objective.THROUGHPUT]):
        assert objective is Objective.LATENCY or bound <= best[objective] * (1 + 1e-9), name


@pytest.mark.slow
@random_examples(10)
@given(problem=problems(max_nodes=4, max_devices=2, training=trainings), objective=st.sampled_from(Objective))
def test_none_is_above_the_optimum_in_training(problem: PartitionProblem, objective: Objective) -> None:
    best = least(problem, objective, every_assignment(problem))
    if np.isinf(best):
        with pytest.raises(Infeasible):
            partition(problem, Request(mode="optimal", objective=objective))
        return
    assignment = partition(problem, Request(mode="optimal", objective=objective))
    assert assignment.lower_bound_seconds is not None
    assert assignment.lower_bound_seconds <= best * (1 + 1e-9)


@random_examples(20)
@given(problem=problems(max_nodes=5, max_devices=3, equal_links=True, barred=True), num_stages=st.sampled_from([0, 2]))
def test_ideals_are_exact_over_equal_links(problem: PartitionProblem, num_stages: int) -> None:
    candidates = [one for one in every_assignment(problem) if num_stages in (0, one.num_stages)]
    best = optima(problem, INFERENCE, candidates)
    for objective in (Objective.THROUGHPUT, Objective.MEMORY):
        solution = least_over_ideals(problem, bundles_of(problem), objective, num_stages=num_stages)
        assert solution is not None
        assert solution.exact
        assert solution.value == pytest.approx(best[objective], abs=1e-9)


@pytest.mark.slow
@random_examples(40)
@given(problem=problems(max_nodes=5, max_devices=3, barred=True), data=st.data())
def test_ideals_with_or_without_some_nodes_are_no_more_than_the_optimum(
    problem: PartitionProblem, data: st.DataObject
) -> None:
    bundles = bundles_of(problem)
    others = sorted({*range(bundles.count)} - {int(bundles.bundle_of_node[-1])})
    left_out = np.isin(bundles.bundle_of_node, sorted(data.draw(st.sets(st.sampled_from(others)))) if others else [])
    fewer = without_nodes(problem, left_out)
    best = optima(problem, [Objective.THROUGHPUT, Objective.MEMORY], every_assignment(problem))
    for objective, optimum in best.items():
        solution = least_over_ideals(problem, bundles, objective)
        assert solution is not None
        assert solution.value <= optimum * (1 + 1e-9)
        smaller = least_over_ideals(fewer.problem, bundles_of(fewer.problem), objective, unlinked=fewer.stands_in)
        assert smaller is not None
        assert smaller.value <= optimum * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(25))
def test_ideals_on_hosts_are_no_more_than_the_optimum(seed: int) -> None:
    program, _ = random_program(seed)
    best = least(program, Objective.THROUGHPUT, every_assignment(program))
    bundles = bundles_of(program)
    draw = random.Random(seed)
    left_out = np.array([draw.random() < 0.3 for _ in range(bundles.count)])
    left_out[-1] = False
    # With a finite limit devices have prices, too.
    for limit in (np.inf, 1.001 * best, 1.5 * best):
        for fewer in (without_nodes(program, left_out & False), without_nodes(program, left_out)):
            solution = least_over_ideals(
                fewer.problem, bundles_of(fewer.problem), Objective.THROUGHPUT, limit=limit, unlinked=fewer.stands_in
            )
            assert solution is not None
            assert solution.value <= best * (1 + 1e-9)
        whole = least_over_ideals(program, bundles, Objective.THROUGHPUT, limit=limit)
        assert whole is not None
        assert whole.value <= best * (1 + 1e-9)


def test_what_a_node_passes_on_stands_in_for_what_it_is_given() -> None:
    """The first node's 8 bytes become 1: whoever reads that receives one of the two, and so 1 at least."""
    problem = chain([[1.0, 1.0, 1.0]], value_bytes=[4, 8, 1, 2])
    fewer = without_nodes(problem, np.array([False, True, False])).problem
    tensors = fewer.value_bytes > 0
    assert fewer.value_bytes[tensors].tolist() == [1]
    assert fewer.value_producer[tensors].tolist() == [0]
    assert set(fewer.read_node.tolist()) == {1}


def test_ideals_count_what_neighbours_exchange_over_the_link_between_them() -> None:
    """Two hosts of one device: the second node's device receives 4 bytes over the link between hosts, not a better."""
    problem = chain([[3.0, 3.0]] * 2, value_bytes=[0, 4, 0], per_byte=[[0.0, 0.25], [0.5, 0.0]], returned=())
    solution = least_over_ideals(problem, bundles_of(problem), Objective.THROUGHPUT)
    assert solution is not None
    assert solution.value == pytest.approx(least(problem, Objective.THROUGHPUT, every_assignment(problem)))


def test_ideals_count_what_skips_a_stage_over_the_best_link() -> None:
    """The last node's 8 bytes come from its own host, only the 1 byte that the stage before it makes from the other."""
    host = [0, 0, 1]
    problem = problem_of(
        compute_seconds=[[2.0, 2.0, 4.0, 4.0]] * 3,
        reads=[[], [0], [1], [0, 2]],
        value_bytes=[8, 0, 1, 0],
        num_inputs=0,
        per_byte=[[0.0 if one == other else 1.0 for other in host] for one in host],
        fixed={0: 0, 1: 0, 2: 2, 3: 1},
    )
    solution = least_over_ideals(problem, bundles_of(problem), Objective.THROUGHPUT)
    assert solution is not None
    assert solution.value == pytest.approx(least(problem, Objective.THROUGHPUT, every_assignment(problem)))


@pytest.mark.parametrize(("host", "optimum"), [([0, 0, 0, 1], 3.0), ([0, 0, 1, 1], 4.0)])
def test_ideals_let_stages_beside_the_longest_path_run_anywhere(host: list[int], optimum: float) -> None:
    """Node 2 has a device of its own, between those of nodes 0, 1 and 3, which pass 8 bytes on over their own links."""
    problem = problem_of(
        compute_seconds=[[3.0, 3.0, 2.5, 3.0]] * len(host),
        reads=[[], [0], [], [1, 2]],
        value_bytes=[8, 8, 0, 0],
        num_inputs=0,
        per_byte=[[0.0 if one == other else 0.125 for other in host] for one in host],
    )
    assert least(problem, Objective.THROUGHPUT, every_assignment(problem)) == pytest.approx(optimum)
    for limit in (np.inf, 1.3 * optimum):
        solution = least_over_ideals(problem, bundles_of(problem), Objective.THROUGHPUT, limit=limit)
        assert solution is not None
        assert solution.value == pytest.approx(optimum)


def test_a_stage_beside_the_path_is_given_nothing_of_it() -> None:
    """Node 3 runs between nodes 2 and 4, which pass 100 bytes on; it is given 1 byte of node 1's, and gives on 1."""
    host = [0, 0, 0, 1]
    problem = problem_of(
        compute_seconds=[[2.0, 0.0, 2.0, 2.15, 2.0]] * len(host),
        reads=[[], [0], [0], [1], [2, 3]],
        value_bytes=[100, 1, 100, 1, 1],
        num_inputs=0,
        per_byte=[[0.001 if one == other else 0.0011 for other in host] for one in host],
    )
    optimum = least(problem, Objective.THROUGHPUT, every_assignment(problem))
    for limit in (np.inf, 1.3 * optimum):
        solution = least_over_ideals(problem, bundles_of(problem), Objective.THROUGHPUT, limit=limit)
        assert solution is not None
        assert solution.value <= optimum * (1 + 1e-9)


def test_what_the_stage_just_before_gives_bounds_where_the_path_says_little() -> None:
    """The path alone says 5.03; some prices prove all but a twentieth of a per cent of 5.53."""
    program, _ = random_program(44)
    optimum = least(program, Objective.THROUGHPUT, every_assignment(program))
    solution = least_over_ideals(program, bundles_of(program), Objective.THROUGHPUT, limit=1.001 * optimum)
    assert solution is not None
    assert optimum * 0.999 <= solution.value <= optimum * (1 + 1e-9)


@random_examples(60)
@given(problems(max_nodes=5, max_devices=1, relay=False))
def test_neighbours_give_each_other_no_less_than_ideals_say(problem: PartitionProblem) -> None:
    bundles, last = bundles_of(problem), problem.num_nodes
    ideals = all_ideals(bundles, 1 << last)
    assert ideals is not None
    index = {tuple(members): at for at, members in enumerate(ideals.members.tolist())}
    stages, none = IdealStages(problem, bundles, ideals), np.zeros(problem.num_values, dtype=np.bool_)
    for assignment in every_assignment(problem, free=True):
        stage_of_node = np.array(assignment.stage_of_node)
        stage_of_bundle = stage_of_node[[members[0] for members in bundles.members]]
        parts = [index[tuple((stage_of_bundle < stage).tolist())] for stage in range(assignment.num_stages + 1)]
        given_by, gives = stages.between_neighbours(np.array(parts[:-1]), np.array(parts[1:]), none)
        crossings = traffic(problem, stage_of_node, assignment.num_stages).crossings
        next_to = crossings.targets == crossings.sources + 1
        sizes = problem.value_bytes[crossings.values[next_to]]
        passed = np.bincount(crossings.targets[next_to], sizes, assignment.num_stages + 1)
        assert (given_by <= passed[:-1]).all()
        assert (gives <= passed[1:]).all()


def test_a_stage_beside_the_longest_path_may_run_before_the_last_device_of_a_host() -> None:
    """Of unlike devices: what the unused ones can do behind the node's own is not all that they can do around it."""
    program, _ = random_program(5330)
    optimum = least(program, Objective.THROUGHPUT, every_assignment(program))
    solution = least_over_ideals(program, bundles_of(program), Objective.THROUGHPUT, limit=1.3 * optimum)
    assert solution is not None
    assert solution.value <= optimum * (1 + 1e-9)


def test_links_that_cost_nothing_and_a_device_that_cannot_run_a_node() -> None:
    """What such a device is spared is no number; the bound was then whatever limit it was asked for."""
    problem = problem_of(
        compute_seconds=[[np.inf, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]],
        reads=[[], [], [0], []],
        value_bytes=[0] * 4,
        num_inputs=0,
    )
    assert least(problem, Objective.THROUGHPUT, every_assignment(problem)) == 1.0
    for limit in (1.3, 2.0, 8.0):
        assert transfer_bound(problem, limit) <= 1.0


def test_ideals_fill_no_device_that_cannot_run_the_node() -> None:
    """The larger device would be filled less."""
    problem = chain([[0.0]] * 2, states=[(10, (0,))], value_bytes=[0, 0], memory_bytes=[20, 40], fixed={0: 0})
    solution = least_over_ideals(problem, bundles_of(problem), Objective.MEMORY)
    assert solution is not None
    assert solution.value == pytest.approx(0.5)


def check_is_tight(make: Maker, bound: Callable[[PartitionProblem, float], float], share: float = 1e-8) -> None:
    """At most `share` below the optimum, and not above it, on each of many problems."""
    for seed in random_seeds(24):
        problem, best = make(np.random.default_rng(seed))
        bound_seconds = bound(problem, best)
        assert best * (1 - share) <= bound_seconds <= best * (1 + 1e-12), seed


@pytest.mark.fuzz
def test_work_is_shared_by_equal_devices() -> None:
    check_is_tight(
        lambda rng: known_optima.work_that_can_be_shared_evenly(rng, equal=True), lambda problem, _: work_bound(problem)
    )


@pytest.mark.fuzz
def test_work_is_shared_by_unequal_devices_nearly() -> None:
    """The weights of the kinds of devices are sought in few rounds."""
    check_is_tight(
        lambda rng: known_optima.work_that_can_be_shared_evenly(rng, equal=False),
        lambda problem, _: work_bound(problem),
        share=0.02,
    )


@pytest.mark.fuzz
def test_a_lone_batch_waits_for_all_work_to_be_shared() -> None:
    check_is_tight(
        lambda rng: known_optima.work_that_can_be_shared_evenly(rng, equal=True),
        lambda problem, _: path_bound(problem, bundles_of(problem)),
    )


@pytest.mark.fuzz
def test_a_large_group_is_not_divided() -> None:
    check_is_tight(known_optima.one_large_group, lambda problem, _: largest_bundle_bound(problem, bundles_of(problem)))


@pytest.mark.fuzz
def test_a_path_takes_its_seconds() -> None:
    check_is_tight(known_optima.a_path_over_devices, lambda problem, _: path_bound(problem, bundles_of(problem)))


@pytest.mark.fuzz
def test_branches_too_dear_to_part_run_in_turn() -> None:
    check_is_tight(
        known_optima.branches_too_dear_to_part, lambda problem, _: serial_bound(problem, bundles_of(problem))
    )


@pytest.mark.fuzz
def test_branches_spare_no_more_than_stages_of_their_own_can() -> None:
    check_is_tight(
        known_optima.branches_on_devices_of_their_own,
        lambda problem, _: serial_bound(problem, bundles_of(problem)),
    )


@pytest.mark.fuzz
@pytest.mark.parametrize("make", [known_optima.states_that_can_be_spread_evenly, known_optima.one_large_state])
def test_states_fill_the_devices(make: Maker) -> None:
    check_is_tight(make, lambda problem, _: memory_bound(problem))


@pytest.mark.fuzz
@pytest.mark.parametrize("limit", [1.001, 1.3, 2.5])
def test_cuts_are_paid_for_by_each_device(limit: float) -> None:
    """Within a step of the search, of which there are 500 up to the limit."""
    check_is_tight(
        known_optima.a_chain_that_pays_for_each_cut,
        lambda problem, best: transfer_bound(problem, best * limit),
        share=limit / 500 + 1e-8,
    )


@pytest.mark.fuzz
@pytest.mark.parametrize("make", [known_optima.a_chain_that_pays_for_each_cut, known_optima.a_chain_over_two_hosts])
def test_who_has_part_of_a_path_pays_for_its_ends(make: Maker) -> None:
    check_is_tight(make, lambda problem, best: large_values_bound(problem, 0.0, best * 2), share=1e-8)


@random_examples(40)
@given(problem=problems(max_nodes=6, max_devices=1), data=st.data())
def test_what_nodes_exchange_for_their_work_is_the_least_of_all_their_sets(
    problem: PartitionProblem, data: st.DataObject
) -> None:
    aside = np.array(data.draw(st.lists(st.booleans(), min_size=problem.num_nodes, max_size=problem.num_nodes)), bool)
    work = problem.work_seconds[0]
    ends: dict[int, set[int]] = {}
    for value, node in zip(problem.read_value.tolist(), problem.read_node.tolist(), strict=True):
        if problem.value_producer[value] >= 0:
            ends.setdefault(value, {int(problem.value_producer[value])}).add(node)
    ratios = [
        sum(int(problem.value_bytes[value]) for value, nodes in ends.items() if 0 < len(nodes & part) < len(nodes))
        / float(work[list(part)].sum())
        for part in map(set, subsets(np.flatnonzero(aside).tolist()))
        if work[list(part)].sum() > 0
    ]
    assert least_exchanged(problem, aside, work) == pytest.approx(min(ratios, default=0.0), rel=1e-5)


def subsets(nodes: list[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(nodes, size) for size in range(1, len(nodes) + 1))


def test_what_only_runs_before_does_not_delay_a_lone_batch() -> None:
    """The last group runs last, but waits for nothing that it does not read."""
    problem = problem_of(
        compute_seconds=[[3.0, 1.0, 1.0]] * 2, reads=[[], [], [1]], value_bytes=[0] * 3, num_inputs=0, groups=[(1, 2)]
    )
    assert path_bound(problem, bundles_of(problem)) == pytest.approx(3.0)
    assert least(problem, Objective.LATENCY, every_assignment(problem)) == 3.0


@pytest.mark.slow
@pytest.mark.fuzz
def test_blocks_bound_every_schedule_of_forks_and_joins() -> None:
    """And come close where no more than that is to be done."""
    close = 0
    for seed in random_seeds(24):
        choice = random.Random(seed)
        problem = forks_and_joins(choice)
        best = least(problem, Objective.LATENCY, schedules(problem, choice))
        bound = block_bound(problem, bundles_of(problem))
        assert bound <= best * (1 + 1e-9), seed
        close += bound >= 0.9 * best
    assert close >= 8


@pytest.mark.slow
@pytest.mark.fuzz
def test_stages_that_wait_for_all_they_read_bound_every_fork_on_four_devices_or_five() -> None:
    """And `optimal`, which may try all of so few, ends at the optimum with the proof."""
    parted = 0
    for seed in random_seeds(10):
        problem, quickest = fork_on_many_devices(np.random.default_rng(seed))
        best = _least_of_stages(problem)
        assert serial_bound(problem, bundles_of(problem)) <= best * (1 + 1e-9), seed
        assignment = partition(problem, Request(mode="optimal", objective=Objective.LATENCY))
        assert evaluate(problem, assignment).latency_seconds == pytest.approx(best), seed
        assert assignment.lower_bound_seconds == pytest.approx(best), seed
        parted += best < quickest * (1 - 1e-9)
    assert parted >= 3


@pytest.mark.slow
@pytest.mark.fuzz
def test_messages_between_hosts_bound_forks_over_two_of_them() -> None:
    for seed in random_seeds(6):
        problem = fork_over_two_hosts(np.random.default_rng(seed))
        assert serial_bound(problem, bundles_of(problem)) <= _least_of_stages(problem) * (1 + 1e-9), seed


@pytest.mark.parametrize("seed", [18, 28])
def test_messages_between_hosts_are_part_of_what_is_proven(seed: int) -> None:
    problem = fork_over_two_hosts(np.random.default_rng(seed))
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    over_the_best_link = replace(
        problem,
        link_latency_seconds=np.where(apart, problem.link_latency_seconds[apart].min(), 0.0),
        link_seconds_per_byte=np.where(apart, problem.link_seconds_per_byte[apart].min(), 0.0),
    )
    bundles = bundles_of(problem)
    assert serial_bound(problem, bundles) >= 1.05 * serial_bound(over_the_best_link, bundles)


def _least_of_stages(problem: PartitionProblem) -> float:
    bundles, reckoner = bundles_of(problem), Reckoner(problem)
    unlike = [list(devices_told_apart(problem, count)) for count in range(problem.num_devices + 1)]
    return min(
        reckoner.value(reckoner.reckon(bundles.assignment(stages, devices)), Objective.LATENCY)
        for stages in stages_in_order(bundles, problem.num_devices)
        for devices in unlike[max(stages) + 1]
    )


@pytest.mark.fuzz
def test_forks_in_a_row_are_never_above_the_optimum() -> None:
    for seed in random_seeds(8):
        problem, best = forks_in_a_row(seed)
        assert serial_bound(problem, bundles_of(problem)) <= best * (1 + 1e-9), seed


@pytest.mark.slow
def test_forks_in_a_row_share_the_devices() -> None:
    bounds_of_optimum = [
        serial_bound(problem, bundles_of(problem)) / best
        for problem, best in (forks_in_a_row(seed) for seed in range(1, 13))
    ]
    assert max(bounds_of_optimum) <= 1 + 1e-9
    assert sum(share >= 0.95 for share in bounds_of_optimum) >= 7


def test_work_between_two_nodes_is_spread_or_runs_in_turn() -> None:
    """Four branches of a second; a message out and one back are paid, and what the last node is handed."""
    arguments = {
        "compute_seconds": [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 2,
        "reads": [[0], [1], [1], [1], [1], [2, 3, 4, 5]],
        "value_bytes": [1] * 7,
    }
    dear = problem_of(latency=5.0, **arguments)
    assert block_bound(dear, bundles_of(dear)) == pytest.approx(6.0)
    cheap = problem_of(latency=0.25, **arguments)
    assert block_bound(cheap, bundles_of(cheap)) == pytest.approx(1 + 0.25 + 2 + 0.25 + 1)
    by_bytes = problem_of(per_byte=0.25, **arguments)
    # Two messages of a quarter of a second at the end; one is proven.
    assert 1 + 0.25 + 2 + 0.25 + 1 - 1e-6 < block_bound(by_bytes, bundles_of(by_bytes)) <= 1 + 0.25 + 2 + 0.5 + 1


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("make", "objective"),
    [
        (lambda rng: known_optima.work_that_can_be_shared_evenly(rng, equal=False), Objective.THROUGHPUT),
        (lambda rng: known_optima.work_that_can_be_shared_evenly(rng, equal=True), Objective.LATENCY),
        (known_optima.one_large_group, Objective.THROUGHPUT),
        (known_optima.a_path_over_devices, Objective.LATENCY),
        (known_optima.branches_too_dear_to_part, Objective.LATENCY),
        (known_optima.states_that_can_be_spread_evenly, Objective.MEMORY),
        (known_optima.one_large_state, Objective.MEMORY),
        (known_optima.a_chain_that_pays_for_each_cut, Objective.THROUGHPUT),
        (known_optima.a_chain_over_links_of_one_way, Objective.THROUGHPUT),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_known_optima_are_optima(make: Maker, objective: Objective) -> None:
    """And `optimal` finds them, with a bound that does not pass them."""
    for seed in random_seeds(2):
        problem, best = make(np.random.default_rng(seed))
        # Every order of a chain is the program's.
        every = all_contiguous if make is known_optima.a_chain_that_pays_for_each_cut else every_assignment
        assert least(problem, objective, every(problem)) == pytest.approx(best), seed
        assignment = partition(problem, Request(mode="optimal", objective=objective))
        assert assignment.lower_bound_seconds is not None
        assert best * 0.98 <= assignment.lower_bound_seconds <= best * (1 + 1e-9), seed
