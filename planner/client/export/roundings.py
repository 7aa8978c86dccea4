"""Sizes that are rounded from floats, such as half of a height or `arange(0.5, n)`, as quotients of integers.

torch computes them in float64. A quotient says the same where no step before the rounding can itself round: sums of
sizes and their products with short binary fractions are exact, and one division by an integer ends on no integer that
the true quotient is not. A size times 0.3 is neither: 10 * 0.3 is 3.0 in float64, and less by the factor's own digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy
from torch.utils._sympy import functions

# Constants are numerators and denominators up to this, so that their products with sizes below 2^31 have 53 bits.
_MAX_CONSTANT = 1 << 20


@dataclass(frozen=True, slots=True)
class _Quotient:
    """`numerator` is of integers, `denominator` a positive one. `is_exact`: float64 has not rounded it yet."""

    numerator: sympy.Expr
    denominator: int
    is_exact: bool


def as_integers(rounding: sympy.Basic) -> sympy.Expr | None:
    """What one of torch's functions from a float to an integer is without floats; None if that may differ."""
    combine = _ROUNDINGS.get(rounding.func)
    quotient = _quotient(rounding.args[0]) if combine is not None else None
    if combine is None or quotient is None:
        return None
    return combine(quotient.numerator, sympy.Integer(quotient.denominator))


def _quotient(number: sympy.Basic) -> _Quotient | None:
    """None where float64 may come to something else."""
    if isinstance(number, sympy.Number):
        return _constant(number)
    if number.func is functions.ToFloat or number.is_integer:
        (integer,) = number.args if number.func is functions.ToFloat else (number,)
        return _Quotient(integer, 1, is_exact=True)
    combine = _COMBINATIONS.get(number.func)
    if combine is None:
        return None
    operands = [_quotient(operand) for operand in number.args]
    result = operands[0]
    for operand in operands[1:]:
        result = combine(result, operand) if result is not None and operand is not None else None
    return result


def _constant(number: sympy.Number) -> _Quotient | None:
    if not number.is_finite:
        return None
    fraction = Fraction(float(number))
    if max(abs(fraction.numerator), fraction.denominator) > _MAX_CONSTANT:
        return None
    return _Quotient(sympy.Integer(fraction.numerator), fraction.denominator, is_exact=True)


def _sum(a: _Quotient, b: _Quotient) -> _Quotient | None:
    if not (a.is_exact and b.is_exact) or a.denominator * b.denominator > _MAX_CONSTANT:
        return None
    numerator = a.numerator * b.denominator + b.numerator * a.denominator
    return _Quotient(numerator, a.denominator * b.denominator, is_exact=True)


def _product(a: _Quotient, b: _Quotient) -> _Quotient | None:
    if not (a.numerator.is_number or b.numerator.is_number):
        return None
    if not (a.is_exact and b.is_exact) and not (_is_power_of_two(a) or _is_power_of_two(b)):
        return None
    return _Quotient(a.numerator * b.numerator, a.denominator * b.denominator, is_exact=a.is_exact and b.is_exact)


def _division(a: _Quotient, b: _Quotient) -> _Quotient | None:
    """By a positive constant alone: what a size divides may be large, and small where it is divided."""
    if not isinstance(b.numerator, sympy.Integer) or b.numerator <= 0 or not (a.is_exact or _is_power_of_two(b)):
        return None
    divisor = int(b.numerator)
    numerator = a.numerator * b.denominator
    return _Quotient(numerator, a.denominator * divisor, is_exact=a.is_exact and _is_power_of_two(b))


def _is_power_of_two(constant: _Quotient) -> bool:
    numerator = constant.numerator
    return isinstance(numerator, sympy.Integer) and int(abs(numerator)).bit_count() == 1


def _floor(numerator: sympy.Expr, denominator: sympy.Integer) -> sympy.Expr:
    return functions.FloorDiv(numerator, denominator)


def _ceil(numerator: sympy.Expr, denominator: sympy.Integer) -> sympy.Expr:
    return -_floor(-numerator, denominator)


def _truncate(numerator: sympy.Expr, denominator: sympy.Integer) -> sympy.Expr:
    """Towards zero: down above it, up below it."""
    if numerator.is_nonnegative:
        return _floor(numerator, denominator)
    return sympy.Max(_floor(numerator, denominator), 0) + sympy.Min(_ceil(numerator, denominator), 0)


def _round(numerator: sympy.Expr, denominator: sympy.Integer) -> sympy.Expr:
    """Halves to the even integer, as Python does."""
    up = functions.FloorDiv(2 * numerator + denominator, 2 * denominator)
    is_half = 1 - sympy.Min(functions.PythonMod(2 * numerator + denominator, 2 * denominator), 1)
    return up - is_half * functions.PythonMod(up, 2)


_COMBINATIONS: Mapping[type, Callable[[_Quotient, _Quotient], _Quotient | None]] = {
    sympy.Add: _sum,
    sympy.Mul: _product,
    functions.IntTrueDiv: _division,
    functions.FloatTrueDiv: _division,
}
_ROUNDINGS: Mapping[type, Callable[[sympy.Expr, sympy.Integer], sympy.Expr]] = {
    functions.FloorToInt: _floor,
    functions.CeilToInt: _ceil,
    functions.TruncToInt: _truncate,
    functions.RoundToInt: _round,
}
