"""Long computations beside the event loop: each in a process of its own, which can be killed without harm to others.

Processes are forked from a server that has the planner loaded already, which takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from access.container import memory_room_bytes
from planner.api.threads import in_thread
from planner.errors import PlannerError, ResourceExhausted

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PRELOADED = ["planner.api.preload"]
OWN_MEMORY = Path("/proc/self/statm")
JOIN_SECONDS = 10.0
# A third of a core's time beside a process that is as busy: whoever asks the server meanwhile is answered first.
NICENESS = 5


class WorkerDied(PlannerError):
    reason = "WORKER_DIED"


class TimedOut(PlannerError):
    reason = "TIMEOUT"


class ComputationFailed(PlannerError):
    """An exception that nobody foresaw; `details` is its traceback, for the log."""

    reason = "INTERNAL"


class Computing:
    """At most `num_workers` computations at a time; others wait their turn.

    Each may take `memory_bytes` of address space beyond what its process begins with, None sets no limit; and no more
    memory than the server's container has left when it begins.
    """

    def __init__(self, num_workers: int, memory_bytes: int | None = None) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        # Now, so that it loads while the server starts: the first call then finds it ready.
        forkserver.ensure_running()
        self.num_workers = num_workers
        self._memory_bytes = memory_bytes
        self._turns = asyncio.Semaphore(num_workers)

    def turn(self) -> asyncio.Semaphore:
        """`async with computing.turn()` around `run`."""
        return self._turns

    async def run(
        self, timeout_seconds: float, call: Callable[Arguments, Result], *args: Arguments.args, **_: Arguments.kwargs
    ) -> Result:
        """`call(*args)` in a process of its own: arguments and result are pickled. Killed when cancelled or too late.

        Raises what the call raised where that is a PlannerError, else WorkerDied, TimedOut or ComputationFailed.
        """
        parent, child = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(child, self._memory_bytes, call, args), daemon=True)
        try:
            await in_thread(process.start)
            child.close()
            async with asyncio.timeout(timeout_seconds):
                await _readable(parent)
                outcome = await _received(parent, process)
        except TimeoutError:
            raise TimedOut(
                f"it took longer than {timeout_seconds:g} seconds; ask for less, or raise the server's limit"
            ) from None
        finally:
            child.close()
            await in_thread(_end, process)
            parent.close()
        if outcome is None:
            raise WorkerDied(f"its process {_how(process)}; the server has more in its log, and goes on")
        if isinstance(outcome, PlannerError):
            raise outcome
        return outcome[0]  # type: ignore[no-any-return]


async def _readable(connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(connection.fileno(), _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


async def _received(connection: Connection, process: ForkServerProcess) -> Any:
    """As _receive. Whoever is cancelled waits for no process that stands still in the middle of its answer."""
    receiving = asyncio.ensure_future(in_thread(_receive, connection, process))
    try:
        return await asyncio.shield(receiving)
    except asyncio.CancelledError:
        process.kill()
        await asyncio.wait({receiving})
        raise


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _receive(connection: Connection, process: ForkServerProcess) -> Any:
    """The outcome, or None where the process died on the way."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join(JOIN_SECONDS)
        return None


def _end(process: ForkServerProcess) -> None:
    if process.pid is None:
        return
    # One that has given its result is about to end; one that has not will never be asked for it.
    process.kill()
    process.join(JOIN_SECONDS)


def _how(process: ForkServerProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _work(connection: Connection, memory_bytes: int | None, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(NICENESS)
    # Where memory runs out, the computation goes and not the server.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit_memory(memory_bytes)
    connection.send(_outcome(call, args))


def _limit_memory(memory_bytes: int | None) -> None:
    """Beyond it Python raises MemoryError, and libraries that cannot end the process. Where a container's memory runs
    out, Kubernetes ends all that is in it, with the server."""
    try:
        address_space, _, _, _, _, data, _ = map(int, OWN_MEMORY.read_text().split())
    except OSError:
        # Not on Linux.
        return
    room = memory_room_bytes()
    for kind, pages, more in ((resource.RLIMIT_AS, address_space, memory_bytes), (resource.RLIMIT_DATA, data, room)):
        if more is not None:
            limit = pages * resource.getpagesize() + more
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (limit, limit))


def _outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> PlannerError | tuple[Any]:
    try:
        return (call(*args),)
    except PlannerError as error:
        return error
    except MemoryError:
        return ResourceExhausted(
            "the computation ran out of memory; ask for less, or give the server more (PLANNER_PLAN_MEMORY_BYTES, and "
            "its container's limit)"
        )
    except Exception as error:
        import traceback

        details = "".join(traceback.format_exception(error))[-8000:]
        return ComputationFailed(f"{type(error).__name__}: {error}"[:500], details=details)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
