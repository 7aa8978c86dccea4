"""The client behind awaited methods: what it offers, what a cancelled task ends, and what runs at the same time."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
import pytest

from planner.client import AsyncPipeline, AsyncPlannerClient, AsyncTrainer, Pipeline, PlannerClient
from planner.client.asynchronous import AsyncPlanOperation
from planner.client.asynchronous.threads import Threads
from planner.client.interruption import Interrupted, pause
from planner.client.plans import PlanOperation
from planner.client.records import OperationState, UploadProgress
from planner.client.training import Trainer
from planner.errors import Cancelled, Conflict, InvalidArgument, NotFound, PlannerWarning
from planner.plan.options import BalancedMode
from protos.v1 import planner_pb2
from tests.planner.client.loopback_daemon import LoopbackDaemon, identity_graph, loopback_pipeline
from tests.planner.client.scripted_planner import ScriptedPlanner, scripted_planner
from tests.waiting import WAIT_SECONDS, eventually

Scripted = tuple[ScriptedPlanner, AsyncPlannerClient]
PAIRS = [
    (PlannerClient, AsyncPlannerClient),
    (PlanOperation, AsyncPlanOperation),
    (Pipeline, AsyncPipeline),
    (Trainer, AsyncTrainer),
]
READY = planner_pb2.DeploymentEvent(sequence=1, state=planner_pb2.DEPLOYMENT_STATE_READY)


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    with scripted_planner() as (script, address):
        async with AsyncPlannerClient(address, timeout_seconds=WAIT_SECONDS) as client:
            yield script, client


def operation(state: str) -> planner_pb2.PlanOperation:
    return planner_pb2.PlanOperation(id="plan-1", state=planner_pb2.OperationState.Value(f"OPERATION_STATE_{state}"))


def public(of: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(of) if not name.startswith("_") or name == "__call__"}


@pytest.mark.parametrize(("synchronous", "asynchronous"), PAIRS)
def test_every_public_method_has_an_awaited_one_with_the_same_parameters(synchronous: type, asynchronous: type) -> None:
    ours, theirs = public(asynchronous), public(synchronous)
    assert theirs.keys() <= ours.keys()
    for name, method in theirs.items():
        if isinstance(method, property):
            assert isinstance(ours[name], property)
            continue
        assert [*inspect.signature(ours[name]).parameters] == [*inspect.signature(method).parameters], name
        assert "__wrapped__" not in vars(ours[name]) or ours[name].__doc__ == method.__doc__, name


@pytest.mark.parametrize("of", [one for one, _ in PAIRS])
def test_every_public_method_says_what_its_signature_cannot(of: type) -> None:
    assert [name for name, value in public(of).items() if name != "__call__" and not inspect.getdoc(value)] == []


@pytest.mark.services
async def test_calls_are_awaited_and_lists_iterated_over(scripted: Scripted) -> None:
    script, client = scripted
    page = planner_pb2.ListPlansResponse
    first, second = planner_pb2.PlanSummary(id="p"), planner_pb2.PlanSummary(id="q")
    script.on("ListPlans", page(plans=[first], next_page_token="t"), page(plans=[second]))
    assert [plan.id async for plan in client.list_plans(mode="cut")] == ["p", "q"]
    script.on("CreatePlan", operation("PENDING"))
    script.on("GetPlanOperation", operation("RUNNING"))
    started = await client.start_plan("g", BalancedMode())
    assert (started.id, started.state) == ("plan-1", OperationState.PENDING)
    assert await started.refresh() is started.state is OperationState.RUNNING
    script.on("GetPlan", NotFound("no such plan"))
    with pytest.raises(NotFound):
        await client.get_plan("p")


@pytest.mark.services
async def test_a_plan_whose_wait_is_cancelled_is_cancelled_on_the_server(scripted: Scripted) -> None:
    script, client = scripted
    until_ended = threading.Event()
    script.on("CreatePlan", operation("RUNNING"))
    script.on("WaitPlanOperation", held_until(until_ended, operation("RUNNING")))
    script.on("CancelPlanOperation", operation("CANCELLED"))
    waiting = asyncio.create_task(client.create_plan("g", BalancedMode()))
    await eventually(lambda: script.requests("WaitPlanOperation"))
    await cancelled(waiting)
    until_ended.set()
    assert [call.method for call in script.calls] == ["CreatePlan", "WaitPlanOperation", "CancelPlanOperation"]


@pytest.mark.services
async def test_a_plan_is_cancelled_before_its_id_has_come(scripted: Scripted) -> None:
    script, client = scripted
    until_ended = threading.Event()
    script.on("CreatePlan", held_until(until_ended, operation("PENDING")), operation("RUNNING"))
    script.on("CancelPlanOperation", operation("CANCELLED"))
    waiting = asyncio.create_task(client.create_plan("g", BalancedMode()))
    await eventually(lambda: script.requests("CreatePlan"))
    await cancelled(waiting)
    until_ended.set()
    first, again = script.requests("CreatePlan")
    assert first == again
    assert [request.operation_id for request in script.requests("CancelPlanOperation")] == ["plan-1"]


@pytest.mark.services
async def test_a_watch_ends_with_its_task(scripted: Scripted) -> None:
    script, client = scripted
    until_ended = threading.Event()
    script.on("WatchDeployment", partial(one_then_wait, until_ended))
    seen: list[int] = []

    async def watch() -> None:
        async for event in client.watch("dep-1"):
            seen.append(event.sequence)

    watching = asyncio.create_task(watch())
    await eventually(lambda: seen == [1])
    await cancelled(watching)
    # The server sees the call's end, which the script's semaphore counts.
    await asyncio.to_thread(script.ended.acquire, timeout=WAIT_SECONDS)
    until_ended.set()


@pytest.mark.services
async def test_an_iteration_that_is_left_ends_its_call(scripted: Scripted) -> None:
    script, client = scripted
    until_ended = threading.Event()
    script.on("WatchDeployment", partial(one_then_wait, until_ended))
    async with aclosing(client.watch("dep-1")) as events:
        async for event in events:
            assert event.sequence == 1
            break
    assert await asyncio.to_thread(script.ended.acquire, timeout=WAIT_SECONDS)
    until_ended.set()


@pytest.mark.services
async def test_calls_that_wait_hold_no_other_up() -> None:
    """More than the default threads of an event loop, of which five wait for the server at once."""
    with scripted_planner() as (script, address):
        until_ended = threading.Event()
        script.on("WatchDeployment", partial(one_then_wait, until_ended))
        script.on("GetPlanOperation", operation("RUNNING"))
        async with AsyncPlannerClient(address, timeout_seconds=WAIT_SECONDS) as client:
            watches = [client.watch("dep-1") for _ in range(5)]
            for watch in watches:
                await anext(watch)
            waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
            assert (await client.get_plan_operation("plan-1")).id == "plan-1"
            for one in waiting:
                await cancelled(one)
            until_ended.set()


@pytest.mark.services
async def test_progress_is_told_on_the_event_loop_before_the_call_is_over(scripted: Scripted) -> None:
    script, client = scripted
    script.on("GetUpload", planner_pb2.Upload(complete=True))
    script.on("CreateGraph", planner_pb2.GraphRecord(id="g"))
    calls: list[tuple[str, threading.Thread]] = []

    def tell(progress: UploadProgress) -> None:
        calls.append((progress.name, threading.current_thread()))

    await client.submit(identity_graph(), on_progress=tell)
    await client.submit(identity_graph(), "named", tell)
    assert calls == [("graph", threading.current_thread())] * 2


@pytest.mark.services
async def test_a_closed_client_says_so_and_ends_what_is_under_way(scripted: Scripted) -> None:
    script, client = scripted
    until_ended = threading.Event()
    script.on("GetPlanOperation", held_until(until_ended, operation("RUNNING")))
    waiting = asyncio.create_task(client.get_plan_operation("plan-1"))
    await eventually(lambda: script.calls)
    await client.close()
    with pytest.raises(Cancelled):
        await waiting
    until_ended.set()
    with pytest.raises(Conflict, match="is closed"):
        await client.get_graph("g")


@pytest.mark.services
async def test_batches_come_from_asynchronous_iterables_and_results_in_order() -> None:
    async def batches() -> AsyncIterator[np.ndarray]:
        for number in range(20):
            await asyncio.sleep(0)
            yield batch(number)

    with loopback_pipeline(LoopbackDaemon()) as synchronous:
        async with AsyncPipeline(synchronous, Threads()) as pipeline:
            results = [result async for result in pipeline.run(batches(), window=4)]
            leaves = [result async for result in pipeline.run_leaves([[batch(3)], [batch(4)]])]
            both = await asyncio.gather(pipeline(batch(1)), pipeline(batch(2)))
    np.testing.assert_array_equal(np.stack([result["y"] for result in results]), np.stack([*map(batch, range(20))]))
    np.testing.assert_array_equal(np.stack(leaves)[:, 0], np.stack([batch(3), batch(4)]))
    np.testing.assert_array_equal(np.stack([one["y"] for one in both]), np.stack([batch(1), batch(2)]))


async def test_autocast_around_an_awaited_pipeline_is_told_of() -> None:
    """It is a state of the event loop's thread."""
    import torch

    with loopback_pipeline(LoopbackDaemon()) as synchronous, torch.autocast("cpu", torch.bfloat16):
        for ask in (lambda pipeline, given: pipeline(given), lambda pipeline, given: anext(pipeline.run([given]))):
            with pytest.warns(PlannerWarning, match="autocast around a pipeline does not reach its stages") as told:
                await ask(AsyncPipeline(synchronous, Threads()), torch.zeros(2, 3))
            assert told[0].filename == __file__


@pytest.mark.services
async def test_what_an_asynchronous_source_raises_is_raised() -> None:
    async def batches() -> AsyncIterator[np.ndarray]:
        yield batch(1)
        raise ValueError("no more")

    with loopback_pipeline(LoopbackDaemon()) as synchronous:
        pipeline = AsyncPipeline(synchronous, Threads())
        with pytest.raises(ValueError, match="no more"):
            _ = [result async for result in pipeline.run(batches())]
        with pytest.raises(InvalidArgument, match="window is 0"):
            await anext(pipeline.run([batch(1)], window=0))


@pytest.mark.services
@pytest.mark.parametrize("source", ["results", "batches"])
async def test_a_run_ends_with_its_task(source: str) -> None:
    """Be it that a result is waited for, or the next batch."""
    daemon = LoopbackDaemon()
    if source == "results":
        daemon.gate.clear()
    ended = asyncio.Event()

    async def batches() -> AsyncIterator[np.ndarray]:
        yield batch(1)
        if source == "batches":
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    with loopback_pipeline(daemon) as synchronous:
        pipeline = AsyncPipeline(synchronous, Threads())
        running = asyncio.ensure_future(anext(aiter(pipeline.run(batches()))))
        await eventually(lambda: daemon.received)
        await cancelled(running)
        assert await asyncio.to_thread(daemon.ended_streams.acquire, timeout=WAIT_SECONDS)
        if source == "batches":
            await ended.wait()
        daemon.gate.set()
        np.testing.assert_array_equal((await pipeline(batch(2)))["y"], batch(2))


async def test_a_result_that_nobody_gets_is_let_go_of() -> None:
    started, until_ended = threading.Event(), threading.Event()
    discarded: list[int] = []

    def slow() -> int:
        started.set()
        until_ended.wait(WAIT_SECONDS)
        return 7

    waiting = asyncio.create_task(Threads().call(slow, discard=discarded.append))
    await eventually(started.is_set)
    waiting.cancel()
    until_ended.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert discarded == [7]


async def test_a_wait_that_is_interrupted_is_followed_by_none() -> None:
    """What goes on in spite of it is interrupted again where it waits next."""
    raised: list[BaseException] = []
    started = threading.Event()

    def stubborn() -> None:
        started.set()
        for _ in range(2):
            try:
                pause(WAIT_SECONDS)
            except Interrupted as error:
                raised.append(error)

    waiting = asyncio.create_task(Threads().call(stubborn))
    await eventually(started.is_set)
    await cancelled(waiting)
    assert len(raised) == 2


def batch(number: int) -> np.ndarray:
    return np.full((2, 3), number, dtype=np.float32)


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def held_until(event: threading.Event, answer: planner_pb2.PlanOperation) -> Callable[[Any], planner_pb2.PlanOperation]:
    def wait(_: object) -> planner_pb2.PlanOperation:
        event.wait(WAIT_SECONDS)
        return answer

    return wait


def one_then_wait(event: threading.Event, _: object) -> Iterator[planner_pb2.DeploymentEvent]:
    yield READY
    event.wait(WAIT_SECONDS)
