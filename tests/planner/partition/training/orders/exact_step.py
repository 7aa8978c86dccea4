"""The least seconds of a small training step, by trying every order of every device. Plain and slow.

Written from the rules alone, beside what it checks: a stage runs its passes in the order of the microbatches, a message
is there when its sender has computed, memory is counted as the most that each stage ever keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from planner.partition.training.orders.room import Room
from planner.partition.training.step_graph import TrainingStep

FORWARD, BACKWARD, WEIGHT = range(3)
_Pass = tuple[int, int, int]


def exact_seconds(step: TrainingStep, room: Room, at_most: float) -> float:
    """`at_most`, where no order takes less. Exponential in the passes."""
    return min(_Search(step, kept, at_most).least for kept in _limits(step, room))


def _limits(step: TrainingStep, room: Room) -> Iterator[tuple[int, ...]]:
    """Every way to limit what stages keep that fits; those that a larger one includes are left out."""
    counts = [range(1, -(-step.microbatches // len(devices)) + 1) for devices in step.copies]
    fitting = [kept for kept in product(*counts) if _fits(step, room, kept)]
    for kept in fitting:
        if not any(other != kept and all(a <= b for a, b in zip(kept, other, strict=True)) for other in fitting):
            yield kept


def _fits(step: TrainingStep, room: Room, kept: tuple[int, ...]) -> bool:
    for device, size in room.device_bytes.items():
        own = [stage for stage, devices in enumerate(step.copies) if device in devices]
        if sum(kept[stage] * room.saved_bytes[stage] for stage in own) > size and any(kept[one] > 1 for one in own):
            return False
    return True


class _Search:
    def __init__(self, step: TrainingStep, kept: tuple[int, ...], at_most: float) -> None:
        self._step, self._kept = step, kept
        self._passes = list(product(range(3), range(len(step.stages)), range(step.microbatches)))
        self._tails: dict[_Pass, float] = {}
        self.least = at_most
        self._try({}, {}, 0.0)

    def _try(self, begun: dict[_Pass, float], free: dict[int, float], now: float) -> None:
        """Passes in the order in which they begin, each as soon as it can."""
        if len(begun) == len(self._passes):
            self.least = min(self.least, self._end(free))
            return
        left = [one for one in self._passes if one not in begun]
        able, work, behind = list[tuple[float, _Pass]](), dict[int, float](), 0.0
        for one in left:
            work[self._device(one)] = work.get(self._device(one), 0.0) + self._seconds(one)
            at = self._earliest(one, begun)
            if at is not None:
                able.append((max(at, free.get(self._device(one), 0.0)), one))
                behind = max(behind, able[-1][0] + self._tail(one))
        ends = [max(free.get(device, 0.0), now) + seconds for device, seconds in work.items()]
        if max(*ends, behind) >= self.least:
            return
        for at, one in sorted(able):
            # What begins when another could be done with the same device leaves it idle for nothing.
            if at >= now and not any(
                self._device(other) == self._device(one) and begins >= now and begins + self._seconds(other) < at
                for begins, other in able
            ):
                self._try({**begun, one: at}, {**free, self._device(one): at + self._seconds(one)}, at)

    def _tail(self, one: _Pass) -> float:
        """The longest way to the end by messages and its own stage's passes, whatever else devices do."""
        kind, stage, k = one
        if one not in self._tails:
            behind = [self._seconds(one)]
            if kind == FORWARD:
                behind += [self._computed(one) + self._tail((FORWARD, t, k)) for s, t in self._step.edges if s == stage]
            if kind == BACKWARD:
                edges = self._step.gradient_edges
                behind += [self._computed(one) + self._tail((BACKWARD, s, k)) for s, t in edges if t == stage]
            if kind != WEIGHT:
                behind.append(self._seconds(one) + self._tail((kind + 1, stage, k)))
            self._tails[one] = max(behind)
        return self._tails[one]

    def _device(self, one: _Pass) -> int:
        devices = self._step.copies[one[1]]
        return devices[one[2] % len(devices)]

    def _seconds(self, one: _Pass) -> float:
        kind, stage = one[0], self._step.stages[one[1]]
        if kind == WEIGHT:
            return stage.weight_gradients
        return self._computed(one) + (stage.sent if kind == FORWARD else stage.gradients_sent)

    def _computed(self, one: _Pass) -> float:
        stage = self._step.stages[one[1]]
        if one[0] == FORWARD:
            return stage.received + stage.forward
        return stage.gradients_received + stage.input_gradients

    def _handover(self, one: _Pass) -> float:
        stage = self._step.stages[one[1]]
        return stage.handover if one[0] == FORWARD else stage.gradients_handover

    def _earliest(self, one: _Pass, begun: dict[_Pass, float]) -> float | None:
        kind, stage, k = one
        copies = len(self._step.copies[stage])
        done: list[_Pass] = [(kind, stage, k - copies)]
        if kind == FORWARD:
            done.append((WEIGHT, stage, k - copies * self._kept[stage]))
            told = [(FORWARD, source, k) for source, target in self._step.edges if target == stage]
        elif kind == BACKWARD:
            done.append((FORWARD, stage, k))
            told = [(BACKWARD, target, k) for source, target in self._step.gradient_edges if source == stage]
        else:
            done.append((BACKWARD, stage, k))
            told = []
        done = [other for other in done if other[2] >= 0]
        if any(other not in begun for other in (*done, *told)):
            return None
        ends = [begun[other] + self._seconds(other) for other in done]
        return max([0.0, *ends, *(begun[other] + self._computed(other) + self._handover(other) for other in told)])

    def _end(self, free: dict[int, float]) -> float:
        free = dict(free)
        for reduction in self._step.reductions:
            done = max(free.get(device, 0.0) for device in reduction.devices) + reduction.seconds
            free.update(dict.fromkeys(reduction.devices, done))
        return max(free.values())
