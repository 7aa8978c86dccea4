"""The checker itself: each kind of fault is found, and a history without one has none."""

from __future__ import annotations

import pytest

from tests.faults.history import History

ASKED = [10, 20, 30]


@pytest.mark.parametrize(
    ("answered", "faults"),
    [
        ([(0, 11), (1, 21), (2, 31)], []),
        ([(0, 11), (2, 31)], ["request 1 has no answer"]),
        ([(0, 11), (1, 21), (1, 21), (2, 31)], ["request 1 was answered 2 times"]),
        ([(0, 11), (2, 31), (1, 21)], ["the answer to 1 came after that to 2"]),
        ([(0, 11), (1, 22), (2, 31)], ["the answer to request 1 is wrong"]),
        ([(0, 11), (1, 21), (2, 31), (3, 41)], ["there is an answer to 3, which nobody asked"]),
    ],
)
def test_every_kind_of_fault_is_found(answered: list[tuple[int, int]], faults: list[str]) -> None:
    history = History(asked=list(ASKED), answered=answered)
    assert history.faults(lambda batch, answer: answer == batch + 1) == faults
