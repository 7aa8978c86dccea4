"""Where each module runs in a plan: what exports to systems that cut between modules are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import OptionsError
from planner.graph.ir import Graph, values_read
from planner.plan.plan import Plan

# A second list with at least this share of the first one's nodes is a part of the model (an encoder, a vision tower);
# with less it is a stem or a classifier, whose nodes go with the layers beside them.
_OTHER_LIST = 0.2


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
    """The outermost container of numbered modules that runs most of the nodes, and the stage of each.

    A layer that is cut in two is an OptionsError; with `nearest` it counts for the stage that runs most of its nodes.
    Raises OptionsError where there are no layers, or two lists of them, or their stages do not ascend.
    """
    path, layers = list_layers(graph)
    stages = stage_of_node(plan)
    stage_of_layer = [
        _stage_of_layer(f"{path}.{number}", nodes, stages, nearest) for number, nodes in enumerate(layers)
    ]
    for number, (one, other) in enumerate(pairwise(stage_of_layer), 1):
        if other < one:
            raise OptionsError(
                f"layer {path}.{number} runs in stage {other}, the layer before it in stage {one}; "
                f"this format needs layers in order: {how_to_keep_program_order(plan)}"
            )
    return Layers(path=path, stage_of_layer=tuple(stage_of_layer))


def list_layers(graph: Graph) -> tuple[str, list[list[int]]]:
    """The container of layers, and the indexes of each layer's nodes, in order.

    Raises OptionsError where there are no layers, or two lists of them, or one of them runs nothing or more than once.
    """
    members = _numbered_modules(graph)
    path = _block_list(members)
    numbers = sorted(members[path])
    if numbers != list(range(len(numbers))):
        missing = next(number for number in range(numbers[-1]) if number not in members[path])
        raise OptionsError(f"layer {path}.{missing} runs no node in this graph; this format counts layers from 0")
    called_again = modules_called_again(graph)
    again = next((number for number in numbers if f"{path}.{number}" in called_again), None)
    if again is not None:
        raise OptionsError(
            f"layer {path}.{again} is called more than once, and this format counts it once; "
            f"export with --format device-map or torch-pipelining"
        )
    return path, [members[path][number] for number in numbers]


def runs_around_layers(graph: Graph) -> tuple[bool, bool]:
    """Whether anything runs before the first layer, and after the last."""
    _, layers = list_layers(graph)
    indexes = [index for nodes in layers for index in nodes]
    return min(indexes) > 0, max(indexes) < len(graph.nodes) - 1


def stretches_of_modules(graph: Graph) -> dict[str, list[tuple[int, int]]]:
    """First and last node of each stretch of the program in which a module runs.

    One for each call, except that calls which follow each other are one stretch.
    """
    stretches: dict[str, list[tuple[int, int]]] = {}
    running: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        now = dict.fromkeys(enclosing_modules(node.module_path), index)
        for path in running.keys() - now.keys():
            stretches.setdefault(path, []).append((running[path], index - 1))
        # In the order in which modules begin: callers name the first.
        running = {path: running.get(path, index) for path in now}
        for path in now:
            stretches.setdefault(path, [])
    for path, first in running.items():
        stretches[path].append((first, len(graph.nodes) - 1))
    return stretches


def modules_called_again(graph: Graph) -> set[str]:
    """Modules that run in several stretches, or read each state that they read more than once: in several calls."""
    states = {state.value_id for state in graph.states}
    reads: dict[str, Counter[int]] = {}
    for node in graph.nodes:
        read = [value_id for value_id in values_read(node) if value_id in states]
        for path in enclosing_modules(node.module_path):
            reads.setdefault(path, Counter()).update(read)
    again = {path for path, stretches in stretches_of_modules(graph).items() if len(stretches) > 1}
    return again | {path for path, counts in reads.items() if counts and min(counts.values()) > 1}


def how_to_keep_program_order(plan: Plan) -> str:
    if getattr(plan.options.mode, "free", False):
        return "plan without --free"
    return "plan with --mode balanced, whose stages follow the program"


def _block_list(members: Mapping[str, Mapping[int, Sequence[int]]]) -> str:
    """Experts and the like are numbered too, inside of a layer: only containers in no numbered module count."""
    num_nodes = {
        path: sum(map(len, numbered.values()))
        for path, numbered in members.items()
        if not any(name.isdecimal() for name in path.split("."))
    }
    if not num_nodes:
        raise OptionsError(
            "the graph has no numbered layers, such as model.layers.0, and this format cuts between layers"
        )
    path = max(num_nodes, key=lambda one: (num_nodes[one], one))
    enough = _OTHER_LIST * num_nodes[path]
    others = [one for one in num_nodes if one != path and num_nodes[one] > enough]
    if others:
        lists = ", ".join(f"{one} ({len(members[one])})" for one in (path, *others))
        raise OptionsError(
            f"the graph has several lists of layers: {lists}. This format counts the layers of one; for such a model "
            f"export with --format device-map or torch-pipelining"
        )
    return path


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
