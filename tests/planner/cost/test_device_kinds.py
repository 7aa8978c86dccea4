"""Figures of device kinds."""

import math

import pytest

from planner.cost.device_kinds import DEFAULT_KIND, DEVICE_KINDS, DeviceKind, RateClass, device_kind, rate_class
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


def test_figures_are_in_units_of_one() -> None:
    """As NVIDIA's datasheet of the H200 SXM has them."""
    assert device_kind("h200") == DeviceKind(
        float64_flops_per_second=67e12,
        float32_flops_per_second=67e12,
        float16_flops_per_second=989e12,
        float8_flops_per_second=1979e12,
        memory_bytes_per_second=4.8e12,
        node_seconds=3e-6,
    )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (Dtype.FLOAT64, RateClass.FLOAT64),
        (Dtype.COMPLEX128, RateClass.FLOAT64),
        (Dtype.FLOAT32, RateClass.FLOAT32),
        (Dtype.COMPLEX64, RateClass.FLOAT32),
        (Dtype.INT64, RateClass.FLOAT32),
        (Dtype.BOOL, RateClass.FLOAT32),
        (None, RateClass.FLOAT32),
        (Dtype.FLOAT16, RateClass.FLOAT16),
        (Dtype.BFLOAT16, RateClass.FLOAT16),
        (Dtype.FLOAT8_E4M3FN, RateClass.FLOAT8),
        (Dtype.FLOAT8_E5M2, RateClass.FLOAT8),
        (Dtype.INT8, RateClass.FLOAT8),
        (Dtype.UINT8, RateClass.FLOAT8),
    ],
)
def test_dtype_computes_at_the_rate_of_its_class(dtype: Dtype | None, expected: RateClass) -> None:
    rates = DeviceKind(
        float64_flops_per_second=1.0,
        float32_flops_per_second=2.0,
        float16_flops_per_second=3.0,
        float8_flops_per_second=4.0,
        memory_bytes_per_second=5.0,
    )
    assert rate_class(dtype) is expected
    assert rates.flops_per_second(dtype) == getattr(rates, expected.value)
