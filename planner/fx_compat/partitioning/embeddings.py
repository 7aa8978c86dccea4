"""Which operations of an fx graph look rows up in a table."""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.fx import Node

from planner.fx_compat.partitioning.numbers import NumberedGraph
from planner.graph.operators import facts_of

_MODULES = (nn.Embedding, nn.EmbeddingBag)
_FUNCTIONS = frozenset({nn.functional.embedding, nn.functional.embedding_bag, torch.embedding, torch.embedding_bag})


def embedding_nodes(program: NumberedGraph, fx_module: fx.GraphModule) -> frozenset[int]:
    """Calls of embedding functions and of modules that hold a table, by their type."""
    return frozenset(
        index
        for index, node in enumerate(program.nodes)
        if program.graph.is_operation[index] and _looks_up(node, fx_module)
    )


def _looks_up(node: Node, fx_module: fx.GraphModule) -> bool:
    if node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        return node.target in _FUNCTIONS or (schema is not None and facts_of(schema.name).embedding)
    if node.op != "call_module":
        return False
    module = fx_module.get_submodule(str(node.target))
    # Quantized and fused tables are no subclasses, but say so by the name of their type.
    return any(isinstance(part, _MODULES) or "Embedding" in type(part).__name__ for part in module.modules())
