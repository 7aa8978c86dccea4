"""Programs drawn at random, cut into up to nine stages, train as one process trains them."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from planner.client.export import export
from planner.partition.objective import Activations, PipelineSchedule
from tests.builders.cuts import even_cuts
from tests.builders.random_programs import ROWS, WIDTH, RandomProgram
from tests.random_examples import random_seeds
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.eager import assert_trained_alike

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
    exported = export(copy.deepcopy(module), batches[0], compare=False)
    stage_of_node = even_cuts(exported.graph, max_stages=chosen.choice([2, 3, 5, 9]))
    schedule, activations = chosen.choice(ORDERS)
    cluster = train_on_threads(
        copy.deepcopy(module),
        (),
        exported=exported,
        stage_of_node=lambda _: stage_of_node,
        devices=range(stage_of_node[-1] + 1),
        microbatches=3,
        schedule=schedule,
        activations=activations,
    )
    assert_trained_alike(cluster, module, batches, rate=0.01, tolerance=1e-9)
