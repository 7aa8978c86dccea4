"""What a microbatch's backward pass needs of a state that the next one's forward pass writes over is a copy.

In one process a backward pass is over before the next forward pass begins. In a pipeline several microbatches are on
their way at once, and autograd does not go back through a tensor that was written since: a scale that follows the
activations which it divides would end a training in its first step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from planner.client.export.gradient_flow import GradientFlow
from planner.client.export.passes.fake_results import call_beside
from planner.client.export.states import CapturedState
from planner.client.export.storage import StorageRoots


def copy_written_states(graph: fx.Graph, states: Sequence[CapturedState]) -> None:
    """Of a program in training: operators that gradients go through read copies of the states that it writes."""
    written = _written(graph, states)
    if not written:
        return
    roots, copies = StorageRoots(), dict[fx.Node, fx.Node]()
    with_gradient = GradientFlow(roots, (state.placeholder for state in states if state.tensor.requires_grad))
    for node in list(graph.nodes):
        roots.add(node)
        own = roots.written_by(node)
        if own & written:
            copies.clear()
        if node.op != "call_function" or not with_gradient.add(node):
            continue
        # A view of a state, or what is written, is that state.
        for source in [] if roots.of(node) & written else node.all_input_nodes:
            if roots.of(source) & written and not roots.of(source) & own:
                if source not in copies:
                    with graph.inserting_before(node):
                        copies[source] = call_beside(node, torch.ops.aten.clone.default, source)
                    roots.add(copies[source])
                node.replace_input_with(source, copies[source])


def _written(graph: fx.Graph, states: Sequence[CapturedState]) -> frozenset[fx.Node]:
    """Placeholders of states that are written, by any of their names."""
    roots, written = StorageRoots(), set[fx.Node]()
    for node in graph.nodes:
        roots.add(node)
        written |= roots.written_by(node)
    groups = {state.tie_group for state in states if state.placeholder in written} - {0}
    return frozenset(state.placeholder for state in states if state.placeholder in written or state.tie_group in groups)
