"""Draws are spread as they say."""

from __future__ import annotations

import numpy as np
import pytest

from planner.partition.placement.draws_kernel import EXPONENTIAL, SEED, draw


def test_the_exponential_table_has_mean_one() -> None:
    assert EXPONENTIAL.mean() == pytest.approx(1.0)
    assert (np.diff(EXPONENTIAL) > 0).all()


def test_numbers_below_a_limit_are_about_equally_many() -> None:
    random = np.array([SEED], dtype=np.uint64)
    counts = np.bincount([draw(random, 7) for _ in range(7_000)], minlength=7)
    assert counts.size == 7
    assert (np.abs(counts - 1_000) < 150).all()
