"""The top module of a pipeline as it is meant: inputs, stages in call order, and what each tensor is called.

Names are Slapo's: an input's or a stage's own, and "submod_1.0" for an item of what a stage returns.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from planner.fx_compat.splitting.errors import PipelineError

STAGE_PREFIX = "submod_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensor:
    """`maker`: the input, stage or state that it comes from; `keys` lead to it in what that gives."""

    maker: str
    keys: tuple[int | str, ...] = ()

    @property
    def name(self) -> str:
        return ".".join([self.maker, *(str(key) for key in self.keys)])


@dataclass(slots=True, kw_only=True)
class PipelineLayout:
    """`stages`: by name in call order, what each is called with. `output`: the result, with tensors for nodes."""

    inputs: list[LiveTensor] = field(default_factory=list)
    stages: dict[str, tuple[LiveTensor, ...]] = field(default_factory=dict)
    states: dict[str, None] = field(default_factory=dict)
    output: Any = None
    returned: tuple[LiveTensor, ...] = ()


def layout_of(top_mod: fx.GraphModule) -> PipelineLayout:
    """Raises PipelineError for a node that is neither an input, a state, a stage, an item of one nor the output."""
    layout = PipelineLayout()
    tensors: dict[fx.Node, Any] = {}
    for node in top_mod.graph.nodes:
        if node.op == "output":
            layout.returned = tuple(tensors[source] for source in node.all_input_nodes)
            layout.output = fx.map_arg(node.args[0], tensors.__getitem__)
        elif node.target is operator.getitem:
            tensors[node] = _item(node, tensors)
        else:
            tensors[node] = LiveTensor(maker=str(node.target))
            _add(node, layout, tensors)
    return layout


def _add(node: fx.Node, layout: PipelineLayout, tensors: Mapping[fx.Node, LiveTensor]) -> None:
    name = str(node.target)
    if node.op == "placeholder":
        layout.inputs.append(tensors[node])
    elif node.op == "get_attr":
        layout.states[name] = None
    elif node.op == "call_module" and name.startswith(STAGE_PREFIX):
        if name in layout.stages:
            raise PipelineError(
                f"{node.name} calls {name} again: a stage of a pipeline runs once; split with other ids"
            )
        layout.stages[name] = _arguments(node, tensors)
    else:
        raise PipelineError(
            f"Expect only getitem function call in top pipeline module, but got {node.target} ({node.op} {node.name}); "
            f'every call must lie in a stage named "{STAGE_PREFIX}<id>", as split_module makes them'
        )


def _arguments(node: fx.Node, tensors: Mapping[fx.Node, LiveTensor]) -> tuple[LiveTensor, ...]:
    if node.kwargs:
        raise PipelineError(
            f"{node.name} is called with keywords ({', '.join(node.kwargs)}); a stage takes positions only"
        )
    arguments = []
    for position, argument in enumerate(node.args):
        if not isinstance(argument, fx.Node):
            raise PipelineError(f"arg {position} in {node.name} is {argument!r}, which is no tensor of the top module")
        arguments.append(tensors[argument])
    return tuple(arguments)


def _item(node: fx.Node, tensors: Mapping[fx.Node, LiveTensor]) -> LiveTensor:
    whole, key = node.args
    if not isinstance(whole, fx.Node) or not isinstance(key, int | str):
        raise PipelineError(f"{node.name} takes item {key!r} of {whole}; only constant indexes and keys have a name")
    return LiveTensor(maker=tensors[whole].maker, keys=(*tensors[whole].keys, key))
