"""What the pipeline has to equal: one process that runs the unsplit module, and adds gradients in microbatch order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.partition.objective import Activations, PipelineSchedule
from tests.builders.cuts import even_cuts
from tests.stage_daemon.runtime.training.devices import train_on_threads


@dataclass
class Eager:
    """Takes the module over. `loss_of` finds the loss in what it returns."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss_of: Callable[[Any], torch.Tensor] = lambda output: output

    def step(
        self,
        microbatches: Sequence[Sequence[Any]],
        weights: Sequence[float] | None = None,
        *,
        rate: float = 0.1,
        clip_norm: float | None = None,
    ) -> tuple[list[float], float]:
        """The microbatches' losses and the gradients' norm."""
        weights = weights or [1.0 / len(microbatches)] * len(microbatches)
        losses = []
        for microbatch, weight in zip(microbatches, weights, strict=True):
            loss = self.loss_of(self.module(*microbatch))
            losses.append(float(loss.detach()))
            loss.backward(torch.full_like(loss, weight))
        trained = [one for one in self.module.parameters() if one.requires_grad]
        norm = torch.nn.utils.clip_grad_norm_(trained, clip_norm if clip_norm is not None else float("inf"))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses, float(norm)

    def states(self) -> dict[str, torch.Tensor]:
        named = self.module.named_parameters(remove_duplicate=False)
        return {name: one.detach() for name, one in named if one.requires_grad}


def num_stages_trained_alike(
    module: nn.Module,
    batches: Sequence[Sequence[Any]],
    *,
    max_stages: int,
    rate: float,
    tolerance: float,
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B,
    activations: Activations = Activations.KEPT,
) -> int:
    """Two steps of SGD on these microbatches, in as many stages and in one process: losses, gradient norms and weights
    have to agree. Takes the module over."""
    exported = export(copy.deepcopy(module), tuple(batches[0]), compare=False)
    stage_of_node = even_cuts(exported.graph, max_stages=max_stages)
    num_stages = stage_of_node[-1] + 1
    cluster = train_on_threads(
        copy.deepcopy(module),
        (),
        exported=exported,
        stage_of_node=lambda _: stage_of_node,
        devices=range(num_stages),
        microbatches=len(batches),
        schedule=schedule,
        activations=activations,
    )
    eager = Eager(module, torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9))
    for _ in range(2):
        outcome = cluster.step(batches, rate=rate)
        losses, norm = eager.step(batches, rate=rate)
        assert outcome.applied, outcome.failure
        assert [float(output[0]) for output in outcome.outputs.values()] == pytest.approx(losses, rel=tolerance)
        assert outcome.gradient_norm == pytest.approx(norm, rel=tolerance)
    for name, state in cluster.states().items():
        torch.testing.assert_close(state, module.get_parameter(name).detach(), rtol=tolerance, atol=tolerance)
    return num_stages
