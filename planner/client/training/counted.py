"""What a loss is a mean over, where that is not its rows, counted in the batch itself.

A cross entropy leaves out targets that are `ignore_index`, and a sum over a mask is divided by the mask's own: a
microbatch with more padding counts less in the batch's loss than its rows say, and the mean of microbatches' means is
then another loss. What is counted, and from which input it comes (a model of transformers moves labels by one place),
says the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.client.microbatches import carried
from planner.client.tensors import RawTensor, TensorKind, from_raw, named_to_raw
from planner.graph.ir import Argument, ArgumentList, Dtype, Graph, Node, ValueReference
from planner.graph.operators import facts_of

_Array = NDArray[Any]
_MEAN, _SUM = 1, 2
# Names and defaults of a cross entropy's arguments behind its scores.
_OF_CROSS_ENTROPY: Mapping[int, tuple[str, Argument]] = {
    1: ("target", None),
    2: ("weight", None),
    3: ("reduction", _MEAN),
    4: ("ignore_index", -100),
}
_CROSS_ENTROPIES = frozenset({"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd"})
# Their result holds their first operand's elements, each once, and where they were.
_COPIES = frozenset({"aten::_to_copy", "aten::alias", "aten::clone", "aten::contiguous", "aten::detach", "aten::to"})
# Elsewhere.
_ARRANGES = frozenset({"aten::flatten", "aten::reshape", "aten::squeeze", "aten::t", "aten::transpose", "aten::view"})
# What keeps a number of elements from being 0.
_ABOUT = frozenset({"aten::add", "aten::clamp", "aten::clamp_min"})
_SCALES = frozenset({"aten::div", "aten::mul"})
_SELECTED = frozenset({"aten::index", "aten::masked_select"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Elements of an input: the sum of what `calls` make of them, or how many of these are not `ignored`, each of which
    counts what the state `weights` has for its class, if there is one.

    `position`: of the input of that name among a microbatch's. `calls`: (call, dtype of its result).
    """

    name: str
    position: int
    dtype: Dtype
    calls: tuple[tuple[Node, Dtype], ...]
    ignored: int | None
    weights: str

    @property
    def is_cut(self) -> bool:
        """Whether some places of the input are never counted, as the first ones of targets that the module moves."""
        return any(call.operator.name in _CUTS for call, _ in self.calls)

    def count(self, leaves: Sequence[object], weights: RawTensor | None = None) -> float:
        """Of a microbatch."""
        elements: _Array = from_raw(named_to_raw(self.name, leaves[self.position], self.dtype), TensorKind.NUMPY)
        for call, dtype in self.calls:
            if call.operator.name in _COPIES:
                elements = elements != 0 if dtype is Dtype.BOOL else elements
            elif call.operator.name in _CALLS:
                elements = _CALLS[call.operator.name](elements, call)
        if self.ignored is None:
            return float(elements.sum())
        counted = elements[elements != self.ignored]
        of_class: _Array | None = None if weights is None else from_raw(weights, TensorKind.NUMPY)
        return float(counted.size if of_class is None else of_class.astype(np.float64)[counted].sum())


class GraphLoss:
    """A loss of a graph, and what made it."""

    def __init__(self, graph: Graph, value_id: int) -> None:
        self._value_id = value_id
        self._values = graph.values_by_id()
        inputs = carried(graph.inputs)
        self._names, self._inputs = [name for name, _ in inputs], [one for _, one in inputs]
        self._makers = {made: node for node in graph.nodes for made in node.outputs if made}
        # Nothing changes these while the graph is trained.
        self._fixed = {
            state.value_id: state.name for state in graph.states if not (state.mutated or state.requires_grad)
        }

    def counted(self) -> Counted | None:
        """None where it is no mean over what follows from one input, as far as that is followed here."""
        chosen = self._averaged(self._value_id)
        weights = None if chosen is None else self._state(chosen.weights_id)
        if chosen is None or weights is None:
            return None
        value_id = chosen.value_id
        calls = list[tuple[Node, Dtype]]()
        while value_id not in self._inputs:
            call, dtype = self._makers.get(value_id), self._values[value_id].dtype
            if call is None or dtype is None or not _is_followed(call, [later for later, _ in calls]):
                return None
            calls.insert(0, (call, dtype))
            value_id = _first(call)
        dtype, dims = self._values[value_id].dtype, self._values[value_id].dims
        along = next(self._values[one].dims[0] for one in self._inputs if self._values[one].dims) if dims else None
        # What is not cut into microbatches has the whole of it in each.
        if dtype is None or not dims or dims[0] != along:
            return None
        position = self._inputs.index(value_id)
        return Counted(
            name=self._names[position],
            position=position,
            dtype=dtype,
            calls=tuple(calls),
            ignored=chosen.ignored,
            weights=weights,
        )

    def is_sum(self) -> bool:
        """Whether it is one of torch's with reduction="sum", at most scaled by a number that is the whole batch's."""
        numbers = {one for one in self._inputs if not self._values[one].dims}
        made = self._makers.get(self._value_id)
        while made is not None and not _is_loss_that_sums(made):
            others = made.arguments[1:]
            is_scaled = made.operator.name in _SCALES and all(
                isinstance(one, int | float) or _reference(one) in numbers for one in others
            )
            made = self._makers.get(_first(made)) if is_scaled or made.operator.name in _COPIES else None
        return made is not None

    def is_over_some_elements(self) -> bool:
        """Whether it, or a part of it where it is a sum, is a mean over elements that integers or bools among the
        inputs choose, counted here or not."""
        averaged = map(self._averaged, self._parts())
        return any(one is not None and self._is_chosen(one.value_id) for one in averaged)

    def _parts(self) -> Iterator[int]:
        """What is added up, each scaled or not."""
        pending, seen = [self._value_id], set[int]()
        while pending:
            one = pending.pop()
            made = self._makers.get(one)
            if one in seen or made is None:
                continue
            seen.add(one)
            yield one
            if made.operator.name in _COPIES | _SCALES | {"aten::add"}:
                added = made.arguments if made.operator.name == "aten::add" else made.arguments[:1]
                pending += [argument.value_id for argument in added if isinstance(argument, ValueReference)]

    def _is_chosen(self, value_id: int) -> bool:
        pending, seen = [value_id], set[int]()
        while pending:
            one = pending.pop()
            dtype = self._values[one].dtype
            if one in self._inputs and dtype is not None and dtype.name.startswith(("INT", "BOOL")):
                return True
            if one not in seen and one in self._makers:
                pending += [read.value_id for read in self._makers[one].arguments if isinstance(read, ValueReference)]
            seen.add(one)
        return False

    def _averaged(self, value_id: int) -> _Averaged | None:
        loss = self._made(value_id, _COPIES)
        if loss is None:
            return None
        if loss.operator.name in _CROSS_ENTROPIES:
            targets, weights, reduction, ignored = (_of_cross_entropy(loss, position) for position in _OF_CROSS_ENTROPY)
            dtype = self._values[_reference(targets)].dtype if _reference(targets) else None
            if reduction != _MEAN or not isinstance(ignored, int) or not (dtype and dtype.name.startswith("INT")):
                return None
            return _Averaged(value_id=_reference(targets), ignored=ignored, weights_id=_reference(weights))
        if loss.operator.qualified_name == "aten::div.Tensor":
            of, by = (self._made(_reference(argument), _COPIES | _ABOUT) for argument in loss.arguments)
            return _Averaged(value_id=_first(by)) if of and by and _is_sum(of) and _is_whole(by, "aten::sum") else None
        selected = self._makers.get(_first(loss)) if _is_whole(loss, "aten::mean") else None
        if selected is None or selected.operator.name not in _SELECTED:
            return None
        mask = selected.arguments[1]
        mask = mask.items[0] if isinstance(mask, ArgumentList) and len(mask.items) == 1 else mask
        is_mask = isinstance(mask, ValueReference) and self._values[mask.value_id].dtype is Dtype.BOOL
        return _Averaged(value_id=_reference(mask)) if is_mask else None

    def _state(self, value_id: int) -> str | None:
        """The name of one that does not change; "" for no value, None for another."""
        while value_id in self._makers and self._makers[value_id].operator.name in _COPIES:
            value_id = _first(self._makers[value_id])
        return self._fixed.get(value_id) if value_id else ""

    def _made(self, value_id: int, through: frozenset[str]) -> Node | None:
        made = self._makers.get(value_id)
        while made is not None and made.operator.name in through:
            if any(isinstance(one, ValueReference) for one in made.arguments[1:]):
                return None
            made = self._makers.get(_first(made))
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Averaged:
    """What a mean is over: a value whose elements sum up to their number, or one and what of it is `ignored`, and the
    weights of its classes."""

    value_id: int
    ignored: int | None = None
    weights_id: int = 0


def _is_sum(node: Node) -> bool:
    return _is_loss_that_sums(node) or _is_whole(node, "aten::sum")


def _is_loss_that_sums(node: Node) -> bool:
    position = facts_of(node.operator.name).reduction
    return position != "" and node.arguments[int(position) : int(position) + 1] == (_SUM,)


def _is_whole(node: Node, name: str) -> bool:
    """Over all elements."""
    return node.operator.qualified_name == f"{name}.default"


def _of_cross_entropy(node: Node, position: int) -> Argument:
    name, default = _OF_CROSS_ENTROPY[position]
    return (
        node.arguments[position] if position < len(node.arguments) else dict(node.keyword_arguments).get(name, default)
    )


def _first(node: Node) -> int:
    return _reference(node.arguments[0]) if node.arguments else 0


def _reference(argument: Argument) -> int:
    return argument.value_id if isinstance(argument, ValueReference) else 0


def _is_followed(call: Node, later: Sequence[Node]) -> bool:
    """How many elements it leaves, its numbers say, which hold for any batch; places are followed until the first call
    that arranges elements anew, behind which none is taken away or added."""
    name = call.operator.name
    if name in _ARRANGES:
        return not any(one.operator.name in _CUTS for one in later)
    if name in _COPIES:
        return True
    flat = [item for one in call.arguments[1:] for item in (one.items if isinstance(one, ArgumentList) else (one,))]
    numbers = all(item is None or isinstance(item, int | float) or item == "constant" for item in flat)
    return name in _CALLS and numbers and not call.keyword_arguments


def _slice(elements: _Array, call: Node) -> _Array:
    """slice(self, dim=0, start=None, end=None, step=1)"""
    given: list[Any] = list(call.arguments[1:])
    dim, *ends = given + [0, None, None, 1][len(given) :]
    places = [slice(None)] * elements.ndim
    places[dim] = slice(*ends)
    return elements[tuple(places)]


def _select(elements: _Array, call: Node) -> _Array:
    """select(self, dim, index)"""
    _, dim, index = call.arguments
    places: list[Any] = [slice(None)] * elements.ndim
    places[dim] = index  # type: ignore[index]
    return elements[tuple(places)]  # type: ignore[no-any-return]


def _pad(elements: _Array, call: Node) -> _Array:
    """pad(self, pad, mode="constant", value=None) or constant_pad_nd(self, pad, value=0), the last dimension first"""
    _, widths, *rest = call.arguments
    value = next((one for one in rest if isinstance(one, int | float)), 0)
    sizes: Any = widths.items if isinstance(widths, ArgumentList) else ()
    pairs = [(0, 0)] * (elements.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
    return np.pad(elements, pairs, constant_values=value)


def _compared(by: Callable[[Any, Any], Any]) -> Callable[[_Array, Node], _Array]:
    return lambda elements, call: by(elements, call.arguments[1])


_CUTS: Mapping[str, Callable[[_Array, Node], _Array]] = {
    "aten::constant_pad_nd": _pad,
    "aten::pad": _pad,
    "aten::select": _select,
    "aten::slice": _slice,
}
_COMPARISONS: Mapping[str, Callable[[_Array, Node], _Array]] = {
    f"aten::{by.__name__}": _compared(by)
    for by in (operator.eq, operator.ge, operator.gt, operator.le, operator.lt, operator.ne)
}
_CALLS = {**_CUTS, **_COMPARISONS}
