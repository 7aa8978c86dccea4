"""Bytes that no honest exporter made: planner and daemon each refuse them with their own error, on their own checks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import GraphError
from planner.graph.check import check_graph
from planner.wire.graph import graph_from_bytes
from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import DaemonError, InvalidGraph, UnsupportedOperator
from stage_daemon.loader.load import load_stage
from stage_daemon.loader.parse import parse_graph
from stage_daemon.loader.rebuild import rebuild_module
from tests.builders.graph_messages import locations, small_message
from tests.random_examples import random_examples

CODE = '__import__("os").system("touch pwned")'
CPU = torch.device("cpu")

Mutation = Callable[[pb.Graph], None]


class _ReachedWeights(Exception):
    """The graph passed every check: its weights were asked for."""


def _load(data: bytes) -> None:
    def no_bytes(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        raise _ReachedWeights

    load_stage(data, locations(), no_bytes, CPU, lambda loaded, total: None)


def _rename_parameter(graph: pb.Graph) -> None:
    graph.states[0].name = CODE


def _name_keyword_as_code(graph: pb.Graph) -> None:
    graph.nodes[2].keyword_arguments[0].name = f"dim={CODE}, x"


def _use_unknown_keyword(graph: pb.Graph) -> None:
    graph.nodes[2].keyword_arguments[0].name = "out"


def _operator(name: str, overload: str, kind: int = pb.OPERATOR_KIND_ATEN) -> Mutation:
    def mutate(graph: pb.Graph) -> None:
        graph.operators[1].kind = kind
        graph.operators[1].name = name
        graph.operators[1].overload = overload

    return mutate


def _huge_dimension(graph: pb.Graph) -> None:
    graph.values[3].dims[1].constant = 2**50


def _huge_tensor(graph: pb.Graph) -> None:
    graph.values[3].dims[0].constant = 2**39
    graph.values[3].dims[1].constant = 2**39


def _negative_dimension(graph: pb.Graph) -> None:
    graph.values[3].dims[1].constant = -4


def _many_dimensions(graph: pb.Graph) -> None:
    for _ in range(1000):
        graph.values[3].dims.add(constant=1)


def _million_nodes(graph: pb.Graph) -> None:
    node = graph.nodes[1].SerializeToString()
    nodes = (b"\x4a" + bytes([len(node)]) + node) * 1_000_000
    graph.MergeFromString(nodes)


def _powers_of_powers(graph: pb.Graph) -> None:
    dim = graph.values[3].dims[0]
    for _ in range(20):
        dim.operation.operator = pb.Expression.Operation.OPERATOR_POWER
        base = dim.operation.operands.add()
        dim.operation.operands.add(constant=64)
        dim = base
    dim.constant = 3


def _division_by_zero(graph: pb.Graph) -> None:
    dim = graph.values[3].dims[0]
    dim.operation.operator = pb.Expression.Operation.OPERATOR_FLOOR_DIVIDE
    dim.operation.operands.add(constant=1)
    dim.operation.operands.add(constant=0)


def _unknown_symbol(graph: pb.Graph) -> None:
    graph.values[3].dims[0].symbol = 99


def _deep_argument(graph: pb.Graph) -> None:
    argument = graph.nodes[1].arguments[0]
    for _ in range(30):
        argument = argument.list.items.add()
    argument.integer = 1


def _deep_subgraphs(graph: pb.Graph) -> None:
    for _ in range(20):
        graph = graph.subgraphs.add(schema_version=1)


def _cycle(graph: pb.Graph) -> None:
    graph.nodes[1].arguments[0].value = 8


def _self_read(graph: pb.Graph) -> None:
    graph.nodes[1].arguments[0].value = 5


def _undefined_read(graph: pb.Graph) -> None:
    graph.nodes[1].arguments[0].value = 2**63


def _duplicate_value(graph: pb.Graph) -> None:
    graph.values.add().CopyFrom(graph.values[3])


def _value_given_twice(graph: pb.Graph) -> None:
    graph.nodes[1].outputs[0] = 4


def _value_zero(graph: pb.Graph) -> None:
    graph.values[3].id = 0


def _output_of_nothing(graph: pb.Graph) -> None:
    graph.outputs[0].value = 4096


def _subgraph_out_of_range(graph: pb.Graph) -> None:
    graph.nodes[4].arguments[1].subgraph = 2


def _operator_out_of_range(graph: pb.Graph) -> None:
    graph.nodes[1].operator = 4_000_000_000


def _context_out_of_range(graph: pb.Graph) -> None:
    graph.nodes[1].context = 2


def _unknown_dtype(graph: pb.Graph) -> None:
    graph.values[3].dtype = 77


def _hostile_autocast(graph: pb.Graph) -> None:
    graph.contexts[1].autocasts.add(device_class=CODE, enabled=True, dtype=pb.DTYPE_FLOAT16)


def _hostile_device(graph: pb.Graph) -> None:
    graph.nodes[1].arguments[0].device_class = CODE


def _empty_argument(graph: pb.Graph) -> None:
    graph.nodes[1].arguments.add()


def _state_without_value(graph: pb.Graph) -> None:
    graph.states[0].value = 4096


def _state_of_symbolic_size(graph: pb.Graph) -> None:
    graph.values[1].dims[0].symbol = 1


def _short_digest(graph: pb.Graph) -> None:
    graph.states[0].sha256 = b"short"


def _states_of_one_name(graph: pb.Graph) -> None:
    graph.states[1].name = graph.states[0].name


def _untrue_tie(graph: pb.Graph) -> None:
    graph.states[1].tie_group = 1


def _long_name(graph: pb.Graph) -> None:
    graph.states[0].name = "a" * 1_000_000


def _states_in_subgraph(graph: pb.Graph) -> None:
    graph.subgraphs[0].states.add(name="hidden", value=1, kind=pb.STATE_KIND_BUFFER)


def _schema_version(graph: pb.Graph) -> None:
    graph.schema_version = 2


HOSTILE: dict[str, Mutation] = {
    mutation.__name__.removeprefix("_"): mutation
    for mutation in (
        _rename_parameter,
        _name_keyword_as_code,
        _huge_dimension,
        _huge_tensor,
        _negative_dimension,
        _many_dimensions,
        _million_nodes,
        _powers_of_powers,
        _division_by_zero,
        _unknown_symbol,
        _deep_argument,
        _deep_subgraphs,
        _cycle,
        _self_read,
        _undefined_read,
        _duplicate_value,
        _value_given_twice,
        _value_zero,
        _output_of_nothing,
        _subgraph_out_of_range,
        _operator_out_of_range,
        _context_out_of_range,
        _unknown_dtype,
        _hostile_autocast,
        _hostile_device,
        _empty_argument,
        _state_without_value,
        _state_of_symbolic_size,
        _short_digest,
        _states_of_one_name,
        _untrue_tie,
        _long_name,
        _states_in_subgraph,
        _schema_version,
    )
}

FORBIDDEN_OPERATORS = {
    "reads a file": ("aten::from_file", "default"),
    "replaces storage": ("aten::set_", "source_Storage"),
    "resizes": ("aten::resize_", "default"),
    "writes an argument out": ("aten::add", "out"),
    "another namespace": ("inductor::_alloc_from_pool", "default"),
    "a name that is code": (CODE, "default"),
    "an overload that is code": ("aten::add", CODE),
    "an attribute of the packet": ("aten::add", "__class__"),
    "a dunder": ("aten::__dict__", "default"),
    "no overload": ("aten::add", ""),
}


def hostile_bytes(mutate: Mutation) -> bytes:
    graph = small_message()
    mutate(graph)
    return graph.SerializeToString()


@pytest.fixture(autouse=True)
def _nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) == [], "code from a graph was run"


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_the_planner_refuses(name: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_from_bytes(hostile_bytes(HOSTILE[name]))
    assert 0 < len(caught.value.message) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_the_daemon_refuses(name: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        _load(hostile_bytes(HOSTILE[name]))
    assert 0 < len(caught.value.message) < 1000


@pytest.mark.parametrize("case", FORBIDDEN_OPERATORS)
def test_operators_outside_the_list_are_refused(case: str) -> None:
    data = hostile_bytes(_operator(*FORBIDDEN_OPERATORS[case]))
    with pytest.raises(GraphError, match="operator"):
        graph_from_bytes(data)
    with pytest.raises(UnsupportedOperator, match="operator"):
        _load(data)


@pytest.mark.parametrize("kind", [pb.OPERATOR_KIND_HIGHER_ORDER, pb.OPERATOR_KIND_PYTHON])
@pytest.mark.parametrize("name", ["eval", "exec", "getattr", "__import__", "wrap_with_set_grad_enabled"])
def test_other_kinds_have_no_way_out_either(kind: int, name: str) -> None:
    data = hostile_bytes(_operator(name, "", kind))
    with pytest.raises(GraphError, match="operator"):
        graph_from_bytes(data)
    with pytest.raises(UnsupportedOperator, match="operator"):
        _load(data)


def test_an_unknown_keyword_is_refused_by_the_daemon_who_knows_schemas() -> None:
    with pytest.raises(InvalidGraph, match="'out'"):
        _load(hostile_bytes(_use_unknown_keyword))


def test_deep_nesting_is_not_even_parsed() -> None:
    operand = b"\x08\x02"
    for _ in range(10_000):
        operation = b"\x08\x01" + _field(2, operand)
        operand = _field(3, operation)
    data = small_message().SerializeToString() + _field(8, b"\x08\x63" + _field(4, operand))
    with pytest.raises(GraphError, match="serialized"):
        graph_from_bytes(data)
    with pytest.raises(InvalidGraph, match="serialized"):
        _load(data)


@pytest.mark.parametrize("data", [b"not a graph", b"\x00" * 4096, b"\xff" * 4096, os.urandom(4096)])
def test_bytes_that_are_no_graph_are_refused(data: bytes) -> None:
    with pytest.raises(GraphError):
        graph_from_bytes(data)
    with pytest.raises(InvalidGraph):
        _load(data)


def test_labels_for_display_may_say_anything_and_are_never_run() -> None:
    graph = small_message()
    graph.name = graph.nodes[0].name = graph.values[0].name = graph.module_paths[1] = CODE
    module = rebuild_module(graph, CPU)
    assert "__import__" not in module.program.code
    x = torch.ones(2, 3)
    module.set_states({name: torch.zeros(state.shape) for name, state in module.states().items()})
    assert module(x, torch.tensor(True))[0].shape == (2, 2)


def test_input_names_that_are_code_never_become_identifiers() -> None:
    graph = small_message()
    graph.inputs[0].name = f"x={CODE}"
    with pytest.raises(GraphError, match="name"):
        graph_from_bytes(graph.SerializeToString())
    assert "__import__" not in rebuild_module(graph, CPU).program.code


@pytest.mark.parametrize(
    "text", [CODE, "\"); __import__('os').system('touch pwned') #", "\n    import os\n", "\\", "'''"]
)
def test_text_arguments_stay_text(text: str) -> None:
    graph = small_message()
    graph.operators[1].name = "aten::gelu"
    graph.nodes[1].keyword_arguments.add(name="approximate").argument.text = text
    with pytest.raises(DaemonError):
        _load(graph.SerializeToString())


@pytest.mark.slow
@random_examples(400)
@given(data=st.data())
def test_mutated_bytes_give_a_sound_graph_or_the_declared_error(data: st.DataObject) -> None:
    mutated = _mutate(data, small_message().SerializeToString())
    try:
        graph = graph_from_bytes(mutated)
    except GraphError:
        pass
    else:
        check_graph(graph)
    with contextlib.suppress(InvalidGraph):
        rebuild_module(parse_graph(mutated), CPU)


@pytest.mark.slow
@random_examples(100)
@given(data=st.data())
def test_mutated_graphs_load_or_fail_with_a_daemon_error(data: st.DataObject) -> None:
    """Past the structure: whatever torch makes of arguments that it did not expect."""
    graph = small_message()
    node = graph.nodes[data.draw(st.integers(0, len(graph.nodes) - 1))]
    argument = node.arguments[data.draw(st.integers(0, len(node.arguments) - 1))]
    choice = data.draw(st.sampled_from(("integer", "floating", "boolean", "text", "value", "list", "none", "dtype")))
    if choice == "integer":
        argument.integer = data.draw(st.integers(-(2**63), 2**63 - 1))
    elif choice == "floating":
        argument.floating = data.draw(st.floats())
    elif choice == "boolean":
        argument.boolean = data.draw(st.booleans())
    elif choice == "text":
        argument.text = data.draw(st.text(max_size=20))
    elif choice == "value":
        argument.value = data.draw(st.integers(0, 12))
    elif choice == "dtype":
        argument.dtype = data.draw(st.integers(0, 20))
    else:
        getattr(argument, choice).SetInParent()
    with contextlib.suppress(DaemonError, _ReachedWeights):
        _load(graph.SerializeToString())


def _mutate(data: st.DataObject, valid: bytes) -> bytes:
    mutated = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        kind = data.draw(st.sampled_from(("change", "insert", "delete", "truncate")))
        if kind == "change":
            mutated[position] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            mutated[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "delete":
            del mutated[position : position + data.draw(st.integers(1, 8))]
        elif len(mutated) > 1:
            del mutated[max(1, position) :]
        if not mutated:
            return b""
    return bytes(mutated)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field, by hand: protobuf's own serializer refuses to nest as deep as an attacker would."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
