"""StageDaemonService: the planner's calls go to the supervisor, the clients' streams to their deployment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from access.errors import AccessError
from access.host import clock_identity
from access.peers import peer_of
from access.tickets import TICKET_KEY, check_ticket
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon.control.callers import WORDS_BYTES
from stage_daemon.control.hosted import HostedDeployment
from stage_daemon.control.microbatches import (
    check_microbatch,
    check_training_bytes,
    most_input_bytes,
    parse_inputs,
    read_microbatch,
)
from stage_daemon.control.sessions import CallersSessions
from stage_daemon.control.supervisor import Supervisor
from stage_daemon.errors import Conflict, Forbidden, InvalidRequest

Context = grpc.aio.ServicerContext[Any, Any]


class StageDaemonService(stage_daemon_pb2_grpc.StageDaemonServiceServicer):
    """`advertise_host` is the host that other daemons reach this one's rendezvous at."""

    def __init__(self, supervisor: Supervisor, advertise_host: str, callers: CallersSessions) -> None:
        self._supervisor = supervisor
        self._advertise_host = advertise_host
        self._callers = callers

    async def LoadStages(
        self, request: stage_daemon_pb2.LoadStagesRequest, context: Context
    ) -> AsyncIterator[stage_daemon_pb2.LoadStagesResponse]:
        async for response in self._supervisor.load(request):
            yield response

    async def OpenRendezvous(
        self, request: stage_daemon_pb2.OpenRendezvousRequest, context: Context
    ) -> stage_daemon_pb2.OpenRendezvousResponse:
        port = await self._supervisor.open_rendezvous(request.deployment_id, request.generation)
        host = f"[{self._advertise_host}]" if ":" in self._advertise_host else self._advertise_host
        return stage_daemon_pb2.OpenRendezvousResponse(address=f"{host}:{port}")

    async def ConnectStages(
        self, request: stage_daemon_pb2.ConnectStagesRequest, context: Context
    ) -> stage_daemon_pb2.ConnectStagesResponse:
        await self._supervisor.connect(request)
        return stage_daemon_pb2.ConnectStagesResponse()

    async def ReleaseDeployment(
        self, request: stage_daemon_pb2.ReleaseDeploymentRequest, context: Context
    ) -> stage_daemon_pb2.ReleaseDeploymentResponse:
        drain_seconds = request.drain_seconds if request.drain else 0.0
        await self._supervisor.release(
            request.deployment_id, drain_seconds, request.generation or None, keep_states=request.keep_states
        )
        return stage_daemon_pb2.ReleaseDeploymentResponse()

    async def GetDaemonStatus(
        self, request: stage_daemon_pb2.GetDaemonStatusRequest, context: Context
    ) -> stage_daemon_pb2.GetDaemonStatusResponse:
        return stage_daemon_pb2.GetDaemonStatusResponse(
            device_id=self._supervisor.device_id,
            incarnation_id=self._supervisor.incarnation_id,
            deployments=self._supervisor.report(),
            stages=await self._supervisor.metrics(),
        )

    async def Profile(
        self, request: stage_daemon_pb2.ProfileRequest, context: Context
    ) -> AsyncIterator[stage_daemon_pb2.ProfileResponse]:
        async for response in self._supervisor.profile(request):
            yield response

    async def SendInputs(
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[stage_daemon_pb2.SendInputsResponse]:
        """The requests are the bytes that came: see control.callers."""
        first = parse_inputs(await anext(request_iterator, b""), WORDS_BYTES)
        if first.WhichOneof("content") != "open":
            raise InvalidRequest("SendInputs: the first message has to be `open`")
        hosted = self._input_end(first.open)
        caller = _check_ticket(hosted, context)
        session_id = first.open.session_id
        sequence, limit_bytes = 0, most_input_bytes(hosted.connection)
        with self._callers.hold(caller, first.open.deployment_id, session_id) as may_idle:
            async with hosted.sending(first.open):
                if first.open.host:
                    yield stage_daemon_pb2.SendInputsResponse(door=hosted.door_for(first.open), may_idle=may_idle)
                async for content in request_iterator:
                    skimmed = read_microbatch(content, limit_bytes)
                    sequence += 1
                    check_microbatch(skimmed, hosted.connection.inputs, sequence)
                    await hosted.send_input(session_id, sequence, skimmed.content)
                    yield stage_daemon_pb2.SendInputsResponse(sequence=sequence)

    async def ReceiveOutputs(
        self, request: stage_daemon_pb2.ReceiveOutputsRequest, context: Context
    ) -> AsyncIterator[Any]:
        """Results are the bytes that the worker made, of a ReceiveOutputsResponse."""
        hosted = self._output_end(request.open)
        caller = _check_ticket(hosted, context)
        with self._callers.hold(caller, request.open.deployment_id, request.open.session_id) as may_idle:
            session = hosted.open_session(request.open.session_id)
            try:
                async with hosted.choosing(request.open):
                    yield stage_daemon_pb2.ReceiveOutputsResponse(door=hosted.door_for(request.open), may_idle=may_idle)
                    async for result in session.results():
                        yield result
            finally:
                hosted.sessions.close(session)

    async def Train(self, request_iterator: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """The requests are the bytes that came: all but the first are for the worker to read. It makes the answers'."""
        request: bytes | None = await anext(request_iterator, b"")
        opened = _training_opened(request or b"")
        hosted = self._supervisor.find(opened.deployment_id)
        _check_ticket(hosted, context)
        with hosted.training(by_door=bool(opened.host)):
            while request is not None:
                async with contextlib.aclosing(hosted.train(request)) as responses:
                    async for response in responses:
                        yield response
                request = await anext(request_iterator, None)
                check_training_bytes(request or b"", hosted.most_training_bytes)

    async def SaveSnapshot(
        self, request: stage_daemon_pb2.SaveSnapshotRequest, context: Context
    ) -> stage_daemon_pb2.SaveSnapshotResponse:
        hosted = self._supervisor.find(request.deployment_id, request.generation)
        _check_ticket(hosted, context)
        return await hosted.save_snapshot()

    async def GetTimeline(
        self, request: stage_daemon_pb2.GetTimelineRequest, context: Context
    ) -> stage_daemon_pb2.GetTimelineResponse:
        received_seconds = time.monotonic()
        hosted = self._supervisor.find(request.deployment_id)
        _check_ticket(hosted, context)
        response = await hosted.timelines(request)
        response.device_id, response.generation = self._supervisor.device_id, hosted.life.generation
        response.clock, response.received_seconds = clock_identity(), received_seconds
        response.answered_seconds = time.monotonic()
        return response

    def _input_end(self, opened: stage_daemon_pb2.OpenSession) -> HostedDeployment:
        hosted = self._supervisor.find(opened.deployment_id, opened.generation)
        hosted.check_running()
        if not hosted.takes_inputs:
            raise Conflict(
                f"the first stage of {opened.deployment_id} is not here; send inputs to the deployment's input_address"
            )
        return hosted

    def _output_end(self, opened: stage_daemon_pb2.OpenSession) -> HostedDeployment:
        hosted = self._supervisor.find(opened.deployment_id, opened.generation)
        hosted.check_running()
        if not hosted.gives_outputs:
            raise Conflict(
                f"the last stage of {opened.deployment_id} is not here; read from the deployment's output_address"
            )
        return hosted


def _training_opened(content: bytes) -> stage_daemon_pb2.OpenTraining:
    """Raises InvalidRequest."""
    if len(content) > WORDS_BYTES:
        raise InvalidRequest(
            f"Train: a first message of {len(content):,} bytes came, and at most {WORDS_BYTES:,} are taken"
        )
    try:
        request = stage_daemon_pb2.TrainRequest.FromString(content)
    except DecodeError:
        raise InvalidRequest("Train: the first message cannot be parsed") from None
    if request.WhichOneof("content") != "open":
        raise InvalidRequest("Train: the first message has to be `open`")
    return request.open


def _check_ticket(hosted: HostedDeployment, context: Context) -> str:
    """The caller's name, empty over plain text. Raises Forbidden.

    No planner is asked: sessions open while none answers.
    """
    tickets = [value for name, value in context.invocation_metadata() or () if name == TICKET_KEY]
    try:
        peer = peer_of(context.auth_context())
        caller = str(peer) if peer else ""
        if hosted.secret:
            check_ticket(
                hosted.secret,
                str(tickets[0]) if tickets else "",
                deployment_id=hosted.life.deployment_id,
                holder=caller,
                now=datetime.now(UTC),
            )
    except AccessError as error:
        raise Forbidden(error.message) from None
    return caller
