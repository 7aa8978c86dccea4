"""A free placement by two processes that tell each other of improvements, ended in time whatever they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from planner.cost_graphs.messages import Improvement, Role, Task
from planner.partition.placement.free import placement_of
from planner.partition.placement.netlists.must_fit import check_can_exist, no_packing_found
from planner.partition.placement.netlists.netlist import Netlist, netlist_of
from planner.partition.placement.netlists.packing import first_packing, fits
from planner.partition.placement.netlists.turns import Incumbent, improved, incumbent_of
from planner.partition.placement.problem import Placement, PlacementProblem

# Of the limit, what the interpreter takes to start and everything to end.
_OUTSIDE_SECONDS = 3.0
_OUTSIDE_SHARE = 0.1
# For a process to be told, and to end a step that it is in.
_SPARE_SECONDS = 0.5
_LEAST_SHARE = 0.5
# The operating system refuses waits of more than 2^31 ms.
_LONGEST_WAIT_SECONDS = 3600.0


def place_by_two(problem: PlacementProblem, *, started_seconds: float, limit_seconds: float) -> Placement:
    """The best that both have sent within the limit. Raises Infeasible."""
    check_can_exist(problem)
    deadline = started_seconds + limit_seconds - min(_OUTSIDE_SECONDS, limit_seconds * _OUTSIDE_SHARE)
    spare = min(_SPARE_SECONDS, limit_seconds * _LEAST_SHARE)
    task = Task(problem=problem, started_seconds=started_seconds, deadline_seconds=deadline - spare)
    with _workers() as connections:
        for connection in connections:
            _send(connection, task)
        netlist = netlist_of(problem)
        best = _collected(netlist, _first(netlist), connections, deadline)
    if best is None:
        raise no_packing_found(problem, proven=False)
    return placement_of(problem, netlist, best)


def _collected(
    netlist: Netlist, best: Incumbent | None, connections: list[Connection], deadline_seconds: float
) -> Incumbent | None:
    """Passes on what is better, until it is proven, none is left to send, or the deadline."""
    open_ones = list(connections)
    while open_ones and not (best and best.is_proven):
        left = deadline_seconds - time.monotonic()
        if left <= 0:
            break
        for connection in wait(open_ones, min(left, _LONGEST_WAIT_SECONDS)):
            assert isinstance(connection, Connection)
            improvement = _received(connection)
            if improvement is None:
                open_ones.remove(connection)
                continue
            before, best = best, _with(netlist, best, improvement)
            if before is None or (best is not None and best.value_seconds < before.value_seconds):
                for other in open_ones:
                    if other is not connection:
                        _send(other, improvement)
    return best


def _with(netlist: Netlist, best: Incumbent | None, improvement: Improvement) -> Incumbent | None:
    devices, bound_seconds = improvement.devices, improvement.bound_seconds
    if best is not None:
        return improved(netlist, best, devices, bound_seconds)
    return incumbent_of(netlist, devices, bound_seconds) if fits(netlist, devices) else None


def _first(netlist: Netlist) -> Incumbent | None:
    packed = first_packing(netlist)
    return None if packed is None else incumbent_of(netlist, packed, 0.0)


@contextmanager
def _workers() -> Iterator[list[Connection]]:
    """A pipe to each; the processes are gone afterwards. A terminal's Ctrl-C does not reach them."""
    started: list[tuple[subprocess.Popen[bytes], Connection]] = []
    try:
        for role in Role:
            started.append(_started(role))
        yield [connection for _, connection in started]
    finally:
        for process, connection in started:
            connection.close()
            process.kill()
        for process, _ in started:
            process.wait()


def _started(role: Role) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "planner.cost_graphs.worker", role.value, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("PLANNER_DEBUG") else subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        theirs.close()
    return process, ours


def _send(connection: Connection, message: Task | Improvement) -> None:
    """One that has ended is noticed where it is listened to."""
    with suppress(OSError):
        connection.send(message)


def _received(connection: Connection) -> Improvement | None:
    try:
        improvement: Improvement = connection.recv()
    except (EOFError, OSError):
        return None
    return improvement
