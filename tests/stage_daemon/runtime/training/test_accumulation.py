"""Weights after a training whose linear layers add gradients up within their products, beside one without."""

from __future__ import annotations

import pytest
import torch

from planner.partition.objective import PipelineSchedule
from stage_daemon.loader import accumulation
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.records import TrainingLane
from stage_daemon.runtime.training.stages import accumulating_stages
from tests.stage_daemon.loader.test_accumulation import Layers, rebuilt
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


def test_a_compiled_stage_runs_as_it_was_compiled() -> None:
    program = rebuilt(Layers().train(), torch.randn(16, 24))
    compiled, plain = (
        Stage(index=index, device_id="", run=run, module=program, input_ids=(0,), output_ids=(1,))
        for index, run in enumerate((lambda *inputs: program(*inputs), program))
    )
    stages = accumulating_stages({0: compiled, 1: plain}, TrainingLane(actions=(), edges={}, microbatches=1))
    assert stages[0] is compiled
    assert stages[1].run is stages[1].module is not program


# A backward pass in two walks to a layer's inputs and to its weights one after the other. The first stage gives no
# gradient back, and so has but one to do.
@pytest.mark.parametrize("schedule", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
def test_each_gradient_is_added_once(monkeypatch: pytest.MonkeyPatch, schedule: PipelineSchedule) -> None:
    without = _trained(monkeypatch, schedule)
    added = set()
    add = accumulation._add
    monkeypatch.setattr(
        accumulation, "_add", lambda weight, *given: added.add(weight.data_ptr()) or add(weight, *given)
    )
    monkeypatch.setattr(accumulation, "LEAST_BYTES", 1)
    # Products as small as these have other bits.
    monkeypatch.setattr(accumulation, "_try", lambda *_: True)
    within = _trained(monkeypatch, schedule)
    num_layers = sum(tensor.dim() == 2 for tensor in without.values())
    if schedule is PipelineSchedule.ONE_F_ONE_B:
        assert len(added) == num_layers
    else:
        assert 0 < len(added) < num_layers
    torch.testing.assert_close(within, without)
