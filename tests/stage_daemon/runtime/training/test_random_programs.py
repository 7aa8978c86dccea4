"""Programs drawn at random, cut into up to nine stages, train as one process trains them."""

from __future__ import annotations

import random

import pytest
import torch

from planner.partition.objective import Activations, PipelineSchedule
from tests.builders.random_programs import ROWS, WIDTH, RandomProgram
from tests.random_examples import random_seeds
from tests.stage_daemon.runtime.training.eager import num_stages_trained_alike

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
ORDERS = (
    (PipelineSchedule.ONE_F_ONE_B, Activations.KEPT),
    (PipelineSchedule.GPIPE, Activations.RECOMPUTED),
    (PipelineSchedule.ZERO_BUBBLE, Activations.KEPT),
)


@pytest.mark.parametrize("seed", random_seeds(25))
def test_two_steps_are_those_of_one_process(seed: int) -> None:
    chosen = random.Random(seed)
    module = RandomProgram(seed).train()
    batches = [(torch.randn(ROWS, WIDTH, dtype=torch.float64),) for _ in range(3)]
    max_stages = chosen.choice([2, 3, 5, 9])
    schedule, activations = chosen.choice(ORDERS)

    num_stages_trained_alike(
        module,
        batches,
        max_stages=max_stages,
        rate=0.01,
        tolerance=1e-9,
        schedule=schedule,
        activations=activations,
    )
