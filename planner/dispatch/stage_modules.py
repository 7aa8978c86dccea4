"""What daemons are told of a plan: which stages to load, from which bytes, and how their edges and lanes run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.dispatch.stream_requests import add_stream
from planner.dispatch.training_requests import add_training
from planner.errors import NotDeployable
from planner.graph.ir import Graph, Input, Output, Value, ValueReference, WeightFile
from planner.plan.plan import Plan
from planner.plan.split import stage_graph
from planner.plan.written_states import why_not_copied, written_states
from planner.schedule.actions import NO_MICROBATCH, Action
from planner.store.blobs import BlobStore
from planner.store.deployment_records import Deployment, RecoveryPolicy
from planner.store.weights import TensorLocation, locate_states
from planner.wire.graph import graph_from_bytes, graph_to_bytes, graph_to_proto
from planner.wire.graph.enumerations import DTYPES, VALUE_KINDS
from planner.wire.graph.expressions import expression_to_proto
from protos.v1 import graph_pb2, stage_daemon_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequests:
    """By device id. `connect` lacks the rendezvous address, which is known only once it is open."""

    load: Mapping[str, stage_daemon_pb2.LoadStagesRequest]
    connect: Mapping[str, stage_daemon_pb2.ConnectStagesRequest]


def prepare_requests(
    deployment: Deployment,
    plan: Plan,
    graph_sha256: bytes,
    weights: tuple[WeightFile, ...],
    blobs: BlobStore,
    edge_seconds: float,
    daemon_identity: str = "",
) -> StageRequests:
    """Reads the graph and writes each stage's into the blob store. Blocks: call it in a thread.

    Raises NotDeployable for copies of a stage that cannot answer as one.
    """
    graph = graph_from_bytes(blobs.read(graph_sha256))
    if why := why_not_copied(plan, graph):
        raise NotDeployable(why)
    locations = locate_states(graph, weights, blobs.read_range) if graph.states else {}
    return StageRequests(
        load=_load_requests(deployment, plan, graph, locations, blobs),
        connect=connect_requests(deployment, plan, graph, edge_seconds, daemon_identity),
    )


def _load_requests(
    deployment: Deployment, plan: Plan, graph: Graph, locations: Mapping[str, TensorLocation], blobs: BlobStore
) -> dict[str, stage_daemon_pb2.LoadStagesRequest]:
    hosts = {device.id: device.host for device in plan.inventory.devices}
    workers = Counter(hosts[device_id] for device_id in deployment.device_ids())
    requests = {
        device_id: stage_daemon_pb2.LoadStagesRequest(
            deployment_id=deployment.id,
            generation=deployment.generation,
            num_threads=deployment.workers.num_threads,
            compile=deployment.workers.compile,
            workers_on_host=workers[hosts[device_id]],
            # A training goes on from a checkpoint, not from the weights that it began with.
            keep_states=deployment.recovery is not RecoveryPolicy.MANUAL and plan.options.training is None,
        )
        for device_id in deployment.device_ids()
    }
    for stage in plan.stages:
        part = stage_graph(graph, plan, stage.index)
        graph_sha256 = blobs.put(graph_to_bytes(part))
        states = [_location_to_proto(state.name, locations[state.name]) for state in part.states]
        for copy, device_id in enumerate(stage.device_ids):
            requests[device_id].stages.add(
                stage=stage.index,
                graph_sha256=graph_sha256,
                states=states,
                copy=copy if len(stage.device_ids) > 1 else None,
            )
    return requests


def connect_requests(
    deployment: Deployment, plan: Plan, graph: Graph, edge_seconds: float, daemon_identity: str = ""
) -> dict[str, stage_daemon_pb2.ConnectStagesRequest]:
    """Each device hears of its own lanes, of the edges that touch it, and of inputs and outputs where they are its."""
    values = graph.values_by_id()
    symbols = graph_to_proto(Graph(torch_version="", name="", symbols=graph.symbols)).symbols
    requests = {
        device_id: stage_daemon_pb2.ConnectStagesRequest(
            deployment_id=deployment.id,
            generation=deployment.generation,
            device_id=device_id,
            symbols=symbols,
            deadline_seconds=edge_seconds,
            daemon_identity=daemon_identity,
            microbatches_in_flight=plan.options.in_flight,
            writes_buffers=bool(written_states(graph, plan.options)),
        )
        for device_id in deployment.device_ids()
    }
    add_stream(
        requests,
        plan,
        graph,
        action_to_proto=_action_to_proto,
        value_to_proto=_value_to_proto,
    )
    for device_id in plan.stages[0].device_ids:
        requests[device_id].inputs.extend(_contents_to_proto(graph.inputs, values))
    for device_id in plan.stages[-1].device_ids:
        requests[device_id].outputs.extend(_contents_to_proto(graph.outputs, values))
    if plan.options.training is not None:
        add_training(
            requests,
            plan,
            graph,
            action_to_proto=_action_to_proto,
            value_to_proto=_value_to_proto,
        )
    return requests


def _contents_to_proto(
    entries: Iterable[Input | Output], values: Mapping[int, Value]
) -> list[stage_daemon_pb2.EdgeValue]:
    """Of the inputs or outputs that are not constant, in order, under the names that clients know."""
    return [
        _value_to_proto(values[entry.content.value_id], entry.name)
        for entry in entries
        if isinstance(entry.content, ValueReference)
    ]


def _value_to_proto(value: Value, name: str) -> stage_daemon_pb2.EdgeValue:
    return stage_daemon_pb2.EdgeValue(
        value=value.id,
        kind=VALUE_KINDS.number[value.kind],
        dtype=DTYPES.number[value.dtype] if value.dtype else graph_pb2.DTYPE_UNSPECIFIED,
        dims=[expression_to_proto(dim) for dim in value.dims],
        name=name,
    )


def _location_to_proto(name: str, location: TensorLocation) -> stage_daemon_pb2.StateLocation:
    return stage_daemon_pb2.StateLocation(
        name=name,
        file_sha256=location.file_sha256,
        offset_bytes=location.offset_bytes,
        length_bytes=location.length_bytes,
    )


def _action_to_proto(action: Action) -> stage_daemon_pb2.Action:
    return stage_daemon_pb2.Action(
        kind=stage_daemon_pb2.ActionKind.Value(f"ACTION_KIND_{action.kind.name}"),
        index=action.index,
        microbatch=None if action.microbatch == NO_MICROBATCH else action.microbatch,
    )
