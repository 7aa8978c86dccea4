"""A graph message becomes a module of the same nodes; what does not hold together is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph, UnsupportedOperator
from stage_daemon.loader import contexts
from stage_daemon.loader.rebuild import rebuild_module
from tests.builders.graph_messages import small_message

CPU = torch.device("cpu")


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


def test_items_of_a_tuple_that_nobody_reads_are_left_out() -> None:
    graph = small_message()
    graph.nodes[2].outputs[0] = 0
    del graph.nodes[3:]
    del graph.outputs[0]
    module = rebuild_module(graph, CPU)
    module.set_states({"linear.weight": torch.zeros(4, 3), "linear.bias": torch.arange(4.0)})
    (second,) = module(torch.ones(2, 3), torch.tensor(True))
    assert torch.equal(second, torch.tensor([[2.0, 3.0], [2.0, 3.0]]))


def test_keywords_may_stand_for_positions() -> None:
    graph = _adding()
    del graph.nodes[0].arguments[1:]
    graph.nodes[0].keyword_arguments.add(name="other").argument.value = 1
    graph.nodes[0].keyword_arguments.add(name="alpha").argument.integer = 3
    (output,) = rebuild_module(graph, CPU)(torch.ones(2))
    assert torch.equal(output, torch.full((2,), 4.0))


def _adding() -> pb.Graph:
    """x + x"""
    graph = pb.Graph(schema_version=1)
    graph.operators.add(kind=pb.OPERATOR_KIND_ATEN, name="aten::add", overload="Tensor")
    for value_id in (1, 2):
        value = graph.values.add(id=value_id, kind=pb.VALUE_KIND_TENSOR, dtype=pb.DTYPE_FLOAT32, device_class="cpu")
        value.dims.add(constant=2)
    graph.inputs.add(name="x", value=1)
    node = graph.nodes.add(operator=0, outputs=[2], name="sum")
    node.arguments.add(value=1)
    node.arguments.add(value=1)
    graph.outputs.add(name="y", value=2)
    return graph


def _with_states(kind: int, dtype: int = pb.DTYPE_FLOAT32, **fields: object) -> pb.Graph:
    graph = _adding()
    value = graph.values.add(id=3, kind=pb.VALUE_KIND_TENSOR, dtype=dtype, device_class="cpu")
    value.dims.add(constant=2)
    graph.states.add(name="some.state", value=3, kind=kind, **fields)
    return graph


@pytest.mark.parametrize("trainable", [False, True])
def test_parameters_are_trainable_where_the_graph_says_so(trainable: bool) -> None:
    module = rebuild_module(_with_states(pb.STATE_KIND_PARAMETER, requires_grad=trainable), CPU)
    assert [parameter.requires_grad for parameter in module.parameters()] == [trainable]
    module.set_states({"some.state": torch.ones(2)})
    [parameter] = module.parameters()
    assert parameter.requires_grad is trainable
    assert torch.equal(parameter, torch.ones(2))


def test_parameters_of_integers_are_never_trainable() -> None:
    module = rebuild_module(_with_states(pb.STATE_KIND_PARAMETER, pb.DTYPE_INT8, requires_grad=True), CPU)
    assert [parameter.requires_grad for parameter in module.parameters()] == [False]


@pytest.mark.parametrize("kind", [pb.STATE_KIND_BUFFER, pb.STATE_KIND_CONSTANT])
@pytest.mark.parametrize("persistent", [False, True])
def test_buffers_and_constants_are_no_parameters(kind: int, persistent: bool) -> None:
    module = rebuild_module(_with_states(kind, persistent=persistent), CPU)
    assert list(module.parameters()) == []
    assert not isinstance(module.states()["some.state"], torch.nn.Parameter)
    module.set_states({"some.state": torch.ones(2)})
    assert torch.equal(module.states()["some.state"], torch.ones(2))


def test_tied_parameters_stay_one() -> None:
    module = rebuild_module(small_message(), CPU)
    tensor = torch.randn(4, 3)
    module.set_states({"linear.weight": tensor, "tied.weight": tensor})
    assert module.states()["linear.weight"] is module.states()["tied.weight"]
    module.set_states({"linear.weight": tensor, "tied.weight": tensor.clone()})
    assert module.states()["linear.weight"] is not module.states()["tied.weight"]


def test_contexts_are_entered_only_where_they_change() -> None:
    graph = _adding()
    for grad_enabled in (True, False, False):
        graph.contexts.add(grad_enabled=grad_enabled)
    for output, context in ((3, 1), (4, 2), (5, 0)):
        value = graph.values.add()
        value.CopyFrom(graph.values[1])
        value.id = output
        node = graph.nodes.add()
        node.CopyFrom(graph.nodes[0])
        node.outputs[0], node.context = output, context
    program = rebuild_module(graph, CPU).program
    entered = [node.args[0] for node in program.graph.nodes if node.target is contexts.enter]
    # The first stands in the default, the second and third in the same.
    assert entered == [False, True]


def _unknown_operator(graph: pb.Graph) -> None:
    graph.nodes[0].operator = 1


def _unknown_context(graph: pb.Graph) -> None:
    graph.nodes[0].context = 1


def _two_outputs(graph: pb.Graph) -> None:
    graph.nodes[0].outputs.append(1)


def _three_positions(graph: pb.Graph) -> None:
    graph.nodes[0].arguments.add(integer=1)


def _too_few(graph: pb.Graph) -> None:
    del graph.nodes[0].arguments[1]


def _keyword_twice(graph: pb.Graph) -> None:
    for _ in range(2):
        graph.nodes[0].keyword_arguments.add(name="alpha").argument.integer = 1


def _keyword_of_a_position(graph: pb.Graph) -> None:
    graph.nodes[0].keyword_arguments.add(name="other").argument.value = 1


def _unknown_keyword(graph: pb.Graph) -> None:
    graph.nodes[0].keyword_arguments.add(name="beta").argument.value = 1


def _gives_its_input(graph: pb.Graph) -> None:
    graph.nodes[0].outputs[0] = 1


def _gives_unknown(graph: pb.Graph) -> None:
    graph.nodes[0].outputs[0] = 9


def _reads_later(graph: pb.Graph) -> None:
    graph.nodes[0].arguments[1].value = 2


def _output_of_nothing(graph: pb.Graph) -> None:
    graph.outputs.add(name="empty")


def _output_that_nobody_gives(graph: pb.Graph) -> None:
    del graph.nodes[0]


def _state_of_no_kind(graph: pb.Graph) -> None:
    value = graph.values.add()
    value.CopyFrom(graph.values[0])
    value.id = 3
    graph.states.add(name="odd", value=3)


def _input_twice(graph: pb.Graph) -> None:
    graph.inputs.add(name="again", value=1)


NODE = r"^node 0 \('sum'\): "


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_unknown_operator, NODE + "speaks of operator 1; the graph has 1"),
        (_unknown_context, NODE + "speaks of context 1; the graph has 1"),
        (_two_outputs, NODE + "2 outputs, but it does not return a tuple"),
        (_three_positions, NODE + "3 arguments by position, at most 2"),
        (_too_few, NODE + "1 arguments, needs 2"),
        (_keyword_twice, NODE + "a keyword argument stands twice"),
        (_keyword_of_a_position, NODE + "keyword argument 'other' is not one that the operator takes there"),
        (_unknown_keyword, NODE + "keyword argument 'beta' is not one"),
        (_gives_its_input, NODE + "gives value 1, which something before it gives already"),
        (_gives_unknown, NODE + "gives value 9, which the graph does not have"),
        (_reads_later, NODE + "reads value 2, which nothing before it gives"),
        (_output_of_nothing, "^output 'empty': has no content"),
        (_output_that_nobody_gives, "^output 'y': value 2 is given by nothing in the graph"),
        (_state_of_no_kind, "^state 'odd': kind 0 is neither parameter, buffer nor constant"),
        (_input_twice, "^input 'again': gives value 1, which something before it gives already"),
    ],
)
def test_what_does_not_hold_together_is_named(change: Callable[[pb.Graph], None], words: str) -> None:
    graph = _adding()
    rebuild_module(graph, CPU)
    change(graph)
    with pytest.raises(InvalidGraph, match=words):
        rebuild_module(graph, CPU)


def test_what_is_wrong_in_a_subgraph_is_named_there() -> None:
    graph = small_message()
    graph.subgraphs[1].nodes[0].operator = 7
    with pytest.raises(InvalidGraph, match=r"^subgraph 1, node 0 \('only'\): speaks of operator 7; the graph has 1"):
        rebuild_module(graph, CPU)


def test_operators_that_are_not_in_the_list_are_refused() -> None:
    graph = _adding()
    graph.operators[0].overload = "no_such"
    with pytest.raises(UnsupportedOperator, match=r"operator 'aten::add.no_such' is not one that this daemon runs"):
        rebuild_module(graph, CPU)
    graph.operators[0].kind = pb.OPERATOR_KIND_OPAQUE
    with pytest.raises(UnsupportedOperator, match="operator 'aten::add' is opaque: it can be planned and not run"):
        rebuild_module(graph, CPU)
