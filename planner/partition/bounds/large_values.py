"""A bound on the bottleneck where values are large: holding part of a long path means being sent one and sending one.

Take a path over large values alone. A device with nodes of it is sent one of those values and sends one, unless it has
the first node or the last; and so does a host, over the links that leave it. A device with none of it has to exchange
bytes for its work: at least the least ratio of the bytes that cross the border of any set of other nodes to the set's
work. Both take time from work, and all the devices' work has to be enough for the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.bounds.work import fair_weights
from planner.partition.ordered.hosts import distinct_rows, hosts_of
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem

# Relative: below what rounding in sums, and the tolerance of a linear programme, may add.
_MARGIN, _MARGIN_OF_PROGRAMME = 1 - 1e-9, 1 - 1e-6
_SHARES_OF_VALUES = (0.1, 0.25, 0.5, 0.75, 0.9)
_STEPS = 50
# Their linear programmes take a second together, those of a transformer of twice as many nodes four.
_MAX_NODES = 2_500


def large_values_bound(problem: PartitionProblem, proven: float, limit: float) -> float:
    """Seconds; `proven` where it proves no more, and `limit` where it proves that much. Not with copies of stages.

    Holds for any order and for stages anywhere. At most five linear programmes over the nodes.
    """
    made = problem.value_bytes[problem.value_producer >= 0]
    if problem.num_devices == 1 or problem.num_nodes > _MAX_NODES or not made.size:
        return proven
    devices = _devices(problem)
    tried = set[bytes]()
    for least_bytes in np.unique(np.quantile(made, _SHARES_OF_VALUES, method="lower"))[::-1]:
        aside = ~_on_longest_path(problem, int(least_bytes))
        if aside.tobytes() in tried:
            continue
        tried.add(aside.tobytes())
        transfers = _transfers(problem, devices, int(least_bytes))
        if _has_room(devices, transfers, _Aside(work=0.0, exchanged=0.0), proven):
            continue
        outside = _Aside(
            work=float(devices.weighted_work[aside].sum()),
            exchanged=least_exchanged(problem, aside, devices.weighted_work),
        )
        proven = max(proven, _least_time(devices, transfers, outside, proven, limit))
    return proven


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Devices:
    """`weights` [devices]: any give a bound; `weighted_work` [nodes]: what a node weighs at least, wherever it runs."""

    weights: Floats
    weighted_work: Floats
    host_of_device: Integers

    def by_host(self, of_device: Floats) -> Floats:
        return np.bincount(self.host_of_device, of_device).astype(np.float64)

    def least_of_host(self, of_device: Floats) -> Floats:
        least = np.full(int(self.host_of_device.max()) + 1, np.inf)
        np.minimum.at(least, self.host_of_device, of_device)
        return least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Transfers:
    """[devices] seconds to be sent a large value and to send one, over the best link; how much more it takes over the
    best that leaves the host; and seconds of a byte over either, the better way."""

    into: Floats
    out: Floats
    more_into_host: Floats
    more_out_of_host: Floats
    per_byte: Floats
    per_byte_between_hosts: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aside:
    """Weighted work beside the path, and the least bytes that any part of it exchanges, for each of its weighted
    seconds."""

    work: float
    exchanged: float


def _devices(problem: PartitionProblem) -> _Devices:
    kinds = distinct_rows(problem.work_seconds)
    weights = fair_weights(kinds.rows, kinds.counts)
    weights = weights / weights.max()
    return _Devices(
        weights=weights[kinds.kind_of_row],
        weighted_work=(kinds.rows * weights[:, None]).min(axis=0),
        host_of_device=hosts_of(problem).host_of_device,
    )


def _transfers(problem: PartitionProblem, devices: _Devices, value_bytes: int) -> _Transfers:
    per_byte = problem.link_seconds_per_byte
    seconds = problem.link_latency_seconds + value_bytes * per_byte
    self_ = np.eye(problem.num_devices, dtype=bool)
    within = devices.host_of_device[:, None] == devices.host_of_device
    into, out = _best(seconds, self_), _best(seconds.T, self_)
    return _Transfers(
        into=into,
        out=out,
        more_into_host=np.maximum(_best(seconds, within) - into, 0.0),
        more_out_of_host=np.maximum(_best(seconds.T, within) - out, 0.0),
        per_byte=np.minimum(_best(per_byte, self_), _best(per_byte.T, self_)),
        per_byte_between_hosts=np.minimum(_best(per_byte, within), _best(per_byte.T, within)),
    )


def _best(of_link: Floats, excluded: Booleans) -> Floats:
    """[devices] the least from any other; 0 where all are excluded."""
    best = np.where(excluded, np.inf, of_link).min(axis=0)
    return np.where(np.isfinite(best), best, 0.0)


def _has_room(devices: _Devices, transfers: _Transfers, aside: _Aside, time: float) -> bool:
    """Whether the devices could do all the work in so many seconds each."""
    weights = devices.weights
    of_path = weights * np.maximum(time - transfers.into - transfers.out, 0.0)
    kept = 1 / (1 + weights * aside.exchanged * transfers.per_byte)
    beside = weights * time * kept if aside.work > 0 else np.zeros_like(weights)
    most = np.maximum(of_path, beside)
    # One device of a host with nodes of the path is sent a value from outside, with all that it does within the time;
    # and one sends. They may be the same, or have no nodes of the path.
    into_host = devices.least_of_host(np.minimum(weights * transfers.more_into_host * kept, most / 2))
    out_of_host = devices.least_of_host(np.minimum(weights * transfers.more_out_of_host * kept, most / 2))
    with_path = devices.by_host(most) - into_host - out_of_host
    exchanged = (
        devices.least_of_host(weights) * aside.exchanged * devices.least_of_host(transfers.per_byte_between_hosts)
    )
    without = np.minimum(devices.by_host(beside), devices.by_host(weights * time) / (1 + exchanged))
    # The first of the path is sent nothing and the last sends nothing.
    spared = (weights * transfers.into).max() + (weights * transfers.out).max() + into_host.max() + out_of_host.max()
    room = np.maximum(with_path, np.minimum(without, aside.work)).sum() + spared
    return bool(room >= devices.weighted_work.sum() * _MARGIN)


def _least_time(devices: _Devices, transfers: _Transfers, aside: _Aside, proven: float, limit: float) -> float:
    """By bisection; what it returns is not room enough, or is `proven`."""
    if not _has_room(devices, transfers, aside, limit):
        return limit
    low, high = proven, limit
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _has_room(devices, transfers, aside, middle):
            high = middle
        else:
            low = middle
    return low


def _on_longest_path(problem: PartitionProblem, least_bytes: int) -> Booleans:
    """[nodes] of the path of most seconds over values of so many bytes or more."""
    seconds = problem.work_seconds.min(axis=0)
    took, reached = seconds.tolist(), seconds.tolist()
    before = [-1] * problem.num_nodes
    order = np.argsort(problem.read_node, kind="stable")
    values = problem.read_value[order]
    large = (problem.value_bytes[values] >= least_bytes) & (problem.value_producer[values] >= 0)
    producers, readers = problem.value_producer[values[large]], problem.read_node[order[large]]
    for producer, reader in zip(producers.tolist(), readers.tolist(), strict=True):
        if reached[producer] + took[reader] > reached[reader]:
            reached[reader], before[reader] = reached[producer] + took[reader], producer
    on_path = np.zeros(problem.num_nodes, dtype=bool)
    node = int(np.argmax(reached))
    while node >= 0:
        on_path[node] = True
        node = before[node]
    return on_path


def least_exchanged(problem: PartitionProblem, aside: Booleans, weighted_work: Floats) -> float:
    """Bytes for each weighted second of work, the least of any set of those nodes: each value counts once that has ends
    both in the set and outside it.

    A linear programme: each node is in the set to some share, a value crosses by how much its ends' shares differ. Its
    optimum is one set's ratio, for bytes across borders are submodular (Lovász: Submodular functions and convexity,
    1983).
    """
    import highspy

    columns = np.cumsum(aside) - 1
    num_nodes, total = int(aside.sum()), float(weighted_work[aside].sum())
    if total <= 0:
        return 0.0
    ends = _Ends.of(problem, aside)
    some_outside, num_values = ends.some_outside, ends.value_bytes.size
    all_aside = np.flatnonzero(~some_outside)
    least = np.full(num_values, -1)
    least[all_aside] = num_nodes + num_values + np.arange(all_aside.size)
    unit = float(ends.value_bytes.max(initial=1)) or 1.0
    cost = ends.value_bytes / unit
    below = ~some_outside[ends.value]
    most_rows = np.column_stack([num_nodes + ends.value, columns[ends.node]])
    least_rows = np.column_stack([columns[ends.node[below]], least[ends.value[below]]])
    rows = np.concatenate([most_rows, least_rows])
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = num_nodes + num_values + all_aside.size, rows.shape[0] + 1
    program.col_cost_ = np.concatenate([np.zeros(num_nodes), cost, -cost[all_aside]])
    program.col_lower_ = np.zeros(program.num_col_)
    program.col_upper_ = np.full(program.num_col_, np.inf)
    program.row_lower_ = np.append(np.zeros(rows.shape[0]), 1.0)
    program.row_upper_ = np.append(np.full(rows.shape[0], np.inf), 1.0)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.append(np.arange(0, rows.size + 1, 2), rows.size + num_nodes)
    program.a_matrix_.index_ = np.append(rows.ravel(), np.arange(num_nodes))
    program.a_matrix_.value_ = np.append(np.tile([1.0, -1.0], rows.shape[0]), weighted_work[aside] / total)
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.passModel(program)
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return 0.0
    return max(0.0, model.getInfo().objective_function_value * unit / total * _MARGIN_OF_PROGRAMME)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ends:
    """Which nodes beside the path make or read which values; those only that some other node makes or reads too."""

    value: Integers
    node: Integers
    value_bytes: Integers
    some_outside: Booleans

    @classmethod
    def of(cls, problem: PartitionProblem, aside: Booleans) -> _Ends:
        made = np.flatnonzero(problem.value_producer >= 0)
        inside = np.flatnonzero(problem.value_producer[problem.read_value] >= 0)
        values = np.concatenate([made, problem.read_value[inside]])
        nodes = np.concatenate([problem.value_producer[made], problem.read_node[inside]])
        values, nodes = np.divmod(np.unique(values * problem.num_nodes + nodes), problem.num_nodes)
        num_values = problem.value_bytes.size
        all_ends, ends_aside = np.bincount(values, minlength=num_values), np.bincount(values, aside[nodes], num_values)
        counts = (all_ends > 1) & (ends_aside > 0)
        kept = counts[values] & aside[nodes]
        return cls(
            value=(np.cumsum(counts) - 1)[values[kept]],
            node=nodes[kept],
            value_bytes=problem.value_bytes[counts],
            some_outside=(ends_aside < all_ends)[counts],
        )
