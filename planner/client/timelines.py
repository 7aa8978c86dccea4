"""What a deployment's daemons measured of it: asked for, laid on one clock, beside what the plan predicts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import grpc

from access.files import WatchedCredentials
from access.host import clock_identity
from access.tickets import TICKET_KEY
from planner.client.clocks import SAME_CLOCK, Exchange, Offset, offset_of
from planner.client.connection import open_channel
from planner.client.interruption import one_answer
from planner.client.records import Deployment, StoredPlan
from planner.client.status import error_from_rpc
from planner.schedule.measured import ONCE, ActivityTimes, Measured, MeasuredThread, Span, Summary, summarize
from planner.schedule.measured_trace import timeline_trace
from planner.schedule.prediction import idle_share, predict
from planner.schedule.timeline import Activity, Simulation
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

# A full ring of a thread takes some 200 KiB.
MESSAGE_BYTES = 64 << 20
# The narrowest of several questions tells a clock: one that waited in a queue tells little.
NUM_EXCHANGES = 8
MAX_ASKED_AT_ONCE = 16

_KIND = stage_daemon_pb2.ActionKind
_ACTIVITIES = {
    _KIND.ACTION_KIND_TAKE_INPUT: Activity.TAKE_INPUT,
    _KIND.ACTION_KIND_RECEIVE: Activity.RECEIVE,
    _KIND.ACTION_KIND_FORWARD: Activity.FORWARD,
    _KIND.ACTION_KIND_SEND: Activity.SEND,
    _KIND.ACTION_KIND_GIVE_OUTPUT: Activity.GIVE_OUTPUT,
    _KIND.ACTION_KIND_RECEIVE_GRADIENT: Activity.RECEIVE_GRADIENT,
    _KIND.ACTION_KIND_BACKWARD: Activity.BACKWARD,
    _KIND.ACTION_KIND_BACKWARD_INPUT: Activity.BACKWARD_INPUT,
    _KIND.ACTION_KIND_BACKWARD_WEIGHT: Activity.BACKWARD_WEIGHT,
    _KIND.ACTION_KIND_SEND_GRADIENT: Activity.SEND_GRADIENT,
    _KIND.ACTION_KIND_REDUCE_GRADIENTS: Activity.REDUCE,
    _KIND.ACTION_KIND_REDUCE_TIED: Activity.REDUCE,
    _KIND.ACTION_KIND_AGREE: Activity.AGREE,
    _KIND.ACTION_KIND_OPTIMIZER_STEP: Activity.OPTIMIZER_STEP,
}
_ONCE_PER_STEP = frozenset({Activity.REDUCE, Activity.AGREE, Activity.OPTIMIZER_STEP})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentTimeline:
    """`predicted` is of a training step, or of a stream of microbatches; `measured` is on this process's clock."""

    deployment_id: str
    generation: int
    plan: StoredPlan
    measured: Measured
    predicted: Simulation

    @property
    def predicted_bubble_share(self) -> float:
        """As `Summary.bubble_share` measures it."""
        return idle_share(self.plan, self.predicted)

    def summary(self, since_seconds: float | None = None) -> Summary:
        """From that moment of `time.monotonic` until the reading; without it, of all that the daemons still know."""
        return summarize(self.measured, since_seconds)

    def trace(self) -> dict[str, Any]:
        """For ui.perfetto.dev, as a JSON document: measured and predicted."""
        return timeline_trace(self.measured, self.summary(), self.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    response: stage_daemon_pb2.GetTimelineResponse
    exchange: Exchange


class TimelineReader:
    """Asks the daemons of one generation of a deployment. One thread at a time."""

    def __init__(
        self,
        deployment: Deployment,
        plan: StoredPlan,
        *,
        ticket: Callable[[], str],
        timeout_seconds: float,
        credentials: WatchedCredentials | None = None,
    ) -> None:
        self._deployment = deployment
        self._plan = plan
        self._predicted = predict(plan)
        self._ticket = ticket
        self._timeout_seconds = timeout_seconds
        self._clock = clock_identity()
        # By clock, the latest.
        self._exchanges: dict[str, deque[Exchange]] = {}
        addresses = {placement.device_id: placement.daemon_address for placement in deployment.stages}
        self._channels = {
            device_id: open_channel(address, message_bytes=MESSAGE_BYTES, credentials=credentials)
            for device_id, address in addresses.items()
        }

    def read(self) -> DeploymentTimeline:
        """Raises what ended the deployment, where it has ended."""
        device_ids = tuple(self._channels)
        with ThreadPoolExecutor(min(len(device_ids), MAX_ASKED_AT_ONCE)) as pool:
            # Each in a context of its own, which holds what this one's does: an interruption ends them all.
            futures = [pool.submit(copy_context().run, self._ask, device_id) for device_id in device_ids]
            answers = {device_id: one.result() for device_id, one in zip(device_ids, futures, strict=True)}
        offsets = self._offsets(answers)
        return DeploymentTimeline(
            deployment_id=self._deployment.id,
            generation=self._deployment.generation,
            plan=self._plan,
            measured=Measured(
                read_at_seconds=time.monotonic(),
                error_seconds=max(offset.error_seconds for offset in offsets.values()),
                threads=tuple(
                    thread_from_proto(thread, device_id, answer.response.answered_seconds, offsets[device_id])
                    for device_id, answer in answers.items()
                    for thread in answer.response.threads
                ),
            ),
            predicted=self._predicted,
        )

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _ask(self, device_id: str, *, only_totals: bool = False) -> _Answer:
        request = stage_daemon_pb2.GetTimelineRequest(deployment_id=self._deployment.id, only_totals=only_totals)
        stub, ticket = stage_daemon_pb2_grpc.StageDaemonServiceStub(self._channels[device_id]), self._ticket()
        asked_seconds = time.monotonic()
        try:
            metadata = ((TICKET_KEY, ticket),) if ticket else ()
            response = one_answer(stub.GetTimeline, request, timeout=self._timeout_seconds, metadata=metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error, unreachable=f"the daemon of {device_id} does not answer") from None
        exchange = Exchange(
            asked_seconds=asked_seconds,
            received_seconds=response.received_seconds,
            answered_seconds=response.answered_seconds,
            returned_seconds=time.monotonic(),
        )
        return _Answer(response=response, exchange=exchange)

    def _offsets(self, answers: Mapping[str, _Answer]) -> dict[str, Offset]:
        """By device. Daemons of one clock tell of it together."""
        offsets = {}
        for device_id, answer in answers.items():
            clock = answer.response.clock
            if clock and clock == self._clock:
                offsets[device_id] = SAME_CLOCK
                continue
            exchanges = self._exchanges.setdefault(clock or device_id, deque(maxlen=NUM_EXCHANGES))
            exchanges.append(answer.exchange)
            while len(exchanges) < NUM_EXCHANGES:
                exchanges.append(self._ask(device_id, only_totals=True).exchange)
            offsets[device_id] = offset_of(exchanges)
        return offsets


def thread_from_proto(
    message: stage_daemon_pb2.ThreadTimeline, device_id: str, answered_seconds: float, offset: Offset
) -> MeasuredThread:
    """With all moments on the clock here."""
    under_way = None
    if message.HasField("under_way"):
        runs = (-1 - entry for entry in reversed(message.entries) if entry < 0)
        since_seconds = message.under_way_since_seconds - offset.seconds
        kind = _kind(message.under_way)
        under_way = _span(kind, next(runs, 0), since_seconds, answered_seconds - offset.seconds)
    return MeasuredThread(
        device_id=device_id,
        is_training=message.is_training,
        spans=tuple(_spans(message.actions, message.entries, message.end_seconds, offset)),
        times=tuple(
            ActivityTimes(
                activity=_ACTIVITIES[times.kind],
                stage=times.stage,
                count=times.count,
                seconds=times.seconds,
                p50_seconds=times.p50_seconds,
                p95_seconds=times.p95_seconds,
                p99_seconds=times.p99_seconds,
            )
            for times in message.times
        ),
        under_way=under_way,
        hands_on=not any(_ACTIVITIES[timed.action.kind].is_compute for timed in message.actions),
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all spans of one action have; `microbatch` is None where it is the run."""

    activity: Activity
    stage: int
    microbatch: int | None


def _kind(timed: stage_daemon_pb2.TimedAction) -> _Kind:
    activity = _ACTIVITIES[timed.action.kind]
    once = ONCE if activity in _ONCE_PER_STEP else None
    return _Kind(activity, timed.stage, timed.action.microbatch if timed.action.HasField("microbatch") else once)


def _spans(
    actions: Sequence[stage_daemon_pb2.TimedAction], entries: Sequence[int], ends: Sequence[float], offset: Offset
) -> Iterator[Span]:
    kinds = [_kind(timed) for timed in actions]
    run, start_seconds = 0, 0.0
    for entry, end in zip(entries, ends, strict=True):
        end_seconds = end - offset.seconds
        if entry < 0:
            run = -1 - entry
        else:
            yield _span(kinds[entry], run, start_seconds, end_seconds)
        start_seconds = end_seconds


def _span(kind: _Kind, run: int, start_seconds: float, end_seconds: float) -> Span:
    microbatch = run if kind.microbatch is None else kind.microbatch
    return Span(kind.activity, kind.stage, run, microbatch, start_seconds, end_seconds)
