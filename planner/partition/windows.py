"""How many microbatches the channels of a stage's copy hold: sent and not yet received.

Copies of two stages that hand microbatches on have one channel for each pair that meets, and each channel holds one at
least. As many as a plan has in flight are shared between the channels of a copy; where these are more, they count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd


def channels_of_copy(own: int, others: int) -> int:
    """Of one of `own` copies of a stage, to or from `others` of another."""
    return others // gcd(own, others)


def windows_per_channel(microbatches_in_flight: int, sources: int, targets: int) -> int:
    most = max(channels_of_copy(sources, targets), channels_of_copy(targets, sources))
    return max(1, microbatches_in_flight // most)


def windows_of_copy(microbatches_in_flight: int, own: int, others: int) -> int:
    """At most, over all its channels to or from the copies of one other stage."""
    return max(microbatches_in_flight, channels_of_copy(own, others))


def windows_of_copies(
    microbatches_in_flight: int, copies: Sequence[int], edges: Iterable[tuple[int, int]]
) -> tuple[int, ...]:
    """By stage, of what enters a copy and what leaves it. `copies` counts each stage's, `edges` are of stages."""
    windows = [microbatches_in_flight] * len(copies)
    for source, target in edges:
        for own, other in ((source, target), (target, source)):
            windows[own] = max(windows[own], windows_of_copy(microbatches_in_flight, copies[own], copies[other]))
    return tuple(windows)


def windows_at_clients(microbatches_in_flight: int, copies: int) -> int:
    """Of what passes between the first of the copies of an end of the pipeline, whom clients reach, and the others.

    Counted on each of them, since a stage has one size.
    """
    return windows_of_copy(microbatches_in_flight, 1, copies) if copies > 1 else 0
