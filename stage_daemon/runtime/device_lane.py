"""A lane on a GPU: one thread receives microbatches, one launches them, and one waits for them and hands them on.

A device computes by itself once a pass is launched. So that it never waits for whoever brings its inputs or takes its
outputs away, the next microbatch is launched while the one before is computed and handed on, and the one after that is
received. Each of the three has a stream of its own: what is copied in or made of outputs on their way out would come
behind passes on that of the stages.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from stage_daemon.runtime.actions import Kind, Lane
from stage_daemon.runtime.environment import Environment
from stage_daemon.runtime.failures import raise_if_ruinous, stage_failure
from stage_daemon.runtime.interpreter import LaneInterpreter, Surroundings, runs_a_stage
from stage_daemon.runtime.timeline import DeviceTimeline
from stage_daemon.transport.streams import Event
from stage_daemon.transport.turn import EVERY, Turn

# One that is computed or handed on, and the next.
_MOST_LAUNCHED = 2
# Beside them.
_MOST_RECEIVED = 1


class _Pass(NamedTuple):
    """On the stream of stages: where it begins, and where it ends."""

    begins: Event
    ends: Event


class DeviceLane(LaneInterpreter):
    """Of a stage on a device with streams. What a pass fails at is its stage's fault, and known before it is handed
    on."""

    @property
    def threads(self) -> Mapping[str, Callable[[], None]]:
        stage = self.stage
        return {f"in-{stage}": self._receive_all, f"lane-{stage}": self._launch_all, f"out-{stage}": self._hand_on_all}

    def _make_loops(self) -> None:
        assert self._around.streams is not None
        self._streams = self._around.streams
        self._way_in, self._way_out = self._streams.new_stream(), self._streams.new_stream()
        [at] = [position for position, action in enumerate(self._lane) if action.kind is Kind.FORWARD]
        self._at = at
        self._arrivals = self._loop_over(range(at))
        self._departures = self._loop_over(range(at + 1, len(self._lane)))
        self._device_timeline = DeviceTimeline(self._timed)
        self.timelines += (self._device_timeline,)
        self._may_receive = threading.Semaphore(_MOST_RECEIVED)
        self._may_launch = threading.Semaphore(_MOST_LAUNCHED)
        self._received: queue.SimpleQueue[tuple[Environment, Event]] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[tuple[Environment, _Pass | None]] = queue.SimpleQueue()

    def _receive_all(self) -> None:
        with torch.no_grad(), self._streams.use(self._way_in):
            is_over = False
            while not is_over:
                self._may_receive.acquire()
                environment = self._next()
                self._arrivals.run(environment.microbatch, (environment,))
                self._received.put((environment, self._streams.mark(self._way_in)))
                is_over = environment.ended
                # The next may be long in coming.
                del environment

    def _launch_all(self) -> None:
        with torch.no_grad():
            is_over = False
            while not is_over:
                self._may_launch.acquire()
                environment, arrived = self._received.get()
                self._may_receive.release()
                self._launched.put((environment, self._launch(environment, arrived)))
                is_over = environment.ended
                del environment

    def _launch(self, environment: Environment, arrived: Event) -> _Pass | None:
        """None where the device has not all of it."""
        streams, timeline = self._streams, self._device_timeline
        if environment.is_void:
            self._forward(self.stage, environment)
            return None
        streams.wait(streams.compute, arrived)
        self._keep_for(environment, streams.compute)
        begins = streams.mark(streams.compute, timed=True)
        timeline.launching(self._at)
        self._forward(self.stage, environment)
        environment.drop(self._dead[self._at])
        if environment.failure is not None:
            timeline.given_up()
            return None
        return _Pass(begins, streams.mark(streams.compute, timed=True))

    def _hand_on_all(self) -> None:
        with torch.no_grad(), self._streams.use(self._way_out):
            is_over = False
            while not is_over:
                environment, launched = self._launched.get()
                if launched is not None:
                    self._finish(environment, launched)
                self._departures.run(environment.microbatch, (environment,))
                is_over = environment.ended
                del environment
                self._may_launch.release()
        self._wait_for_receivers()

    def _finish(self, environment: Environment, launched: _Pass) -> None:
        stage = self._around.stages[self.stage]
        try:
            launched.ends.synchronize()
            seconds = self._streams.seconds_between(*launched)
        except Exception as error:
            raise_if_ruinous(stage, error)
            environment.fail(stage_failure(stage, error))
            seconds = 0.0
        self._device_timeline.done(environment.microbatch, seconds)
        self._keep_for(environment, self._way_out)

    def _keep_for(self, environment: Environment, stream: Any) -> None:
        for item in environment.values.values():
            if isinstance(item, torch.Tensor):
                self._streams.keep_for(item, stream)


def interpreter_of(lane: Lane, surroundings: Surroundings, turn: Turn = EVERY) -> LaneInterpreter:
    """As the device needs it."""
    is_launched = surroundings.streams is not None and runs_a_stage(lane)
    return (DeviceLane if is_launched else LaneInterpreter)(lane, surroundings, turn)
