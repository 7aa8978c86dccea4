"""Trainings drawn at random: those of one process, and on any other plan as if nothing had been between.

benchmarks/training_matrix.py runs many of them on daemons.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.client.batches import Batch
from planner.client.training import Trainer
from tests.builders.training_cases import NUM_STEPS, DrawnTraining, drawn_training
from tests.random_examples import random_seeds
from tests.stage_daemon.runtime.training.trainers import SavedHere, trainer_on
from tests.stage_daemon.runtime.training.unsplit import cluster_of, difference, on_threads, unsplit

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
# After a checkpoint.
NUM_LATER = 10
OPTIMIZERS = ("sgd:lr=0.01,momentum=0.9", "adamw:lr=0.001", "adam:lr=0.001,amsgrad=true")


@pytest.mark.parametrize("seed", random_seeds(2))
def test_five_steps_are_those_of_one_process(seed: int) -> None:
    drawn = drawn_training(seed)
    assert difference(on_threads(drawn), unsplit(drawn)) <= (1e-12 if drawn.is_double else 1e-5)


@pytest.mark.parametrize("seed", random_seeds(1))
def test_what_is_saved_on_one_plan_goes_on_on_another(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    # As many microbatches as the trainer of these tests plans for, and so many steps as are compared.
    first = replace(drawn_training(seed), microbatches=4, num_of_step=(3, 5) * NUM_STEPS + (4, 6), is_double=True)
    other = drawn_training(chosen.randrange(10_000))
    second = replace(
        other,
        family=first.family,
        microbatches=4,
        is_double=True,
        is_partly_frozen=first.is_partly_frozen,
        draws_random=first.draws_random,
    )
    optimizer, saved = chosen.choice(OPTIMIZERS), SavedHere()
    before, _ = trainer_on(cluster_of(first), optimizer, monkeypatch, saved=saved, clip_norm=first.clip_norm)
    steps(before, first, range(2))
    before.save("run").result()
    expected = steps(before, first, range(2, 2 + NUM_LATER))
    after, streams = trainer_on(
        cluster_of(second), optimizer, monkeypatch, saved=saved, seed="another", clip_norm=first.clip_norm
    )
    after.load("run")
    for device_id, device in streams.devices.items():
        own_states = device._states.select((name for name, _ in device._states.read()), device.interpreter)
        assert streams.blobs[device_id].read_bytes <= 1.05 * sum(tensor.nbytes for tensor in own_states.values())
    losses = steps(after, first, range(2, 2 + NUM_LATER))
    assert [pytest.approx(losses, rel=1e-9) for losses in expected] == losses


def steps(trainer: Trainer, drawn: DrawnTraining, numbers: Sequence[int]) -> list[tuple[float, ...]]:
    batches = drawn.steps()
    return [
        trainer.step_microbatches([Batch(args=one.args, kwargs=one.kwargs) for one in batches[number]]).losses
        for number in numbers
    ]
