"""An operator that only waits, for benchmarks of many stages on few cores: daemons load it as a custom operator."""

from __future__ import annotations

import time

import torch

MODULE, NAP = "benchmarks.naps", "planner_benchmarks::nap"


@torch.library.custom_op(NAP, mutates_args=())
def nap(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x + 1


@nap.register_fake
def _(x: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.empty_like(x)
