"""Hugging Face's device_map: the largest modules, or single tensors, whose states are all on one device."""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import enclosing_modules
from planner.plan.plan import Plan


def device_map(graph: Graph, plan: Plan, names: Mapping[str, int | str] | None = None) -> dict[str, int | str]:
    """Module path to device: `names` [device id], else the device's number among those that the plan uses, in order.

    A state that several stages hold goes with the first of them. Modules in order of their states; "" is the whole.
    """
    number = names or {device_id: index for index, device_id in enumerate(_devices(plan))}
    home: dict[str, str] = {}
    for stage in plan.stages:
        for name in stage.states:
            home.setdefault(name, stage.device_ids[0])
    found: dict[str, set[str]] = {}
    for state in graph.states:
        if state.name in home:
            for path in ("", *enclosing_modules(state.name)):
                found.setdefault(path, set()).add(home[state.name])
    chosen: dict[str, int | str] = {}
    for state in graph.states:
        if state.name in home:
            path = next(path for path in ("", *enclosing_modules(state.name)) if len(found[path]) == 1)
            chosen[path] = number[home[state.name]]
    return chosen


def _devices(plan: Plan) -> list[str]:
    return list(dict.fromkeys(stage.device_ids[0] for stage in plan.stages))
