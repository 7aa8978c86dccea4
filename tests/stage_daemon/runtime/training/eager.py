"""What the pipeline has to equal: one process that runs the unsplit module, and adds gradients in microbatch order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


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
