"""Runs a training schedule on symbols: which microbatches of which stages are in each gradient when it is applied.

What is right is said by the result alone: every trained state is stepped once per copy, with the gradients of all
microbatches of all stages that hold it, each made with weights that were not stepped yet.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.training import TrainingSchedule

OWN = "own"
_PASSES = {Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
State = str
# How often each (stage, microbatch) has been added.
Gradient = Counter[tuple[int, int]]


class WrongStep(Exception):
    pass


@dataclass
class Machine:
    """One device: what it has made or received, and by (stage, state) the gradients that it has summed so far."""

    actions: Sequence[Action]
    position: int = 0
    made: set[tuple[object, ...]] = field(default_factory=set)
    gradients: dict[tuple[int, State], Gradient] = field(default_factory=dict)
    agreed: dict[tuple[int, State], Gradient] | None = None
    stepped: set[int] = field(default_factory=set)
    kept: Counter[int] = field(default_factory=Counter)

    def need(self, *what: object) -> None:
        if what not in self.made:
            raise WrongStep(f"lacks {what}")


@dataclass
class SymbolicStep:
    """`room`: microbatches that each stage may keep. `buffers`: of each edge, direction and pair of devices."""

    plan: Plan
    schedule: TrainingSchedule
    room: Mapping[int, int]
    buffers: int = 2

    def __post_init__(self) -> None:
        self.machines = {device.device_id: Machine(device.actions) for device in self.schedule.devices}
        self.messages: dict[tuple[object, ...], deque[int]] = {}
        self.joined: dict[Action, set[str]] = {}

    def run(self) -> None:
        """Raises WrongStep unless the step ends, and is right."""
        while any(self._advance(name) for name in self.machines):
            pass
        for name, machine in self.machines.items():
            if machine.position < len(machine.actions):
                raise WrongStep(f"{name} waits for ever at {machine.actions[machine.position]}")
            for stage in self.plan.stages:
                if name in stage.device_ids and stage.memory.gradient_bytes and stage.index not in machine.stepped:
                    raise WrongStep(f"{name} never steps stage {stage.index}")

    def states(self, stage: int) -> list[State]:
        tied = [f"tie {index}" for index, group in enumerate(self.plan.tie_groups) if stage in dict_of(group.members)]
        return [OWN, *tied]

    def holders(self, stage: int, state: State) -> list[int]:
        if state == OWN:
            return [stage]
        return sorted(dict_of(self.plan.tie_groups[int(state.split()[1])].members))

    def _advance(self, name: str) -> bool:
        machine = self.machines[name]
        start = machine.position
        while machine.position < len(machine.actions) and self._do(name, machine, machine.actions[machine.position]):
            machine.position += 1
        return machine.position > start

    def _do(self, name: str, machine: Machine, action: Action) -> bool:
        kind, index, k = action.kind, action.index, action.microbatch
        if machine.agreed is not None and kind in _PASSES:
            raise WrongStep(f"{name} does {action} after all have agreed that every gradient is there")
        if kind is Kind.TAKE_INPUT:
            machine.made.add(("input", k))
        elif kind in (Kind.RECEIVE, Kind.RECEIVE_GRADIENT):
            return self._receive(machine, action)
        elif kind in (Kind.SEND, Kind.SEND_GRADIENT):
            return self._send(machine, action)
        elif kind is Kind.FORWARD:
            self._forward(machine, index, k)
        elif kind is Kind.BACKWARD_WEIGHT:
            machine.need("input gradient", index, k)
            self._add(machine, index, k)
        elif kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            self._backward(machine, index, k)
            if kind is Kind.BACKWARD:
                self._add(machine, index, k)
        elif kind is Kind.GIVE_OUTPUT:
            machine.need("output", index, k)
        elif kind is Kind.OPTIMIZER_STEP:
            self._step(name, machine, index)
        else:
            return self._reduce(name, action)
        return True

    def _queue(self, action: Action, back: bool) -> tuple[deque[int], bool]:
        """The messages under way, and whether they stay on one device."""
        edge = self.plan.edges[action.index]
        ends = [self.plan.stages[stage].device_ids for stage in (edge.source_stage, edge.target_stage)]
        source, target = (names[action.microbatch % len(names)] for names in ends)
        return self.messages.setdefault((action.index, back, source, target), deque()), source == target

    def _receive(self, machine: Machine, action: Action) -> bool:
        back = action.kind is Kind.RECEIVE_GRADIENT
        queue, _ = self._queue(action, back)
        if not queue:
            return False
        if queue.popleft() != action.microbatch:
            raise WrongStep(f"{action} takes another microbatch's message")
        machine.made.add(("message", action.index, back, action.microbatch))
        return True

    def _send(self, machine: Machine, action: Action) -> bool:
        edge, back = self.plan.edges[action.index], action.kind is Kind.SEND_GRADIENT
        queue, is_local = self._queue(action, back)
        if len(queue) >= self.buffers and not is_local:
            return False
        if back:
            machine.need("input gradient", edge.target_stage, action.microbatch)
        else:
            machine.need("output", edge.source_stage, action.microbatch)
        queue.append(action.microbatch)
        return True

    def _forward(self, machine: Machine, stage: int, k: int) -> None:
        if stage == 0:
            machine.need("input", k)
        for index, edge in enumerate(self.plan.edges):
            if edge.target_stage == stage:
                machine.need("message", index, False, k)
        machine.kept[stage] += 1
        if stage in machine.stepped or machine.kept[stage] > self.room[stage]:
            raise WrongStep(f"stage {stage} has other weights, or no room")
        machine.made.add(("output", stage, k))

    def _backward(self, machine: Machine, stage: int, k: int) -> None:
        machine.need("output", stage, k)
        for index, edge in enumerate(self.plan.edges):
            if edge.source_stage == stage and edge.gradient_value_ids:
                machine.need("message", index, True, k)
        if stage in machine.stepped:
            raise WrongStep(f"stage {stage} has other weights")
        machine.made.add(("input gradient", stage, k))

    def _add(self, machine: Machine, stage: int, k: int) -> None:
        machine.kept[stage] -= 1
        for state in self.states(stage):
            machine.gradients.setdefault((stage, state), Counter())[stage, k] += 1

    def _reduce(self, name: str, action: Action) -> bool:
        """Ends on all devices at once, when the last of them has joined."""
        joined = self.joined.setdefault(action, set())
        if name in joined:
            return len(joined) == len(self._sharing(action))
        joined.add(name)
        if len(joined) < len(self._sharing(action)):
            return False
        if action.kind is Kind.AGREE:
            for machine in self.machines.values():
                machine.agreed = {key: Counter(gradient) for key, gradient in machine.gradients.items()}
        elif action.kind is Kind.REDUCE_GRADIENTS:
            for state in self.states(action.index):
                self._set(action.index, state, sum(self._copies(action.index, state), Counter()))
        else:
            self._reduce_tied(action.index)
        return True

    def _reduce_tied(self, tie: int) -> None:
        state, total = f"tie {tie}", Gradient()
        stages = sorted(dict_of(self.plan.tie_groups[tie].members))
        for stage in stages:
            first, *others = self._copies(stage, state)
            if any(other != first for other in others):
                raise WrongStep(f"copies of stage {stage} have not summed the gradients of {state} yet")
            total += first
        for stage in stages:
            self._set(stage, state, total)

    def _sharing(self, action: Action) -> set[str]:
        if action.kind is Kind.AGREE:
            return set(self.machines)
        stages = [action.index]
        if action.kind is Kind.REDUCE_TIED:
            stages = sorted(dict_of(self.plan.tie_groups[action.index].members))
        return {name for stage in stages for name in self.plan.stages[stage].device_ids}

    def _copies(self, stage: int, state: State) -> list[Gradient]:
        names = self.plan.stages[stage].device_ids
        return [self.machines[name].gradients.get((stage, state), Counter()) for name in names]

    def _set(self, stage: int, state: State, gradient: Gradient) -> None:
        for name in self.plan.stages[stage].device_ids:
            self.machines[name].gradients[stage, state] = Counter(gradient)

    def _step(self, name: str, machine: Machine, stage: int) -> None:
        """A state that several stages of one device hold, and no other device, is summed there and then."""
        if machine.agreed != machine.gradients:
            raise WrongStep(f"{name} steps stage {stage} with gradients that nobody agreed on")
        for state in self.states(stage):
            holders = self.holders(stage, state)
            names = {other for holder in holders for other in self.plan.stages[holder].device_ids}
            summed = holders if names == {name} else [stage]
            total = sum((machine.gradients.get((holder, state), Counter()) for holder in summed), Counter())
            needed = Counter((holder, k) for holder in holders for k in range(self.schedule.microbatches))
            if total != needed or stage in machine.stepped:
                raise WrongStep(f"{name} steps {state} of stage {stage} with {total}")
        machine.stepped.add(stage)


def dict_of(members: Sequence[tuple[str, int]]) -> dict[int, str]:
    return {stage: name for name, stage in members}


def most_kept(schedule: TrainingSchedule) -> dict[int, int]:
    """By stage, the most microbatches that one device has run forward and not yet backward at once."""
    most: Counter[int] = Counter()
    for device in schedule.devices:
        num_kept: Counter[int] = Counter()
        for action in device.actions:
            if action.kind is Kind.FORWARD:
                num_kept[action.index] += 1
                most[action.index] = max(most[action.index], num_kept[action.index])
            elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                num_kept[action.index] -= 1
    return dict(most)


def is_right(schedule: TrainingSchedule, plan: Plan, room: Mapping[int, int]) -> bool:
    try:
        SymbolicStep(plan, schedule, room).run()
    except WrongStep:
        return False
    return True
