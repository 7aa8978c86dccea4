"""Dynamic dimensions that a plan is made for: one setting, or several buckets with weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.options import PlanOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`symbol_values` by symbol id, of all of the graph's symbols; weights of a plan's settings sum to 1."""

    symbol_values: Mapping[int, int]
    weight: float


def chosen_symbol_values(graph: Graph, options: PlanOptions) -> dict[int, int]:
    """Symbol id to the value to plan for: what the options say, else the hint."""
    return _with(graph, graph.hints(), options.symbol_values, "symbol_values")


def settings_of(graph: Graph, options: PlanOptions) -> tuple[Setting, ...]:
    """One per bucket; a dimension that a bucket leaves out stands at the options' own value, else at its hint.

    Raises OptionsError, naming the bucket, for an unknown dimension or a value that the graph was not exported for.
    """
    symbol_values = chosen_symbol_values(graph, options)
    if not options.buckets:
        return (Setting(symbol_values=symbol_values, weight=1.0),)
    total = sum(bucket.weight for bucket in options.buckets)
    return tuple(
        Setting(
            symbol_values=_with(graph, symbol_values, bucket.symbol_values, f"buckets[{index}].symbol_values"),
            weight=bucket.weight / total,
        )
        for index, bucket in enumerate(options.buckets)
    )


def largest_setting(graph: Graph, settings: Sequence[Setting]) -> Setting:
    """The one whose values take the most bytes together; the first of equals."""
    if len(settings) == 1:
        return settings[0]
    return max(settings, key=lambda setting: sum(value.size_bytes(setting.symbol_values) for value in graph.values))


def planned_sizes(graph: Graph, settings: Iterable[Setting]) -> dict[int, int]:
    """Value id to bytes: the most in any setting, so that what fits, fits in each."""
    points = [setting.symbol_values for setting in settings]
    return {value.id: max(value.size_bytes(point) for point in points) for value in graph.values}


def _with(graph: Graph, base: Mapping[int, int], named_values: Iterable[tuple[str, int]], where: str) -> dict[int, int]:
    by_name = {symbol.name: symbol for symbol in graph.symbols}
    values = dict(base)
    value_of_name: dict[str, int] = {}
    for name, value in named_values:
        if value_of_name.setdefault(name, value) != value:
            raise OptionsError(f"{where}: {name} is to be {value_of_name[name]} and {value}; name one", symbol=name)
        symbol = by_name.get(name)
        if symbol is None:
            raise OptionsError(f"{where}: the graph has no dynamic dimension {name!r}; {_known(name, by_name)}")
        if value < symbol.lower or (symbol.upper is not None and value > symbol.upper):
            upper = "unbounded" if symbol.upper is None else symbol.upper
            raise OptionsError(
                f"{where}: {name} is {value}, and the graph was exported for {symbol.lower} to {upper}",
                symbol=name,
                value=value,
            )
        values[symbol.id] = value
    return values


def _known(name: str, dimensions: Mapping[str, object]) -> str:
    if not dimensions:
        return "all of its dimensions are fixed"
    near = get_close_matches(name[:1000], list(dimensions), n=3, cutoff=0.4)
    return f"it has {', '.join(map(repr, near or sorted(dimensions)[:10]))}"
