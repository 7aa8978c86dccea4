"""A small graph as a message, made by hand: what hostile and malformed variations start from.

relu(x W^T + b), split in two, of which the first is doubled under no_grad or negated, by a cond; two weights are tied.
"""

from __future__ import annotations

import hashlib

import torch

from protos.v1 import graph_pb2 as pb
from protos.v1 import stage_daemon_pb2 as daemon_pb

FILE_SHA256 = hashlib.sha256(b"weights").digest()


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {"linear.weight": torch.randn(4, 3, generator=generator), "linear.bias": torch.randn(4, generator=generator)}


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def small_message() -> pb.Graph:
    graph = pb.Graph(schema_version=1, torch_version="2.13.0", name="small")
    graph.symbols.add(id=1, name="batch", lower=1, upper=1024, hint=2)
    for name, overload in (
        ("aten::linear", "default"),
        ("aten::relu", "default"),
        ("aten::split", "Tensor"),
        ("aten::add", "Tensor"),
    ):
        graph.operators.add(kind=pb.OPERATOR_KIND_ATEN, name=name, overload=overload)
    graph.operators.add(kind=pb.OPERATOR_KIND_HIGHER_ORDER, name="cond")
    graph.contexts.add(grad_enabled=True)
    graph.contexts.add(grad_enabled=False)
    graph.module_paths.extend(("", "linear"))
    _add_values(graph)
    _add_states(graph)
    graph.inputs.add(name="x", value=1)
    graph.inputs.add(name="flag", value=9)
    _add_nodes(graph)
    _add_subgraph(graph, operator="aten::mul", overload="Scalar", factor=2)
    _add_subgraph(graph, operator="aten::neg", overload="default", factor=None)
    graph.outputs.add(name="first", value=8)
    graph.outputs.add(name="second", value=7)
    leaf = pb.PyTree(leaf=pb.LeafNode())
    arguments = pb.PyTree(tuple=pb.TreeSequence(items=[leaf, leaf]))
    keywords = pb.PyTree(dict=pb.TreeMapping())
    graph.input_tree.CopyFrom(pb.PyTree(tuple=pb.TreeSequence(items=[arguments, keywords])))
    graph.output_tree.CopyFrom(pb.PyTree(tuple=pb.TreeSequence(items=[leaf, leaf])))
    return graph


def small_module_outputs(x: torch.Tensor, flag: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What the graph computes, said in torch."""
    tensors = weights()
    hidden = torch.relu(torch.nn.functional.linear(x, tensors["linear.weight"], tensors["linear.bias"]))
    first, second = hidden.split(2, dim=1)
    first = first + first
    return (first * 2 if flag else -first), second


def locations() -> list[daemon_pb.StateLocation]:
    """One file holds the weight's bytes, then the bias's."""
    names, offset = [], 0
    for name, tensor in weights().items():
        length = tensor.numel() * tensor.itemsize
        names.append(
            daemon_pb.StateLocation(name=name, file_sha256=FILE_SHA256, offset_bytes=offset, length_bytes=length)
        )
        offset += length
    return names


def file_bytes() -> bytes:
    return b"".join(tensor_bytes(tensor) for tensor in weights().values())


def _add_values(graph: pb.Graph) -> None:
    for value_id, name, dims in (
        (1, "x", ("batch", 3)),
        (2, "linear.weight", (4, 3)),
        (3, "linear.bias", (4,)),
        (4, "hidden", ("batch", 4)),
        (5, "active", ("batch", 4)),
        (6, "left", ("batch", 2)),
        (7, "right", ("batch", 2)),
        (8, "chosen", ("batch", 2)),
        (9, "flag", ()),
        (10, "doubled", ("batch", 2)),
        (11, "tied.weight", (4, 3)),
    ):
        _add_value(graph, value_id, name, dims, pb.DTYPE_BOOL if name == "flag" else pb.DTYPE_FLOAT32)


def _add_value(graph: pb.Graph, value_id: int, name: str, dims: tuple[object, ...], dtype: pb.Dtype = 2) -> None:
    value = graph.values.add(id=value_id, name=name, kind=pb.VALUE_KIND_TENSOR, dtype=dtype, device_class="cpu")
    for dim in dims:
        value.dims.add(symbol=1) if dim == "batch" else value.dims.add(constant=dim)


def _add_states(graph: pb.Graph) -> None:
    for name, value_id, source, tie_group in (
        ("linear.weight", 2, "linear.weight", 1),
        ("linear.bias", 3, "linear.bias", 0),
        ("tied.weight", 11, "linear.weight", 1),
    ):
        graph.states.add(
            name=name,
            value=value_id,
            kind=pb.STATE_KIND_PARAMETER,
            sha256=hashlib.sha256(tensor_bytes(weights()[source])).digest(),
            tie_group=tie_group,
            requires_grad=True,
            persistent=True,
        )


def _add_nodes(graph: pb.Graph) -> None:
    linear = graph.nodes.add(operator=0, outputs=[4], name="linear", module_path=1)
    for value_id in (1, 2, 3):
        linear.arguments.add(value=value_id)
    graph.nodes.add(operator=1, outputs=[5], name="relu").arguments.add(value=4)
    split = graph.nodes.add(operator=2, outputs=[6, 7], returns_tuple=True, name="split")
    split.arguments.add(value=5)
    split.arguments.add(integer=2)
    split.keyword_arguments.add(name="dim").argument.integer = 1
    add = graph.nodes.add(operator=3, outputs=[10], name="add", context=1)
    add.arguments.add(value=6)
    add.arguments.add(value=6)
    cond = graph.nodes.add(operator=4, outputs=[8], returns_tuple=True, name="cond")
    cond.arguments.add(value=9)
    cond.arguments.add(subgraph=0)
    cond.arguments.add(subgraph=1)
    cond.arguments.add().tuple.items.add(value=10)


def _add_subgraph(graph: pb.Graph, *, operator: str, overload: str, factor: int | None) -> None:
    body = graph.subgraphs.add(schema_version=1, name="branch")
    body.operators.add(kind=pb.OPERATOR_KIND_ATEN, name=operator, overload=overload)
    _add_value(body, 1, "operand", ("batch", 2))
    _add_value(body, 2, "result", ("batch", 2))
    body.inputs.add(name="operand", value=1)
    node = body.nodes.add(operator=0, outputs=[2], name="only")
    node.arguments.add(value=1)
    if factor is not None:
        node.arguments.add(integer=factor)
    body.outputs.add(name="result", value=2)
    body.input_tree.leaf.SetInParent()
    body.output_tree.leaf.SetInParent()
