"""A deployed model as a function: batches in, outputs in the module's own structure out, in order, many in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from access.files import WatchedCredentials
from planner.client.connection import open_channel
from planner.client.messages import failure_from_proto
from planner.client.microbatches import InputEncoder, decode, kind_of_batch
from planner.client.pytree import flatten_inputs, unflatten_outputs
from planner.client.session import Arrival, Session
from planner.client.status import place_of
from planner.client.tensors import TensorKind
from planner.errors import DeploymentFailed, InvalidArgument, MicrobatchFailed, PlannerError, ResourceExhausted
from planner.graph.ir import Graph
from protos.v1 import planner_pb2

DATA_MESSAGE_BYTES = 1 << 30
# One that a stage computes with and one on the way to it; two more are with the client.
_MICROBATCHES_PER_STAGE = 2
_MICROBATCHES_OF_CLIENT = 2
# A few more cost little and even out microbatches of unequal length.
_MIN_WINDOW = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one call of the module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Pipeline:
    """Made by PlannerClient.pipeline. Threads may share it: each run is a session of its own.

    Results are torch tensors where the batch's are, arrays where it holds numpy arrays.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        deployment_id: str,
        num_stages: int,
        input_address: str,
        output_address: str,
        deadline_seconds: float,
        why_failed: Callable[[], DeploymentFailed | None],
        credentials: WatchedCredentials | None = None,
        ticket: Callable[[], str] = str,
    ) -> None:
        self.graph = graph
        self.deployment_id = deployment_id
        # As many as keep all stages busy.
        self.default_window = max(_MIN_WINDOW, _MICROBATCHES_PER_STAGE * num_stages + _MICROBATCHES_OF_CLIENT)
        self._encoder = InputEncoder(graph)
        self._inputs = open_channel(input_address, message_bytes=DATA_MESSAGE_BYTES, credentials=credentials)
        self._outputs = open_channel(output_address, message_bytes=DATA_MESSAGE_BYTES, credentials=credentials)
        self._unreachable = f"a daemon of {deployment_id} does not answer ({input_address} in, {output_address} out)"
        self._deadline_seconds = deadline_seconds
        self._why_failed = why_failed
        self._ticket = ticket

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One batch."""
        [output] = self.run([Batch(args, kwargs)])
        return output

    def run(self, batches: Iterable[Any], window: int | None = None, *, raise_failures: bool = True) -> Iterator[Any]:
        """Each batch's output, in order, with at most `window` batches in flight; None: `default_window`.

        A batch is a Batch, a tuple of arguments, a dict of keyword arguments, or the only argument itself. A batch that
        fails in a stage raises MicrobatchFailed; with `raise_failures` off the error stands in its output's place
        and the others go on.
        """
        flat = (self._flatten(batch) for batch in batches)
        for result in self.run_leaves(flat, window):
            if not isinstance(result, MicrobatchFailed):
                yield unflatten_outputs(self.graph, result)
            elif raise_failures:
                raise result
            else:
                yield result

    def run_leaves(
        self, microbatches: Iterable[Sequence[object]], window: int | None = None
    ) -> Iterator[list[object] | MicrobatchFailed]:
        """As run, on the graph's non-constant inputs and outputs in order; failures are given, never raised."""
        window = self.default_window if window is None else window
        if window < 1:
            raise InvalidArgument(f"window is {window}, needs at least 1")
        try:
            with self._session() as session:
                yield from self._stream(session, microbatches, window)
        except (InvalidArgument, ResourceExhausted, MicrobatchFailed):
            raise
        except PlannerError as error:
            raise self._why_failed() or error from None

    def close(self) -> None:
        self._inputs.close()
        self._outputs.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stream(
        self, session: Session, microbatches: Iterable[Sequence[object]], window: int
    ) -> Iterator[list[object] | MicrobatchFailed]:
        kinds: deque[TensorKind] = deque()
        for leaves in microbatches:
            session.send(self._encoder.encode(leaves))
            kinds.append(kind_of_batch(leaves))
            while session.num_in_flight and (session.num_in_flight >= window or session.has_arrived()):
                yield _result(session.take(), kinds.popleft())
        while session.num_in_flight:
            yield _result(session.take(), kinds.popleft())

    def _session(self) -> Session:
        return Session(
            deployment_id=self.deployment_id,
            inputs=self._inputs,
            outputs=self._outputs,
            unreachable=self._unreachable,
            deadline_seconds=self._deadline_seconds,
            ticket=self._ticket(),
        )

    def _flatten(self, batch: Any) -> list[Any]:
        if isinstance(batch, Batch):
            return flatten_inputs(self.graph, batch.args, dict(batch.kwargs))
        if isinstance(batch, dict):
            return flatten_inputs(self.graph, (), batch)
        return flatten_inputs(self.graph, batch if isinstance(batch, tuple) else (batch,), {})


def _result(arrival: Arrival, kind: TensorKind) -> list[object] | MicrobatchFailed:
    response = arrival.response
    if response.WhichOneof("content") == "failure":
        return _failed(response.sequence, response.failure)
    return decode(response.result.values, kind, arrival.payload)


def _failed(sequence: int, message: planner_pb2.Failure) -> MicrobatchFailed:
    failure = failure_from_proto(message)
    error = MicrobatchFailed(f"microbatch {sequence} failed{place_of(failure)}: {failure.message}")
    stage = {} if failure.stage is None else {"stage": str(failure.stage)}
    error.metadata = {
        **failure.metadata,
        "reason": failure.reason,
        **stage,
        "device_id": failure.device_id,
        "sequence": str(sequence),
    }
    return error
