"""torch.distributed.pipelining's split_spec and torchtitan's parts: a stage begins where a module begins or ends."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.module_tree import (
    enclosing_modules,
    how_to_keep_program_order,
    reach_of_modules,
    stage_of_node,
)
from planner.plan.plan import Plan


def split_spec(graph: Graph, plan: Plan) -> dict[str, str]:
    """Module path to "beginning" or "end": the names of torch's SplitPoint. One entry for each cut.

    Raises OptionsError where a cut is inside of a module, or the stages are not segments of the program.
    """
    first, last = reach_of_modules(graph)
    spec: dict[str, str] = {}
    for start in _starts(plan):
        begins = next((path for path in enclosing_modules(_path(graph, start)) if first[path] == start), None)
        ends = next((path for path in enclosing_modules(_path(graph, start - 1)) if last[path] == start - 1), None)
        if begins is not None:
            spec[begins] = "beginning"
        elif ends is not None:
            spec[ends] = "end"
        else:
            raise OptionsError(
                f"the cut before node {start} is inside of module {_path(graph, start)!r}, where no module begins or "
                f"ends: plan with --cut after a module",
                module=_path(graph, start),
            )
    return spec


def torchtitan_parts(graph: Graph, plan: Plan) -> list[list[str]]:
    """[stages] outermost modules that run wholly in each: torchtitan's module_fqns_per_model_part.

    Modules in order of their first node. Raises OptionsError for a module without parts that two stages share.
    """
    stages = stage_of_node(plan)
    spans: dict[str, set[int]] = {}
    for node, stage in zip(graph.nodes, stages, strict=True):
        for path in enclosing_modules(node.module_path):
            spans.setdefault(path, set()).add(stage)
    direct = {node.module_path for node in graph.nodes}
    parts: list[list[str]] = [[] for _ in plan.stages]
    taken: set[str] = set()
    for path, stages_of_path in spans.items():
        if any(outer in taken for outer in enclosing_modules(path)):
            continue
        if len(stages_of_path) == 1:
            parts[min(stages_of_path)].append(path)
            taken.add(path)
        elif path in direct and not any(other.startswith(f"{path}.") for other in spans):
            raise OptionsError(
                f"module {path!r} is cut: it runs in stages {', '.join(map(str, sorted(stages_of_path)))}. torchtitan "
                f"moves whole modules: plan with --cut, or with --together",
                module=path,
            )
    return parts


def _starts(plan: Plan) -> Sequence[int]:
    """First nodes of all stages but the first."""
    broken = next((stage for stage in plan.stages if len(stage.node_ranges) != 1), None)
    if broken is not None:
        raise OptionsError(
            f"stage {broken.index} is made of {len(broken.node_ranges)} pieces of the program; a split spec needs "
            f"stages that follow each other: {how_to_keep_program_order(plan)}"
        )
    return [stage.node_ranges[0][0] for stage in plan.stages[1:]]


def _path(graph: Graph, node: int) -> str:
    return graph.nodes[node].module_path
