"""What was asked and what was answered, in order; and what a history must not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(slots=True)
class History:
    """`asked` holds each request as it was made, `answered` each (number of the request, answer) as it came."""

    asked: list[Any] = field(default_factory=list)
    answered: list[tuple[int, Any]] = field(default_factory=list)

    def faults(self, is_right: Callable[[Any, Any], bool]) -> list[str]:
        """In words, one for each lost, doubled, reordered or wrong answer. Requests are numbered from 0."""
        numbers = [number for number, _ in self.answered]
        counts = Counter(numbers)
        return [
            *(f"request {number} has no answer" for number in range(len(self.asked)) if not counts[number]),
            *(f"request {number} was answered {count} times" for number, count in counts.items() if count > 1),
            *(f"there is an answer to {number}, which nobody asked" for number in counts if number >= len(self.asked)),
            *_reordered(numbers),
            *(
                f"the answer to request {number} is wrong"
                for number, answer in self.answered
                if number < len(self.asked) and not is_right(self.asked[number], answer)
            ),
        ]


def _reordered(numbers: Sequence[int]) -> list[str]:
    return [
        f"the answer to {after} came after that to {before}" for before, after in pairwise(numbers) if after < before
    ]
