"""Copies of stages answer a stream as one: each runs its share, and all comes out bitwise and in order."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from planner.plan.options import Routing
from protos.v1 import planner_pb2
from stage_daemon.control.worker_process import WorkerProcess
from stage_daemon.errors import Unavailable
from stage_daemon.worker.frames import FrameKind
from tests.nightly import nightly
from tests.stage_daemon.runtime.modules import ROWS, SHAPES, STARTS, Dropping, ThreeStages, batch_of, ids, wanted
from tests.stage_daemon.runtime.test_pipeline import SIZES, assert_same
from tests.stage_daemon.runtime.workers import Preparation, Prepared, Running, microbatch, running
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

Devices = Sequence[Sequence[int]]
MIDDLE: Devices = ((0,), (1, 2), (3,))
# No two neighbours have the same number, and one device has copies of two stages.
UNEQUAL: Devices = ((0, 1), (2, 3, 4), (5, 0))
LAST: Devices = ((0,), (1, 2), (0, 1, 3))
FIRST: Devices = ((0, 1, 2), (3,), (4, 5))
EVERY: Devices = ((0, 1), (0, 1), (0, 1))


def prepared(preparation: Preparation, module: ThreeStages, devices: Devices, routing: Routing) -> Prepared:
    return preparation.prepare(
        module,
        batch_of(2, 3),
        SHAPES,
        STARTS,
        [first for first, *_ in devices],
        replicas=[others for _, *others in devices],
        routing=routing,
    )


@pytest.mark.parametrize(
    ("devices", "routing"),
    [
        (UNEQUAL, Routing.DIRECT),
        (UNEQUAL, Routing.RELAY),
        (EVERY, Routing.DIRECT),
        *nightly([(EVERY, Routing.RELAY), *itertools.product((MIDDLE, LAST, FIRST), Routing)]),
    ],
)
async def test_equal_the_unsplit_module(
    preparation: Preparation, module: ThreeStages, devices: Devices, routing: Routing
) -> None:
    batches = [batch_of(*size, start) for start, size in enumerate(SIZES * 3)][:-1]
    async with running(prepared(preparation, module, devices, routing)) as pipeline:
        results = await pipeline.run(batches)
        shares = {
            (stage, f"node{device}/cpu"): len(range(copy, len(batches), len(own)))
            for stage, own in enumerate(devices)
            for copy, device in enumerate(own)
        }
        assert await num_microbatches(pipeline) == shares
    for batch, result in zip(batches, results, strict=True):
        assert_same(result, wanted(module, batch))


async def num_microbatches(pipeline: Running) -> dict[tuple[int, str], int]:
    return {
        (stage.stage, device_id): stage.num_microbatches
        for device_id, worker in pipeline.workers.items()
        for stage in await worker.metrics()
    }


async def test_one_stage_alone_has_copies(preparation: Preparation, module: ThreeStages) -> None:
    batches = [batch_of(*size, start) for start, size in enumerate(SIZES)]
    alone = preparation.prepare(module, batch_of(2, 3), SHAPES, (), (0,), replicas=((1, 2),))
    async with running(alone) as pipeline:
        results = await pipeline.run(batches)
    for batch, result in zip(batches, results, strict=True):
        assert_same(result, wanted(module, batch))


async def test_sessions_share_the_copies_whatever_each_sends(preparation: Preparation, module: ThreeStages) -> None:
    """An odd number of one session leaves the next one in the middle of a round."""
    async with running(prepared(preparation, module, UNEQUAL, Routing.DIRECT)) as pipeline:
        for session_id, count in enumerate((1, 2, 5, 1, 3), start=1):
            batches = [batch_of(3, 4, start) for start in range(count)]
            results = await pipeline.run(batches, session_id)
            for batch, result in zip(batches, results, strict=True):
                assert_same(result, wanted(module, batch))


async def test_a_microbatch_that_a_copy_cannot_run_fails_alone(preparation: Preparation, module: ThreeStages) -> None:
    good, other = batch_of(2, 3), ids(2, 3)
    bad = torch.full((2, 3), ROWS)
    batches = [good, (other, bad), (bad, other), (other, bad), good, good, (other,)]
    async with running(prepared(preparation, module, UNEQUAL, Routing.DIRECT)) as pipeline:
        results = await pipeline.run(batches)
    for index in (0, 4, 5):
        assert_same(results[index], wanted(module, good))
    for index, stage, copy, device in ((1, 1, 1, 3), (2, 0, 0, 0), (3, 1, 0, 2)):
        failure = results[index]
        assert isinstance(failure, planner_pb2.Failure)
        assert (failure.reason, failure.stage, failure.device_id) == ("STAGE_FAILED", stage, f"node{device}/cpu")
        assert failure.message.startswith(f"copy {copy} of stage {stage} on device 'node{device}/cpu': IndexError")
    refused = results[6]
    assert isinstance(refused, planner_pb2.Failure)
    assert refused.reason == "INVALID_MICROBATCH"


async def test_copies_draw_as_one_would(preparation: Preparation) -> None:
    async def run(replicas: Devices) -> list[torch.Tensor]:
        dropping = preparation.prepare(
            Dropping().train(), (torch.ones(64),), None, ("second",), (0, 1), replicas=replicas, deployment_id="dep-a"
        )
        async with running(dropping) as pipeline:
            return [result[0] for result in await pipeline.run([(torch.ones(64),)] * 7)]

    alone, copied = await run(()), await run(((2, 3), (4,)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(alone, copied, strict=True))


@pytest.mark.parametrize(
    ("devices", "count"), [(UNEQUAL, 0), (UNEQUAL, 7), *nightly([(UNEQUAL, 1), (MIDDLE, 7), (FIRST, 7)])]
)
async def test_draining_lets_everything_in_flight_out(
    preparation: Preparation, module: ThreeStages, devices: Devices, count: int
) -> None:
    async with running(prepared(preparation, module, devices, Routing.DIRECT)) as pipeline:
        outputs = pipeline.last.outputs()
        await pipeline.send([batch_of(2, 3, start) for start in range(count)])
        draining = asyncio.gather(*(worker.drain() for worker in pipeline.workers.values()))
        sequences = [sequence async for _, sequence, _ in outputs]
        await asyncio.wait_for(draining, WAIT_SECONDS)
        reasons = [await asyncio.wait_for(worker.exited, WAIT_SECONDS) for worker in pipeline.workers.values()]
    assert set(reasons) == {"drained"}
    assert sequences == list(range(1, count + 1))


async def test_a_worker_has_drained_even_where_it_ends_before_who_drained_it_goes_on(
    preparation: Preparation, module: ThreeStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = WorkerProcess._reply

    async def reply_late(worker: WorkerProcess, replies: Any) -> Any:
        frame = await reply(worker, replies)
        if frame.kind is FrameKind.DRAINED:
            await asyncio.wait_for(worker.exited, WAIT_SECONDS)
        return frame

    async with running(prepared(preparation, module, MIDDLE, Routing.DIRECT)) as pipeline:
        monkeypatch.setattr(WorkerProcess, "_reply", reply_late)
        await asyncio.gather(*(worker.drain() for worker in pipeline.workers.values()))
        assert {worker.exited.result() for worker in pipeline.workers.values()} == {"drained"}


async def test_the_peers_of_a_killed_copy_name_it(preparation: Preparation, module: ThreeStages) -> None:
    async with running(prepared(preparation, module, UNEQUAL, Routing.RELAY)) as pipeline:
        await pipeline.run([batch_of(2, 3)] * 6)
        killed = pipeline.workers["node3/cpu"]
        os.kill(killed.process_id, signal.SIGKILL)
        await asyncio.wait_for(killed.exited, WAIT_SECONDS)
        others = [worker for worker in pipeline.workers.values() if worker is not killed]
        for worker in others:
            await asyncio.wait_for(worker.exited, WAIT_SECONDS)
        failures = [worker.failure for worker in others if worker.failure is not None]
        assert {failure.reason for failure in failures} == {Unavailable.reason}
        of_killed = [failure for failure in failures if failure.device_id == "node3/cpu"]
        assert of_killed
        for failure in of_killed:
            assert (failure.stage, failure.metadata["copy"]) == (1, "1")
            assert "copy 1 of stage 1 on device 'node3/cpu' is gone" in failure.message
        with pytest.raises(Unavailable, match="copy"):
            await pipeline.first.send_input(1, 1, microbatch(1, batch_of(2, 3)))
