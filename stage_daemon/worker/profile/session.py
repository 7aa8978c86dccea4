"""One profile from request to last answer, in the process that runs it, or what keeps the host busy beside one."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn

import torch

from access.files import TlsFiles
from protos.v1 import graph_pb2, stage_daemon_pb2
from stage_daemon.loader.parse import parse_graph
from stage_daemon.worker.blobs import BlobClient
from stage_daemon.worker.frames import LOST_EXIT_CODE, Frame, FrameKind, write_frame
from stage_daemon.worker.profile.bench import Bench, Unmeasured
from stage_daemon.worker.profile.clock import Effort
from stage_daemon.worker.profile.distinct import DistinctNode
from stage_daemon.worker.profile.gradients import BackwardSeconds, Saved
from stage_daemon.worker.profile.neighbour import keep_busy
from stage_daemon.worker.profile.rehearsal import PassSeconds, Rehearsed
from stage_daemon.worker.profile.split_rehearsal import SplitSeconds
from stage_daemon.worker.profile.values import ValueTable
from stage_daemon.worker.threads import use_threads

MAX_REPETITIONS = 10_000
# Of one run of the whole graph; what takes longer is long enough for its nodes to be timed alone.
MOST_REHEARSED_SECONDS = 10.0


class Session:
    def __init__(self, connection: socket.socket, device: str, tls: TlsFiles | None = None) -> None:
        self._connection = connection
        self._device = torch.device(device)
        self._tls = tls
        # By position in the distinct nodes, those that could be run alone.
        self._seconds_alone: dict[int, float] = {}
        self._backward_alone: dict[int, BackwardSeconds] = {}
        self._saved: dict[int, Saved] = {}

    def run(self, frame: Frame) -> None:
        """Raises what keeps the whole graph from being profiled."""
        request = stage_daemon_pb2.ProfileRequest.FromString(frame.body)
        use_threads(self._device, request.num_threads, workers_on_host=1)
        if frame.kind is FrameKind.KEEP_BUSY:
            self._keep_busy(request)
        bench = self._bench(request)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._write(
            FrameKind.PROFILE_NODES,
            stage_daemon_pb2.ProfileResponse(
                num_distinct=len(bench.distinct), measured=[_to_proto(one) for one in bench.distinct]
            ),
        )
        for index in range(frame.sequence, len(bench.distinct)):
            self._measure(bench, index)
        # What ended the process before this one would end it too.
        rehearsed = None if frame.sequence else self._rehearse(bench)
        self._measure_deliveries(bench, rehearsed)
        self._write(FrameKind.PROFILED, stage_daemon_pb2.ProfileResponse())

    def _keep_busy(self, request: stage_daemon_pb2.ProfileRequest) -> NoReturn:
        graph = self._graph(request)
        values = ValueTable(graph, request.symbol_values)
        busy = Frame(kind=FrameKind.BUSY)
        keep_busy(graph, values, self._device, lambda: write_frame(self._connection, busy), trains=request.backward)

    def _bench(self, request: stage_daemon_pb2.ProfileRequest) -> Bench:
        effort = Effort(
            repetitions=min(request.repetitions or Effort().repetitions, MAX_REPETITIONS),
            warmup=min(request.warmup or Effort().warmup, MAX_REPETITIONS),
        )
        return Bench(self._graph(request), request.symbol_values, self._device, effort, backward=request.backward)

    def _graph(self, request: stage_daemon_pb2.ProfileRequest) -> graph_pb2.Graph:
        reader = BlobClient(request.blob_address, self._tls)
        try:
            return parse_graph(reader.read_whole(request.graph_sha256))
        finally:
            reader.close()

    def _measure(self, bench: Bench, index: int) -> None:
        one = _to_proto(bench.distinct[index])
        lost = False
        try:
            one.seconds = bench.measure(bench.distinct[index])
        except Unmeasured as error:
            one.unmeasured_reason, lost = error.reason, error.is_fatal
        else:
            self._seconds_alone[index] = one.seconds
            lost = self._measure_backward(bench, index, one)
        response = stage_daemon_pb2.ProfileResponse(
            num_done=index + 1,
            num_distinct=len(bench.distinct),
            measured=[one],
            num_threads=torch.get_num_threads(),
        )
        self._write(FrameKind.PROFILE_STEP, response)
        if lost:
            os._exit(LOST_EXIT_CODE)

    def _rehearse(self, bench: Bench) -> Rehearsed | None:
        """Better times of the nodes that have one; those that were never run alone stay without. With the deliveries of
        training, where it is run."""
        alone = sum(seconds * len(bench.distinct[at].nodes) for at, seconds in self._seconds_alone.items())
        if alone > MOST_REHEARSED_SECONDS:
            return None

        def tell_on() -> None:
            self._write(FrameKind.PROFILE_STEP, _all_done(bench))

        try:
            rehearsed = bench.rehearse(tell_on)
        except Unmeasured:
            return None
        passes = self._rehearse_training(bench, tell_on)
        longer = passes.forward / sum(rehearsed.nodes) if passes else 1.0
        split = self._rehearse_split(bench, tell_on) if passes else None
        backward = self._backward_in_a_run(bench, passes, split) if passes else {}
        response = _all_done(bench)
        if passes:
            self._rehearse_update(bench, tell_on, response)
        for position in self._seconds_alone:
            one = response.measured.add()
            one.CopyFrom(_to_proto(bench.distinct[position]))
            one.seconds = longer * rehearsed.nodes[bench.distinct[position].first]
            if position in backward:
                _add_backward(one, backward[position], self._saved[position])
        self._write(FrameKind.PROFILE_STEP, response)
        if passes is None:
            return rehearsed
        return replace(rehearsed, input_seconds=passes.input_seconds, output_seconds=passes.output_seconds)

    def _rehearse_training(self, bench: Bench, tell_on: Callable[[], None]) -> PassSeconds | None:
        alone = self._all_backward_alone(bench)
        if not alone or alone > MOST_REHEARSED_SECONDS:
            return None
        try:
            return bench.rehearse_training(tell_on)
        except Unmeasured:
            return None

    def _rehearse_update(
        self, bench: Bench, tell_on: Callable[[], None], response: stage_daemon_pb2.ProfileResponse
    ) -> None:
        with contextlib.suppress(Unmeasured):
            seconds = bench.rehearse_update(tell_on)
            response.update.norm_seconds, response.update.optimizer_seconds = seconds.norms, seconds.optimizer

    def _rehearse_split(self, bench: Bench, tell_on: Callable[[], None]) -> SplitSeconds | None:
        """None where nothing is behind a cut, or it cannot be run so."""
        if not self._alone_behind_cut(bench, lambda one: one.input_gradients):
            return None
        try:
            return bench.rehearse_split(tell_on)
        except Unmeasured:
            return None

    def _backward_in_a_run(
        self, bench: Bench, passes: PassSeconds, split: SplitSeconds | None
    ) -> Mapping[int, BackwardSeconds]:
        """Each node's passes as much longer than alone as the whole graph's are than all of theirs.

        A backward pass runs by itself, so there is no place between its nodes to look at a clock.
        """
        whole = inputs = weights = passes.backward / self._all_backward_alone(bench)
        if split is not None:
            inputs = split.input_gradients / self._alone_behind_cut(bench, lambda one: one.input_gradients)
            of_weights = self._alone_behind_cut(bench, lambda one: one.weight_gradients)
            weights = split.weight_gradients / of_weights if of_weights else weights
        longer = BackwardSeconds(whole=whole, input_gradients=inputs, weight_gradients=weights)
        return {position: seconds.times(longer) for position, seconds in self._backward_alone.items()}

    def _all_backward_alone(self, bench: Bench) -> float:
        return sum(seconds.whole * len(bench.distinct[at].nodes) for at, seconds in self._backward_alone.items())

    def _alone_behind_cut(self, bench: Bench, half: Callable[[BackwardSeconds], float]) -> float:
        """What halves of backward passes take one by one."""
        return sum(
            half(seconds) * len(bench.split_graph.nodes.intersection(bench.distinct[at].nodes))
            for at, seconds in self._backward_alone.items()
        )

    def _measure_deliveries(self, bench: Bench, rehearsed: Rehearsed | None) -> None:
        """Those of the rehearsal, where they were handed over there."""
        response = _all_done(bench)
        of_inputs = rehearsed.input_seconds if rehearsed else None
        of_outputs = rehearsed.output_seconds if rehearsed else None
        try:
            response.delivery.input_seconds = bench.measure_inputs() if of_inputs is None else of_inputs
            response.delivery.output_seconds = bench.measure_outputs() if of_outputs is None else of_outputs
        except Unmeasured:
            return
        self._write(FrameKind.PROFILE_STEP, response)

    def _measure_backward(self, bench: Bench, index: int, one: stage_daemon_pb2.DistinctNode) -> bool:
        """Whether the device was lost to it. What cannot be run backward alone has its forward time."""
        try:
            measured = bench.measure_backward(bench.distinct[index])
        except Unmeasured as error:
            return error.is_fatal
        if measured is not None:
            self._backward_alone[index], self._saved[index] = measured
            _add_backward(one, *measured)
        return False

    def _write(self, kind: FrameKind, message: stage_daemon_pb2.ProfileResponse) -> None:
        write_frame(self._connection, Frame(kind=kind, body=message.SerializeToString()))


def _add_backward(one: stage_daemon_pb2.DistinctNode, seconds: BackwardSeconds, saved: Saved) -> None:
    one.backward_seconds = seconds.whole
    one.input_gradient_seconds = seconds.input_gradients
    one.weight_gradient_seconds = seconds.weight_gradients
    one.saved.inputs, one.saved.outputs, one.saved.within_bytes = saved.inputs, saved.outputs, saved.within_bytes


def _all_done(bench: Bench) -> stage_daemon_pb2.ProfileResponse:
    count = len(bench.distinct)
    return stage_daemon_pb2.ProfileResponse(num_done=count, num_distinct=count)


def _to_proto(one: DistinctNode) -> stage_daemon_pb2.DistinctNode:
    return stage_daemon_pb2.DistinctNode(nodes=one.nodes, operator=one.operator)
