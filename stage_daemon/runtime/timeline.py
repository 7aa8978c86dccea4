"""When a thread did which action: the measured side of a schedule's timeline.

The actions of a lane follow each other without a gap, so one reading of the clock after each is enough: an action
began when the one before it ended. What is kept has a fixed size, and nothing is allocated per microbatch. One thread
writes, by `ActionLoop`; any may read.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stage_daemon.runtime.actions import Action, Kind

# Of actions; a lane of four keeps its last 3,000 microbatches in 256 KiB.
CAPACITY = 1 << 14
COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.OPTIMIZER_STEP})
RECEIVES = frozenset({Kind.TAKE_INPUT, Kind.RECEIVE, Kind.RECEIVE_GRADIENT})
SENDS = frozenset({Kind.GIVE_OUTPUT, Kind.SEND, Kind.SEND_GRADIENT})

# In the place of an action of a run that stands in another thread's timeline.
ELSEWHERE = -1

clock = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAction:
    """`stage` is the stage that the action is for; of what a device does once for all its stages, the first of them."""

    action: Action
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    timed: TimedAction
    since_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTimes:
    """All actions of one kind for one stage: how many, and how long in all; the percentiles are of the latest."""

    kind: Kind
    stage: int
    count: int
    seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`entries`, oldest first, are positions in `actions`, each with the moment at which it ended.

    A negative entry -1 - n begins run n, a microbatch or a training step, or goes on with it: what follows it began
    then.
    """

    actions: tuple[TimedAction, ...]
    entries: npt.NDArray[np.int64]
    end_seconds: npt.NDArray[np.float64]
    # By position in `actions`, since the timeline began.
    counts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    under_way: UnderWay | None

    def times(self) -> Iterator[ActivityTimes]:
        """In the order of the first action of each kind and stage; without those that have not been done yet."""
        together: dict[tuple[Kind, int], list[int]] = {}
        for position, timed in enumerate(self.actions):
            together.setdefault((timed.action.kind, timed.stage), []).append(position)
        entry_seconds = np.diff(self.end_seconds, prepend=0.0)
        for (kind, stage), positions in together.items():
            recent = entry_seconds[np.isin(self.entries, positions)]
            if not len(recent):
                continue
            p50, p95, p99 = np.percentile(recent, (50, 95, 99)).tolist()
            yield ActivityTimes(
                kind=kind,
                stage=stage,
                count=int(self.counts[positions].sum()),
                seconds=float(self.seconds[positions].sum()),
                p50_seconds=p50,
                p95_seconds=p95,
                p99_seconds=p99,
            )


class Timeline:
    """`ends` and `position` belong to the thread that writes: see ActionLoop.run.

    Entries fill the ring from its start; at its end those of the lap are added to the totals and the next lap begins. A
    run lies in one piece.
    """

    def __init__(self, actions: Iterable[TimedAction], capacity: int = CAPACITY) -> None:
        self.actions = tuple(actions)
        self._capacity = max(capacity, len(self.actions) + 1)
        self._entries = array("q", bytes(8 * self._capacity))
        self.ends = array("d", bytes(8 * self._capacity))
        # Of the entry that is written next.
        self.position = 0
        # Entries from here on are of the lap before, up to `_lap_end`.
        self._claimed = 0
        self._run_end = 0
        self._lap_end = 0
        # Held while a lap is added up, and by whoever reads.
        self._lock = threading.Lock()
        self._counts = np.zeros(len(self.actions), np.int64)
        self._seconds = np.zeros(len(self.actions), np.float64)

    def begin(self, number: int, actions: array[int]) -> int:
        """The position of the first of the run's actions, which are positions in `self.actions`, or ELSEWHERE."""
        at = self.position
        if at + len(actions) >= self._capacity:
            self._end_lap()
            at = 0
        run_end = at + 1 + len(actions)
        # Readers trust what lies behind `_claimed`, and that an entry before `_run_end` is of this run: in this order.
        self._claimed = run_end
        self._entries[at] = -1 - number
        self._entries[at + 1 : run_end] = actions
        if ELSEWHERE in actions:
            for offset, action in enumerate(actions, at + 1):
                if action == ELSEWHERE:
                    self._entries[offset] = -1 - number
        self._run_end = run_end
        self.ends[at] = clock()
        self.position = at + 1
        return at + 1

    def under_way(self) -> UnderWay | None:
        """What the thread is doing, if it is in a run."""
        with self._lock:
            return self._under_way(self.position)

    def snapshot(self) -> Snapshot:
        with self._lock:
            position = self.position
            under_way = self._under_way(position)
            entries, ends = np.array(self._entries), np.array(self.ends)
            older = slice(self._claimed, max(self._claimed, self._lap_end))
            counts, seconds = self._added(entries[:position], ends[:position])
        [starts] = np.nonzero(entries[older] < 0)
        whole = slice(older.start + int(starts[0]), older.stop) if len(starts) else slice(0, 0)
        return Snapshot(
            actions=self.actions,
            entries=np.concatenate((entries[whole], entries[:position])),
            end_seconds=np.concatenate((ends[whole], ends[:position])),
            counts=counts,
            seconds=seconds,
            under_way=under_way,
        )

    def total_seconds(self, kinds: frozenset[Kind], stage: int | None = None) -> float:
        """Since the timeline began; of all stages where none is named."""
        with self._lock:
            position = self.position
            _, seconds = self._added(np.array(self._entries[:position]), np.array(self.ends[:position]))
        is_counted = [timed.action.kind in kinds and (stage is None or timed.stage == stage) for timed in self.actions]
        return float(seconds[is_counted].sum())

    def _under_way(self, position: int) -> UnderWay | None:
        if position >= self._run_end or self._entries[position] < 0:
            return None
        return UnderWay(timed=self.actions[self._entries[position]], since_seconds=self.ends[position - 1])

    def _end_lap(self) -> None:
        with self._lock:
            position = self.position
            self._counts, self._seconds = self._added(
                np.array(self._entries[:position]), np.array(self.ends[:position])
            )
            self._lap_end = position
            self._claimed = self._run_end = self.position = 0

    def _added(
        self, entries: npt.NDArray[np.int64], ends: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Counts and seconds with those of a lap so far."""
        is_action = entries >= 0
        done, num = entries[is_action], len(self.actions)
        entry_seconds = np.diff(ends, prepend=0.0)[is_action]
        return (
            self._counts + np.bincount(done, minlength=num),
            self._seconds + np.bincount(done, weights=entry_seconds, minlength=num),
        )


class SingleTimeline(Timeline):
    """Actions that are entered one by one, with gaps between them."""

    def __init__(self, actions: Iterable[TimedAction]) -> None:
        super().__init__(actions)
        self._entries_of = [array("q", [position]) for position in range(len(self.actions))]

    def enter(self, number: int, action: int, seconds: float) -> None:
        """What run `number` has done just now, a position in `actions`, and took so long."""
        end, position = clock(), self.begin(number, self._entries_of[action])
        self.ends[position - 1], self.ends[position] = end - seconds, end
        self.position = position + 1


class DeviceTimeline(SingleTimeline):
    """Passes of a device that computes by itself, each entered once it is done: how long it took is the device's word.

    One thread launches, another one waits and enters.
    """

    def __init__(self, actions: Iterable[TimedAction]) -> None:
        super().__init__(actions)
        # Of those that are not done yet: which, and since when.
        self._launched: deque[tuple[int, float]] = deque()

    def launching(self, action: int) -> None:
        self._launched.append((action, clock()))

    def done(self, number: int, seconds: float) -> None:
        """The pass that was launched first of those that are not done."""
        self.enter(number, self._launched[0][0], seconds)
        self._launched.popleft()

    def given_up(self) -> None:
        """What was launched last was not: it failed before the device had all of it."""
        self._launched.pop()

    def under_way(self) -> UnderWay | None:
        with suppress(IndexError):
            action, since_seconds = self._launched[0]
            return UnderWay(timed=self.actions[action], since_seconds=since_seconds)
        return None


def timed(actions: Sequence[Action], stages: Sequence[int]) -> tuple[TimedAction, ...]:
    """`stages` has the stage of each action."""
    return tuple(TimedAction(action=action, stage=stage) for action, stage in zip(actions, stages, strict=True))
