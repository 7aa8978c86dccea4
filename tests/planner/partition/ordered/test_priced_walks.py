"""Walks whose devices have prices bound every plan; where all devices are equal they count them."""

import numpy as np
import pytest

from planner.partition.objective import Objective
from planner.partition.ordered.device_walks import by_visits
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.priced_walks_kernel import least_paid
from planner.partition.portfolio import least_over_stages
from planner.partition.portfolio.exact_ideals import least_over_ideals
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.exact import every_assignment, least
from tests.planner.partition.ordered.chains_on_hosts import least_of_chain, random_chain
from tests.planner.partition.ordered.programs_on_hosts import random_program
from tests.planner.partition.problems import chain
from tests.random_examples import random_seeds


def priced(problem: PartitionProblem, limit: float) -> float:
    """What prices prove without any walk that counts devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(least_over_stages, "MAX_STEPS", 0)
        solution = least_over_ideals(problem, bundles_of(problem), Objective.THROUGHPUT, limit=limit)
    assert solution is not None
    return solution.value


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_no_chain_on_hosts_is_below(seed: int) -> None:
    problem = random_chain(seed)
    optimum = least_of_chain(problem)
    if np.isfinite(optimum):
        assert priced(problem, optimum * 1.3) <= optimum * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(16))
def test_no_program_on_hosts_is_below(seed: int) -> None:
    program, _ = random_program(seed)
    optimum = least(program, Objective.THROUGHPUT, every_assignment(program))
    if np.isfinite(optimum):
        assert priced(program, optimum * 1.3) <= optimum * (1 + 1e-9)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(10))
def test_equal_devices_are_counted_by_their_price(seed: int) -> None:
    """Of one kind, a walk that costs no more than all devices has no more of them."""
    draw = np.random.default_rng(seed)
    problem = _two_hosts([1.0] * 6, draw.choice([1.0, 2.0, 3.5], 10).tolist())
    optimum = least_of_chain(problem)
    assert priced(problem, optimum * 1.3) >= optimum * (1 - 2e-3)


def test_a_visit_takes_no_more_of_a_kind_than_a_host_has() -> None:
    hosts = hosts_of(_two_hosts([1.0, 2.0, 2.0, 1.0, 2.0, 2.0], [1.0] * 4))
    visits = by_visits(hosts)
    assert visits.capacity == (2, 4)
    after = {(edge.node, edge.unit): edge.next_node for edge in visits.edges if edge.next_node != -1}
    slow = dict(visits.starts)[0]
    both = after[slow, 1]
    # One host again: to the other's first device, not a second of the slow kind.
    assert (both, 0) in after
    assert after[both, 0] == slow


def test_prices_are_those_at_which_the_cheapest_walk_costs_most() -> None:
    """One walk takes 3 of the 2 devices of a kind and none of the other, the second the reverse."""
    gain, shares = least_paid(np.array([[0.5, -1.0], [-1.0, 0.5]]), 4000)
    assert gain == pytest.approx(-0.25, abs=1e-3)
    assert shares == pytest.approx([0.5, 0.5], abs=1e-2)


def _two_hosts(speeds: list[float], seconds: list[float]) -> PartitionProblem:
    half = len(speeds) // 2
    host = [device // half for device in range(len(speeds))]
    return chain(
        [[took * speed for took in seconds] for speed in speeds],
        per_byte=[[0.01 if one == other else 0.9 for other in host] for one in host],
    )
