"""A profile on this daemon: processes one after the other until every distinct node has a time or a reason."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import structlog

from access.files import TlsFiles
from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.control.profile_process import ProfileProcess, ending
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.errors import DaemonError, InvalidRequest, WorkerDied
from stage_daemon.worker.failures import error_from_failure
from stage_daemon.worker.frames import LOST_EXIT_CODE, Frame, FrameKind
from stage_daemon.worker.shared_cores import room_for_neighbours

# A device on which more nodes than these crash is not one to measure on.
MAX_DEATHS = 32
SHA256_BYTES = 32

log = structlog.get_logger(__name__)


class Profiling:
    """`stop` ends it from outside: whoever reads it then gets the error given."""

    def __init__(
        self,
        request: stage_daemon_pb2.ProfileRequest,
        torch_device: str,
        tls: TlsFiles | None = None,
        operators: tuple[CustomOperator, ...] = (),
    ) -> None:
        if len(request.graph_sha256) != SHA256_BYTES:
            raise InvalidRequest(f"graph_sha256 has {len(request.graph_sha256)} bytes, needs 32")
        self._request = request.SerializeToString()
        self._num_neighbours, self._num_threads = request.num_neighbours, request.num_threads
        self._torch_device = torch_device
        self._is_cpu = torch_device == "cpu"
        self._tls = tls
        self._operators = operators
        self._processes: list[ProfileProcess] = []
        self._stopped: DaemonError | None = None
        self._nodes: tuple[stage_daemon_pb2.DistinctNode, ...] = ()
        self._num_done = 0
        self._is_done = False
        self._exit_code = 0

    def stop(self, error: DaemonError) -> None:
        self._stopped = self._stopped or error
        for process in self._processes:
            process.kill()

    async def run(self) -> AsyncGenerator[stage_daemon_pb2.ProfileResponse, None]:
        """Raises what keeps the graph from being profiled at all."""
        async with self._neighbours() as num_neighbours, aclosing(self._run()) as responses:
            async for response in responses:
                response.num_neighbours = num_neighbours
                yield response

    @asynccontextmanager
    async def _neighbours(self) -> AsyncIterator[int]:
        """How many run, all of them busy by now."""
        count = min(self._num_neighbours, room_for_neighbours(self._num_threads)) if self._is_cpu else 0
        try:
            processes = [await self._start(FrameKind.KEEP_BUSY) for _ in range(count)]
            busy = [await process.next_frame() for process in processes]
            yield sum(frame is not None and frame.kind is FrameKind.BUSY for frame in busy)
        finally:
            while self._processes:
                await self._processes.pop().end()

    async def _run(self) -> AsyncGenerator[stage_daemon_pb2.ProfileResponse, None]:
        num_deaths = 0
        while True:
            # Closed at once where the reader leaves: its process must not outlive the call.
            async with aclosing(self._run_one()) as responses:
                async for response in responses:
                    yield response
            if self._is_done or self._num_done == len(self._nodes):
                return
            num_deaths += 1
            log.warning("a node ended the process that ran it", ending=self._ending(), done=self._num_done)
            if num_deaths > MAX_DEATHS:
                raise WorkerDied(f"{num_deaths} nodes ended the process that ran them; the last: {self._ending()}")
            if self._exit_code != LOST_EXIT_CODE:
                yield self._lost_node()

    async def _run_one(self) -> AsyncGenerator[stage_daemon_pb2.ProfileResponse, None]:
        """One process, until it has ended."""
        process = await self._start(FrameKind.PROFILE)
        try:
            while self._stopped is None and (frame := await process.next_frame()) is not None:
                if frame.kind is FrameKind.FAILED:
                    raise error_from_failure(planner_pb2.Failure.FromString(frame.body))
                if (response := self._take(frame)) is not None:
                    yield response
                if self._is_done:
                    return
        finally:
            self._processes.remove(process)
            self._exit_code = await process.end()
        self._check_stopped()
        if not self._nodes:
            raise WorkerDied(f"the graph could not be read: {self._ending()}")

    async def _start(self, kind: FrameKind) -> ProfileProcess:
        self._check_stopped()
        process = await ProfileProcess.start(
            self._torch_device, self._request, self._num_done, self._tls, self._operators, kind=kind
        )
        self._processes.append(process)
        return process

    def _take(self, frame: Frame) -> stage_daemon_pb2.ProfileResponse | None:
        if frame.kind is FrameKind.PROFILED:
            self._is_done = True
            return None
        response = stage_daemon_pb2.ProfileResponse.FromString(frame.body)
        if frame.kind is FrameKind.PROFILE_NODES:
            self._nodes = tuple(response.measured)
            return None
        self._num_done = response.num_done
        return response

    def _lost_node(self) -> stage_daemon_pb2.ProfileResponse:
        """The node that the process died of."""
        lost = stage_daemon_pb2.DistinctNode()
        lost.CopyFrom(self._nodes[self._num_done])
        lost.unmeasured_reason = self._ending()
        self._num_done += 1
        return stage_daemon_pb2.ProfileResponse(num_done=self._num_done, num_distinct=len(self._nodes), measured=[lost])

    def _ending(self) -> str:
        return ending(self._exit_code)

    def _check_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped
