"""One of the two searches alone: what it sends, what it takes from others, when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np
import pytest

from planner.cost_graphs import worker as worker_module
from planner.cost_graphs.messages import Improvement, Role, Task
from planner.cost_graphs.worker import Exchange, search
from planner.partition.placement.free import best_free, first_incumbent, placement_of
from planner.partition.placement.loads import device_loads
from planner.partition.placement.netlists import neighbourhood_search
from planner.partition.placement.netlists.netlist import netlist_of
from planner.partition.placement.netlists.turns import Incumbent
from planner.partition.placement.problem import PlacementProblem
from tests.planner.partition.placement.small_problems import random_problem
from tests.waiting import WAIT_SECONDS


@pytest.fixture(scope="module")
def problem() -> PlacementProblem:
    return random_problem(11, nodes=12, classes=(1, 2))


def proven_value(problem: PlacementProblem) -> float:
    return best_free(problem, effort=200_000).value_seconds


def task_of(problem: PlacementProblem, seconds: float) -> Task:
    now = time.monotonic()
    return Task(problem=problem, started_seconds=now, deadline_seconds=now + seconds)


@contextmanager
def exchange(task: Task) -> Iterator[tuple[Exchange, Connection, threading.Event]]:
    """The worker's end, the other end, and whether the worker has heard that the other closed."""
    ours, theirs = Pipe()
    ended = threading.Event()
    worker = Exchange(theirs, task, on_end=ended.set)
    try:
        yield worker, ours, ended
    finally:
        ours.close()
        assert ended.wait(WAIT_SECONDS)
        theirs.close()


def sent(connection: Connection) -> list[Improvement]:
    found = []
    while connection.poll():
        found.append(connection.recv())
    return found


def incumbent(problem: PlacementProblem) -> Incumbent:
    return first_incumbent(problem, netlist_of(problem))


def proven_by(role: Role, problem: PlacementProblem, value_seconds: float) -> None:
    """A search of one role alone sends what one process proves."""
    task = task_of(problem, WAIT_SECONDS)
    with exchange(task) as (worker, ours, _):
        search(role, task, worker)
        last = sent(ours)[-1]
    assert last.value_seconds == pytest.approx(value_seconds, rel=1e-5)
    assert last.bound_seconds >= last.value_seconds * (1 - 1e-5)
    held = Incumbent(devices=last.devices, value_seconds=last.value_seconds, bound_seconds=last.bound_seconds)
    placed = placement_of(problem, netlist_of(problem), held)
    assert device_loads(problem, np.array(placed.device_of_node)).max() == pytest.approx(last.value_seconds)


def test_a_small_problem_is_proven_at_once(problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    value_seconds = proven_value(problem)
    monkeypatch.setattr(worker_module.Annealing, "turn", lambda *_: pytest.fail("it was annealed"))
    proven_by(Role.ANNEALING, problem, value_seconds)


def test_a_larger_problem_is_proven_once_annealing_is_in_vain(
    problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_SMALL_COLUMNS", 0)
    monkeypatch.setattr(worker_module, "_FIRST_STEPS", 1000)
    proven_by(Role.ANNEALING, problem, proven_value(problem))


def test_once_no_neighbourhood_is_left_the_whole_is_asked_for_until_it_is_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_FIRST_STEPS", 1000)
    monkeypatch.setattr(neighbourhood_search, "_LAST_LEVEL", 0)
    slices = iter([0.0, 0.0])
    within = Exchange.within
    monkeypatch.setattr(Exchange, "within", lambda worker, _, value: within(worker, next(slices, WAIT_SECONDS), value))
    few = random_problem(11, nodes=4, classes=(1, 2))
    proven_by(Role.NEIGHBOURHOODS, few, proven_value(few))
    assert next(slices, None) is None


@pytest.mark.parametrize("role", Role)
def test_out_of_time_each_search_has_sent_what_it_began_with(problem: PlacementProblem, role: Role) -> None:
    task = task_of(problem, 0.0)
    with exchange(task) as (worker, ours, _):
        search(role, task, worker)
        [only] = sent(ours)
    assert only.value_seconds > 0


def test_news_is_told_once(problem: PlacementProblem) -> None:
    netlist, held = netlist_of(problem), incumbent(problem)
    better_bound = Incumbent(
        devices=held.devices, value_seconds=held.value_seconds, bound_seconds=held.bound_seconds + 1
    )
    worse = Incumbent(devices=held.devices, value_seconds=held.value_seconds + 1, bound_seconds=0.0)
    with exchange(task_of(problem, WAIT_SECONDS)) as (worker, ours, _):
        for offered in (held, held, worse, better_bound):
            worker.share(netlist, offered)
        bounds = [(found.value_seconds, found.bound_seconds) for found in sent(ours)]
    assert bounds == [(held.value_seconds, held.bound_seconds), (held.value_seconds, better_bound.bound_seconds)]


def test_what_others_found_is_taken_if_it_is_better(problem: PlacementProblem) -> None:
    netlist, held = netlist_of(problem), incumbent(problem)
    best = best_free(problem, effort=200_000)
    cells = np.zeros(netlist.num_cells, dtype=np.int64)
    cells[netlist.cell_of_node] = best.device_of_node
    with exchange(task_of(problem, WAIT_SECONDS)) as (worker, ours, _):
        ours.send(Improvement(devices=cells, value_seconds=best.value_seconds, bound_seconds=best.lower_bound_seconds))
        end = time.monotonic() + WAIT_SECONDS
        while worker._received is None:
            assert time.monotonic() < end
            time.sleep(0.001)
        shared = worker.share(netlist, held)
        assert best.value_seconds < held.value_seconds
        assert shared.value_seconds == pytest.approx(best.value_seconds)
        assert shared.bound_seconds == best.lower_bound_seconds
        # It is taken once.
        assert worker.share(netlist, held) == held


def test_a_slice_ends_early_for_something_far_better(problem: PlacementProblem) -> None:
    with exchange(task_of(problem, WAIT_SECONDS)) as (worker, _, __):
        devices = np.zeros(1, dtype=np.int64)
        is_over = worker.within(WAIT_SECONDS, value_seconds=100.0)
        assert not is_over()
        worker._received = Improvement(devices=devices, value_seconds=99.95, bound_seconds=0.0)
        assert not is_over()
        worker._received = Improvement(devices=devices, value_seconds=99.8, bound_seconds=0.0)
        assert is_over()
        assert worker.within(0.0, value_seconds=1.0)()
        assert not worker.out_of_time()


def test_no_slice_is_longer_than_the_time_that_is_left(problem: PlacementProblem) -> None:
    with exchange(task_of(problem, 0.0)) as (worker, _, __):
        assert worker.out_of_time()
        assert worker.within(WAIT_SECONDS, value_seconds=1.0)()
