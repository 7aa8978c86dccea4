"""One of the two searches alone, and both in step: what they report, what they take over, when they end."""

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
from planner.cost_graphs.messages import ENDED, Report, Role, Task
from planner.cost_graphs.placement.costs import device_loads
from planner.cost_graphs.placement.free import (
    Annealing,
    Incumbent,
    first_incumbent,
    placement_of,
    steps_of_question,
)
from planner.cost_graphs.placement.netlists import neighbourhoods
from planner.cost_graphs.placement.netlists.netlist import netlist_of
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.cost_graphs.worker import Exchange, search
from tests.planner.cost_graphs.placement.one_process import best_free
from tests.planner.cost_graphs.placement.small_problems import random_problem
from tests.waiting import WAIT_SECONDS

ALONE = Report(steps=ENDED)


@pytest.fixture(scope="module")
def problem() -> PlacementProblem:
    return random_problem(11, nodes=12, classes=(1, 2))


def proven_value(problem: PlacementProblem) -> float:
    return best_free(problem, effort=200_000).value_seconds


def task_of(problem: PlacementProblem, seconds: float = WAIT_SECONDS, num_steps: int = ENDED) -> Task:
    return Task(problem=problem, num_steps=num_steps, deadline_seconds=time.monotonic() + seconds)


@contextmanager
def exchange(task: Task, *reports: Report) -> Iterator[tuple[Exchange, Connection]]:
    """The worker's end and the other end, from which `reports` have come; the worker hears when the other closes."""
    ours, theirs = Pipe()
    ended = threading.Event()
    worker = Exchange(theirs, task, on_end=ended.set)
    try:
        for report in reports:
            ours.send(report)
        yield worker, ours
    finally:
        ours.close()
        assert ended.wait(WAIT_SECONDS)
        theirs.close()


def sent(connection: Connection) -> list[Report]:
    reports = []
    while connection.poll():
        reports.append(connection.recv())
    return reports


def incumbent(problem: PlacementProblem) -> Incumbent:
    return first_incumbent(problem, netlist_of(problem))


def report_of(steps: int, best: Incumbent) -> Report:
    return Report(steps=steps, devices=best.devices, bound_seconds=best.bound_seconds, is_proven=best.is_proven)


def value_of(problem: PlacementProblem, report: Report) -> float:
    assert report.devices is not None
    return float(device_loads(problem, report.devices[netlist_of(problem).cell_of_node]).max())


def best_of(problem: PlacementProblem) -> Incumbent:
    """The optimum, as the cells of the netlist."""
    netlist, best = netlist_of(problem), best_free(problem, effort=200_000)
    devices = np.zeros(netlist.num_cells, dtype=np.int64)
    devices[netlist.cell_of_node] = best.device_of_node
    return Incumbent(devices=devices, value_seconds=best.value_seconds, bound_seconds=best.lower_bound_seconds)


def proven_by(role: Role, problem: PlacementProblem, value_seconds: float) -> None:
    """A search of one role alone proves what one process proves."""
    task = task_of(problem)
    with exchange(task, ALONE) as (worker, ours):
        search(role, task, worker)
        last = sent(ours)[-1]
    assert last.is_proven
    assert last.steps == ENDED
    value = value_of(problem, last)
    assert value == pytest.approx(value_seconds, rel=1e-5)
    assert last.bound_seconds >= value * (1 - 1e-5)
    assert last.devices is not None
    best = Incumbent(devices=last.devices, value_seconds=value, bound_seconds=last.bound_seconds)
    assert placement_of(problem, netlist_of(problem), best).gap <= 1e-5


def test_a_small_problem_is_proven_at_once(problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    value_seconds = proven_value(problem)
    monkeypatch.setattr(Annealing, "turn", lambda *_: pytest.fail("it was annealed"))
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
    monkeypatch.setattr(neighbourhoods, "_LAST_LEVEL", 0)
    few = random_problem(11, nodes=4, classes=(1, 2))
    proven_by(Role.NEIGHBOURHOODS, few, proven_value(few))


@pytest.mark.parametrize("role", Role)
def test_out_of_time_each_search_has_reported_what_it_began_with(problem: PlacementProblem, role: Role) -> None:
    task = task_of(problem, 0.0)
    with exchange(task) as (worker, ours):
        search(role, task, worker)
        first, *_, last = sent(ours)
    assert value_of(problem, last) == value_of(problem, first) > 0


@pytest.mark.parametrize("role", Role)
def test_a_search_ends_once_its_steps_are_spent(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_FIRST_STEPS", 1000)
    task = task_of(random_problem(12, nodes=60, classes=(1, 3)), num_steps=worker_module._CONTIGUOUS_STEPS + 50_000)
    with exchange(task, ALONE) as (worker, ours):
        search(role, task, worker)
        last = sent(ours)[-1]
    assert worker.steps >= task.num_steps
    assert not last.is_proven


@pytest.mark.slow
def test_which_search_is_quicker_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, steps in (("_FIRST_STEPS", 10_000), ("_CONTIGUOUS_STEPS", 10_000), ("_REPORT_STEPS", 20_000)):
        monkeypatch.setattr(worker_module, name, steps)
    monkeypatch.setattr(worker_module, "_NEIGHBOURHOOD_QUESTION_STEPS", 1000)
    problem = random_problem(12, nodes=60, classes=(1, 3))
    task = task_of(problem, num_steps=100_000)
    reports = [_both(task, delays) for delays in ((0.0, 0.0), (0.02, 0.0), (0.0, 0.02))]
    for by_role in reports[1:]:
        for role in (0, 1):
            assert [one.steps for one in by_role[role]] == [one.steps for one in reports[0][role]]
            for one, other in zip(by_role[role], reports[0][role], strict=True):
                assert one.bound_seconds == other.bound_seconds
                assert one.devices is not None
                assert other.devices is not None
                assert np.array_equal(one.devices, other.devices)
    assert len({value_of(problem, report) for report in reports[0][0]}) > 1
    assert not reports[0][0][-1].is_proven


def _both(task: Task, delays: tuple[float, float]) -> list[list[Report]]:
    """What each of the two reports, side by side in this process; the reports of either reach the other late."""
    reports: list[list[Report]] = [[], []]
    with exchange(task) as (one, ends_of_one), exchange(task) as (other, ends_of_other):
        ends = (ends_of_one, ends_of_other)

        def pass_on(index: int) -> None:
            while not reports[index] or reports[index][-1].steps < ENDED:
                report = ends[index].recv()
                time.sleep(delays[index])
                reports[index].append(report)
                ends[1 - index].send(report)

        threads = [threading.Thread(target=pass_on, args=(index,)) for index in range(2)]
        threads += [
            threading.Thread(target=search, args=(role, task, worker))
            for role, worker in zip(Role, (one, other), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_SECONDS)
    return reports


def test_what_the_other_had_by_as_many_steps_is_taken_if_it_is_better(problem: PlacementProblem) -> None:
    netlist, first, best = netlist_of(problem), incumbent(problem), best_of(problem)
    assert best.value_seconds < first.value_seconds
    with exchange(task_of(problem), report_of(10, first), report_of(20, best), ALONE) as (worker, _):
        worker.steps = 15
        assert worker.share(netlist, first).value_seconds == first.value_seconds
        worker.steps = 20
        shared = worker.share(netlist, first)
        assert shared.value_seconds == pytest.approx(best.value_seconds)
        assert shared.bound_seconds == best.bound_seconds
        # What was shared once stays in hand.
        assert worker.share(netlist, first).value_seconds == shared.value_seconds


def test_a_programme_of_the_whole_goes_on_until_its_steps_are_spent(
    problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on large programmes, where the square of the columns is far more than they are.
    monkeypatch.setattr(worker_module, "_ROOT_QUESTION_SHARE", 1000.0)
    netlist, first = netlist_of(problem), incumbent(problem)
    with exchange(task_of(problem), ALONE) as (worker, _):
        at_root = int(steps_of_question(netlist) * worker_module._ROOT_QUESTION_SHARE)
        count = worker.questions_of(netlist)
        out_of_time = worker.following(netlist, first, 5 * at_root)
        for _ in range(4):
            count(False)
            assert not out_of_time()
        # Once it branches it asks far oftener, and each question counts for less.
        count(True)
        assert not out_of_time()
        assert 0 < worker.steps - 4 * at_root < at_root / 2
        count(False)
        assert out_of_time()


def test_a_programme_of_the_whole_ends_for_something_far_better(
    problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_REPORT_STEPS", 1)
    netlist, first, best = netlist_of(problem), incumbent(problem), best_of(problem)
    for share, is_far_better in ((0.002, True), (0.0005, False)):
        in_hand = Incumbent(devices=first.devices, value_seconds=best.value_seconds * (1 + share), bound_seconds=0.0)
        with exchange(task_of(problem), Report(steps=0, devices=best.devices), ALONE) as (worker, _):
            out_of_time = worker.following(netlist, in_hand)
            worker.questions_of(netlist)(False)
            assert out_of_time() == is_far_better


def test_nothing_goes_on_once_the_other_had_a_proof_with_fewer_steps(problem: PlacementProblem) -> None:
    with exchange(task_of(problem), Report(steps=7, is_proven=True), ALONE) as (worker, _):
        worker.steps = 8
        worker.share(netlist_of(problem), incumbent(problem))
        assert worker.out_of_time()
        worker.steps = 7
        assert not worker.out_of_time()


def test_no_search_outlives_its_deadline(problem: PlacementProblem) -> None:
    with exchange(task_of(problem, 0.0)) as (worker, _):
        assert worker.out_of_time()
        assert worker.following(netlist_of(problem), incumbent(problem))()
        assert worker.counting(3)()
        assert worker.has_ended
