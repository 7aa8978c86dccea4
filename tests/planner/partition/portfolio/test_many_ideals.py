"""Bounds over order ideals in groups: never above an optimum, whatever is left out and however few groups there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.partition.lattice import as_bits
from planner.partition.objective import Objective
from planner.partition.portfolio.exact_ideals import least_over_ideals
from planner.partition.portfolio.ideal_groups import GroupStages, Held, in_groups, work_of
from planner.partition.portfolio.ideal_stages import Ideals, IdealStages
from planner.partition.portfolio.many_ideals import least_over_groups, with_fewer_ideals
from planner.partition.portfolio.paths import Path, path_of_strides
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.exact import every_assignment, optima
from tests.planner.partition.ordered.programs_on_hosts import random_mirrored_program, random_program
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems
from tests.random_examples import random_examples, random_seeds

OBJECTIVES = [Objective.THROUGHPUT, Objective.MEMORY]
SHARES, GROUPS, STRIDES = (0.0, 0.5), (3, 1000), (0, 4)
NO_PATH = Path(bundles=(), given_bytes=np.zeros(1))


def check(problem: PartitionProblem, objective: Objective, optimum: float, draw: np.random.Generator) -> None:
    bundles = bundles_of(problem)
    for share, groups, strides in draw.permutation(list(product(SHARES, GROUPS, STRIDES)))[:4]:
        left_out = draw.random(bundles.count) < share
        left_out[bundles.bundle_of_node[-1]] = False
        fewer = with_fewer_ideals(problem, bundles, left_out, 10_000)
        assert fewer is not None
        limit = optimum * draw.choice([1.0, 1.3, 2.5]) if np.isfinite(optimum) else np.inf
        bound = least_over_groups(fewer, objective, int(strides), int(groups), limit=limit)
        assert bound is None or bound <= optimum * (1 + 1e-9), (left_out, groups, strides, limit)


@pytest.mark.slow
@random_examples(20)
@given(problem=problems(max_nodes=5, max_devices=3, barred=True), seed=st.integers(0, 1000))
def test_none_is_above_the_optimum(problem: PartitionProblem, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for objective, optimum in optima(problem, OBJECTIVES, every_assignment(problem)).items():
        check(problem, objective, optimum, draw)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(10))
def test_none_is_above_the_optimum_on_hosts(seed: int) -> None:
    # Those that mirror themselves have seconds' worth of assignments.
    problem, _ = random_mirrored_program(seed) if seed % 10 == 9 else random_program(seed)
    draw = np.random.default_rng(seed)
    for objective, optimum in optima(problem, OBJECTIVES, every_assignment(problem)).items():
        check(problem, objective, optimum, draw)


def layers(count: int, kinds: int = 1, relay: bool = False) -> PartitionProblem:
    """Each sums four branches of unlike work that read the sum before; a second kind of device is slow at some."""
    branches = [1.0, 1.5, 2.5, 0.5]
    seconds, reads = [0.25], [[0]]
    for layer in range(count):
        # The value of node k is k + 1.
        source = 5 * layer + 1
        seconds += [*branches, 0.25]
        reads += [[source]] * 4 + [[source + 1, source + 2, source + 3, source + 4]]
    rows = [seconds, [2 * took if took > 1 else took for took in seconds]][:kinds]
    return problem_of(
        compute_seconds=[rows[device % kinds] for device in range(4)],
        reads=reads,
        value_bytes=[1] + [4, *[2] * 4] * count + [4],
        returned=(len(seconds),),
        per_byte=0.02,
        relay=relay,
    )


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize("kinds", [1, 2])
def test_narrow_groups_know_what_ideals_know(kinds: int, relay: bool) -> None:
    problem = layers(6, kinds, relay)
    bundles = bundles_of(problem)
    exact = least_over_ideals(problem, bundles, Objective.THROUGHPUT)
    nothing = np.zeros(bundles.count, dtype=np.bool_)
    fewer = with_fewer_ideals(problem, bundles, nothing, 1000)
    assert exact is not None
    assert exact.exact
    assert fewer is not None
    bound = least_over_groups(fewer, Objective.THROUGHPUT, 0, 1000)
    assert bound == pytest.approx(exact.value, rel=0.01)


def test_what_is_left_out_has_its_work_done() -> None:
    """One branch of each layer: without its work the bound is a tenth lower."""
    problem = layers(6)
    bundles = bundles_of(problem)
    exact = least_over_ideals(problem, bundles, Objective.THROUGHPUT)
    third_branch = np.arange(bundles.count) % 5 == 4
    fewer = with_fewer_ideals(problem, bundles, third_branch, 1000)
    assert exact is not None
    assert fewer is not None
    assert fewer.work.beside_share == pytest.approx(6 * 0.5 / (0.25 + 6 * 5.75))
    bound = least_over_groups(fewer, Objective.THROUGHPUT, 0, 1000)
    assert bound == pytest.approx(exact.value, rel=0.03)


def test_what_takes_all_kinds_the_same_does_not_make_the_rest_cheaper() -> None:
    """Of two nodes left out the small one takes both kinds as long, the large one takes the second kind three times."""
    problem = problem_of(
        compute_seconds=[[1.0, 0.1, 4.0, 1.0], [3.0, 0.1, 12.0, 3.0]],
        reads=[[0], [1], [1], [2, 3]],
        value_bytes=[1] * 5,
        returned=(4,),
    )
    bundles = bundles_of(problem)
    work = work_of(problem, bundles, np.array([False, True, True, False]))
    assert work.at_will.tolist() == [1.0, 3.0]
    assert work.beside_seconds.tolist() == [4.0]
    assert (work.ancestors, work.descendants) == (((0,),), ((1,),))


@random_examples(60)
@given(data=st.data())
def test_each_ideal_is_in_groups_of_all_it_may_hold(data: st.DataObject) -> None:
    problem = data.draw(problems(max_nodes=7, max_devices=2))
    bundles = bundles_of(problem)
    left_out = np.array(data.draw(st.lists(st.booleans(), min_size=bundles.count, max_size=bundles.count)))
    left_out[bundles.bundle_of_node[-1]] = False
    fewer = with_fewer_ideals(problem, bundles, left_out, 1000)
    assert fewer is not None
    path = path_of_strides(fewer.problem, fewer.bundles, fewer.unlinked, data.draw(st.integers(1, 5)))
    held = Held(fewer.words, fewer.work, path)
    groups = in_groups(held, data.draw(st.integers(1, 30)))
    assert set(groups.ideal.tolist()) == set(np.flatnonzero(held.least <= held.most).tolist())
    assert (groups.num_of_path[groups.first] == held.num_of_path[groups.ideal]).all()
    assert (groups.num_of_path[groups.last] == held.num_of_path[groups.ideal]).all()
    inner = slice(1, -1)
    assert (groups.low[groups.first][inner] <= held.least[groups.ideal][inner]).all()
    assert (groups.high[groups.last][inner] >= held.most[groups.ideal][inner]).all()
    # Between two groups of a level nothing is held that stands in both.
    for first, last in zip(groups.first.tolist(), groups.last.tolist(), strict=True):
        assert (groups.low[first + 1 : last + 1] == groups.high[first:last]).all()
    assert (np.diff(groups.num_of_path) >= 0).all()


def test_what_waits_for_part_of_a_bundle_that_is_left_out_waits_for_all_that_it_reads() -> None:
    """Nodes 2 and 3 are a bundle, which reads both others; the last node reads the first half alone."""
    problem = problem_of(
        compute_seconds=[[1.0] * 5], reads=[[], [], [0], [1], [2]], num_inputs=0, value_bytes=[1] * 5, groups=[(2, 3)]
    )
    bundles = bundles_of(problem)
    fewer = with_fewer_ideals(problem, bundles, np.array([False, False, True, False]), 100)
    assert fewer is not None
    held = Held(fewer.words, fewer.work, NO_PATH)
    groups = in_groups(held, 30)
    # The first and the last node without the second.
    [impossible] = set(range(fewer.words.shape[0])) - set(groups.ideal.tolist())
    assert fewer.words[impossible].tolist() == [0b101]
    assert (groups.first <= groups.last).all()


def test_what_is_left_out_is_done_between_what_it_reads_and_what_reads_it() -> None:
    problem = problem_of(
        compute_seconds=[[1.0, 2.0, 4.0, 8.0]],
        reads=[[0], [1], [1], [2, 3]],
        value_bytes=[1] * 5,
        returned=(4,),
    )
    fewer = with_fewer_ideals(problem, bundles_of(problem), np.array([False, True, False, False]), 100)
    assert fewer is not None
    held = Held(fewer.words, fewer.work, NO_PATH)
    # Nothing, then the first node, the third and the last.
    assert held.least.tolist() == [0.0, 1.0, 5.0, 15.0]
    assert held.most.tolist() == [0.0, 3.0, 7.0, 15.0]


@pytest.mark.slow
@random_examples(60)
@given(data=st.data())
def test_no_stage_between_ideals_costs_less_than_one_between_their_groups(data: st.DataObject) -> None:
    problem = data.draw(problems(max_nodes=6, max_devices=2, barred=True))
    bundles = bundles_of(problem)
    fewer = with_fewer_ideals(problem, bundles, np.zeros(bundles.count, dtype=np.bool_), 1000)
    assert fewer is not None
    path = path_of_strides(fewer.problem, fewer.bundles, fewer.unlinked, data.draw(st.integers(1, 5)))
    held = Held(fewer.words, fewer.work, path)
    groups = in_groups(held, data.draw(st.integers(1, 20)))
    ideals = Ideals(members=as_bits(fewer.words, bundles.count), words=fewer.words)
    exact = IdealStages(problem, bundles, ideals)
    stages = GroupStages(problem, bundles, fewer.words, fewer.work, held, groups)
    starts, ends = exact.within(np.inf)
    group_of = np.empty(ideals.count, dtype=np.int64)
    group_of[groups.ideal] = groups.first
    # A stage within a group is none: its device is as good as unused.
    apart = group_of[starts] < group_of[ends]
    starts, ends = starts[apart], ends[apart]
    first, last = group_of[starts], group_of[ends]
    pairs = set(zip(*map(np.ndarray.tolist, stages.within(np.inf)), strict=True))
    assert pairs >= set(zip(first.tolist(), last.tolist(), strict=True))
    devices, margin = np.arange(problem.num_devices), 1e-9
    assert (stages.seconds(devices, first, last) <= exact.seconds(devices, starts, ends) + margin).all()
    assert (stages.peak_bytes(first, last) <= exact.peak_bytes(starts, ends)).all()
    less, more = stages.exchanges(first, last), exact.exchanges(starts, ends)
    assert (less.received_bytes <= more.received_bytes).all()
    assert (less.sent_bytes <= more.sent_bytes).all()
    assert not (less.receives & ~more.receives).any()
    assert not (less.sends & ~more.sends).any()


@pytest.mark.parametrize("seed", range(3))
def test_an_ideal_in_many_groups_is_in_each_of_them(seed: int) -> None:
    """As if it were there as often."""
    problem, draw = layers(6, relay=seed == 2), np.random.default_rng(seed)
    bundles = bundles_of(problem)
    left_out = draw.random(bundles.count) < 0.4
    left_out[-1] = False
    fewer = with_fewer_ideals(problem, bundles, left_out, 5000)
    assert fewer is not None
    held = Held(fewer.words, fewer.work, NO_PATH)
    groups = in_groups(held, 60)
    length = groups.last + 1 - groups.first
    assert length.max() > 4
    each = np.concatenate([np.arange(first, last + 1) for first, last in zip(groups.first, groups.last, strict=True)])
    alone = replace(groups, ideal=np.repeat(groups.ideal, length), first=each, last=each)
    stages, others = (
        GroupStages(fewer.problem, fewer.bundles, fewer.words, fewer.work, held, one) for one in (groups, alone)
    )
    starts, ends = stages.within(np.inf)
    devices = np.arange(problem.num_devices)
    assert (stages.seconds(devices, starts, ends) == others.seconds(devices, starts, ends)).all()
    assert (stages.peak_bytes(starts, ends) == others.peak_bytes(starts, ends)).all()
    one, other = stages.exchanges(starts, ends), others.exchanges(starts, ends)
    assert one.received_bytes.max() > 0
    assert (one.received_bytes == other.received_bytes).all()
    assert (one.sent_bytes == other.sent_bytes).all()


def test_a_program_of_views_alone_has_no_storage_of_its_own() -> None:
    problem = problem_of(compute_seconds=[[1.0, 1.0]], reads=[[0], [1]], value_bytes=[8, 3, 2], views={1: 0, 2: 0})
    bundles = bundles_of(problem)
    fewer = with_fewer_ideals(problem, bundles, np.zeros(bundles.count, dtype=np.bool_), 100)
    assert fewer is not None
    held = Held(fewer.words, fewer.work, NO_PATH)
    stages = GroupStages(problem, bundles, fewer.words, fewer.work, held, in_groups(held, 100))
    first, second = np.array([0]), np.array([1])
    # What the caller gives lives, and what goes on is buffered.
    assert stages.peak_bytes(first, second).tolist() == [8.0 + problem.microbatches_in_flight * 3.0]
