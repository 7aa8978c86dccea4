"""Weights after a training whose linear layers add gradients up within their products, beside one without."""

from __future__ import annotations

import pytest
import torch

from planner.partition.objective import PipelineSchedule
from stage_daemon.loader import accumulation
from tests.stage_daemon.runtime.training.modules import rows
from tests.stage_daemon.runtime.training.test_silent_errors import cluster_of, dropping
from tests.stage_daemon.runtime.training.trainers import trainer_on


def _trained(patch: pytest.MonkeyPatch, schedule: PipelineSchedule) -> dict[str, torch.Tensor]:
    trainer = trainer_on(cluster_of(dropping, devices=(0, 1), schedule=schedule), "sgd:lr=0.1,momentum=0.9", patch)[0]
    for number in range(3):
        trainer.step(*rows(8, number))
    weights: dict[str, torch.Tensor] = trainer.state_dict()
    trainer.close()
    return weights


# A backward pass in two walks to a layer's inputs and to its weights one after the other.
@pytest.mark.parametrize("schedule", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
def test_each_gradient_is_added_once(monkeypatch: pytest.MonkeyPatch, schedule: PipelineSchedule) -> None:
    without = _trained(monkeypatch, schedule)
    added = []
    add = accumulation._add
    monkeypatch.setattr(accumulation, "_add", lambda *given: added.append(given) or add(*given))
    monkeypatch.setattr(accumulation, "LEAST_BYTES", 1)
    # Products as small as these have other bits.
    monkeypatch.setattr(accumulation, "_try", lambda *_: True)
    within = _trained(monkeypatch, schedule)
    assert bool(added) == (schedule is PipelineSchedule.ONE_F_ONE_B)
    torch.testing.assert_close(within, without)
