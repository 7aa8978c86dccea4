"""Rates of a device kind, fitted to what its nodes were measured to take.

seconds = max(flops / rate of its dtype, bytes / memory rate) + calls * node_seconds. Which of the two bounds a node is
not known beforehand, so the fit alternates: decide by the rates so far, then solve for the rates by least squares on
the errors' logarithms, outliers damped as Huber 1964 does (iteratively reweighted). Not exact: a local optimum from two
starts, the better of which counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.cost.calibration import Calibration
from planner.cost.device_kinds import DeviceKind, RateClass, device_kind, rate_class
from planner.cost.work import Floats, Work

MIN_NODES = 8
MIN_NODES_PER_RATE = 3
MAX_ROUNDS = 60
# Relative errors up to this count squared, larger ones linearly.
HUBER = 0.3
CLASSES = tuple(RateClass)
MEMORY, CALL = len(CLASSES), len(CLASSES) + 1

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Observations:
    """Per measured node that runs something; `rate` is the position of its class."""

    flops: Floats
    bytes_moved: Floats
    calls: Floats
    rate: Integers
    seconds: Floats


def calibrate(kind: str, measured: Iterable[tuple[Work, Floats]]) -> Calibration | None:
    """Each pair is a graph's work and its nodes' seconds, nan where not measured. None from fewer than 8 nodes."""
    observations = _observations(measured)
    if len(observations.seconds) < MIN_NODES:
        return None
    nominal = device_kind(kind)
    starts = (_costs(nominal), _rough(observations, nominal))
    costs, fitted = min((_fit(observations, start) for start in starts), key=lambda fit: _loss(observations, fit[0]))
    errors = np.abs(_predict(observations, costs) - observations.seconds) / observations.seconds
    return Calibration(
        device_kind=kind,
        rates=_rates(costs, fitted, nominal),
        num_nodes=len(observations.seconds),
        median_error=float(np.median(errors)),
    )


def _observations(measured: Iterable[tuple[Work, Floats]]) -> _Observations:
    columns: list[tuple[Floats, Floats, Floats, Integers, Floats]] = []
    for work, seconds in measured:
        # What runs nothing costs its dispatch only, and says nothing of rates.
        use = np.isfinite(seconds) & (seconds > 0) & (work.calls > 0)
        rates = np.array([CLASSES.index(rate_class(dtype)) for dtype in work.dtypes], dtype=np.int64)
        columns.append((work.flops[use], work.bytes_moved[use], work.calls[use], rates[use], seconds[use]))
    if not columns:
        empty = np.zeros(0)
        return _Observations(flops=empty, bytes_moved=empty, calls=empty, rate=empty.astype(np.int64), seconds=empty)
    flops, bytes_moved, calls, rate, seconds = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return _Observations(flops=flops, bytes_moved=bytes_moved, calls=calls, rate=rate.astype(np.int64), seconds=seconds)


def _costs(kind: DeviceKind) -> Floats:
    """[seconds per flop of each class, seconds per byte, seconds per call]."""
    rates = [getattr(kind, one.value) for one in CLASSES]
    return np.array([*(1 / rate for rate in rates), 1 / kind.memory_bytes_per_second, kind.node_seconds])


def _rough(observations: _Observations, nominal: DeviceKind) -> Floats:
    """The best that was seen: the quickest calls, the most bytes and flops in a second."""
    costs = _costs(nominal)
    costs[CALL] = max(float(np.quantile(observations.seconds / observations.calls, 0.05)), 1e-9)
    busy = np.maximum(observations.seconds - observations.calls * costs[CALL], 0.1 * observations.seconds)
    moving = observations.bytes_moved > 0
    if moving.any():
        costs[MEMORY] = float(np.quantile(busy[moving] / observations.bytes_moved[moving], 0.1))
    for one in range(len(CLASSES)):
        of_class = (observations.rate == one) & (observations.flops > 0)
        if of_class.any():
            costs[one] = float(np.quantile(busy[of_class] / observations.flops[of_class], 0.1))
    return costs


def _fit(observations: _Observations, costs: Floats) -> tuple[Floats, Booleans]:
    """(costs, which of them the observations determine)."""
    best, best_loss = costs, math.inf
    determined = best_determined = np.zeros(len(costs), dtype=np.bool_)
    for _ in range(MAX_ROUNDS):
        loss = _loss(observations, costs)
        if loss < best_loss * (1 - 1e-9):
            best, best_loss, best_determined = costs, loss, determined
        table = _table(observations, costs)
        determined = (table > 0).sum(axis=0) >= MIN_NODES_PER_RATE
        next_costs = _solve(observations, table, costs, determined)
        if np.allclose(next_costs, costs, rtol=1e-9, atol=0.0):
            break
        costs = next_costs
    if _loss(observations, costs) < best_loss:
        return costs, determined
    return best, best_determined


def _table(observations: _Observations, costs: Floats) -> Floats:
    """[nodes, costs]: what each node would pay each cost for, by the bound that binds it now."""
    arithmetic = observations.flops * costs[observations.rate] > observations.bytes_moved * costs[MEMORY]
    table = np.zeros((len(observations.seconds), len(costs)))
    rows = np.arange(len(observations.seconds))
    table[rows[arithmetic], observations.rate[arithmetic]] = observations.flops[arithmetic]
    table[~arithmetic, MEMORY] = observations.bytes_moved[~arithmetic]
    table[:, CALL] = observations.calls
    return table


def _solve(observations: _Observations, table: Floats, costs: Floats, determined: Booleans) -> Floats:
    """Weighted least squares over the costs that are determined and come out positive; the others stay."""
    predicted = table @ costs
    scale = np.sqrt(predicted * observations.seconds)
    weights = (
        np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(predicted - observations.seconds) / scale, 1e-12))) / scale
    )
    free = determined.copy()
    while free.any():
        fixed_seconds = table[:, ~free] @ costs[~free]
        size = np.linalg.norm(table[:, free] * weights[:, None], axis=0)
        solved = np.linalg.lstsq(
            table[:, free] * weights[:, None] / size, (observations.seconds - fixed_seconds) * weights, rcond=None
        )
        values = solved[0] / size
        if (values > 0).all():
            next_costs = costs.copy()
            next_costs[free] = values
            return next_costs
        # One that comes out at nothing is held at a tenth of what it was, so that it can come back.
        worst = np.flatnonzero(free)[int(np.argmin(values * size))]
        free[worst] = False
        costs = costs.copy()
        costs[worst] *= 0.1
    return costs


def _predict(observations: _Observations, costs: Floats) -> Floats:
    bound = np.maximum(observations.flops * costs[observations.rate], observations.bytes_moved * costs[MEMORY])
    predicted: Floats = bound + observations.calls * costs[CALL]
    return predicted


def _loss(observations: _Observations, costs: Floats) -> float:
    errors = np.abs(np.log(_predict(observations, costs) / observations.seconds))
    return float(np.where(errors < HUBER, errors**2 / 2, HUBER * (errors - HUBER / 2)).mean())


def _rates(costs: Floats, fitted: Booleans, nominal: DeviceKind) -> DeviceKind:
    """A class that nothing was bound by keeps its ratio to those that were fitted."""
    before = _costs(nominal)
    classes = fitted[: len(CLASSES)]
    if classes.any():
        ratio = float(np.exp(np.log(costs[: len(CLASSES)] / before[: len(CLASSES)])[classes].mean()))
        costs = np.where([*~classes, False, False], before * ratio, costs)
    rates = {one.value: float(1 / costs[at]) for at, one in enumerate(CLASSES)}
    return replace(nominal, **rates, memory_bytes_per_second=float(1 / costs[MEMORY]), node_seconds=float(costs[CALL]))
