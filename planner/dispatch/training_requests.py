"""What daemons are told of a plan's training step: their actions, the edges that gradients come back over, and sums.

Beside the edges of inference, which evaluation goes on using, each edge of the plan has one for a step's values and one
for their gradients, and has them for each two copies of its stages that hand microbatches on. Each sum has a pair per
device that sends to the first. Edge ids go on from those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from planner.dispatch.stream_requests import ToProto, ValueToProto, add_copies_at_ends
from planner.errors import PlanInvariantError
from planner.graph.ir import Graph, State
from planner.graph.state_names import StateNames
from planner.plan.depths import edge_depths
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.check_training import NO_DEADLOCK, check_training_schedule
from planner.schedule.copies import copy_of
from planner.schedule.training import TrainingSchedule, reducing_stages, tie_devices, training_schedule
from planner.wire.graph.expressions import expression_to_proto
from protos.v1 import graph_pb2, stage_daemon_pb2

# A position in Plan.edges, and the devices of the copies at its ends.
_Channel = tuple[int, str, str]
# A stage, on one of its devices.
_Copy = tuple[int, str]
_MESSAGES = (Kind.SEND, Kind.RECEIVE, Kind.SEND_GRADIENT, Kind.RECEIVE_GRADIENT)


def add_training(
    requests: Mapping[str, stage_daemon_pb2.ConnectStagesRequest],
    plan: Plan,
    graph: Graph,
    *,
    action_to_proto: ToProto,
    value_to_proto: ValueToProto,
) -> None:
    """To the requests of each device of a plan with training. Raises PlanInvariantError for a step that cannot run."""
    schedule = training_schedule(plan)
    depths = edge_depths(plan)
    capacity = _sufficient_capacity(schedule, plan, depths)
    channels = _channels(plan, schedule.microbatches)
    for device in schedule.devices:
        training = requests[device.device_id].training
        training.actions.extend(action_to_proto(_over_channel(action, plan, channels)) for action in device.actions)
        training.microbatches = schedule.microbatches
        training.messages_in_flight = capacity
        training.agreement.SetInParent()
        training.recomputing_stages.extend(
            stage.index
            for stage in plan.stages
            if stage.recomputes_activations and device.device_id in stage.device_ids
        )
    writer = _Writer(requests, plan, graph, value_to_proto)
    writer.add_edges(channels, depths)
    writer.add_copies()
    writer.add_ties()
    writer.add_agreement([device.device_id for device in schedule.devices])
    writer.add_trained()


def _sufficient_capacity(schedule: TrainingSchedule, plan: Plan, depths: Sequence[int]) -> int:
    """Messages that any edge has to hold for the step to end: devices with several stages may send far ahead.

    As many as are in flight at least, and never more than there are microbatches: nothing waits then.
    """
    capacity = plan.options.in_flight
    while capacity < schedule.microbatches:
        try:
            check_training_schedule(schedule, plan, capacity=capacity, depths=depths)
        except PlanInvariantError as error:
            if error.metadata["invariant"] != NO_DEADLOCK:
                raise
            capacity *= 2
        else:
            return capacity
    check_training_schedule(schedule, plan, capacity=capacity, depths=depths)
    return capacity


def _channels(plan: Plan, microbatches: int) -> dict[_Channel, int]:
    """Their numbers: the positions of the plan's edges, unless stages have copies."""
    used = (_channel(plan, edge, k) for edge in range(len(plan.edges)) for k in range(microbatches))
    return {channel: number for number, channel in enumerate(dict.fromkeys(used))}


def _channel(plan: Plan, edge: int, microbatch: int) -> _Channel:
    plan_edge = plan.edges[edge]
    return edge, copy_of(plan, plan_edge.source_stage, microbatch), copy_of(plan, plan_edge.target_stage, microbatch)


def _over_channel(action: Action, plan: Plan, channels: Mapping[_Channel, int]) -> Action:
    if action.kind not in _MESSAGES:
        return action
    return replace(action, index=channels[_channel(plan, action.index, action.microbatch)])


class _Writer:
    def __init__(
        self,
        requests: Mapping[str, stage_daemon_pb2.ConnectStagesRequest],
        plan: Plan,
        graph: Graph,
        value_to_proto: ValueToProto,
    ) -> None:
        self._training = {device_id: request.training for device_id, request in requests.items()}
        self._requests = requests
        self._plan = plan
        self._graph = graph
        self._values = graph.values_by_id()
        self._value_to_proto = value_to_proto
        self._ids: Iterator[int] = count(len(plan.edges))
        # Dimensions that no symbol of the graph stands for.
        self._symbol_ids = count(max((symbol.id for symbol in graph.symbols), default=0) + 1)
        self._first_stage = {
            device_id: stage.index for stage in reversed(plan.stages) for device_id in stage.device_ids
        }

    def add_edges(self, channels: Mapping[_Channel, int], depths: Sequence[int]) -> None:
        for (index, source_device_id, target_device_id), number in channels.items():
            edge = self._plan.edges[index]
            source, target = (edge.source_stage, source_device_id), (edge.target_stage, target_device_id)
            values = [self._value_to_proto(self._values[one], self._values[one].name) for one in edge.value_ids]
            training_edge = stage_daemon_pb2.TrainingEdge(edge=number, values=self._edge(source, target, values))
            if edge.gradient_value_ids:
                gradients = [self._gradient_of_value(one) for one in edge.gradient_value_ids]
                training_edge.gradients.CopyFrom(self._edge(target, source, gradients))
                training_edge.gradients.microbatches_in_flight = depths[index]
            training_edge.values.microbatches_in_flight = depths[index]
            for device_id in dict.fromkeys(
                (training_edge.values.source_device_id, training_edge.values.target_device_id)
            ):
                self._training[device_id].edges.append(training_edge)

    def add_copies(self) -> None:
        """Of each stage that has some. Tied states that several devices hold are summed once, with their tie."""
        of_ties = {
            name
            for index, group in enumerate(self._plan.tie_groups)
            if tie_devices(self._plan, index)
            for name, _ in group.members
        }
        for index in reducing_stages(self._plan):
            stage = self._plan.stages[index]
            own = {
                _storage(state): state
                for state in self._graph.states
                if state.requires_grad and state.name in stage.states and state.name not in of_ties
            }.values()
            for device_id in stage.device_ids:
                self._training[device_id].copies.add(index=index, states=[state.name for state in own])
            gradients = [self._gradient_of_value(state.value_id) for state in own]
            copies = [(index, device_id) for device_id in stage.device_ids]
            self._add_reduction(copies, gradients, gradients, lambda training: training.copies[-1])

    def add_ties(self) -> None:
        for index, group in enumerate(self._plan.tie_groups):
            if not group.requires_grad:
                continue
            names = {name for name, _ in group.members}
            state = next(state for state in self._graph.states if state.name in names)
            first_stage = {
                device_id: stage
                for _, stage in sorted(group.members, key=lambda member: -member[1])
                for device_id in self._plan.stages[stage].device_ids
            }
            holders = [(first_stage[one], one) for one in tie_devices(self._plan, index) or first_stage]
            for _, device_id in holders:
                own = sorted(
                    {name for name, stage in group.members if device_id in self._plan.stages[stage].device_ids}
                )
                self._training[device_id].ties.add(index=index, states=own)
            gradient = self._gradient_of_value(state.value_id)
            self._add_reduction(holders, [gradient], [gradient], lambda training: training.ties[-1])

    def add_agreement(self, device_ids: Sequence[str]) -> None:
        """Up: the norm and the position of each trained state, whether some are of float64, whether losses are finite.
        Down: the norm over all, and whether the step may be applied."""
        up = [
            self._tensor("norms", graph_pb2.DTYPE_FLOAT64, [self._any_size()]),
            self._tensor("positions", graph_pb2.DTYPE_INT64, [self._any_size()]),
            stage_daemon_pb2.EdgeValue(kind=graph_pb2.VALUE_KIND_SYM_BOOL, name="doubles"),
            stage_daemon_pb2.EdgeValue(kind=graph_pb2.VALUE_KIND_SYM_BOOL, name="finite"),
        ]
        down = [
            self._tensor("norm", graph_pb2.DTYPE_FLOAT64, []),
            stage_daemon_pb2.EdgeValue(kind=graph_pb2.VALUE_KIND_SYM_BOOL, name="applied"),
        ]
        holders = [(self._first_stage[device_id], device_id) for device_id in device_ids]
        self._add_reduction(holders, up, down, lambda training: training.agreement)

    def add_trained(self) -> None:
        positions: dict[object, int] = {}
        trained = {state.name: state for state in self._graph.states if state.requires_grad}
        names = StateNames(self._graph)
        for position, (name, state) in enumerate(trained.items()):
            positions.setdefault(_storage(state), position)
            for stage in self._plan.stages:
                if name not in stage.states:
                    continue
                for device_id in stage.device_ids:
                    training = self._training[device_id]
                    training.trained.add(
                        stage=stage.index,
                        name=name,
                        position=positions[_storage(state)],
                        module_names=names.tied(name),
                    )

    def _add_reduction(
        self,
        holders: Sequence[_Copy],
        up: Sequence[stage_daemon_pb2.EdgeValue],
        down: Sequence[stage_daemon_pb2.EdgeValue],
        of: Callable[[stage_daemon_pb2.StageTraining], stage_daemon_pb2.Reduction],
    ) -> None:
        """`holders`: each device once, with a stage that it holds."""
        first, *others = holders
        for other in others:
            gather, spread = self._edge(other, first, up), self._edge(first, other, down)
            for training in (self._training[device_id] for _, device_id in (first, other)):
                of(training).gather.append(gather)
                of(training).spread.append(spread)

    def _edge(
        self, source: _Copy, target: _Copy, values: Sequence[stage_daemon_pb2.EdgeValue]
    ) -> stage_daemon_pb2.Edge:
        edge = stage_daemon_pb2.Edge(
            id=next(self._ids),
            source_stage=source[0],
            target_stage=target[0],
            source_device_id=source[1],
            target_device_id=target[1],
            values=values,
        )
        add_copies_at_ends(edge, self._plan)
        return edge

    def _gradient_of_value(self, value_id: int) -> stage_daemon_pb2.EdgeValue:
        """With a first dimension of 0 where there is none."""
        value = self._values[value_id]
        gradient = self._value_to_proto(value, f"gradient of {value.name}")
        dims = [self._any_size(upper=1), *map(expression_to_proto, value.dims)]
        del gradient.dims[:]
        gradient.dims.extend(dims)
        return gradient

    def _tensor(
        self, name: str, dtype: graph_pb2.Dtype.ValueType, dims: Sequence[graph_pb2.Expression]
    ) -> stage_daemon_pb2.EdgeValue:
        return stage_daemon_pb2.EdgeValue(kind=graph_pb2.VALUE_KIND_TENSOR, dtype=dtype, dims=dims, name=name)

    def _any_size(self, upper: int | None = None) -> graph_pb2.Expression:
        symbol = graph_pb2.Symbol(id=next(self._symbol_ids), name="present", lower=0, upper=upper)
        for request in self._requests.values():
            request.symbols.append(symbol)
        return graph_pb2.Expression(symbol=symbol.id)


def _storage(state: State) -> object:
    """The same for states that are tied."""
    return state.tie_group or state.name
