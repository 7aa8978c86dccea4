"""llama.cpp's --tensor-split: shares of the devices, of all layers and the head."""

from __future__ import annotations

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def llama_cpp_tensor_split(graph: Graph, plan: Plan, *, nearest: bool = False) -> str:
    """ "24,41": the head counts as a layer. For --split-mode layer with all layers offloaded (-ngl 999).

    Raises OptionsError where a cut is not between layers, or a stage but the last runs no layer.
    """
    counts = find_layers(graph, plan, nearest=nearest).counts(len(plan.stages))
    idle = next((stage for stage, count in enumerate(counts[:-1]) if not count), None)
    if idle is not None:
        raise OptionsError(f"stage {idle} runs no layer, and llama.cpp gives devices layers alone", stage=idle)
    return ",".join(map(str, (*counts[:-1], counts[-1] + 1)))
