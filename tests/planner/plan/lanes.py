"""Runs the lanes of a schedule on symbols, several microbatches at once, each as far as it gets before the next one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from planner.graph.ir import Graph
from planner.plan.plan import Plan
from planner.plan.split import stage_graph
from planner.schedule.actions import Action, Kind
from planner.schedule.schedule import Lane, Schedule
from tests.planner.plan.interpreter import Program, Tensor, outputs_of, random_inputs

CAPACITY = 2


@dataclass
class Worker:
    """One lane: what it holds of the current microbatch, and how far it is."""

    lane: Lane
    program: Program
    held: dict[int, Tensor] = field(default_factory=dict)
    position: int = 0
    microbatch: int = 0


def run_lanes(graph: Graph, plan: Plan, schedule: Schedule, num_microbatches: int) -> list[list[int]]:
    """The outputs of each microbatch. Edges copy what they carry, as sockets do."""
    workers = [Worker(lane, Program(stage_graph(graph, plan, lane.stage_index))) for lane in schedule.lanes]
    edges: list[deque[dict[int, Tensor]]] = [deque() for _ in plan.edges]
    results: list[list[int]] = []

    def done(worker: Worker, action: Action) -> bool:
        if action.kind is Kind.TAKE_INPUT:
            worker.held.update(random_inputs(graph, worker.microbatch))
        elif action.kind is Kind.RECEIVE:
            if not edges[action.index]:
                return False
            worker.held.update(edges[action.index].popleft())
        elif action.kind is Kind.FORWARD:
            part = worker.program.graph
            consumed = {entry.content.value_id: worker.held[entry.content.value_id] for entry in part.inputs}  # type: ignore[union-attr]
            after = worker.program.run(consumed)
            worker.held.update((value_id, after[value_id]) for value_id in plan.stages[action.index].outputs)
        elif action.kind is Kind.SEND:
            if len(edges[action.index]) >= CAPACITY:
                return False
            carried = plan.edges[action.index].value_ids
            edges[action.index].append({value_id: worker.held[value_id].copy() for value_id in carried})
        else:
            results.append(outputs_of(graph, worker.held))
        return True

    def advance(worker: Worker) -> bool:
        if worker.microbatch == num_microbatches or not done(worker, worker.lane.actions[worker.position]):
            return False
        worker.position += 1
        if worker.position == len(worker.lane.actions):
            worker.position, worker.microbatch, worker.held = 0, worker.microbatch + 1, {}
        return True

    while sum(advance(worker) for worker in workers):
        pass
    assert all(worker.microbatch == num_microbatches for worker in workers), "the lanes are stuck"
    assert not any(edges), "an edge holds what nobody takes"
    return results
