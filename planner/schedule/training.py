"""The schedule of a training step: what each device does, in order, with the microbatch that it does it for.

The order of the passes is that of `planner.plan.pass_orders`; around each stand the messages that it needs and makes. A
step ends with the sums of gradients, then with the optimizer's steps once all devices agree that every gradient is
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from planner.partition.training.pipeline_order import Pass, Step
from planner.plan.pass_orders import pass_orders
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind

PASSES = {
    Pass.FORWARD: Kind.FORWARD,
    Pass.BACKWARD: Kind.BACKWARD,
    Pass.BACKWARD_INPUT: Kind.BACKWARD_INPUT,
    Pass.BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceActions:
    device_id: str
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSchedule:
    """Devices in the order of their first stages. A message needs a free buffer of its edge, not a waiting receiver."""

    microbatches: int
    devices: tuple[DeviceActions, ...]


def training_schedule(plan: Plan) -> TrainingSchedule:
    """Linear in the actions. Raises OptionsError for a plan without training."""
    orders = pass_orders(plan)
    assert plan.options.training is not None
    writer = _Writer(plan)
    return TrainingSchedule(
        microbatches=plan.options.training.microbatches,
        devices=tuple(
            DeviceActions(
                device_id=device_id,
                actions=(
                    *(action for step in order for action in writer.actions(step)),
                    *writer.last_actions(device_id),
                ),
            )
            for device_id, order in orders.items()
        ),
    )


def reducing_stages(plan: Plan) -> dict[int, int]:
    """Stages whose copies have gradients to sum, and their bytes: all but those of ties, which are summed apart."""
    tied = Counter[int]()
    for tie, group in enumerate(plan.tie_groups):
        if tie_devices(plan, tie):
            tied.update(dict.fromkeys((stage for _, stage in group.members), group.size_bytes))
    copied = [stage for stage in plan.stages if len(stage.device_ids) > 1]
    own = {stage.index: stage.memory.gradient_bytes - tied[stage.index] for stage in copied}
    return {stage: size_bytes for stage, size_bytes in own.items() if size_bytes > 0}


def tie_devices(plan: Plan, tie: int) -> tuple[str, ...]:
    """Devices that sum the gradients of a tie group; none where it is on one device or not trained."""
    group = plan.tie_groups[tie]
    if not group.requires_grad or not group.size_bytes:
        return ()
    stages = sorted({stage for _, stage in group.members})
    devices = tuple(dict.fromkeys(device for stage in stages for device in plan.stages[stage].device_ids))
    return devices if len(devices) > 1 else ()


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._entering: list[list[int]] = [[] for _ in plan.stages]
        self._leaving: list[list[int]] = [[] for _ in plan.stages]
        for index, edge in enumerate(plan.edges):
            self._entering[edge.target_stage].append(index)
            self._leaving[edge.source_stage].append(index)
        self._has_gradient = [bool(edge.gradient_value_ids) for edge in plan.edges]

    def actions(self, step: Step) -> Iterator[Action]:
        """A pass with its messages: in the order of the other end's stage, as all devices keep it."""
        entering, leaving, k = self._entering[step.stage], self._leaving[step.stage], step.microbatch
        if step.kind is Pass.FORWARD:
            if step.stage == 0:
                yield Action(Kind.TAKE_INPUT, 0, k)
            yield from (Action(Kind.RECEIVE, edge, k) for edge in entering)
        elif step.kind is not Pass.BACKWARD_WEIGHT:
            awaited = (edge for edge in leaving if self._has_gradient[edge])
            yield from (Action(Kind.RECEIVE_GRADIENT, edge, k) for edge in awaited)
        yield Action(PASSES[step.kind], step.stage, k)
        if step.kind is Pass.FORWARD:
            yield from (Action(Kind.SEND, edge, k) for edge in leaving)
            if step.stage == len(self._plan.stages) - 1:
                yield Action(Kind.GIVE_OUTPUT, step.stage, k)
        elif step.kind is not Pass.BACKWARD_WEIGHT:
            owed = (edge for edge in entering if self._has_gradient[edge])
            yield from (Action(Kind.SEND_GRADIENT, edge, k) for edge in owed)

    def last_actions(self, device_id: str) -> Iterator[Action]:
        """Sums in one order for all devices, so that none waits for another's next."""
        plan = self._plan
        own = [stage for stage in plan.stages if device_id in stage.device_ids]
        for index in reducing_stages(plan):
            if device_id in plan.stages[index].device_ids:
                yield Action(Kind.REDUCE_GRADIENTS, index)
        for tie in range(len(plan.tie_groups)):
            if device_id in tie_devices(plan, tie):
                yield Action(Kind.REDUCE_TIED, tie)
        yield Action(Kind.AGREE, 0)
        for stage in own:
            if stage.memory.gradient_bytes:
                yield Action(Kind.OPTIMIZER_STEP, stage.index)
