"""Proves of a schedule that its ends meet and that it cannot deadlock, before anything is sent.

Lanes are deterministic and talk over edges with one sender and one receiver each (a Kahn network), so what can happen
does not depend on timing: one simulated microbatch that ends with every lane done proves all of them, since each edge
has one send and one receive and so is empty again, and a deadlock found is one that will happen. More buffers never
hurt: proven without any, proven with all.

Copies change nothing of that. Each takes its microbatches in ascending order, so whoever runs the least microbatch that
is not done waits for nobody but its other stages, whose copies for it are the lanes that were simulated.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from planner.errors import PlanInvariantError
from planner.plan.edges import sent_ahead
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.schedule import Lane, Schedule


def check_schedule(schedule: Schedule, plan: Plan, *, capacity: int = 0) -> None:
    """Raises PlanInvariantError. `capacity`: messages that an edge holds before its sender waits; 0 is a rendezvous."""
    _check_lanes(schedule, plan)
    ahead = sent_ahead(plan)
    for lane in schedule.lanes:
        _check_actions(lane, plan, ahead)
    _Simulation(schedule.lanes, capacity).run()


def _check_lanes(schedule: Schedule, plan: Plan) -> None:
    stages = [lane.stage_index for lane in schedule.lanes]
    if stages != list(range(len(plan.stages))):
        raise _broken("one_lane_per_stage", f"there are lanes for stages {stages}, and {len(plan.stages)} stages")
    for device in schedule.devices:
        for lane in device.lanes:
            if device.device_id not in plan.stages[lane.stage_index].device_ids:
                raise _broken(
                    "lane_device",
                    f"the lane of stage {lane.stage_index} is on {device.device_id!r}, "
                    f"its stage on {plan.stages[lane.stage_index].device_ids}",
                )


def _check_actions(lane: Lane, plan: Plan, ahead: Container[int]) -> None:
    """A lane takes all that enters, runs its stage once and then hands on all that leaves: each exactly once.

    What goes ahead leaves before it runs.
    """
    stage = lane.stage_index
    leaving = [i for i, edge in enumerate(plan.edges) if edge.source_stage == stage]
    enters = [Action(Kind.RECEIVE, i) for i, edge in enumerate(plan.edges) if edge.target_stage == stage]
    enters += [Action(Kind.SEND, i) for i in leaving if i in ahead]
    leaves = [Action(Kind.SEND, i) for i in leaving if i not in ahead]
    if stage == 0:
        enters.append(Action(Kind.TAKE_INPUT, 0))
    if stage == len(plan.stages) - 1:
        leaves.append(Action(Kind.GIVE_OUTPUT, stage))
    forward = Action(Kind.FORWARD, stage)
    if lane.actions.count(forward) != 1:
        raise _broken("one_forward", f"stage {stage} runs {lane.actions.count(forward)} times per microbatch")
    middle = lane.actions.index(forward)
    _check_same(lane.actions[:middle], enters, f"stage {stage} before it runs")
    _check_same(lane.actions[middle + 1 :], leaves, f"stage {stage} after it ran")


def _check_same(actions: Sequence[Action], needed: Sequence[Action], where: str) -> None:
    if sorted(map(str, actions)) != sorted(map(str, needed)):
        raise _broken(
            "matching_actions", f"{where}: the actions are {_listed(actions)}, needs {_listed(needed)} in some order"
        )


class _Simulation:
    """One microbatch on its way through all lanes; `held` counts the messages that each edge holds."""

    def __init__(self, lanes: tuple[Lane, ...], capacity: int) -> None:
        self._lanes = lanes
        self._capacity = capacity
        self._position = [0] * len(lanes)
        self._held: dict[int, int] = {}

    def run(self) -> None:
        """Lanes in turn, each as far as it gets, until none gets further. At most lanes x actions steps."""
        while sum(self._advance(lane) for lane in range(len(self._lanes))):
            pass
        stuck = [(lane.stage_index, self._next(index)) for index, lane in enumerate(self._lanes) if self._next(index)]
        if stuck:
            waits = "; ".join(f"stage {stage} at {action}" for stage, action in stuck)
            raise _broken("no_deadlock", f"every lane that is not done waits: {waits}")

    def _next(self, lane: int) -> Action | None:
        actions = self._lanes[lane].actions
        return actions[self._position[lane]] if self._position[lane] < len(actions) else None

    def _advance(self, lane: int) -> bool:
        start = self._position[lane]
        while (action := self._next(lane)) is not None and self._do(action):
            self._position[lane] += 1
        return self._position[lane] > start

    def _do(self, action: Action) -> bool:
        """Whether the action can be done now; if so, does it."""
        if action.kind is Kind.RECEIVE:
            if not self._held.get(action.index):
                return False
            self._held[action.index] -= 1
        elif action.kind is Kind.SEND:
            count = self._held.get(action.index, 0)
            if count >= self._capacity and (count or not self._is_awaited(action.index)):
                return False
            self._held[action.index] = count + 1
        return True

    def _is_awaited(self, edge_index: int) -> bool:
        return any(self._next(lane) == Action(Kind.RECEIVE, edge_index) for lane in range(len(self._lanes)))


def _listed(actions: Iterable[Action]) -> str:
    return ", ".join(map(str, actions)) or "none"


def _broken(invariant: str, what: str) -> PlanInvariantError:
    return PlanInvariantError(f"schedule: {invariant}: {what}", invariant=invariant)
