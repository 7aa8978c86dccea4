"""Profiles in processes of their own: what a node does to its process, and what ends a profile."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from planner.client.export import export
from planner.wire.graph import graph_to_bytes
from protos.v1 import stage_daemon_pb2
from stage_daemon.control.frame_connection import FrameConnection
from stage_daemon.control.profile_process import ProfileProcess
from stage_daemon.control.profiling import Profiling
from stage_daemon.control.supervisor import Supervisor
from stage_daemon.errors import Conflict, InvalidGraph, InvalidRequest, NotFound
from stage_daemon.worker.frames import Frame
from tests.stage_daemon.runtime.workers import Preparation
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services


class ThreeNodes(torch.nn.Module):
    """Where x and y are large, the second takes most of the time."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(x) @ y)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Preparation]:
    served = Preparation(tmp_path)
    yield served
    served.close()


def profiling_of(blobs: Preparation, content: bytes, **more: object) -> Profiling:
    request = stage_daemon_pb2.ProfileRequest(
        graph_sha256=blobs.blobs.put(content), blob_address=blobs.address, repetitions=2, **more
    )
    return Profiling(request, "cpu")


def three_nodes(size: int = 8) -> bytes:
    square = torch.ones(size, size)
    return graph_to_bytes(export(ThreeNodes(), (square, square)).graph)


def running(name: str) -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name == name]


def kill_process() -> None:
    (process,) = running("profile")
    process.kill()


async def everything(profiling: Profiling) -> list[stage_daemon_pb2.DistinctNode]:
    """What was said last of each distinct node."""
    async with asyncio.timeout(WAIT_SECONDS):
        times = [one async for response in profiling.run() for one in response.measured]
    return list({tuple(one.nodes): one for one in times}.values())


async def test_node_that_kills_its_process_is_left_out(blobs: Preparation) -> None:
    # Reading an answer and killing takes a hundredth of the work that the product is, on whatever machine.
    profiling = profiling_of(blobs, three_nodes(size=2000))
    responses = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for response in profiling.run():
            responses.extend(response.measured)
            if response.num_done == 1:
                # The product is under way by now, or about to be.
                kill_process()
    assert [one.operator for one in responses] == ["aten::relu.default", "aten::matmul.default", "aten::tanh.default"]
    assert "killed by signal 9" in responses[1].unmeasured_reason
    assert [bool(one.unmeasured_reason) for one in responses] == [False, True, False]
    assert responses[0].seconds > 0 < responses[2].seconds


async def test_stopped_profile_says_why_and_leaves_no_process(blobs: Preparation) -> None:
    profiling = profiling_of(blobs, three_nodes())

    async def read() -> None:
        async for _ in profiling.run():
            profiling.stop(Conflict("a deployment came"))

    with pytest.raises(Conflict, match="a deployment came"):
        await asyncio.wait_for(read(), WAIT_SECONDS)
    assert not running("profile")


async def test_device_profiles_one_graph_at_a_time_until_a_deployment_comes(blobs: Preparation) -> None:
    supervisor = Supervisor(
        device_id="node/cpu0", torch_device="cpu", planner_address=blobs.address, listen_host="127.0.0.1"
    )
    request = stage_daemon_pb2.ProfileRequest(graph_sha256=blobs.blobs.put(three_nodes()))
    responses = supervisor.profile(request)
    await asyncio.wait_for(anext(responses), WAIT_SECONDS)
    with pytest.raises(Conflict, match="is profiling"):
        await anext(supervisor.profile(request))
    deployment = stage_daemon_pb2.LoadStagesRequest(
        deployment_id="dep-1", generation=1, stages=[stage_daemon_pb2.StageModule(graph_sha256=bytes(32))]
    )
    loading = asyncio.ensure_future(anext(supervisor.load(deployment)))
    with pytest.raises(Conflict, match="dep-1 came to node/cpu0"):
        await asyncio.wait_for(anext(responses), WAIT_SECONDS)
    with pytest.raises(NotFound):
        await asyncio.wait_for(loading, WAIT_SECONDS)
    await supervisor.close()


async def test_reader_that_leaves_ends_the_process(blobs: Preparation) -> None:
    responses = profiling_of(blobs, three_nodes()).run()
    await asyncio.wait_for(anext(responses), WAIT_SECONDS)
    await asyncio.wait_for(responses.aclose(), WAIT_SECONDS)
    assert not running("profile")


async def test_graph_of_many_sizes_is_measured_at_the_one_asked_for(blobs: Preparation) -> None:
    """Told by one that fits no machine: its bytes are those of that size."""
    rows = torch.export.Dim("rows", min=1, max=1 << 40)
    graph = export(torch.nn.ReLU(), (torch.ones(2, 64),), dynamic_shapes={"input": {0: rows}}).graph
    [small] = await everything(profiling_of(blobs, graph_to_bytes(graph), symbol_values={"rows": 3}))
    assert small.seconds > 0
    [huge] = await everything(profiling_of(blobs, graph_to_bytes(graph), symbol_values={"rows": 1 << 39}))
    assert f"its tensors take {2 * 4 * 64 << 39} bytes" in huge.unmeasured_reason
    assert huge.seconds == 0


async def test_progress_counts_each_distinct_node_once(blobs: Preparation) -> None:
    responses = [response async for response in profiling_of(blobs, three_nodes()).run()]
    *steps, last = responses
    done = [(response.num_done, response.num_distinct) for response in steps]
    assert list(dict.fromkeys(done)) == [(1, 3), (2, 3), (3, 3)]
    # Each alone, then all of them among the others.
    assert [list(one.nodes) for response in responses for one in response.measured] == 2 * [[0], [1], [2]]
    assert sum(1 for response in responses if len(response.measured) == 3) == 1
    assert last.delivery.input_seconds > 0 < last.delivery.output_seconds


async def test_operators_use_as_many_threads_as_were_asked_for(blobs: Preparation) -> None:
    profiling = profiling_of(blobs, three_nodes(), num_threads=2)
    async with asyncio.timeout(WAIT_SECONDS):
        threads = {response.num_threads async for response in profiling.run() if len(response.measured) == 1}
    assert threads == {2}


@pytest.mark.parametrize(("threads", "setting", "busy"), [(1, 3, 1), (2, 3, 0), (1, 0, 0)])
async def test_neighbours_are_busy_from_the_first_node_to_the_last(
    blobs: Preparation, monkeypatch: pytest.MonkeyPatch, threads: int, setting: int, busy: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    profiling = profiling_of(blobs, three_nodes(), num_threads=threads, num_neighbours=setting)
    counts = set()
    async with asyncio.timeout(WAIT_SECONDS):
        async for response in profiling.run():
            counts.add((response.num_neighbours, len(running("neighbour"))))
    assert counts == {(busy, busy)}
    assert not running("neighbour")


async def test_stopped_profile_leaves_no_neighbour(blobs: Preparation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    profiling = profiling_of(blobs, three_nodes(), num_threads=1, num_neighbours=1)
    responses = profiling.run()
    first = asyncio.ensure_future(anext(responses))
    await eventually(lambda: bool(running("neighbour")))
    profiling.stop(Conflict("a deployment came"))

    async def read() -> None:
        await first
        async for _ in responses:
            pass

    with pytest.raises(Conflict, match="a deployment came"):
        await asyncio.wait_for(read(), WAIT_SECONDS)
    assert not running("neighbour")


async def test_what_is_no_graph_is_refused(blobs: Preparation) -> None:
    with pytest.raises(InvalidGraph):
        await everything(profiling_of(blobs, b"\xff no graph"))


async def test_unknown_size_is_refused(blobs: Preparation) -> None:
    with pytest.raises(InvalidRequest, match="'batch' is no dynamic dimension"):
        await everything(profiling_of(blobs, three_nodes(), symbol_values={"batch": 2}))


async def test_graph_that_is_not_there_is_not_found(blobs: Preparation) -> None:
    request = stage_daemon_pb2.ProfileRequest(graph_sha256=bytes(32), blob_address=blobs.address)
    with pytest.raises(NotFound):
        await everything(Profiling(request, "cpu"))
    with pytest.raises(InvalidRequest, match="graph_sha256 has 3 bytes"):
        Profiling(stage_daemon_pb2.ProfileRequest(graph_sha256=b"abc"), "cpu")


async def test_who_leaves_while_a_process_is_handed_its_request_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[FrameConnection] = []
    writing = asyncio.Event()

    async def write(connection: FrameConnection, _: Frame) -> None:
        connections.append(connection)
        writing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(FrameConnection, "write", write)
    starting = asyncio.create_task(ProfileProcess.start("cpu", b"", 0))
    await asyncio.wait_for(writing.wait(), WAIT_SECONDS)
    assert running("profile")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not running("profile")
