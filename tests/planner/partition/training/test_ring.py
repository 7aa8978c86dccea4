"""What a ring all-reduce takes, by hand: 2(n - 1) hops of one latency and an n-th of the bytes each."""

from __future__ import annotations

import pytest

from planner.partition.training.memory import ring_seconds


@pytest.mark.parametrize(
    ("num_holders", "seconds"),
    [
        (2, 2 * (0.5 + 600 / 100)),
        (3, 4 * (0.5 + 400 / 100)),
        (4, 6 * (0.5 + 300 / 100)),
        (12, 22 * (0.5 + 100 / 100)),
    ],
)
def test_each_hop_carries_a_share(num_holders: int, seconds: float) -> None:
    assert ring_seconds(1200, num_holders, 0.5, 1 / 100) == pytest.approx(seconds, rel=1e-12)


def test_a_lone_holder_and_no_bytes_are_free() -> None:
    assert ring_seconds(1200, 1, 0.5, 1 / 100) == 0.0
    assert ring_seconds(0, 4, 0.5, 1 / 100) == 0.0
