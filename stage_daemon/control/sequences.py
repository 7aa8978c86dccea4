"""Whose microbatches write a deployment's buffers: each finds them as the one before left them, so one client's do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import BuffersInUse, StateLost

# A client that has left is known to have done so within less, on a busy host too.
PATIENCE_SECONDS = 3.0


class Sequences:
    """Of one deployment: the pipeline that wrote its buffers last, and how many of its sessions are open."""

    def __init__(self, deployment_id: str) -> None:
        self._deployment_id = deployment_id
        self._pipeline_id = 0
        self._num_open = 0
        self._all_closed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, opened: stage_daemon_pb2.OpenSession) -> AsyncIterator[None]:
        """Within it no other pipeline's microbatches come. Waits for one that is leaving.

        Raises BuffersInUse for another one that stays, and StateLost where the session is to go on with what earlier
        ones wrote and another one has come in between.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self._num_open and not self._wrote_last(opened):
                    await self._all_closed.wait()
        except TimeoutError:
            raise BuffersInUse(
                f"{self._deployment_id} writes buffers, and another pipeline's batches are writing them: close that "
                "pipeline first, or deploy the plan once for each",
                deployment_id=self._deployment_id,
            ) from None
        if opened.goes_on and not self._wrote_last(opened):
            raise StateLost(
                f"another pipeline has written the buffers of {self._deployment_id} since this one was last at work: "
                "begin anew with the batch that began the sequence",
                deployment_id=self._deployment_id,
            )
        self._pipeline_id = opened.pipeline_id
        self._num_open += 1
        self._all_closed.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._all_closed.set()

    def _wrote_last(self, opened: stage_daemon_pb2.OpenSession) -> bool:
        return opened.pipeline_id != 0 and opened.pipeline_id == self._pipeline_id
