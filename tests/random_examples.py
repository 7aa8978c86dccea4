"""Which random examples a test runs: a fixed set in `make test`, more in `make test-nightly`, others in `make fuzz`.

Without PLANNER_FUZZ_SEED each test draws the same examples in every run, so a red run is red again. With it, the number
seeds what is drawn. PLANNER_FUZZ_FACTOR times as many are drawn, with a seed and without. A counterexample that fuzzing
finds is kept as an `@example` or as a plain test.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck

FUZZ_SEED = int(os.environ["PLANNER_FUZZ_SEED"]) if os.environ.get("PLANNER_FUZZ_SEED") else None
FUZZ_FACTOR = int(os.environ.get("PLANNER_FUZZ_FACTOR", "1"))
# Seeds of different fuzzing runs do not overlap.
SEEDS_PER_RUN = 1_000_000


def random_examples(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Runs a `@given` test on `count` examples, and marks it as one for `make fuzz`. Stands above `@given`.

    No deadline and no health check of speed: a loaded machine is slow without anything being wrong.
    """
    settings = hypothesis.settings(
        max_examples=count * FUZZ_FACTOR,
        derandomize=FUZZ_SEED is None,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        seeded = test if FUZZ_SEED is None else hypothesis.seed(FUZZ_SEED)(test)
        return pytest.mark.fuzz(settings(seeded))  # type: ignore[no-any-return]

    return decorate


def random_seeds(count: int) -> range:
    """For a test that seeds a generator of its own: `count` numbers, others in each fuzzing run. Mark it `fuzz`."""
    if FUZZ_SEED is None:
        return range(count * FUZZ_FACTOR)
    first = FUZZ_SEED * SEEDS_PER_RUN
    return range(first, first + count * FUZZ_FACTOR)
