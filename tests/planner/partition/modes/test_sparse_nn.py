"""Mode "sparse_nn": tables spread over unequal devices, the rest beside each."""

import numpy as np
import pytest

from planner.errors import Infeasible
from planner.partition.evaluate import evaluate
from planner.partition.modes.sparse_nn import sparse_nn
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import problem


def recommender(table_bytes: list[int], memory_bytes: list[int], rest_bytes: int = 10) -> PartitionProblem:
    """A dense layer, tables that read the input, and one node that joins them all."""
    count = len(table_bytes)
    return problem(
        compute_seconds=[[1.0] * (count + 2)] * len(memory_bytes),
        reads=[[0], *([0] for _ in table_bytes), list(range(1, count + 2))],
        value_bytes=[1] * (count + 3),
        returned=(count + 2,),
        states=[(rest_bytes, (0, count + 1)), *((size, (index + 1,)) for index, size in enumerate(table_bytes))],
        memory_bytes=memory_bytes,
        embeddings=tuple(range(1, count + 1)),
        microbatches_in_flight=1,
    )


@pytest.mark.parametrize("memory_bytes", [[180, 180, 180], [220, 120, 160], [90, 240, 120]])
def test_tables_fill_the_devices_and_the_rest_is_on_each(memory_bytes: list[int]) -> None:
    case = recommender([70, 60, 50, 60], memory_bytes)
    assignment = sparse_nn(case)
    peaks = np.array(evaluate(case, assignment).device_peak_bytes)
    assert (peaks <= case.device_memory_bytes).all()
    tables = {assignment.stage_of_node[node] for node in range(1, 5)}
    used = sorted(assignment.device_of_stage[stage] for stage in tables)
    assert len(used) == len(set(used)) > 1
    for stage, devices in enumerate(assignment.devices_of_stage):
        assert sorted(devices) == ([assignment.device_of_stage[stage]] if stage in tables else used)


def test_what_fits_one_device_stays_whole() -> None:
    assignment = sparse_nn(recommender([10, 10], [200, 300]))
    assert (assignment.num_stages, assignment.device_of_stage, assignment.replicas) == (1, (1,), ())


def test_without_tables_it_places_by_size() -> None:
    case = recommender([70, 60], [120, 120])
    bare = problem(
        compute_seconds=[[1.0] * 2] * 2,
        reads=[[0], [1]],
        value_bytes=[1, 1, 1],
        states=[(70, (0,)), (60, (1,))],
        memory_bytes=[100, 100],
    )
    assert case.is_embedding.sum() == 2
    assert sparse_nn(bare).stage_of_node == (0, 1)


def test_tables_that_read_from_tables_may_lie_anywhere() -> None:
    case = problem(
        compute_seconds=[[1.0] * 3] * 2,
        reads=[[0], [1], [2]],
        value_bytes=[1] * 4,
        returned=(3,),
        states=[(50, (0,)), (40, (1,)), (20, (2,))],
        memory_bytes=[70, 90],
        embeddings=(0, 1, 2),
        microbatches_in_flight=1,
    )
    assignment = sparse_nn(case)
    stages = np.array(assignment.stage_of_node)
    assert (np.diff(stages) >= 0).all()
    assert (np.array(evaluate(case, assignment).device_peak_bytes) <= case.device_memory_bytes).all()


def test_a_rest_that_fits_beside_no_table_is_refused() -> None:
    with pytest.raises(Infeasible, match=r"mode sparse_nn: everything but the embeddings needs \d+ bytes"):
        sparse_nn(recommender([70, 60, 50], [120, 120, 120], rest_bytes=90))
