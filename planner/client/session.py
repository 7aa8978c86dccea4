"""One stream of microbatches through a deployment: in at the first stage's daemon, out of the last one's.

The stream of outputs is opened first: until the last daemon has said so, nothing may be sent. Two threads read what the
daemons answer; the caller's thread sends and takes.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc

from planner.client.status import error_from_rpc
from planner.errors import PlannerError, Unavailable
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

Datum = stage_daemon_pb2.Datum


class Session:
    """Use it as a context manager. Leaving it ends both streams, whatever is still in flight."""

    def __init__(
        self,
        *,
        deployment_id: str,
        inputs: grpc.Channel,
        outputs: grpc.Channel,
        unreachable: str,
        deadline_seconds: float,
    ) -> None:
        self._inputs = stage_daemon_pb2_grpc.StageDaemonServiceStub(inputs)
        self._outputs = stage_daemon_pb2_grpc.StageDaemonServiceStub(outputs)
        self._unreachable = unreachable
        self._deadline_seconds = deadline_seconds
        self._open = stage_daemon_pb2.OpenSession(deployment_id=deployment_id, session_id=secrets.randbits(63) or 1)
        self._requests: queue.SimpleQueue[stage_daemon_pb2.SendInputsRequest | None] = queue.SimpleQueue()
        self._arrivals: queue.SimpleQueue[stage_daemon_pb2.ReceiveOutputsResponse | PlannerError] = queue.SimpleQueue()
        self._calls: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._num_sent = 0
        self._num_taken = 0

    @property
    def num_in_flight(self) -> int:
        return self._num_sent - self._num_taken

    def __enter__(self) -> Session:
        try:
            request = stage_daemon_pb2.ReceiveOutputsRequest(open=self._open)
            self._read(self._outputs.ReceiveOutputs(request), self._arrivals.put, ends_early=True)
            opened = self._arrival()
            if opened.sequence != 0:
                raise PlannerError(f"the session began with result {opened.sequence}, the opening was due")
            self._requests.put(stage_daemon_pb2.SendInputsRequest(open=self._open))
            requests: Iterator[stage_daemon_pb2.SendInputsRequest] = iter(self._requests.get, None)
            self._read(self._inputs.SendInputs(requests), lambda acknowledgement: None, ends_early=False)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def send(self, values: Sequence[Datum]) -> None:
        """Queues one microbatch; does not wait."""
        self._num_sent += 1
        microbatch = stage_daemon_pb2.Microbatch(sequence=self._num_sent, values=values)
        self._requests.put(stage_daemon_pb2.SendInputsRequest(microbatch=microbatch))

    def has_arrived(self) -> bool:
        """take() would not wait."""
        return not self._arrivals.empty()

    def take(self) -> stage_daemon_pb2.ReceiveOutputsResponse:
        """The next result, in the order of sending. Raises what ended the session, or Unavailable at the deadline."""
        arrival = self._arrival()
        self._num_taken += 1
        if arrival.sequence != self._num_taken:
            raise PlannerError(f"result {arrival.sequence} arrived, {self._num_taken} was due")
        return arrival

    def _arrival(self) -> stage_daemon_pb2.ReceiveOutputsResponse:
        try:
            arrival = self._arrivals.get(timeout=self._deadline_seconds)
        except queue.Empty:
            raise Unavailable(
                f"no result of microbatch {self._num_taken + 1} within {self._deadline_seconds:g} s; "
                "look at the daemons' logs, or allow more by deadline_seconds"
            ) from None
        if isinstance(arrival, PlannerError):
            raise arrival
        return arrival

    def _read(self, call: Any, take: Callable[[Any], None], *, ends_early: bool) -> None:
        """`ends_early`: the stream's normal end, too, means that something went wrong."""
        self._calls.append(call)
        thread = threading.Thread(target=self._pump, args=(call, take, ends_early), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _pump(self, responses: Iterable[Any], take: Callable[[Any], None], ends_early: bool) -> None:
        try:
            for response in responses:
                take(response)
        except grpc.RpcError as error:
            self._arrivals.put(error_from_rpc(error, unreachable=self._unreachable))
        else:
            if ends_early:
                self._arrivals.put(Unavailable("the last stage's daemon ended the stream of results"))

    def _close(self) -> None:
        self._requests.put(None)
        for call in self._calls:
            call.cancel()
        for thread in self._threads:
            thread.join()
