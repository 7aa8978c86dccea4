"""An operator that only waits, for benchmarks of many stages on few cores: daemons load it as a custom operator.

Its backward pass waits twice as long.
"""

from __future__ import annotations

import time
from typing import Any

import torch

MODULE, NAP = "benchmarks.naps", "planner_benchmarks::nap"


@torch.library.custom_op(NAP, mutates_args=())
def nap(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x + 1


@nap.register_fake
def _(x: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
    ctx.seconds = inputs[1]


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    time.sleep(2 * ctx.seconds)
    return gradient.clone(), None


torch.library.register_autograd(NAP, _backward, setup_context=_remember)
