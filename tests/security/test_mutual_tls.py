"""A whole cluster over mutual TLS: what works, who is kept out, and certificates that are replaced under load."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from access.channels import open_channel
from access.files import TlsFiles, WatchedCredentials
from access.tickets import TICKET_KEY
from planner.__main__ import main as planner_server
from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment
from planner.errors import Unauthenticated, Unavailable
from protos.v1 import access_pb2, access_pb2_grpc, stage_daemon_pb2
from stage_daemon.__main__ import find_credentials, read_settings
from stage_daemon.control.callers import RULES
from stage_daemon.errors import InvalidRequest
from stage_daemon.settings import Settings
from tests.access.certificates import Certificates, environment
from tests.faults.scale import IS_SOAK, scaled, tell
from tests.security.conftest import MOST_SESSIONS, Stub
from tests.stage_daemon.control.daemons import two_layers
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = pytest.mark.services
NUM_ROTATIONS = scaled(6, 60)
ROTATION_SECONDS = 5.0 if IS_SOAK else 0.3


def test_no_call_fails_while_everybody_s_certificates_are_replaced(
    certificates: Certificates, cluster: LocalCluster, user: TlsFiles, deployment: Deployment
) -> None:
    """New connections, standing ones and streams, of the client to planner and daemons."""
    module, batch, rotated = two_layers(), torch.randn(3, 8), threading.Event()
    num_calls = 0

    def rotate() -> None:
        for _ in range(NUM_ROTATIONS):
            for role in ("planner", "daemon", "client"):
                certificates.issue(role)
            rotated.wait(ROTATION_SECONDS)
        rotated.set()

    rotating = threading.Thread(target=rotate)
    with (
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=user) as standing,
        standing.pipeline(deployment.id) as pipeline,
    ):
        rotating.start()
        while not rotated.is_set():
            assert len(standing.list_devices()) == 2
            assert torch.equal(pipeline(batch), module(batch))
            with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=user) as new:
                assert new.get_deployment(deployment.id).state is deployment.state
            num_calls += 1
    rotating.join()
    assert num_calls > NUM_ROTATIONS
    tell(f"certificates of everybody replaced {NUM_ROTATIONS} times under {3 * num_calls} calls: none failed")


def test_whoever_shows_no_certificate_of_the_authority_is_kept_out(
    cluster: LocalCluster, tmp_path: Path, user: TlsFiles
) -> None:
    stranger = Certificates.of(tmp_path / "other").issue("client")
    forged = TlsFiles(certificate=stranger.certificate, key=stranger.key, authorities=user.authorities)
    for files, message in ((None, "no planner-server answers"), (stranger, "refused"), (forged, "does not accept it")):
        with PlannerClient(cluster.planner_address, tls=files) as client, pytest.raises(Unavailable, match=message):
            client.list_devices()


def test_a_certificate_that_was_revoked_is_taken_by_nobody(
    certificates: Certificates, cluster: LocalCluster, user: TlsFiles, deployment: Deployment, daemon_stub: Stub
) -> None:
    """Of calls over connections that stood before, too."""
    stolen = certificates.issue("client", name="stolen", hosts=("stolen",))
    stub, ticket = daemon_stub(deployment.output_address, stolen), ticket_of(cluster, deployment, stolen)
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=stolen) as client:
        client.list_devices()
        certificates.revoke(stolen)
        with pytest.raises(Unauthenticated, match="was revoked"):
            client.list_devices()
    with pytest.raises(grpc.RpcError) as refused:
        next(open_results(stub, deployment, ticket))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "was revoked" in refused.value.details()
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=user) as client:
        assert len(client.list_devices()) == 2


@pytest.mark.parametrize("role", ["client", "daemon"])
def test_a_daemon_takes_commands_from_the_planner_alone(
    certificates: Certificates, deployment: Deployment, daemon_stub: Stub, role: str
) -> None:
    """Were it otherwise, it would read from any address that it is told, and connect to any other."""
    with socket.create_server(("127.0.0.1", 0)) as internal:
        address = f"127.0.0.1:{internal.getsockname()[1]}"
        stub = daemon_stub(deployment.input_address, certificates.issue(role, name=f"strange-{role}"))
        load = stage_daemon_pb2.LoadStagesRequest(
            deployment_id="dep-1", stages=[stage_daemon_pb2.StageModule(graph_sha256=bytes(32))], blob_address=address
        )
        connect = stage_daemon_pb2.ConnectStagesRequest(deployment_id=deployment.id, generation=1)
        connect.rendezvous_address = address
        commands: list[Callable[[], object]] = [
            lambda: list(stub.LoadStages(load, timeout=WAIT_SECONDS)),
            lambda: stub.ConnectStages(connect, timeout=WAIT_SECONDS),
            lambda: stub.ReleaseDeployment(
                stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id=deployment.id), timeout=WAIT_SECONDS
            ),
            lambda: list(
                stub.Profile(
                    stage_daemon_pb2.ProfileRequest(graph_sha256=bytes(32), blob_address=address), timeout=WAIT_SECONDS
                )
            ),
            lambda: stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=WAIT_SECONDS),
        ]
        for command in commands:
            with pytest.raises(grpc.RpcError) as refused:
                command()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "is the planner's alone" in refused.value.details()
        internal.settimeout(0)
        with pytest.raises(BlockingIOError):
            internal.accept()


def test_every_method_of_a_daemon_has_a_row() -> None:
    service = stage_daemon_pb2.DESCRIPTOR.services_by_name["StageDaemonService"]
    assert set(RULES) == {method.name for method in service.methods}


@pytest.mark.usefixtures("program_in_this_process")
@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_a_planner_serves_others_than_this_host_only_over_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert planner_server([option, "0.0.0.0:0", "--data-dir", str(tmp_path)]) == 1
    assert "--insecure-plaintext-beyond-loopback" in capsys.readouterr().err


@pytest.mark.usefixtures("program_in_this_process")
def test_an_expired_certificate_keeps_a_planner_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = Certificates.of(tmp_path / "tls").issue("planner", valid=timedelta(seconds=-1))
    for name, value in environment("PLANNER", expired).items():
        monkeypatch.setenv(name, value)
    assert planner_server(["--data-dir", str(tmp_path)]) == 1
    assert "planner.crt (for urn:partition-planner:planner" in (output := capsys.readouterr().err)
    assert "expired on" in output


def test_a_daemon_serves_others_than_this_host_only_over_tls(tmp_path: Path) -> None:
    for beyond in (
        Settings(device="cpu", listen="0.0.0.0:0"),
        Settings(device="cpu", metrics_listen="0.0.0.0:0"),
    ):
        with pytest.raises(InvalidRequest, match="--insecure-plaintext-beyond-loopback"):
            find_credentials(beyond)
    options = ["--device", "cpu", "--listen", "0.0.0.0:0", "--insecure-plaintext-beyond-loopback"]
    assert find_credentials(read_settings(options)) is None
    files = Certificates.of(tmp_path / "tls").issue("daemon")
    secured = Settings(
        device="cpu",
        listen="0.0.0.0:0",
        tls_certificate=files.certificate,
        tls_key=files.key,
        tls_ca=files.authorities,
    )
    credentials = find_credentials(secured)
    assert credentials is not None
    assert credentials.files == files
    with pytest.raises(InvalidRequest, match="all three files"):
        find_credentials(secured.model_copy(update={"tls_key": None}))


def open_results(stub: Any, deployment: Deployment, ticket: str | None) -> Any:
    """The stream of a new session's results; refused, where it is, at the first message."""
    opened = stage_daemon_pb2.OpenSession(deployment_id=deployment.id, session_id=secrets.randbits(63))
    metadata = () if ticket is None else ((TICKET_KEY, ticket),)
    request = stage_daemon_pb2.ReceiveOutputsRequest(open=opened)
    return stub.ReceiveOutputs(request, metadata=metadata, timeout=WAIT_SECONDS)


def ticket_of(cluster: LocalCluster, deployment: Deployment, files: TlsFiles) -> str:
    with closing(open_channel(cluster.planner_address, WatchedCredentials(files))) as channel:
        planner = access_pb2_grpc.AccessServiceStub(channel)
        return str(planner.CreateTicket(access_pb2.CreateTicketRequest(deployment_id=deployment.id)).ticket)


def test_one_caller_has_so_many_sessions_on_a_daemon(
    certificates: Certificates, cluster: LocalCluster, user: TlsFiles, deployment: Deployment, daemon_stub: Stub
) -> None:
    greedy = certificates.issue("client", name="greedy", hosts=("greedy",))
    stub, ticket = daemon_stub(deployment.output_address, greedy), ticket_of(cluster, deployment, greedy)
    streams = [open_results(stub, deployment, ticket) for _ in range(MOST_SESSIONS)]
    # The others are for what runs.
    assert sum(next(stream).may_idle for stream in streams) == MOST_SESSIONS // 2
    with pytest.raises(grpc.RpcError) as refused:
        next(open_results(stub, deployment, ticket))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"has {MOST_SESSIONS} sessions on this daemon" in refused.value.details()
    other = open_results(daemon_stub(deployment.output_address, user), deployment, ticket_of(cluster, deployment, user))
    next(other)
    for stream in (other, *streams):
        stream.cancel()

    def is_let_in() -> bool:
        again = open_results(stub, deployment, ticket)
        try:
            return next(again).sequence == 0
        except grpc.RpcError:
            return False
        finally:
            again.cancel()

    wait_for(is_let_in, "a session that ended to make room")


def test_a_deployment_opens_by_its_ticket_and_for_its_holder_alone(
    certificates: Certificates, cluster: LocalCluster, user: TlsFiles, deployment: Deployment, daemon_stub: Stub
) -> None:
    ticket = ticket_of(cluster, deployment, user)
    own = daemon_stub(deployment.output_address, user)
    results = open_results(own, deployment, ticket)
    assert next(results).sequence == 0
    results.cancel()
    thief = daemon_stub(deployment.output_address, certificates.issue("client", name="thief", hosts=("mallory",)))
    for stub, certificate, message in (
        (own, None, "asks for a ticket"),
        (own, "x" + ticket, "is none of deployment"),
        (thief, ticket, "another certificate"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            next(open_results(stub, deployment, certificate))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert message in refused.value.details()
    sending = daemon_stub(deployment.input_address, user).SendInputs(
        iter([stage_daemon_pb2.SendInputsRequest(open=stage_daemon_pb2.OpenSession(deployment_id=deployment.id))]),
        timeout=WAIT_SECONDS,
    )
    with pytest.raises(grpc.RpcError) as refused:
        next(sending)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
