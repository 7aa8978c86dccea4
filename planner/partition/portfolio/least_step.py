"""What no training step undercuts, over every chain of order ideals: its pipeline filled, at work and drained.

Holds where each device runs one stage and no stage has copies. Along a path of bundles whose gradients come back, a
microbatch is on one stage after the other, there and back. Joins of that path, which all other bundles with gradients
are before or behind, are waited for by what is beside it too. Let P be the seconds until a stage's part of a
microbatch can begin, there and back; w its own, D those behind it, and X all of its way. A step of T seconds with m
microbatches needs, of each such stage (`bounds/step_time` says why):

- P + m w <= T. With split backward passes P is of the forward passes alone, and that is all.
- X + (m - 1) w <= T under GPipe, and X + (m - 1) l + (m - a) s <= T under 1F1B, with l and s for the longer and the
  shorter of its two passes, and a microbatches that go forward before the first is back.
- P + 2 D + (m - a + 1) w <= T under 1F1B, where a < m.

A stage that holds nothing with a gradient is only known to take m w.

For a T, the least seconds with which each ideal is reached, by devices used, are found stage by stage, at first with X
as short as can be. They give a longer X, with which the next round begins, until none is longer or no stages are left:
then T is too short. Where ideals are too many, some of the work is left out, or they stand in groups (`many_ideals`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.partition.bounds.fewer_nodes import work_beside
from planner.partition.bounds.step_time import TrainedPath, longer_share, trained_path
from planner.partition.objective import UNSPLIT_SCHEDULES, PipelineSchedule, Training
from planner.partition.ordered.device_walks import DeviceWalks, by_kind
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.memory_tiers import everything_bytes
from planner.partition.ordered.segment_loads import StageLinks, Transfers
from planner.partition.portfolio.exact_ideals import MAX_IDEALS
from planner.partition.portfolio.ideal_groups import GroupStages, Held, in_groups, sums_of_ideals
from planner.partition.portfolio.ideal_stages import IdealStages, all_ideals
from planner.partition.portfolio.least_over_stages import Stages
from planner.partition.portfolio.least_step_kernel import (
    ASIDE,
    BESIDE,
    JOIN,
    ON_PATH,
    StepDevices,
    StepStages,
    least_rest,
    least_through,
)
from planner.partition.portfolio.many_ideals import (
    MAX_BUNDLES,
    MAX_GROUP_LOADS,
    MAX_GROUPED_IDEALS,
    MAX_GROUPS,
    with_few_ideals,
    with_less_work,
)
from planner.partition.portfolio.paths import Path
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of

# Bundles of the path by which ideals in groups are told apart.
MAX_LEVELS = 200
# How many of each kind are used, at first of few kinds, then of more: slow devices are seldom all in use.
MAX_STATES = (100, 300, 10_000)
# By ideals and states: 32 MB.
MAX_TIMES = 1_000_000
# Stages that are looked at: two seconds.
MAX_STEPS = 2e8
# Steps are tried until the bound is known to such a share.
_ENOUGH, _MARGIN, _JUST_BELOW = 2e-3, 1 - 1e-9, 1 - 2.5e-9
# A microbatch's seconds that grow by less end the search for longer ones: it only makes the bound weaker.
_GROWS, _MOST_GROWTHS = 2e-3, 40


def least_step(
    problem: PartitionProblem, bundles: Bundles, *, least: float, limit: float, num_stages: int = 0, effort: float = 1.0
) -> float:
    """Nothing below it is possible; from `least`, which holds, to the limit. O(stages x states x steps tried)."""
    if bundles.count > MAX_BUNDLES:
        return least
    beside = work_beside(problem, bundles)
    chains = _over_ideals(problem, bundles, beside) or _over_groups(problem, bundles, beside, effort)
    if chains is None:
        return least
    assert problem.training is not None
    starts, ends = chains.stages.within(limit / problem.training.microbatches)
    kinds = by_kind(problem, hosts_of(problem))
    if starts.size * len(kinds.edges) > MAX_GROUP_LOADS * effort:
        return least
    steps = _Steps(problem, chains, starts, ends, kinds, num_stages, effort)
    return max(least, steps.least_between(least, limit))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chains:
    """`back`: of the gradients of what crosses between the same positions. `are_exact`: stages are of ideals, and none
    does anything that another may have done. `roles_of` (starts, ends) as the kernel has them."""

    stages: Stages
    back: Stages
    are_exact: bool
    roles_of: Callable[[Integers, Integers], Integers]


def _over_ideals(problem: PartitionProblem, bundles: Bundles, beside: Floats) -> _Chains | None:
    for left_out, fewer in with_less_work(problem, bundles, beside):
        rest = fewer.problem if left_out.any() else problem
        own = bundles_of(rest)
        ideals = all_ideals(own, MAX_IDEALS)
        if ideals is not None:
            break
    else:
        return None
    path, place = trained_path(problem, bundles, left_out), np.cumsum(~left_out) - 1
    on_path = place[np.array(path.bundles, dtype=np.int64)]
    is_trained = path.is_trained[~left_out]
    held = [ideals.members[:, some].sum(axis=1) for some in (on_path[path.joins], on_path, is_trained)]

    def roles_of(starts: Integers, ends: Integers) -> Integers:
        return _roles(*(num_held[ends] > num_held[starts] for num_held in held))

    return _Chains(
        stages=IdealStages(rest, own, ideals),
        are_exact=True,
        back=IdealStages(_of_gradients(rest), own, ideals),
        roles_of=roles_of,
    )


def _over_groups(problem: PartitionProblem, bundles: Bundles, beside: Floats, effort: float) -> _Chains | None:
    program = with_few_ideals(problem, bundles, beside, int(MAX_GROUPED_IDEALS * effort))
    if program is None:
        return None
    path, place = trained_path(problem, bundles, program.left_out), np.cumsum(~program.left_out) - 1
    kept = _worth_a_level(path)
    on_path, joins = place[np.array(path.bundles, dtype=np.int64)[kept]], path.joins[kept]
    held = Held(program.words, program.work, Path(bundles=tuple(on_path.tolist()), given_bytes=np.zeros(0)))
    groups = in_groups(held, MAX_GROUPS)
    parts = program.bundles, program.words, program.work, held, groups
    stages = GroupStages(program.problem, *parts)
    is_trained = path.is_trained[~program.left_out, None].astype(np.float64)
    least, most = stages.extremes(sums_of_ideals(program.words, is_trained))
    num_joins = np.concatenate([[0], np.cumsum(joins)])[groups.num_of_path]

    def roles_of(starts: Integers, ends: Integers) -> Integers:
        return _roles(
            num_joins[ends] > num_joins[starts],
            groups.num_of_path[ends] > groups.num_of_path[starts],
            least[0, ends] > most[0, starts],
        )

    back = GroupStages(_of_gradients(program.problem), *parts)
    return _Chains(stages=stages, back=back, are_exact=False, roles_of=roles_of)


def _worth_a_level(path: TrainedPath) -> Booleans:
    """[bundles of the path] at most MAX_LEVELS: joins, then others, each a few from the next where they are many."""
    kept = np.zeros(path.joins.size, dtype=np.bool_)
    for some in (np.flatnonzero(path.joins), np.flatnonzero(~path.joins)):
        count = min(some.size, MAX_LEVELS - int(kept.sum()))
        kept[some[np.linspace(0, some.size - 1, count).astype(np.int64)]] = True
    return kept


def _roles(is_join: Booleans, is_on_path: Booleans, is_trained: Booleans) -> Integers:
    return np.select([is_join, is_on_path, is_trained], [JOIN, ON_PATH, BESIDE], ASIDE)


def _of_gradients(problem: PartitionProblem) -> PartitionProblem:
    """What crosses are gradients, in the direction of the values that they are of."""
    nothing = np.zeros(problem.num_values, dtype=np.bool_)
    return replace(problem, value_bytes=problem.value_gradient_bytes, value_returned=nothing)


class _Steps:
    """Steps that are tried, each possible or not."""

    def __init__(
        self,
        problem: PartitionProblem,
        chains: _Chains,
        starts: Integers,
        ends: Integers,
        kinds: DeviceWalks,
        num_stages: int,
        effort: float,
    ) -> None:
        training, role = problem.training, chains.roles_of(starts, ends)
        assert training is not None
        seconds = _seconds(problem, chains, [edge.label for edge in kinds.edges], starts, ends)
        self._stages = StepStages(
            first=np.searchsorted(starts, np.arange(chains.stages.count + 1)),
            ends=ends,
            role=role,
            **_of_step(training, seconds, role == ASIDE),
        )
        capacity = np.array(kinds.capacity, dtype=np.int64)
        fastest_first = np.argsort(np.where(np.isfinite(seconds.load), seconds.load, 0.0).sum(axis=1), kind="stable")
        self._devices: list[StepDevices] = []
        for most_states in MAX_STATES:
            unit, of_units = _units(capacity, fastest_first.tolist(), most_states, chains.are_exact)
            devices = StepDevices(
                unit=unit,
                capacity=of_units,
                stride=np.cumprod(np.append(1, of_units + 1))[:-1],
                most_stages=num_stages or problem.num_devices,
                microbatches=training.microbatches,
                waits=training.schedule in UNSPLIT_SCHEDULES and training.schedule is not PipelineSchedule.GPIPE,
            )
            is_new = not self._devices or of_units.size > self._devices[-1].capacity.size
            if is_new and np.prod(of_units + 1.0) * chains.stages.count <= MAX_TIMES:
                self._devices.append(devices)
        self._looked_at, self._most = np.zeros(1, dtype=np.int64), MAX_STEPS * effort

    def least_between(self, low: float, limit: float) -> float:
        """At first with few states, then with more where there is time."""
        for devices in self._devices:
            high, way = limit, self._way(devices, limit * _JUST_BELOW, (0.0, 0.0))
            if way is None:
                return limit * _JUST_BELOW
            while high > low * (1 + _ENOUGH) and self._looked_at[0] < self._most:
                middle = (low + high) / 2
                # A shorter step has no shorter way.
                own = self._way(devices, middle, way)
                if own is None:
                    low = middle
                else:
                    high, way = middle, own
        return low * _MARGIN

    def _way(self, devices: StepDevices, step: float, way: tuple[float, float]) -> tuple[float, float] | None:
        """Seconds of one microbatch, through all joins and along the path, at least; it has `way` as a longer step has.
        None if no such step is possible."""
        rest = least_rest(self._stages, step, devices.most_stages)
        for _ in range(_MOST_GROWTHS):
            longer = least_through(self._stages, devices, step, *way, *rest, self._looked_at)
            if not np.isfinite(longer[0]):
                return None
            if longer[0] <= way[0] * (1 + _GROWS):
                break
            way = longer
        return way


def _units(
    capacity: Integers, fastest_first: list[int], most_states: int, may_be_free: bool
) -> tuple[Integers, Integers]:
    """(unit of each kind, devices of each unit): the fastest kinds one by one, as far as states are few, and the others
    together, or as many of them as one likes: a stage that may take no time costs a device then."""
    unit, of_units = np.full(capacity.size, -1, dtype=np.int64), list[int]()

    def num_states(one_by_one: int) -> float:
        counts = capacity[fastest_first].tolist()
        together = 0 if may_be_free else sum(counts[one_by_one:])
        return float(np.prod([count + 1.0 for count in counts[:one_by_one]])) * (together + 1)

    one_by_one = max(number for number in range(capacity.size + 1) if number == 0 or num_states(number) <= most_states)
    for kind in fastest_first[:one_by_one]:
        unit[kind] = len(of_units)
        of_units.append(int(capacity[kind]))
    if one_by_one < capacity.size and not may_be_free:
        unit[fastest_first[one_by_one:]] = len(of_units)
        of_units.append(int(capacity[fastest_first[one_by_one:]].sum()))
    return unit, np.array(of_units, dtype=np.int64)


class _Seconds(NamedTuple):
    """[kinds, stages] of one microbatch, forward and back: of forward passes at least; until what they make is handed
    on; of all of both, inf where they cannot be; and of the longer one."""

    forward: Floats
    handed_on: Floats
    load: Floats
    longer: Floats


def _seconds(
    problem: PartitionProblem, chains: _Chains, labels: list[StageLinks], starts: Integers, ends: Integers
) -> _Seconds:
    device = np.array([label.own for label in labels], dtype=np.int64)
    work, none = chains.stages.seconds(device, starts, ends), np.zeros(starts.size)
    values, gradients = chains.stages.exchanges(starts, ends), chains.back.exchanges(starts, ends)
    there, back = (Transfers(problem, labels, back=is_back) for is_back in (False, True))
    # Gradients go back for what is received, and come back for what is sent.
    returned, awaited = gradients.received_bytes, gradients.sent_bytes
    received = there.received_seconds(values.received_bytes, none, values.receives)
    handed_on = work + received + back.sent_seconds(awaited, none, awaited > 0)
    load = handed_on + there.sent_seconds(values.sent_bytes, none, values.sends)
    load += back.received_seconds(returned, none, returned > 0)
    memory = problem.device_memory_bytes[device].astype(np.float64)
    if memory.min() < everything_bytes(problem):
        load = np.where(chains.stages.peak_bytes(starts, ends) <= memory[:, None], load, np.inf)
    forward = work / (1 + float(problem.least_backward_ratio.max())) + received
    return _Seconds(forward, handed_on, load, np.maximum(longer_share(problem) * work, load / 2))


def _of_step(training: Training, seconds: _Seconds, is_aside: Booleans) -> dict[str, Floats]:
    """What the kernel knows of each stage on each kind."""
    m, cannot_be = training.microbatches, np.isinf(seconds.load)
    forward, handed_on, load, longer = (np.where(cannot_be, 0.0, some) for some in seconds)
    nothing = np.zeros_like(load)
    if training.schedule not in UNSPLIT_SCHEDULES:
        # Passes for weights may be last: only forward passes come before another stage's for sure.
        onward, after_first, around, late = forward, m * load, nothing, nothing
    elif training.schedule is PipelineSchedule.GPIPE:
        onward, after_first, around, late = handed_on, (m - 1) * load + handed_on, (m - 1) * load, nothing
    else:
        onward, after_first, around, late = handed_on, (m - 1) * load + handed_on, (m - 1) * longer, load - longer
    return {
        "onward": onward,
        "after_first": np.where(cannot_be, np.inf, after_first),
        "around": np.where(is_aside, -np.inf, around),
        "late": np.maximum(late, 0.0),
    }
