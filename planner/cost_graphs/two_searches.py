"""A free placement by two processes that tell each other what they have, ended in time whatever they do.

The answer follows from the steps that both count, not from which is quicker: see `worker`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from planner.cost_graphs.limits import Limits
from planner.cost_graphs.messages import ENDED, Report, Role, Task
from planner.cost_graphs.placement.free import Incumbent, improved, incumbent_of, placement_of
from planner.cost_graphs.placement.infeasible import check_can_exist, nothing_fits
from planner.cost_graphs.placement.netlists.netlist import Netlist, netlist_of
from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.partition.placement.compiled import warn_without_compiler
from planner.partition.placement.packing import first_packing, fits

# Of each of the two, about a million a second on a busy core and twice to three times as many on an idle one.
STEPS = 150_000_000
# Of the limit, what the interpreter takes to start and everything to end.
_OUTSIDE_SECONDS = 3.0
_OUTSIDE_SHARE = 0.1
# For a process to be told, and to end a step that it is in.
_SPARE_SECONDS = 0.5
_LEAST_SHARE = 0.5
# The operating system refuses waits of more than 2^31 ms.
_LONGEST_WAIT_SECONDS = 3600.0


def place_by_two(problem: PlacementProblem, limits: Limits) -> Placement:
    """The best that both have reported within the limits. Raises Infeasible."""
    warn_without_compiler()
    check_can_exist(problem)
    limit_seconds = limits.deadline_seconds - limits.started_seconds
    deadline = limits.deadline_seconds - min(_OUTSIDE_SECONDS, limit_seconds * _OUTSIDE_SHARE)
    spare = min(_SPARE_SECONDS, limit_seconds * _LEAST_SHARE)
    task = Task(problem=problem, num_steps=int(STEPS * limits.effort), deadline_seconds=deadline - spare)
    with _workers() as connections:
        for connection in connections:
            _send(connection, task)
        netlist = netlist_of(problem)
        reports = _collected(connections, deadline)
    limits.has_cut |= time.monotonic() >= task.deadline_seconds
    best = _best(netlist, reports)
    if best is None:
        raise nothing_fits(problem, "free", proven=False)
    return placement_of(problem, netlist, best)


def _collected(connections: list[Connection], deadline_seconds: float) -> list[Report]:
    """In the order of their steps; of equal ones, as the processes were started. Each is passed on to the other."""
    reports: list[tuple[int, int, Report]] = []
    open_ones = list(connections)
    while open_ones:
        remaining_seconds = deadline_seconds - time.monotonic()
        if remaining_seconds <= 0:
            break
        for connection in wait(open_ones, min(remaining_seconds, _LONGEST_WAIT_SECONDS)):
            assert isinstance(connection, Connection)
            report = _received(connection)
            if report is None:
                open_ones.remove(connection)
                report = Report(steps=ENDED)
            reports.append((report.steps, connections.index(connection), report))
            for other in open_ones:
                if other is not connection:
                    _send(other, report)
    return [report for *_, report in sorted(reports, key=lambda entry: entry[:2])]


def _best(netlist: Netlist, reports: Sequence[Report]) -> Incumbent | None:
    """From a packing on; what comes after a proof does not count."""
    packed = first_packing(netlist)
    best = None if packed is None else incumbent_of(netlist, packed, 0.0)
    for report in reports:
        if best is not None and best.is_proven:
            break
        if report.devices is None:
            continue
        if best is not None:
            best = improved(netlist, best, report.devices, report.bound_seconds)
        elif fits(netlist, report.devices):
            best = incumbent_of(netlist, report.devices, report.bound_seconds)
    return best


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


def _send(connection: Connection, message: Task | Report) -> None:
    """One that has ended is noticed where it is listened to."""
    with suppress(OSError):
        connection.send(message)


def _received(connection: Connection) -> Report | None:
    try:
        report: Report = connection.recv()
    except (EOFError, OSError):
        return None
    return report
