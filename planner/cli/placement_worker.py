"""One of the two processes that search a free placement: `python -m planner.cli.placement_worker ROLE DESCRIPTOR`.

It is sent a Task, then what others find, and sends what it finds. When the other end of its pipe closes, it ends.
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

from planner.cli.placement_messages import Found, Role, Task
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
    """What this process holds, and what others have found since. `on_end` is called when the other end closes."""

    def __init__(self, connection: Connection, task: Task, on_end: Callable[[], object]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._received: Found | None = None
        self._sent = (np.inf, -np.inf)
        self._deadline_seconds = task.deadline_seconds
        threading.Thread(target=self._receive, daemon=True).start()

    def out_of_time(self) -> bool:
        return time.monotonic() >= self._deadline_seconds

    def within(self, seconds: float, value_seconds: float) -> Callable[[], bool]:
        """Ends after so long, at the deadline, or when others have found something far better."""
        end = min(time.monotonic() + seconds, self._deadline_seconds)
        far_better = value_seconds * (1 - _FAR_BETTER)
        return lambda: (
            time.monotonic() >= end or (self._received is not None and self._received.value_seconds < far_better)
        )

    def share(self, netlist: Netlist, held: Incumbent) -> Incumbent:
        """The better of the two, and the others told."""
        received, self._received = self._received, None
        if received is not None:
            held = improved(netlist, held, received.devices, received.bound_seconds)
        news = (held.value_seconds, held.bound_seconds)
        if news[0] < self._sent[0] or news[1] > self._sent[1]:
            self._connection.send(Found(devices=held.devices, value_seconds=news[0], bound_seconds=news[1]))
            self._sent = news
        return held

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
        held = first_incumbent(task.problem, netlist, contiguous_start(task.problem, _third(task)))
        _anneal(netlist, exchange.share(netlist, held), exchange)
    else:
        held = first_incumbent(task.problem, netlist)
        _replace(netlist, exchange.share(netlist, held), exchange)


def _anneal(netlist: Netlist, held: Incumbent, exchange: Exchange) -> None:
    annealing, programmes = Annealing(netlist), Programmes(netlist)
    if num_columns(netlist) <= _SMALL_COLUMNS:
        held = programmes.whole(held, _FIRST_QUESTIONS, exchange.out_of_time)
        held = exchange.share(netlist, held)
    turns, in_vain = 0, 0
    while not held.is_proven and not exchange.out_of_time():
        before = held.value_seconds
        held = annealing.turn(held, _FIRST_STEPS << min(turns, _MOST_DOUBLINGS), exchange.out_of_time)
        held = exchange.share(netlist, held)
        turns, in_vain = turns + 1, in_vain + 1 if held.value_seconds == before else 0
        if in_vain >= _TURNS_IN_VAIN:
            held = programmes.whole(held, _UNLIMITED, exchange.within(np.inf, held.value_seconds), _FAR_BETTER)
            held = exchange.share(netlist, held)


def _replace(netlist: Netlist, held: Incumbent, exchange: Exchange) -> None:
    """From the best in hand and from new starts by turns: neighbourhoods alone do not leave some valleys."""
    packed, programmes = held, Programmes(netlist, first_turn=1)
    annealing = Annealing(netlist, first_turn=1)
    held = annealing.turn(held, _FIRST_STEPS, exchange.out_of_time)
    for level in count(_FIRST_LEVEL):
        while programmes.level < level and not (programmes.is_exhausted or held.is_proven or exchange.out_of_time()):
            held = programmes.neighbourhoods(held, 1, _UNLIMITED, exchange.out_of_time)
            held = exchange.share(netlist, held)
        if held.is_proven or exchange.out_of_time():
            break
        if programmes.is_exhausted:
            held = programmes.whole(held, _UNLIMITED, exchange.within(_SLICE_SECONDS, held.value_seconds), _FAR_BETTER)
        other = _from_new(netlist, packed, annealing, level, exchange)
        held = exchange.share(netlist, improved(netlist, held, other.devices))


def _from_new(netlist: Netlist, packed: Incumbent, annealing: Annealing, turn: int, exchange: Exchange) -> Incumbent:
    """Annealed and polished apart from what is in hand."""
    found = annealing.turn(packed, 2 * _FIRST_STEPS, exchange.out_of_time)
    programmes = Programmes(netlist, first_turn=turn)
    while programmes.level < _FIRST_LEVEL and not (found.is_proven or exchange.out_of_time()):
        found = programmes.neighbourhoods(found, 1, _UNLIMITED, exchange.out_of_time)
    return found


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
