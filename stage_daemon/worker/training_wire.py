"""Messages of training to the runtime's records and back."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from google.protobuf.message import DecodeError

from access.tensor_fields import LARGE_BYTES, split, split_all
from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.errors import Corrupt, InvalidMicrobatch, InvalidRequest
from stage_daemon.loader.dtypes import torch_dtype
from stage_daemon.loader.states import ReadRange
from stage_daemon.runtime.ingress import InputFormat, RawItem, RawTensor, tensor_of
from stage_daemon.runtime.training.records import (
    OptimizerSettings,
    OptionValue,
    ParameterGroup,
    Reduction,
    Step,
    StepOutcome,
    TrainedState,
    TrainingEdge,
    TrainingLane,
)
from stage_daemon.runtime.training.states import TensorKey
from stage_daemon.transport.declared import Symbol
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item, MicrobatchFailure
from stage_daemon.worker import wire

_STEP = stage_daemon_pb2.TrainRequest.DESCRIPTOR.fields_by_name["step"].number
_MICROBATCHES = stage_daemon_pb2.TrainingStep.DESCRIPTOR.fields_by_name["microbatches"].number
# Far above any of use. Adam divides a rate by 1 - beta, and torch raises where that is no float32 any more.
_MAX_LEARNING_RATE = 1e6


def training_from_proto(
    training: stage_daemon_pb2.StageTraining, deployment_id: str, generation: int, symbols: Mapping[int, Symbol]
) -> TrainingLane:
    def edge(message: stage_daemon_pb2.Edge, label: str) -> Edge:
        decoded = wire.edge_from_proto(message, deployment_id, generation, symbols)
        in_flight = max(decoded.in_flight, training.messages_in_flight)
        return dataclasses.replace(decoded, label=label, in_flight=in_flight)

    if training.microbatches < 1:
        raise InvalidRequest("training: a step of 0 microbatches, needs at least 1")
    return TrainingLane(
        actions=tuple(map(wire.action_from_proto, training.actions)),
        microbatches=training.microbatches,
        edges={message.edge: _edge(message, edge) for message in training.edges},
        copies={message.index: _reduction(message, "gradients of copies", edge) for message in training.copies},
        ties={message.index: _reduction(message, "tied gradients", edge) for message in training.ties},
        agreement=_reduction(training.agreement, "agreement on the step", edge),
        trained=tuple(
            TrainedState(
                stage=state.stage,
                name=state.name,
                position=state.position,
                module_names=tuple(state.module_names),
            )
            for state in training.trained
        ),
        recomputing=frozenset(training.recomputing_stages),
    )


_MakeEdge = Callable[[stage_daemon_pb2.Edge, str], Edge]


def _edge(message: stage_daemon_pb2.TrainingEdge, edge: _MakeEdge) -> TrainingEdge:
    values = edge(message.values, f"values of edge {message.edge}")
    if not message.HasField("gradients"):
        return TrainingEdge(values=values)
    gradients = edge(message.gradients, f"gradients of edge {message.edge}")
    return TrainingEdge(values=values, gradients=gradients)


def _reduction(message: stage_daemon_pb2.Reduction, label: str, edge: _MakeEdge) -> Reduction:
    return Reduction(
        gather=tuple(edge(one, label) for one in message.gather),
        spread=tuple(edge(one, label) for one in message.spread),
        states=tuple(message.states),
    )


def edges_to_connect(lane: TrainingLane) -> tuple[Edge, ...]:
    """Those with an end elsewhere."""
    edges: list[Edge] = []
    for trained_edge in lane.edges.values():
        if trained_edge.values.source_device_id != trained_edge.values.target_device_id:
            edges += [trained_edge.values, *([trained_edge.gradients] if trained_edge.gradients else [])]
    for reduction in (*lane.copies.values(), *lane.ties.values(), lane.agreement):
        edges += [*reduction.gather, *reduction.spread]
    return tuple(edges)


def optimizer_from_proto(optimizer: stage_daemon_pb2.Optimizer) -> OptimizerSettings:
    if not optimizer.groups:
        raise InvalidRequest("an optimizer without a parameter group, needs at least one")
    return OptimizerSettings(
        name=optimizer.name,
        groups=tuple(
            ParameterGroup(
                pattern=group.pattern or "*",
                options={name: _option(name, group.options[name]) for name in group.options},
            )
            for group in optimizer.groups
        ),
        master_weights=optimizer.master_weights,
    )


def _option(name: str, option: stage_daemon_pb2.OptimizerOption) -> OptionValue:
    kind = option.WhichOneof("kind")
    if kind == "number":
        return option.number
    if kind == "flag":
        return option.flag
    if kind == "numbers":
        return tuple(option.numbers.numbers)
    raise InvalidRequest(f"optimizer: option {name!r} has no value")


class Microbatch(NamedTuple):
    """As it came: nothing is checked. `sequence` counts the request's, from 1."""

    sequence: int
    items: Sequence[RawItem]


def read_request(
    content: bytes | memoryview, payload: memoryview | None = None
) -> tuple[stage_daemon_pb2.TrainRequest, list[Microbatch]]:
    """A serialized TrainRequest, and the microbatches of a step, whose tensors' bytes lie in the payload where there is
    one. Those of a large request lie where they stand in it, and the message is without them. Raises DecodeError."""
    if payload is None and len(content) > LARGE_BYTES:
        with suppress(DecodeError):
            return _skim_step(content)
    request = stage_daemon_pb2.TrainRequest.FromString(bytes(content))
    microbatches = [Microbatch(one.sequence, wire.raw_items(one)) for one in request.step.microbatches]
    return request, microbatches if payload is None else _beside(microbatches, payload)


def _beside(microbatches: Iterable[Microbatch], payload: memoryview) -> list[Microbatch]:
    placed, end = [], 0
    for one in microbatches:
        items, extents = wire.beside(one.items, payload, end)
        placed.append(one._replace(items=items))
        end = extents[-1][1] if extents else end
    return placed


def _skim_step(content: bytes | memoryview) -> tuple[stage_daemon_pb2.TrainRequest, list[Microbatch]]:
    """Raises DecodeError for what is no step too."""
    beside, extent = split(content, _STEP)
    message, extents = split_all(content, _MICROBATCHES, extent)
    request = stage_daemon_pb2.TrainRequest.FromString(beside)
    request.step.SetInParent()
    request.step.MergeFromString(message)
    microbatches = (wire.read_microbatch(content, extent) for extent in extents)
    return request, [Microbatch(one.sequence, items) for one, items in microbatches]


def step_from_proto(
    step: stage_daemon_pb2.TrainingStep,
    microbatches: Sequence[Microbatch],
    num_groups: int,
    inputs: InputFormat,
    lane: TrainingLane,
) -> Step:
    """Microbatches are checked, and read when their turn comes."""
    if not step.weights and (step.is_partial or not step.first_microbatch):
        raise InvalidRequest(f"step {step.number} has no microbatch, needs at least 1")
    if len(step.learning_rates) != num_groups:
        raise InvalidRequest(
            f"step {step.number} has {len(step.learning_rates)} learning rates, the optimizer {num_groups} groups"
        )
    if not all(0 <= rate <= _MAX_LEARNING_RATE for rate in step.learning_rates):
        raise InvalidRequest(
            f"step {step.number} has learning rates {list(step.learning_rates)}, needs 0 to {_MAX_LEARNING_RATE:g}"
        )
    if math.isnan(step.clip_norm) or not all(
        map(math.isfinite, (*step.weights, step.gradient_factor, step.loss_scale))
    ):
        raise InvalidRequest(f"step {step.number}: weights, factor and scale of losses, and norm, have to be numbers")
    by_place, refusal = _inputs(step, microbatches, inputs, lane.entering(len(step.weights)))
    return Step(
        number=step.number,
        weights=tuple(step.weights),
        learning_rates=tuple(step.learning_rates),
        microbatches=by_place,
        clip_norm=step.clip_norm if step.HasField("clip_norm") else None,
        gradient_factor=step.gradient_factor if step.HasField("gradient_factor") else 1.0,
        loss_scale=step.loss_scale or 1.0,
        refusal=refusal,
        first_microbatch=step.first_microbatch,
        is_partial=step.is_partial,
        is_held=step.is_held,
    )


def _inputs(
    step: stage_daemon_pb2.TrainingStep,
    microbatches: Sequence[Microbatch],
    inputs: InputFormat,
    entering: Sequence[int],
) -> tuple[dict[int, Callable[[], tuple[Item, ...]]], MicrobatchFailure | None]:
    """What only this daemon can tell to be wrong, all others learn within the step."""
    try:
        places = [one.sequence - 1 for one in microbatches]
        if sorted(places) != list(entering):
            raise InvalidMicrobatch(
                f"step {step.number} of {len(step.weights)} microbatches brings"
                f" {_numbers(places)} here, needs {_numbers(entering)}"
            )
        for one in microbatches:
            inputs.check(one.items)
    except InvalidMicrobatch as error:
        return {}, MicrobatchFailure(reason=error.reason, message=error.message)
    return {one.sequence - 1: partial(inputs.take_foreign, one.items) for one in microbatches}, None


def _numbers(places: Iterable[int]) -> str:
    return ", ".join(map(str, places)) or "none"


def outcome_to_proto(outcome: StepOutcome) -> stage_daemon_pb2.TrainResponse:
    response = stage_daemon_pb2.TrainResponse()
    if outcome.failure is not None:
        response.failure.CopyFrom(wire.failure_to_proto(outcome.failure))
        return response
    step = response.step
    for place, items in outcome.outputs.items():
        step.sequences.append(place + 1)
        wire.fill_all(step.outputs.add().values, items)
    step.gradient_norm, step.applied = outcome.gradient_norm, outcome.applied
    step.busy_seconds, step.seconds = outcome.busy_seconds, outcome.seconds
    return response


def opened_to_proto(names: Iterable[str]) -> stage_daemon_pb2.TrainResponse:
    return stage_daemon_pb2.TrainResponse(opened=stage_daemon_pb2.TrainingOpened(states=names))


def state_to_proto(name: str, tensor: torch.Tensor) -> stage_daemon_pb2.TrainResponse:
    response = stage_daemon_pb2.TrainResponse()
    response.state.name = name
    wire.fill_tensor(response.state.tensor, tensor)
    return response


def states_from_proto(request: stage_daemon_pb2.WriteStates) -> dict[TensorKey, torch.Tensor]:
    """Raises InvalidRequest for bytes that are not the tensor's."""
    tensors: dict[TensorKey, torch.Tensor] = {}
    for state in request.states:
        raw = wire.raw_tensor(state.tensor)
        if not isinstance(raw, RawTensor) or raw.dtype is None:
            raise InvalidRequest(f"state {state.name!r}: a dtype that this version does not know")
        tensors[TensorKey(state.name)] = tensor_of(state.name, raw)
    return tensors


def declared_from_proto(saved: planner_pb2.SavedTensor) -> torch.Tensor:
    """Without elements."""
    dims = tuple(saved.dims)
    try:
        return torch.empty(dims, dtype=torch_dtype(f"state {saved.name!r}", saved.dtype), device="meta")
    except RuntimeError:
        raise InvalidRequest(f"state {saved.name!r}: no tensor has dims {list(dims)}") from None


def read_saved(saved: planner_pb2.SavedTensor, read_range: ReadRange) -> torch.Tensor:
    """Raises Corrupt for bytes that are not those that were saved."""
    dtype = torch_dtype(f"state {saved.name!r}", saved.dtype)
    # A length of 0 would mean to the end of the file.
    chunks = read_range(saved.file_sha256, saved.offset_bytes, saved.length_bytes) if saved.length_bytes else ()
    data = bytearray().join(chunks)
    if hashlib.sha256(data).digest() != saved.sha256:
        raise Corrupt(
            f"state {saved.name!r} {saved.optimizer_tensor}: the checkpoint is damaged, its bytes are not those that"
            " were saved; take an earlier one"
        )
    return tensor_of(saved.name, RawTensor(dtype=dtype, dims=tuple(saved.dims), data=memoryview(data)))
