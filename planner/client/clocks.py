"""Other hosts' clocks beside this process's: how far apart they are, and how far that may be off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question and its answer: when they left and came by the clock here, when they came and left by the other."""

    asked_seconds: float
    received_seconds: float
    answered_seconds: float
    returned_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The other clock is so many seconds ahead, give or take `error_seconds`."""

    seconds: float
    error_seconds: float


SAME_CLOCK = Offset(seconds=0.0, error_seconds=0.0)


def offset_of(exchanges: Iterable[Exchange]) -> Offset:
    """By the exchange that spent least on the way, at most all of which went in one direction. Takes no drift into
    account: a quartz drifts by some 50 µs in a second, so exchanges have to be recent."""
    offset_bounds = (_bounds(exchange) for exchange in exchanges)
    earliest, latest = min(offset_bounds, key=lambda bounds: bounds[1] - bounds[0])
    return Offset(seconds=(earliest + latest) / 2, error_seconds=max(0.0, latest - earliest) / 2)


def _bounds(exchange: Exchange) -> tuple[float, float]:
    """An answer comes after it left, and a question too."""
    return (
        exchange.answered_seconds - exchange.returned_seconds,
        exchange.received_seconds - exchange.asked_seconds,
    )
