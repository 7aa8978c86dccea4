"""Scalar arithmetic is Python's on numbers, and refuses what would fill the memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.scalars import SCALAR_FUNCTIONS
from tests.random_examples import random_examples

SMALL = st.integers(-(2**20), 2**20)
REFERENCES: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "and_": operator.and_,
    "or_": operator.or_,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "sym_max": torch.sym_max,
    "sym_min": torch.sym_min,
}


@pytest.mark.parametrize("name", REFERENCES)
@random_examples(20)
@given(a=SMALL, b=SMALL)
def test_on_integers_it_is_pythons(name: str, a: int, b: int) -> None:
    assume(b != 0)
    assert SCALAR_FUNCTIONS[name][0](a, b) == REFERENCES[name](a, b)


def test_maximum_of_mixed_numbers_is_a_float() -> None:
    assert isinstance(SCALAR_FUNCTIONS["sym_max"][0](3, 2.5), float)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("abs", (-3,), 3),
        ("neg", (3,), -3),
        ("not_", (False,), True),
        ("sym_not", (True,), False),
        ("ceil", (2.1,), 3),
        ("floor", (-2.1,), -3),
        ("trunc", (-2.9,), -2),
        ("round", (2.567, 1), 2.6),
        ("pow", (3, 4), 81),
        ("sym_float", (3,), 3.0),
        ("sym_int", (3.9,), 3),
        ("sym_int", (-3.9,), -3),
        ("sym_ite", (True, 1, 2), 1),
        ("sym_ite", (False, 1, 2), 2),
        ("round", (2.5,), 2),
        ("floordiv", (-7, 2), -4),
        ("mod", (-7, 2), 1),
        ("truediv", (7, 2), 3.5),
        ("pow", (2, 62), 2**62),
        ("pow", (2.0, 64), 2.0**64),
        ("pow", (2, -1), 0.5),
        ("add", (2**62, 2**62), 2**63),
        ("neg", (2**63,), -(2**63)),
        ("sym_sum", ([1, 2, 3],), 6),
    ],
)
def test_the_others(name: str, arguments: tuple[Any, ...], expected: float) -> None:
    scalar = SCALAR_FUNCTIONS[name][0](*arguments)
    assert scalar == expected
    assert type(scalar) is type(expected)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mul", ([0], 2**40)),
        ("mul", ("a", 2**40)),
        ("mul", (torch.ones(2), 2)),
        ("pow", (2, 2**40)),
        ("pow", (2**62, 64)),
        ("pow", (1, 65)),
        ("pow", (1, -65)),
        ("add", (2**62, 2**62 + 1)),
        ("sub", (-(2**62), 2**62 + 1)),
        ("abs", (-(2**63) - 1,)),
        ("eq", (2**64, 0)),
        ("sym_sum", ([2**62, 2**62, 1],)),
        ("sym_float", ("1",)),
        ("mul", (2**62, 2**62)),
        ("add", ((1,), (2,))),
    ],
    ids=str,
)
def test_what_is_no_bounded_number_is_refused(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidGraph, match="scalar arithmetic"):
        SCALAR_FUNCTIONS[name][0](*arguments)


def test_infinity_is_a_number() -> None:
    assert SCALAR_FUNCTIONS["neg"][0](math.inf) == -math.inf
