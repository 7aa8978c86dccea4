"""Graph records to messages."""

from __future__ import annotations

from planner.graph.ir import (
    SCHEMA_VERSION,
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
from planner.wire.graph.arguments import argument_to_proto
from planner.wire.graph.enumerations import DTYPES, OPERATOR_KINDS, STATE_KINDS, VALUE_KINDS
from planner.wire.graph.expressions import expression_to_proto
from planner.wire.graph.intern import InternTable
from planner.wire.graph.trees import tree_to_proto
from protos.v1 import graph_pb2


class _Tables:
    def __init__(self) -> None:
        self.operators: InternTable[Operator] = InternTable()
        self.contexts: InternTable[Context] = InternTable()
        self.module_paths: InternTable[str] = InternTable()


def graph_to_proto(graph: Graph) -> graph_pb2.Graph:
    tables = _Tables()
    nodes = [_node(node, tables) for node in graph.nodes]
    return graph_pb2.Graph(
        schema_version=SCHEMA_VERSION,
        torch_version=graph.torch_version,
        name=graph.name,
        symbols=[_symbol(symbol) for symbol in graph.symbols],
        operators=[_operator(operator) for operator in tables.operators.records()],
        contexts=[_context(context) for context in tables.contexts.records()],
        module_paths=tables.module_paths.records(),
        values=[_value(value) for value in graph.values],
        nodes=nodes,
        subgraphs=[graph_to_proto(subgraph) for subgraph in graph.subgraphs],
        states=[_state(state) for state in graph.states],
        inputs=[_input(entry) for entry in graph.inputs],
        outputs=[_output(entry) for entry in graph.outputs],
        input_tree=tree_to_proto(graph.input_tree),
        output_tree=tree_to_proto(graph.output_tree),
        training=graph.training,
        custom_backwards=graph.custom_backwards,
    )


def _symbol(symbol: Symbol) -> graph_pb2.Symbol:
    return graph_pb2.Symbol(
        id=symbol.id,
        name=symbol.name,
        lower=symbol.lower,
        upper=symbol.upper,
        hint=symbol.hint,
        unbacked=symbol.unbacked,
    )


def _operator(operator: Operator) -> graph_pb2.Operator:
    return graph_pb2.Operator(
        kind=OPERATOR_KINDS.number[operator.kind],
        name=operator.name,
        overload=operator.overload,
        mutated_arguments=operator.mutated_arguments,
        aliased_arguments=operator.aliased_arguments,
        random=operator.random,
    )


def _context(context: Context) -> graph_pb2.Context:
    autocasts = [_autocast(autocast) for autocast in context.autocasts]
    return graph_pb2.Context(grad_enabled=context.grad_enabled, autocasts=autocasts)


def _autocast(autocast: Autocast) -> graph_pb2.Context.Autocast:
    return graph_pb2.Context.Autocast(
        device_class=autocast.device_class,
        enabled=autocast.enabled,
        dtype=DTYPES.number[autocast.dtype],
        cache_enabled=autocast.cache_enabled,
    )


def _value(value: Value) -> graph_pb2.Value:
    return graph_pb2.Value(
        id=value.id,
        kind=VALUE_KINDS.number[value.kind],
        dtype=DTYPES.number[value.dtype] if value.dtype else graph_pb2.DTYPE_UNSPECIFIED,
        dims=[expression_to_proto(dim) for dim in value.dims],
        strides=[expression_to_proto(stride) for stride in value.strides],
        device_class=value.device_class,
        expression=None if value.expression is None else expression_to_proto(value.expression),
        size_bytes=value.opaque_bytes,
        name=value.name,
        requires_grad=value.requires_grad,
    )


def _node(node: Node, tables: _Tables) -> graph_pb2.Node:
    return graph_pb2.Node(
        operator=tables.operators.index(node.operator),
        arguments=[argument_to_proto(argument) for argument in node.arguments],
        keyword_arguments=[
            graph_pb2.KeywordArgument(name=name, argument=argument_to_proto(argument))
            for name, argument in node.keyword_arguments
        ],
        outputs=node.outputs,
        returns_tuple=node.returns_tuple,
        module_path=tables.module_paths.index(node.module_path),
        context=tables.contexts.index(node.context),
        name=node.name,
        opaque_seconds=dict(node.opaque_seconds),
        flops=None if node.flops is None else expression_to_proto(node.flops),
        bytes_moved=None if node.bytes_moved is None else expression_to_proto(node.bytes_moved),
    )


def _state(state: State) -> graph_pb2.State:
    return graph_pb2.State(
        name=state.name,
        value=state.value_id,
        kind=STATE_KINDS.number[state.kind],
        sha256=state.sha256,
        tie_group=state.tie_group,
        requires_grad=state.requires_grad,
        persistent=state.persistent,
        mutated=state.mutated,
    )


def _input(entry: Input) -> graph_pb2.Input:
    if isinstance(entry.content, ValueReference):
        return graph_pb2.Input(name=entry.name, value=entry.content.value_id)
    return graph_pb2.Input(name=entry.name, constant=argument_to_proto(entry.content))


def _output(entry: Output) -> graph_pb2.Output:
    if isinstance(entry.content, ValueReference):
        return graph_pb2.Output(name=entry.name, value=entry.content.value_id)
    return graph_pb2.Output(name=entry.name, constant=argument_to_proto(entry.content))
