"""What records say of themselves: sizes, names and the values in arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import (
    SAFETENSORS_DTYPES,
    ArgumentList,
    Dtype,
    Graph,
    Node,
    Operator,
    OperatorKind,
    SubgraphReference,
    Symbol,
    Value,
    ValueKind,
    ValueReference,
    values_in,
    values_read,
)
from planner.graph.operators import load_vocabulary


@pytest.mark.parametrize("dtype", Dtype)
def test_elements_are_as_large_as_torchs(dtype: Dtype) -> None:
    assert dtype.size_bytes == getattr(torch, dtype.value).itemsize


@pytest.mark.parametrize("dtype", Dtype)
def test_what_is_known_of_an_element_type_is_what_torch_and_numpy_know(dtype: Dtype) -> None:
    torch_dtype, facts = getattr(torch, dtype.value), dtype.facts
    assert facts.differentiable == (torch_dtype.is_floating_point or torch_dtype.is_complex)
    if facts.numpy:
        assert np.dtype(facts.numpy) == torch.zeros(0, dtype=torch_dtype).numpy().dtype
    else:
        with pytest.raises(TypeError):
            torch.zeros(0, dtype=torch_dtype).numpy()


@pytest.mark.parametrize(("name", "dtype"), SAFETENSORS_DTYPES.items())
def test_safetensors_names_say_the_size_of_an_element(name: str, dtype: Dtype) -> None:
    bits = "".join(character for character in name.split("_")[0] if character.isdigit())
    assert dtype.size_bytes == (int(bits) // 8 if bits else 1)
    assert len(set(SAFETENSORS_DTYPES.values())) == len(SAFETENSORS_DTYPES)


def test_sizes_of_values() -> None:
    half = Operation(ExpressionOperator.CEIL_DIVIDE, (SymbolReference(1), 2))
    tensor = Value(id=1, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT16, dims=(half, 3))
    assert (tensor.num_elements({1: 5}), tensor.size_bytes({1: 5})) == (9, 18)
    assert Value(id=1, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT64).size_bytes({}) == 8
    assert Value(id=1, kind=ValueKind.TENSOR, dtype=Dtype.BOOL, dims=(0, 7)).size_bytes({}) == 0
    assert Value(id=1, kind=ValueKind.SYM_INT).size_bytes({}) == 8
    assert Value(id=1, kind=ValueKind.OPAQUE, opaque_bytes=77).size_bytes({}) == 77


def test_hints_are_the_symbols_own() -> None:
    symbols = tuple(Symbol(id=index, name=f"s{index}", lower=1, upper=None, hint=10 * index) for index in (1, 2))
    assert Graph(torch_version="", name="", symbols=symbols).hints() == {1: 10, 2: 20}


def test_operators_are_called_by_name_and_overload() -> None:
    assert Operator(kind=OperatorKind.ATEN, name="aten::add", overload="Tensor").qualified_name == "aten::add.Tensor"
    assert Operator(kind=OperatorKind.PYTHON, name="add").qualified_name == "add"


def test_values_of_arguments_in_order() -> None:
    one, two, three = map(ValueReference, (1, 2, 3))
    nested = (two, ArgumentList((one, (three, "x"))), None, SubgraphReference(9), two)
    assert values_in(nested) == (2, 1, 3, 2)
    assert values_in(5) == ()
    node = Node(
        operator=Operator(kind=OperatorKind.PYTHON, name="add"),
        arguments=(two, nested),
        keyword_arguments=(("out", ValueReference(7)), ("again", one)),
        outputs=(8,),
    )
    assert values_read(node) == (2, 1, 3, 7)


def test_the_vocabulary_has_operators_of_each_kind_that_can_run() -> None:
    vocabulary = load_vocabulary()
    assert (OperatorKind.ATEN, "aten::add", "Tensor") in vocabulary
    assert (OperatorKind.HIGHER_ORDER, "cond", "") in vocabulary
    assert {kind for kind, _, _ in vocabulary} == {OperatorKind.ATEN, OperatorKind.HIGHER_ORDER, OperatorKind.PYTHON}
