"""Figures of device kinds."""

import math

import pytest

from planner.cost.device_kinds import DEFAULT_KIND, DEVICE_KINDS, device_kind
from planner.graph.ir import Dtype


@pytest.mark.parametrize("name", sorted(DEVICE_KINDS))
def test_every_rate_is_positive(name: str) -> None:
    kind = device_kind(name)
    rates = [kind.flops_per_second(dtype) for dtype in (*Dtype, None)]
    assert all(math.isfinite(rate) and rate > 0 for rate in (*rates, kind.memory_bytes_per_second))


def test_unknown_kind_has_the_documented_default() -> None:
    assert device_kind("abacus") is DEFAULT_KIND


def test_names_are_case_insensitive() -> None:
    assert device_kind("H200") is DEVICE_KINDS["h200"]


def test_sixteen_bits_are_faster_than_double_precision() -> None:
    h200 = device_kind("h200")
    assert h200.flops_per_second(Dtype.BFLOAT16) > h200.flops_per_second(Dtype.FLOAT64)
