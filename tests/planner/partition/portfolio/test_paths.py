"""Paths of a network of blocks, past each of which a large value goes to a sum."""

import numpy as np

from planner.partition.portfolio.paths import longest_path, path_of_strides
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.problems import problem as problem_of

BLOCKS = 4
NOTHING = np.zeros(3 * BLOCKS + 2, dtype=np.bool_)
SUMS = (0, 3, 6, 9, 12)


def blocks() -> PartitionProblem:
    """Of two nodes and a sum each, which makes 10 bytes; the others make 2."""
    reads = [[0]]
    for block in range(BLOCKS):
        source = 3 * block + 1
        reads += [[source], [source + 1], [source, source + 2]]
    return problem_of(
        compute_seconds=[[0.5, *[1.0, 1.0, 0.5] * BLOCKS]],
        reads=reads,
        value_bytes=[1, 10, *[2, 2, 10] * BLOCKS],
        returned=(3 * BLOCKS + 1,),
    )


def test_the_longest_path_goes_through_all_work() -> None:
    problem = blocks()
    path = longest_path(problem, bundles_of(problem), NOTHING)
    assert path.bundles == tuple(range(3 * BLOCKS + 1))
    assert path.given_bytes.tolist() == [0.0, *[10.0, 2.0, 2.0] * BLOCKS, 0.0]


def test_a_path_of_strides_goes_where_large_values_pass_blocks_by() -> None:
    problem = blocks()
    path = path_of_strides(problem, bundles_of(problem), NOTHING, BLOCKS)
    assert path.bundles == SUMS
    assert path.given_bytes.tolist() == [0.0, *[10.0] * BLOCKS, 0.0]


def test_it_takes_smaller_strides_where_more_are_asked_for() -> None:
    problem = blocks()
    assert len(path_of_strides(problem, bundles_of(problem), NOTHING, 10 * BLOCKS).bundles) > len(SUMS)


def test_what_may_travel_over_any_link_is_on_no_path_of_strides() -> None:
    """From the second sum on it begins anew: nothing that a stage is known to be given comes before."""
    problem = blocks()
    unlinked = NOTHING.copy()
    unlinked[problem.value_producer == SUMS[1]] = True
    path = path_of_strides(problem, bundles_of(problem), unlinked, BLOCKS)
    assert path.bundles[-1] == SUMS[-1]
    assert SUMS[1] not in path.bundles[:-1]
