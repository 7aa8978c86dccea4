"""llama.cpp's --tensor-split: shares of the devices, of all layers and the head."""

from __future__ import annotations

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.ranks import layers_of_ranks, refuse_copies, refuse_shared_devices
from planner.plan.plan import Plan

# llama.cpp refuses as many shares as llama_max_devices(), which is 16.
MOST_SHARES = 15


def llama_cpp_tensor_split(graph: Graph, plan: Plan, *, nearest: bool = False) -> str:
    """ "24,41": the head counts as a layer. For --split-mode layer with all layers offloaded (-ngl 999).

    Raises OptionsError where a cut is not between layers, or a stage but the last runs no layer, or there are more
    stages than llama.cpp takes shares.
    """
    refuse_shared_devices(plan)
    refuse_copies(plan)
    if len(plan.stages) > MOST_SHARES:
        raise OptionsError(
            f"the plan has {len(plan.stages)} stages, and llama.cpp takes at most {MOST_SHARES} shares: plan with "
            f"fewer devices"
        )
    counts = layers_of_ranks(graph, plan, nearest=nearest, empty_first=False)
    return ",".join(map(str, (*counts[:-1], counts[-1] + 1)))
