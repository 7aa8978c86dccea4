"""Runs the plan on names: each stage with only what its edges bring and its states, writes and aliases included.

Every node must find what it reads, having seen the same in-place writes as in the unsplit program; a stage works on
copies, so a write that should have reached it and did not shows here.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.graph.ir import Graph, values_in
from planner.plan.invariants.broken import broken
from planner.plan.invariants.history import Memory, ProgramHistory
from planner.plan.plan import Plan, Stage


def check_writes_stay_together(history: ProgramHistory, stage_of_node: Sequence[int]) -> None:
    """No stage boundary between a write and an earlier access, nor between accesses of an input or state."""
    token_set = frozenset(history.given_tokens.values())
    for token, nodes in history.touched_by.items():
        last_write = max(history.final.histories.get(token, ()), default=-1)
        bound = [node for node in nodes if token in token_set or node <= last_write]
        stages = sorted({stage_of_node[node] for node in bound})
        if len(stages) > 1:
            raise broken(
                "in_place",
                f"the storage of value {token} is written (last by node {last_write}) and used in stages {stages}; "
                f"nodes {bound[:8]} must lie in one stage",
                node=last_write,
            )


def replay(plan: Plan, graph: Graph, history: ProgramHistory) -> None:
    memories: list[Memory] = []
    for stage in plan.stages:
        memory = _entry(plan, graph, stage, memories, history)
        _run(stage, memory, history)
        for value_id in stage.outputs:
            if value_id not in memory.tokens:
                raise broken("outputs", f"stage {stage.index} hands on value {value_id}, which it does not have")
        memories.append(memory)
    for value_id in (value for output in graph.outputs for value in values_in(output.content)):
        if value_id not in memories[-1].tokens:
            raise broken("outputs", f"the last stage has to return value {value_id}, and nothing brings it")
        if memories[-1].history(value_id) != history.final.history(value_id):
            raise broken("in_place", f"the last stage returns value {value_id} without what was written to it")


def _entry(plan: Plan, graph: Graph, stage: Stage, memories: Sequence[Memory], history: ProgramHistory) -> Memory:
    memory = Memory()
    if stage.index == 0:
        for value_id in (value for entry in graph.inputs for value in values_in(entry.content)):
            memory.hold(value_id, value_id)
    owned = frozenset(stage.states)
    for state in graph.states:
        if state.name in owned:
            memory.hold(state.value_id, history.given_tokens[state.value_id])
    for edge in plan.edges:
        if edge.target_stage != stage.index:
            continue
        source = memories[edge.source_stage]
        for value_id in edge.value_ids:
            if value_id not in source.tokens:
                raise broken("edges", f"stage {edge.source_stage} sends value {value_id}, which it does not have")
            if value_id in memory.tokens:
                raise broken("edges", f"stage {stage.index} is given value {value_id} twice")
            memory.hold(value_id, value_id, source.history(value_id))
    return memory


def _run(stage: Stage, memory: Memory, history: ProgramHistory) -> None:
    for index in stage.node_indexes():
        effect = history.effects[index]
        for value_id, expected in zip(effect.reads, history.seen[index], strict=True):
            if value_id not in memory.tokens:
                raise broken(
                    "edges", f"node {index} of stage {stage.index} reads value {value_id}, which nothing brings"
                )
            if memory.history(value_id) != expected:
                raise broken(
                    "in_place",
                    f"node {index} of stage {stage.index} reads value {value_id} after the writes "
                    f"{sorted(memory.history(value_id))}, the unsplit program after {sorted(expected)}",
                    node=index,
                )
        memory.run(effect, index)
