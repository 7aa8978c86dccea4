"""Workers run a split module: bitwise what the unsplit one gives, whatever fails on the way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from planner.plan.options import Routing
from protos.v1 import graph_pb2, planner_pb2, stage_daemon_pb2
from stage_daemon.errors import Conflict
from tests.nightly import nightly
from tests.stage_daemon.runtime.modules import ROWS, SHAPES, STARTS, Dropping, ThreeStages, batch_of, ids, wanted
from tests.stage_daemon.runtime.workers import Preparation, Prepared, running
from tests.stage_daemon.short_deadlines import with_short_deadline_async
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services

SIZES = [(2, 3), (5, 9), (1, 2), (64, 64), (3, 2), (2, 3)]
ALONE, TWO_WORKERS, BACK_AND_FORTH = (0, 1, 2), (0, 0, 1), (0, 1, 0)


def three_stages(
    preparation: Preparation, module: ThreeStages, devices: Sequence[int] = ALONE, **options: Any
) -> Prepared:
    return preparation.prepare(module, batch_of(2, 3), SHAPES, STARTS, devices, **options)


def assert_same(outputs: list[Any], expected: list[Any]) -> None:
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)
        else:
            assert ours == theirs


@pytest.mark.parametrize(
    ("devices", "routing"),
    [
        (ALONE, Routing.RELAY),
        (TWO_WORKERS, Routing.DIRECT),
        (BACK_AND_FORTH, Routing.RELAY),
        *nightly([(ALONE, Routing.DIRECT), ((0, 0, 0), Routing.DIRECT)]),
    ],
)
async def test_equals_the_unsplit_module(
    preparation: Preparation, module: ThreeStages, devices: tuple[int, ...], routing: Routing
) -> None:
    batches = [batch_of(*size, start) for start, size in enumerate(SIZES * 2)]
    async with running(three_stages(preparation, module, devices, routing=routing)) as pipeline:
        results = await pipeline.run(batches)
    for batch, result in zip(batches, results, strict=True):
        assert_same(result, wanted(module, batch))


async def test_a_microbatch_that_a_stage_cannot_run_fails_alone(preparation: Preparation, module: ThreeStages) -> None:
    good, other = batch_of(2, 3), ids(2, 3)
    bad = torch.full((2, 3), ROWS)
    async with running(three_stages(preparation, module)) as pipeline:
        results = await pipeline.run([good, (bad, other), good, (other, bad), good])
    for index in (0, 2, 4):
        assert_same(results[index], wanted(module, good))
    for index, stage in ((1, 0), (3, 1)):
        failure = results[index]
        assert isinstance(failure, planner_pb2.Failure)
        assert (failure.reason, failure.stage, failure.device_id) == ("STAGE_FAILED", stage, f"node{stage}/cpu")
        assert "IndexError" in failure.message
        assert f"stage {stage}" in failure.message


def tensor_datum(dtype: graph_pb2.Dtype.ValueType, dims: Sequence[int], data: bytes) -> stage_daemon_pb2.Datum:
    return stage_daemon_pb2.Datum(tensor=stage_daemon_pb2.Tensor(dtype=dtype, dims=dims, data=data))


INVALID = [
    ((ids(2, 3),), "found 1 values, needs 2: first_ids, second_ids"),
    ((ids(2, 3), torch.zeros(2, 3)), "'second_ids'.*float32, needs torch.int64"),
    ((ids(2, 3), torch.zeros(2, 3, 1, dtype=torch.int64)), "'second_ids'.*3 dimensions"),
    ((ids(2, 3), ids(4, 3)), "'second_ids'.*dimension 0 is 4, needs 2"),
    ((ids(65, 3), ids(65, 3)), "'first_ids'.*dimension 0 is 65.*at most 64"),
    ((ids(2, 3), 5), "'second_ids'.*the int 5"),
    ((ids(2, 3), stage_daemon_pb2.Datum()), "'second_ids'.*no value"),
    ((ids(2, 3), tensor_datum(graph_pb2.DTYPE_INT64, (2, 3), b"12345")), "'second_ids'.*5 bytes.*need 48"),
    ((ids(2, 3), tensor_datum(999, (2, 3), b"")), "'second_ids'.*dtype"),
    ((ids(2, 3), tensor_datum(graph_pb2.DTYPE_INT64, (2**62, 2**63), b"")), "'second_ids'.*dimension 0"),
]


async def test_a_microbatch_that_does_not_fit_is_refused_alone(preparation: Preparation, module: ThreeStages) -> None:
    good = batch_of(2, 3)
    batches: list[Sequence[Any]] = [good, *(batch for batch, _ in INVALID), good]
    async with running(three_stages(preparation, module)) as pipeline:
        results = await pipeline.run(batches)
    assert_same(results[0], wanted(module, good))
    assert_same(results[-1], wanted(module, good))
    for failure, (_, words) in zip(results[1:-1], INVALID, strict=True):
        assert isinstance(failure, planner_pb2.Failure)
        assert failure.reason == "INVALID_MICROBATCH"
        assert re.search(words, failure.message), failure.message


async def test_random_numbers_depend_on_deployment_node_and_microbatch(preparation: Preparation) -> None:
    async def run(deployment_id: str, devices: tuple[int, ...]) -> list[torch.Tensor]:
        prepared = preparation.prepare(
            Dropping().train(), (torch.ones(64),), None, ("second",), devices, deployment_id=deployment_id
        )
        async with running(prepared) as pipeline:
            return [result[0] for result in await pipeline.run([(torch.ones(64),)] * 8)]

    once, again, other = await run("dep-a", (0, 1)), await run("dep-a", (0, 0)), await run("dep-b", (0, 1))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(once, again, strict=True))
    assert len({tuple(result.tolist()) for result in once}) == len(once)
    # 0 where the second drops, 6 where neither does, 2 where the first does alone: they do not drop the same.
    assert all(set(result.tolist()) == {0.0, 2.0, 6.0} for result in once)
    assert not any(torch.equal(ours, theirs) for ours, theirs in zip(once, other, strict=True))


async def test_metrics_count_each_stage(preparation: Preparation, module: ThreeStages) -> None:
    async with running(three_stages(preparation, module, TWO_WORKERS)) as pipeline:
        await pipeline.run([batch_of(2, 3)] * 4)

        async def read() -> list[stage_daemon_pb2.StageMetrics]:
            return [stage for worker in pipeline.workers.values() for stage in await worker.metrics()]

        metrics = await read()
        assert [(stage.stage, stage.num_microbatches) for stage in metrics] == [(0, 4), (1, 4), (2, 4)]

        async def all_sent() -> bool:
            # Four times: one hidden value of 2 x 3 x 16 floats to each later stage, one tensor of 2 x 3 ids as well.
            first, second, third = await read()
            received = second.received_bytes + third.received_bytes
            return first.sent_bytes == 4 * (2 * 384 + 2 * 48) and received == first.sent_bytes + second.sent_bytes

        # An output is there before what it is made of is counted as sent.
        await eventually(all_sent, "the bytes of four microbatches to be counted")
        process_ids = {worker.process_id for worker in pipeline.workers.values()}
    assert {stage.worker_process_id for stage in metrics} == process_ids
    assert all(stage.busy_seconds > 0 and stage.deployment_id == "dep-test" for stage in metrics)
    assert metrics[0].received_bytes == 0
    assert metrics[2].sent_bytes == 0


async def test_inputs_wait_while_nobody_takes_results(preparation: Preparation, module: ThreeStages) -> None:
    """Also for longer than the edges' deadline: who is slow is not dead."""
    batches = [batch_of(2, 3, start) for start in range(60)]

    async def scenario(deadline_seconds: float) -> None:
        async with running(three_stages(preparation, module, edge_seconds=deadline_seconds)) as pipeline:
            sending = asyncio.create_task(pipeline.send(batches))
            finished, _ = await asyncio.wait([sending], timeout=1.5 * deadline_seconds)
            for task in finished:
                await task
            assert not finished
            outputs = pipeline.last.outputs()
            results = [await asyncio.wait_for(anext(outputs), WAIT_SECONDS) for _ in batches]
            await sending
        assert [sequence for _, sequence, _ in results] == list(range(1, len(batches) + 1))

    await with_short_deadline_async(scenario)


async def test_draining_lets_everything_in_flight_out(preparation: Preparation, module: ThreeStages) -> None:
    batches = [batch_of(2, 3, start) for start in range(6)]
    async with running(three_stages(preparation, module)) as pipeline:
        outputs = pipeline.last.outputs()
        await pipeline.send(batches)
        draining = asyncio.gather(*(worker.drain() for worker in pipeline.workers.values()))
        # One step of the loop starts the draining; the first worker may have ended by the time that it is asked.
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="draining"):
            await pipeline.send([batch_of(2, 3)], session_id=1)
        sequences = [sequence async for _, sequence, _ in outputs]
        await asyncio.wait_for(draining, WAIT_SECONDS)
        reasons = [await asyncio.wait_for(worker.exited, WAIT_SECONDS) for worker in pipeline.workers.values()]
    assert reasons == ["drained"] * 3
    assert sequences == list(range(1, len(batches) + 1))
