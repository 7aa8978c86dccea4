"""Programs for torch.fx's partitioner: random ones of unequal widths, and layers of a transformer. Shapes are known."""

from __future__ import annotations

import operator
from random import Random

import torch
from torch import fx, nn
from torch.fx.passes.graph_manipulation import get_size_of_all_nodes

from planner.fx_compat.partitioning.config import NodeLatency


def random_program(seed: int, num_operations: int, *, num_inputs: int = 2) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """With inputs and constants that several operations read, layers with parameters, and branches that join."""
    random, root, graph = Random(seed), nn.Module(), fx.Graph()
    widths: dict[fx.Node, int] = {}
    inputs = []
    for index in range(num_inputs):
        width = random.randint(1, 6)
        widths[graph.placeholder(f"x{index}")] = width
        inputs.append(torch.rand(2, width))
    for index in range(random.randint(0, 2)):
        root.register_buffer(f"constant{index}", torch.rand(2, random.randint(1, 6)))
        widths[graph.get_attr(f"constant{index}")] = getattr(root, f"constant{index}").shape[1]
    for index in range(num_operations):
        recent = list(widths)[-6:] if random.random() < 0.8 else list(widths)
        one, other = random.choice(recent), random.choice(recent)
        kind = random.choice(["linear", "linear", "relu", "cat", "add"])
        if kind == "linear":
            width = random.randint(1, 6)
            root.add_module(f"layer{index}", nn.Linear(widths[one], width))
            widths[graph.call_module(f"layer{index}", (one,))] = width
        elif kind == "add" and widths[one] == widths[other]:
            widths[graph.call_function(operator.add, (one, other))] = widths[one]
        elif kind == "cat" and widths[one] + widths[other] <= 12:
            widths[graph.call_function(torch.cat, ([one, other],), {"dim": 1})] = widths[one] + widths[other]
        else:
            widths[graph.call_function(torch.relu, (one,))] = widths[one]
    ends = [node for node in widths if not node.users and node.op.startswith("call_")]
    graph.output(tuple(ends))
    return sized(fx.GraphModule(root, graph), inputs), inputs


def transformer_program(num_operations: int, width: int = 8) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Blocks of attention and feed-forward layers until there are at least so many operations."""
    root, graph = nn.Module(), fx.Graph()
    stream = graph.placeholder("x")
    while sum(node.op.startswith("call_") for node in graph.nodes) < num_operations:
        stream = _attention(root, graph, stream, width)
        if sum(node.op.startswith("call_") for node in graph.nodes) < num_operations:
            stream = _feed_forward(root, graph, stream, width)
    graph.output(stream)
    inputs = [torch.rand(4, width)]
    return sized(fx.GraphModule(root, graph), inputs), inputs


def _attention(root: nn.Module, graph: fx.Graph, stream: fx.Node, width: int) -> fx.Node:
    normed = _layer(root, graph, nn.LayerNorm(width), stream)
    query, key, value = (_layer(root, graph, nn.Linear(width, width), normed) for _ in range(3))
    scores = graph.call_function(torch.matmul, (query, graph.call_function(torch.transpose, (key, 0, 1))))
    mixed = graph.call_function(torch.matmul, (graph.call_function(torch.softmax, (scores, -1)), value))
    return graph.call_function(operator.add, (stream, _layer(root, graph, nn.Linear(width, width), mixed)))


def _feed_forward(root: nn.Module, graph: fx.Graph, stream: fx.Node, width: int) -> fx.Node:
    normed = _layer(root, graph, nn.LayerNorm(width), stream)
    wide = graph.call_function(torch.relu, (_layer(root, graph, nn.Linear(width, 4 * width), normed),))
    return graph.call_function(operator.add, (stream, _layer(root, graph, nn.Linear(4 * width, width), wide)))


def _layer(root: nn.Module, graph: fx.Graph, layer: nn.Module, hidden: fx.Node) -> fx.Node:
    name = f"layer{len(list(root.children()))}"
    root.add_module(name, layer)
    return graph.call_module(name, (hidden,))


def sized(module: fx.GraphModule, inputs: list[torch.Tensor]) -> fx.GraphModule:
    get_size_of_all_nodes(module, inputs)
    return module


def operations(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op.startswith("call_")]


def total_bytes(module: fx.GraphModule) -> int:
    return sum(node.size_bytes.total_size for node in module.graph.nodes if node.op != "output")


def random_latencies(module: fx.GraphModule, seed: int) -> dict[fx.Node, NodeLatency]:
    """Whole numbers, so that sums are exact in any order."""
    random = Random(seed)
    return {node: NodeLatency(float(random.randint(0, 9)), float(random.randint(0, 9))) for node in operations(module)}
