"""The order of each device's passes in one training step, for the schedules that have a rule.

`pipeline_order` has those for any stages. Here are those for devices that hold two stages each, in a V, the first half
of the stages there, the second half back.

A microbatch's passes are laid out once and repeated every six units of time, two stages' passes of one unit each (Qi et
al. 2024, "Pipeline parallelism with controllable memory"). How much later the next device has its turn says how long
microbatches are on their way, and so how many are kept:

- ZB-V (Qi et al. 2023): as much as 1F1B keeps, 2 x devices of half a device's size; no bubble but the first
  microbatch's way where all passes take as long.
- V-Half: about half of that, and half of 1F1B's bubble.

Weights' passes go where a device would wait, or where it keeps as many as it may. Any number of microbatches will do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import OptionsError
from planner.partition.objective import V_SCHEDULES, PipelineSchedule
from planner.partition.training.pipeline_order import Pass, Step, pipeline_orders


def device_orders(
    schedule: PipelineSchedule, microbatches: int, devices_of_stage: Sequence[Sequence[int]]
) -> dict[int, tuple[Step, ...]]:
    """By device, in the order of their first stages. `planner.partition.training.orders` searches the best order.

    Raises OptionsError for a schedule that needs its stages to stand otherwise.
    """
    assert schedule is not PipelineSchedule.BEST, "the best order has no rule"
    rule = v_orders if schedule in V_SCHEDULES else pipeline_orders
    orders = rule(schedule, microbatches, devices_of_stage)
    return {device: _share(order, device, devices_of_stage) for device, order in orders.items()}


def _share(order: Sequence[Step], device: int, devices_of_stage: Sequence[Sequence[int]]) -> tuple[Step, ...]:
    """The steps that fall to this copy."""
    copy = {stage: list(devices).index(device) for stage, devices in enumerate(devices_of_stage) if device in devices}
    return tuple(step for step in order if step.microbatch % len(devices_of_stage[step.stage]) == copy[step.stage])


_INTERVAL = 6


@dataclass(frozen=True, slots=True)
class _Layout:
    """How much later the next device in the way has its turn: through the first half of the stages, through the second,
    and back through these. The sums of both halves are equal, so that all devices keep as many."""

    first_forward: int
    second_forward: int
    second_backward: int
    first_backward: int
    spare: int

    def most_kept(self, num_devices: int) -> int:
        """On each device, of both of its stages: the way there and back over the interval, and some to spare."""
        return num_devices * 2 * (self.first_forward + self.first_backward) // _INTERVAL + self.spare


# Of all ways to part 6 and 3 between there and back, these wait least where all passes take as long.
_LAYOUTS = {PipelineSchedule.ZERO_BUBBLE_V: _Layout(3, 3, 3, 3, 0), PipelineSchedule.V_HALF: _Layout(1, 2, 1, 2, 2)}


def v_orders(
    schedule: PipelineSchedule, microbatches: int, devices_of_stage: Sequence[Sequence[int]]
) -> dict[int, list[Step]]:
    """By device, in the order of the V. Raises OptionsError for stages that do not stand in one."""
    if not stands_in_v(devices_of_stage):
        raise OptionsError(
            f"schedule {schedule.value} needs two stages on each device, in a V: the first and the last on one, the "
            f"second and the last but one on the next, without copies; these {len(devices_of_stage)} stages stand on "
            f"devices {[list(devices) for devices in devices_of_stage[:8]]}: plan with mode optimal or balanced, which "
            f"place them so, or choose another schedule"
        )
    num_stages, layout = len(devices_of_stage), _LAYOUTS[schedule]
    turns = _turns(layout, num_stages // 2)
    orders = [_in_turn([stage, num_stages - 1 - stage], turns, microbatches) for stage in range(num_stages // 2)]
    filled = _Filled(orders, num_stages, layout.most_kept(num_stages // 2)).run()
    return {devices_of_stage[stage][0]: order for stage, order in enumerate(filled)}


def stands_in_v(devices_of_stage: Sequence[Sequence[int]]) -> bool:
    """Whether each device has two stages, as far from the first as from the last, and none has copies."""
    where = [tuple(devices) for devices in devices_of_stage]
    half = len(where) // 2
    return where == where[::-1] and len(set(where)) == half == len(where) - half and all(len(own) == 1 for own in where)


def _turns(layout: _Layout, num_devices: int) -> dict[tuple[Pass, int], int]:
    """When each stage runs the first microbatch's forward and backward pass."""
    num_stages, turns, now = 2 * num_devices, dict[tuple[Pass, int], int](), 0
    for stage in range(num_stages):
        turns[Pass.FORWARD, stage] = now
        now += 1 if stage == num_devices - 1 else layout.first_forward if stage < num_devices else layout.second_forward
    now = turns[Pass.FORWARD, num_stages - 1] + 1
    for stage in reversed(range(num_stages)):
        turns[Pass.BACKWARD_INPUT, stage] = now
        now += 1 if stage == num_devices else layout.first_backward if stage < num_devices else layout.second_backward
    return turns


def _in_turn(stages: Sequence[int], turns: dict[tuple[Pass, int], int], microbatches: int) -> deque[Step]:
    """A device's passes but for weights. What goes back is first where both have their turn at once."""
    timed = [
        (turns[kind, stage] + _INTERVAL * k, kind is Pass.FORWARD, -stage, Step(kind, stage, k))
        for kind in (Pass.FORWARD, Pass.BACKWARD_INPUT)
        for stage in stages
        for k in range(microbatches)
    ]
    return deque(step for *_, step in sorted(timed, key=lambda one: one[:3]))


class _Filled:
    """All devices in time, each pass of one unit: what has its turn if it can run, else a weights' pass."""

    def __init__(self, turns: Sequence[deque[Step]], num_stages: int, most_kept: int) -> None:
        self._turns, self._num_stages, self._most_kept = turns, num_stages, most_kept
        self._weights: list[deque[Step]] = [deque() for _ in turns]
        self._kept = [0] * len(turns)
        self._done: set[Step] = set()

    def run(self) -> list[list[Step]]:
        orders: list[list[Step]] = [[] for _ in self._turns]
        while any(self._turns) or any(self._weights):
            run = [(device, step) for device in range(len(orders)) if (step := self._next(device)) is not None]
            for device, step in run:
                orders[device].append(step)
                self._finish(device, step)
        return orders

    def _next(self, device: int) -> Step | None:
        turns, weights = self._turns[device], self._weights[device]
        if turns and self._can_run(turns[0]):
            is_full = turns[0].kind is Pass.FORWARD and self._kept[device] >= self._most_kept
            if not (is_full and weights):
                return turns.popleft()
        return weights.popleft() if weights else None

    def _can_run(self, step: Step) -> bool:
        if step.kind is Pass.FORWARD:
            return not step.stage or Step(Pass.FORWARD, step.stage - 1, step.microbatch) in self._done
        if step.stage == self._num_stages - 1:
            return Step(Pass.FORWARD, step.stage, step.microbatch) in self._done
        return Step(Pass.BACKWARD_INPUT, step.stage + 1, step.microbatch) in self._done

    def _finish(self, device: int, step: Step) -> None:
        self._done.add(step)
        if step.kind is Pass.FORWARD:
            self._kept[device] += 1
        elif step.kind is Pass.BACKWARD_INPUT:
            self._weights[device].append(Step(Pass.BACKWARD_WEIGHT, step.stage, step.microbatch))
        else:
            self._kept[device] -= 1
