"""From a checked Graph message to a module that torch can run.

Every identifier is made here (x0 for inputs, p0 b0 c0 for states, v12 for value 12), because fx turns names into code.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader import contexts
from stage_daemon.loader.arguments import ArgumentReader
from stage_daemon.loader.bounds import shown
from stage_daemon.loader.draws import node_draws_random
from stage_daemon.loader.operators import Implementation, find_operator
from stage_daemon.loader.parse import check_message, declared_state
from stage_daemon.loader.stage_module import StageModule
from stage_daemon.randomness import start_node

_STATE_LETTERS = {pb.STATE_KIND_PARAMETER: "p", pb.STATE_KIND_BUFFER: "b", pb.STATE_KIND_CONSTANT: "c"}

# Keys of fx.Node.meta: the id of the value that a node gives, how a message calls it, and its position in the Graph.
VALUE_ID = "value_id"
LABEL = "label"
NODE_INDEX = "node_index"


def rebuild_module(graph: pb.Graph, device: torch.device) -> StageModule:
    """The graph as a module for `device`, its states on the meta device until StageModule.set_states gives them.

    Raises InvalidGraph or UnsupportedOperator, naming the node, for a graph that does not hold together.
    """
    check_message(graph)
    return _Rebuild(graph, device, "").run()


class _Rebuild:
    """One program being rebuilt; `where` prefixes messages ("subgraph 0, ")."""

    def __init__(self, graph: pb.Graph, device: torch.device, where: str) -> None:
        self._graph = graph
        self._where = where
        self._device = device
        self._root = nn.Module()
        self._program = fx.Graph()
        self._declared_ids = {value.id for value in graph.values}
        self._values: dict[int, fx.Node] = {}
        self._operators = [find_operator(entry) for entry in graph.operators]
        self._contexts = _read_contexts(graph, device, where)
        self._context = contexts.DEFAULT
        self._switches_context = False
        self._node_index = 0
        self._num_names = 0

    def run(self) -> StageModule:
        self._add_inputs()
        state_names = self._add_states()
        self._reader = ArgumentReader(self._values, self._add_subgraphs(), self._device)
        for index, node in enumerate(self._graph.nodes):
            self._node_index = index
            self._add_node(f"{self._where}node {index} ({shown(node.name)})", node)
        self._add_outputs()
        program = fx.GraphModule(self._root, self._program, "StageProgram")
        for attribute in state_names.values():
            # GraphModule takes over only what some node reads.
            if not hasattr(program, attribute):
                setattr(program, attribute, getattr(self._root, attribute))
        written = frozenset(
            state.name for state in self._graph.states if state.mutated and state.kind != pb.STATE_KIND_PARAMETER
        )
        return StageModule(program, state_names, switches_context=self._switches_context, written_names=written)

    def _add_inputs(self) -> None:
        for index, input_ in enumerate(self._graph.inputs):
            if input_.WhichOneof("content") == "value":
                node = self._program.placeholder(f"x{index}")
                self._define(f"{self._where}input {shown(input_.name)}", input_.value, node)

    def _add_states(self) -> dict[str, str]:
        declared_values = {value.id: value for value in self._graph.values}
        names: dict[str, str] = {}
        for index, state in enumerate(self._graph.states):
            at = f"{self._where}state {shown(state.name)}"
            if state.kind not in _STATE_LETTERS:
                raise InvalidGraph(f"{at}: kind {state.kind} is neither parameter, buffer nor constant")
            attribute = f"{_STATE_LETTERS[state.kind]}{index}"
            declared = declared_state(state, declared_values[state.value])
            empty = torch.empty(declared.dims, dtype=declared.dtype, device="meta")
            _register(self._root, attribute, state, empty)
            names[state.name] = attribute
            self._define(at, state.value, self._program.get_attr(attribute))
        return names

    def _add_subgraphs(self) -> list[fx.Node]:
        nodes = []
        for index, subgraph in enumerate(self._graph.subgraphs):
            attribute = f"g{index}"
            module = _Rebuild(subgraph, self._device, f"{self._where}subgraph {index}, ").run()
            self._root.add_module(attribute, module)
            nodes.append(self._program.get_attr(attribute))
        return nodes

    def _add_node(self, at: str, node: pb.Node) -> None:
        if node.operator >= len(self._operators):
            raise InvalidGraph(f"{at}: speaks of operator {node.operator}; the graph has {len(self._operators)}")
        self._enter_context(at, node.context)
        implementation = self._operators[node.operator]
        arguments = tuple(self._reader.read(at, argument) for argument in node.arguments)
        keywords = {item.name: self._reader.read(at, item.argument) for item in node.keyword_arguments}
        _check_call(at, implementation, node, keywords)
        if not self._where and node_draws_random(self._graph, node):
            # Nodes of subgraphs go on with what the node that calls them started.
            self._call(start_node, (next(filter(None, node.outputs), 0),), {}, self._new_name("d"))
        self._add_results(at, node, implementation, arguments, keywords)

    def _add_results(
        self,
        at: str,
        node: pb.Node,
        implementation: Implementation,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        if not node.returns_tuple and len(node.outputs) > 1:
            raise InvalidGraph(f"{at}: {len(node.outputs)} outputs, but it does not return a tuple")
        if node.returns_tuple:
            whole = self._call(implementation.function, arguments, keywords, self._new_name("t"))
            whole.meta[LABEL] = at
            for index, value_id in enumerate(node.outputs):
                if value_id:
                    item = self._call(operator.getitem, (whole, index), {}, f"v{value_id}")
                    self._define(at, value_id, item)
            return
        value_id = node.outputs[0] if node.outputs else 0
        name = f"v{value_id}" if value_id else self._new_name("u")
        result = self._call(implementation.function, arguments, keywords, name)
        result.meta[LABEL] = at
        if value_id:
            self._define(at, value_id, result)

    def _call(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], name: str) -> fx.Node:
        node = self._program.create_node("call_function", function, arguments, keywords, name)
        node.meta[NODE_INDEX] = self._node_index
        return node

    def _enter_context(self, at: str, index: int) -> None:
        if index >= len(self._contexts):
            raise InvalidGraph(f"{at}: speaks of context {index}; the graph has {len(self._contexts)}")
        context = self._contexts[index]
        if context == self._context:
            return
        self._call(contexts.enter, context, {}, self._new_name("m"))
        self._context = context
        self._switches_context = True

    def _add_outputs(self) -> None:
        results = []
        for output in self._graph.outputs:
            kind = output.WhichOneof("content")
            if kind is None:
                raise InvalidGraph(f"{self._where}output {shown(output.name)}: has no content")
            if kind == "value":
                if output.value not in self._values:
                    at = f"{self._where}output {shown(output.name)}"
                    raise InvalidGraph(f"{at}: value {output.value} is given by nothing in the graph")
                results.append(self._values[output.value])
        self._program.output(tuple(results))

    def _define(self, at: str, value_id: int, node: fx.Node) -> None:
        if value_id not in self._declared_ids:
            raise InvalidGraph(f"{at}: gives value {value_id}, which the graph does not have")
        if value_id in self._values:
            raise InvalidGraph(f"{at}: gives value {value_id}, which something before it gives already")
        node.meta[VALUE_ID] = value_id
        self._values[value_id] = node

    def _new_name(self, letter: str) -> str:
        self._num_names += 1
        return f"{letter}{self._num_names}"


def _read_contexts(graph: pb.Graph, device: torch.device, where: str) -> list[contexts.ContextArguments]:
    home = next((value.device_class for value in graph.values if value.kind == pb.VALUE_KIND_TENSOR), "cpu")
    if not graph.contexts:
        return [contexts.DEFAULT]
    return [
        contexts.context_arguments(f"{where}context {index}", context, home, device)
        for index, context in enumerate(graph.contexts)
    ]


def _register(root: nn.Module, attribute: str, state: pb.State, tensor: torch.Tensor) -> None:
    trainable = state.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    if state.kind == pb.STATE_KIND_PARAMETER:
        root.register_parameter(attribute, nn.Parameter(tensor, requires_grad=trainable))
    else:
        root.register_buffer(attribute, tensor, persistent=state.persistent)


def _check_call(at: str, implementation: Implementation, node: pb.Node, keywords: dict[str, Any]) -> None:
    """Names and number of arguments against the schema; types are torch's to check when the stage is tried out."""
    num_given = len(node.arguments)
    if num_given > implementation.num_positional:
        raise InvalidGraph(f"{at}: {num_given} arguments by position, at most {implementation.num_positional}")
    if len(keywords) != len(node.keyword_arguments):
        raise InvalidGraph(f"{at}: a keyword argument stands twice")
    by_keyword = implementation.argument_names[num_given:]
    for name in keywords:
        if name not in by_keyword:
            raise InvalidGraph(f"{at}: keyword argument {shown(name)} is not one that the operator takes there")
    if num_given + len(keywords) < implementation.num_required:
        raise InvalidGraph(f"{at}: {num_given + len(keywords)} arguments, needs {implementation.num_required}")
