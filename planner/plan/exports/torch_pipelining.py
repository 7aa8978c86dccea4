"""torch.distributed.pipelining's split_spec and torchtitan's parts: a stage begins where a module begins or ends."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.module_tree import (
    enclosing_modules,
    how_to_keep_program_order,
    modules_called_again,
    stage_of_node,
    stretches_of_modules,
)
from planner.plan.exports.ranks import refuse_uneven_copies
from planner.plan.plan import Plan


def split_spec(graph: Graph, plan: Plan) -> dict[str, str]:
    """Module path to "beginning" or "end": the names of torch's SplitPoint. One entry for each cut.

    Raises OptionsError where a cut is inside of a module, or only where one begins or ends that is called more than
    once, since torch cuts at each of its calls; or where the stages are not segments of the program.
    """
    refuse_uneven_copies(plan)
    stretches = stretches_of_modules(graph)
    called_again = modules_called_again(graph)
    spec: dict[str, str] = {}
    for start in _starts(plan):
        begins = [path for path in enclosing_modules(_path(graph, start)) if stretches[path][0][0] == start]
        ends = [path for path in enclosing_modules(_path(graph, start - 1)) if stretches[path][-1][1] == start - 1]
        points = [(path, "beginning") for path in begins] + [(path, "end") for path in ends]
        split_point = next((point for point in points if point[0] not in called_again), None)
        if split_point is None:
            raise _no_point(_path(graph, start), start, points)
        spec[split_point[0]] = split_point[1]
    return spec


def _no_point(path: str, start: int, points: Sequence[tuple[str, str]]) -> OptionsError:
    if not points:
        return OptionsError(
            f"the cut before node {start} is inside of module {path!r}, where no module begins or ends: "
            f"plan with --cut after a module",
            module=path,
        )
    again, at = points[0]
    return OptionsError(
        f"the cut before node {start} is at the {at} of module {again!r}, which is called more than once, and torch "
        f"would cut at each call: plan with --cut after another module",
        module=again,
    )


def torchtitan_parts(graph: Graph, plan: Plan) -> list[list[str]]:
    """[stages] modules that run in each, in order of their first node: torchtitan's module_fqns_per_model_part.

    Its splitter keeps or drops the model's own modules whole, and of their lists single items; a name that lies deeper
    makes it drop the module around it. A list within one stage is named with its items, since nn.Sequential is kept by
    its own name. Raises OptionsError for a module that two stages share.
    """
    refuse_uneven_copies(plan)
    stages = stage_of_node(plan)
    stages_of: dict[str, set[int]] = {}
    for node, stage in zip(graph.nodes, stages, strict=True):
        if node.module_path:
            child, item = _kept_or_dropped(node.module_path)
            stages_of.setdefault(child, set()).add(stage)
            if item:
                stages_of.setdefault(item, set()).add(stage)
    lists = {path.partition(".")[0] for path in stages_of if "." in path}
    parts: list[list[str]] = [[] for _ in plan.stages]
    for path, holding_stages in stages_of.items():
        if len(holding_stages) == 1:
            parts[min(holding_stages)].append(path)
        elif path not in lists:
            raise _cut_for_torchtitan(path, holding_stages)
    return parts


def _kept_or_dropped(path: str) -> tuple[str, str]:
    """The model's own module around the path, and the item of it where that is a list, else ""."""
    child, _, rest = path.partition(".")
    number = rest.partition(".")[0]
    return child, f"{child}.{number}" if number.isdecimal() else ""


def _cut_for_torchtitan(path: str, stages: set[int]) -> OptionsError:
    return OptionsError(
        f"module {path!r} is cut: it runs in stages {', '.join(map(str, sorted(stages)))}. torchtitan keeps or drops "
        f"the model's own modules and the items of its lists, and none that lies deeper: plan with --cut or "
        f"--together, or export with --format torch-pipelining",
        module=path,
    )


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
