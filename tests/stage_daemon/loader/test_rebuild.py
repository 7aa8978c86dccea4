"""Rebuilding is fast, and a device named in the graph becomes the stage's own."""

from __future__ import annotations

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.rebuild import rebuild_module
from tests.builders.graph_messages import small_message


def test_every_identifier_is_made_here() -> None:
    graph = small_message()
    for index, value in enumerate(graph.values):
        value.name = f"hostile_{index}"
    for node in graph.nodes:
        node.name = "hostile"
    code = rebuild_module(graph, torch.device("cpu")).program.code
    assert "hostile" not in code
    assert "linear.weight" not in code


def test_states_are_on_meta_until_they_are_given() -> None:
    module = rebuild_module(small_message(), torch.device("cpu"))
    assert all(state.is_meta for state in module.states().values())
    module.set_states({"linear.bias": torch.ones(4)})
    assert torch.equal(module.states()["linear.bias"], torch.ones(4))


def test_a_state_that_no_node_reads_is_kept() -> None:
    module = rebuild_module(small_message(), torch.device("cpu"))
    assert "tied.weight" in module.states()


def test_device_arguments_become_the_stages_device() -> None:
    graph = pb.Graph(schema_version=1)
    graph.operators.add(kind=pb.OPERATOR_KIND_ATEN, name="aten::ones", overload="default")
    value = graph.values.add(id=1, kind=pb.VALUE_KIND_TENSOR, dtype=pb.DTYPE_FLOAT32, device_class="cuda")
    value.dims.add(constant=2)
    node = graph.nodes.add(operator=0, outputs=[1])
    node.arguments.add().list.items.add(integer=2)
    node.keyword_arguments.add(name="device").argument.device_class = "cuda"
    graph.outputs.add(name="ones", value=1)
    (ones,) = rebuild_module(graph, torch.device("meta"))()
    assert ones.device.type == "meta"


def test_a_result_that_nobody_reads_is_still_computed() -> None:
    graph = pb.Graph(schema_version=1)
    graph.operators.add(kind=pb.OPERATOR_KIND_ATEN, name="aten::add_", overload="Tensor")
    value = graph.values.add(id=1, kind=pb.VALUE_KIND_TENSOR, dtype=pb.DTYPE_FLOAT32, device_class="cpu")
    value.dims.add(constant=2)
    graph.inputs.add(name="x", value=1)
    node = graph.nodes.add(operator=0, outputs=[0])
    node.arguments.add(value=1)
    node.arguments.add(value=1)
    graph.outputs.add(name="x", value=1)
    (doubled,) = rebuild_module(graph, torch.device("cpu"))(torch.ones(2))
    assert torch.equal(doubled, torch.full((2,), 2.0))
