"""A deployment that trains, awaited."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from planner.client.asynchronous.methods import DeploymentResource, awaited
from planner.client.training.trainer import BatchResult, Trainer
from planner.graph.checkpoint import CheckpointRecord


class AsyncTrainer(DeploymentResource[Trainer]):
    """Made by AsyncPlannerClient.train. One task at a time; Trainer says what its parameters mean.

    After a call that was cancelled nothing more can be asked of it: close it, and go on from a checkpoint.
    """

    step = awaited(Trainer.step)
    step_microbatches = awaited(Trainer.step_microbatches)
    gradient_norm = awaited(Trainer.gradient_norm)
    apply = awaited(Trainer.apply)
    discard = awaited(Trainer.discard)
    evaluate = awaited(Trainer.evaluate)
    evaluate_batch = awaited(Trainer.evaluate_batch)
    state_dict = awaited(Trainer.state_dict)
    load_state_dict = awaited(Trainer.load_state_dict)
    load = awaited(Trainer.load)

    async def accumulate(self, *args: Any, share: float = 1.0, **kwargs: Any) -> BatchResult:
        """As Trainer.accumulate."""
        return await self._threads.call(partial(self._synchronous.accumulate, *args, share=share, **kwargs))

    async def save(self, run: str | None = None, *, keep: int | None = None) -> asyncio.Future[CheckpointRecord]:
        """As Trainer.save; what it gives is awaited for the checkpoint, which is written while steps go on."""
        written = await self._threads.call(partial(self._synchronous.save, run, keep=keep))
        return asyncio.wrap_future(written)

    @property
    def microbatches(self) -> int:
        """That `step` cuts a batch into."""
        return self._synchronous.microbatches

    @property
    def num_steps(self) -> int:
        """Asked for so far, by those too from whose checkpoint this one goes on."""
        return self._synchronous.num_steps

    @property
    def learning_rate(self) -> float:
        """Of the next step, for parameters that are in no group."""
        return self._synchronous.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        """From now on, whatever the schedule says; groups with a rate of their own keep it."""
        self._synchronous.learning_rate = rate
