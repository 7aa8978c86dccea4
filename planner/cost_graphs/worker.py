"""One of the two processes that search a free placement: `python -m planner.cost_graphs.worker ROLE DESCRIPTOR`.

It is sent a Task, then the improvements of others, and sends its own. When the other end of its pipe closes, it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection

import numpy as np

from planner.cost_graphs.messages import Improvement, Role, Task
from planner.partition.placement.free import first_incumbent
from planner.partition.placement.netlists.milp import num_columns
from planner.partition.placement.netlists.netlist import Netlist, netlist_of
from planner.partition.placement.netlists.turns import Annealing, Incumbent, Programmes, improved
from planner.partition.placement.solve import contiguous_start

_FIRST_STEPS, _MOST_DOUBLINGS = 2_000_000, 3
_TURNS_IN_VAIN = 2
# Of neighbourhoods that are tried before a new start.
_FIRST_LEVEL = 1
_SLICE_SECONDS = 20.0
# A programme begins anew only for this share less: what it has proven so far is lost.
_FAR_BETTER = 1e-3
_UNLIMITED = 1 << 60
# A programme of so few columns is mostly solved, and proven, before annealing has got anywhere.
_SMALL_COLUMNS, _FIRST_QUESTIONS = 1_000, 500


class Exchange:
    """What this process has sent, and the last improvement of others. `on_end` is called when the other end closes."""

    def __init__(self, connection: Connection, task: Task, on_end: Callable[[], object]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._received: Improvement | None = None
        self._sent = (np.inf, -np.inf)
        self._deadline_seconds = task.deadline_seconds
        threading.Thread(target=self._receive, daemon=True).start()

    def out_of_time(self) -> bool:
        return time.monotonic() >= self._deadline_seconds

    def within(self, seconds: float, value_seconds: float) -> Callable[[], bool]:
        """Ends after so long, at the deadline, or when others have sent something far better."""
        end = min(time.monotonic() + seconds, self._deadline_seconds)
        far_better = value_seconds * (1 - _FAR_BETTER)
        return lambda: (
            time.monotonic() >= end or (self._received is not None and self._received.value_seconds < far_better)
        )

    def share(self, netlist: Netlist, best: Incumbent) -> Incumbent:
        """The better of the two, and the others told."""
        received, self._received = self._received, None
        if received is not None:
            best = improved(netlist, best, received.devices, received.bound_seconds)
        news = (best.value_seconds, best.bound_seconds)
        if news[0] < self._sent[0] or news[1] > self._sent[1]:
            self._connection.send(Improvement(devices=best.devices, value_seconds=news[0], bound_seconds=news[1]))
            self._sent = news
        return best

    def _receive(self) -> None:
        try:
            while True:
                self._received = self._connection.recv()
        except (EOFError, OSError):
            self._on_end()


def search(role: Role, task: Task, exchange: Exchange) -> None:
    """Until proven or out of time."""
    netlist = netlist_of(task.problem)
    if role is Role.ANNEALING:
        best = first_incumbent(task.problem, netlist, contiguous_start(task.problem, _third(task)))
        _anneal(netlist, exchange.share(netlist, best), exchange)
    else:
        best = first_incumbent(task.problem, netlist)
        _replace(netlist, exchange.share(netlist, best), exchange)


def _anneal(netlist: Netlist, best: Incumbent, exchange: Exchange) -> None:
    annealing, programmes = Annealing(netlist), Programmes(netlist)
    if num_columns(netlist) <= _SMALL_COLUMNS:
        best = programmes.whole(best, _FIRST_QUESTIONS, exchange.out_of_time)
        best = exchange.share(netlist, best)
    turns, in_vain = 0, 0
    while not best.is_proven and not exchange.out_of_time():
        before = best.value_seconds
        best = annealing.turn(best, _FIRST_STEPS << min(turns, _MOST_DOUBLINGS), exchange.out_of_time)
        best = exchange.share(netlist, best)
        turns, in_vain = turns + 1, in_vain + 1 if best.value_seconds == before else 0
        if in_vain >= _TURNS_IN_VAIN:
            best = programmes.whole(best, _UNLIMITED, exchange.within(np.inf, best.value_seconds), _FAR_BETTER)
            best = exchange.share(netlist, best)


def _replace(netlist: Netlist, best: Incumbent, exchange: Exchange) -> None:
    """From the best in hand and from new starts by turns: neighbourhoods alone do not leave some valleys."""
    packed, programmes = best, Programmes(netlist, first_turn=1)
    annealing = Annealing(netlist, first_turn=1)
    best = annealing.turn(best, _FIRST_STEPS, exchange.out_of_time)
    for level in count(_FIRST_LEVEL):
        while programmes.level < level and not (programmes.is_exhausted or best.is_proven or exchange.out_of_time()):
            best = programmes.neighbourhoods(best, 1, _UNLIMITED, exchange.out_of_time)
            best = exchange.share(netlist, best)
        if best.is_proven or exchange.out_of_time():
            break
        if programmes.is_exhausted:
            best = programmes.whole(best, _UNLIMITED, exchange.within(_SLICE_SECONDS, best.value_seconds), _FAR_BETTER)
        other = _from_new(netlist, packed, annealing, level, exchange)
        best = exchange.share(netlist, improved(netlist, best, other.devices))


def _from_new(netlist: Netlist, packed: Incumbent, annealing: Annealing, turn: int, exchange: Exchange) -> Incumbent:
    """Annealed and polished apart from what is in hand."""
    other = annealing.turn(packed, 2 * _FIRST_STEPS, exchange.out_of_time)
    programmes = Programmes(netlist, first_turn=turn)
    while programmes.level < _FIRST_LEVEL and not (other.is_proven or exchange.out_of_time()):
        other = programmes.neighbourhoods(other, 1, _UNLIMITED, exchange.out_of_time)
    return other


def _third(task: Task) -> Callable[[], bool]:
    end = task.started_seconds + (task.deadline_seconds - task.started_seconds) / 3
    return lambda: time.monotonic() >= end


def main() -> None:
    role, descriptor = sys.argv[1:]
    connection = Connection(int(descriptor))
    task: Task = connection.recv()
    search(Role(role), task, Exchange(connection, task, on_end=lambda: os._exit(1)))
    connection.close()
    os._exit(0)


if __name__ == "__main__":
    main()
