"""Arithmetic on symbolic scalars, which are plain Python numbers when a stage runs.

Each function takes and gives numbers of bounded size only: on anything else (`[x] * 2**40`, `2 ** 2**40`) Python's own
operators would fill the memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stage_daemon.errors import InvalidGraph

_LARGEST_INTEGER = 2**63
_MAX_EXPONENT = 64


def _number(value: object) -> Any:
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) <= _LARGEST_INTEGER:
        return value
    if isinstance(value, int):
        raise InvalidGraph(f"scalar arithmetic: a number of {value.bit_length()} bits, at most 64 are allowed")
    raise InvalidGraph(f"scalar arithmetic: works on numbers, not on {type(value).__name__}")


def scalar_abs(a: object) -> Any:
    return _number(abs(_number(a)))


def scalar_add(a: object, b: object) -> Any:
    return _number(_number(a) + _number(b))


def scalar_sub(a: object, b: object) -> Any:
    return _number(_number(a) - _number(b))


def scalar_mul(a: object, b: object) -> Any:
    return _number(_number(a) * _number(b))


def scalar_floordiv(a: object, b: object) -> Any:
    return _number(_number(a) // _number(b))


def scalar_truediv(a: object, b: object) -> Any:
    return _number(_number(a) / _number(b))


def scalar_mod(a: object, b: object) -> Any:
    return _number(_number(a) % _number(b))


def scalar_pow(a: object, b: object) -> Any:
    if isinstance(b, int) and abs(b) > _MAX_EXPONENT:
        raise InvalidGraph(f"scalar arithmetic: exponent {b}, at most {_MAX_EXPONENT} is allowed")
    return _number(_number(a) ** _number(b))


def scalar_neg(a: object) -> Any:
    return _number(-_number(a))


def scalar_eq(a: object, b: object) -> bool:
    return bool(_number(a) == _number(b))


def scalar_ne(a: object, b: object) -> bool:
    return bool(_number(a) != _number(b))


def scalar_lt(a: object, b: object) -> bool:
    return bool(_number(a) < _number(b))


def scalar_le(a: object, b: object) -> bool:
    return bool(_number(a) <= _number(b))


def scalar_gt(a: object, b: object) -> bool:
    return bool(_number(a) > _number(b))


def scalar_ge(a: object, b: object) -> bool:
    return bool(_number(a) >= _number(b))


def scalar_and(a: object, b: object) -> Any:
    return _number(operator.and_(_number(a), _number(b)))


def scalar_or(a: object, b: object) -> Any:
    return _number(operator.or_(_number(a), _number(b)))


def scalar_not(a: object) -> bool:
    return not _number(a)


def scalar_ceil(a: object) -> Any:
    return _number(math.ceil(_number(a)))


def scalar_floor(a: object) -> Any:
    return _number(math.floor(_number(a)))


def scalar_trunc(a: object) -> Any:
    return _number(math.trunc(_number(a)))


def scalar_round(a: object, digits: object = None) -> Any:
    return _number(round(_number(a), None if digits is None else int(_number(digits))))


def scalar_to_float(a: object) -> float:
    return float(_number(a))


def scalar_to_int(a: object) -> int:
    return int(_number(int(_number(a))))


def scalar_if(condition: object, a: object, b: object) -> Any:
    return _number(a) if _number(condition) else _number(b)


def scalar_max(a: object, b: object) -> Any:
    return _as_one_type(max, _number(a), _number(b))


def scalar_min(a: object, b: object) -> Any:
    return _as_one_type(min, _number(a), _number(b))


def _as_one_type(choose: Callable[..., Any], a: Any, b: Any) -> Any:
    """A float if either is one, as torch.sym_max and torch.sym_min give it."""
    number = choose(a, b)
    return float(number) if isinstance(a, float) or isinstance(b, float) else number


def scalar_sum(terms: Sequence[object]) -> Any:
    return _number(sum(_number(term) for term in terms))


# By the names in operators.txt: (function, fewest arguments, most arguments).
SCALAR_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "abs": (scalar_abs, 1, 1),
    "add": (scalar_add, 2, 2),
    "and_": (scalar_and, 2, 2),
    "ceil": (scalar_ceil, 1, 1),
    "eq": (scalar_eq, 2, 2),
    "floor": (scalar_floor, 1, 1),
    "floordiv": (scalar_floordiv, 2, 2),
    "ge": (scalar_ge, 2, 2),
    "gt": (scalar_gt, 2, 2),
    "le": (scalar_le, 2, 2),
    "lt": (scalar_lt, 2, 2),
    "mod": (scalar_mod, 2, 2),
    "mul": (scalar_mul, 2, 2),
    "ne": (scalar_ne, 2, 2),
    "neg": (scalar_neg, 1, 1),
    "not_": (scalar_not, 1, 1),
    "or_": (scalar_or, 2, 2),
    "pow": (scalar_pow, 2, 2),
    "round": (scalar_round, 1, 2),
    "sub": (scalar_sub, 2, 2),
    "sym_float": (scalar_to_float, 1, 1),
    "sym_int": (scalar_to_int, 1, 1),
    "sym_ite": (scalar_if, 3, 3),
    "sym_max": (scalar_max, 2, 2),
    "sym_min": (scalar_min, 2, 2),
    "sym_not": (scalar_not, 1, 1),
    "sym_sum": (scalar_sum, 1, 1),
    "truediv": (scalar_truediv, 2, 2),
    "trunc": (scalar_trunc, 1, 1),
}
