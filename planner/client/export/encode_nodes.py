"""Calls of a captured program as nodes, and what they give as values, in program order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from planner.client.export.arguments import argument_of
from planner.client.export.custom_functions import CUSTOM_FUNCTION
from planner.client.export.gradient_flow import GradientFlow
from planner.client.export.module_paths import module_path
from planner.client.export.operator_costs import cost_of
from planner.client.export.operators import operator_of
from planner.client.export.regions import context_of
from planner.client.export.states import CapturedState
from planner.client.export.storage import StorageRoots
from planner.client.export.symbols import SymbolTable
from planner.client.export.values import value_of
from planner.errors import UnsupportedModule
from planner.graph.expression import Expression
from planner.graph.ir import (
    Argument,
    ArgumentList,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Output,
    SubgraphReference,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueReference,
)


class NodeEncoder:
    """Gives ids from 1 in the order of definition. States and inputs are defined first, then nodes encoded."""

    def __init__(self, symbols: SymbolTable) -> None:
        self._symbols = symbols
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._subgraphs: list[Graph] = []
        self._what: dict[fx.Node, Argument] = {}
        self._roots = StorageRoots()
        self._with_gradient = GradientFlow(self._roots)
        self._mutated: set[fx.Node] = set()

    def values(self) -> tuple[Value, ...]:
        return tuple(self._values)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes)

    def subgraphs(self) -> tuple[Graph, ...]:
        return tuple(self._subgraphs)

    def reference(self, node: fx.Node) -> Argument:
        """What stands for a call's result: a value, or a list of them where the call gives several."""
        return self._what[node]

    def value_id(self, node: fx.Node) -> int:
        reference = self._what[node]
        assert isinstance(reference, ValueReference)
        return reference.value_id

    def is_mutated(self, placeholder: fx.Node) -> bool:
        """True if some encoded call writes the storage of that input or state."""
        return placeholder in self._mutated

    def define_state(self, state: CapturedState) -> None:
        self._define_placeholder(state.placeholder, state.name, state.tensor.requires_grad)

    def define_input(self, placeholder: fx.Node) -> ValueReference:
        fake = placeholder.meta.get("val")
        return self._define_placeholder(placeholder, placeholder.name, bool(getattr(fake, "requires_grad", False)))

    def encode(self, module: fx.GraphModule) -> None:
        """Adds every call of the program, in order. Raises UnsupportedModule."""
        for node in module.graph.nodes:
            self._roots.add(node)
            if node.op == "get_attr":
                self._what[node] = self._subgraph(module, node)
            elif node.op == "call_function" and not _is_element(node):
                self._call(node)

    def _define_placeholder(self, node: fx.Node, name: str, requires_grad: bool) -> ValueReference:
        if requires_grad:
            self._with_gradient.begin(node)
        self._what[node] = reference = self._define(node.meta.get("val"), name, requires_grad)
        return reference

    def _define(self, fake: Any, name: str, requires_grad: bool) -> ValueReference:
        value_id = len(self._values) + 1
        self._values.append(value_of(fake, value_id, name, self._symbols, requires_grad=requires_grad))
        return ValueReference(value_id)

    def _call(self, node: fx.Node) -> None:
        operator = operator_of(node)
        path = module_path(node)
        where = f"{operator.qualified_name} in module {path!r}"
        context = context_of(node)
        arguments = tuple(argument_of(argument, self.reference, where) for argument in node.args)
        keywords = tuple((key, argument_of(item, self.reference, where)) for key, item in node.kwargs.items())
        self._with_gradient.add(node)
        self._mutated |= self._roots.written_by(node)
        outputs, returns_tuple = self._results(node)
        flops, bytes_moved = self._cost(node, operator)
        self._nodes.append(
            Node(
                operator=operator,
                arguments=arguments,
                keyword_arguments=keywords,
                outputs=outputs,
                returns_tuple=returns_tuple,
                module_path=path,
                context=context,
                name=node.name,
                flops=flops,
                bytes_moved=bytes_moved,
            )
        )

    def _cost(self, node: fx.Node, operator: Operator) -> tuple[Expression | None, Expression | None]:
        """(FLOPs, bytes moved) of a custom operator's call; None where nothing says."""
        cost = cost_of(node, operator.name, operator.overload) if operator.kind is OperatorKind.CUSTOM else None
        if cost is None:
            return None, None
        where = f"the cost of {operator.name}"
        bytes_moved = None if cost.bytes_moved is None else self._symbols.expression(cost.bytes_moved, where)
        return self._symbols.expression(cost.flops, where), bytes_moved

    def _results(self, node: fx.Node) -> tuple[tuple[int, ...], bool]:
        fake = node.meta.get("val")
        if isinstance(fake, list | tuple):
            return self._elements(node, fake), True
        if fake is None:
            return (), False
        if not node.users:
            return (0,), False
        self._what[node] = reference = self._define(fake, node.name, self._has_gradient(node, 0, fake))
        return (reference.value_id,), False

    def _elements(self, node: fx.Node, fakes: Sequence[Any]) -> tuple[int, ...]:
        whole = any(not _is_element(user) for user in node.users)
        readers: dict[int, list[fx.Node]] = {}
        for user in node.users:
            if _is_element(user):
                readers.setdefault(int(user.args[1]) % len(fakes), []).append(user)  # type: ignore[arg-type]
        references: list[ValueReference | None] = []
        for index, fake in enumerate(fakes):
            reading = readers.get(index, [])
            if fake is None or not (whole or any(reader.users for reader in reading)):
                references.append(None)
                continue
            has_gradient = self._has_gradient(node, index, fake)
            reference = self._define(fake, reading[0].name if reading else f"{node.name}.{index}", has_gradient)
            references.append(reference)
            for reader in reading:
                self._what[reader] = reference
                if has_gradient:
                    self._with_gradient.begin(reader)
        self._what[node] = ArgumentList(tuple(references))
        return tuple(reference.value_id if reference else 0 for reference in references)

    def _has_gradient(self, node: fx.Node, index: int, fake: Any) -> bool:
        """The call's result of that index."""
        if node.target is CUSTOM_FUNCTION and not node.args[5][index]:  # type: ignore[index]
            return False
        return node in self._with_gradient and isinstance(fake, torch.Tensor) and _is_differentiable(fake)

    def _subgraph(self, module: fx.GraphModule, node: fx.Node) -> Argument:
        body = getattr(module, str(node.target), None)
        if isinstance(body, torch.Tensor):
            raise UnsupportedModule(
                f"{node.target}: a body of torch.cond, scan, while_loop or a custom function makes a tensor of several "
                "numbers, and bodies hold none; make it in the forward around the body, or hold it with register_buffer"
            )
        if not isinstance(body, fx.GraphModule):
            raise UnsupportedModule(
                f"{node.target}: only bodies of torch.cond and custom functions can stand beside the program"
            )
        encoder = NodeEncoder(self._symbols)
        placeholders = [item for item in body.graph.nodes if item.op == "placeholder"]
        inputs = tuple(Input(name=item.name, content=encoder.define_input(item)) for item in placeholders)
        encoder.encode(body)
        returned = next(item for item in body.graph.nodes if item.op == "output").args[0]
        leaves = returned if isinstance(returned, list | tuple) else (returned,)
        outputs = tuple(
            Output(name=str(index), content=argument_of(leaf, encoder.reference, f"output {index} of {node.target}"))
            for index, leaf in enumerate(leaves)
        )
        self._subgraphs.append(
            Graph(
                torch_version=torch.__version__,
                name=str(node.target),
                values=encoder.values(),
                nodes=encoder.nodes(),
                subgraphs=encoder.subgraphs(),
                inputs=inputs,
                outputs=outputs,
                input_tree=TreeTuple(tuple(TreeLeaf() for _ in inputs)),
                output_tree=TreeTuple(tuple(TreeLeaf() for _ in outputs)),
            )
        )
        return SubgraphReference(len(self._subgraphs) - 1)


def _is_element(node: fx.Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node)


def _is_differentiable(fake: torch.Tensor) -> bool:
    return fake.dtype.is_floating_point or fake.dtype.is_complex
