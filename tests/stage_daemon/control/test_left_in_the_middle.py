"""Clients that leave in the middle of a question to a worker: the next one hears nothing of theirs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.control.hosted import HostedDeployment
from stage_daemon.control.lifecycle import Life, Phase
from stage_daemon.control.rendezvous import Rendezvous
from stage_daemon.control.worker_process import WorkerProcess, start_with
from stage_daemon.errors import Conflict, Released
from stage_daemon.worker.failures import failure_from_error
from stage_daemon.worker.frames import Frame, FrameKind, read_frame, write_frame
from tests.waiting import WAIT_SECONDS, eventually, leave

# More than a socket holds.
LARGE = 1 << 23


class ProcessThatLives:
    """What a WorkerProcess needs of one."""

    pid = 1
    exitcode = None

    def __init__(self) -> None:
        self.sentinel, self._other_end = os.pipe()

    def kill(self) -> None:
        raise AssertionError("the deployment has ended")

    def close(self) -> None:
        os.close(self.sentinel)
        os.close(self._other_end)


def hosted_in(phase: Phase) -> HostedDeployment:
    return HostedDeployment(
        life=Life(deployment_id="dep-1", generation=1, stages=(0,), phase=phase),
        device_id="a",
        torch_device="cpu",
        worker_silence_seconds=600.0,
        loading=asyncio.Semaphore(1),
        on_change=lambda: None,
    )


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[HostedDeployment, socket.socket]]:
    """A deployment that runs, and the worker's end of its connection."""
    ours, theirs = socket.socketpair()
    process: Any = ProcessThatLives()
    hosted = hosted_in(Phase.RUNNING)
    hosted.connection = stage_daemon_pb2.ConnectStagesRequest(deadline_seconds=600.0)
    worker = hosted._worker = WorkerProcess(deployment_id="dep-1", device="cpu", process=process, connection=ours)
    await worker._open()
    yield hosted, theirs
    asyncio.get_running_loop().remove_reader(process.sentinel)
    theirs.close()
    await worker._reading
    worker._connection.close()
    process.close()


async def answers(hosted: HostedDeployment, request: bytes) -> list[bytes]:
    return [answer async for answer in hosted.train(request)]


async def test_who_trains_hears_no_answer_to_one_that_left_while_its_request_was_on_the_way(
    ends: tuple[HostedDeployment, socket.socket],
) -> None:
    hosted, worker = ends
    first = asyncio.create_task(answers(hosted, b"1" * LARGE))
    # The rest of it waits for room in the socket.
    await asyncio.to_thread(worker.recv, 1, socket.MSG_PEEK)
    await leave(first)
    second = asyncio.create_task(answers(hosted, b"2"))
    for request in (b"1" * LARGE, b"2"):
        frame = await asyncio.to_thread(read_frame, worker)
        assert frame is not None
        assert frame.body == request
        await asyncio.to_thread(write_frame, worker, Frame(kind=FrameKind.TRAINED, body=b"done " + request[:1]))
    assert await second == [b"done 2"]


async def test_who_trains_next_waits_until_the_worker_has_ended_what_came_by_its_door(
    ends: tuple[HostedDeployment, socket.socket],
) -> None:
    hosted, worker = ends
    hosted.connection.training.SetInParent()
    with hosted.training(by_door=True):
        pass
    second = asyncio.create_task(answers(hosted, b"2"))
    ending = await asyncio.to_thread(read_frame, worker)
    assert ending is not None
    assert stage_daemon_pb2.TrainRequest.FromString(ending.body).WhichOneof("content") == "leave"
    await asyncio.to_thread(write_frame, worker, Frame(kind=FrameKind.TRAINED, body=b"left"))
    asked = await asyncio.to_thread(read_frame, worker)
    assert asked is not None
    assert asked.body == b"2"
    await asyncio.to_thread(write_frame, worker, Frame(kind=FrameKind.TRAINED, body=b"done 2"))
    assert await second == [b"done 2"]


async def test_who_saves_hears_no_answer_to_one_that_left_while_its_snapshot_was_saved(
    ends: tuple[HostedDeployment, socket.socket],
) -> None:
    """A worker saves snapshots at the same time, and that of the second may be there first."""
    hosted, worker = ends
    first = asyncio.create_task(hosted.save_snapshot())
    assert await asyncio.to_thread(read_frame, worker) == Frame(kind=FrameKind.SAVE_SNAPSHOT)
    with pytest.raises(Conflict, match="is being saved already"):
        await hosted.save_snapshot()
    await leave(first)
    second = asyncio.create_task(hosted.save_snapshot())
    saved = {size: saved_file(size) for size in (1, 2)}
    asked = asyncio.create_task(asyncio.to_thread(read_frame, worker))
    asked_at_once, _ = await asyncio.wait({asked}, timeout=0.2)
    if asked_at_once:
        await asyncio.to_thread(write_frame, worker, saved[2])
    await asyncio.to_thread(write_frame, worker, saved[1])
    assert await asked == Frame(kind=FrameKind.SAVE_SNAPSHOT)
    if not asked_at_once:
        await asyncio.to_thread(write_frame, worker, saved[2])
    assert [file.size_bytes for file in (await second).files] == [2]


async def test_what_a_client_chose_that_left_before_it_was_chosen_is_forgotten(
    ends: tuple[HostedDeployment, socket.socket],
) -> None:
    hosted, worker = ends
    worker.settimeout(WAIT_SECONDS)
    opened = stage_daemon_pb2.OpenSession(session_id=7, outputs=[stage_daemon_pb2.ChosenOutput(index=1)])

    async def choose() -> None:
        async with hosted.choosing(opened):
            raise AssertionError("the worker has not answered")

    first = asyncio.create_task(choose())
    asked = await asyncio.to_thread(read_frame, worker)
    await leave(first)
    forgotten = await asyncio.to_thread(read_frame, worker)
    for frame, told in ((asked, opened), (forgotten, stage_daemon_pb2.OpenSession(session_id=7))):
        assert frame == Frame(kind=FrameKind.CHOOSE, body=told.SerializeToString())
        await asyncio.to_thread(write_frame, worker, Frame(kind=FrameKind.CHOSEN))
    await eventually(lambda: not hosted._tasks)


async def test_where_a_snapshot_that_nobody_waits_for_is_not_saved_the_next_one_is(
    ends: tuple[HostedDeployment, socket.socket],
) -> None:
    hosted, worker = ends
    first = asyncio.create_task(hosted.save_snapshot())
    assert await asyncio.to_thread(read_frame, worker) == Frame(kind=FrameKind.SAVE_SNAPSHOT)
    await leave(first)
    failure = failure_from_error(Conflict("no planner takes it")).SerializeToString()
    await asyncio.to_thread(write_frame, worker, Frame(kind=FrameKind.SNAPSHOT_NOT_SAVED, body=failure))
    second = asyncio.create_task(hosted.save_snapshot())
    assert await asyncio.to_thread(read_frame, worker) == Frame(kind=FrameKind.SAVE_SNAPSHOT)
    await asyncio.to_thread(write_frame, worker, saved_file(2))
    assert [file.size_bytes for file in (await second).files] == [2]
    await eventually(lambda: not hosted._tasks)


async def test_a_rendezvous_whose_caller_has_left_is_closed_with_the_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planner calls off what it asked for when it stops a deployment in the middle of its rollout."""
    is_closed, may_open = [], asyncio.Event()

    class Opened:
        port = 1

        def close(self) -> None:
            is_closed.append(True)

    async def open_slowly(_: str, __: bytes) -> Opened:
        await may_open.wait()
        return Opened()

    monkeypatch.setattr(Rendezvous, "open", open_slowly)
    hosted = hosted_in(Phase.LOADED)
    asked = asyncio.create_task(hosted.open_rendezvous("127.0.0.1"))
    await asyncio.sleep(0)
    await leave(asked)
    await hosted.release(drain_seconds=0.0)
    may_open.set()
    await eventually(lambda: is_closed)
    with pytest.raises(Released):
        await hosted.open_rendezvous("127.0.0.1")


async def test_a_connection_that_a_process_is_being_given_stays_until_it_has_it() -> None:
    """Its number would be that of the next connection, whoever has left meanwhile."""
    ours, theirs = socket.socketpair()
    is_starting, may_start = threading.Event(), threading.Event()

    class Starting:
        def start(self) -> None:
            is_starting.set()
            may_start.wait(WAIT_SECONDS)

    process: Any = Starting()
    started = asyncio.create_task(start_with(process, ours, theirs))
    await asyncio.to_thread(is_starting.wait, WAIT_SECONDS)
    await leave(started)
    assert theirs.fileno() >= 0
    may_start.set()
    await eventually(lambda: theirs.fileno() < 0 and ours.fileno() < 0)


def saved_file(size_bytes: int) -> Frame:
    response = stage_daemon_pb2.SaveSnapshotResponse(files=[planner_pb2.SavedFile(size_bytes=size_bytes)])
    return Frame(kind=FrameKind.SNAPSHOT_SAVED, body=response.SerializeToString())
