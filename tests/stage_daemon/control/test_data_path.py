"""Inputs and outputs as clients stream them, over plain gRPC: order, sessions, and refusals that say what to do."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence

import grpc
import pytest
import torch
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from planner.client.records import Deployment
from protos.v1 import graph_pb2, stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.stage_daemon.control.processes import WAIT_SECONDS

StubAt = Callable[[str], stage_daemon_pb2_grpc.StageDaemonServiceStub]


def opened(deployment_id: str, session_id: int) -> stage_daemon_pb2.OpenSession:
    return stage_daemon_pb2.OpenSession(deployment_id=deployment_id, session_id=session_id)


def datum(rows: torch.Tensor) -> stage_daemon_pb2.Datum:
    data = struct.pack(f"<{rows.numel()}f", *rows.flatten().tolist())
    return stage_daemon_pb2.Datum(
        tensor=stage_daemon_pb2.Tensor(dtype=graph_pb2.DTYPE_FLOAT32, dims=rows.shape, data=data)
    )


def microbatches(batches: Sequence[torch.Tensor]) -> Iterator[stage_daemon_pb2.SendInputsRequest]:
    for index, batch in enumerate(batches):
        yield stage_daemon_pb2.SendInputsRequest(
            microbatch=stage_daemon_pb2.Microbatch(sequence=index + 1, values=[datum(batch)])
        )


def inputs(
    deployment_id: str, session_id: int, batches: Sequence[torch.Tensor]
) -> Iterator[stage_daemon_pb2.SendInputsRequest]:
    yield stage_daemon_pb2.SendInputsRequest(open=opened(deployment_id, session_id))
    yield from microbatches(batches)


def run_session(
    stub: StubAt, deployment: Deployment, session_id: int, batches: Sequence[torch.Tensor]
) -> list[tuple[int, torch.Tensor]]:
    request = stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, session_id))
    results = stub(deployment.output_address).ReceiveOutputs(request, timeout=WAIT_SECONDS)
    assert next(results).WhichOneof("content") is None
    sent = stub(deployment.input_address).SendInputs(inputs(deployment.id, session_id, batches), timeout=WAIT_SECONDS)
    assert [answer.sequence for answer in sent] == list(range(1, len(batches) + 1))
    found = []
    for _ in batches:
        response = next(results)
        [value] = response.result.values
        numbers = struct.unpack(f"<{len(value.tensor.data) // 4}f", value.tensor.data)
        found.append((response.sequence, torch.tensor(numbers).reshape(tuple(value.tensor.dims))))
    results.cancel()
    return found


def assert_results(
    module: torch.nn.Module, batches: Sequence[torch.Tensor], found: Sequence[tuple[int, torch.Tensor]]
) -> None:
    with torch.no_grad():
        wanted = [module(batch) for batch in batches]
    assert [sequence for sequence, _ in found] == list(range(1, len(batches) + 1))
    assert all(torch.equal(result, expected) for (_, result), expected in zip(found, wanted, strict=True))


def test_two_sessions_at_once_each_in_order(deployment: Deployment, stub: StubAt, module: torch.nn.Module) -> None:
    batches = {session: [torch.randn(1 + index % 5, 8) for index in range(12)] for session in (11, 12)}
    found: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def run(session_id: int) -> None:
        found[session_id] = run_session(stub, deployment, session_id, batches[session_id])

    threads = [threading.Thread(target=run, args=(session_id,)) for session_id in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    for session_id in batches:
        assert_results(module, batches[session_id], found[session_id])


def test_a_client_that_vanishes_leaves_the_others_alone(
    deployment: Deployment, stub: StubAt, module: torch.nn.Module
) -> None:
    request = stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, 21))
    results = stub(deployment.output_address).ReceiveOutputs(request, timeout=WAIT_SECONDS)
    next(results)
    batches = [torch.randn(2, 8) for _ in range(6)]
    sent = stub(deployment.input_address).SendInputs(inputs(deployment.id, 21, batches), timeout=WAIT_SECONDS)
    next(sent)
    results.cancel()
    sent.cancel()
    assert_results(module, batches, run_session(stub, deployment, 22, batches))


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """(reason, message) of the error that the call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "partition_planner"
    return info.reason, status.message


def test_refusals_say_what_to_do(deployment: Deployment, stub: StubAt, module: torch.nn.Module) -> None:
    first, last = stub(deployment.input_address), stub(deployment.output_address)
    fits, narrow = [torch.zeros(2, 8)], [torch.zeros(2, 7)]

    def send(messages: Iterator[stage_daemon_pb2.SendInputsRequest], to: object = first) -> list[object]:
        return list(to.SendInputs(messages, timeout=WAIT_SECONDS))

    def receive(session: stage_daemon_pb2.OpenSession, at: object = last) -> list[object]:
        request = stage_daemon_pb2.ReceiveOutputsRequest(open=session)
        return list(at.ReceiveOutputs(request, timeout=WAIT_SECONDS))

    empty = stage_daemon_pb2.SendInputsRequest(microbatch=stage_daemon_pb2.Microbatch(sequence=1))
    open_first = stage_daemon_pb2.SendInputsRequest(open=opened(deployment.id, 31))
    gap = stage_daemon_pb2.SendInputsRequest(microbatch=stage_daemon_pb2.Microbatch(sequence=2))
    cases = [
        (lambda: send(inputs("dep-none", 31, fits)), "NOT_FOUND", "no stage on"),
        (lambda: receive(opened("dep-none", 31)), "NOT_FOUND", "no stage on"),
        (lambda: send(microbatches(fits)), "INVALID_ARGUMENT", "the first message has to be `open`"),
        (lambda: send(iter(())), "INVALID_ARGUMENT", "the first message has to be `open`"),
        (lambda: send(iter((open_first, open_first))), "INVALID_ARGUMENT", "has to be a `microbatch`"),
        (lambda: send(iter((open_first, empty))), "INVALID_MICROBATCH", "0 values, the deployment takes 1: x"),
        (lambda: send(iter((open_first, gap))), "INVALID_MICROBATCH", "microbatch 2 came where 1 was due"),
        (lambda: send(inputs(deployment.id, 31, narrow)), "INVALID_MICROBATCH", "input 'x': dims [2, 7], needs"),
        (lambda: send(inputs(deployment.id, 31, fits), last), "CONFLICT", "input_address"),
        (lambda: receive(opened(deployment.id, 31), first), "CONFLICT", "output_address"),
    ]
    for call, reason, message in cases:
        found = refusal(call)
        assert found[0] == reason
        assert message in found[1]
    batches = [torch.randn(3, 8)]
    assert_results(module, batches, run_session(stub, deployment, 32, batches))


def test_sessions_end_when_the_deployment_is_stopped(
    client: object, plan: object, stub: StubAt, deployment: Deployment
) -> None:
    request = stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, 41))
    results = stub(deployment.output_address).ReceiveOutputs(request, timeout=WAIT_SECONDS)
    next(results)
    client.stop(deployment.id)
    assert refusal(lambda: next(results)) == ("DEPLOYMENT_RELEASED", f"deployment {deployment.id} was stopped")
    again = stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, 42))
    call = stub(deployment.output_address).ReceiveOutputs(again, timeout=WAIT_SECONDS)
    assert refusal(lambda: next(call))[0] == "NOT_FOUND"


def test_planner_calls_out_of_order_are_refused(deployment: Deployment, stub: StubAt) -> None:
    daemon = stub(deployment.input_address)
    known = {"deployment_id": deployment.id, "generation": 1}
    cases = [
        (lambda: daemon.ConnectStages(stage_daemon_pb2.ConnectStagesRequest(deployment_id="dep-none")), "NOT_FOUND"),
        (lambda: daemon.ConnectStages(stage_daemon_pb2.ConnectStagesRequest(**known)), "CONFLICT"),
        (lambda: daemon.OpenRendezvous(stage_daemon_pb2.OpenRendezvousRequest(deployment_id="dep-none")), "NOT_FOUND"),
        (lambda: list(daemon.LoadStages(stage_daemon_pb2.LoadStagesRequest())), "INVALID_ARGUMENT"),
        (
            lambda: list(
                daemon.LoadStages(
                    stage_daemon_pb2.LoadStagesRequest(stages=[stage_daemon_pb2.StageModule(stage=0)], **known)
                )
            ),
            "CONFLICT",
        ),
    ]
    for call, reason in cases:
        assert refusal(call)[0] == reason
    daemon.ReleaseDeployment(stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-none"), timeout=10)
