"""Says whether a graph is sound, before anything is computed from it. Every error names the element it is about."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

from planner.errors import GraphError
from planner.graph.bounds import (
    MAX_ARGUMENT_POSITION,
    MAX_DIM,
    MAX_INPUTS,
    MAX_NODES,
    MAX_RANK,
    MAX_STATES,
    MAX_SUBGRAPH_DEPTH,
    MAX_SYMBOLS,
    MAX_TENSOR_BYTES,
    MAX_TOTAL_SUBGRAPHS,
    MAX_VALUES,
    check_argument_depth,
    check_count,
    check_expression,
    check_label,
    check_name,
    count_leaves,
    shown,
)
from planner.graph.cycle import cycle_text, find_cycle
from planner.graph.expression import Expression, evaluate
from planner.graph.ir import (
    Argument,
    ArgumentList,
    Context,
    DeviceClass,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    SubgraphReference,
    Symbol,
    Value,
    ValueKind,
    ValueReference,
    values_read,
)
from planner.graph.operators import load_vocabulary

_DEVICE_CLASSES = frozenset({"cpu", "cuda", "meta"})
_AUTOCAST_DEVICE_CLASSES = frozenset({"cpu", "cuda"})
_CUSTOM_NAME = re.compile(r"[A-Za-z_]\w{0,99}::[A-Za-z_]\w{0,99}\.[A-Za-z_]\w{0,99}", re.ASCII)


def check_graph(graph: Graph) -> None:
    """Raises GraphError, naming the element, unless the graph is sound and within every bound. Linear time."""
    _check_counts(graph)
    leaves = count_leaves("input tree", graph.input_tree), count_leaves("output tree", graph.output_tree)
    for what, num_leaves, needed in (
        ("input", leaves[0], len(graph.inputs)),
        ("output", leaves[1], len(graph.outputs)),
    ):
        if num_leaves != needed:
            raise GraphError(f"{what} tree: {num_leaves} leaves for {needed} {what}s, needs one each")
    _check_states(graph)
    _check_program(graph, "", {})


def why_not_deployable(graph: Graph, has_weights: bool) -> str | None:
    """Why a sound graph can be planned and not run; None if it can run."""
    for part in _with_subgraphs(graph):
        for node in part.nodes:
            if node.operator.kind is OperatorKind.OPAQUE:
                return f"node {shown(node.name)} is opaque: it has a cost and no meaning; export the module itself"
        for value in part.values:
            if value.kind is ValueKind.OPAQUE:
                return f"value {value.id} ({shown(value.name)}) is opaque: it has a size and no type"
    if graph.states and not has_weights:
        return f"no weights are attached, and the graph has {len(graph.states)} states; attach its weights"
    return None


def _with_subgraphs(graph: Graph, depth_left: int = MAX_SUBGRAPH_DEPTH) -> Iterator[Graph]:
    if depth_left < 0:
        raise GraphError(f"graph: subgraphs are nested more than {MAX_SUBGRAPH_DEPTH} deep")
    yield graph
    for subgraph in graph.subgraphs:
        yield from _with_subgraphs(subgraph, depth_left - 1)


def _check_counts(graph: Graph) -> None:
    parts = tuple(_with_subgraphs(graph))
    check_count("subgraphs", len(parts) - 1, MAX_TOTAL_SUBGRAPHS)
    check_count("nodes", sum(len(part.nodes) for part in parts), MAX_NODES)
    check_count("values", sum(len(part.values) for part in parts), MAX_VALUES)
    check_count("states", len(graph.states), MAX_STATES)
    check_count("symbols", sum(len(part.symbols) for part in parts), MAX_SYMBOLS)
    check_count("inputs", sum(len(part.inputs) for part in parts), MAX_INPUTS)
    check_count("outputs", sum(len(part.outputs) for part in parts), MAX_INPUTS)


def _check_program(graph: Graph, where: str, outer_hints: dict[int, int]) -> None:
    """`where` prefixes what a message is about ("subgraph 0, "); a subgraph may speak of its parents' symbols."""
    check_name(f"{where}graph", graph.name)
    hints = outer_hints | _check_symbols(graph.symbols, where, outer_hints)
    values = _check_values(graph.values, where, hints)
    defined: set[int] = set()
    for input_ in graph.inputs:
        _define_input(input_, values, defined, where)
    for state in graph.states:
        _define(state.value_id, values, defined, f"{where}state {shown(state.name)}")
    checked_operators: set[Operator] = set()
    checked_contexts: set[Context] = set()
    for index, node in enumerate(graph.nodes):
        at = f"{where}node {index} ({shown(node.name)})"
        if node.operator not in checked_operators:
            _check_operator(node.operator, at)
            checked_operators.add(node.operator)
        if node.context not in checked_contexts:
            _check_context(node.context, at)
            checked_contexts.add(node.context)
        try:
            _check_node(node, values, defined, len(graph.subgraphs), at)
            _check_cost(node, hints, at)
        except _NotYetGiven as error:
            raise _order_error(graph.nodes, index, error.value_id, at) from None
    _check_outputs(graph.outputs, defined, where)
    _check_all_defined(values, defined, where)
    for index, subgraph in enumerate(graph.subgraphs):
        if subgraph.states:
            raise GraphError(f"{where}subgraph {index}: has states of its own; they belong to the outermost graph")
        _check_program(subgraph, f"{where}subgraph {index}, ", hints)


def _check_symbols(symbols: Iterable[Symbol], where: str, outer: Container[int]) -> dict[int, int]:
    hints: dict[int, int] = {}
    for symbol in symbols:
        at = f"{where}symbol {symbol.id} ({shown(symbol.name)})"
        check_label(at, symbol.name)
        if symbol.id < 1 or symbol.id in hints or symbol.id in outer:
            raise GraphError(f"{at}: an id must be at least 1 and unique")
        if symbol.upper is not None and symbol.upper < symbol.lower:
            raise GraphError(f"{at}: upper bound {symbol.upper} is below lower bound {symbol.lower}")
        outside = symbol.hint < symbol.lower or (symbol.upper is not None and symbol.hint > symbol.upper)
        if outside and not symbol.unbacked:
            raise GraphError(f"{at}: hint {symbol.hint} is outside of {symbol.lower} to {symbol.upper}")
        hints[symbol.id] = symbol.hint
    return hints


def _check_values(values: Iterable[Value], where: str, hints: dict[int, int]) -> dict[int, Value]:
    by_id: dict[int, Value] = {}
    for value in values:
        at = f"{where}value {value.id} ({shown(value.name)})"
        if value.id < 1 or value.id in by_id:
            raise GraphError(f"{at}: an id must be at least 1 and unique")
        check_name(at, value.name)
        if value.kind is ValueKind.TENSOR:
            _check_tensor(value, at, hints)
        elif value.dtype is not None or value.dims or value.strides:
            raise GraphError(f"{at}: only a tensor has a dtype, dims and strides")
        if value.expression is not None:
            check_expression(at, value.expression, hints)
        if not 0 <= value.opaque_bytes <= MAX_TENSOR_BYTES:
            raise GraphError(f"{at}: {value.opaque_bytes} bytes, needs 0 to 2^50")
        by_id[value.id] = value
    return by_id


def _check_tensor(value: Value, at: str, hints: dict[int, int]) -> None:
    if value.dtype is None:
        raise GraphError(f"{at}: a tensor needs a dtype")
    if value.device_class not in _DEVICE_CLASSES:
        raise GraphError(f"{at}: device class {shown(value.device_class)}, needs one of {sorted(_DEVICE_CLASSES)}")
    if len(value.dims) > MAX_RANK:
        raise GraphError(f"{at}: {len(value.dims)} dimensions, at most {MAX_RANK} are allowed")
    if value.strides and len(value.strides) != len(value.dims):
        raise GraphError(f"{at}: {len(value.strides)} strides for {len(value.dims)} dimensions")
    num_elements = 1
    for index, dim in enumerate(value.dims):
        num_elements *= _bounded(f"{at}: dimension {index}", dim, hints)
    if num_elements * value.dtype.size_bytes > MAX_TENSOR_BYTES:
        raise GraphError(f"{at}: {num_elements * value.dtype.size_bytes} bytes, at most 2^50 are allowed")
    for index, stride in enumerate(value.strides):
        _bounded(f"{at}: stride {index}", stride, hints)


def _bounded(at: str, expression: Expression, hints: dict[int, int]) -> int:
    if not isinstance(expression, int):
        check_expression(at, expression, hints)
    size = evaluate(expression, hints)
    if not 0 <= size <= MAX_DIM:
        raise GraphError(f"{at} is {size}, needs 0 to 2^40", found=size)
    return size


def _check_states(graph: Graph) -> None:
    values = graph.values_by_id()
    names: set[str] = set()
    ties: dict[int, tuple[State, tuple[object, ...]]] = {}
    for state in graph.states:
        at = f"state {shown(state.name)}"
        check_label(at, state.name)
        if state.name in names:
            raise GraphError(f"{at}: another state has the same name")
        names.add(state.name)
        if len(state.sha256) not in (0, 32):
            raise GraphError(f"{at}: a sha256 of {len(state.sha256)} bytes, needs 32, or none")
        value = values.get(state.value_id)
        if value is None or value.kind is not ValueKind.TENSOR:
            raise GraphError(f"{at}: its value {state.value_id} is not a tensor of the graph")
        if not all(isinstance(dim, int) for dim in (*value.dims, *value.strides)):
            raise GraphError(f"{at}: its dims and strides must be constants")
        if state.tie_group:
            _check_tie(state, (value.dtype, value.dims, state.sha256), ties, at)


def _check_tie(
    state: State, content: tuple[object, ...], ties: dict[int, tuple[State, tuple[object, ...]]], at: str
) -> None:
    if state.tie_group < 0:
        raise GraphError(f"{at}: tie group {state.tie_group}, needs 0 or more")
    first, first_content = ties.setdefault(state.tie_group, (state, content))
    if content != first_content:
        raise GraphError(f"{at}: tied to {shown(first.name)}, which has another dtype, other dims or another sha256")


def _define(value_id: int, values: dict[int, Value], defined: set[int], at: str) -> None:
    if value_id not in values:
        raise GraphError(f"{at}: gives value {value_id}, which the graph does not have")
    if value_id in defined:
        raise GraphError(f"{at}: gives value {value_id}, which something before it gives already")
    defined.add(value_id)


def _define_input(input_: Input, values: dict[int, Value], defined: set[int], where: str) -> None:
    at = f"{where}input {shown(input_.name)}"
    check_label(at, input_.name)
    if isinstance(input_.content, ValueReference):
        _define(input_.content.value_id, values, defined, at)
    else:
        _check_constant(input_.content, at)


def _check_constant(content: Argument, at: str) -> None:
    check_argument_depth(at, content)
    if any(isinstance(reference, ValueReference | SubgraphReference) for reference in _references(content)):
        raise GraphError(f"{at}: a constant cannot hold a value or a subgraph")


def _check_outputs(outputs: Iterable[Output], defined: set[int], where: str) -> None:
    names: Counter[str] = Counter()
    for output in outputs:
        at = f"{where}output {shown(output.name)}"
        check_label(at, output.name)
        names[output.name] += 1
        if names[output.name] > 1:
            raise GraphError(f"{at}: another output has the same name")
        if not isinstance(output.content, ValueReference):
            _check_constant(output.content, at)
        elif output.content.value_id not in defined:
            raise GraphError(f"{at}: value {output.content.value_id} is given by nothing in the graph")


def _check_all_defined(values: dict[int, Value], defined: set[int], where: str) -> None:
    if len(defined) < len(values):
        missing = next(value_id for value_id in values if value_id not in defined)
        raise GraphError(f"{where}value {missing} ({shown(values[missing].name)}): given by no input, state or node")


def _check_operator(operator: Operator, at: str) -> None:
    key = (operator.kind, operator.name, operator.overload)
    if operator.kind is OperatorKind.OPAQUE:
        check_name(at, operator.name)
    elif operator.kind is OperatorKind.CUSTOM:
        if not _CUSTOM_NAME.fullmatch(f"{operator.name}.{operator.overload}"):
            raise GraphError(
                f"{at}: operator {shown(operator.qualified_name)} is custom and needs NAMESPACE::NAME and an overload"
            )
    elif key not in load_vocabulary():
        raise GraphError(f"{at}: operator {shown(operator.qualified_name)} is not one that graphs may use")
    for position in (*operator.mutated_arguments, *operator.aliased_arguments):
        if not 0 <= position < MAX_ARGUMENT_POSITION:
            raise GraphError(f"{at}: operator {shown(operator.qualified_name)}: argument position {position}")


def _check_context(context: Context, at: str) -> None:
    classes = [autocast.device_class for autocast in context.autocasts]
    if len(set(classes)) != len(classes) or not _AUTOCAST_DEVICE_CLASSES.issuperset(classes):
        raise GraphError(f"{at}: autocast for {classes}, needs each of {sorted(_AUTOCAST_DEVICE_CLASSES)} at most once")


class _NotYetGiven(Exception):
    def __init__(self, value_id: int) -> None:
        super().__init__(value_id)
        self.value_id = value_id


def _order_error(nodes: Sequence[Node], index: int, value_id: int, at: str) -> GraphError:
    """What is wrong where node `index` reads what no node before it gives: a cycle, the order, or no such value."""
    maker = {value: number for number, node in enumerate(nodes) for value in node.outputs if value}
    if value_id not in maker:
        return GraphError(f"{at}: reads value {value_id}, which nothing before it gives")
    arcs = [
        (maker[value], reader) for reader, node in enumerate(nodes) for value in values_read(node) if value in maker
    ]
    cycle = find_cycle(len(nodes), arcs)
    if cycle is not None:
        text = cycle_text([f"{node} ({shown(nodes[node].name)})" for node in cycle])
        return GraphError(f"{at}: the nodes form a cycle: {text}, each read by the next; leave one read out")
    later = f"{maker[value_id]} ({shown(nodes[maker[value_id]].name)})"
    return GraphError(
        f"{at}: reads value {value_id}, which nothing before it gives, but node {later} after it; put the nodes in an "
        f"order in which each comes after those that it reads"
    )


def _check_node(node: Node, values: dict[int, Value], defined: set[int], num_subgraphs: int, at: str) -> None:
    check_name(at, node.name)
    check_name(at, node.module_path)
    for name, _ in node.keyword_arguments:
        if not name.isidentifier() or len(name) > MAX_ARGUMENT_POSITION:
            raise GraphError(f"{at}: keyword argument {shown(name)} is not the name of an argument")
    if len({name for name, _ in node.keyword_arguments}) != len(node.keyword_arguments):
        raise GraphError(f"{at}: a keyword argument stands twice")
    for argument in (*node.arguments, *(argument for _, argument in node.keyword_arguments)):
        _check_argument(argument, defined, num_subgraphs, at)
    for kind, seconds in node.opaque_seconds:
        if not 0.0 <= seconds < math.inf:
            raise GraphError(f"{at}: opaque_seconds for {shown(kind)} is {seconds}, needs a finite number from 0")
    if not node.returns_tuple and len(node.outputs) > 1:
        raise GraphError(f"{at}: {len(node.outputs)} outputs, but it does not return a tuple")
    for value_id in node.outputs:
        if value_id:
            _define(value_id, values, defined, at)


def _check_cost(node: Node, hints: dict[int, int], at: str) -> None:
    for what, count in (("flops", node.flops), ("bytes_moved", node.bytes_moved)):
        if count is None:
            continue
        if node.operator.kind is not OperatorKind.CUSTOM:
            raise GraphError(f"{at}: {what} is given, which only a custom operator may have")
        check_expression(f"{at}: {what}", count, hints)
        if evaluate(count, hints) < 0:
            raise GraphError(f"{at}: {what} is {evaluate(count, hints)}, needs 0 or more")


def _check_argument(argument: Argument, defined: set[int], num_subgraphs: int, at: str) -> None:
    check_argument_depth(at, argument)
    for reference in _references(argument):
        if isinstance(reference, ValueReference) and reference.value_id not in defined:
            raise _NotYetGiven(reference.value_id)
        if isinstance(reference, SubgraphReference) and not 0 <= reference.subgraph_index < num_subgraphs:
            raise GraphError(f"{at}: speaks of subgraph {reference.subgraph_index}; the graph has {num_subgraphs}")
        if isinstance(reference, DeviceClass) and reference.name not in _DEVICE_CLASSES:
            raise GraphError(f"{at}: device class {shown(reference.name)}, needs one of {sorted(_DEVICE_CLASSES)}")


def _references(argument: Argument) -> Iterator[ValueReference | SubgraphReference | DeviceClass]:
    if isinstance(argument, ValueReference | SubgraphReference | DeviceClass):
        yield argument
        return
    items = argument.items if isinstance(argument, ArgumentList) else argument
    if isinstance(items, tuple):
        for item in items:
            yield from _references(item)
