"""Inputs and outputs as clients stream them, over plain gRPC: order, sessions, and refusals that say what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
import torch

from access.host import clock_identity, host_identity
from protos.v1 import planner_pb2, stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon.control import frame_connection
from stage_daemon.control import microbatches as microbatches_module
from stage_daemon.control.callers import WORDS_BYTES
from stage_daemon.control.sessions import Sessions
from tests.access.channels import NUM_PINGS, PING_SECONDS, asking_channel
from tests.stage_daemon.control.daemons import (
    Daemon,
    RolledOut,
    assert_results,
    inputs,
    malformed,
    microbatches,
    open_outputs,
    opened,
    prepared,
    refusal,
    roll_out,
    run_session,
    two_daemons,
)
from tests.stage_daemon.runtime.workers import Preparation
from tests.waiting import WAIT_SECONDS, eventually, is_gone

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RolledOut]:
    """Shared by the tests of this module, each with sessions of its own; none ends it."""
    preparation = Preparation(tmp_path_factory.mktemp("blobs"))
    async with two_daemons(preparation) as daemons:
        yield await roll_out(daemons, prepared(preparation, "dep-shared"))
    preparation.close()


async def test_two_sessions_at_once_each_in_order(deployment: RolledOut) -> None:
    batches = {session: [torch.randn(1 + index % 5, 8) for index in range(12)] for session in (11, 12)}
    per_session = await asyncio.gather(*(run_session(deployment, session, batches[session]) for session in batches))
    for session_batches, results in zip(batches.values(), per_session, strict=True):
        assert_results(session_batches, results)


async def test_a_client_that_vanishes_leaves_the_others_alone(deployment: RolledOut) -> None:
    results = await open_outputs(deployment, 21)
    batches = [torch.randn(2, 8) for _ in range(6)]
    sending = deployment.first.SendInputs(iter(inputs(deployment.id, 21, batches)), timeout=WAIT_SECONDS)
    await sending.read()
    results.cancel()
    sending.cancel()
    assert_results(batches, await run_session(deployment, 22, batches))


async def test_large_microbatches_cross_as_they_came(deployment: RolledOut, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between small ones, and piece by piece."""
    monkeypatch.setattr(microbatches_module, "PIECE_BYTES", 200)
    monkeypatch.setattr(frame_connection, "_READ_BYTES", 100)
    monkeypatch.setattr(frame_connection, "_PIECE_BYTES", 70)
    batches = [torch.randn(1 + 7 * index % 40, 8) for index in range(12)]
    assert_results(batches, await run_session(deployment, 27, batches))


@pytest.mark.slow
async def test_a_session_that_is_idle_stays(deployment: RolledOut) -> None:
    last = deployment.daemons["node1/cpu"]
    async with asking_channel(last.address) as channel:
        stub: Any = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
        results = stub.ReceiveOutputs(stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, 26)))
        await results.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(results.read(), NUM_PINGS * PING_SECONDS)


async def test_a_session_id_can_be_used_again_once_its_client_has_left(deployment: RolledOut) -> None:
    for _ in range(2):
        batches = [torch.randn(2, 8)]
        assert_results(batches, await run_session(deployment, 23, batches))
        sessions = deployment.daemons["node1/cpu"].supervisor.find(deployment.id).sessions

        async def left(sessions: Sessions = sessions) -> bool:
            return not sessions.is_open(23)

        await eventually(left, "the session to end with its client")


async def test_refusals_say_what_to_do(deployment: RolledOut) -> None:
    first, last = deployment.first, deployment.last
    fits, narrow = [torch.zeros(2, 8)], [torch.zeros(2, 7)]
    begin = stage_daemon_pb2.SendInputsRequest(open=opened(deployment.id, 31))
    empty = stage_daemon_pb2.SendInputsRequest(microbatch=stage_daemon_pb2.Microbatch(sequence=1))
    gap = stage_daemon_pb2.SendInputsRequest(microbatch=stage_daemon_pb2.Microbatch(sequence=2))

    def receive(session: stage_daemon_pb2.OpenSession) -> stage_daemon_pb2.ReceiveOutputsRequest:
        return stage_daemon_pb2.ReceiveOutputsRequest(open=session)

    too_many = "x" * WORDS_BYTES
    long_seed = stage_daemon_pb2.OpenTraining(deployment_id=deployment.id, seed=too_many)

    def cases() -> Iterator[tuple[Any, str, str]]:
        # One after the other: a call begins as soon as it is made, and these are all of one session.
        yield (
            first.GetTimeline(stage_daemon_pb2.GetTimelineRequest(deployment_id=too_many)),
            "INVALID_ARGUMENT",
            "GetTimeline: a message of 1,048,580 bytes came, and at most 1,048,576 are taken",
        )
        yield (
            first.Train(iter([stage_daemon_pb2.TrainRequest(open=long_seed)])),
            "INVALID_ARGUMENT",
            "at most 1,048,576 are taken",
        )
        yield (
            first.Train(iter([stage_daemon_pb2.TrainRequest()])),
            "INVALID_ARGUMENT",
            "the first message has to be `open`",
        )
        yield first.SendInputs(iter(inputs("dep-none", 31, fits))), "NOT_FOUND", "no stage on"
        yield last.ReceiveOutputs(receive(opened("dep-none", 31))), "NOT_FOUND", "no stage on"
        yield first.SendInputs(iter(microbatches(fits))), "INVALID_ARGUMENT", "the first message has to be `open`"
        yield first.SendInputs(iter(())), "INVALID_ARGUMENT", "the first message has to be `open`"
        yield first.SendInputs(iter((begin, begin))), "INVALID_ARGUMENT", "has to be a `microbatch`"
        yield first.SendInputs(iter((begin, empty))), "INVALID_MICROBATCH", "0 values, the deployment takes 1: x"
        yield first.SendInputs(iter((begin, gap))), "INVALID_MICROBATCH", "microbatch 2 came where 1 was due"
        yield first.SendInputs(iter((begin, malformed()))), "INVALID_MICROBATCH", "4 bytes came, dims [2, 8] need 64"
        yield (
            first.SendInputs(iter(inputs(deployment.id, 31, [torch.randn(1000, 8)]))),
            "INVALID_MICROBATCH",
            "bytes came, and at most",
        )
        yield (
            first.SendInputs(iter(inputs(deployment.id, 31, narrow))),
            "INVALID_MICROBATCH",
            "input 'x': dims [2, 7], needs",
        )
        yield last.SendInputs(iter(inputs(deployment.id, 31, fits))), "CONFLICT", "input_address"
        yield first.ReceiveOutputs(receive(opened(deployment.id, 31))), "CONFLICT", "output_address"

    for call, reason, message in cases():
        error = await refusal(call)
        assert error[0] == reason
        assert message in error[1]
    batches = [torch.randn(3, 8)]
    assert_results(batches, await run_session(deployment, 32, batches))


async def test_the_workers_door_is_shown_to_clients_of_its_host(deployment: RolledOut) -> None:
    for host, is_shown in ((host_identity(), True), ("elsewhere/1", False), ("", False)):
        begin = opened(deployment.id, 61)
        begin.host = host
        results = deployment.last.ReceiveOutputs(stage_daemon_pb2.ReceiveOutputsRequest(open=begin))
        assert (await results.read()).HasField("door") is is_shown
        sending = deployment.first.SendInputs(timeout=WAIT_SECONDS)
        await sending.write(stage_daemon_pb2.SendInputsRequest(open=begin))
        if host:
            answer = await sending.read()
            assert (answer.sequence, answer.HasField("door")) == (0, is_shown)
        await sending.done_writing()
        assert await sending.read() is grpc.aio.EOF
        results.cancel()
        sessions = deployment.daemons["node1/cpu"].supervisor.find(deployment.id).sessions

        async def left(sessions: Sessions = sessions) -> bool:
            return not sessions.is_open(61)

        await eventually(left, "the session to end with its client")


async def test_a_session_receives_and_sends_once(deployment: RolledOut) -> None:
    results = await open_outputs(deployment, 41)
    again = stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, 41))
    reason, message = await refusal(deployment.last.ReceiveOutputs(again))
    assert (reason, "session 41 of dep-shared is open already" in message) == ("CONFLICT", True)
    begin, *following = inputs(deployment.id, 41, [torch.zeros(1, 8)])
    sending = deployment.first.SendInputs(timeout=WAIT_SECONDS)
    await sending.write(begin)
    await sending.write(following[0])
    assert (await sending.read()).sequence == 1
    reason, message = await refusal(deployment.first.SendInputs(iter([begin])))
    assert (reason, "session 41 is sending already" in message) == ("CONFLICT", True)
    assert (await results.read()).sequence == 1
    await sending.done_writing()
    assert await sending.read() is grpc.aio.EOF
    results.cancel()


async def test_status_tells_of_deployments_and_stages(deployment: RolledOut) -> None:
    batches = [torch.randn(2, 8)] * 3
    before = {device_id: (await one.status()).stages[0] for device_id, one in deployment.daemons.items()}
    await run_session(deployment, 51, batches)
    for stage, (device_id, daemon) in enumerate(sorted(deployment.daemons.items())):
        status = await daemon.status()
        assert status.device_id == device_id
        [standing] = status.deployments
        assert (standing.deployment_id, standing.generation) == (deployment.id, 1)
        assert standing.state == planner_pb2.WORKER_STATE_RUNNING
        [metrics] = status.stages
        assert (metrics.deployment_id, metrics.stage) == (deployment.id, stage)
        assert metrics.num_microbatches == before[device_id].num_microbatches + 3
        assert not is_gone(metrics.worker_process_id)


async def test_a_timeline_has_what_ran_by_the_daemons_clock(deployment: RolledOut) -> None:
    request = stage_daemon_pb2.GetTimelineRequest(deployment_id=deployment.id)

    async def waits(daemon: Daemon) -> bool:
        [thread] = (await daemon.stub.GetTimeline(request)).threads
        return bool(thread.under_way == thread.actions[0])

    async def all_wait() -> bool:
        return all([await waits(daemon) for daemon in deployment.daemons.values()])

    await eventually(all_wait, "both lanes to wait for the next microbatch")
    asked_seconds = time.monotonic()
    await run_session(deployment, 71, [torch.randn(2, 8)] * 3)
    await eventually(all_wait, "both lanes to wait again")
    for device_id, daemon in deployment.daemons.items():
        timeline = await daemon.stub.GetTimeline(request)
        assert (timeline.device_id, timeline.generation, timeline.clock) == (device_id, 1, clock_identity())
        [thread] = timeline.threads
        lately = [
            (entry, end) for entry, end in zip(thread.entries, thread.end_seconds, strict=True) if end >= asked_seconds
        ]
        begins = [entry for entry, _ in lately if entry < 0]
        assert [entry for entry, _ in lately] == [0, 1, 2, begins[0], 0, 1, 2, begins[1], 0, 1, 2, begins[2]]
        assert begins == [begins[0], begins[0] - 1, begins[0] - 2]
        last_end = lately[-1][1]
        assert last_end <= timeline.received_seconds <= timeline.answered_seconds <= time.monotonic()
        assert thread.under_way_since_seconds == last_end
        sums = await daemon.stub.GetTimeline(
            stage_daemon_pb2.GetTimelineRequest(deployment_id=deployment.id, only_totals=True)
        )
        assert not sums.threads[0].entries
        assert [times.count for times in sums.threads[0].times] == [times.count for times in thread.times]
    unknown = deployment.first.GetTimeline(stage_daemon_pb2.GetTimelineRequest(deployment_id="dep-none"))
    assert (await refusal(unknown))[0] == "NOT_FOUND"


async def test_rendezvous_of_a_deployment_is_one(deployment: RolledOut) -> None:
    request = stage_daemon_pb2.OpenRendezvousRequest(deployment_id=deployment.id, generation=1)
    addresses = {(await deployment.first.OpenRendezvous(request)).address for _ in range(2)}
    assert len(addresses) == 1
    assert addresses.pop().startswith("127.0.0.1:")


async def test_planner_calls_out_of_order_are_refused(deployment: RolledOut) -> None:
    daemon = deployment.first
    module = stage_daemon_pb2.StageModule(stage=0)
    current, newer = (
        {"deployment_id": deployment.id, "generation": 1},
        {"deployment_id": deployment.id, "generation": 2},
    )
    cases = [
        (
            daemon.ConnectStages(stage_daemon_pb2.ConnectStagesRequest(deployment_id="dep-none")),
            "NOT_FOUND",
            "dep-none",
        ),
        (daemon.ConnectStages(stage_daemon_pb2.ConnectStagesRequest(**current)), "CONFLICT", "has to be loaded"),
        (
            daemon.ConnectStages(stage_daemon_pb2.ConnectStagesRequest(**newer)),
            "CONFLICT",
            "is in generation 1 here, not 2",
        ),
        (
            daemon.OpenRendezvous(stage_daemon_pb2.OpenRendezvousRequest(deployment_id="dep-none")),
            "NOT_FOUND",
            "dep-none",
        ),
        (daemon.LoadStages(stage_daemon_pb2.LoadStagesRequest()), "INVALID_ARGUMENT", "at least one stage"),
        (daemon.LoadStages(stage_daemon_pb2.LoadStagesRequest(**newer)), "INVALID_ARGUMENT", "at least one stage"),
        (
            daemon.LoadStages(stage_daemon_pb2.LoadStagesRequest(stages=[module], **current)),
            "CONFLICT",
            "is here already, running, in generation 1",
        ),
        (
            daemon.Profile(stage_daemon_pb2.ProfileRequest(graph_sha256=bytes(32))),
            "CONFLICT",
            "holds deployment dep-shared",
        ),
    ]
    for call, reason, message in cases:
        error = await refusal(call)
        assert (error[0], message in error[1]) == (reason, True), error
    # What is not here is let go of already.
    await daemon.ReleaseDeployment(stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-none"))
