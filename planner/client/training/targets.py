"""What the mean of a cross entropy is taken over, counted in the batch itself.

torch leaves out targets that are `ignore_index`, so that a microbatch with more padding counts less in the batch's loss
than its rows say: the mean of microbatches' means is then another loss. Which input the targets come from, and how (a
model of transformers moves labels by one place), says the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.client.microbatches import carried
from planner.client.tensors import TensorKind, from_raw, to_raw
from planner.graph.ir import Argument, ArgumentList, Dtype, Graph, Node, ValueReference

_Integers = NDArray[Any]
_MEAN = 1
_TARGETS, _CLASS_WEIGHTS = 1, 2
# Of what has a mean over targets: the positions of the reduction and of the target that is left out.
_CROSS_ENTROPIES = {"aten::cross_entropy_loss": (3, 4), "aten::nll_loss_nd": (3, 4), "aten::nll_loss": (3, 4)}
_DEFAULTS: Mapping[int, Argument] = {_CLASS_WEIGHTS: None, 3: _MEAN, 4: -100}
# Their result holds their first operand's elements, each once, and where they were.
_COPIES = frozenset({"aten::_to_copy", "aten::alias", "aten::clone", "aten::contiguous", "aten::detach", "aten::to"})
# Elsewhere.
_ARRANGES = frozenset({"aten::flatten", "aten::reshape", "aten::squeeze", "aten::t", "aten::transpose", "aten::view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Of one cross entropy. `position`: among a microbatch's inputs; `calls`: what makes the targets of that one."""

    position: int
    dtype: Dtype
    calls: tuple[Node, ...]
    ignored: int

    def count(self, leaves: Sequence[object]) -> int:
        """How many of a microbatch's targets are not left out."""
        targets = from_raw(to_raw(leaves[self.position], self.dtype), TensorKind.NUMPY)
        for call in self.calls:
            targets = _CALLS[call.operator.name](targets, call) if call.operator.name in _CALLS else targets
        return int(np.count_nonzero(targets != self.ignored))


def counted_targets(graph: Graph, loss_id: int) -> Targets | None:
    """None where the loss is no such mean, or one of targets that follow from an input otherwise."""
    makers = {value_id: node for node in graph.nodes for value_id in node.outputs if value_id}
    positions = {value_id: position for position, (_, value_id) in enumerate(carried(graph.inputs))}
    loss = makers.get(loss_id)
    while loss is not None and loss.operator.name in _COPIES:
        loss = makers.get(_first(loss))
    if loss is None or loss.operator.name not in _CROSS_ENTROPIES:
        return None
    reduction, ignored = (_argument(loss, position) for position in _CROSS_ENTROPIES[loss.operator.name])
    targets = _argument(loss, _TARGETS)
    if reduction != _MEAN or _argument(loss, _CLASS_WEIGHTS) is not None or not isinstance(targets, ValueReference):
        return None
    value_id, calls = targets.value_id, list[Node]()
    while value_id not in positions:
        call = makers.get(value_id)
        if call is None or not _is_followed(call, calls):
            return None
        calls.insert(0, call)
        value_id = _first(call)
    dtype = graph.values_by_id()[value_id].dtype
    if dtype is None or not dtype.name.startswith(("INT", "UINT")):
        return None
    assert isinstance(ignored, int)
    return Targets(position=positions[value_id], dtype=dtype, calls=tuple(calls), ignored=ignored)


def _argument(node: Node, position: int) -> Argument:
    """By its position in a cross entropy's schema."""
    names = {_CLASS_WEIGHTS: "weight", 3: "reduction", 4: "ignore_index"}
    given = dict(node.keyword_arguments)
    if position < len(node.arguments):
        return node.arguments[position]
    return given.get(names.get(position, "target"), _DEFAULTS.get(position))


def _first(node: Node) -> int:
    first = node.arguments[0] if node.arguments else None
    return first.value_id if isinstance(first, ValueReference) else 0


def _is_followed(call: Node, later: Sequence[Node]) -> bool:
    """How many elements it leaves, its numbers say, which hold for any batch; places are followed until the first call
    that arranges elements anew, behind which none is taken away or added."""
    name = call.operator.name
    if name in _ARRANGES:
        return not any(one.operator.name in _CALLS for one in later)
    if name in _COPIES:
        return True
    flat = [item for one in call.arguments[1:] for item in (one.items if isinstance(one, ArgumentList) else (one,))]
    numbers = all(item is None or isinstance(item, int | float) or item == "constant" for item in flat)
    return name in _CALLS and numbers and not call.keyword_arguments


def _slice(targets: _Integers, call: Node) -> _Integers:
    """slice(self, dim=0, start=None, end=None, step=1)"""
    given: list[Any] = list(call.arguments[1:])
    dim, *ends = given + [0, None, None, 1][len(given) :]
    places = [slice(None)] * targets.ndim
    places[dim] = slice(*ends)
    return targets[tuple(places)]


def _select(targets: _Integers, call: Node) -> _Integers:
    """select(self, dim, index)"""
    _, dim, index = call.arguments
    places: list[Any] = [slice(None)] * targets.ndim
    places[dim] = index  # type: ignore[index]
    return targets[tuple(places)]  # type: ignore[no-any-return]


def _pad(targets: _Integers, call: Node) -> _Integers:
    """pad(self, pad, mode="constant", value=None) or constant_pad_nd(self, pad, value=0), the last dimension first"""
    _, widths, *rest = call.arguments
    value = next((one for one in rest if isinstance(one, int | float)), 0)
    sizes: Any = widths.items if isinstance(widths, ArgumentList) else ()
    pairs = [(0, 0)] * (targets.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
    return np.pad(targets, pairs, constant_values=int(value))


_CALLS: Mapping[str, Callable[[_Integers, Node], _Integers]] = {
    "aten::constant_pad_nd": _pad,
    "aten::pad": _pad,
    "aten::select": _select,
    "aten::slice": _slice,
}
