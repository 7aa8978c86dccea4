"""Tokens, rules, owners and the audit trail over a real channel, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from access.channels import open_aio_channel
from access.files import TlsFiles, WatchedCredentials
from planner.api.access_service import create_token
from planner.api.principals import RECHECK_SECONDS
from planner.api.rules import RULES
from planner.api.server import SERVICES, PlannerServer
from planner.errors import InvalidArgument, PlannerError
from planner.settings import Settings
from planner.store.database import Database
from planner.store.operations import get_operation
from protos.v1 import access_pb2, access_pb2_grpc, planner_pb2, planner_pb2_grpc
from tests.access.certificates import Certificates
from tests.contract.calls import WAIT_SECONDS, balanced, create_graph, inventory_message, refused, upload, wait_plan
from tests.contract.conftest import StartServer, on_both
from tests.contract.graphs import chain_bytes

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A server that asks for tokens."""

    server: PlannerServer
    database: Database
    certificates: Certificates
    resources: contextlib.AsyncExitStack

    async def token(self, holder: str, *scopes: str, valid: timedelta = DAY) -> tuple[str, str]:
        """(the token, its id)."""
        token, record = await create_token(self.database, holder, scopes, valid)
        return token, record.id

    def channel(self, files: TlsFiles, token: str = "") -> Any:
        source = (lambda: token) if token else None
        channel = open_aio_channel(self.server.address, WatchedCredentials(files), token=source)
        self.resources.push_async_callback(channel.close)
        return channel

    async def caller(self, holder: str, *scopes: str) -> Any:
        token, _ = await self.token(holder, *scopes)
        return planner_pb2_grpc.PlannerServiceStub(self.channel(self.certificates.issue("client"), token))

    async def administrator(self) -> Any:
        token, _ = await self.token("root", "admin")
        return access_pb2_grpc.AccessServiceStub(self.channel(self.certificates.issue("client"), token))


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(start_server: StartServer, own_settings: Settings, tmp_path: Path) -> AsyncIterator[Guarded]:
    certificates = Certificates.of(tmp_path / "authority")
    files = certificates.issue("planner")
    server = await start_server(
        access="tokens", tls_certificate=files.certificate, tls_key=files.key, tls_ca=files.authorities
    )
    async with contextlib.AsyncExitStack() as resources:
        database = Database(own_settings.database)
        resources.push_async_callback(database.close)
        yield Guarded(server=server, database=database, certificates=certificates, resources=resources)


def devices() -> planner_pb2.ListDevicesRequest:
    return planner_pb2.ListDevicesRequest()


async def test_who_shows_no_token_may_not_even_read(guarded: Guarded) -> None:
    stub = planner_pb2_grpc.PlannerServiceStub(guarded.channel(guarded.certificates.issue("client")))
    with refused("UNAUTHENTICATED") as refusal:
        await stub.ListDevices(devices(), timeout=WAIT_SECONDS)
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert "PLANNER_TOKEN_FILE" in refusal.message


async def test_a_token_that_nobody_gave_is_refused(guarded: Guarded) -> None:
    files = guarded.certificates.issue("client")
    stub = planner_pb2_grpc.PlannerServiceStub(guarded.channel(files, "pplan_" + 43 * "a"))
    with refused("UNAUTHENTICATED"):
        await stub.ListDevices(devices(), timeout=WAIT_SECONDS)


@on_both
async def test_a_token_ends_with_its_time(guarded: Guarded) -> None:
    token, token_id = await guarded.token("alice", "submit", valid=timedelta(seconds=0.05))
    await asyncio.sleep(0.06)
    stub = planner_pb2_grpc.PlannerServiceStub(guarded.channel(guarded.certificates.issue("client"), token))
    with refused("UNAUTHENTICATED") as refusal:
        await stub.ListDevices(devices(), timeout=WAIT_SECONDS)
    assert f"token {token_id} of alice expired on" in refusal.message


async def test_a_token_that_is_revoked_counts_no_longer(guarded: Guarded) -> None:
    token, token_id = await guarded.token("alice", "submit")
    stub = planner_pb2_grpc.PlannerServiceStub(guarded.channel(guarded.certificates.issue("client"), token))
    await stub.ListDevices(devices(), timeout=WAIT_SECONDS)
    administrator = await guarded.administrator()
    request = access_pb2.RevokeTokenRequest(token_id=token_id)
    revoked = await administrator.RevokeToken(request, timeout=WAIT_SECONDS)
    assert (await administrator.RevokeToken(request, timeout=WAIT_SECONDS)).revoked_at == revoked.revoked_at
    await asyncio.sleep(RECHECK_SECONDS)
    with refused("UNAUTHENTICATED") as refusal:
        await stub.ListDevices(devices(), timeout=WAIT_SECONDS)
    assert "was revoked" in refusal.message
    with refused("NOT_FOUND"):
        await administrator.RevokeToken(access_pb2.RevokeTokenRequest(token_id="token-0"), timeout=WAIT_SECONDS)


async def test_a_stream_ends_when_its_caller_s_token_is_revoked(guarded: Guarded) -> None:
    """At the next thing that it would tell: more than what fits between two ends that do not read."""
    token, token_id = await guarded.token("alice", "submit")
    stub = planner_pb2_grpc.PlannerServiceStub(guarded.channel(guarded.certificates.issue("client"), token))
    name = await upload(stub, bytes(64 << 20))
    reading = stub.ReadBlob(planner_pb2.ReadBlobRequest(sha256=name), timeout=WAIT_SECONDS)
    await reading.read()
    administrator = await guarded.administrator()
    await administrator.RevokeToken(access_pb2.RevokeTokenRequest(token_id=token_id), timeout=WAIT_SECONDS)
    await asyncio.sleep(RECHECK_SECONDS)
    with refused("UNAUTHENTICATED"):
        while await reading.read() is not grpc.aio.EOF:
            pass


async def test_a_token_allows_its_scopes_and_no_others(guarded: Guarded) -> None:
    submitter, deployer = await guarded.caller("alice", "submit"), await guarded.caller("bob", "deploy")
    graph = await create_graph(submitter, chain_bytes())
    assert (await deployer.GetGraph(planner_pb2.GetGraphRequest(graph_id=graph.id))).id == graph.id
    with refused("PERMISSION_DENIED") as refusal:
        await submitter.Deploy(planner_pb2.DeployRequest(plan_id="plan-0"), timeout=WAIT_SECONDS)
    assert refusal.message == "Deploy needs a token with the scope deploy, which alice does not have"
    with refused("PERMISSION_DENIED"):
        await deployer.CreateInventory(
            planner_pb2.CreateInventoryRequest(inventory=inventory_message()), timeout=WAIT_SECONDS
        )
    with refused("NOT_FOUND"):
        await deployer.Deploy(planner_pb2.DeployRequest(plan_id="plan-0"), timeout=WAIT_SECONDS)


async def test_only_administrators_make_tokens(guarded: Guarded) -> None:
    for scopes in (("submit", "deploy", "operate"),):
        token, _ = await guarded.token("alice", *scopes)
        stub = access_pb2_grpc.AccessServiceStub(guarded.channel(guarded.certificates.issue("client"), token))
        token_request = access_pb2.CreateTokenRequest(holder="alice", scopes=["admin"], valid_seconds=60)
        with refused("PERMISSION_DENIED"):
            await stub.CreateToken(token_request, timeout=WAIT_SECONDS)
        with refused("PERMISSION_DENIED"):
            await stub.ListTokens(access_pb2.ListTokensRequest(), timeout=WAIT_SECONDS)
    administrator = await guarded.administrator()
    created = await administrator.CreateToken(token_request, timeout=WAIT_SECONDS)
    listed = await administrator.ListTokens(access_pb2.ListTokensRequest(), timeout=WAIT_SECONDS)
    assert created.record in listed.tokens
    assert created.token not in str(listed)
    async with guarded.database.reading() as session:
        rows = (await session.execute(text("SELECT * FROM tokens WHERE id = :id"), {"id": created.record.id})).all()
    assert hashlib.sha256(created.token.encode()).hexdigest() in rows[0]
    assert created.token not in str(rows)


@pytest.mark.parametrize(
    ("holder", "scopes", "seconds"),
    [("", ["submit"], 60), ("a", [], 60), ("a", ["root"], 60), ("a", ["submit"], 0), ("a\n", ["submit"], 60)],
)
async def test_tokens_that_make_no_sense_are_refused(
    guarded: Guarded, holder: str, scopes: list[str], seconds: float
) -> None:
    administrator = await guarded.administrator()
    request = access_pb2.CreateTokenRequest(holder=holder, scopes=scopes, valid_seconds=seconds)
    with refused("INVALID_ARGUMENT"):
        await administrator.CreateToken(request, timeout=WAIT_SECONDS)


async def test_only_its_owner_or_an_operator_changes_an_object(guarded: Guarded) -> None:
    owner, other = await guarded.caller("alice", "submit"), await guarded.caller("bob", "submit", "deploy")
    graph = await create_graph(owner, chain_bytes())
    request = planner_pb2.CreatePlanRequest(
        request_id="one", graph_id=graph.id, inventory=inventory_message(), options=balanced()
    )
    operation = await owner.CreatePlan(request, timeout=WAIT_SECONDS)
    await wait_plan(owner, operation.id)
    async with guarded.database.reading() as session:
        assert (await get_operation(session, operation.id)).principal == "alice"
    deletion = planner_pb2.DeletePlanRequest(plan_id=operation.id)
    with refused("PERMISSION_DENIED") as refusal:
        await other.DeletePlan(deletion, timeout=WAIT_SECONDS)
    assert "is not bob's" in refusal.message
    beginning = planner_pb2.DeletePlanRequest(plan_id=operation.id[:-1])
    with refused("PERMISSION_DENIED") as refusal:
        await other.DeletePlan(beginning, timeout=WAIT_SECONDS)
    assert f"plan '{operation.id}' is not bob's" in refusal.message
    # The same request with the same id is another's, and gives nobody what is not his.
    theirs = await other.CreatePlan(request, timeout=WAIT_SECONDS)
    assert theirs.id != operation.id
    with refused("PERMISSION_DENIED"):
        await other.CancelPlanOperation(
            planner_pb2.CancelPlanOperationRequest(operation_id=operation.id), timeout=WAIT_SECONDS
        )
    assert (await owner.CreatePlan(request, timeout=WAIT_SECONDS)).id == operation.id
    operator = await guarded.caller("carol", "operate")
    await operator.DeletePlan(beginning, timeout=WAIT_SECONDS)
    await wait_plan(owner, theirs.id)
    with refused("PERMISSION_DENIED"):
        await owner.DeletePlan(planner_pb2.DeletePlanRequest(plan_id=theirs.id), timeout=WAIT_SECONDS)


async def test_a_list_can_be_narrowed_to_an_owner(guarded: Guarded) -> None:
    alice, bob = await guarded.caller("alice", "submit"), await guarded.caller("bob", "submit")
    ours, hers = chain_bytes(), chain_bytes(num_layers=2)
    for caller, content in ((alice, ours), (bob, ours), (alice, hers)):
        await create_graph(caller, content)

    async def owned_by(owner: str) -> int:
        request = planner_pb2.ListGraphsRequest(owner=owner)
        return len((await bob.ListGraphs(request, timeout=WAIT_SECONDS)).graphs)

    assert [await owned_by(owner) for owner in ("alice", "bob", "carol", "")] == [2, 1, 0, 2]


async def test_what_was_done_and_what_was_refused_is_written_down(guarded: Guarded) -> None:
    alice, bob = await guarded.caller("alice", "submit"), await guarded.caller("bob", "deploy")
    inventory = await alice.CreateInventory(
        planner_pb2.CreateInventoryRequest(inventory=inventory_message()), timeout=WAIT_SECONDS
    )
    with refused("PERMISSION_DENIED"):
        await bob.DeletePlan(planner_pb2.DeletePlanRequest(plan_id="plan\x00-1"), timeout=WAIT_SECONDS)
    with refused("INVALID_INVENTORY"):
        await alice.CreateInventory(planner_pb2.CreateInventoryRequest(), timeout=WAIT_SECONDS)
    await alice.ListDevices(devices(), timeout=WAIT_SECONDS)
    token, _ = await guarded.token("carol", "operate")
    carol = access_pb2_grpc.AccessServiceStub(guarded.channel(guarded.certificates.issue("client"), token))
    # A call of which nothing is written down where it is allowed.
    with refused("PERMISSION_DENIED"):
        await carol.ListTokens(access_pb2.ListTokensRequest(), timeout=WAIT_SECONDS)
    administrator = await guarded.administrator()
    async with asyncio.timeout(WAIT_SECONDS):
        entries: Any = ()
        while len(entries) < 4:
            await asyncio.sleep(0.02)
            entries = (await administrator.ListAudit(access_pb2.ListAuditRequest())).entries
    assert [(entry.principal, entry.method, entry.subject, entry.outcome) for entry in reversed(entries)] == [
        ("alice", "CreateInventory", inventory.id, "OK"),
        ("bob", "DeletePlan", "plan-1", "PERMISSION_DENIED"),
        ("alice", "CreateInventory", "", "INVALID_INVENTORY"),
        ("carol", "ListTokens", "", "PERMISSION_DENIED"),
    ]
    assert all(entry.peer.startswith("ipv4:127.0.0.1:") for entry in entries)
    [about] = (await administrator.ListAudit(access_pb2.ListAuditRequest(subject=inventory.id))).entries
    assert about.principal == "alice"


@on_both
@pytest.mark.parametrize("change", ["UPDATE audit SET principal = 'nobody'", "DELETE FROM audit"])
async def test_the_audit_trail_cannot_be_changed(guarded: Guarded, change: str) -> None:
    row = "('audit-1', '2026-01-01 00:00:00+00', 'alice', 'Deploy', 'dep-1', 'ipv4:1', 'OK')"
    async with guarded.database.session() as session:
        await session.execute(text(f"INSERT INTO audit VALUES {row}"))
    with pytest.raises((DBAPIError, PlannerError), match="append-only"):
        async with guarded.database.session() as session:
            await session.execute(text(change))


async def test_daemons_register_by_their_certificate_and_at_its_names(guarded: Guarded) -> None:
    def request(address: str) -> planner_pb2.RegisterDaemonRequest:
        device = inventory_message(1 << 30).devices[0]
        return planner_pb2.RegisterDaemonRequest(device=device, address=address, incarnation_id="1")

    daemon_channel = guarded.channel(guarded.certificates.issue("daemon", hosts=("10.9.8.7",)))
    daemon = planner_pb2_grpc.DaemonRegistryServiceStub(daemon_channel)
    token, _ = await guarded.token("alice", "admin")
    client = planner_pb2_grpc.DaemonRegistryServiceStub(guarded.channel(guarded.certificates.issue("client"), token))
    with refused("PERMISSION_DENIED") as refusal:
        await client.RegisterDaemon(request("10.9.8.7:50"), timeout=WAIT_SECONDS)
    assert "is for daemons" in refusal.message
    with refused("PERMISSION_DENIED") as refusal:
        await daemon.RegisterDaemon(request("10.9.8.6:50"), timeout=WAIT_SECONDS)
    assert "reached at 10.9.8.6" in refusal.message
    assert (await daemon.RegisterDaemon(request("10.9.8.7:50"), timeout=WAIT_SECONDS)).lease_seconds > 0
    planner = planner_pb2_grpc.PlannerServiceStub(daemon_channel)
    with refused("PERMISSION_DENIED"):
        await planner.ListPlans(planner_pb2.ListPlansRequest())
    # What training saves it uploads itself, and which files are a checkpoint somebody else says.
    saved = await upload(planner, b"saved")
    assert (await planner.GetUpload(planner_pb2.GetUploadRequest(sha256=saved), timeout=WAIT_SECONDS)).complete
    with refused("PERMISSION_DENIED"):
        await planner.CreateCheckpoint(planner_pb2.CreateCheckpointRequest(), timeout=WAIT_SECONDS)


async def test_over_tls_alone_a_client_may_do_everything_but_what_daemons_do(
    start_server: StartServer, tmp_path: Path
) -> None:
    certificates = Certificates.of(tmp_path / "authority")
    files = certificates.issue("planner")
    server = await start_server(tls_certificate=files.certificate, tls_key=files.key, tls_ca=files.authorities)
    channel = open_aio_channel(server.address, WatchedCredentials(certificates.issue("client")))
    created = await access_pb2_grpc.AccessServiceStub(channel).CreateToken(
        access_pb2.CreateTokenRequest(holder="me", scopes=["submit"], valid_seconds=60), timeout=WAIT_SECONDS
    )
    assert created.record.holder == "me"
    heartbeat = planner_pb2.HeartbeatRequest(device_id="a", incarnation_id="b")
    with refused("PERMISSION_DENIED"):
        await planner_pb2_grpc.DaemonRegistryServiceStub(channel).Heartbeat(heartbeat, timeout=WAIT_SECONDS)
    await channel.close()


async def test_every_method_of_every_service_has_a_rule() -> None:
    pool = planner_pb2.DESCRIPTOR.pool
    methods = {f"/{name}/{method.name}" for name in SERVICES for method in pool.FindServiceByName(name).methods}
    assert {method for method in RULES if method.startswith("/partition_planner.")} == methods


async def test_tokens_are_asked_for_over_tls_alone(start_server: StartServer) -> None:
    with pytest.raises(InvalidArgument, match="tokens travel over TLS alone"):
        await start_server(access="tokens")
