"""Which nodes of an fx graph may share storage, and what each of its calls does to that storage.

Nested graphs (a called GraphModule, a branch of a higher-order operator) are analysed in their own right, so that a
write inside of them is a write of the argument it reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from planner.fx_compat.splitting.effects import (
    Alias,
    Ambient,
    Effects,
    Resource,
    Write,
    effects_of_function,
    effects_of_module,
)
from planner.fx_compat.splitting.names import RESHAPING_WRITES
from planner.fx_compat.splitting.operators import name_of
from planner.fx_compat.splitting.targets import attribute_at
from planner.graph.alias import DisjointSets


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEffects:
    """Of each call in a graph; with no effect at all (`is_pure`), any order of calls is as good as another."""

    by_node: Mapping[fx.Node, Effects]

    @property
    def is_pure(self) -> bool:
        return not any(effects.writes for effects in self.by_node.values())

    @property
    def reshapes_in_place(self) -> bool:
        return any(name_of(node) in RESHAPING_WRITES for node in self.by_node if node.op.startswith("call_"))


def graph_effects(module: fx.GraphModule) -> GraphEffects:
    return GraphEffects(by_node={node: _effects_of(node, module) for node in module.graph.nodes})


def storage_of(tensor: torch.Tensor) -> tuple[str, int]:
    """Equal for tensors that share storage; meta and fake tensors have storage of their own too."""
    try:
        return "storage", int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, not yet initialised: without one storage
        return "tensor", id(tensor)


class StorageClasses:
    """Numbers what may share storage alike: nodes by alias, states by the storage they lie in.

    `only_certain` leaves out aliases that merely may be.
    """

    def __init__(self, module: fx.GraphModule, effects: GraphEffects, *, only_certain: bool) -> None:
        self._sets = DisjointSets()
        self._nodes = {node: position for position, node in enumerate(module.graph.nodes)}
        self._storages: dict[tuple[str, int], int] = {}
        for node, effect in effects.by_node.items():
            for alias in effect.aliases:
                if alias.certain or not only_certain:
                    self._sets.join(self._nodes[node], self._nodes[alias.source])
            if isinstance(tensor := state_of(node, module), torch.Tensor):
                self._sets.join(self._nodes[node], self._number_of(tensor))

    def of(self, resource: fx.Node | torch.Tensor) -> int:
        number = self._nodes[resource] if isinstance(resource, fx.Node) else self._number_of(resource)
        return self._sets.find(number)

    def _number_of(self, tensor: torch.Tensor) -> int:
        key = storage_of(tensor)
        return self._storages.setdefault(key, len(self._nodes) + len(self._storages))


def state_of(node: fx.Node, module: fx.GraphModule) -> object:
    """What a get_attr node fetches; None for any other."""
    return attribute_at(module, str(node.target)) if node.op == "get_attr" else None


def _effects_of(node: fx.Node, module: fx.GraphModule) -> Effects:
    if node.op == "call_module":
        called = attribute_at(module, str(node.target))
        if isinstance(called, fx.GraphModule):
            return _effects_of_graph(node, called, _passed_by_position(node, called))
        return effects_of_module(node, called) if isinstance(called, nn.Module) else Effects()
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _effects_of_branches(node, module)
    return effects_of_function(node) if node.op in ("call_function", "call_method") else Effects()


def _effects_of_branches(node: fx.Node, module: fx.GraphModule) -> Effects:
    """A higher-order operator does what its branches do; which operand is which input of a branch is not said."""
    states = {item: state_of(item, module) for item in node.all_input_nodes}
    operands = tuple(item for item, state in states.items() if not isinstance(state, nn.Module))
    branches = [
        _effects_of_graph(node, state, dict.fromkeys(_placeholders(state), operands))
        for state in states.values()
        if isinstance(state, fx.GraphModule)
    ]
    return Effects(
        writes=tuple(write for branch in branches for write in branch.writes),
        aliases=tuple(Alias(source=item, certain=False) for item in operands),
        reads=tuple(module for branch in branches for module in branch.reads),
    )


def _effects_of_graph(node: fx.Node, called: fx.GraphModule, passed: Mapping[fx.Node, tuple[fx.Node, ...]]) -> Effects:
    """`passed`: for each placeholder of the called graph, the nodes outside that may be it."""
    inside = graph_effects(called)
    classes = StorageClasses(called, inside, only_certain=False)
    outside: dict[int, tuple[fx.Node, ...]] = {}
    for placeholder, items in passed.items():
        outside[classes.of(placeholder)] = (*outside.get(classes.of(placeholder), ()), *items)
    returned = {classes.of(item) for end in called.graph.find_nodes(op="output") for item in end.all_input_nodes}
    return Effects(
        writes=tuple(
            Write(resource=reached, certain=write.certain)
            for effects in inside.by_node.values()
            for write in effects.writes
            for reached in _reached(write.resource, classes, outside, called)
        ),
        aliases=tuple(
            Alias(source=item) for storage_class in sorted(returned) for item in outside.get(storage_class, ())
        ),
        reads=(called,),
    )


def _reached(
    resource: Resource, classes: StorageClasses, outside: Mapping[int, tuple[fx.Node, ...]], called: fx.GraphModule
) -> Iterator[Resource]:
    if isinstance(resource, Ambient | torch.Tensor):
        yield resource
        return
    yield from outside.get(classes.of(resource), ())
    for node in called.graph.find_nodes(op="get_attr"):
        if classes.of(node) == classes.of(resource) and isinstance(state := state_of(node, called), torch.Tensor):
            yield state


def _passed_by_position(node: fx.Node, called: fx.GraphModule) -> dict[fx.Node, tuple[fx.Node, ...]]:
    placeholders = _placeholders(called)
    if len(placeholders) != len(node.args):
        return dict.fromkeys(placeholders, tuple(node.all_input_nodes))
    return {
        placeholder: tuple(_nodes_in(argument)) for placeholder, argument in zip(placeholders, node.args, strict=True)
    }


def _nodes_in(argument: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.map_arg(argument, nodes.append)
    return nodes


def _placeholders(called: fx.GraphModule) -> tuple[fx.Node, ...]:
    return tuple(called.graph.find_nodes(op="placeholder"))
