"""Messages to graph records. Bounds are held first; what references mean is `planner.graph.check`'s business."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from planner.errors import GraphError
from planner.graph.bounds import MAX_RANK
from planner.graph.ir import (
    SCHEMA_VERSION,
    Argument,
    Autocast,
    Context,
    Graph,
    Input,
    Node,
    Operator,
    Output,
    State,
    Symbol,
    Value,
    ValueReference,
)
from planner.wire.graph.arguments import argument_from_proto
from planner.wire.graph.bounds import check_length, check_sizes
from planner.wire.graph.enumerations import DTYPES, OPERATOR_KINDS, STATE_KINDS, VALUE_KINDS
from planner.wire.graph.expressions import expression_from_proto
from planner.wire.graph.trees import tree_from_proto
from protos.v1 import graph_pb2

Message = TypeVar("Message")
Record = TypeVar("Record")


def graph_from_proto(message: graph_pb2.Graph, depth: int = 0) -> Graph:
    """Raises GraphError that names the element which is malformed."""
    check_sizes(message, depth)
    if message.schema_version != SCHEMA_VERSION:
        raise GraphError(
            f"graph: schema version {message.schema_version}, this planner reads {SCHEMA_VERSION}; export it again"
        )
    operators = _each("operator", message.operators, _operator)
    contexts = _each("context", message.contexts, _context) or (Context(),)
    paths = tuple(message.module_paths) or ("",)
    return Graph(
        torch_version=message.torch_version,
        name=message.name,
        symbols=_each("symbol", message.symbols, _symbol),
        values=_each("value", message.values, _value),
        nodes=_each("node", message.nodes, lambda node: _node(node, operators, contexts, paths)),
        subgraphs=_each("subgraph", message.subgraphs, lambda subgraph: graph_from_proto(subgraph, depth + 1)),
        states=_each("state", message.states, _state),
        inputs=_each("input", message.inputs, _input),
        outputs=_each("output", message.outputs, _output),
        input_tree=tree_from_proto(message.input_tree),
        output_tree=tree_from_proto(message.output_tree),
        training=message.training,
        custom_backwards=tuple(message.custom_backwards),
    )


def _each(what: str, messages: Iterable[Message], decode: Callable[[Message], Record]) -> tuple[Record, ...]:
    records = []
    for index, message in enumerate(messages):
        try:
            records.append(decode(message))
        except GraphError as error:
            raise GraphError(f"{what} {index}{_label(message)}: {error.message}") from None
    return tuple(records)


def _label(message: object) -> str:
    name = str(getattr(message, "name", ""))[:120]
    return f" ({name!r})" if name else ""


def _entry(what: str, table: tuple[Record, ...], index: int) -> Record:
    if index >= len(table):
        raise GraphError(f"{what} {index} is not in the table of {len(table)}")
    return table[index]


def _symbol(message: graph_pb2.Symbol) -> Symbol:
    return Symbol(
        id=message.id,
        name=message.name,
        lower=message.lower,
        upper=message.upper if message.HasField("upper") else None,
        hint=message.hint,
        unbacked=message.unbacked,
    )


def _operator(message: graph_pb2.Operator) -> Operator:
    check_length("mutated arguments", message.mutated_arguments)
    check_length("aliased arguments", message.aliased_arguments)
    return Operator(
        kind=OPERATOR_KINDS.member(message.kind),
        name=message.name,
        overload=message.overload,
        mutated_arguments=tuple(message.mutated_arguments),
        aliased_arguments=tuple(message.aliased_arguments),
        random=message.random,
    )


def _context(message: graph_pb2.Context) -> Context:
    autocasts = tuple(
        Autocast(
            device_class=autocast.device_class,
            enabled=autocast.enabled,
            dtype=DTYPES.member(autocast.dtype),
            cache_enabled=autocast.cache_enabled,
        )
        for autocast in message.autocasts
    )
    return Context(grad_enabled=message.grad_enabled, autocasts=autocasts)


def _value(message: graph_pb2.Value) -> Value:
    check_length("dims", message.dims, MAX_RANK)
    check_length("strides", message.strides, MAX_RANK)
    return Value(
        id=message.id,
        kind=VALUE_KINDS.member(message.kind),
        dtype=DTYPES.member(message.dtype) if message.dtype else None,
        dims=tuple(expression_from_proto(dim) for dim in message.dims),
        strides=tuple(expression_from_proto(stride) for stride in message.strides),
        device_class=message.device_class,
        expression=expression_from_proto(message.expression) if message.HasField("expression") else None,
        opaque_bytes=message.size_bytes,
        name=message.name,
        requires_grad=message.requires_grad,
    )


def _node(
    message: graph_pb2.Node, operators: tuple[Operator, ...], contexts: tuple[Context, ...], paths: tuple[str, ...]
) -> Node:
    check_length("arguments", message.arguments)
    check_length("outputs", message.outputs)
    return Node(
        operator=_entry("operator", operators, message.operator),
        arguments=tuple(argument_from_proto(argument) for argument in message.arguments),
        keyword_arguments=tuple(
            (entry.name, argument_from_proto(entry.argument)) for entry in message.keyword_arguments
        ),
        outputs=tuple(message.outputs),
        returns_tuple=message.returns_tuple,
        module_path=_entry("module path", paths, message.module_path),
        context=_entry("context", contexts, message.context),
        name=message.name,
        opaque_seconds=tuple(sorted(message.opaque_seconds.items())),
        flops=expression_from_proto(message.flops) if message.HasField("flops") else None,
        bytes_moved=expression_from_proto(message.bytes_moved) if message.HasField("bytes_moved") else None,
    )


def _state(message: graph_pb2.State) -> State:
    return State(
        name=message.name,
        value_id=message.value,
        kind=STATE_KINDS.member(message.kind),
        sha256=message.sha256,
        tie_group=message.tie_group,
        requires_grad=message.requires_grad,
        persistent=message.persistent,
        mutated=message.mutated,
    )


def _input(message: graph_pb2.Input) -> Input:
    return Input(name=message.name, content=_content(message))


def _output(message: graph_pb2.Output) -> Output:
    return Output(name=message.name, content=_content(message))


def _content(message: graph_pb2.Input | graph_pb2.Output) -> Argument:
    kind = message.WhichOneof("content")
    if kind == "value":
        return ValueReference(message.value)
    if kind == "constant":
        return argument_from_proto(message.constant)
    raise GraphError("content is empty")
