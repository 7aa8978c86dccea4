"""Which devices have been used when a segment starts: the states that a search over the program order walks through.

A step takes the next segment on some device. Where links are unequal, a state also knows the device before and the
device of its own segment, so that a step knows the links at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.device_classes import DeviceClasses
from planner.partition.problem import Integers

Key = tuple[int, ...]
Choices = Callable[[Key], Iterable[tuple[int, Key]]]
NOBODY = -1


class Label(NamedTuple):
    """Classes of devices, NOBODY where there is none or it does not matter; `kept_microbatches` in training, else 0."""

    before: int
    own: int
    after: int
    kept_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateSpace:
    """Step t goes from state `source[t]` to `target[t]` as `labels[label[t]]`.

    Steps are ordered by depth: `depth[s]` stages precede state s. A program ends in a state of `final`.
    """

    num_states: int
    starts: Integers
    final: Integers
    depth: Integers
    source: Integers
    target: Integers
    label: Integers
    labels: tuple[Label, ...]


def counted_choices(classes: DeviceClasses) -> Choices:
    """Any class that has a device left. A key is how many of each class are used."""
    counts = classes.counts()

    def choices(key: Key) -> Iterable[tuple[int, Key]]:
        for index, (used, count) in enumerate(zip(key, counts, strict=True)):
            if used < count:
                yield index, (*key[:index], used + 1, *key[index + 1 :])

    return choices


def ordered_choices(orders: Sequence[Sequence[int]]) -> Choices:
    """The next device of one of the given orders of classes. A key is (order, how many are used)."""

    def choices(key: Key) -> Iterable[tuple[int, Key]]:
        order, used = key
        if order == NOBODY:
            for index, classes in enumerate(orders):
                yield classes[0], (index, 1)
        elif used < len(orders[order]):
            yield orders[order][used], (order, used + 1)

    return choices


def num_counted_states(classes: DeviceClasses) -> int:
    states = 1
    for count in classes.counts():
        states *= count + 1
    return states if classes.uniform_links else states * len(classes.members) ** 2


def no_microbatches(stage: int) -> int:
    return 0


def build_space(
    start: Key,
    choices: Choices,
    *,
    num_stages: int,
    max_stages: int,
    linked: bool,
    kept_microbatches: Callable[[int], int] = no_microbatches,
) -> StateSpace:
    """`num_stages` 0 lets every number of stages end. `kept_microbatches`: of each stage. Linear in the steps."""
    walk = _Walk(choices, num_stages, max_stages, kept_microbatches)
    return walk.linked(start) if linked else walk.unlinked(start)


class _Walk:
    def __init__(
        self, choices: Choices, num_stages: int, max_stages: int, kept_microbatches: Callable[[int], int]
    ) -> None:
        self._kept_microbatches = kept_microbatches
        self._choices = choices
        self._num_stages = num_stages
        self._max_stages = num_stages or max_stages
        self._states: dict[tuple[Key, int, int], int] = {}
        self._depths: list[int] = []
        self._steps: list[tuple[int, int, int]] = []
        self._labels: dict[Label, int] = {}

    def unlinked(self, start: Key) -> StateSpace:
        frontier = [(start, self._state((start, NOBODY, NOBODY), 0))]
        depth = 0
        while frontier and depth < self._max_stages:
            depth += 1
            reached: dict[int, Key] = {}
            for key, source in frontier:
                for own, after in self._choices(key):
                    target = self._state((after, NOBODY, NOBODY), depth)
                    reached[target] = after
                    self._steps.append((source, target, self._label(depth, NOBODY, own, NOBODY)))
            frontier = [(key, target) for target, key in reached.items()]
        final = [state for state, at in enumerate(self._depths) if at and self._may_end(at)]
        return self._space([0], final)

    def linked(self, start: Key) -> StateSpace:
        end_state = self._state((start, NOBODY, NOBODY), 0)
        frontier = [((key, NOBODY, own), self._state((key, NOBODY, own), 0)) for own, key in self._choices(start)]
        starts = [state for _, state in frontier]
        depth = 0
        while frontier:
            depth += 1
            reached: dict[int, tuple[Key, int, int]] = {}
            for (key, before, own), source in frontier:
                if self._may_end(depth):
                    self._steps.append((source, end_state, self._label(depth, before, own, NOBODY)))
                for next_class, after in self._choices(key) if depth < self._max_stages else ():
                    target = self._state((after, own, next_class), depth)
                    reached[target] = (after, own, next_class)
                    self._steps.append((source, target, self._label(depth, before, own, next_class)))
            frontier = [(names, target) for target, names in reached.items()]
        self._depths[end_state] = depth + 1
        return self._space(starts, [end_state])

    def _may_end(self, stages: int) -> bool:
        return not self._num_stages or stages == self._num_stages

    def _state(self, names: tuple[Key, int, int], depth: int) -> int:
        if names not in self._states:
            self._states[names] = len(self._states)
            self._depths.append(depth)
        return self._states[names]

    def _label(self, depth: int, before: int, own: int, after: int) -> int:
        """Of the stage that is number `depth`, from 1."""
        label = Label(before, own, after, self._kept_microbatches(depth - 1))
        return self._labels.setdefault(label, len(self._labels))

    def _space(self, starts: list[int], final: list[int]) -> StateSpace:
        steps = np.array(self._steps, dtype=np.int64).reshape(-1, 3)
        return StateSpace(
            num_states=len(self._states),
            starts=np.array(starts, dtype=np.int64),
            final=np.array(final, dtype=np.int64),
            depth=np.array(self._depths, dtype=np.int64),
            source=steps[:, 0],
            target=steps[:, 1],
            label=steps[:, 2],
            labels=tuple(self._labels),
        )
