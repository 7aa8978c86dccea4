"""Sizes that are rounded from floats, such as half of a height or `arange(0.5, n)`, as quotients of integers.

torch computes them in float64. A quotient says the same where no step before the rounding can itself round: sums of
sizes and their products with short binary fractions are exact, and one division by an integer ends on no integer that
the true quotient is not.

A size times 0.3 is rounded twice, as 0.3 itself and as a product. Let the factor be p/q (1 + e), and p times a size at
most 2^51. Off the integers both errors are below the distance 1/q to the next one. At an integer k between 2^j and
2^(j+1) the product is k (1 + e), and float64 rounds it to k where k |e| is at most half of the distance 2^(j-52) to the
number beside: for any k where |e| <= 2^-54. So 0.3 and 1.7 are 3/10 and 17/10 for every size; 1.1 is a little more than
11/10, whose products still round down to the same integers; 0.7 is less: 90 * 0.7 is 62.99999999999999.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy
from torch.utils._sympy import functions

# Constants are numerators and denominators up to this, so that their products with sizes below 2^31 have 53 bits.
_MAX_CONSTANT = 1 << 20
# Of fractions that have no short binary form: four decimals.
_MAX_DENOMINATOR = 10_000
_ROUNDED_BACK = Fraction(1, 1 << 54)


@dataclass(frozen=True, slots=True)
class _Quotient:
    """`numerator` is of integers, `denominator` a positive one. `is_exact`: float64 has not rounded it yet.

    `is_size`: nothing was computed yet. `may_exceed`: float64 may come to a little more than an integer that it is.
    """

    numerator: sympy.Expr
    denominator: int
    is_exact: bool
    is_size: bool = False
    may_exceed: bool = False


def as_integers(rounding: sympy.Basic) -> sympy.Expr | None:
    """What one of torch's functions from a float to an integer is without floats; None if that may differ."""
    combine = _ROUNDINGS.get(rounding.func)
    quotient = _quotient(rounding.args[0]) if combine is not None else None
    if combine is None or quotient is None:
        return None
    if quotient.may_exceed and not (combine is _floor or (combine is _truncate and quotient.numerator.is_nonnegative)):
        return None
    return combine(quotient.numerator, sympy.Integer(quotient.denominator))


def _quotient(number: sympy.Basic) -> _Quotient | None:
    """None where float64 may come to something else."""
    if isinstance(number, sympy.Number):
        return _constant(number)
    if number.func is functions.ToFloat or number.is_integer:
        (integer,) = number.args if number.func is functions.ToFloat else (number,)
        return _Quotient(integer, 1, is_exact=True, is_size=True)
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
    exact = Fraction(float(number))
    fraction = exact.limit_denominator(_MAX_DENOMINATOR) if exact.denominator > _MAX_CONSTANT else exact
    if fraction == 0 or abs(fraction.numerator) > _MAX_CONSTANT:
        return _Quotient(sympy.Integer(0), 1, is_exact=True) if exact == 0 else None
    error = exact / fraction - 1
    if error < -_ROUNDED_BACK or error > 2 * _ROUNDED_BACK or (error > _ROUNDED_BACK and fraction < 0):
        return None
    return _Quotient(
        sympy.Integer(fraction.numerator),
        fraction.denominator,
        is_exact=error == 0,
        may_exceed=error > _ROUNDED_BACK,
    )


def _sum(a: _Quotient, b: _Quotient) -> _Quotient | None:
    if not (a.is_exact and b.is_exact) or a.denominator * b.denominator > _MAX_CONSTANT:
        return None
    numerator = a.numerator * b.denominator + b.numerator * a.denominator
    return _Quotient(numerator, a.denominator * b.denominator, is_exact=True)


def _product(a: _Quotient, b: _Quotient) -> _Quotient | None:
    if not (a.numerator.is_number or b.numerator.is_number):
        return None
    for size, factor in ((a, b), (b, a)):
        if size.is_size and factor.numerator.is_number:
            numerator = size.numerator * factor.numerator
            return _Quotient(numerator, factor.denominator, factor.is_exact, may_exceed=factor.may_exceed)
    if not (a.is_exact and b.is_exact) and not (_is_power_of_two(a) or _is_power_of_two(b)):
        return None
    return _Quotient(a.numerator * b.numerator, a.denominator * b.denominator, is_exact=a.is_exact and b.is_exact)


def _division(a: _Quotient, b: _Quotient) -> _Quotient | None:
    """By a positive constant alone: what a size divides may be large, and small where it is divided."""
    if not b.is_exact or not isinstance(b.numerator, sympy.Integer) or b.numerator <= 0:
        return None
    if not (a.is_exact or _is_power_of_two(b)):
        return None
    divisor = int(b.numerator)
    numerator = a.numerator * b.denominator
    return _Quotient(numerator, a.denominator * divisor, is_exact=a.is_exact and _is_power_of_two(b))


def _is_power_of_two(constant: _Quotient) -> bool:
    numerator = constant.numerator
    return constant.is_exact and isinstance(numerator, sympy.Integer) and int(abs(numerator)).bit_count() == 1


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
