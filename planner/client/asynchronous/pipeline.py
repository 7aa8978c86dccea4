"""A deployed model as an awaited function."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from planner.client.asynchronous.methods import DeploymentResource
from planner.client.asynchronous.threads import FromLoop, Threads
from planner.client.autocast import AutocastWarning
from planner.client.outputs import ChosenOutput
from planner.client.pipeline import Pipeline
from planner.errors import MicrobatchFailed

_Item = TypeVar("_Item")


class AsyncPipeline(DeploymentResource[Pipeline]):
    """Made by AsyncPlannerClient.pipeline. Tasks may share it: each run has a session to itself.

    Batches may come from an asynchronous iterable, which is asked on the event loop, or from another one, which is
    asked in a thread, so that one that reads files holds nothing up.
    """

    def __init__(self, synchronous: Pipeline, threads: Threads) -> None:
        super().__init__(synchronous, threads)
        # That of the task's thread, which those that calls are made in do not have.
        self._autocast = AutocastWarning("a pipeline")

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One batch."""
        self._autocast.look(stacklevel=2)
        return await self._threads.call(partial(self._synchronous, *args, **kwargs))

    @property
    def chosen(self) -> tuple[ChosenOutput, ...]:
        """Empty where results are the module's own."""
        return self._synchronous.chosen

    @property
    def default_window(self) -> int:
        """As many batches in flight as keep all stages busy."""
        return self._synchronous.default_window

    def run(
        self, batches: Iterable[Any] | AsyncIterable[Any], window: int | None = None, *, raise_failures: bool = True
    ) -> AsyncGenerator[Any]:
        """Each batch's output, in order, with at most `window` batches in flight; None: `default_window`, and up
        to 64 small ones where as many are answered within 4 ms.

        A batch is a Batch, a tuple of arguments, a dict of keyword arguments, or the only argument itself. A batch that
        fails in a stage raises MicrobatchFailed; with `raise_failures` off the error stands in its output's place
        and the others go on.
        """
        self._autocast.look(stacklevel=2)
        run = partial(self._synchronous.run, _for_thread(batches), window, raise_failures=raise_failures)
        return self._threads.iterate(run)

    def run_leaves(
        self,
        microbatches: Iterable[Sequence[object]] | AsyncIterable[Sequence[object]],
        window: int | None = None,
    ) -> AsyncGenerator[list[object] | MicrobatchFailed]:
        """As run, on the graph's non-constant inputs, and outputs or what is chosen of them, in order.

        Failures are given, never raised.
        """
        return self._threads.iterate(partial(self._synchronous.run_leaves, _for_thread(microbatches), window))


def _for_thread(batches: Iterable[_Item] | AsyncIterable[_Item]) -> Iterable[_Item]:
    return FromLoop(batches) if isinstance(batches, AsyncIterable) else batches
