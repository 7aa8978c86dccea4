"""An operator that only waits, for stages whose length must not depend on how many cores the machine has."""

from __future__ import annotations

import time

import torch

MODULE = "benchmarks.waiting_operator"
NAME = "planner_benchmarks::wait"


@torch.library.custom_op(NAME, mutates_args=())
def wait(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


@wait.register_fake
def _(x: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.empty_like(x)
