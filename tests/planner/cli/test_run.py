"""Batches out of a file's tensors and results back into tensors, without a deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.cli.commands import run
from planner.client.outputs import every_output
from planner.client.tensors import RawTensor, TensorKind, from_raw, to_raw
from planner.errors import InvalidArgument
from planner.graph.expression import SymbolReference
from planner.graph.ir import Dtype, Graph, Input, Output, TreeTuple, Value, ValueKind, ValueReference

BATCH = SymbolReference(1)


def tensor(name: str, *dims: Any) -> Value:
    return Value(id=0, kind=ValueKind.TENSOR, dtype=Dtype.INT64, dims=dims, name=name)


def graph(*values: Value) -> Graph:
    numbered = [
        Value(id=index, kind=v.kind, dtype=v.dtype, dims=v.dims, name=v.name) for index, v in enumerate(values, 1)
    ]
    return Graph(
        torch_version="",
        name="",
        values=tuple(numbered),
        inputs=tuple(Input(name=value.name, content=ValueReference(value.id)) for value in numbered),
        outputs=tuple(Output(name=f"{value.name}_out", content=ValueReference(value.id)) for value in numbered),
        input_tree=TreeTuple(()),
    )


def raw(*dims: int, start: int = 0) -> RawTensor:
    return to_raw(np.arange(start, start + int(np.prod(dims)), dtype=np.int64).reshape(dims), Dtype.INT64)


def rows_of(batches: list[list[object]], index: int) -> list[object]:
    return [from_raw(batch[index], TensorKind.NUMPY).tolist() for batch in batches]  # type: ignore[arg-type]


def test_without_a_size_there_is_one_batch() -> None:
    leaves = [raw(3), raw(5)]
    assert run._batches(graph(tensor("x", BATCH), tensor("y", 5)), leaves, 0) == [leaves]


def test_what_begins_with_the_batch_dimension_is_cut_and_the_rest_is_in_each() -> None:
    program = graph(
        tensor("table", 4, 2), tensor("x", BATCH), tensor("y", BATCH, 2), tensor("other", SymbolReference(2))
    )
    batches = run._batches(program, [raw(4, 2), raw(3), raw(3, 2), raw(9)], 2)
    assert rows_of(batches, 1) == [[0, 1], [2]]
    assert rows_of(batches, 2) == [[[0, 1], [2, 3]], [[4, 5]]]
    assert [batch[0] for batch in batches] == [raw(4, 2)] * 2
    assert [batch[3] for batch in batches] == [raw(9)] * 2


def test_without_a_dynamic_dimension_every_tensor_is_cut() -> None:
    program = graph(tensor("x", 4), tensor("y", 4, 1), tensor("scalar"))
    batches = run._batches(program, [raw(4), raw(4, 1), raw()], 3)
    assert rows_of(batches, 0) == [[0, 1, 2], [3]]
    assert rows_of(batches, 1) == [[[0], [1], [2]], [[3]]]
    assert rows_of(batches, 2) == [0, 0]


@pytest.mark.parametrize(
    ("leaves", "says"), [([raw(3), raw(4)], r"the inputs have \[3, 4\] rows"), ([raw(0), raw(0)], r"have \[0\] rows")]
)
def test_inputs_need_one_number_of_rows(leaves: list[object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--batch-size: .*{says}"):
        run._batches(graph(tensor("x", BATCH), tensor("y", BATCH)), leaves, 2)


def test_what_has_no_rows_cannot_be_cut() -> None:
    with pytest.raises(InvalidArgument, match="the inputs have no rows"):
        run._batches(graph(tensor("scalar")), [raw()], 2)


def test_inputs_come_in_the_graphs_order_whatever_the_files() -> None:
    program = graph(tensor("x", BATCH), Value(id=0, kind=ValueKind.SYM_INT, name="n"))
    leaves = run._leaves(program, {"n": np.array(2**53 + 1), "x": np.arange(2)})
    assert leaves == [raw(2), 2**53 + 1]


@pytest.mark.parametrize("entry", [np.arange(2), raw(1)])
def test_a_number_is_an_array_of_one(entry: object) -> None:
    with pytest.raises(InvalidArgument, match=r"input 'n' is one number: give it in a \.npz"):
        run._leaves(graph(Value(id=0, kind=ValueKind.SYM_INT, name="n")), {"n": entry})


def test_results_are_joined_by_name_and_numbers_become_one_for_each_batch() -> None:
    program = graph(tensor("x", BATCH), Value(id=0, kind=ValueKind.SYM_INT, name="n"))
    outputs = run._join(every_output(program), [[raw(2), 7], [raw(1, start=2), 8]])
    assert outputs == {"x_out": raw(3), "n_out": raw(2, start=7)}
    assert list(outputs) == ["x_out", "n_out"]
