"""Sizes that torch rounds from floats are quotients of integers, and the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from operator import floordiv, mod
from pathlib import Path

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

from planner.client.export import export
from planner.client.export.roundings import as_integers
from planner.graph.ir import ValueKind
from tests.builders.case import Batch
from tests.builders.plans import plan_of
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program
from tests.builders.staged import load_stages, run_stages
from tests.builders.weight_files import WeightFiles
from tests.nightly import nightly

SIZE = sympy.Symbol("s0", integer=True, positive=True)
FLOAT = ToFloat(SIZE)
QUOTIENTS = [
    (FLOAT * 0.5, lambda size: size * 0.5),
    (FLOAT * 1.5, lambda size: size * 1.5),
    (FLOAT * 0.375 - 2.5, lambda size: size * 0.375 - 2.5),
    (2.5 - FLOAT * 0.375, lambda size: 2.5 - size * 0.375),
    (FloatTrueDiv(FLOAT - 0.5, sympy.Float(1.0)), lambda size: (size - 0.5) / 1.0),
    (FloatTrueDiv(FLOAT - 0.5, sympy.Float(0.3125)), lambda size: (size - 0.5) / 0.3125),
    (FloatTrueDiv(FLOAT, sympy.Float(7.0)), lambda size: size / 7.0),
    (IntTrueDiv(SIZE, 2), lambda size: size / 2),
    (IntTrueDiv(SIZE + 5, 6), lambda size: (size + 5) / 6),
    (IntTrueDiv(SIZE, 49) * 0.25, lambda size: (size / 49) * 0.25),
]
ROUNDINGS = [(FloorToInt, math.floor), (CeilToInt, math.ceil), (TruncToInt, math.trunc), (RoundToInt, round)]


@pytest.mark.slow
@pytest.mark.parametrize("quotient", QUOTIENTS, ids=lambda quotient: str(quotient[0]))
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda rounding: rounding[0].__name__)
def test_what_python_rounds_at_each_size(
    rounding: tuple[type[sympy.Function], Callable[[float], int]],
    quotient: tuple[sympy.Expr, Callable[[int], float]],
) -> None:
    of_torch, of_python = rounding
    expression, of_size = quotient
    integers = as_integers(of_torch(expression))
    assert integers is not None
    assert not integers.atoms(sympy.Float, ToFloat)
    sizes = [*range(1, 120), 4095, 4096, 4097, 99999, (1 << 31) - 1]
    assert [int(integers.subs(SIZE, size)) for size in sizes] == [of_python(of_size(size)) for size in sizes]


@pytest.mark.parametrize(
    "expression",
    [
        FLOAT * 0.7,
        FLOAT * 0.29,
        FLOAT * -1.1,
        FLOAT * 0.300001,
        FLOAT * 0.1 + 0.5,
        (FLOAT + 1.0) * 0.3,
        FloatTrueDiv(FLOAT, sympy.Float(0.3)),
        IntTrueDiv(SIZE, 3) * 0.1,
        FLOAT * (1 + 2.0**-40),
        FLOAT * 2.0**-15 + 2.0**-16,
        FLOAT + sympy.oo,
        IntTrueDiv(SIZE, 3) * 1.5,
        IntTrueDiv(SIZE, 3) + 0.5,
        FloatTrueDiv(FloatTrueDiv(FLOAT, sympy.Float(3.0)), sympy.Float(5.0)),
        FLOAT * FLOAT,
        IntTrueDiv(SIZE, SIZE + 1),
    ],
    ids=str,
)
def test_what_float64_may_round_on_the_way_is_left(expression: sympy.Expr) -> None:
    assert as_integers(FloorToInt(expression)) is None


@pytest.mark.slow
@pytest.mark.parametrize("denominators", [(10, 7), *nightly([((3, 16, 100),)])])
def test_factors_whose_products_end_on_the_same_integers_as_their_fractions(denominators: tuple[int, ...]) -> None:
    """Every size that could end elsewhere: the fraction's whole products, from small to near 2^31."""
    factors = sorted({numerator / denominator for denominator in denominators for numerator in range(1, 251)})
    carried = 0
    for number, factor in enumerate(factors):
        fraction = Fraction(factor).limit_denominator(10_000)
        multiples = sorted({*range(1, 200), *(2**power + step for power in range(8, 28) for step in (-1, 0, 1))})
        halves = [fraction.denominator * multiple // 2 for multiple in multiples]
        sizes = [size for half in halves for size in (half, 2 * half) if 0 < size < 2**31]
        # Rounding up and towards zero are made of rounding down; sympy takes 30 ms for each that rounds halves to even.
        for of_torch, of_python in ROUNDINGS if number % 25 == 0 else ROUNDINGS[: 1 + 2 * (number % 3 == 0)]:
            integers = as_integers(of_torch(FLOAT * factor))
            expected = [of_python(size * factor) for size in sizes]
            if integers is None:
                # Refused is nothing that comes out the same: rounding down, at least.
                assert of_torch is not FloorToInt or expected != [of_python(size * fraction) for size in sizes], factor
                continue
            evaluate = sympy.lambdify(SIZE, integers, modules=[{"FloorDiv": floordiv, "PythonMod": mod}, "math"])
            assert [int(evaluate(size)) for size in sizes] == expected, (factor, of_torch)
            carried += 1
    assert carried > len(factors)


class _Body(nn.Module):
    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = body

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.body(picture)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        lambda picture: functional.interpolate(picture, scale_factor=0.5, mode="bilinear"),
        lambda picture: functional.interpolate(picture, scale_factor=1.5),
        lambda picture: functional.interpolate(picture, scale_factor=0.3, mode="bicubic"),
        lambda picture: functional.interpolate(picture, scale_factor=1.7, mode="area"),
        lambda picture: picture[:, :, : math.ceil(picture.shape[2] / 2)] * 2,
        lambda picture: picture[:, :, : round(picture.shape[2] / 4)] * 2,
        lambda picture: picture.mean(2) + torch.arange(0.5, picture.shape[3]) / picture.shape[3],
    ],
    ids=["half", "one and a half", "three tenths", "17 tenths", "upper half", "nearest quarter", "centres of pixels"],
)
def test_pictures_of_other_sizes(body: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = _Body(body)
    shapes = ({2: Dim.AUTO, 3: Dim.AUTO},)
    exported = export(module, (torch.randn(2, 3, 16, 16),), dynamic_shapes=shapes)
    program = reload(exported, tmp_path)

    for height, width in ((16, 16), (10, 13), (22, 7), (33, 34)):
        batch = Batch(args=(torch.randn(2, 3, height, width),))
        assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))


@pytest.mark.slow
def test_a_cut_between_a_size_and_what_is_rounded_of_it(tmp_path: Path) -> None:
    """The float crosses, and the stage after the cut rounds it: the daemon cannot know to what."""
    torch.manual_seed(0)
    module = _Body(lambda picture: functional.interpolate(picture, scale_factor=0.5, mode="area") * 2)
    shapes = ({2: Dim.AUTO, 3: Dim.AUTO},)
    exported = export(module, (torch.randn(2, 3, 16, 16),), dynamic_shapes=shapes)
    files = WeightFiles.of(exported.save_weights(tmp_path))
    graph = exported.graph
    floats = {value.id for value in graph.values if value.kind is ValueKind.SYM_FLOAT}
    cuts = [at for at in range(1, len(graph.nodes)) if floats.intersection(graph.nodes[at - 1].outputs)]
    assert cuts
    for cut in cuts:
        plan = plan_of(graph, [int(node >= cut) for node in range(len(graph.nodes))])
        stages = load_stages(graph, plan, files)
        for height, width in ((16, 16), (11, 26)):
            batch = Batch(args=(torch.randn(2, 3, height, width),))
            assert_bitwise_equal(run_stages(graph, stages, batch), run_module(module, batch))
