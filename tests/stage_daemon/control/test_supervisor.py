"""What becomes of deployments on a daemon: those that fail, are let go of, drained, or whose daemon leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.errors import Conflict
from tests.stage_daemon.control.daemons import (
    Daemon,
    assert_results,
    inputs,
    open_outputs,
    opened,
    prepared,
    refusal,
    roll_out,
    run_session,
    serving,
    two_daemons,
)
from tests.stage_daemon.runtime.workers import Preparation, decoded
from tests.waiting import WAIT_SECONDS, eventually, is_gone

pytestmark = pytest.mark.services


@pytest.fixture
def preparation(tmp_path: Path) -> Iterator[Preparation]:
    preparation = Preparation(tmp_path)
    yield preparation
    preparation.close()


@pytest.fixture
async def daemons(preparation: Preparation) -> AsyncIterator[dict[str, Daemon]]:
    async with two_daemons(preparation) as daemons:
        yield daemons


@pytest.fixture
async def daemon(preparation: Preparation) -> AsyncIterator[Daemon]:
    async with serving("node0/cpu", preparation.address) as daemon:
        yield daemon


async def standings(daemon: Daemon) -> list[tuple[str, int, str]]:
    """(deployment, generation, state) of each."""
    return [
        (
            standing.deployment_id,
            standing.generation,
            planner_pb2.WorkerState.Name(standing.state).removeprefix("WORKER_STATE_"),
        )
        for standing in (await daemon.status()).deployments
    ]


async def until(daemon: Daemon, state: str) -> planner_pb2.DeploymentOnDaemon:
    """The only deployment, once it stands so."""

    async def reached() -> bool:
        return [standing for _, _, standing in await standings(daemon)] == [state]

    await eventually(reached, f"the deployment to be {state}")
    [standing] = (await daemon.status()).deployments
    return standing


@pytest.mark.parametrize("phase", ["LOADED", "RUNNING"])
async def test_a_worker_that_hangs_is_noticed_although_nobody_waits_for_it(
    preparation: Preparation, phase: str
) -> None:
    """All stages are its own: it has no edge."""
    async with serving("node0/cpu", preparation.address, worker_silence_seconds=2.0) as daemon:
        case = prepared(preparation, "dep-1", devices=(0, 0))
        if phase == "LOADED":
            await daemon.load(case.requests.load["node0/cpu"])
        else:
            await roll_out({"node0/cpu": daemon}, case)
        await asyncio.sleep(2.5)
        worker = (await daemon.status()).stages[0].worker_process_id
        assert await standings(daemon) == [("dep-1", 1, phase)]
        os.kill(worker, signal.SIGSTOP)
        standing = await until(daemon, "FAILED")
        assert (standing.failure.reason, standing.failure.stage, standing.failure.device_id) == (
            "WORKER_HUNG",
            0,
            "node0/cpu",
        )
        assert "has answered nothing for 2 s" in standing.failure.message
        await eventually(lambda: is_gone(worker), "the worker to end")


async def test_many_may_ask_for_the_status_at_once(daemon: Daemon, preparation: Preparation) -> None:
    await roll_out({"node0/cpu": daemon}, prepared(preparation, "dep-1", devices=(0, 0)))
    worker = daemon.supervisor.find("dep-1")._worker
    assert worker is not None
    os.kill(worker.process_id, signal.SIGSTOP)
    asking = [asyncio.create_task(worker.metrics()) for _ in range(3)]
    await asyncio.sleep(0.1)
    asking[0].cancel()
    os.kill(worker.process_id, signal.SIGCONT)
    async with asyncio.timeout(WAIT_SECONDS):
        answers = await asyncio.gather(*asking[1:], worker.metrics())
    assert [[stage.stage for stage in stages] for stages in answers] == [[0, 1]] * 3


async def test_let_go_of_at_once(daemons: dict[str, Daemon], preparation: Preparation) -> None:
    deployment = await roll_out(daemons, prepared(preparation, "dep-1"))
    workers = [(await daemon.status()).stages[0].worker_process_id for daemon in daemons.values()]
    results = await open_outputs(deployment, 1)
    await deployment.release()
    assert await refusal(results.read()) == ("DEPLOYMENT_RELEASED", "deployment dep-1 was stopped")
    for daemon in daemons.values():
        assert await standings(daemon) == []
        assert await daemon.supervisor.wait_until_empty(0.0)
    await eventually(lambda: all(map(is_gone, workers)), "both workers to end")
    again = stage_daemon_pb2.ReceiveOutputsRequest(open=opened("dep-1", 2))
    assert (await refusal(deployment.last.ReceiveOutputs(again)))[0] == "NOT_FOUND"


async def test_draining_lets_out_what_is_in_flight(daemons: dict[str, Daemon], preparation: Preparation) -> None:
    deployment = await roll_out(daemons, prepared(preparation, "dep-1"))
    batches = [torch.randn(2, 8) for _ in range(6)]
    results = await open_outputs(deployment, 1)
    sending = deployment.first.SendInputs(iter(inputs("dep-1", 1, batches)), timeout=WAIT_SECONDS)
    assert [answer.sequence async for answer in sending] == [1, 2, 3, 4, 5, 6]
    await deployment.release(drain=True)
    responses = [await results.read() for _ in batches]
    assert_results(batches, [(response.sequence, *decoded(response)) for response in responses])
    assert (await refusal(results.read()))[0] == "DEPLOYMENT_RELEASED"
    assert [await standings(daemon) for daemon in daemons.values()] == [[], []]


async def test_a_drain_goes_on_and_ends_sessions_although_the_planner_died_in_it(
    daemons: dict[str, Daemon], preparation: Preparation
) -> None:
    deployment = await roll_out(daemons, prepared(preparation, "dep-1"))
    results = await open_outputs(deployment, 1)
    last = daemons["node1/cpu"]
    request = stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-1", drain=True, drain_seconds=WAIT_SECONDS)
    call = last.stub.ReleaseDeployment(request)
    await until(last, "DRAINING")
    call.cancel()
    await daemons["node0/cpu"].release("dep-1", drain=True)
    assert await refusal(results.read()) == ("DEPLOYMENT_RELEASED", "deployment dep-1 was stopped")
    assert await last.supervisor.wait_until_empty(WAIT_SECONDS)


async def test_a_drain_that_is_asked_for_again_loses_nothing(
    daemons: dict[str, Daemon], preparation: Preparation
) -> None:
    deployment = await roll_out(daemons, prepared(preparation, "dep-1"))
    batches = [torch.randn(2, 8) for _ in range(6)]
    results = await open_outputs(deployment, 1)
    last = daemons["node1/cpu"]
    draining = [asyncio.create_task(last.release("dep-1", drain=True))]
    await until(last, "DRAINING")
    draining.append(asyncio.create_task(last.release("dep-1", drain=True)))
    sending = deployment.first.SendInputs(iter(inputs("dep-1", 1, batches)), timeout=WAIT_SECONDS)
    assert [answer.sequence async for answer in sending] == [1, 2, 3, 4, 5, 6]
    await asyncio.gather(*draining, daemons["node0/cpu"].release("dep-1", drain=True))
    assert_results(batches, [(result.sequence, *decoded(result)) for result in [await results.read() for _ in batches]])


async def test_draining_that_takes_too_long_is_cut_short(daemons: dict[str, Daemon], preparation: Preparation) -> None:
    """The first stage's daemon is not told to drain, so that the end never comes down the edge."""
    await roll_out(daemons, prepared(preparation, "dep-1"))
    last = daemons["node1/cpu"]
    request = stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-1", drain=True, drain_seconds=0.3)
    await last.stub.ReleaseDeployment(request, timeout=WAIT_SECONDS)
    assert await standings(last) == []


async def test_microbatches_are_refused_while_draining(daemons: dict[str, Daemon], preparation: Preparation) -> None:
    deployment = await roll_out(daemons, prepared(preparation, "dep-1"))
    last = daemons["node1/cpu"]
    draining = asyncio.ensure_future(last.release("dep-1", drain=True))
    await until(last, "DRAINING")
    again = stage_daemon_pb2.ReceiveOutputsRequest(open=opened("dep-1", 2))
    reason, message = await refusal(deployment.last.ReceiveOutputs(again))
    assert (reason, "is draining here, not running" in message) == ("CONFLICT", True)
    await daemons["node0/cpu"].release("dep-1", drain=True)
    await draining


async def test_one_daemon_with_both_ends_wants_the_outputs_opened_first(
    daemon: Daemon, preparation: Preparation
) -> None:
    deployment = await roll_out({"node0/cpu": daemon}, prepared(preparation, "dep-1", devices=(0, 0)))
    reason, message = await refusal(deployment.first.SendInputs(iter(inputs("dep-1", 1, []))))
    assert (reason, "session 1 is not open; call ReceiveOutputs" in message) == ("CONFLICT", True)
    batches = [torch.randn(2, 8) for _ in range(3)]
    assert_results(batches, await run_session(deployment, 1, batches))
    assert [stage.stage for stage in (await daemon.status()).stages] == [0, 1]


async def test_two_deployments_on_one_device(daemon: Daemon, preparation: Preparation) -> None:
    rolled = [
        await roll_out({"node0/cpu": daemon}, prepared(preparation, name, devices=(0, 0)))
        for name in ("dep-1", "dep-2")
    ]
    batches = [torch.randn(2, 8)]
    await rolled[0].release()
    assert not await daemon.supervisor.wait_until_empty(0.0)
    assert_results(batches, await run_session(rolled[1], 1, batches))
    await rolled[1].release()
    assert await daemon.supervisor.wait_until_empty(0.0)


async def test_a_killed_worker_ends_its_deployment_and_the_daemon_says_so(
    daemon: Daemon, preparation: Preparation
) -> None:
    deployment = await roll_out({"node0/cpu": daemon}, prepared(preparation, "dep-1", devices=(0, 0)))
    results = await open_outputs(deployment, 1)
    worker = (await daemon.status()).stages[0].worker_process_id
    daemon.supervisor.changed.clear()
    os.kill(worker, signal.SIGKILL)
    standing = await until(daemon, "FAILED")
    assert daemon.supervisor.changed.is_set()
    assert (standing.failure.reason, standing.failure.stage, standing.failure.device_id) == (
        "WORKER_DIED",
        0,
        "node0/cpu",
    )
    assert standing.failure.message.startswith(f"worker {worker} of dep-1 on cpu was killed")
    assert (standing.failure.stage, standing.failure.device_id) == (0, "node0/cpu")
    assert "SIGKILL" in standing.failure.message
    assert (await refusal(results.read()))[0] == "WORKER_DIED"
    # Whoever comes later is told the same.
    later = deployment.first.SendInputs(iter(inputs("dep-1", 2, [])))
    assert await refusal(later) == ("WORKER_DIED", standing.failure.message)
    assert list((await daemon.status()).stages) == []
    # It is reported until the planner lets go of it.
    await daemon.release("dep-1")
    assert await standings(daemon) == []


async def test_what_cannot_be_loaded_fails_and_may_come_again_in_a_newer_generation(
    daemon: Daemon, preparation: Preparation
) -> None:
    case = prepared(preparation, "dep-1", devices=(0, 0))
    broken = stage_daemon_pb2.LoadStagesRequest()
    broken.CopyFrom(case.requests.load["node0/cpu"])
    broken.stages[1].graph_sha256 = bytes(32)
    reason, message = await refusal(daemon.stub.LoadStages(broken))
    assert (reason, message.startswith("blob 0000")) == ("NOT_FOUND", True)
    standing = await until(daemon, "FAILED")
    assert (standing.failure.reason, standing.failure.stage) == ("NOT_FOUND", 1)
    assert (await refusal(daemon.stub.LoadStages(case.requests.load["node0/cpu"])))[0] == "CONFLICT"
    rendezvous = stage_daemon_pb2.OpenRendezvousRequest(deployment_id="dep-1", generation=1)
    assert await refusal(daemon.stub.OpenRendezvous(rendezvous)) == ("NOT_FOUND", message)
    for request in (*case.requests.load.values(), *case.requests.connect.values()):
        request.generation = 2
    deployment = await roll_out({"node0/cpu": daemon}, case)
    assert await standings(daemon) == [("dep-1", 2, "RUNNING")]
    batches = [torch.randn(2, 8)]
    assert_results(batches, await run_session(deployment, 1, batches))


async def test_a_later_generation_takes_the_place_of_an_earlier_one_which_cannot_end_it(
    daemon: Daemon, preparation: Preparation
) -> None:
    case = prepared(preparation, "dep-1", devices=(0, 0))
    first = await roll_out({"node0/cpu": daemon}, case)
    worker = (await daemon.status()).stages[0].worker_process_id
    results = await open_outputs(first, 1)
    earlier = stage_daemon_pb2.LoadStagesRequest()
    earlier.CopyFrom(case.requests.load["node0/cpu"])
    for request in (*case.requests.load.values(), *case.requests.connect.values()):
        request.generation = 2
    second = await roll_out({"node0/cpu": daemon}, case)
    await eventually(lambda: is_gone(worker), "the earlier worker to end")
    assert (await refusal(results.read()))[0] == "DEPLOYMENT_RELEASED"
    reason, message = await refusal(daemon.stub.LoadStages(earlier))
    assert (reason, "in generation 2" in message) == ("CONFLICT", True)
    opened_before = opened("dep-1", 2)
    opened_before.generation = 1
    late = stage_daemon_pb2.ReceiveOutputsRequest(open=opened_before)
    reason, message = await refusal(second.last.ReceiveOutputs(late))
    assert (reason, "is in generation 2 here, not 1" in message) == ("CONFLICT", True)
    await daemon.supervisor.release("dep-1", 0.0, 1)
    late_release = stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-1", generation=1)
    await daemon.stub.ReleaseDeployment(late_release, timeout=WAIT_SECONDS)
    assert await standings(daemon) == [("dep-1", 2, "RUNNING")]
    batches = [torch.randn(2, 8)]
    assert_results(batches, await run_session(second, 3, batches))


async def test_the_next_generation_reads_no_weights_that_are_here(daemon: Daemon, preparation: Preparation) -> None:
    case = prepared(preparation, "dep-1", devices=(0, 0))
    [load] = case.requests.load.values()
    load.keep_states = True
    await roll_out({"node0/cpu": daemon}, case)
    os.kill((await daemon.status()).stages[0].worker_process_id, signal.SIGKILL)
    await until(daemon, "FAILED")
    follows = stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-1", generation=1, keep_states=True)
    await daemon.stub.ReleaseDeployment(follows, timeout=WAIT_SECONDS)
    assert await standings(daemon) == [("dep-1", 1, "STOPPED")]
    assert not daemon.supervisor.holds_work
    for state in (state for stage in load.stages for state in stage.states):
        preparation.blobs.delete(state.file_sha256)
    for request in (*case.requests.load.values(), *case.requests.connect.values()):
        request.generation = 2
    again = await roll_out({"node0/cpu": daemon}, case)
    assert await standings(daemon) == [("dep-1", 2, "RUNNING")]
    # Late, and of a generation whose weights the next has by now.
    await daemon.supervisor.release("dep-1", 0.0, 1)
    batches = [torch.randn(2, 8)]
    assert_results(batches, await run_session(again, 1, batches))
    await again.release()
    assert await standings(daemon) == []
    load.generation = 3
    assert (await refusal(daemon.stub.LoadStages(load)))[0] == "NOT_FOUND"


@pytest.mark.parametrize("how", ["told", "loaded without", "closed"])
async def test_weights_that_no_generation_needs_are_let_go_of(
    daemon: Daemon, preparation: Preparation, how: str
) -> None:
    [load] = prepared(preparation, "dep-1", devices=(0, 0)).requests.load.values()
    load.keep_states = True
    await daemon.load(load)
    await daemon.supervisor.release("dep-1", 0.0, 1, keep_states=True)
    assert await standings(daemon) == [("dep-1", 1, "STOPPED")]
    if how == "told":
        await daemon.supervisor.release("dep-1", 0.0, 1)
    elif how == "closed":
        await daemon.supervisor.close()
    else:
        load.keep_states, load.generation = False, 2
        await daemon.load(load)
        await daemon.supervisor.release("dep-1", 0.0, 2, keep_states=True)
    assert await standings(daemon) == []


async def test_what_cannot_be_connected_fails(daemon: Daemon, preparation: Preparation) -> None:
    case = prepared(preparation, "dep-1", devices=(0, 0))
    await daemon.load(case.requests.load["node0/cpu"])
    assert await standings(daemon) == [("dep-1", 1, "LOADED")]
    request = case.requests.connect["node0/cpu"]
    request.deadline_seconds = 0
    reason, message = await refusal(daemon.stub.ConnectStages(request))
    assert (reason, "a deadline of 0.0 s" in message) == ("INVALID_ARGUMENT", True)
    assert (await until(daemon, "FAILED")).failure.reason == "INVALID_ARGUMENT"


async def test_a_planner_that_goes_away_while_loading_ends_the_deployment(
    daemon: Daemon, preparation: Preparation
) -> None:
    """It would never connect it."""
    preparation.pause()
    call = daemon.stub.LoadStages(prepared(preparation, "dep-1", devices=(0, 0)).requests.load["node0/cpu"])
    await until(daemon, "LOADING")
    reason, message = await refusal(daemon.stub.SendInputs(iter(inputs("dep-1", 1, []))))
    assert (reason, "is loading here, not running; send to it once it is ready" in message) == ("CONFLICT", True)
    call.cancel()
    standing = await until(daemon, "FAILED")
    assert (standing.failure.reason, "planner went away" in standing.failure.message) == ("CANCELLED", True)
    preparation.resume()


async def test_of_many_that_load_some_wait_for_their_turn(daemon: Daemon, preparation: Preparation) -> None:
    preparation.pause()
    daemon.supervisor._loading = asyncio.Semaphore(1)
    requests = [
        prepared(preparation, f"dep-{number}", devices=(0, 0)).requests.load["node0/cpu"] for number in range(3)
    ]
    loads = [asyncio.ensure_future(daemon.load(requests[number])) for number in range(2)]
    await eventually(lambda: len(daemon.supervisor._hosted) == 2 and bool(running_workers(daemon)))
    last = asyncio.ensure_future(refusal(daemon.stub.LoadStages(requests[2])))
    await eventually(lambda: len(daemon.supervisor._hosted) == 3)
    await daemon.supervisor.release("dep-2", 0.0)
    assert len(running_workers(daemon)) == 1
    preparation.resume()
    await asyncio.gather(*loads)
    assert (await last)[0] == "DEPLOYMENT_RELEASED"
    assert len(running_workers(daemon)) == 2


def running_workers(daemon: Daemon) -> list[int]:
    hosted = daemon.supervisor._hosted.values()
    return [one._worker.process_id for one in hosted if one._worker is not None]


async def test_a_daemon_holds_so_many_deployments_and_no_more(
    daemon: Daemon, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stage_daemon.control.supervisor.MOST_DEPLOYMENTS", 1)
    first, second = (prepared(preparation, name, devices=(0, 0)).requests.load["node0/cpu"] for name in ("a", "b"))
    await daemon.load(first)
    reason, message = await refusal(daemon.stub.LoadStages(second))
    assert (reason, "holds 1 deployments" in message) == ("RESOURCE_EXHAUSTED", True)
    first.generation += 1
    await daemon.load(first)


async def test_a_daemon_that_leaves_takes_nothing_more_and_says_so(daemon: Daemon, preparation: Preparation) -> None:
    case = prepared(preparation, "dep-1", devices=(0, 0))
    deployment = await roll_out({"node0/cpu": daemon}, case)
    daemon.supervisor.changed.clear()
    daemon.supervisor.leave()
    assert (daemon.supervisor.changed.is_set(), daemon.supervisor.is_leaving) == (True, True)
    assert await standings(daemon) == [("dep-1", 1, "RUNNING")]
    # It goes on until the planner stops it.
    batches = [torch.randn(2, 8)]
    assert_results(batches, await run_session(deployment, 1, batches))
    other = prepared(preparation, "dep-2", devices=(0, 0)).requests.load["node0/cpu"]
    assert await refusal(daemon.stub.LoadStages(other)) == (
        "CONFLICT",
        "the daemon of node0/cpu is shutting down",
    )
    profile = stage_daemon_pb2.ProfileRequest(graph_sha256=bytes(32))
    assert (await refusal(daemon.stub.Profile(profile)))[0] == "CONFLICT"
    waiting = asyncio.ensure_future(daemon.supervisor.wait_until_empty(WAIT_SECONDS))
    await deployment.release(drain=True)
    assert await waiting


async def test_a_daemon_that_leaves_does_not_profile(daemon: Daemon) -> None:
    daemon.supervisor.leave()
    with pytest.raises(Conflict, match="node0/cpu is profiling or shutting down already"):
        await anext(daemon.supervisor.profile(stage_daemon_pb2.ProfileRequest(graph_sha256=bytes(32))))


async def test_a_server_says_that_it_serves_and_what(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "partition_planner.v1.StageDaemonService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
        names = {service.name for service in (await call.read()).list_services_response.service}
    assert {"partition_planner.v1.StageDaemonService", "grpc.health.v1.Health"} <= names
