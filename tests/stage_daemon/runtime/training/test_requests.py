"""What a worker answers to requests that are none."""

from __future__ import annotations

import pytest
import torch

from planner.client.training.cutting import loss_output
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.training.weights import Weight
from stage_daemon.worker import wire
from stage_daemon.worker.training import Training
from stage_daemon.worker.training_inlet import Request
from stage_daemon.worker.training_wire import read_request
from tests.stage_daemon.runtime.training.modules import rows
from tests.stage_daemon.runtime.training.test_checkpoints import cluster_of


@pytest.mark.parametrize("request_bytes", [b"\xff", b""])
def test_a_request_that_cannot_be_read_is_answered_and_ends_nothing(request_bytes: bytes) -> None:
    """No supervisor has parsed it before."""
    [told] = cluster_of("layers", (0,)).told.values()
    responses: list[stage_daemon_pb2.TrainResponse] = []
    training = Training(told, lambda response, _: responses.append(response))
    read_states = stage_daemon_pb2.TrainRequest(read_states=stage_daemon_pb2.ReadStates()).SerializeToString()
    for content in (request_bytes, read_states):
        training.submit(Request(content))
    training.take_no_more()
    training.run()
    refused, *states, done = responses
    assert (refused.failure.reason, "cannot be parsed" in refused.failure.message) == ("INVALID_ARGUMENT", True)
    assert states
    assert done.WhichOneof("content") is None


@pytest.mark.parametrize("is_held", [False, True])
def test_a_step_that_goes_on_from_nothing_is_refused(is_held: bool) -> None:
    """Before any, and behind one that was applied."""
    cluster = cluster_of("layers", (0,))
    [told] = cluster.told.values()
    responses: list[stage_daemon_pb2.TrainResponse] = []
    training = Training(told, lambda response, _: responses.append(response))
    opened, goes_on, ends = (stage_daemon_pb2.TrainRequest() for _ in range(3))
    opened.open.loss_value = loss_output(cluster.graph, None)[1]
    opened.open.optimizer.name = "sgd"
    opened.open.optimizer.groups.add(pattern="*")
    for request, first in ((goes_on, 4), (ends, 0)):
        request.step.number, request.step.first_microbatch = 1, first
        request.step.learning_rates.append(0.1)
        request.step.weights.extend([1.0] if first == 0 else [])
    goes_on.step.is_held = is_held
    wire.fill_all(ends.step.microbatches.add(sequence=1).values, rows(2, 1))
    for request in (opened, goes_on, ends, goes_on):
        training.do(*read_request(request.SerializeToString()))
    _, before, applied, behind = responses
    assert applied.step.applied
    for refused in (before, behind):
        assert "goes on from microbatch 4, and none ran before it" in refused.failure.message


def test_an_opening_for_which_memory_lacks_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of("layers", (0,))
    [told] = cluster.told.values()
    responses: list[stage_daemon_pb2.TrainResponse] = []
    training = Training(told, lambda response, _: responses.append(response))
    opened, step = stage_daemon_pb2.TrainRequest(), stage_daemon_pb2.TrainRequest()
    opened.open.loss_value = loss_output(cluster.graph, None)[1]
    opened.open.optimizer.name = "sgd"
    opened.open.optimizer.groups.add(pattern="*")
    step.step.weights.append(1.0)
    training.do(opened, [])

    def without_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory for the masters")

    monkeypatch.setattr(Weight, "keep_master", without_memory)
    for request in (opened, step):
        training.do(request, [])
    assert [response.failure.message for response in responses[1:]] == [
        "OutOfMemoryError: no memory for the masters",
        "a step came before training was opened",
    ]
