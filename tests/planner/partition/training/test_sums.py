"""What a sum of gradients over devices takes, by hand: n - 1 messages to the first of them, and n - 1 back."""

from __future__ import annotations

import pytest

from planner.partition.training.memory import sum_seconds


@pytest.mark.parametrize(("num_holders", "num_messages"), [(2, 2), (3, 4), (4, 6), (12, 22)])
def test_each_message_carries_all(num_holders: int, num_messages: int) -> None:
    seconds = sum_seconds(1200, num_holders, 0.5, 1 / 100)
    assert seconds == pytest.approx(num_messages * (0.5 + 1200 / 100), rel=1e-12)


def test_a_lone_holder_and_no_bytes_are_free() -> None:
    assert sum_seconds(1200, 1, 0.5, 1 / 100) == 0.0
    assert sum_seconds(0, 4, 0.5, 1 / 100) == 0.0
