"""Computations in processes of their own: results, errors, deaths, cancelling, deadlines."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from planner.api import computing as computing_module
from planner.api.computing import NICENESS, ComputationFailed, Computing, TimedOut, WorkerDied
from planner.errors import Infeasible, ResourceExhausted

pytestmark = pytest.mark.services
DEADLINE_SECONDS = 120.0


def add(left: int, right: int) -> int:
    return left + right


def refuse() -> None:
    raise Infeasible("no room", stage=3)


def stumble() -> None:
    raise KeyError("unforeseen")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def put(path: Path, text: str) -> None:
    """All of `text` at once: whoever waits for the file never finds it there and still empty."""
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


def say_and_sleep(path: Path) -> None:
    put(path, str(os.getpid()))
    time.sleep(600)


def stop_in_the_answer() -> str:
    """Stands still once half of it is sent."""

    def send(connection: Connection, content: bytes) -> None:
        os.write(connection.fileno(), struct.pack("!i", len(content)) + bytes(content[:1]))
        os.kill(os.getpid(), signal.SIGSTOP)

    Connection._send_bytes = send  # type: ignore[attr-defined]
    return "answer"


def run_out_of_memory() -> None:
    raise MemoryError


def take(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def what_cannot_be_pickled() -> object:
    return lambda: None


def surroundings() -> tuple[object, object, str, int]:
    """How this process takes the interrupt and the request to end, how gladly the kernel ends it, and its niceness."""
    likely = Path("/proc/self/oom_score_adj").read_text().strip()
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), likely, os.nice(0)


def wait_for(path: Path) -> str:
    _read_once_there(path)
    return path.name


def many_bytes() -> bytes:
    return bytes(50_000_000)


async def test_result() -> None:
    computing = Computing(2)
    assert await computing.run(DEADLINE_SECONDS, add, 2, 3) == 5
    assert len(await computing.run(DEADLINE_SECONDS, many_bytes)) == 50_000_000


async def test_error_arrives_whole() -> None:
    with pytest.raises(Infeasible, match="no room") as caught:
        await Computing(1).run(DEADLINE_SECONDS, refuse)
    assert caught.value.metadata == {"stage": "3"}


async def test_unforeseen_error_brings_its_traceback() -> None:
    with pytest.raises(ComputationFailed, match="KeyError") as caught:
        await Computing(1).run(DEADLINE_SECONDS, stumble)
    assert "in stumble" in caught.value.metadata["details"]


@pytest.mark.parametrize(("how", "told"), [(die, "SIGKILL"), (leave, "exit code 3")])
async def test_process_that_dies(how: object, told: str) -> None:
    with pytest.raises(WorkerDied, match=told):
        await Computing(1).run(DEADLINE_SECONDS, how)
    assert await Computing(1).run(DEADLINE_SECONDS, add, 1, 1) == 2


async def test_memory_that_runs_out_is_told_as_such() -> None:
    with pytest.raises(ResourceExhausted, match="ran out of memory"):
        await Computing(1).run(DEADLINE_SECONDS, run_out_of_memory)


async def test_a_result_that_cannot_be_sent_ends_the_process_only() -> None:
    computing = Computing(1)
    with pytest.raises(WorkerDied, match="exit code 1"):
        await computing.run(DEADLINE_SECONDS, what_cannot_be_pickled)
    assert await computing.run(DEADLINE_SECONDS, add, 1, 1) == 2


async def test_a_process_leaves_interrupts_and_the_processor_to_the_server_and_is_the_first_to_go() -> None:
    """The first where memory ends."""
    surrounding = await Computing(1).run(DEADLINE_SECONDS, surroundings)
    assert surrounding == (signal.SIG_IGN, signal.SIG_DFL, "1000", min(19, os.nice(0) + NICENESS))


async def test_turns_are_given_to_as_many_as_there_are_workers(tmp_path: Path) -> None:
    computing = Computing(2)
    begun: list[str] = []

    async def compute(name: str) -> None:
        async with computing.turn():
            begun.append(name)
            await computing.run(DEADLINE_SECONDS, wait_for, tmp_path / name)

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(compute(name))
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun == ["a", "b"]
        put(tmp_path / "b", "0")
        while len(begun) < 3:  # noqa: ASYNC110  a computation tells nobody that it has ended
            await asyncio.sleep(0.01)
        for name in "ac":
            put(tmp_path / name, "0")


async def test_cancelled_process_is_killed(tmp_path: Path) -> None:
    computing = Computing(2)
    path = tmp_path / "process_id"
    task = asyncio.create_task(computing.run(DEADLINE_SECONDS, say_and_sleep, path))
    process_id = await asyncio.wait_for(asyncio.to_thread(_read_once_there, path), DEADLINE_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert await computing.run(DEADLINE_SECONDS, add, 1, 2) == 3


async def test_deadline(tmp_path: Path) -> None:
    with pytest.raises(TimedOut, match=r"0\.3 seconds"):
        await Computing(1).run(0.3, say_and_sleep, tmp_path / "process_id")


def _read_once_there(path: Path) -> int:
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


async def test_a_computation_takes_no_more_memory_than_it_may() -> None:
    computing = Computing(1, memory_bytes=64 << 20)
    with pytest.raises(ResourceExhausted, match="PLANNER_PLAN_MEMORY_BYTES"):
        await computing.run(DEADLINE_SECONDS, take, 128 << 20)
    assert await computing.run(DEADLINE_SECONDS, take, 8 << 20) == 8 << 20


def take_in_a_container(num_bytes: int) -> int:
    """One that has 64 MiB left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing_module, "memory_room_bytes", lambda: 64 << 20)
        computing_module._limit_memory(None)
    return take(num_bytes)


async def test_a_computation_takes_no_more_memory_than_its_container_has() -> None:
    with pytest.raises(ResourceExhausted, match="its container's limit"):
        await Computing(1).run(DEADLINE_SECONDS, take_in_a_container, 128 << 20)
    assert await Computing(1).run(DEADLINE_SECONDS, take_in_a_container, 8 << 20) == 8 << 20


def add_where_the_kernel_tells_nothing(one: int, other: int) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing_module, "OWN_MEMORY", Path("/proc/self/missing"))
        computing_module._limit_memory(1)
    return one + other


async def test_without_procfs_nothing_is_limited() -> None:
    assert await Computing(1).run(DEADLINE_SECONDS, add_where_the_kernel_tells_nothing, 1, 2) == 3


async def test_a_process_that_stands_still_in_the_middle_of_its_answer_is_not_waited_for() -> None:
    computing = Computing(1)
    with pytest.raises(TimedOut):
        await computing.run(1.0, stop_in_the_answer)
    assert await computing.run(DEADLINE_SECONDS, add, 1, 2) == 3
