"""Batches into microbatches, and which output is the loss."""

from __future__ import annotations

import numpy as np
import pytest

from planner.client.training.cutting import cut, loss_output, num_rows
from planner.errors import InvalidArgument
from planner.graph.expression import SymbolReference
from planner.graph.ir import Dtype, Graph, Input, Output, Symbol, Value, ValueKind, ValueReference


def tensor(value_id: int, *dims: int | str) -> Value:
    shape = tuple(SymbolReference(1) if dim == "batch" else int(dim) for dim in dims)
    return Value(id=value_id, name=f"v{value_id}", kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=shape)


def graph(inputs: list[Value], outputs: list[Value] = [], *, lower: int = 1, upper: int | None = None) -> Graph:  # noqa: B006
    return Graph(
        torch_version="",
        name="",
        symbols=(Symbol(id=1, name="batch", lower=lower, upper=upper, hint=4),),
        values=(*inputs, *outputs),
        inputs=tuple(Input(name=value.name, content=ValueReference(value.id)) for value in inputs),
        outputs=tuple(Output(name=value.name, content=ValueReference(value.id)) for value in outputs),
    )


@pytest.mark.parametrize(
    ("rows", "microbatches", "sizes"), [(8, 4, [2] * 4), (10, 4, [3, 3, 2, 2]), (3, 8, [1] * 3), (5, 1, [5])]
)
def test_a_dynamic_dimension_is_cut_into_as_many_parts_as_planned(
    rows: int, microbatches: int, sizes: list[int]
) -> None:
    program = graph([tensor(1, "batch", 3), tensor(2, 3, 3), tensor(3, "batch")])
    x, mask, y = np.arange(rows * 3).reshape(rows, 3), np.ones((3, 3)), np.arange(rows)
    parts = cut(program, [x, mask, y], microbatches)
    assert [num_rows(program, part) for part in parts] == sizes
    assert np.array_equal(np.concatenate([part[0] for part in parts]), x)
    assert np.array_equal(np.concatenate([part[2] for part in parts]), y)
    assert all(part[1] is mask for part in parts)


@pytest.mark.parametrize(
    ("rows", "lower", "upper", "sizes"),
    [(5, 2, None, [3, 2]), (8, 2, 8, [2] * 4), (1, 2, None, [1]), (3, 2, None, [3]), (20, 1, 4, [4] * 5)],
)
def test_parts_keep_within_the_bounds_of_the_dimension(rows: int, lower: int, upper: int, sizes: list[int]) -> None:
    """A batch that has too few rows for any part stays whole, and is refused where it is encoded."""
    program = graph([tensor(1, "batch", 3)], lower=lower, upper=upper)
    assert [num_rows(program, part) for part in cut(program, [np.ones((rows, 3))], 4)] == sizes


def test_a_fixed_dimension_is_cut_into_as_many_parts_as_there_are() -> None:
    program = graph([tensor(1, 2, 3), tensor(2, 2, 2)])
    x, shared = np.ones((6, 3)), np.ones((2, 2))
    assert [(len(part[0]), part[1] is shared) for part in cut(program, [x, shared], 4)] == [(2, True)] * 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "leaves", "words"),
    [
        (graph([tensor(1, 2, 3)]), [np.ones((5, 3))], "'v1' has 5 rows, a microbatch of this graph has 2"),
        (graph([tensor(1, "batch")]), [np.ones(0)], "'v1' has no rows"),
        (graph([tensor(1)]), [1.0], "no input has a dimension"),
        (graph([tensor(1, "batch")]), [], "0 inputs found, the graph takes 1"),
        (graph([tensor(1, "batch")]), [1.0], "input 'v1': a float without a first dimension"),
        # As many as one microbatch has.
        (
            graph([tensor(1, "batch"), tensor(2, "batch")]),
            [np.ones(6), np.ones(3)],
            "input 'v2' has 3 rows, and input 'v1' of one batch has 6",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(program: Graph, leaves: list[object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        cut(program, leaves, 2)


def test_the_loss_is_the_named_output_or_the_only_scalar() -> None:
    logits, loss, other = tensor(1, "batch", 3), tensor(2), tensor(3)
    assert loss_output(graph([], [logits, loss]), None) == (1, 2)
    assert loss_output(graph([], [logits, loss, other]), "v3") == (2, 3)
    for outputs, name, words in (
        ([logits, loss, other], None, "2 outputs are floating scalars"),
        ([logits], None, "0 outputs are floating scalars, of 'v1'"),
        ([logits, loss], "v1", "has 2 dimensions; a loss is a floating scalar"),
        ([loss], "loss", "no output is called 'loss', there are 'v2'"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            loss_output(graph([], outputs), name)
