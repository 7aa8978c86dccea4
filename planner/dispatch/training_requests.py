"""What daemons are told of a plan's training step: their actions, the edges that gradients come back over, and sums.

Beside the edges of inference, which evaluation goes on using, each edge of the plan has one for a step's values and one
for their gradients; each sum has a pair per device that sends to the first. Edge ids go on from those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from planner.errors import PlanInvariantError
from planner.graph.ir import Graph, State, Value
from planner.plan.plan import Plan
from planner.schedule.actions import Action
from planner.schedule.check_training import NO_DEADLOCK, check_training_schedule
from planner.schedule.training import TrainingSchedule, tie_devices, training_schedule
from planner.wire.graph.expressions import expression_to_proto
from protos.v1 import graph_pb2, stage_daemon_pb2

ToProto = Callable[[Action], stage_daemon_pb2.Action]
ValueToProto = Callable[[Value, str], stage_daemon_pb2.EdgeValue]


def add_training(
    requests: Mapping[str, stage_daemon_pb2.ConnectStagesRequest],
    plan: Plan,
    graph: Graph,
    *,
    capacity: int,
    action_to_proto: ToProto,
    value_to_proto: ValueToProto,
) -> None:
    """To the requests of each device of a plan with training. Raises PlanInvariantError for a step that cannot run."""
    schedule = training_schedule(plan)
    capacity = _sufficient_capacity(schedule, plan, capacity)
    for device in schedule.devices:
        training = requests[device.device_id].training
        training.actions.extend(map(action_to_proto, device.actions))
        training.microbatches = schedule.microbatches
        training.messages_in_flight = capacity
        training.agreement.SetInParent()
        training.recomputing_stages.extend(
            stage.index
            for stage in plan.stages
            if stage.recomputes_activations and device.device_id in stage.device_ids
        )
    writer = _Writer(requests, plan, graph, value_to_proto)
    writer.add_edges()
    writer.add_ties()
    writer.add_agreement([device.device_id for device in schedule.devices])
    writer.add_trained()


def _sufficient_capacity(schedule: TrainingSchedule, plan: Plan, wanted: int) -> int:
    """Messages that an edge has to hold for the step to end: devices with several stages may send far ahead.

    At least `wanted`, and never more than there are microbatches: nothing waits then.
    """
    capacity = wanted
    while capacity < schedule.microbatches:
        try:
            check_training_schedule(schedule, plan, capacity=capacity)
        except PlanInvariantError as error:
            if error.metadata["invariant"] != NO_DEADLOCK:
                raise
            capacity *= 2
        else:
            return capacity
    check_training_schedule(schedule, plan, capacity=capacity)
    return capacity


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

    def add_edges(self) -> None:
        for index, edge in enumerate(self._plan.edges):
            source, target = edge.source_stage, edge.target_stage
            values = [self._value_to_proto(self._values[one], self._values[one].name) for one in edge.value_ids]
            told = stage_daemon_pb2.TrainingEdge(edge=index, values=self._edge(source, target, values))
            if edge.gradient_value_ids:
                gradients = [self._gradient(self._values[one]) for one in edge.gradient_value_ids]
                told.gradients.CopyFrom(self._edge(target, source, gradients))
            for device_id in dict.fromkeys((told.values.source_device_id, told.values.target_device_id)):
                self._training[device_id].edges.append(told)

    def add_ties(self) -> None:
        for index, group in enumerate(self._plan.tie_groups):
            if not group.requires_grad:
                continue
            names = {name for name, _ in group.members}
            state = next(state for state in self._graph.states if state.name in names)
            holders = tie_devices(self._plan, index) or (self._device(group.members[0][1]),)
            for device_id in holders:
                own = sorted({name for name, stage in group.members if self._device(stage) == device_id})
                self._training[device_id].ties.add(index=index, states=own)
            value = self._value_to_proto(self._values[state.value_id], state.name)
            stage_of = {self._device(stage): stage for _, stage in reversed(group.members)}
            self._add_reduction(holders, stage_of, [value], [value], lambda told: told.ties[-1])

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
        self._add_reduction(device_ids, self._first_stage, up, down, lambda told: told.agreement)

    def add_trained(self) -> None:
        positions: dict[object, int] = {}
        trained = {state.name: state for state in self._graph.states if state.requires_grad}
        for position, (name, state) in enumerate(trained.items()):
            positions.setdefault(_storage(state), position)
            for stage in self._plan.stages:
                if name not in stage.states:
                    continue
                told = self._training[self._device(stage.index)]
                told.trained.add(stage=stage.index, name=name, position=positions[_storage(state)])

    def _add_reduction(
        self,
        device_ids: Sequence[str],
        stage_of: Mapping[str, int],
        up: Sequence[stage_daemon_pb2.EdgeValue],
        down: Sequence[stage_daemon_pb2.EdgeValue],
        of: Callable[[stage_daemon_pb2.StageTraining], stage_daemon_pb2.Reduction],
    ) -> None:
        first, *others = device_ids
        for device_id in others:
            gather = self._edge(stage_of[device_id], stage_of[first], up)
            spread = self._edge(stage_of[first], stage_of[device_id], down)
            for told in (self._training[first], self._training[device_id]):
                of(told).gather.append(gather)
                of(told).spread.append(spread)

    def _edge(
        self, source_stage: int, target_stage: int, values: Sequence[stage_daemon_pb2.EdgeValue]
    ) -> stage_daemon_pb2.Edge:
        return stage_daemon_pb2.Edge(
            id=next(self._ids),
            source_stage=source_stage,
            target_stage=target_stage,
            source_device_id=self._device(source_stage),
            target_device_id=self._device(target_stage),
            values=values,
        )

    def _gradient(self, value: Value) -> stage_daemon_pb2.EdgeValue:
        told = self._value_to_proto(value, f"gradient of {value.name}")
        dims = [self._any_size(upper=1), *map(expression_to_proto, value.dims)]
        del told.dims[:]
        told.dims.extend(dims)
        return told

    def _tensor(
        self, name: str, dtype: graph_pb2.Dtype.ValueType, dims: Sequence[graph_pb2.Expression]
    ) -> stage_daemon_pb2.EdgeValue:
        return stage_daemon_pb2.EdgeValue(kind=graph_pb2.VALUE_KIND_TENSOR, dtype=dtype, dims=dims, name=name)

    def _any_size(self, upper: int | None = None) -> graph_pb2.Expression:
        symbol = graph_pb2.Symbol(id=next(self._symbol_ids), name="present", lower=0, upper=upper)
        for request in self._requests.values():
            request.symbols.append(symbol)
        return graph_pb2.Expression(symbol=symbol.id)

    def _device(self, stage: int) -> str:
        return self._plan.stages[stage].device_ids[0]


def _storage(state: State) -> object:
    """The same for states that are tied."""
    return state.tie_group or state.name
