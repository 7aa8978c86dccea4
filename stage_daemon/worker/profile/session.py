"""One profile from request to last answer, in the process that runs it."""

from __future__ import annotations

import os
import socket

import torch

from access.files import TlsFiles
from protos.v1 import stage_daemon_pb2
from stage_daemon.loader.parse import parse_graph
from stage_daemon.worker.blobs import BlobClient
from stage_daemon.worker.frames import LOST_EXIT_CODE, Frame, FrameKind, write_frame
from stage_daemon.worker.profile.bench import Bench, Unmeasured
from stage_daemon.worker.profile.clock import Effort
from stage_daemon.worker.profile.distinct import DistinctNode

MAX_REPETITIONS = 10_000


class Session:
    def __init__(self, connection: socket.socket, device: str, tls: TlsFiles | None = None) -> None:
        self._connection = connection
        self._device = torch.device(device)
        self._tls = tls

    def run(self, frame: Frame) -> None:
        """Raises what keeps the whole graph from being profiled."""
        request = stage_daemon_pb2.ProfileRequest.FromString(frame.body)
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
        self._measure_deliveries(bench)
        self._write(FrameKind.PROFILED, stage_daemon_pb2.ProfileResponse())

    def _bench(self, request: stage_daemon_pb2.ProfileRequest) -> Bench:
        reader = BlobClient(request.blob_address, self._tls)
        try:
            graph = parse_graph(reader.read_whole(request.graph_sha256))
        finally:
            reader.close()
        effort = Effort(
            repetitions=min(request.repetitions or Effort().repetitions, MAX_REPETITIONS),
            warmup=min(request.warmup or Effort().warmup, MAX_REPETITIONS),
        )
        return Bench(graph, request.symbol_values, self._device, effort, backward=request.backward)

    def _measure(self, bench: Bench, index: int) -> None:
        one = _to_proto(bench.distinct[index])
        lost = False
        try:
            one.seconds = bench.measure(bench.distinct[index])
        except Unmeasured as error:
            one.unmeasured_reason, lost = error.reason, error.is_fatal
        else:
            lost = self._measure_backward(bench, index, one)
        response = stage_daemon_pb2.ProfileResponse(
            num_done=index + 1, num_distinct=len(bench.distinct), measured=[one]
        )
        self._write(FrameKind.PROFILE_STEP, response)
        if lost:
            os._exit(LOST_EXIT_CODE)

    def _measure_deliveries(self, bench: Bench) -> None:
        count = len(bench.distinct)
        response = stage_daemon_pb2.ProfileResponse(num_done=count, num_distinct=count)
        try:
            response.delivery.input_seconds = bench.measure_inputs()
            response.delivery.output_seconds = bench.measure_outputs()
        except Unmeasured:
            return
        self._write(FrameKind.PROFILE_STEP, response)

    def _measure_backward(self, bench: Bench, index: int, one: stage_daemon_pb2.DistinctNode) -> bool:
        """Whether the device was lost to it. What cannot be run backward alone has its forward time."""
        try:
            seconds = bench.measure_backward(bench.distinct[index])
        except Unmeasured as error:
            return error.is_fatal
        if seconds is not None:
            one.backward_seconds = seconds
        return False

    def _write(self, kind: FrameKind, message: stage_daemon_pb2.ProfileResponse) -> None:
        write_frame(self._connection, Frame(kind=kind, body=message.SerializeToString()))


def _to_proto(one: DistinctNode) -> stage_daemon_pb2.DistinctNode:
    return stage_daemon_pb2.DistinctNode(nodes=one.nodes, operator=one.operator)
