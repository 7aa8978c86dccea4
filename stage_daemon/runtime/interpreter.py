"""Runs a lane of inference: the same actions for one microbatch after the other, until the end comes down its edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from stage_daemon.errors import InvalidMicrobatch, StageFailed
from stage_daemon.randomness import drawing
from stage_daemon.runtime.action_loop import ActionLoop
from stage_daemon.runtime.actions import Action, Kind, Lane
from stage_daemon.runtime.egress import Egress, Result
from stage_daemon.runtime.environment import Environment, dead_after, reading
from stage_daemon.runtime.failures import raise_if_ruinous, stage_failure
from stage_daemon.runtime.ingress import Ingress
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import Timeline, timed
from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.header import BadHeader
from stage_daemon.transport.parcel import Item, MicrobatchFailure, ParcelKind
from stage_daemon.transport.streams import Streams
from stage_daemon.transport.turn import EVERY, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a worker's lanes share. `ingress` is only where the first stage is, `egress` only where the last is.

    `streams` are of a device that computes by itself once it is given a pass.
    """

    deployment_id: str
    stages: Mapping[int, Stage]
    edges: Mapping[int, Edge]
    senders: Mapping[int, SendChannel]
    receivers: Mapping[int, ReceiveChannel]
    metrics: Mapping[int, StageMetrics]
    input_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    ingress: Ingress | None = None
    egress: Egress | None = None
    streams: Streams | None = None


def stage_of(lane: Lane) -> int:
    """The one that it runs; else the one for whose copies it takes inputs or gives outputs."""
    own = (Kind.FORWARD, Kind.TAKE_INPUT, Kind.GIVE_OUTPUT)
    return next(action.index for kind in own for action in lane if action.kind is kind)


def runs_a_stage(lane: Lane) -> bool:
    return any(action.kind is Kind.FORWARD for action in lane)


def channels_in_turn(action: Action) -> tuple[int, ...]:
    """The edges that the message of each next microbatch goes over, again and again."""
    return action.edges_in_turn or (action.index,)


def is_fed(lane: Lane) -> bool:
    """Whether the end can reach it. A lane that nothing feeds runs ahead as far as its receivers let it."""
    return any(action.kind in (Kind.TAKE_INPUT, Kind.RECEIVE) for action in lane)


class LaneInterpreter:
    """One lane on one thread. A microbatch that a stage cannot run fails alone; any other error ends the worker.

    `turn` says which microbatches are the lane's. A stage of it is done with a microbatch when its call returns; see
    `device_lane` for devices where it is not.
    """

    def __init__(self, lane: Lane, surroundings: Surroundings, turn: Turn = EVERY) -> None:
        self._lane = lane
        self._around = surroundings
        self._turn = turn
        # By the index of the action.
        self._channels = {
            action.index: channels_in_turn(action) for action in lane if action.kind in (Kind.RECEIVE, Kind.SEND)
        }
        self._doers = {
            Kind.TAKE_INPUT: self._take_input,
            Kind.RECEIVE: self._receive,
            Kind.FORWARD: self._forward,
            Kind.SEND: self._send,
            Kind.GIVE_OUTPUT: self._give_output,
        }
        reads = reading(surroundings.stages, surroundings.edges, surroundings.output_ids)
        # By action.
        self._dead = dead_after(lane, [0] * len(lane), reads)
        self.stage = stage_of(lane)
        # What only hands on for copies of a stage has not run it.
        self._metrics = surroundings.metrics[self.stage] if runs_a_stage(lane) else StageMetrics()
        self._timed = timed(lane, [action.index if action.kind is Kind.FORWARD else self.stage for action in lane])
        self._num_begun = 0
        # Of each thread.
        self.timelines: tuple[Timeline, ...] = ()
        self._make_loops()

    @property
    def threads(self) -> Mapping[str, Callable[[], None]]:
        """What each runs, by its name. All return once the end has come and gone on, or raise what took an edge down,
        or this lane."""
        return {f"lane-{self.stage}": self._run}

    def _make_loops(self) -> None:
        self._loop = self._loop_over(range(len(self._lane)))

    def _loop_over(self, positions: range) -> ActionLoop:
        """Those actions of the lane, on a timeline of their own. What later ones read stays."""
        lane, dead = self._lane[positions.start : positions.stop], self._dead[positions.start : positions.stop]
        timeline = Timeline(self._timed)
        self.timelines += (timeline,)
        return ActionLoop(lane, self._doers, [0] * len(lane), dead, timeline, positions)

    def _run(self) -> None:
        with torch.no_grad():
            while not self._run_microbatch().ended:
                pass
        self._wait_for_receivers()

    def _wait_for_receivers(self) -> None:
        for action in self._lane:
            if action.kind is Kind.SEND:
                for edge_id in self._channels[action.index]:
                    self._around.senders[edge_id].wait()

    def _run_microbatch(self) -> Environment:
        environment = self._next()
        self._loop.run(environment.microbatch, (environment,))
        return environment

    def _next(self) -> Environment:
        position, self._num_begun = self._num_begun, self._num_begun + 1
        return Environment(microbatch=self._turn.microbatch(position), position=position)

    def _take_input(self, _: int, environment: Environment) -> None:
        assert self._around.ingress is not None
        submission = self._around.ingress.take()
        if submission is None:
            environment.ended = True
            return
        environment.session_id, environment.sequence = submission.session_id, submission.sequence
        try:
            environment.add(self._around.input_ids, submission.read())
        except InvalidMicrobatch as error:
            environment.fail(MicrobatchFailure(reason=error.reason, message=error.message))

    def _receive(self, index: int, environment: Environment) -> None:
        channels = self._channels[index]
        edge_id = channels[environment.position % len(channels)]
        parcel, num_bytes = self._around.receivers[edge_id].receive()
        self._metrics.received_bytes += num_bytes
        environment.admit(parcel, self._around.edges[edge_id])
        if parcel.kind is ParcelKind.END:
            # All that the other copies sent here came before it, so theirs is next.
            for other in channels:
                if other != edge_id:
                    self._around.receivers[other].receive()

    def _forward(self, index: int, environment: Environment) -> None:
        if environment.ended:
            return
        if environment.failure is None:
            self._run_stage(index, environment)
        # Before anything of it leaves: whoever has its answer finds it counted.
        self._around.metrics[index].num_microbatches += 1

    def _run_stage(self, index: int, environment: Environment) -> None:
        stage = self._around.stages[index]
        items = environment.read(stage.input_ids)
        try:
            if stage.draws_random:
                outputs = self._run_drawing(stage, items, environment.microbatch)
            else:
                outputs = stage.run(*items)
        except Exception as error:
            raise_if_ruinous(stage, error)
            environment.fail(stage_failure(stage, error))
            return
        environment.add(stage.output_ids, outputs)

    def _run_drawing(self, stage: Stage, items: Sequence[Item], microbatch: int) -> Sequence[Item]:
        with drawing(self._around.deployment_id, microbatch):
            return stage.run(*items)

    def _send(self, index: int, environment: Environment) -> None:
        channels = self._channels[index]
        if environment.ended:
            for edge_id in channels:
                self._around.senders[edge_id].send(environment.parcel(self._around.edges[edge_id]))
            return
        edge_id = channels[environment.position % len(channels)]
        edge, sender = self._around.edges[edge_id], self._around.senders[edge_id]
        try:
            self._metrics.sent_bytes += sender.send(environment.parcel(edge))
        except BadHeader as error:
            environment.fail(
                MicrobatchFailure(
                    reason=StageFailed.reason,
                    message=f"{edge.source_name} gave what {edge} does not declare: {error}",
                    stage=edge.source_stage,
                    device_id=edge.source_device_id,
                )
            )
            sender.send(environment.parcel(edge))

    def _give_output(self, _: int, environment: Environment) -> None:
        egress = self._around.egress
        assert egress is not None
        if environment.ended:
            egress.end()
            return
        egress.give(
            Result(
                session_id=environment.session_id,
                sequence=environment.sequence,
                items=() if environment.failure else environment.read(self._around.output_ids),
                failure=environment.failure,
            )
        )
