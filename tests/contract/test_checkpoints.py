"""Checkpoints: written down whole or not at all, listed, and what they refer to kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.graph.ir import Dtype
from planner.wire.graph.enumerations import DTYPES
from protos.v1 import planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, create_graph, every_page, refused, upload
from tests.contract.conftest import on_both
from tests.contract.graphs import chain_bytes, chain_weights, sha256

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]


def request_of(graph_id: str, file: bytes, run: str, num_steps: int = 3) -> planner_pb2.CreateCheckpointRequest:
    """Of a file that the four layers' weights are in, and the moments of the first."""
    request = planner_pb2.CreateCheckpointRequest()
    record = request.checkpoint.record
    record.run, record.graph_id, record.optimizer = run, graph_id, "adamw"
    record.progress.num_steps, record.progress.seed = num_steps, "seed"
    record.progress.loss_scale, record.progress.num_grown, record.progress.learning_rate = 4.0, 2, 0.03
    record.files.add(sha256=sha256(file), size_bytes=len(file), is_model=True)
    for index in range(4):
        request.checkpoint.tensors.add(
            name=f"layers.{index % 3}.weight",
            optimizer_tensor="exp_avg" if index == 3 else "",
            dtype=DTYPES.number[Dtype.FLOAT32],
            dims=[8, 8],
            file_sha256=sha256(file),
            offset_bytes=8 + 256 * index,
            length_bytes=256,
            sha256=bytes(range(32)),
        )
    return request


@on_both
async def test_what_is_written_down_reads_back(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    file = chain_weights(name=name)
    await upload(planner, file)
    request = request_of(graph.id, file, name)
    request.request_id = name
    # No moment at all, and not the planner's own.
    request.checkpoint.record.created_at.nanos = -1
    created = await planner.CreateCheckpoint(request, timeout=WAIT_SECONDS)
    assert await planner.CreateCheckpoint(request, timeout=WAIT_SECONDS) == created
    assert created.id.startswith("ckpt-")
    assert created.size_bytes == len(file)
    checkpoint = await planner.GetCheckpoint(planner_pb2.GetCheckpointRequest(checkpoint_id=created.id[:12]))
    assert checkpoint.record == created
    assert checkpoint.tensors == request.checkpoint.tensors
    for record in (checkpoint.record, request.checkpoint.record):
        for field in ("id", "size_bytes", "created_at"):
            record.ClearField(field)
    assert checkpoint.record == request.checkpoint.record


@on_both
async def test_lists_are_by_run_and_by_graph(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    file = chain_weights(name=name)
    await upload(planner, file)
    checkpoints = [
        await planner.CreateCheckpoint(request_of(graph.id, file, run, steps), timeout=WAIT_SECONDS)
        for run, steps in ((name, 1), (f"{name}-other", 2), (name, 3))
    ]
    pages = await every_page(planner.ListCheckpoints, planner_pb2.ListCheckpointsRequest(run=name), 1)
    assert [one.id for page in pages for one in page.checkpoints] == [checkpoints[2].id, checkpoints[0].id]
    pages = await every_page(planner.ListCheckpoints, planner_pb2.ListCheckpointsRequest(graph_id=graph.id), 2)
    assert [one.id for page in pages for one in page.checkpoints] == [one.id for one in reversed(checkpoints)]


async def test_a_graph_stays_as_long_as_a_checkpoint_of_it(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    file = chain_weights(name=name)
    await upload(planner, file)
    created = await planner.CreateCheckpoint(request_of(graph.id, file, name), timeout=WAIT_SECONDS)
    deleting = planner_pb2.DeleteGraphRequest(graph_id=graph.id)
    with refused("CONFLICT") as refusal:
        await planner.DeleteGraph(deleting, timeout=WAIT_SECONDS)
    assert f"needed by checkpoint {created.id}" in refusal.message
    deleted = await planner.DeleteCheckpoint(planner_pb2.DeleteCheckpointRequest(checkpoint_id=created.id))
    assert deleted.id == created.id
    with refused("NOT_FOUND"):
        await planner.GetCheckpoint(planner_pb2.GetCheckpointRequest(checkpoint_id=created.id))
    await planner.DeleteGraph(deleting, timeout=WAIT_SECONDS)


def beyond_its_file(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.tensors[0].offset_bytes = 1 << 40


def in_no_file(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.tensors[0].file_sha256 = bytes(32)


def twice(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.tensors[1].name = checkpoint.tensors[0].name


def a_file_twice(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.record.files.add().CopyFrom(checkpoint.record.files[0])


def of_a_run_like_an_id(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.record.run = "ckpt-012345"


def of_a_file_that_is_not_here(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.record.files.add(sha256=bytes(32), size_bytes=8)


def of_a_size_that_it_has_not(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.record.files[0].size_bytes += 1


def of_no_graph(checkpoint: planner_pb2.Checkpoint) -> None:
    checkpoint.record.graph_id = 64 * "0"


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (beyond_its_file, "INVALID_ARGUMENT", "are in none of its files"),
        (in_no_file, "INVALID_ARGUMENT", "are in none of its files"),
        (twice, "INVALID_ARGUMENT", "'layers.0.weight' stands twice"),
        (a_file_twice, "INVALID_ARGUMENT", "names a file twice"),
        (of_a_run_like_an_id, "INVALID_ARGUMENT", "run 'ckpt-012345'"),
        (of_a_file_that_is_not_here, "NOT_FOUND", "is not here; save again"),
        (of_a_size_that_it_has_not, "NOT_FOUND", "is not here; save again"),
        (of_no_graph, "NOT_FOUND", "no graph has the id"),
    ],
)
async def test_what_is_not_whole_is_not_written_down(
    change: Callable[[planner_pb2.Checkpoint], None], reason: str, words: str, planner: PlannerServiceStub, name: str
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    file = chain_weights(name=name)
    await upload(planner, file)
    request = request_of(graph.id, file, name)
    change(request.checkpoint)
    with refused(reason) as refusal:
        await planner.CreateCheckpoint(request, timeout=WAIT_SECONDS)
    assert words in refusal.message
    listed = await planner.ListCheckpoints(planner_pb2.ListCheckpointsRequest(graph_id=graph.id))
    assert not listed.checkpoints
