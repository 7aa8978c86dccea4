"""Formats that name modules: torch.distributed.pipelining, torchtitan and Hugging Face's device_map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import OptionsError
from planner.graph.ir import Graph, ValueKind, values_read
from planner.plan.exports.module_tree import enclosing_modules, modules_called_again, stretches_of_modules
from planner.plan.imports.split import Split, split_into_runs, split_into_stages


def split_of_split_spec(graph: Graph, content: Any) -> Split:
    """Module path to "beginning" or "end", as the SplitPoint of torch.distributed.pipelining 2.13 cuts a program."""
    if not isinstance(content, Mapping) or not set(content.values()) <= {"beginning", "end"}:
        raise OptionsError('needs an object such as {"layers.4": "beginning"}: module path to beginning or end')
    stretches = stretches_of_modules(graph)
    _refuse_unknown(content, stretches)
    in_a_row = {path for path in modules_called_again(graph) if len(stretches[path]) == 1}
    repeated = next((path for path in content if path in in_a_row), None)
    if repeated is not None:
        raise OptionsError(
            f"module {repeated!r} is called several times in a row, and torch cuts at each call: the graph does not "
            f"say where each begins; split at other modules",
            module=repeated,
        )
    cuts = {
        first if point == "beginning" else last + 1
        for path, point in content.items()
        for first, last in stretches[path]
    }
    stages, stage = [], 0
    for node in range(len(graph.nodes)):
        stage += node in cuts - {0}
        stages.append(stage)
    return split_into_stages(stages, stage + 1)


def split_of_parts(graph: Graph, content: Any) -> Split:
    """torchtitan's module_fqns_per_model_part, as torchtitan 0.3 reads it (_split_module): a list for each stage.

    A part keeps the model's own modules and the items of its lists that it names, and runs in the forward of the whole
    what lies between them.
    """
    if not isinstance(content, list) or not all(isinstance(part, list) for part in content) or not content:
        raise OptionsError(
            'needs a list of lists of module paths, such as [["embed", "layers.0"], ["layers.1", "head"]]'
        )
    stage_of = {str(path): stage for stage, part in enumerate(content) for path in part}
    _refuse_unknown(stage_of, stretches_of_modules(graph))
    deeper = next((path for path in stage_of if path.count(".") > 1), None)
    if deeper is not None:
        raise OptionsError(
            f"module {deeper!r} lies deeper than torchtitan looks: it drops {deeper.partition('.')[0]!r} in every "
            f"stage that does not name it; name the model's own modules, and items of its lists such as layers.0",
            module=deeper,
        )
    stages, latest = [], 0
    for node in graph.nodes:
        path = _innermost(stage_of, node.module_path)
        if path is None and node.module_path and not _holds_any(node.module_path, stage_of):
            raise OptionsError(
                f"module {node.module_path!r} runs in this graph and is in no part", module=node.module_path
            )
        latest = latest if path is None else stage_of[path]
        stages.append(latest)
    return split_into_stages(stages, len(content))


def split_of_device_map(graph: Graph, content: Any) -> Split:
    """Module path to device, as accelerate 1.15 places modules: the innermost path counts, "" is the whole.

    Devices in the order of the map; what no path covers runs where its first input is.
    """
    if not isinstance(content, Mapping) or not content:
        raise OptionsError('needs an object such as {"model.embed": 0, "model.layers.0": 1}: module path to device')
    if "disk" in content.values():
        raise OptionsError("the map offloads modules to disk, which no plan does; give them a device")
    states = {path for state in graph.states for path in enclosing_modules(state.name)}
    _refuse_unknown(content, {"", *stretches_of_modules(graph), *states})
    order = list(dict.fromkeys(map(str, content.values())))
    rank_of = {path: order.index(str(device)) for path, device in content.items()}
    tensors = {value.id for value in graph.values if value.kind is ValueKind.TENSOR}
    rank_of_value: dict[int, int] = {}
    ranks = []
    for node in graph.nodes:
        path = _innermost(rank_of, node.module_path)
        inputs = (rank_of_value[value] for value in values_read(node) if value in tensors and value in rank_of_value)
        rank = rank_of[path] if path is not None else next(inputs, 0)
        rank_of_value.update(dict.fromkeys(node.outputs, rank))
        ranks.append(rank)
    return split_into_runs(ranks)


def _innermost(paths: Mapping[str, int], module: str) -> str | None:
    enclosing = [path for path in ("", *enclosing_modules(module)) if path in paths]
    return enclosing[-1] if enclosing else None


def _holds_any(module: str, paths: Mapping[str, int]) -> bool:
    return any(path.startswith(f"{module}.") for path in paths)


def _refuse_unknown(paths: Mapping[str, Any], allowed_paths: Any) -> None:
    unknown = next((path for path in paths if path not in allowed_paths), None)
    if unknown is not None:
        raise OptionsError(f"no node of this graph runs in module {str(unknown)[:200]!r}", module=str(unknown)[:200])
