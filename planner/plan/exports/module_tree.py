"""Where each module runs in a plan: what exports to systems that cut between modules are made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """`path` is the container ("model.layers"); `stage_of_layer` by layer number."""

    path: str
    stage_of_layer: tuple[int, ...]

    def counts(self, num_stages: int) -> tuple[int, ...]:
        return tuple(self.stage_of_layer.count(stage) for stage in range(num_stages))


def stage_of_node(plan: Plan) -> list[int]:
    stages = [0] * plan.num_nodes
    for stage in plan.stages:
        for start, end in stage.node_ranges:
            stages[start:end] = [stage.index] * (end - start)
    return stages


def enclosing_modules(path: str) -> Iterator[str]:
    """ "a.b.c" gives "a", "a.b", "a.b.c"; the root, "", gives nothing."""
    end = path.find(".")
    while end >= 0:
        yield path[:end]
        end = path.find(".", end + 1)
    if path:
        yield path


def find_layers(graph: Graph, plan: Plan, *, nearest: bool = False) -> Layers:
    """The container with the most numbered modules, and the stage of each.

    A layer that is cut in two is an OptionsError; with `nearest` it counts for the stage that runs most of its nodes.
    Raises OptionsError where there are no layers, or their stages do not ascend.
    """
    members = _numbered_modules(graph)
    if not members:
        raise OptionsError(
            "the graph has no numbered layers, such as model.layers.0, and this format cuts between layers"
        )
    path = max(members, key=lambda found: (len(members[found]), -found.count("."), found))
    numbers = sorted(members[path])
    if numbers != list(range(len(numbers))):
        missing = next(number for number in range(numbers[-1]) if number not in members[path])
        raise OptionsError(f"layer {path}.{missing} runs no node in this graph; this format counts layers from 0")
    stages = stage_of_node(plan)
    found = [_stage_of_layer(f"{path}.{number}", members[path][number], stages, nearest) for number in numbers]
    for number, (one, other) in enumerate(pairwise(found), 1):
        if other < one:
            raise OptionsError(
                f"layer {path}.{number} runs in stage {other}, the layer before it in stage {one}; "
                f"this format needs layers in order: plan without --free"
            )
    return Layers(path=path, stage_of_layer=tuple(found))


def _numbered_modules(graph: Graph) -> dict[str, dict[int, list[int]]]:
    """Container path to layer number to node indexes."""
    members: dict[str, dict[int, list[int]]] = {}
    for index, node in enumerate(graph.nodes):
        for path in enclosing_modules(node.module_path):
            container, _, name = path.rpartition(".")
            if name.isdecimal():
                members.setdefault(container, {}).setdefault(int(name), []).append(index)
    return members


def _stage_of_layer(path: str, nodes: list[int], stages: list[int], nearest: bool) -> int:
    counts: dict[int, int] = {}
    for node in nodes:
        counts[stages[node]] = counts.get(stages[node], 0) + 1
    if len(counts) > 1 and not nearest:
        raise OptionsError(
            f"layer {path} is cut: its nodes run in stages {', '.join(map(str, sorted(counts)))}. This format cuts "
            f"between layers: plan with --together '{path.rpartition('.')[0]}.*', or export with --nearest",
            layer=path,
        )
    return max(counts, key=lambda stage: (counts[stage], -stage))
