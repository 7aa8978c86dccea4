"""A training step's seconds, with the time in which a pipeline fills and drains.

Holds where each device runs one stage, which waits for all that it reads and sends at its end, and where no stage has
copies and nothing runs again. Along a longest path of nodes whose gradients come back, the stages that hold it run one
after another for each microbatch, forward and back. Let P be the work of those before a stage, w its own, D that of
those behind it, all of one microbatch, and a how many microbatches 1F1B has it run forward before the first comes back.

- Any unsplit schedule: P + m w. The first microbatch comes after P's forward half; P's backward half follows the last.
- GPipe: P + w + D + (m - 1) w, since all forward passes come first.
- 1F1B: P + 2 D + (m - a + 1) w: the stage waits for the first microbatch to be back before it goes on, and at the end
  for the last one. And with f and b for the forward and the backward part of w, P + w + D + (m - 1) f + (m - a) b, by
  the way of the last microbatch, which other forward passes are before; with f and b exchanged, by that of the first.
- Split backward passes: only the forward half of P comes before, and weights' passes may be last.

Stages beside the path take m w. The least step that leaves room for all work is found by halving: how much work the
first stages can hold only grows with what those before them hold. Where a device is slow, its stage also keeps a
microbatch for longer: the last two ways, P + w + D being the seconds on the devices themselves, say how much all stages
hold together.

Between two stages of the path goes one of its values, and its gradient comes back. Devices one after the other are
joined by links that are no shorter than as many of a least spanning tree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import after_of_arcs, distinct_arcs, nearest_kept, topological_order
from planner.partition.bounds.longest_path import longest_path
from planner.partition.bounds.step_time_kernel import Pipeline, most_work
from planner.partition.objective import UNSPLIT_SCHEDULES, PipelineSchedule
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles, least_seconds

# Halvings of the interval of steps: to a billionth.
_HALVINGS = 40
# Below what rounding in long sums may add.
_MARGIN = 1 - 1e-8
_NOTHING = -1
# States "how many devices of each kind are used": with more of them, the slower of two kinds counts as the other.
_MAX_STATES = 5_000


def fill_bound(problem: PartitionProblem, bundles: Bundles, busiest_seconds: float, num_stages: int = 0) -> float:
    """`busiest_seconds`: some stage of any assignment computes as long for each microbatch, or longer.

    `num_stages` 0: any number. O(reads + nodes + devices x devices x states).
    """
    assert problem.training is not None
    path = _path_of(problem, bundles)
    most = num_stages or min(problem.num_devices, bundles.count)
    # Where there is work beside the path, some of the stages may hold none of it.
    holds_all = not path.beside.size
    counts = [num_stages] if num_stages and holds_all else range(1, most + 1)
    others = 0 if holds_all else num_stages or problem.num_devices
    least, unplaced = 3 * problem.training.microbatches * path.work, _pipeline(problem, path)
    for count in counts:
        pipeline = unplaced._replace(num_stages=count, others=max(0, others - count))
        together = _most_together(pipeline)
        step = _Step(pipeline=pipeline, path=path, together=together, busiest_seconds=busiest_seconds)
        least = step.least_below(least)
    return _MARGIN * least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Path:
    """`work`: seconds of all bundles, forward and back, where each runs fastest; `seconds`: of those on the path.

    `message`: bytes that go from a stage of it to the next, and of gradients that come back, at least. `beside`
    [segments], descending: of bundles of a segment that are not on it. Segments end at bundles of the path that all
    others run before or after. A stage that holds bundles of two segments holds what ends the first, or it
    would wait for itself: so one that holds nothing of the path is within a segment.
    """

    work: float
    seconds: float
    message: tuple[float, float]
    beside: Floats

    def work_of(self, num_stages: int, most_of_each: float = np.inf) -> float:
        """That at most so many stages beside it leave to those on the path."""
        beside = float(self.beside[:num_stages].sum())
        return max(self.seconds, self.work - min(beside, num_stages * most_of_each if num_stages else 0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedPath:
    """A longest path of `bundles` over whose edges gradients come back. `joins` [bundles of the path]: all others that
    have such edges lead to it or are led to by it. `is_trained` [bundles]: whether it has one."""

    bundles: tuple[int, ...]
    joins: Booleans
    is_trained: Booleans


def trained_path(problem: PartitionProblem, bundles: Bundles, left_out: Booleans) -> TrainedPath:
    """`left_out` [bundles] are not on it, and are none of the others. O(arcs x bundles)."""
    order = topological_order(bundles.before, bundles.after)
    before, after = _trained_neighbours(problem, bundles)
    path = longest_path(order, before, least_seconds(problem, bundles).tolist())
    is_trained = np.array([bool(own or behind) for own, behind in zip(before, after, strict=True)], dtype=np.bool_)
    rest = [bundle for bundle in order if is_trained[bundle] and not left_out[bundle]]
    kept_before, kept_after = (
        nearest_kept(near, way, left_out.tolist()) for near, way in ((before, order), (after, order[::-1]))
    )
    joins = np.zeros(bundles.count, dtype=np.bool_)
    joins[rest] = _has_no_other_beside(kept_before, kept_after, rest)
    on_path = np.array([bundle for bundle in path if not left_out[bundle]], dtype=np.int64)
    return TrainedPath(bundles=tuple(on_path.tolist()), joins=joins[on_path], is_trained=is_trained)


def _trained_neighbours(problem: PartitionProblem, bundles: Bundles) -> tuple[list[list[int]], list[list[int]]]:
    """By bundle, those whose gradients it gives back, and those that give it its own back."""
    tails, heads, _ = _trained_edges(problem, bundles)
    first, second = (ends.tolist() for ends in distinct_arcs(tails, heads, bundles.count))
    return after_of_arcs(second, first, bundles.count), after_of_arcs(first, second, bundles.count)


def _trained_edges(problem: PartitionProblem, bundles: Bundles) -> tuple[Integers, Integers, Integers]:
    """(tails, heads, values) of the edges between bundles over which gradients come back."""
    maker = problem.value_producer[problem.read_value]
    carries = (maker >= 0) & (problem.value_gradient_bytes[problem.read_value] > 0)
    tails, heads = bundles.bundle_of_node[maker[carries]], bundles.bundle_of_node[problem.read_node[carries]]
    apart = tails != heads
    return tails[apart], heads[apart], problem.read_value[carries][apart]


def _path_of(problem: PartitionProblem, bundles: Bundles) -> _Path:
    fastest, order = least_seconds(problem, bundles), topological_order(bundles.before, bundles.after)
    path = longest_path(order, _trained_neighbours(problem, bundles)[0], fastest.tolist())
    before = np.full(bundles.count, _NOTHING)
    before[path[1:]] = path[:-1]
    is_on_path = np.zeros(bundles.count, dtype=np.bool_)
    is_on_path[path] = True
    ends_segment = is_on_path[order] & _has_no_other_beside(bundles.before, bundles.after, order)
    segment = np.cumsum(ends_segment)
    beside = np.bincount(segment, np.where(is_on_path[order], 0.0, fastest[order])).astype(np.float64)
    tails, heads, values = _trained_edges(problem, bundles)
    along = before[heads] == tails
    return _Path(
        work=float(fastest.sum()),
        seconds=float(fastest[is_on_path].sum()),
        message=_least_message(problem, heads[along], values[along]),
        beside=np.sort(beside[beside > 0])[::-1],
    )


def _least_message(problem: PartitionProblem, readers: Integers, values: Integers) -> tuple[float, float]:
    """Of all that one bundle of the path gives the next, the least bytes, and of gradients."""
    distinct = np.unique(np.column_stack([readers, values]), axis=0)
    _, edge = np.unique(distinct[:, 0], return_inverse=True)
    of_values = np.stack([problem.value_bytes, problem.value_gradient_bytes]).astype(np.float64)[:, distinct[:, 1]]
    sizes = [np.bincount(edge, row).astype(np.float64) for row in of_values]
    return float(sizes[0].min(initial=np.inf)), float(sizes[1].min(initial=np.inf))


def _messages(problem: PartitionProblem, message: tuple[float, float]) -> Floats:
    """[devices] seconds of so many messages of the path, there and back, between devices one after the other."""
    if not np.isfinite(message).all():
        return np.zeros(problem.num_devices)
    there = problem.link_latency_seconds + message[0] * problem.link_seconds_per_byte
    back = problem.link_latency_seconds + message[1] * problem.link_seconds_per_byte
    both = there + back.T
    return np.concatenate([[0.0], np.cumsum(np.sort(_spanning_tree(np.minimum(both, both.T))))])


def _spanning_tree(length: Floats) -> Floats:
    """[devices - 1] lengths of the edges of a least one (Prim 1957)."""
    count = len(length)
    outside, nearest = np.arange(1, count), length[0, 1:].copy()
    edges = np.empty(count - 1)
    for index in range(count - 1):
        at = int(nearest.argmin())
        edges[index], device = nearest[at], outside[at]
        outside, nearest = np.delete(outside, at), np.delete(nearest, at)
        np.minimum(nearest, length[device, outside], out=nearest)
    return edges


def _has_no_other_beside(
    before: Sequence[Collection[int]], after: Sequence[Collection[int]], order: Sequence[int]
) -> Booleans:
    """By place in a topological order: whether all other bundles of it run before it or after it, by what they read."""

    def only_end(order: Sequence[int], before: Sequence[Collection[int]]) -> Booleans:
        """Whether all earlier ones lead to it: whether it alone leads to none up to it."""
        ends, alone = set[int](), np.zeros(len(order), dtype=np.bool_)
        for place, bundle in enumerate(order):
            ends.difference_update(before[bundle])
            ends.add(bundle)
            alone[place] = len(ends) == 1
        return alone

    return only_end(order, before) & only_end(order[::-1], after)[::-1]


def _pipeline(problem: PartitionProblem, path: _Path) -> Pipeline:
    """Without stages."""
    assert problem.training is not None
    schedule = problem.training.schedule
    speeds, counts = _kinds(problem)
    return Pipeline(
        microbatches=problem.training.microbatches,
        num_stages=0,
        on_path=0.0,
        others=0,
        # Of a node without a backward pass it is more.
        forward_share=1 / (1 + float(problem.least_backward_ratio.max())),
        longer_share=longer_share(problem),
        splits=schedule not in UNSPLIT_SCHEDULES,
        is_gpipe=schedule is PipelineSchedule.GPIPE,
        messages=_messages(problem, path.message),
        speeds=speeds,
        counts=counts,
    )


def longer_share(problem: PartitionProblem) -> float:
    """At least what the longer of a stage's two passes takes of both, whatever its nodes. Deliveries are in either."""
    takes = (problem.work_seconds > 0) & np.isfinite(problem.work_seconds)
    if not takes.any():
        return 0.5
    work = problem.work_seconds[takes]
    least = float((problem.pass_seconds[takes] / work).min())
    most = float((problem.compute_seconds[takes] / work).max())
    return max(least, 1 - most, 0.5)


def _kinds(problem: PartitionProblem) -> tuple[Floats, Integers]:
    """The most work, in the fastest device's seconds, that devices of each kind do in a second; how many there are."""
    kinds, fastest = distinct_rows(problem.work_seconds), problem.work_seconds.min(axis=0)
    counts_of_speed: dict[float, int] = {}
    for row, count in zip(kinds.rows, kinds.counts.tolist(), strict=True):
        takes = (row > 0) & np.isfinite(row)
        speed = float((fastest[takes] / row[takes]).max()) if takes.any() else 1.0
        counts_of_speed[speed] = counts_of_speed.get(speed, 0) + count
    speeds = sorted(counts_of_speed)
    while np.prod([counts_of_speed[speed] + 1.0 for speed in speeds]) > _MAX_STATES and len(speeds) > 1:
        alike = int(np.argmin(np.diff(np.log(speeds))))
        counts_of_speed[speeds[alike + 1]] += counts_of_speed[speeds[alike]]
        del speeds[alike]
    return np.array(speeds), np.array([counts_of_speed[speed] for speed in speeds], dtype=np.int64)


def _most_together(pipeline: Pipeline) -> float:
    """Work that all stages hold for each second, by the ways of the first and the last microbatch through all of them.

    Let X be P + w + D, and c w what else a stage takes on that way, (m - 1) f + (m - a) b: so w is (T - X) / c at most.
    Each second of X is best spent on the fastest devices, at the stages of the least c.
    """
    m, stages, longer = pipeline.microbatches, pipeline.num_stages, pipeline.longer_share
    if pipeline.splits or m == 1:
        return np.inf
    behind = stages + pipeline.others - np.arange(stages)
    besides = (m - 1) * longer + np.maximum(m - behind, 0) * (1 - longer)
    turns = 1 / (np.full(stages, m - 1.0) if pipeline.is_gpipe else np.sort(besides))
    fastest = np.repeat(pipeline.speeds, pipeline.counts)[::-1][:stages]
    return float((np.cumsum(fastest * turns) / (1 + np.cumsum(turns))).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """`together`: work that stages hold for each second of the step but for messages, at most."""

    pipeline: Pipeline
    path: _Path
    together: float
    busiest_seconds: float

    @property
    def _messages(self) -> float:
        """Of all stages on the path."""
        return float(self.pipeline.messages[self.pipeline.num_stages - 1])

    def least_below(self, high: float) -> float:
        """The least step that has room for all work; `high` if that is no less."""
        if self._with_busiest() >= high or not self._is_enough(high):
            return high
        low = 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_enough(middle) else (middle, high)
        return max(low, self._with_busiest())

    def _is_enough(self, step: float) -> bool:
        """Whether all work may fit into a step of so many seconds."""
        on_path = self.path.work_of(self.pipeline.others, step / self.pipeline.microbatches)
        if (step - self._messages) * self.together < on_path:
            return False
        return most_work(self.pipeline._replace(on_path=on_path), step) >= on_path

    def _ahead(self, place: int) -> int:
        """At most how many microbatches a stage runs forward before the first comes back."""
        return self.pipeline.num_stages + self.pipeline.others - place

    def _with_busiest(self) -> float:
        """The least step in which some stage, at any place, computes as long as the busiest has to."""
        m = self.pipeline.microbatches
        least = m * self.busiest_seconds
        may_be_beside = self.busiest_seconds <= self.path.beside.max(initial=0.0)
        if may_be_beside or self.pipeline.splits:
            return least
        if self.pipeline.is_gpipe:
            through = self.path.work_of(self.pipeline.others) + self._messages
            return max(least, through + (m - 1) * self.busiest_seconds)
        return max(least, min(self._with_busiest_at(place) for place in range(self.pipeline.num_stages)))

    def _with_busiest_at(self, place: int) -> float:
        """With the work before it that suits best: P + m w grows with that, P + 2 D + (m - a + 1) w falls. And however
        much is before it, by the way of the first microbatch or the last."""
        m, ahead, share = self.pipeline.microbatches, self._ahead(place), self.pipeline.longer_share
        work, messages = self.path.work_of(self.pipeline.others), self._messages
        longest = work + messages + ((m - 1) * share + max(0, m - ahead) * (1 - share)) * self.busiest_seconds
        if m <= ahead:
            return longest
        falling = 2 * work + messages + (m - ahead - 1) * self.busiest_seconds
        before = min(max(0.0, (falling - m * self.busiest_seconds) / 2), work) if place else 0.0
        return max(longest, before + m * self.busiest_seconds, falling - before)
