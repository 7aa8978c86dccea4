"""Storage that several stages hold is listed as a tie group, and a mutated state is held by one stage only."""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.ir import Graph
from planner.plan.invariants.broken import broken
from planner.plan.invariants.history import ProgramHistory
from planner.plan.plan import Plan


def check_ties(plan: Plan, graph: Graph, history: ProgramHistory, sizes: Mapping[int, int]) -> None:
    states = {state.name: state for state in graph.states}
    holders: dict[int, list[tuple[str, int]]] = {}
    for state in graph.states:
        holders[history.given_tokens[state.value_id]] = []
    for stage in plan.stages:
        for name in stage.states:
            holders[history.given_tokens[states[name].value_id]].append((name, stage.index))
    needed = {}
    trained_tokens = {history.given_tokens[state.value_id] for state in graph.states if state.requires_grad}
    trained: set[frozenset[tuple[str, int]]] = set()
    for token, members in holders.items():
        if len({stage for _, stage in members}) < 2:
            continue
        if token in history.touched_by:
            raise broken("mutated_state", f"a state that is written is held by more than one stage: {members}")
        needed[frozenset(members)] = (states[members[0][0]].tie_group, sizes[token])
        if token in trained_tokens:
            trained.add(frozenset(members))
    _check_groups(plan, needed)
    for group in plan.tie_groups:
        if group.requires_grad != (frozenset(group.members) in trained):
            raise broken(
                "tie_groups", f"tie group {group.id}: requires_grad is {group.requires_grad}, unlike its states"
            )


def _check_groups(plan: Plan, needed: Mapping[frozenset[tuple[str, int]], tuple[int, int]]) -> None:
    groups = {frozenset(group.members): group for group in plan.tie_groups}
    if len(groups) != len(plan.tie_groups) or groups.keys() != needed.keys():
        differs = [sorted(members) for members in groups.keys() ^ needed.keys()] or "one stands twice"
        raise broken("tie_groups", f"the tie groups are not the states that several stages hold: {differs}")
    if len({group.id for group in plan.tie_groups}) != len(plan.tie_groups):
        raise broken("tie_groups", f"two tie groups share an id: {[group.id for group in plan.tie_groups]}")
    for members, (group_id, size_bytes) in needed.items():
        group = groups[members]
        if group.size_bytes != size_bytes or (group_id and group.id != group_id):
            raise broken(
                "tie_groups",
                f"tie group {group.id} of {group.size_bytes} bytes: the graph has group {group_id}, {size_bytes} bytes",
            )
