"""Graphs made by hand, so that contract tests need no torch."""

from __future__ import annotations

import hashlib
import json
import struct

from planner.graph.ir import (
    Dtype,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    StateKind,
    TreeDict,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2

LINEAR = Operator(kind=OperatorKind.ATEN, name="aten::linear", overload="default")
RELU = Operator(kind=OperatorKind.ATEN, name="aten::relu", overload="default")
INPUT_TREE = TreeTuple((TreeTuple((TreeLeaf(),)), TreeDict((), ())))


def linear_chain(num_layers: int, width: int = 8, name: str = "chain") -> Graph:
    """`num_layers` linear layers without bias, modules layers.0, layers.1, ..., states layers.0.weight, ..."""
    values = [_tensor(1, (2, width))]
    nodes, states = [], []
    for index in range(num_layers):
        weight, result = 2 * index + 2, 2 * index + 3
        values += [_tensor(weight, (width, width)), _tensor(result, (2, width))]
        states.append(State(name=f"layers.{index}.weight", value_id=weight, kind=StateKind.PARAMETER))
        nodes.append(
            Node(
                operator=LINEAR,
                arguments=(ValueReference(result - 2), ValueReference(weight)),
                outputs=(result,),
                module_path=f"layers.{index}",
                name=f"linear_{index}",
            )
        )
    return _graph(name, values, nodes, states)


def relu_chain(num_nodes: int) -> Graph:
    """No states and as many nodes as asked for."""
    values = [_tensor(index + 1, (2, 2)) for index in range(num_nodes + 1)]
    nodes = [
        Node(operator=RELU, arguments=(ValueReference(index + 1),), outputs=(index + 2,), name=f"relu_{index}")
        for index in range(num_nodes)
    ]
    return _graph("relus", values, nodes, [])


def chain_bytes(num_layers: int = 4, width: int = 8, name: str = "chain") -> bytes:
    return graph_to_bytes(linear_chain(num_layers, width, name))


def chain_weights(num_layers: int = 4, width: int = 8, fill: int = 0, name: str = "") -> bytes:
    """The chain's states as a safetensors file, whose metadata hold the name."""
    length = width * width * 4
    header: dict[str, object] = {"__metadata__": {"name": name}} if name else {}
    header |= {
        f"layers.{index}.weight": {
            "dtype": "F32",
            "shape": [width, width],
            "data_offsets": [index * length, (index + 1) * length],
        }
        for index in range(num_layers)
    }
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes([fill]) * (num_layers * length)


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _tensor(value_id: int, dims: tuple[int, ...]) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=dims, name=f"v{value_id}")


def _graph(name: str, values: list[Value], nodes: list[Node], states: list[State]) -> Graph:
    return Graph(
        torch_version="2.13.0",
        name=name,
        values=tuple(values),
        nodes=tuple(nodes),
        states=tuple(states),
        inputs=(Input(name="x", content=ValueReference(1)),),
        outputs=(Output(name="y", content=ValueReference(values[-1].id)),),
        input_tree=INPUT_TREE,
        output_tree=TreeLeaf(),
    )


def many_nodes(num_nodes: int) -> bytes:
    """A graph of a few nodes, and then one node over and over whose result nobody reads: bytes made by repetition."""
    message = graph_pb2.Graph.FromString(graph_to_bytes(relu_chain(2)))
    node = graph_pb2.Graph(nodes=[message.nodes[0]])
    node.nodes[0].outputs[0] = 0
    return message.SerializeToString() + node.SerializeToString() * num_nodes
