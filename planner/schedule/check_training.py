"""Proves of a training schedule, before anything is sent, that the step it describes is the plan's training step.

- Complete: every device does each pass, message, sum and optimizer step that the plan asks of it exactly once.
- In order: a pass runs after the device has received what it reads, a message leaves after the pass that makes it, and
  a backward pass follows its forward pass. A sum among copies follows every backward pass (for weights, where they are
  split) of its stage on the device. A sum of tied gradients follows those of every stage of the device that holds
  them, and those stages' sums among copies. Devices agree once each of them has done all of that, and an optimizer step
  follows, so that no pass of a stage sees weights that were stepped already.
- It ends: each message arrives where and in the order in which it is taken, and no device waits for ever, neither for a
  message or a buffer, nor for another device to join a sum.
- It fits: no copy of a stage keeps more microbatches than memory was planned for.

That holds whatever the timing: devices are deterministic and talk over channels with one sender and one receiver each
(a Kahn network), and sums wait for all who share in them, so one dry run in any order stands for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import PlanInvariantError
from planner.plan.invariants.memory import kept_microbatches
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.copies import copy_of
from planner.schedule.training import TrainingSchedule, reducing_stages, tie_devices

# What PlanInvariantError's metadata call a step that more buffers might help.
NO_DEADLOCK = "no_deadlock"
_SENDS = {Kind.SEND: Kind.RECEIVE, Kind.SEND_GRADIENT: Kind.RECEIVE_GRADIENT}
_RECEIVES = {receive: send for send, receive in _SENDS.items()}


def check_training_schedule(
    schedule: TrainingSchedule, plan: Plan, *, capacity: int = 2, depths: Sequence[int] = ()
) -> None:
    """Raises PlanInvariantError. `capacity`: messages that an edge holds in each direction before its sender waits;
    `depths`: by edge of the plan, where some hold more.

    Linear in the actions, but for tied gradients: each sum looks at the backward passes of all stages that share in it.
    """
    _check_microbatches(schedule, plan)
    _check_devices(schedule, plan)
    _check_complete(schedule, plan)
    _check_dependences(schedule, plan)
    _check_kept(schedule, plan)
    _DryRun(schedule, plan, [max(1, capacity, depth) for depth in depths or [0] * len(plan.edges)]).run()


def _check_microbatches(schedule: TrainingSchedule, plan: Plan) -> None:
    training = plan.options.training
    if training is None or schedule.microbatches != training.microbatches:
        needed = training.microbatches if training else "no training step"
        raise _broken("microbatches", f"the step is of {schedule.microbatches} microbatches, the plan is for {needed}")


def _check_devices(schedule: TrainingSchedule, plan: Plan) -> None:
    used = {device_id for stage in plan.stages for device_id in stage.device_ids}
    device_ids = [device.device_id for device in schedule.devices]
    if len(set(device_ids)) != len(device_ids) or set(device_ids) != used:
        raise _broken("devices", f"there are actions for devices {device_ids}, the stages are on {sorted(used)}")


def _check_complete(schedule: TrainingSchedule, plan: Plan) -> None:
    """Every device does exactly what its stages ask for, whatever the order."""
    split = _is_split(schedule)
    for device in schedule.devices:
        actions = Counter(device.actions)
        needed = Counter(_needed(plan, device.device_id, schedule.microbatches, split))
        if actions != needed:
            extra, missing = list((actions - needed).elements()), list((needed - actions).elements())
            raise _broken(
                "matching_actions", f"device {device.device_id!r}: {extra[:3]} too many, {missing[:3]} missing"
            )


def _is_split(schedule: TrainingSchedule) -> bool:
    return any(action.kind is Kind.BACKWARD_INPUT for device in schedule.devices for action in device.actions)


def _needed(plan: Plan, device_id: str, microbatches: int, split: bool) -> Iterator[Action]:
    neighbours = _neighbours(plan)
    for stage in plan.stages:
        if device_id not in stage.device_ids:
            continue
        passes = [Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT] if split else [Kind.FORWARD, Kind.BACKWARD]
        for k in range(stage.device_ids.index(device_id), microbatches, len(stage.device_ids)):
            yield from (Action(kind, stage.index, k) for kind in passes)
            if stage.index == 0:
                yield Action(Kind.TAKE_INPUT, 0, k)
            if stage.index == len(plan.stages) - 1:
                yield Action(Kind.GIVE_OUTPUT, stage.index, k)
            yield from (Action(Kind.RECEIVE, edge, k) for edge in neighbours.entering[stage.index])
            yield from (Action(Kind.SEND, edge, k) for edge in neighbours.leaving[stage.index])
            yield from (Action(Kind.SEND_GRADIENT, edge, k) for edge in neighbours.owed[stage.index])
            yield from (Action(Kind.RECEIVE_GRADIENT, edge, k) for edge in neighbours.awaited[stage.index])
        if stage.index in reducing_stages(plan):
            yield Action(Kind.REDUCE_GRADIENTS, stage.index)
        if stage.memory.gradient_bytes:
            yield Action(Kind.OPTIMIZER_STEP, stage.index)
    for tie in range(len(plan.tie_groups)):
        if device_id in tie_devices(plan, tie):
            yield Action(Kind.REDUCE_TIED, tie)
    yield Action(Kind.AGREE, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbours:
    """By stage, positions in Plan.edges: what enters and leaves, and of those what a gradient comes back over."""

    entering: Sequence[Sequence[int]]
    leaving: Sequence[Sequence[int]]
    owed: Sequence[Sequence[int]]
    awaited: Sequence[Sequence[int]]


def _neighbours(plan: Plan) -> _Neighbours:
    entering: list[list[int]] = [[] for _ in plan.stages]
    leaving: list[list[int]] = [[] for _ in plan.stages]
    for index, edge in enumerate(plan.edges):
        entering[edge.target_stage].append(index)
        leaving[edge.source_stage].append(index)
    has_gradient = [bool(edge.gradient_value_ids) for edge in plan.edges]
    return _Neighbours(
        entering=entering,
        leaving=leaving,
        owed=[[index for index in edges if has_gradient[index]] for edges in entering],
        awaited=[[index for index in edges if has_gradient[index]] for edges in leaving],
    )


def _check_dependences(schedule: TrainingSchedule, plan: Plan) -> None:
    dependences = _Dependences(plan, split=_is_split(schedule))
    for device in schedule.devices:
        own, done = set(device.actions), set[Action]()
        for action in device.actions:
            for before in dependences.of(action):
                if before in own and before not in done:
                    raise _broken("order", f"device {device.device_id!r} does {action} before {before}")
            done.add(action)


class _Dependences:
    """What has to be done before an action on the same device, as far as that device does it."""

    def __init__(self, plan: Plan, *, split: bool) -> None:
        self._plan = plan
        self._neighbours = _neighbours(plan)
        self._input_pass = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
        self._weight_pass = Kind.BACKWARD_WEIGHT if split else Kind.BACKWARD
        self._holders = [
            tuple(sorted({stage for _, stage in group.members})) if group.requires_grad and group.size_bytes else ()
            for group in plan.tie_groups
        ]
        self._ties: list[list[int]] = [[] for _ in plan.stages]
        for tie, stages in enumerate(self._holders):
            for stage in stages:
                self._ties[stage].append(tie)

    def of(self, action: Action) -> Iterator[Action]:
        kind, index, k = action.kind, action.index, action.microbatch
        if kind is Kind.FORWARD:
            yield from (Action(Kind.RECEIVE, edge, k) for edge in self._neighbours.entering[index])
            yield Action(Kind.TAKE_INPUT, index, k)
        elif kind is Kind.SEND:
            yield Action(Kind.FORWARD, self._plan.edges[index].source_stage, k)
        elif kind is Kind.GIVE_OUTPUT:
            yield Action(Kind.FORWARD, index, k)
        elif kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            yield Action(Kind.FORWARD, index, k)
            yield from (Action(Kind.RECEIVE_GRADIENT, edge, k) for edge in self._neighbours.awaited[index])
        elif kind is Kind.BACKWARD_WEIGHT:
            yield Action(Kind.BACKWARD_INPUT, index, k)
        elif kind is Kind.SEND_GRADIENT:
            yield Action(self._input_pass, self._plan.edges[index].target_stage, k)
        elif kind is Kind.REDUCE_GRADIENTS:
            yield from self._passes(index)
        elif kind is Kind.REDUCE_TIED:
            yield from self._summed(index)
        elif kind is Kind.AGREE:
            for stage, ties in enumerate(self._ties):
                yield from self._passes(stage)
                yield Action(Kind.REDUCE_GRADIENTS, stage)
                yield from (Action(Kind.REDUCE_TIED, tie) for tie in ties)
        elif kind is Kind.OPTIMIZER_STEP:
            yield Action(Kind.AGREE, 0)

    def _passes(self, stage: int) -> Iterator[Action]:
        """Those that add to the gradients of a stage."""
        training = self._plan.options.training
        assert training is not None
        return (Action(self._weight_pass, stage, k) for k in range(training.microbatches))

    def _summed(self, tie: int) -> Iterator[Action]:
        """What has to be done in every stage that holds a tie group for its gradients to be those of the copies."""
        for stage in self._holders[tie]:
            yield from self._passes(stage)
            yield Action(Kind.REDUCE_GRADIENTS, stage)


def _check_kept(schedule: TrainingSchedule, plan: Plan) -> None:
    promised = kept_microbatches(plan)
    for device in schedule.devices:
        counts = [0] * len(plan.stages)
        for action in device.actions:
            if action.kind is Kind.FORWARD:
                counts[action.index] += 1
                if counts[action.index] > promised[action.index]:
                    raise _broken(
                        "kept_microbatches",
                        f"stage {action.index} keeps {counts[action.index]} microbatches on {device.device_id!r}, "
                        f"memory is planned for {promised[action.index]}",
                    )
            elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                counts[action.index] -= 1


class _DryRun:
    """Each device as far as it gets; a message belongs to an edge, a direction and the two copies at its ends."""

    def __init__(self, schedule: TrainingSchedule, plan: Plan, capacities: Sequence[int]) -> None:
        self._plan = plan
        self._capacities = capacities
        self._devices = {device.device_id: device.actions for device in schedule.devices}
        self._position = dict.fromkeys(self._devices, 0)
        self._held: dict[tuple[Kind, int, str, str], list[int]] = {}
        self._arrived: dict[Action, set[str]] = {}

    def run(self) -> None:
        while sum(self._advance(device_id) for device_id in self._devices):
            pass
        stuck = [(device_id, actions[self._position[device_id]]) for device_id, actions in self._unfinished()]
        if stuck:
            waits = "; ".join(f"{device_id!r} at {action}" for device_id, action in stuck)
            raise _broken(NO_DEADLOCK, f"every device that is not done waits: {waits}")

    def _unfinished(self) -> Iterator[tuple[str, Sequence[Action]]]:
        return ((name, actions) for name, actions in self._devices.items() if self._position[name] < len(actions))

    def _advance(self, device_id: str) -> bool:
        actions, start = self._devices[device_id], self._position[device_id]
        while self._position[device_id] < len(actions) and self._do(device_id, actions[self._position[device_id]]):
            self._position[device_id] += 1
        return self._position[device_id] > start

    def _do(self, device_id: str, action: Action) -> bool:
        if action.kind in _SENDS:
            channel = self._channel(action, action.kind)
            buffered = self._held.setdefault(channel, [])
            # A device hands over to itself: nothing is buffered.
            if len(buffered) >= self._capacities[action.index] and channel[2] != channel[3]:
                return False
            buffered.append(action.microbatch)
        elif action.kind in _RECEIVES:
            buffered = self._held.get(self._channel(action, _RECEIVES[action.kind]), [])
            if not buffered:
                return False
            if buffered[0] != action.microbatch:
                raise _broken(
                    "matching_order", f"{device_id!r} is at {action}, and microbatch {buffered[0]} comes first"
                )
            buffered.pop(0)
        elif action.kind in (Kind.REDUCE_GRADIENTS, Kind.REDUCE_TIED, Kind.AGREE):
            arrived = self._arrived.setdefault(action, set())
            arrived.add(device_id)
            return len(arrived) == len(self._partners(action))
        return True

    def _partners(self, action: Action) -> tuple[str, ...]:
        if action.kind is Kind.AGREE:
            return tuple(self._devices)
        if action.kind is Kind.REDUCE_TIED:
            return tie_devices(self._plan, action.index)
        return self._plan.stages[action.index].device_ids

    def _channel(self, action: Action, send: Kind) -> tuple[Kind, int, str, str]:
        edge = self._plan.edges[action.index]
        source, target = (
            copy_of(self._plan, stage, action.microbatch) for stage in (edge.source_stage, edge.target_stage)
        )
        return send, action.index, source, target


def _broken(invariant: str, what: str) -> PlanInvariantError:
    return PlanInvariantError(f"training schedule: {invariant}: {what}", invariant=invariant)
