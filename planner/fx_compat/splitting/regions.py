"""Autocast and grad regions: global state that each partition must set up, and tear down, for itself.

A partition in the middle of an autocast region enters it at its start and exits it at its end; a partition that begins
under a grad mode sets that mode at its start. So regions need partitions that are intervals of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from planner.fx_compat.splitting.errors import RegionError

_ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast
_EXIT_AUTOCAST = torch.amp.autocast_mode._exit_autocast
_SET_GRAD = torch._C._set_grad_enabled

AUTOCAST_NODES = frozenset({_ENTER_AUTOCAST, _EXIT_AUTOCAST})

# What these read of one another never crosses a border: each partition has its own.
GLOBAL_STATE = AUTOCAST_NODES | {_SET_GRAD}


@dataclass(slots=True, kw_only=True)
class Regions:
    """What one partition opens at its start, and exits at its end, in the order in which to do it."""

    opened: list[fx.Node] = field(default_factory=list)
    closed: list[fx.Node] = field(default_factory=list)


def regions_by_partition(name_of: Mapping[fx.Node, str], partition_of: Mapping[fx.Node, Any]) -> Mapping[str, Regions]:
    """Of every partition of a graph with regions; empty for a graph without. `partition_of`: what the callback said."""
    if not any(node.target in GLOBAL_STATE for node in name_of):
        return {}
    _check_ascending(partition_of)
    regions: dict[str, Regions] = {}
    exits = _autocast_exits(name_of)
    autocasts: dict[fx.Node, None] = {}
    grad: fx.Node | None = None
    last: str | None = None
    for node, name in name_of.items():
        if name != last:
            if last is not None:
                regions[last].closed = [exits[autocast] for autocast in reversed(autocasts)]
            # A mode that this very node replaces need not be set first.
            grad_nodes = [] if grad is None or node.target is _SET_GRAD else [grad]
            regions[name] = Regions(opened=[*autocasts, *grad_nodes])
            last = name
        if node.target is _ENTER_AUTOCAST:
            autocasts[node] = None
        elif node.target is _EXIT_AUTOCAST:
            del autocasts[_entered(node)]
        elif node.target is _SET_GRAD:
            grad = _checked_grad(node)
    return regions


def _autocast_exits(nodes: Iterable[fx.Node]) -> Mapping[fx.Node, fx.Node]:
    """Each node that enters an autocast region to the one that exits it."""
    exits: dict[fx.Node, fx.Node] = {}
    entered: dict[fx.Node, None] = {}
    for node in nodes:
        if node.target is _ENTER_AUTOCAST:
            if node.all_input_nodes:
                raise RegionError(f"{node.name} enters an autocast region by values; its arguments must be constants")
            entered[node] = None
        elif node.target is _EXIT_AUTOCAST:
            if _entered(node) not in entered or _entered(node) in exits:
                raise RegionError(f"{node.name} exits {_entered(node).name}, which is no autocast region that is open")
            exits[_entered(node)] = node
    if left_open := [node.name for node in entered if node not in exits]:
        raise RegionError(f"autocast must exit: the graph enters {', '.join(left_open)} and never exits")
    return exits


def _entered(node: fx.Node) -> fx.Node:
    if len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        raise RegionError(f"{node.name} must be given the node that entered its autocast region, not {node.args}")
    return node.args[0]


def _checked_grad(node: fx.Node) -> fx.Node:
    if len(node.args) != 1 or not isinstance(node.args[0], bool):
        raise RegionError(f"{node.name} must set a grad mode by one constant bool, not {node.args}")
    return node


def _check_ascending(partition_of: Mapping[fx.Node, Any]) -> None:
    highest: Any = None
    for node, partition in partition_of.items():
        if highest is not None and partition < highest:
            raise RegionError(
                "autocast or set_grad_enabled require monotonically increasing partitions: "
                f"{node.name} is in partition {partition} and comes after partition {highest}; "
                "number the partitions in the order of the graph"
            )
        highest = partition
