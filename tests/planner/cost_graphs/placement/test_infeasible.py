"""What is refused before any search: nothing that exists, and all that lacks a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost_graphs.placement.contiguous import best_contiguous
from planner.cost_graphs.placement.infeasible import check_can_exist
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.errors import Infeasible
from tests.planner.cost_graphs.placement.small_placements import free_placements, random_placement
from tests.random_examples import random_seeds

pytestmark = pytest.mark.fuzz


def filled(seed: int, *, lacking: int = 0) -> PlacementProblem:
    """Independent nodes that fill devices of a class each to the last byte; one device has `lacking` bytes fewer."""
    rng = np.random.default_rng(seed)
    nodes, devices = 5, 3
    node_bytes = rng.integers(1, 9, nodes).astype(np.float64)
    used_bytes = np.bincount(rng.integers(0, devices, nodes), weights=node_bytes, minlength=devices)
    used_bytes[int(np.argmax(used_bytes))] -= lacking
    return PlacementProblem(
        seconds=np.ones((devices, nodes)),
        node_bytes=node_bytes,
        tensor_producer=np.zeros(0, dtype=np.int64),
        read_tensor=np.zeros(0, dtype=np.int64),
        read_node=np.zeros(0, dtype=np.int64),
        transfer_seconds=np.zeros((devices, 0)),
        is_backward=np.zeros(nodes, dtype=np.bool_),
        colocation=np.arange(nodes),
        class_devices=np.ones(devices, dtype=np.int64),
        class_bytes=used_bytes,
        class_is_parallel=np.zeros(devices, dtype=np.bool_),
        node_names=tuple(f"node {index}" for index in range(nodes)),
        class_names=tuple(f"class {index}" for index in range(devices)),
    )


@pytest.mark.parametrize("check", [check_can_exist, best_contiguous])
def test_devices_may_be_filled_to_the_last_byte(check: Callable[[PlacementProblem], object]) -> None:
    for seed in random_seeds(20):
        check(filled(seed))


@pytest.mark.parametrize("check", [check_can_exist, best_contiguous])
def test_a_byte_too_few_is_said(check: Callable[[PlacementProblem], object]) -> None:
    for seed in random_seeds(20):
        with pytest.raises(Infeasible) as caught:
            check(filled(seed, lacking=1))
        assert float(caught.value.metadata.get("lacking_bytes", 1)) >= 1.0


def test_nothing_that_exists_is_refused() -> None:
    refused = 0
    for seed in random_seeds(150):
        problem = random_placement(seed)
        try:
            check_can_exist(problem)
        except Infeasible:
            refused += 1
            assert next(free_placements(problem), None) is None, seed
    assert refused


def test_a_node_that_just_fits_alone_is_not_refused() -> None:
    problem = replace(filled(0), node_bytes=np.array([5.0, 0.0, 0.0, 0.0, 0.0]), class_bytes=np.array([1.0, 5.0, 0.0]))
    check_can_exist(problem)
    with pytest.raises(Infeasible, match=r"holds 5 bytes, .* has 4 bytes; give it 1 byte more"):
        check_can_exist(replace(problem, class_bytes=np.array([1.0, 4.0, 0.0])))
