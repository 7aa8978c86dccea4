"""Which values dynamic dimensions are planned at, and what is no such value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import OptionsError
from planner.graph.expression import SymbolReference
from planner.graph.ir import Dtype, Graph, Symbol, Value, ValueKind
from planner.plan.dimensions import Setting, chosen_symbol_values, largest_setting, planned_sizes, settings_of
from planner.plan.options import PlanOptions, ShapeBucket

BATCH = Symbol(id=1, name="batch", lower=1, upper=64, hint=3)
LENGTH = Symbol(id=2, name="length", lower=2, upper=None, hint=10)


def table(value_id: int, *dims: object) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=dims)  # type: ignore[arg-type]


GRAPH = Graph(
    torch_version="2.13.0",
    name="dynamic",
    symbols=(BATCH, LENGTH),
    values=(table(7, SymbolReference(1), 100), table(8, SymbolReference(2))),
)


def bucket(weight: float, **sizes: int) -> ShapeBucket:
    return ShapeBucket(symbol_values=tuple(sizes.items()), weight=weight)


def test_what_is_not_given_stands_at_its_hint() -> None:
    assert chosen_symbol_values(GRAPH, PlanOptions()) == {1: 3, 2: 10}
    assert chosen_symbol_values(GRAPH, PlanOptions(symbol_values=(("batch", 64),))) == {1: 64, 2: 10}
    assert settings_of(GRAPH, PlanOptions()) == (Setting(symbol_values={1: 3, 2: 10}, weight=1.0),)


def test_a_bucket_stands_on_the_options_own_values_and_weights_sum_to_one() -> None:
    options = PlanOptions(
        symbol_values=(("length", 5),), buckets=(bucket(3.0, batch=1), bucket(1.0, batch=2, length=7))
    )
    assert settings_of(GRAPH, options) == (
        Setting(symbol_values={1: 1, 2: 5}, weight=0.75),
        Setting(symbol_values={1: 2, 2: 7}, weight=0.25),
    )


def test_sizes_are_the_most_of_any_setting() -> None:
    long = Setting(symbol_values={1: 2, 2: 1000}, weight=0.5)
    wide = Setting(symbol_values={1: 5, 2: 10}, weight=0.5)
    assert planned_sizes(GRAPH, (long, wide)) == {7: 5 * 100 * 4, 8: 1000 * 4}
    assert largest_setting(GRAPH, (wide, long)) is long
    assert largest_setting(GRAPH, (wide, replace(wide, weight=0.1))) is wide


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("batch", 0), r"^symbol_values: batch is 0, and the graph was exported for 1 to 64$"),
        (("batch", 65), r"^symbol_values: batch is 65, and the graph was exported for 1 to 64$"),
        (("length", 1), r"^symbol_values: length is 1, and the graph was exported for 2 to unbounded$"),
        (("lenght", 4), r"^symbol_values: the graph has no dynamic dimension 'lenght'; it has 'length'$"),
        (("qqq", 4), r"it has 'batch', 'length'$"),
    ],
)
def test_values_that_the_graph_was_not_exported_for_are_refused(given: tuple[str, int], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        settings_of(GRAPH, PlanOptions(symbol_values=(given,)))


@pytest.mark.parametrize("given", [("batch", 1), ("batch", 64), ("length", 2), ("length", 10**6)])
def test_bounds_themselves_are_allowed(given: tuple[str, int]) -> None:
    assert dict(zip((1, 2), (3, 10), strict=True)) | {1 if given[0] == "batch" else 2: given[1]} == (
        chosen_symbol_values(GRAPH, PlanOptions(symbol_values=(given,)))
    )


def test_one_dimension_has_one_value() -> None:
    with pytest.raises(OptionsError, match="batch is to be 2 and 3; name one"):
        settings_of(GRAPH, PlanOptions(symbol_values=(("batch", 2), ("batch", 3))))
    assert chosen_symbol_values(GRAPH, PlanOptions(symbol_values=(("batch", 2), ("batch", 2))))[1] == 2


def test_an_error_names_the_bucket() -> None:
    with pytest.raises(OptionsError, match=r"^buckets\[1\]\.symbol_values: batch is 99"):
        settings_of(GRAPH, PlanOptions(buckets=(bucket(1.0, batch=1), bucket(1.0, batch=99))))


def test_a_graph_of_fixed_shapes_has_nothing_to_set() -> None:
    with pytest.raises(OptionsError, match="all of its dimensions are fixed"):
        settings_of(replace(GRAPH, symbols=(), values=()), PlanOptions(symbol_values=(("batch", 2),)))
