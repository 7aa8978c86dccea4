"""What daemons are told of a stream of microbatches: the lanes of their stages, and the edges between these.

Copies of stages take the microbatches in turn, so an edge of the plan is one channel for each two copies that hand
microbatches on, and a lane's message goes over its channels in turn. Who takes the microbatches of all clients gives
them their one order. So where the first stage has copies, a lane beside the first of them takes all inputs, and sends
each to the copy whose turn it is; where the last stage has copies, a lane beside its first gives all outputs, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from math import lcm

from planner.graph.ir import Graph, Input, Output, Value, ValueReference
from planner.partition.windows import windows_per_channel
from planner.plan.depths import edge_depths
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.check import check_schedule
from planner.schedule.copies import copy_index, serving_devices
from planner.schedule.inference import inference_schedule
from protos.v1 import stage_daemon_pb2

ToProto = Callable[[Action], stage_daemon_pb2.Action]
ValueToProto = Callable[[Value, str], stage_daemon_pb2.EdgeValue]


def add_stream(
    requests: Mapping[str, stage_daemon_pb2.ConnectStagesRequest],
    plan: Plan,
    graph: Graph,
    *,
    action_to_proto: ToProto,
    value_to_proto: ValueToProto,
) -> None:
    """To the requests of each device. Channels without copies have the positions of the plan's edges as their ids."""
    schedule = inference_schedule(plan)
    check_schedule(schedule, plan)
    copies = [serving_devices(plan, stage.index) for stage in plan.stages]
    values = graph.values_by_id()
    routes = [
        _Route(
            source=_Side(edge.source_stage, copies[edge.source_stage]),
            target=_Side(edge.target_stage, copies[edge.target_stage]),
            values=tuple(values[value_id] for value_id in edge.value_ids),
        )
        for edge in plan.edges
    ]
    lanes = [
        _Lane(stage=lane.stage_index, device_ids=copies[lane.stage_index], actions=lane.actions)
        for lane in schedule.lanes
    ]
    for end_kind, ends in ((Kind.TAKE_INPUT, graph.inputs), (Kind.GIVE_OUTPUT, graph.outputs)):
        if len(copies[_stage_of_end(plan, end_kind)]) > 1:
            _part_from_clients(lanes, routes, end_kind, _carried(ends, values))
    first_ids = tuple(accumulate((route.num_channels for route in routes), initial=0))
    for lane in lanes:
        for copy, device_id in enumerate(lane.device_ids):
            lane_message = requests[device_id].lanes.add()
            if len(lane.device_ids) > 1:
                lane_message.turn.first, lane_message.turn.every = copy, len(lane.device_ids)
            lane_message.actions.extend(
                _over_channels(action_to_proto(action), action, copy, lane, routes, first_ids)
                for action in lane.actions
            )
    # Behind the plan's edges come the ways to copies, which skip nothing.
    depths = chain(edge_depths(plan), repeat(plan.options.in_flight))
    for first_id, route, depth in zip(first_ids, routes, depths, strict=False):
        for channel in route.channels(first_id, value_to_proto, plan, depth):
            for device_id in dict.fromkeys((channel.source_device_id, channel.target_device_id)):
                requests[device_id].edges.append(channel)


@dataclass(frozen=True, slots=True)
class _Side:
    """An end of a route: a stage, and the devices whose lanes take microbatches in turn there."""

    stage: int
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """What each of the devices does in its turn."""

    stage: int
    device_ids: tuple[str, ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """An edge of the plan, or the way between copies and the lane that clients reach. Microbatch k goes over channel
    k mod `num_channels`: so many microbatches on, the copies at both ends are the same again."""

    source: _Side
    target: _Side
    values: tuple[Value, ...]

    @property
    def num_channels(self) -> int:
        return lcm(len(self.source.device_ids), len(self.target.device_ids))

    def channels(
        self, first_id: int, value_to_proto: ValueToProto, plan: Plan, depth: int
    ) -> Iterator[stage_daemon_pb2.Edge]:
        sources, targets = self.source.device_ids, self.target.device_ids
        for number in range(self.num_channels):
            channel = stage_daemon_pb2.Edge(
                id=first_id + number,
                source_stage=self.source.stage,
                target_stage=self.target.stage,
                source_device_id=sources[copy_index(len(sources), number)],
                target_device_id=targets[copy_index(len(targets), number)],
                values=[value_to_proto(value, value.name) for value in self.values],
                microbatches_in_flight=0 if depth == plan.options.in_flight else depth,
            )
            if self.num_channels > 1:
                channel.turn.first, channel.turn.every = number, self.num_channels
                channel.microbatches_in_flight = windows_per_channel(depth, len(sources), len(targets))
            add_copies_at_ends(channel, plan)
            yield channel


def add_copies_at_ends(edge: stage_daemon_pb2.Edge, plan: Plan) -> None:
    """Which copies its ends are, where their stages have some."""
    source, target = plan.stages[edge.source_stage].device_ids, plan.stages[edge.target_stage].device_ids
    if len(source) > 1:
        edge.source_copy = source.index(edge.source_device_id)
    if len(target) > 1:
        edge.target_copy = target.index(edge.target_device_id)


def _stage_of_end(plan: Plan, kind: Kind) -> int:
    return 0 if kind is Kind.TAKE_INPUT else len(plan.stages) - 1


def _part_from_clients(lanes: list[_Lane], routes: list[_Route], kind: Kind, values: tuple[Value, ...]) -> None:
    """Puts the action into a lane of its own beside the first copy, and a message in its place."""
    index = next(index for index, lane in enumerate(lanes) if any(action.kind is kind for action in lane.actions))
    lane = lanes[index]
    many, one = _Side(lane.stage, lane.device_ids), _Side(lane.stage, lane.device_ids[:1])
    is_input = kind is Kind.TAKE_INPUT
    send, receive = Action(Kind.SEND, len(routes)), Action(Kind.RECEIVE, len(routes))
    own = next(action for action in lane.actions if action.kind is kind)
    routes.append(_Route(source=one if is_input else many, target=many if is_input else one, values=values))
    message = receive if is_input else send
    actions = tuple(message if action is own else action for action in lane.actions)
    lanes[index] = _Lane(stage=lane.stage, device_ids=lane.device_ids, actions=actions)
    between = (own, send) if is_input else (receive, own)
    lanes.append(_Lane(stage=lane.stage, device_ids=one.device_ids, actions=between))


def _over_channels(
    message: stage_daemon_pb2.Action,
    action: Action,
    copy: int,
    lane: _Lane,
    routes: Sequence[_Route],
    first_ids: Sequence[int],
) -> stage_daemon_pb2.Action:
    """The message's channels in the order in which the copy's microbatches use them."""
    if action.kind not in (Kind.SEND, Kind.RECEIVE):
        return message
    numbers = range(routes[action.index].num_channels)
    own = [number for number in numbers if copy_index(len(lane.device_ids), number) == copy]
    in_turn = [first_ids[action.index] + number for number in own]
    message.index = in_turn[0]
    if len(in_turn) > 1:
        message.edges_in_turn.extend(in_turn)
    return message


def _carried(entries: Sequence[Input | Output], values: Mapping[int, Value]) -> tuple[Value, ...]:
    """Each value once, though it may be returned twice."""
    ids = [entry.content.value_id for entry in entries if isinstance(entry.content, ValueReference)]
    return tuple(values[value_id] for value_id in dict.fromkeys(ids))
