"""What the plan promises of each value that crosses an edge or enters, and the check of what came against it.

Dimensions are expression trees over the graph's symbols; they are walked, never evaluated as code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

MAX_EXPONENT = 64
# No tensor has more elements: a larger number is no size, and powers of powers would take all memory to compute.
MAX_BITS = 64


class ValueKind(Enum):
    TENSOR = "tensor"
    INTEGER = "integer"
    FLOATING = "floating"
    BOOLEAN = "boolean"


class DimensionOperator(Enum):
    ADD = "add"
    MULTIPLY = "multiply"
    FLOOR_DIVIDE = "floor_divide"
    MODULO = "modulo"
    CEIL_DIVIDE = "ceil_divide"
    POWER = "power"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"


@dataclass(frozen=True, slots=True)
class SymbolReference:
    symbol_id: int


BINARY = frozenset(
    {
        DimensionOperator.FLOOR_DIVIDE,
        DimensionOperator.MODULO,
        DimensionOperator.CEIL_DIVIDE,
        DimensionOperator.POWER,
    }
)


@dataclass(frozen=True, slots=True)
class Operation:
    """`operator` applied to `operands`: exactly two for a binary operator, at least one otherwise."""

    operator: DimensionOperator
    operands: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        if len(self.operands) != 2 if self.operator in BINARY else not self.operands:
            needed = "2" if self.operator in BINARY else "at least 1"
            raise ValueError(f"{len(self.operands)} operands of {self.operator.value}, needs {needed}")


# A constant is an int itself.
Dimension = int | SymbolReference | Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A dynamic dimension; bounds are inclusive, and no upper bound means unbounded."""

    id: int
    name: str
    lower: int
    upper: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredValue:
    """`dtype` and `dims` are a tensor's only."""

    value_id: int
    name: str
    kind: ValueKind
    dtype: torch.dtype | None = None
    dims: tuple[Dimension, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind is ValueKind.TENSOR) != (self.dtype is not None):
            raise ValueError(f"value {self.name!r} is a {self.kind.value} with dtype {self.dtype}")


# Of a tensor that came: dtype and dims. A scalar is itself.
Outline = tuple[torch.dtype, tuple[int, ...]] | int | float | bool


def find_mismatch(
    declared: Sequence[DeclaredValue], items: Sequence[Outline], symbols: Mapping[int, Symbol]
) -> str | None:
    """The first thing that is not as declared, in words that name the value; None where all is well.

    A symbol means the same everywhere within one call. Dims that no symbol found here determines are only checked to be
    at least 0.
    """
    if len(declared) != len(items):
        return f"found {len(items)} values, needs {len(declared)}: {', '.join(value.name for value in declared)}"
    for value, item in zip(declared, items, strict=True):
        if (message := _kind_mismatch(value, item)) is not None:
            return message
    bindings: dict[int, tuple[int, str]] = {}
    tensors = [(value, item[1]) for value, item in zip(declared, items, strict=True) if isinstance(item, tuple)]
    # Plain symbols first: what they fix decides the others.
    for solve in (_bind_plain, _check_computed):
        for value, dims in tensors:
            for position, (dimension, size) in enumerate(zip(value.dims, dims, strict=True)):
                where = f"{value.name!r}: dimension {position} is {size}"
                if (message := solve(dimension, size, where, bindings, symbols)) is not None:
                    return message
    return None


def _kind_mismatch(value: DeclaredValue, item: Outline) -> str | None:
    if value.kind is not ValueKind.TENSOR:
        needed = {ValueKind.INTEGER: int, ValueKind.FLOATING: float, ValueKind.BOOLEAN: bool}[value.kind]
        if type(item) is needed:
            return None
        return f"{value.name!r}: found {_describe(item)}, needs a scalar of kind {value.kind.value}"
    if not isinstance(item, tuple):
        return f"{value.name!r}: found {_describe(item)}, needs a tensor of {value.dtype}"
    dtype, dims = item
    if dtype != value.dtype:
        return f"{value.name!r}: found dtype {dtype}, needs {value.dtype}"
    if len(dims) != len(value.dims):
        return f"{value.name!r}: found {len(dims)} dimensions {list(dims)}, needs {len(value.dims)}"
    return None


def _describe(item: Outline) -> str:
    return f"a tensor of {item[0]}" if isinstance(item, tuple) else f"the {type(item).__name__} {item}"


def _bind_plain(
    dimension: Dimension,
    size: int,
    where: str,
    bindings: dict[int, tuple[int, str]],
    symbols: Mapping[int, Symbol],
) -> str | None:
    if isinstance(dimension, int):
        return None if size == dimension else f"{where}, needs {dimension}"
    if isinstance(dimension, SymbolReference):
        return _bind(dimension.symbol_id, size, size, where, bindings, symbols)
    return None


def _check_computed(
    dimension: Dimension,
    size: int,
    where: str,
    bindings: dict[int, tuple[int, str]],
    symbols: Mapping[int, Symbol],
) -> str | None:
    if not isinstance(dimension, Operation):
        return None
    unknown = {symbol_id for symbol_id in _symbols_in(dimension) if symbol_id not in bindings}
    known = {symbol_id: size for symbol_id, (size, _) in bindings.items()}
    if not unknown:
        needed = _evaluate_or_none(dimension, known)
        return None if needed is None or size == needed else f"{where}, needs {needed}"
    if len(unknown) > 1:
        return None
    (symbol_id,) = unknown
    solution = _solve_linear(lambda at: evaluate(dimension, {**known, symbol_id: at}), size)
    if solution is None:
        return None
    if _evaluate_or_none(dimension, {**known, symbol_id: solution}) != size:
        return f"{where}, which no value of {_name(symbol_id, symbols)} gives"
    return _bind(symbol_id, solution, size, where, bindings, symbols)


def _bind(
    symbol_id: int,
    value: int,
    size: int,
    where: str,
    bindings: dict[int, tuple[int, str]],
    symbols: Mapping[int, Symbol],
) -> str | None:
    name = _name(symbol_id, symbols)
    if symbol_id in bindings:
        bound, bound_where = bindings[symbol_id]
        return None if bound == value else f"{where}, needs {bound}: {name} is {bound} by {bound_where}"
    symbol = symbols.get(symbol_id)
    if symbol is not None:
        at_size = "" if value == size else f" ({name} = {value})"
        if value < symbol.lower:
            return f"{where}{at_size}, needs {name} to be at least {symbol.lower}"
        if symbol.upper is not None and value > symbol.upper:
            return f"{where}{at_size}, needs {name} to be at most {symbol.upper}"
    bindings[symbol_id] = (value, where)
    return None


def _evaluate_or_none(dimension: Dimension, known: Mapping[int, int]) -> int | None:
    try:
        return evaluate(dimension, known)
    except (ZeroDivisionError, ValueError):
        return None


def _solve_linear(function: Callable[[int], int], size: int) -> int | None:
    """x with function(x) nearest below `size` if function is a line of positive slope, else None."""
    try:
        start, slope = function(0), function(1) - function(0)
        if slope <= 0 or function(5) != start + 5 * slope:
            return None
    except (ZeroDivisionError, ValueError):
        return None
    return (size - start) // slope


def evaluate(dimension: Dimension, symbol_values: Mapping[int, int]) -> int:
    """Raises KeyError for a symbol without a value, ZeroDivisionError, ValueError for a power that is no size."""
    if isinstance(dimension, int):
        return dimension
    if isinstance(dimension, SymbolReference):
        return symbol_values[dimension.symbol_id]
    return _APPLY[dimension.operator]([evaluate(operand, symbol_values) for operand in dimension.operands])


def _symbols_in(dimension: Dimension) -> set[int]:
    if isinstance(dimension, SymbolReference):
        return {dimension.symbol_id}
    if isinstance(dimension, Operation):
        return {symbol_id for operand in dimension.operands for symbol_id in _symbols_in(operand)}
    return set()


def _name(symbol_id: int, symbols: Mapping[int, Symbol]) -> str:
    return symbols[symbol_id].name if symbol_id in symbols else f"symbol {symbol_id}"


def _power(operands: Sequence[int]) -> int:
    if not 0 <= operands[1] <= MAX_EXPONENT:
        raise ValueError(f"exponent {operands[1]}, needs 0 to {MAX_EXPONENT}")
    if (operands[0].bit_length() - 1) * operands[1] > MAX_BITS:
        raise ValueError(f"a power of more than {MAX_BITS} bits")
    return int(operands[0] ** operands[1])


_APPLY: Mapping[DimensionOperator, Callable[[Sequence[int]], int]] = {
    DimensionOperator.ADD: sum,
    DimensionOperator.MULTIPLY: math.prod,
    DimensionOperator.FLOOR_DIVIDE: lambda operands: operands[0] // operands[1],
    DimensionOperator.MODULO: lambda operands: operands[0] % operands[1],
    DimensionOperator.CEIL_DIVIDE: lambda operands: -(-operands[0] // operands[1]),
    DimensionOperator.POWER: _power,
    DimensionOperator.MINIMUM: min,
    DimensionOperator.MAXIMUM: max,
}
