"""Requests of training as a worker reads them."""

from __future__ import annotations

import pytest
import torch
from google.protobuf.message import DecodeError

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.ingress import RawItem, RawTensor
from stage_daemon.worker import training_wire, wire


def plain(item: RawItem) -> object:
    return (item.dtype, item.dims, bytes(item.data)) if isinstance(item, RawTensor) else item


@pytest.fixture
def request_of_a_step() -> stage_daemon_pb2.TrainRequest:
    request = stage_daemon_pb2.TrainRequest()
    step = request.step
    step.number, step.clip_norm, step.first_microbatch, step.is_partial = 5, 0.5, 2, True
    step.weights.extend([0.25, 0.75])
    step.learning_rates.append(0.1)
    for sequence, rows in ((1, 3), (2, 70_000)):
        wire.fill_all(step.microbatches.add(sequence=sequence).values, (torch.arange(rows * 2.0), True, rows))
    return request


@pytest.mark.parametrize("large_bytes", [0, 1 << 18, 1 << 30])
def test_a_step_is_read_alike_with_and_without_the_parser(
    monkeypatch: pytest.MonkeyPatch, request_of_a_step: stage_daemon_pb2.TrainRequest, large_bytes: int
) -> None:
    for module in (wire, training_wire):
        monkeypatch.setattr(module, "LARGE_BYTES", large_bytes)
    content = request_of_a_step.SerializeToString()
    assert len(content) > 1 << 18
    request, microbatches = training_wire.read_request(content)
    for one, sent in zip(microbatches, request_of_a_step.step.microbatches, strict=True):
        assert one.sequence == sent.sequence
        assert list(map(plain, one.items)) == list(map(plain, wire.raw_items(sent)))
    assert bool(request.step.microbatches) == (large_bytes == 1 << 30)
    for message in (request, request_of_a_step):
        message.step.ClearField("microbatches")
    assert request == request_of_a_step


def test_a_step_is_read_alike_with_its_tensors_beside_it(request_of_a_step: stage_daemon_pb2.TrainRequest) -> None:
    content = request_of_a_step.SerializeToString()
    _, expected = training_wire.read_request(content)
    payload = bytearray()
    for one in request_of_a_step.step.microbatches:
        for value in one.values:
            if value.HasField("tensor"):
                payload += bytes(-len(payload) % 64) + value.tensor.data
                value.tensor.ClearField("data")
    request, microbatches = training_wire.read_request(request_of_a_step.SerializeToString(), memoryview(payload))
    assert request == request_of_a_step
    for one, other in zip(microbatches, expected, strict=True):
        assert one.sequence == other.sequence
        assert list(map(plain, one.items)) == list(map(plain, other.items))


@pytest.mark.parametrize(
    ("field", "number", "words"),
    [
        ("learning_rates", float("nan"), r"learning rates \[nan\], needs 0 to 1e\+06"),
        ("learning_rates", 1e300, r"learning rates \[1e\+300\], needs 0 to 1e\+06"),
        ("learning_rates", -0.1, r"learning rates \[-0.1\], needs 0 to 1e\+06"),
        ("weights", float("nan"), "weights, factor and scale of losses, and norm, have to be numbers"),
        ("gradient_factor", float("inf"), "weights, factor and scale of losses, and norm, have to be numbers"),
        ("loss_scale", float("inf"), "weights, factor and scale of losses, and norm, have to be numbers"),
        ("clip_norm", float("nan"), "weights, factor and scale of losses, and norm, have to be numbers"),
    ],
)
def test_a_step_by_numbers_that_are_none_is_refused(
    request_of_a_step: stage_daemon_pb2.TrainRequest, field: str, number: float, words: str
) -> None:
    """Nobody would see it before the weights are none either, or torch's optimizer raises, which ends the worker."""
    step = request_of_a_step.step
    if field in ("learning_rates", "weights"):
        getattr(step, field)[-1] = number
    else:
        setattr(step, field, number)
    with pytest.raises(InvalidRequest, match=words):
        training_wire.step_from_proto(step, [], 1, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [1, 2])
def test_a_large_request_that_is_no_single_step_is_the_parsers(
    monkeypatch: pytest.MonkeyPatch, request_of_a_step: stage_daemon_pb2.TrainRequest, times: int
) -> None:
    monkeypatch.setattr(training_wire, "LARGE_BYTES", 0)
    content = times * request_of_a_step.SerializeToString()
    request, microbatches = training_wire.read_request(content)
    assert [one.sequence for one in microbatches] == times * [1, 2]
    assert request.step.weights == times * [0.25, 0.75]
    states = stage_daemon_pb2.TrainRequest(read_states=stage_daemon_pb2.ReadStates())
    assert training_wire.read_request(states.SerializeToString()) == (states, [])
    only_inputs = stage_daemon_pb2.TrainRequest()
    only_inputs.step.microbatches.add(sequence=1)
    assert training_wire.read_request(only_inputs.SerializeToString())[0].WhichOneof("content") == "step"
    with pytest.raises(DecodeError):
        training_wire.read_request(content[:-1])


@pytest.mark.parametrize(("of_edge", "of_all", "held"), [(5, 2, 5), (2, 4, 4), (0, 3, 3)])
def test_an_edge_holds_what_it_is_told_or_what_all_are_told(of_edge: int, of_all: int, held: int) -> None:
    """All edges are told more where a step could not end otherwise."""
    training = stage_daemon_pb2.StageTraining(microbatches=1, messages_in_flight=of_all)
    training.agreement.SetInParent()
    edge = training.edges.add(edge=0)
    for message in (edge.values, edge.gradients):
        message.target_stage, message.microbatches_in_flight = 1, of_edge
    [own] = training_wire.training_from_proto(training, "dep-test", 1, {}).edges.values()
    assert own.values.in_flight == held
    assert own.gradients is not None
    assert own.gradients.in_flight == held
