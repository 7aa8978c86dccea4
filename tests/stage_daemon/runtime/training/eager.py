"""What the pipeline has to equal: one process that runs the unsplit module, and adds gradients in microbatch order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tests.stage_daemon.runtime.training.devices import Cluster


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


def assert_trained_alike(
    cluster: Cluster, module: nn.Module, batches: Sequence[Sequence[Any]], *, rate: float, tolerance: float
) -> None:
    """Two steps of SGD on these microbatches: losses, gradient norms and weights. Takes the module over."""
    eager = Eager(module, torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9))
    for _ in range(2):
        outcome = cluster.step(batches, rate=rate)
        losses, norm = eager.step(batches, rate=rate)
        assert outcome.applied, outcome.failure
        assert [float(output[0]) for output in outcome.outputs.values()] == pytest.approx(losses, rel=tolerance)
        assert outcome.gradient_norm == pytest.approx(norm, rel=tolerance)
    for name, state in cluster.states().items():
        torch.testing.assert_close(state, module.get_parameter(name).detach(), rtol=tolerance, atol=tolerance)
