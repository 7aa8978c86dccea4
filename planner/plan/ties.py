"""States that share storage and are needed by more than one stage: each of those stages holds a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.graph.ir import Graph, State
from planner.plan.plan import TieGroup


def tie_groups(graph: Graph, states: Sequence[Sequence[str]], sizes: Mapping[int, int]) -> tuple[TieGroup, ...]:
    """`states`: names that each stage owns. A state that two stages read is a group too, with a new id."""
    stages_of: dict[str, list[int]] = {}
    for stage, names in enumerate(states):
        for name in names:
            stages_of.setdefault(name, []).append(stage)
    next_id = max((state.tie_group for state in graph.states), default=0) + 1
    groups: list[TieGroup] = []
    for together in _sharing_storage(graph):
        members = tuple((state.name, stage) for state in together for stage in stages_of.get(state.name, ()))
        if len({stage for _, stage in members}) < 2:
            continue
        group_id = together[0].tie_group
        if not group_id:
            group_id, next_id = next_id, next_id + 1
        groups.append(
            TieGroup(
                id=group_id,
                members=members,
                size_bytes=sizes[together[0].value_id],
                requires_grad=any(state.requires_grad for state in together),
            )
        )
    return tuple(groups)


def _sharing_storage(graph: Graph) -> tuple[list[State], ...]:
    """States by tie group, an untied one alone, in order of the first of each."""
    groups: dict[tuple[int, str], list[State]] = {}
    for state in graph.states:
        key = (state.tie_group, "") if state.tie_group else (0, state.name)
        groups.setdefault(key, []).append(state)
    return tuple(groups.values())
