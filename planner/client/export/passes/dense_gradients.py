"""Gradients of embeddings are dense: the same numbers in every row, and zeros in those that were not looked up.

Sums over microbatches, copies and tied weights, the norm to clip by and most of torch's optimizers take no sparse ones.
"""

from __future__ import annotations

import torch
from torch import fx


def dense_gradients(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for position, argument in enumerate(node.target._schema.arguments):
            if argument.name != "sparse":
                continue
            if position < len(node.args):
                node.update_arg(position, False)
            elif argument.name in node.kwargs:
                node.update_kwarg(argument.name, False)
