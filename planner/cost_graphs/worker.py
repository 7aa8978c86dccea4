"""One of the two processes that search a free placement: `python -m planner.cost_graphs.worker ROLE DESCRIPTOR`.

It is sent a Task, then the reports of the other, and sends its own. Both count steps: before it goes on, each waits for
what the other has after as many, so that what it takes over does not depend on which was quicker. When the other end of
its pipe closes, it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

from planner.cost_graphs.messages import ENDED, Report, Role, Task
from planner.cost_graphs.placement.contiguous import best_contiguous
from planner.cost_graphs.placement.free import (
    Annealing,
    Incumbent,
    Programmes,
    first_incumbent,
    improved,
    steps_of_question,
)
from planner.cost_graphs.placement.netlists.milp import OnQuestion, num_columns
from planner.cost_graphs.placement.netlists.netlist import Netlist, netlist_of
from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.errors import Infeasible
from planner.partition.out_of_time import OutOfTime

_FIRST_STEPS, _MOST_DOUBLINGS = 2_000_000, 3
# Pairs of ideals of the contiguous placement to start from, and annealing steps that take as long.
_CONTIGUOUS_PAIRS, _CONTIGUOUS_STEPS = 1 << 29, 4_000_000
_TURNS_IN_VAIN = 2
# Of neighbourhoods that are tried before a new start.
_FIRST_LEVEL = 1
# Of the whole between two new starts.
_SLICE_STEPS = 40_000_000
# A programme of the whole tells how far it is, and looks what the other has, after so many steps.
_REPORT_STEPS = 4_000_000
# It begins anew only for this share less: what it has proven so far is lost.
_FAR_BETTER = 1e-3
_UNLIMITED = 1 << 60
# A programme of so few columns is mostly solved, and proven, before annealing has got anywhere.
_SMALL_COLUMNS, _FIRST_QUESTIONS = 1_000, 500
# A question of a neighbourhood's programme in steps of annealing: the median of the published graphs, on which it is
# 2,000 to 30,000.
_NEIGHBOURHOOD_QUESTION_STEPS = 13_000
# One of the whole before it branches, as a share of what a turn counts, and then for each column: on the published
# graphs 0.4 to 0.7, and 2 to 4.
_ROOT_QUESTION_SHARE, _BRANCHING_STEPS_PER_COLUMN = 0.5, 3
# Longer waits are refused.
_LONGEST_WAIT_SECONDS = 3600.0


class Exchange:
    """Counts the steps of this search and keeps it in step with the other. `on_end`: when the other end closes."""

    def __init__(self, connection: Connection, task: Task, on_end: Callable[[], object]) -> None:
        self._connection, self._on_end, self._task = connection, on_end, task
        self._arrived: SimpleQueue[Report] = SimpleQueue()
        self._pending: deque[Report] = deque()
        self._other_steps = -1
        self._proven_steps = ENDED
        self._shared: Incumbent | None = None
        self.steps = 0
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self.steps >= self._task.num_steps or self.out_of_time()

    def out_of_time(self) -> bool:
        """Also once the other had a proof with fewer steps: nothing that comes later counts."""
        return time.monotonic() >= self._task.deadline_seconds or self._proven_steps < self.steps

    def counting(self, steps: int) -> OutOfTime:
        """Counts so many for each time that it is asked."""

        def out_of_time() -> bool:
            self.steps += steps
            return self.out_of_time()

        return out_of_time

    def questions_of(self, netlist: Netlist) -> OnQuestion:
        """Counts what each question of a programme of the whole takes."""
        at_root = max(1, int(steps_of_question(netlist) * _ROOT_QUESTION_SHARE))
        branching = min(at_root, _BRANCHING_STEPS_PER_COLUMN * num_columns(netlist))

        def count_one(is_branching: bool) -> None:
            self.steps += branching if is_branching else at_root

        return count_one

    def following(self, netlist: Netlist, best: Incumbent, most_steps: int = ENDED) -> OutOfTime:
        """For a programme of the whole: ends after so many steps, at the end of the search, or when the other has
        something far better."""
        last, next_report = self.steps + most_steps, self.steps + _REPORT_STEPS
        far_better_seconds = best.value_seconds * (1 - _FAR_BETTER)

        def out_of_time() -> bool:
            nonlocal next_report
            if self.steps >= next_report:
                next_report = self.steps + _REPORT_STEPS
                if self.share(netlist, best).value_seconds < far_better_seconds:
                    return True
            return self.steps >= last or self.has_ended

        return out_of_time

    def share(self, netlist: Netlist, best: Incumbent) -> Incumbent:
        """The better of both after as many steps."""
        self._report(best, self.steps)
        while self._other_steps < self.steps and not self.out_of_time():
            self._wait()
        if self._shared is not None:
            best = improved(netlist, best, self._shared.devices, self._shared.bound_seconds)
        while self._pending and self._pending[0].steps <= self.steps:
            report = self._pending.popleft()
            best = improved(netlist, best, report.devices, report.bound_seconds)
        self._shared = best
        return best

    def end(self, best: Incumbent) -> None:
        self._report(best, ENDED)

    def _report(self, best: Incumbent, steps: int) -> None:
        self._connection.send(
            Report(steps=steps, devices=best.devices, bound_seconds=best.bound_seconds, is_proven=best.is_proven)
        )

    def _wait(self) -> None:
        left_seconds = self._task.deadline_seconds - time.monotonic()
        with suppress(Empty):
            report = self._arrived.get(timeout=min(max(left_seconds, 0.0), _LONGEST_WAIT_SECONDS))
            self._pending.append(report)
            self._other_steps = report.steps

    def _receive(self) -> None:
        try:
            while True:
                report: Report = self._connection.recv()
                if report.is_proven:
                    self._proven_steps = min(self._proven_steps, report.steps)
                self._arrived.put(report)
        except (EOFError, OSError):
            self._on_end()


def search(role: Role, task: Task, exchange: Exchange) -> None:
    """Until proven, out of steps or out of time."""
    netlist = netlist_of(task.problem)
    if role is Role.ANNEALING:
        exchange.steps = _CONTIGUOUS_STEPS
        best = first_incumbent(task.problem, netlist, _contiguous(task.problem, exchange.out_of_time))
        best = _anneal(netlist, exchange.share(netlist, best), exchange)
    else:
        best = first_incumbent(task.problem, netlist)
        best = _replace(netlist, exchange.share(netlist, best), exchange)
    exchange.end(best)


def _contiguous(problem: PlacementProblem, out_of_time: OutOfTime) -> tuple[Placement, ...]:
    """A free placement may exist where no contiguous one does."""
    try:
        return (best_contiguous(problem, max_pairs=_CONTIGUOUS_PAIRS, out_of_time=out_of_time),)
    except Infeasible:
        return ()


def _anneal(netlist: Netlist, best: Incumbent, exchange: Exchange) -> Incumbent:
    annealing, programmes = Annealing(netlist), Programmes(netlist)
    if num_columns(netlist) <= _SMALL_COLUMNS:
        best = _of_whole(programmes, netlist, best, exchange, questions=_FIRST_QUESTIONS)
        best = exchange.share(netlist, best)
    turns, in_vain = 0, 0
    while not (best.is_proven or exchange.has_ended):
        before = best.value_seconds
        best = _annealed(annealing, best, _FIRST_STEPS << min(turns, _MOST_DOUBLINGS), exchange)
        best = exchange.share(netlist, best)
        turns, in_vain = turns + 1, in_vain + 1 if best.value_seconds == before else 0
        if in_vain >= _TURNS_IN_VAIN:
            best = _of_whole(programmes, netlist, best, exchange, enough=_FAR_BETTER)
            best = exchange.share(netlist, best)
    return best


def _replace(netlist: Netlist, best: Incumbent, exchange: Exchange) -> Incumbent:
    """From the best in hand and from new starts by turns: neighbourhoods alone do not leave some valleys."""
    packed, programmes = best, Programmes(netlist, first_turn=1)
    annealing = Annealing(netlist, first_turn=1)
    best = _annealed(annealing, best, _FIRST_STEPS, exchange)
    counting = exchange.counting(_NEIGHBOURHOOD_QUESTION_STEPS)
    for level in count(_FIRST_LEVEL):
        while programmes.level < level and not (programmes.is_exhausted or best.is_proven or exchange.has_ended):
            best = programmes.neighbourhoods(best, 1, _UNLIMITED, counting)
            best = exchange.share(netlist, best)
        if best.is_proven or exchange.has_ended:
            break
        if programmes.is_exhausted:
            best = _of_whole(programmes, netlist, best, exchange, most_steps=_SLICE_STEPS, enough=_FAR_BETTER)
        other = _from_new(netlist, packed, annealing, level, exchange)
        best = exchange.share(netlist, improved(netlist, best, other.devices))
    return best


def _of_whole(
    programmes: Programmes,
    netlist: Netlist,
    best: Incumbent,
    exchange: Exchange,
    *,
    questions: int = _UNLIMITED,
    most_steps: int = ENDED,
    enough: float = 1.0,
) -> Incumbent:
    following = exchange.following(netlist, best, most_steps)
    return programmes.whole(best, questions, following, enough, exchange.questions_of(netlist))


def _from_new(netlist: Netlist, packed: Incumbent, annealing: Annealing, turn: int, exchange: Exchange) -> Incumbent:
    """Annealed and polished apart from what is in hand."""
    other = _annealed(annealing, packed, 2 * _FIRST_STEPS, exchange)
    programmes = Programmes(netlist, first_turn=turn)
    counting = exchange.counting(_NEIGHBOURHOOD_QUESTION_STEPS)
    while programmes.level < _FIRST_LEVEL and not (other.is_proven or exchange.has_ended):
        other = programmes.neighbourhoods(other, 1, _UNLIMITED, counting)
    return other


def _annealed(annealing: Annealing, best: Incumbent, steps: int, exchange: Exchange) -> Incumbent:
    exchange.steps += steps
    return annealing.turn(best, steps, exchange.out_of_time)


def main() -> None:
    role, descriptor = sys.argv[1:]
    connection = Connection(int(descriptor))
    task: Task = connection.recv()
    search(Role(role), task, Exchange(connection, task, on_end=lambda: os._exit(1)))
    connection.close()
    os._exit(0)


if __name__ == "__main__":
    main()
