"""What came against what was declared: symbols mean one thing throughout a call."""

from __future__ import annotations

import pytest
import torch

from stage_daemon.transport.declared import (
    DeclaredValue,
    Dimension,
    DimensionOperator,
    Operation,
    Symbol,
    SymbolReference,
    ValueKind,
    find_mismatch,
)

SYMBOLS = {1: Symbol(id=1, name="batch", lower=1, upper=64), 2: Symbol(id=2, name="length", lower=2)}
BATCH, LENGTH = SymbolReference(1), SymbolReference(2)


def call(operator: DimensionOperator, *operands: Dimension) -> Operation:
    return Operation(operator, operands)


def mismatch(*pairs: tuple[tuple[Dimension, ...], tuple[int, ...]]) -> str | None:
    declared = [
        DeclaredValue(value_id=index, name=f"x{index}", kind=ValueKind.TENSOR, dtype=torch.float32, dims=dims)
        for index, (dims, _) in enumerate(pairs)
    ]
    return find_mismatch(declared, [(torch.float32, shape) for _, shape in pairs], SYMBOLS)


DOUBLE_AND_ONE = call(DimensionOperator.ADD, call(DimensionOperator.MULTIPLY, 2, LENGTH), 1)
TOWER: Dimension = LENGTH
for _ in range(20):
    TOWER = call(DimensionOperator.POWER, TOWER, 64)
HALF = call(DimensionOperator.FLOOR_DIVIDE, LENGTH, 2)


@pytest.mark.parametrize(
    "pairs",
    [
        [((BATCH, 4), (64, 4)), ((BATCH,), (64,))],
        [((DOUBLE_AND_ONE,), (11,)), ((LENGTH,), (5,))],
        [((DOUBLE_AND_ONE,), (11,))],
        [((HALF, LENGTH), (3, 7))],
        [((call(DimensionOperator.MODULO, LENGTH, 3), LENGTH), (1, 7))],
        [((call(DimensionOperator.CEIL_DIVIDE, LENGTH, 2), LENGTH), (4, 7))],
        [((call(DimensionOperator.POWER, LENGTH, 2), LENGTH), (49, 7))],
        [((call(DimensionOperator.MINIMUM, LENGTH, 3), LENGTH), (3, 7))],
        [((call(DimensionOperator.MAXIMUM, LENGTH, BATCH), LENGTH, BATCH), (9, 7, 9))],
        # Undefined there: nothing to check it against.
        [((call(DimensionOperator.FLOOR_DIVIDE, LENGTH, call(DimensionOperator.ADD, LENGTH, -7)), LENGTH), (9, 7))],
        # A size that no tensor has, and that nobody could wait for.
        [((TOWER, LENGTH), (9, 7))],
        # Two unknowns: nothing to check it against.
        [((call(DimensionOperator.MULTIPLY, LENGTH, BATCH),), (35,))],
    ],
)
def test_fits(pairs: list[tuple[tuple[Dimension, ...], tuple[int, ...]]]) -> None:
    assert mismatch(*pairs) is None


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([((BATCH, 4), (3, 5))], "'x0': dimension 1 is 5, needs 4"),
        ([((BATCH,), (65,))], "'x0': dimension 0 is 65, needs batch to be at most 64"),
        ([((LENGTH,), (1,))], "'x0': dimension 0 is 1, needs length to be at least 2"),
        (
            [((BATCH,), (3,)), ((4, BATCH), (4, 2))],
            "'x1': dimension 1 is 2, needs 3: batch is 3 by 'x0': dimension 0 is 3",
        ),
        ([((DOUBLE_AND_ONE,), (12,))], "'x0': dimension 0 is 12, which no value of length gives"),
        ([((DOUBLE_AND_ONE,), (3,))], "'x0': dimension 0 is 3 (length = 1), needs length to be at least 2"),
        ([((DOUBLE_AND_ONE,), (11,)), ((LENGTH,), (6,))], "'x0': dimension 0 is 11, needs 13"),
        ([((LENGTH, HALF), (7, 4))], "'x0': dimension 1 is 4, needs 3"),
        ([((BATCH,), (3, 3))], "'x0': found 2 dimensions [3, 3], needs 1"),
    ],
)
def test_does_not_fit(pairs: list[tuple[tuple[Dimension, ...], tuple[int, ...]]], words: str) -> None:
    assert mismatch(*pairs) == words


def test_a_bool_is_no_integer() -> None:
    declared = [DeclaredValue(value_id=1, name="count", kind=ValueKind.INTEGER)]
    assert find_mismatch(declared, [True], SYMBOLS) == "'count': found the bool True, needs a scalar of kind integer"


@pytest.mark.parametrize(
    "operator", [DimensionOperator.FLOOR_DIVIDE, DimensionOperator.MODULO, DimensionOperator.POWER]
)
def test_operators_of_two_have_two(operator: DimensionOperator) -> None:
    with pytest.raises(ValueError, match=f"1 operands of {operator.value}, needs 2"):
        call(operator, LENGTH)
    with pytest.raises(ValueError, match="0 operands of add, needs at least 1"):
        call(DimensionOperator.ADD)


def test_powers_that_are_sizes_are_computed() -> None:
    assert mismatch(((call(DimensionOperator.POWER, 2, 40), LENGTH), (2**40, 7))) is None
    assert "needs 4096" in str(mismatch(((call(DimensionOperator.POWER, 8, 4), LENGTH), (4095, 7))))
