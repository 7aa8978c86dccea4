"""torch.fx's `split_module` with its meaning and its signature, in an order that keeps what the module computes.

What differs from torch 2.13: partitions whose calls write in place or draw random numbers keep their order, or are
refused; "a.b_c" and "a_b.c" stay two attributes; an autocast region may be split under an affix; the graph that is
split is only read; containers of inputs and outputs are kept; errors name nodes.

As with torch.fx, parts hand tensors on by reference, so a write in place reaches all who hold the tensor: that is what
the order is kept for. Parts that are to run apart, on copies, need what is written and its writers in one partition.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Signature
from typing import Any

from torch import fx, nn
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx.node import Node

from planner.fx_compat.splitting.order import order_partitions
from planner.fx_compat.splitting.partitions import Partition, Partitioning, partition_nodes
from planner.fx_compat.splitting.regions import Regions, regions_by_partition
from planner.fx_compat.splitting.targets import attribute_at, flat_names


def split_module(
    m: fx.GraphModule,
    root_m: nn.Module | None,
    split_callback: Callable[[Node], int],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> fx.GraphModule:
    """A module that calls one submodule "submod_<id>" for each id that `split_callback` gives to operations of `m`.

    root_m: unused, as in torch.fx. split_callback: asked once for each operation, in order; placeholders, get_attr and
    the output belong to no partition. qualname_map: filled with the new name of each module that a partition calls, to
    the old one. keep_original_order: partitions are called as they first appear, as far as their inputs allow.
    keep_original_node_name, keep_original_input_name: or else torch.fx names nodes anew, and inputs "arg_0", "arg_1".
    partition_affix: "submod_<affix>_<id>". tuple_return: a partition's only output comes in a tuple too.

    A partition returns one value bare and several as a tuple, in the order in which others first use them. Raises
    PartitionCycle (a RuntimeError) where no order of the calls gives what `m` gives; RegionError (an AssertionError)
    where autocast or grad regions and partitions do not go together; TargetNotFound (an AttributeError).
    """
    split = partition_nodes(m.graph, split_callback, partition_affix)
    regions = regions_by_partition(split.name_of, split.partition_of)
    order = order_partitions(m, split, keep_original_order=bool(keep_original_order))
    naming = _Naming(
        keep_nodes=bool(keep_original_node_name), keep_inputs=keep_original_input_name, tuple_return=tuple_return
    )
    parts = {
        name: _partition_module(m, partition, regions.get(name, Regions()), naming, qualname_map)
        for name, partition in split.partitions.items()
    }
    top = _Top(source=m, split=split, parts=parts, naming=naming)
    top.add_given({"placeholder"} if keep_original_order and order else {"placeholder", "get_attr"})
    for name in order:
        top.call(name)
    top.add_output()
    # Takes and gives the containers that `m` does.
    top.graph.set_codegen(copy.copy(m.graph._codegen))
    result = _make_graph_module(top.attributes, top.graph)
    # Put in at the end: a module that is made compiles its submodules again, and these are compiled.
    for name in order:
        setattr(result, split.partitions[name].module_name, parts[name].module)
    result.meta["partition_names"] = {partition.module_name for partition in split.partitions.values()}
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Naming:
    keep_nodes: bool
    keep_inputs: bool
    tuple_return: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """`inputs`: the nodes of the split graph that it is called with, in order."""

    module: fx.GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


def split_module_simple(
    m: fx.GraphModule, node_to_partition: dict[fx.Node, int], *, partition_affix: str | None = None
) -> fx.GraphModule:
    """torch's quick way for graphs of torch.compile, by the same names; here the same split as split_module's."""
    return split_module(m, m, node_to_partition.__getitem__, partition_affix=partition_affix)


def _partition_module(
    m: fx.GraphModule,
    partition: Partition,
    regions: Regions,
    naming: _Naming,
    qualname_map: dict[str, str] | None,
) -> _Part:
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, Any] = {}
    modules = {node: state for node in partition.inputs if (state := _module_of(node, m)) is not None}
    inputs = tuple(node for node in partition.inputs if node not in modules)
    for position, node in enumerate(inputs):
        name = node.name if naming.keep_inputs else f"arg_{position}"
        copies[node] = _described(graph.placeholder(name, type_expr=node.type), node)
    for node, state in modules.items():
        copies[node] = _described(graph.get_attr(str(node.target)), node)
        attributes[str(node.target)] = state
    for node in regions.opened:
        copies[node] = _copied(graph, node, copies)
    called = [str(node.target) for node in partition.nodes if node.op == "call_module"]
    names = flat_names(called, taken={str(node.target).split(".")[0] for node in modules})
    for node in partition.nodes:
        target = names[str(node.target)] if node.op == "call_module" else None
        copies[node] = _copied(graph, node, copies, target=target, name=node.name if naming.keep_nodes else None)
    for node in regions.closed:
        _copied(graph, node, copies)
    for old, new in names.items():
        attributes[new] = attribute_at(m, old)
        if qualname_map is not None:
            qualname_map[f"{partition.module_name}.{new}"] = old
    returned = tuple(copies[node] for node in partition.outputs)
    graph.output(returned[0] if len(returned) == 1 and not naming.tuple_return else returned)
    return _Part(module=_make_graph_module(attributes, graph), inputs=inputs, outputs=tuple(partition.outputs))


def _module_of(node: Node, m: fx.GraphModule) -> nn.Module | None:
    """A module that is fetched, not called (a branch of a higher-order operator): each user has it as its own."""
    state = attribute_at(m, str(node.target)) if node.op == "get_attr" else None
    return state if isinstance(state, nn.Module) else None


def _copied(
    graph: fx.Graph, node: Node, copies: Mapping[Node, Node], *, target: str | None = None, name: str | None = None
) -> Node:
    return _described(
        graph.create_node(
            op=node.op,
            target=node.target if target is None else target,
            args=fx.map_arg(node.args, copies.__getitem__),
            kwargs=fx.map_arg(node.kwargs, copies.__getitem__),
            name=name,
            type_expr=node.type,
        ),
        node,
    )


def _described(copy: Node, node: Node) -> Node:
    copy.meta = node.meta.copy()
    return copy


# Of a partition in the top module, until that is made.
_PLACE = nn.Module()


@dataclass(slots=True, kw_only=True)
class _Top:
    """The graph that calls the partitions, each state fetched once. `attributes` have a place for each partition."""

    source: fx.GraphModule
    split: Partitioning
    parts: Mapping[str, _Part]
    naming: _Naming
    graph: fx.Graph = field(default_factory=fx.Graph)
    attributes: dict[str, Any] = field(default_factory=dict)
    _copies: dict[Node, Node] = field(default_factory=dict)
    _state_names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._state_names = self._free_state_names()

    def add_given(self, ops: set[str]) -> None:
        """In graph order. States that are not added here are when they are first used."""
        for node in self.source.graph.nodes:
            if node.op in ops:
                self._copies[node] = self._placeholder(node) if node.op == "placeholder" else self._fetched(node)

    def call(self, name: str) -> None:
        part = self.parts[name]
        module_name = self.split.partitions[name].module_name
        arguments = tuple(self._fetched(node) for node in part.inputs)
        self.attributes[module_name] = _PLACE
        result = self.graph.call_module(module_name, arguments)
        if len(part.outputs) == 1 and not self.naming.tuple_return:
            self._copies[part.outputs[0]] = result
            return
        for position, node in enumerate(part.outputs):
            self._copies[node] = self.graph.call_function(operator.getitem, (result, position))

    def add_output(self) -> None:
        for node in self.source.graph.find_nodes(op="output"):
            self.graph.output(fx.map_arg(node.args[0], self._fetched))

    def _fetched(self, node: Node) -> Node:
        if node not in self._copies:
            target = str(node.target)
            copy = self.graph.get_attr(self._state_names[target])
            self.attributes[self._state_names[target]] = attribute_at(self.source, target)
            self._copies[node] = _described(copy, node)
        return self._copies[node]

    def _placeholder(self, node: Node) -> Node:
        default = node.args[0] if node.args else Signature.empty
        if not self.naming.keep_nodes:
            placeholder = self.graph.placeholder(str(node.target), type_expr=node.type, default_value=default)
            return _described(placeholder, node)
        args: tuple[Any, ...] = () if default is Signature.empty else (default,)
        return _described(self.graph.create_node("placeholder", node.name, args=args, type_expr=node.type), node)

    def _free_state_names(self) -> dict[str, str]:
        """A state keeps its name unless it would lie in, or replace, one of the partitions."""
        partitions = {partition.module_name for partition in self.split.partitions.values()}
        targets = {str(node.target) for node in self.source.graph.find_nodes(op="get_attr")}
        clashing = sorted(target for target in targets if target.split(".")[0] in partitions)
        taken = partitions | {target.split(".")[0] for target in targets}
        return {target: target for target in targets} | dict(flat_names(clashing, taken=taken))
