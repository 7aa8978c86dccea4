"""What a worker answers to requests that are none."""

from __future__ import annotations

import pytest

from protos.v1 import stage_daemon_pb2
from stage_daemon.worker.training import Training
from stage_daemon.worker.training_inlet import Request
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
