"""Runs a schedule on a plan's inventory in simulated time: which device does what when, and where it waits.

Devices and links are the resources. A message occupies its sender from the end of the pass that made it, streams over
its link, and occupies its receiver from when that is free, so that an idle receiver is done when the sender is; in
training steps so long later as the sender takes to hand it over. What goes ahead of a pass leaves before it, and
occupies its sender with the rest. A device does one thing at a time; deliveries from and to clients come before the
forward pass. In inference the stages that share one run each microbatch in their own order, so that no rounding decides
which is first, and different microbatches in the order in which they become ready. Ties go to the earlier stage: the
same schedule gives the same timeline.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from planner.errors import OptionsError
from planner.plan.plan import Plan, Stage
from planner.plan.update import agreement, device_updates
from planner.schedule.blocks import NO_STAGE, Block, Queue, step_blocks, stream_blocks
from planner.schedule.copies import copy_of
from planner.schedule.link_seconds import Messages, gradient_bytes, reduction_seconds, stage_messages
from planner.schedule.schedule import Schedule
from planner.schedule.timeline import Activity, DeviceTime, Event, LinkTime, Simulation, Transfer
from planner.schedule.training import TrainingSchedule, reducing_stages, tie_devices


def simulate(plan: Plan, schedule: Schedule | TrainingSchedule, *, microbatches: int) -> Simulation:
    """A stream of `microbatches` through an inference schedule, or a training step of as many as its schedule has.

    O(actions x log(lanes)). Raises OptionsError for a number of microbatches that the schedule is not for.
    """
    if microbatches < 1:
        raise OptionsError(f"simulate: {microbatches} microbatches, needs at least 1")
    if isinstance(schedule, Schedule):
        engine = _Engine(plan, stream_blocks(plan, schedule, microbatches), microbatches)
        engine.run()
    else:
        if microbatches != schedule.microbatches:
            raise OptionsError(
                f"simulate: {microbatches} microbatches, and the training schedule is of {schedule.microbatches}; plan "
                f"with training.microbatches={microbatches} to simulate so many"
            )
        engine = _Engine(plan, step_blocks(schedule), microbatches, hands_over=True)
        engine.run()
        engine.reduce()
        engine.update()
    return engine.simulation()


class _Kind(Enum):
    """What a block waits for."""

    VALUES = "values"
    GRADIENTS = "gradients"
    TURN = "turn"


# With an edge, or for a turn the stage that has had it, and a microbatch.
_Signal = tuple[_Kind, int, int]


class _Engine:
    """Takes, again and again, the block that can start first; nothing that becomes ready later can start earlier."""

    def __init__(self, plan: Plan, queues: Sequence[Queue], microbatches: int, *, hands_over: bool = False) -> None:
        self._plan, self._queues, self._microbatches = plan, queues, microbatches
        self._messages, self._hands_over = stage_messages(plan), hands_over
        self._gradient_bytes = gradient_bytes(plan)
        self._free = {queue.device_id: 0.0 for queue in queues}
        self._position = [0] * len(queues)
        self._ended = [0.0] * len(queues)
        self._given: dict[_Signal, float] = {}
        self._waiting: dict[_Signal, list[int]] = {}
        self._heap: list[tuple[float, float, int]] = []
        self._outputs = [0.0] * microbatches
        self._events: list[Event] = []
        self._transfers: list[Transfer] = []

    def run(self) -> None:
        self._offer(*range(len(self._queues)))
        while self._heap:
            start, ready, queue = heapq.heappop(self._heap)
            now = max(ready, self._free[self._queues[queue].device_id])
            if now > start:
                heapq.heappush(self._heap, (now, ready, queue))
                continue
            self._run_block(queue, now)
            self._position[queue] += 1
            self._offer(queue)
        left = [
            queue.device_id for at, queue in zip(self._position, self._queues, strict=True) if at < len(queue.blocks)
        ]
        assert not left, f"{left} wait for ever: the schedule was not checked"

    def _offer(self, *queues: int) -> None:
        """Puts each queue's next block up, or lets it wait for the signal that it lacks."""
        left = list(queues)
        while left:
            queue = left.pop(0)
            blocks, at = self._queues[queue].blocks, self._position[queue]
            if at == len(blocks):
                continue
            left += self._tell(queue, blocks[at])
            missing = next((signal for signal in _awaited(blocks[at]) if signal not in self._given), None)
            if missing is not None:
                self._waiting.setdefault(missing, []).append(queue)
                continue
            ready = max((self._given[signal] for signal in _awaited(blocks[at])), default=0.0)
            heapq.heappush(self._heap, (max(ready, self._free[self._queues[queue].device_id]), ready, queue))

    def _tell(self, queue: int, block: Block) -> list[int]:
        """Whoever waited for what goes ahead of the block's pass, once the first message that it receives itself is
        there, or it has taken the inputs."""
        first = next(_messages(block, block.receives), None)
        if first is not None and first not in self._given:
            return []
        taken = 0.0 if first else self._plan.stages[block.stage].delivery_seconds
        at = max(self._given[first] if first else 0.0, self._ended[queue]) + taken
        return self._give(_messages(block, block.ahead), at)

    def _give(self, signals: Iterable[_Signal], at: float) -> list[int]:
        """The queues that waited for one of them."""
        queues = []
        for signal in signals:
            self._given[signal] = at
            queues += self._waiting.pop(signal, [])
        return queues

    def _run_block(self, queue: int, now: float) -> None:
        device_id = self._queues[queue].device_id
        block = self._queues[queue].blocks[self._position[queue]]
        costs, stage = self._messages[block.stage], self._plan.stages[block.stage]
        forward = block.activity is Activity.FORWARD
        into, out = (costs.received, costs.sent) if forward else _backward_messages(costs, block)
        into += stage.delivery_seconds if forward else 0.0
        compute = _compute_seconds(stage, block.activity)
        receive, send = (
            (Activity.RECEIVE, Activity.SEND) if forward else (Activity.RECEIVE_GRADIENT, Activity.SEND_GRADIENT)
        )
        at = self._spend(device_id, receive, block, now, into)
        at = self._spend(device_id, block.activity, block, at, compute)
        if forward:
            self._outputs[block.microbatch] = max(self._outputs[block.microbatch], at)
        handover = _handover(costs, block) if self._hands_over else 0.0
        woken = self._give(_messages(block, block.sends), at + handover)
        for edge, signal in zip(block.ahead, _messages(block, block.ahead), strict=True):
            self._put_on_link(edge, block, self._given[signal])
        for edge in block.sends:
            self._put_on_link(edge, block, at)
        self._free[device_id] = self._ended[queue] = self._spend(device_id, send, block, at, out)
        if forward:
            woken += self._give([(_Kind.TURN, block.stage, block.microbatch)], self._free[device_id])
        self._offer(*woken)

    def _spend(self, device_id: str, activity: Activity, block: Block, at: float, seconds: float) -> float:
        if seconds or activity is block.activity:
            self._events.append(Event(device_id, activity, block.stage, block.microbatch, at, at + seconds))
        return at + seconds

    def _put_on_link(self, edge_index: int, block: Block, at: float) -> None:
        edge, forward = self._plan.edges[edge_index], block.activity is Activity.FORWARD
        source, target = (
            copy_of(self._plan, stage, block.microbatch) for stage in (edge.source_stage, edge.target_stage)
        )
        if not forward:
            source, target = target, source
        size = edge.size_bytes if forward else self._gradient_bytes[edge_index]
        if source == target or not edge.value_ids:
            return
        end = at + self._plan.link(source, target).transfer_seconds(size)
        self._transfers.append(Transfer(edge_index, block.microbatch, not forward, source, target, size, at, end))

    def reduce(self) -> None:
        """Sums of gradients at the step's end: first among copies, then among the holders of tied states."""
        plan = self._plan
        for stage, size_bytes in reducing_stages(plan).items():
            self._reduce(plan.stages[stage].device_ids, stage, size_bytes)
        for tie, group in enumerate(plan.tie_groups):
            devices = tie_devices(plan, tie)
            if devices:
                self._reduce(devices, min(stage for _, stage in group.members), group.size_bytes)

    def update(self) -> None:
        """Norms and optimizers, once all devices have every gradient. No optimizer steps before all norms are known."""
        updates = device_updates(self._plan)
        if not updates:
            return
        start = max(self._free.values())
        middle = start + max(seconds.norms for seconds in updates.values()) + agreement(self._plan)
        first = {device_id: stage.index for stage in reversed(self._plan.stages) for device_id in stage.device_ids}
        for device_id in self._free:
            self._events.append(Event(device_id, Activity.AGREE, first[device_id], -1, start, middle))
            self._free[device_id] = middle
        for device_id, seconds in updates.items():
            end = middle + seconds.optimizer
            self._events.append(Event(device_id, Activity.OPTIMIZER_STEP, first[device_id], -1, middle, end))
            self._free[device_id] = end

    def _reduce(self, device_ids: Sequence[str], stage: int, size_bytes: int) -> None:
        start = max(self._free[device_id] for device_id in device_ids)
        end = start + reduction_seconds(self._plan, device_ids, size_bytes)
        for device_id in device_ids:
            self._events.append(Event(device_id, Activity.REDUCE, stage, -1, start, end))
            self._free[device_id] = end

    def simulation(self) -> Simulation:
        makespan = max(self._free.values())
        busy, communicating = dict.fromkeys(self._free, 0.0), dict.fromkeys(self._free, 0.0)
        for event in self._events:
            times = busy if event.activity.is_compute else communicating
            times[event.device_id] += event.end_seconds - event.start_seconds
        devices = tuple(
            DeviceTime(
                device_id=device_id,
                busy_seconds=busy[device_id],
                communication_seconds=communicating[device_id],
                waiting_seconds=max(makespan - busy[device_id] - communicating[device_id], 0.0),
            )
            for device_id in self._free
        )
        total = makespan * len(devices)
        rank = {device_id: index for index, device_id in enumerate(self._free)}
        return Simulation(
            microbatches=self._microbatches,
            makespan_seconds=makespan,
            bubble_share=sum(device.waiting_seconds for device in devices) / total if total else 0.0,
            devices=devices,
            links=_links(self._transfers),
            output_seconds=tuple(self._outputs),
            events=tuple(sorted(self._events, key=lambda event: (rank[event.device_id], event.start_seconds))),
            transfers=tuple(
                sorted(self._transfers, key=lambda transfer: (transfer.start_seconds, transfer.edge_index))
            ),
        )


def _compute_seconds(stage: Stage, activity: Activity) -> float:
    if activity is Activity.FORWARD:
        return stage.compute_seconds
    if activity is Activity.BACKWARD_INPUT:
        return stage.input_gradient_seconds
    return stage.weight_gradient_seconds if activity is Activity.BACKWARD_WEIGHT else stage.backward_seconds


def _awaited(block: Block) -> Iterator[_Signal]:
    yield from _messages(block, block.receives)
    if block.after != NO_STAGE:
        yield _Kind.TURN, block.after, block.microbatch


def _messages(block: Block, edges: Sequence[int]) -> Iterator[_Signal]:
    kind = _Kind.VALUES if block.activity is Activity.FORWARD else _Kind.GRADIENTS
    return ((kind, edge, block.microbatch) for edge in edges)


def _backward_messages(costs: Messages, block: Block) -> tuple[float, float]:
    if block.activity is Activity.BACKWARD_WEIGHT:
        return 0.0, 0.0
    return costs.gradients_received, costs.gradients_sent


def _handover(costs: Messages, block: Block) -> float:
    if block.activity is Activity.FORWARD:
        return costs.handover
    return costs.gradients_handover if block.activity is not Activity.BACKWARD_WEIGHT else 0.0


def _links(transfers: Sequence[Transfer]) -> tuple[LinkTime, ...]:
    seconds: dict[tuple[str, str], float] = {}
    sizes: dict[tuple[str, str], int] = {}
    for transfer in transfers:
        pair = transfer.source_id, transfer.target_id
        seconds[pair] = seconds.get(pair, 0.0) + transfer.end_seconds - transfer.start_seconds
        sizes[pair] = sizes.get(pair, 0) + transfer.size_bytes
    return tuple(
        LinkTime(source_id=source, target_id=target, busy_seconds=seconds[source, target], size_bytes=size)
        for (source, target), size in sorted(sizes.items())
    )
