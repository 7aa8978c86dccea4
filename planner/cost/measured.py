"""Seconds that nodes of one graph were measured to take on one kind of device, at one setting of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from planner.graph.saved import Saved

MAX_TEXT_CHARACTERS = 256
# A single call that takes longer than a day is a slip of units.
MAX_SECONDS = 86400.0
MAX_BYTES = 1 << 62
# More than any host has: what is meant for another field is refused before it reaches a daemon.
MAX_THREADS = 4096

SymbolValues = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a device spends on a client's microbatch beside running it: taking its inputs, handing its outputs over."""

    input_seconds: float
    output_seconds: float

    def __post_init__(self) -> None:
        for name in ("input_seconds", "output_seconds"):
            if not 0.0 <= getattr(self, name) <= MAX_SECONDS:
                raise InvalidArgument(f"delivery.{name} is {getattr(self, name)}, needs 0 to {MAX_SECONDS:g}")


NO_DELIVERY = Delivery(input_seconds=0.0, output_seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUpdate:
    """What ends a training step on a device that trains all states of the graph: reading the norms of their gradients,
    and a step of SGD."""

    norm_seconds: float
    optimizer_seconds: float

    def __post_init__(self) -> None:
        for name in ("norm_seconds", "optimizer_seconds"):
            if not 0.0 <= getattr(self, name) <= MAX_SECONDS:
                raise InvalidArgument(f"update.{name} is {getattr(self, name)}, needs 0 to {MAX_SECONDS:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """`seconds` holds (node index, seconds) for the nodes that were measured, ascending; `backward_seconds` likewise,
    of the backward passes through some of them, and `split_seconds` of some of these (node index, seconds for what the
    node is given, seconds for weights) where they are run in two. `saved` says of some of them what is kept for it.

    `delivery` and `update` are None where they were not measured. `num_threads` is how many an operator used on a CPU,
    where that many were asked for: what a worker takes that has as many. 0: all that the device has.

    `symbol_values` are dynamic dimensions by name, sorted; a symbol that is left out stood at its hint. `graph_id` is
    the graph's digest, empty where nobody has said. `source` says in words where the times are from. `profile_id` is
    the stored profile that holds them, empty where none does.
    """

    graph_id: str
    device_kind: str
    seconds: tuple[tuple[int, float], ...]
    symbol_values: SymbolValues = ()
    source: str = ""
    profile_id: str = ""
    backward_seconds: tuple[tuple[int, float], ...] = ()
    split_seconds: tuple[tuple[int, float, float], ...] = ()
    saved: tuple[tuple[int, Saved], ...] = ()
    delivery: Delivery | None = None
    num_threads: int = 0
    update: StateUpdate | None = None

    def __post_init__(self) -> None:
        for name, text in (("device_kind", self.device_kind), ("source", self.source)):
            if len(text) > MAX_TEXT_CHARACTERS or not (text.isprintable() or not text):
                raise InvalidArgument(f"{name} is {text[:40]!r}, needs at most {MAX_TEXT_CHARACTERS} printable ones")
        if not self.device_kind:
            raise InvalidArgument("device_kind is empty; say which kind of device the times are of, as in 'h200'")
        if not 0 <= self.num_threads <= MAX_THREADS:
            raise InvalidArgument(f"num_threads is {self.num_threads}, needs 0 to {MAX_THREADS}")
        _check("seconds", self.seconds)
        _check("backward_seconds", self.backward_seconds)
        _check("input_gradient_seconds", ((node, inputs) for node, inputs, _ in self.split_seconds))
        _check("weight_gradient_seconds", ((node, weights) for node, _, weights in self.split_seconds))
        _check("saved.within_bytes", ((node, one.within_bytes) for node, one in self.saved), MAX_BYTES)
        forward = {index for index, _ in self.seconds}
        alone = next((index for index, _ in self.backward_seconds if index not in forward), None)
        if alone is not None:
            raise InvalidArgument(f"node {alone} has backward_seconds and no seconds; give both")
        backward = {index for index, _ in self.backward_seconds}
        alone = next((index for index, _, _ in self.split_seconds if index not in backward), None)
        if alone is not None:
            raise InvalidArgument(f"node {alone} has its backward pass in two and no backward_seconds; give both")
        alone = next((index for index, _ in self.saved if index not in backward), None)
        if alone is not None:
            raise InvalidArgument(f"node {alone} has what its backward pass keeps and no backward_seconds; give both")

    def is_of_kind(self, kind: str) -> bool:
        return self.device_kind.lower() == kind.lower()


def _check(name: str, pairs: Iterable[tuple[int, float]], most: float = MAX_SECONDS) -> None:
    before = -1
    for index, number in pairs:
        if index <= before:
            raise InvalidArgument(f"node {index} stands after node {before}; each node may have one time, in order")
        if not math.isfinite(number) or not 0.0 <= number <= most:
            raise InvalidArgument(f"node {index}: {name} is {number}, needs 0 to {most:g}")
        before = index


def check_fits(times: MeasuredTimes, graph: Graph) -> None:
    """Raises InvalidArgument for a node or a dimension that the graph does not have."""
    where = f"times for {times.device_kind!r}"
    if times.seconds and times.seconds[-1][0] >= len(graph.nodes):
        raise InvalidArgument(f"{where}: node {times.seconds[-1][0]}, and the graph has {len(graph.nodes)} nodes")
    dimension_names = {symbol.name for symbol in graph.symbols}
    for name, _ in times.symbol_values:
        if name not in dimension_names:
            names_text = ", ".join(map(repr, sorted(dimension_names))) or "none"
            raise InvalidArgument(
                f"{where}: symbol_values names {name!r}; the graph's dynamic dimensions are {names_text}"
            )


def point_of(times: MeasuredTimes, graph: Graph) -> dict[int, int]:
    """Symbol id to the value that was measured at."""
    values = dict(times.symbol_values)
    return {symbol.id: values.get(symbol.name, symbol.hint) for symbol in graph.symbols}


def nearest(points: Sequence[Mapping[int, int]], symbol_values: Mapping[int, int]) -> int:
    """Position of the point at the least distance in ratios (sum of |log2|); the first of equals."""
    return min(range(len(points)), key=lambda at: _distance(points[at], symbol_values))


def _distance(point: Mapping[int, int], target: Mapping[int, int]) -> float:
    return math.fsum(abs(_log(value) - _log(target[symbol])) for symbol, value in point.items())


def _log(value: int) -> float:
    return math.log2(max(value, 1))


def symbol_values_of(pairs: Mapping[str, int] | Iterable[tuple[str, int]]) -> SymbolValues:
    return tuple(sorted(dict(pairs).items()))
