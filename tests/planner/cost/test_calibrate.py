"""Rates fitted to synthetic times: those that made the times come back."""

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.calibrate import MIN_NODES, calibrate
from planner.cost.device_kinds import DeviceKind, device_kind
from planner.cost.kind_costs import roofline_seconds
from planner.cost.work import Work
from planner.graph.ir import Dtype

CPU = replace(device_kind("cpu"), float32_flops_per_second=6e10, memory_bytes_per_second=9e9, node_seconds=7e-6)
FAST_CPU = replace(device_kind("cpu"), float32_flops_per_second=2e12, memory_bytes_per_second=1e11, node_seconds=1e-6)
GPU = replace(
    device_kind("h200"),
    float16_flops_per_second=6e14,
    float32_flops_per_second=3e13,
    memory_bytes_per_second=3e12,
    node_seconds=6e-6,
)


def random_work(seed: int, num_nodes: int, dtypes: tuple[Dtype, ...]) -> Work:
    random = np.random.default_rng(seed)
    bytes_moved = 10 ** random.uniform(3, 9, num_nodes)
    intensity = 10 ** random.uniform(0, 4, num_nodes)
    return Work(
        flops=np.where(random.random(num_nodes) < 0.4, bytes_moved * intensity, 0.0),
        bytes_moved=bytes_moved,
        calls=np.ones(num_nodes),
        dtypes=tuple(dtypes[index] for index in random.integers(len(dtypes), size=num_nodes)),
        shapes={},
    )


@pytest.mark.parametrize(
    ("kind", "truth", "dtypes"),
    [
        ("cpu", CPU, (Dtype.FLOAT32,)),
        ("cpu", FAST_CPU, (Dtype.FLOAT32,)),
        ("h200", GPU, (Dtype.FLOAT32, Dtype.BFLOAT16)),
        ("abacus", GPU, (Dtype.FLOAT32, Dtype.BFLOAT16)),
    ],
)
def test_known_rates_come_back(kind: str, truth: DeviceKind, dtypes: tuple[Dtype, ...]) -> None:
    work = random_work(1, 300, dtypes)
    random = np.random.default_rng(2)
    seconds = roofline_seconds(work, truth) * np.exp(random.normal(0, 0.1, 300))
    outliers = random.random(300) < 0.05
    calibration = calibrate(kind, [(work, np.where(outliers, 10 * seconds, seconds))])
    assert calibration is not None
    assert calibration.median_error < 0.12
    for dtype in dtypes:
        assert calibration.rates.flops_per_second(dtype) == pytest.approx(truth.flops_per_second(dtype), rel=0.1)
    assert calibration.rates.memory_bytes_per_second == pytest.approx(truth.memory_bytes_per_second, rel=0.1)
    assert calibration.rates.node_seconds == pytest.approx(truth.node_seconds, rel=0.1)


def test_exact_times_give_exact_rates() -> None:
    work = random_work(3, 200, (Dtype.FLOAT32,))
    calibration = calibrate("cpu", [(work, roofline_seconds(work, CPU))])
    assert calibration is not None
    assert calibration.rates.float32_flops_per_second == pytest.approx(6e10, rel=1e-6)
    assert calibration.median_error < 1e-6


def test_dtype_that_was_not_measured_keeps_its_ratio() -> None:
    work = random_work(4, 200, (Dtype.FLOAT32,))
    calibration = calibrate("h200", [(work, roofline_seconds(work, GPU))])
    assert calibration is not None
    nominal = device_kind("h200")
    before = nominal.float16_flops_per_second / nominal.float32_flops_per_second
    assert calibration.rates.float16_flops_per_second / calibration.rates.float32_flops_per_second == pytest.approx(
        before
    )


def test_nodes_without_a_time_or_without_work_do_not_count() -> None:
    work = random_work(5, 200, (Dtype.FLOAT32,))
    seconds = roofline_seconds(work, CPU)
    seconds[::2] = np.nan
    calibration = calibrate("cpu", [(replace(work, calls=np.where(np.arange(200) % 4 == 1, 0.0, 1.0)), seconds)])
    assert calibration is not None
    assert calibration.num_nodes == 50


def test_several_graphs_are_fitted_together() -> None:
    works = [random_work(seed, 40, (Dtype.FLOAT32,)) for seed in range(5)]
    calibration = calibrate("cpu", [(work, roofline_seconds(work, CPU)) for work in works])
    assert calibration is not None
    assert calibration.num_nodes == 200


def test_too_few_nodes_fit_nothing() -> None:
    work = random_work(6, MIN_NODES - 1, (Dtype.FLOAT32,))
    assert calibrate("cpu", [(work, roofline_seconds(work, CPU))]) is None


def test_only_equal_nodes_give_finite_rates() -> None:
    work = Work(
        flops=np.zeros(20),
        bytes_moved=np.full(20, 4096.0),
        calls=np.ones(20),
        dtypes=(Dtype.FLOAT32,) * 20,
        shapes={},
    )
    calibration = calibrate("cpu", [(work, np.full(20, 5e-6))])
    assert calibration is not None
    assert calibration.median_error < 1e-3
    assert np.isfinite([calibration.rates.memory_bytes_per_second, calibration.rates.node_seconds]).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_outliers_do_not_drag_the_rates_along(seed: int) -> None:
    """Three in ten nodes take five times as long as the rates say: that moves the rates by a tenth, not by a third."""
    work = random_work(seed, 200, (Dtype.FLOAT32,))
    seconds = roofline_seconds(work, CPU)
    outliers = np.random.default_rng(seed + 50).random(200) < 0.3
    calibration = calibrate("cpu", [(work, np.where(outliers, 5 * seconds, seconds))])
    assert calibration is not None
    assert calibration.rates.float32_flops_per_second == pytest.approx(CPU.float32_flops_per_second, rel=0.15)
    assert calibration.rates.memory_bytes_per_second == pytest.approx(CPU.memory_bytes_per_second, rel=0.15)
    assert calibration.rates.node_seconds == pytest.approx(CPU.node_seconds, rel=0.3)


def test_error_is_what_half_of_the_nodes_are_within_of_their_own_time() -> None:
    work = random_work(7, 101, (Dtype.FLOAT32,))
    seconds = roofline_seconds(work, CPU) * np.exp(np.random.default_rng(8).normal(0, 0.4, 101))
    calibration = calibrate("cpu", [(work, seconds)])
    assert calibration is not None
    errors = np.abs(roofline_seconds(work, calibration.rates) - seconds) / seconds
    assert calibration.median_error == pytest.approx(np.median(errors), rel=1e-9)


def test_cost_that_the_times_deny_becomes_small_and_stays_positive() -> None:
    """Small transfers take less than their share, so that a straight line through the times starts below nothing."""
    bytes_moved = np.geomspace(1e6, 1e9, 40)
    work = Work(flops=np.zeros(40), bytes_moved=bytes_moved, calls=np.ones(40), dtypes=(Dtype.FLOAT32,) * 40, shapes={})
    calibration = calibrate("cpu", [(work, (bytes_moved - 5e5) / 1e10)])
    assert calibration is not None
    assert calibration.rates.memory_bytes_per_second == pytest.approx(1e10, rel=0.1)
    assert 0 < calibration.rates.node_seconds < 1e-6


def test_times_of_nothing_do_not_count() -> None:
    work = random_work(9, 30, (Dtype.FLOAT32,))
    seconds = roofline_seconds(work, CPU)
    seconds[:10] = 0.0
    calibration = calibrate("cpu", [(work, seconds)])
    assert calibration is not None
    assert calibration.num_nodes == 20
    assert calibration.rates.memory_bytes_per_second == pytest.approx(CPU.memory_bytes_per_second, rel=1e-3)


def test_eight_nodes_fit_rates_and_nothing_measured_fits_none() -> None:
    work = random_work(10, 8, (Dtype.FLOAT32,))
    calibration = calibrate("cpu", [(work, roofline_seconds(work, CPU))])
    assert calibration is not None
    assert (calibration.num_nodes, calibration.device_kind, calibration.profile_id) == (8, "cpu", "")
    assert calibrate("cpu", []) is None


def test_calls_of_a_node_each_cost_their_start() -> None:
    work = random_work(11, 100, (Dtype.FLOAT32,))
    work = replace(work, calls=np.where(np.arange(100) % 2 == 0, 1.0, 5.0))
    calibration = calibrate("cpu", [(work, roofline_seconds(work, CPU))])
    assert calibration is not None
    assert calibration.rates.node_seconds == pytest.approx(CPU.node_seconds, rel=1e-3)
