"""Plans: asked for, computed beside the server, waited for, cancelled, found again, deleted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from planner.plan.options import CutMode, PlanOptions
from planner.planning import make_plan
from planner.settings import Settings
from planner.store.database import Database
from planner.store.operations import PlanOperation, add_operation, claim_operation
from planner.store.tables import DeploymentRow, InventoryRow
from planner.wire.graph import graph_from_bytes
from planner.wire.inventory import inventory_from_proto
from planner.wire.options import options_from_proto
from planner.wire.plan import plan_to_proto
from protos.v1 import plan_pb2, planner_pb2, planner_pb2_grpc
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import (
    WAIT_SECONDS,
    balanced,
    create_graph,
    create_plan,
    inventory_message,
    refused,
    upload,
    wait_plan,
)
from tests.contract.conftest import SharedServer, StartServer, on_both, open_channel
from tests.contract.graphs import chain_bytes, many_nodes

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
# What is about processes and not about rows.
on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


async def ask(planner: PlannerServiceStub, **fields: object) -> planner_pb2.PlanOperation:
    fields = {"options": balanced(), **fields}
    if not {"inventory_id", "registered"} & fields.keys():
        fields.setdefault("inventory", inventory_message())
    return await planner.CreatePlan(planner_pb2.CreatePlanRequest(**fields), timeout=WAIT_SECONDS)


async def get(planner: PlannerServiceStub, plan_id: str) -> plan_pb2.Plan:
    return await planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=plan_id), timeout=WAIT_SECONDS)


async def cancel(planner: PlannerServiceStub, operation_id: str) -> planner_pb2.PlanOperation:
    request = planner_pb2.CancelPlanOperationRequest(operation_id=operation_id)
    return await planner.CancelPlanOperation(request, timeout=WAIT_SECONDS)


async def list_ids(planner: PlannerServiceStub, **fields: object) -> list[str]:
    answer = await planner.ListPlans(planner_pb2.ListPlansRequest(**fields), timeout=WAIT_SECONDS)
    return [summary.id for summary in answer.plans]


@pytest.mark.parametrize(
    "options",
    [
        balanced(2),
        plan_pb2.PlanOptions(size_based=plan_pb2.SizeBasedMode()),
        plan_pb2.PlanOptions(
            cut=plan_pb2.CutMode(module_paths=["layers.1"]), routing=plan_pb2.ROUTING_RELAY, microbatches_in_flight=3
        ),
    ],
    ids=["balanced", "size_based", "cut"],
)
async def test_plan_is_what_planning_makes(planner: PlannerServiceStub, options: plan_pb2.PlanOptions) -> None:
    content = chain_bytes()
    operation = await create_plan(planner, content, options)
    assert operation.state == planner_pb2.OPERATION_STATE_SUCCEEDED
    plan = await get(planner, operation.id)
    expected = make_plan(
        graph_from_bytes(content),
        plan.graph_id,
        inventory_from_proto(inventory_message()),
        options_from_proto(options),
    )
    assert plan == plan_to_proto(expected, plan_id=operation.id, created_at=plan.created_at.ToDatetime(UTC))


async def test_plan_for_a_stored_inventory(planner: PlannerServiceStub) -> None:
    graph = await create_graph(planner, chain_bytes())
    request = planner_pb2.CreateInventoryRequest(inventory=inventory_message(1 << 30, 1 << 31, 1 << 32))
    inventory = await planner.CreateInventory(request, timeout=WAIT_SECONDS)
    operation = await wait_plan(planner, (await ask(planner, graph_id=graph.id, inventory_id=inventory.id)).id)
    assert (await get(planner, operation.id)).inventory == inventory.inventory
    listed = await planner.ListInventories(planner_pb2.ListInventoriesRequest(page_size=1), timeout=WAIT_SECONDS)
    assert [record.id for record in listed.inventories] == [inventory.id]


async def test_plan_for_registered_devices(start_server: StartServer) -> None:
    server = await start_server()
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        graph = await create_graph(planner, chain_bytes())
        everything = planner_pb2.CreatePlanRequest.RegisteredDevices()
        with refused("NOT_FOUND") as refusal:
            await ask(planner, graph_id=graph.id, registered=everything)
        assert "stage-daemon" in refusal.message
        registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
        for index, device in enumerate(inventory_message().devices):
            request = planner_pb2.RegisterDaemonRequest(
                device=device, address=f"127.0.0.1:{index + 1}", torch_version="2.13.0", incarnation_id=f"i{index}"
            )
            await registry.RegisterDaemon(request, timeout=WAIT_SECONDS)
        operation = await wait_plan(planner, (await ask(planner, graph_id=graph.id, registered=everything)).id)
        assert list((await get(planner, operation.id)).inventory.devices) == list(inventory_message().devices)
        one = planner_pb2.CreatePlanRequest.RegisteredDevices(device_ids=["node/cpu1"])
        operation = await wait_plan(
            planner, (await ask(planner, graph_id=graph.id, registered=one, options=balanced(1))).id
        )
        assert [device.id for device in (await get(planner, operation.id)).inventory.devices] == ["node/cpu1"]
        turned = planner_pb2.CreatePlanRequest.RegisteredDevices(device_ids=["node/cpu1", "node/cpu0"])
        operation = await wait_plan(planner, (await ask(planner, graph_id=graph.id, registered=turned)).id)
        devices = (await get(planner, operation.id)).inventory.devices
        assert [device.id for device in devices] == ["node/cpu1", "node/cpu0"]
        gone = planner_pb2.CreatePlanRequest.RegisteredDevices(device_ids=["node/gone"])
        with refused("NOT_FOUND") as refusal:
            await ask(planner, graph_id=graph.id, registered=gone)
    assert refusal.metadata["device_id"] == "node/gone"


async def test_plan_that_cannot_exist(planner: PlannerServiceStub) -> None:
    graph = await create_graph(planner, chain_bytes(num_layers=4, width=64))
    operation = await ask(planner, graph_id=graph.id, inventory=inventory_message(1000, 1000))
    ended = await wait_plan(planner, operation.id)
    assert ended.state == planner_pb2.OPERATION_STATE_FAILED
    assert ended.failure.reason in ("INFEASIBLE", "INSUFFICIENT_MEMORY")
    assert "bytes" in ended.failure.message
    assert ended.failure.metadata
    with refused("NOT_FOUND") as refusal:
        await get(planner, operation.id)
    assert ended.failure.message in refusal.message


async def test_cut_after_a_module_that_is_not_there(planner: PlannerServiceStub) -> None:
    options = plan_pb2.PlanOptions(cut=plan_pb2.CutMode(module_paths=["layers.99"]))
    operation = await create_plan(planner, chain_bytes(), options)
    assert operation.failure.reason == "INVALID_OPTIONS"
    assert "layers.99" in operation.failure.message


async def test_what_is_refused_at_once(planner: PlannerServiceStub) -> None:
    graph = await create_graph(planner, chain_bytes())
    with refused("INVALID_OPTIONS"):
        await ask(planner, graph_id=graph.id, options=plan_pb2.PlanOptions(cut=plan_pb2.CutMode()))
    with refused("NOT_FOUND"):
        await ask(planner, graph_id="0" * 64)
    with refused("NOT_FOUND"):
        await ask(planner, graph_id=graph.id, inventory_id="inv-0")
    with refused("INVALID_ARGUMENT"):
        request = planner_pb2.CreatePlanRequest(graph_id=graph.id, options=balanced())
        await planner.CreatePlan(request, timeout=WAIT_SECONDS)


async def test_unknown_ids(planner: PlannerServiceStub) -> None:
    calls = (
        (planner.GetPlanOperation, planner_pb2.GetPlanOperationRequest(operation_id="plan-0")),
        (planner.WaitPlanOperation, planner_pb2.WaitPlanOperationRequest(operation_id="plan-0", timeout_seconds=1)),
        (planner.CancelPlanOperation, planner_pb2.CancelPlanOperationRequest(operation_id="plan-0")),
        (planner.GetPlan, planner_pb2.GetPlanRequest(plan_id="plan-0")),
        (planner.DeletePlan, planner_pb2.DeletePlanRequest(plan_id="plan-0")),
    )
    for call, request in calls:
        with refused("NOT_FOUND"):
            await call(request, timeout=WAIT_SECONDS)


@on_both
async def test_request_id(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    operations = await asyncio.gather(*(ask(planner, graph_id=graph.id, request_id=name) for _ in range(5)))
    assert len({operation.id for operation in operations}) == 1
    await wait_plan(planner, operations[0].id)
    assert (await ask(planner, graph_id=graph.id, request_id=name)).id == operations[0].id
    assert await list_ids(planner, graph_id=graph.id) == [operations[0].id]
    with refused("REQUEST_ID_REUSED"):
        await ask(planner, graph_id=graph.id, request_id=name, options=balanced(1))


@on_sqlite
async def test_cancelled_while_it_runs(planner: PlannerServiceStub) -> None:
    slow = await _slow_graph(planner)
    operation = await ask(planner, graph_id=slow)
    await _until_running(planner, operation.id)
    cancelled = await cancel(planner, operation.id)
    assert cancelled.state == planner_pb2.OPERATION_STATE_CANCELLED
    assert await cancel(planner, operation.id) == cancelled
    assert await wait_plan(planner, operation.id) == cancelled
    with refused("NOT_FOUND"):
        await get(planner, operation.id)


@on_sqlite
async def test_cancelling_one_leaves_others(start_server: StartServer) -> None:
    server = await start_server(plan_workers=1)
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        slow = await _slow_graph(planner)
        running = await ask(planner, graph_id=slow)
        await _until_running(planner, running.id)
        waiting = await ask(planner, graph_id=slow)
        quick = await ask(planner, graph_id=(await create_graph(planner, chain_bytes())).id)
        assert waiting.state == planner_pb2.OPERATION_STATE_PENDING
        assert (await cancel(planner, waiting.id)).state == planner_pb2.OPERATION_STATE_CANCELLED
        await cancel(planner, running.id)
        assert (await wait_plan(planner, quick.id)).state == planner_pb2.OPERATION_STATE_SUCCEEDED
        assert (await cancel(planner, quick.id)).state == planner_pb2.OPERATION_STATE_SUCCEEDED


@on_sqlite
async def test_wait_answers_in_time(planner: PlannerServiceStub) -> None:
    operation = await ask(planner, graph_id=await _slow_graph(planner))
    request = planner_pb2.WaitPlanOperationRequest(operation_id=operation.id, timeout_seconds=0.05)
    assert not (await planner.WaitPlanOperation(request, timeout=WAIT_SECONDS)).HasField("ended_at")
    await cancel(planner, operation.id)
    with refused("INVALID_ARGUMENT"):
        request = planner_pb2.WaitPlanOperationRequest(operation_id=operation.id, timeout_seconds=float("nan"))
        await planner.WaitPlanOperation(request, timeout=WAIT_SECONDS)


@on_sqlite
async def test_plan_that_takes_too_long(start_server: StartServer) -> None:
    server = await start_server(plan_timeout_seconds=0.05)
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        operation = await ask(planner, graph_id=await _slow_graph(planner))
        assert (await wait_plan(planner, operation.id)).failure.reason == "TIMEOUT"


@on_sqlite
async def test_too_many_plans(start_server: StartServer) -> None:
    server = await start_server(max_pending_plans=1)
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        slow = await _slow_graph(planner)
        operation = await ask(planner, graph_id=slow)
        with refused("RESOURCE_EXHAUSTED"):
            await ask(planner, graph_id=slow)
        await cancel(planner, operation.id)


@on_sqlite
async def test_what_a_stopped_server_did_not_finish_the_next_one_does(start_server: StartServer) -> None:
    first = await start_server()
    async with open_channel(first.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        operation = await ask(planner, graph_id=await _slow_graph(planner, num_nodes=10_000))
    await first.stop(0)
    second = await start_server()
    async with open_channel(second.address) as channel:
        ended = await wait_plan(planner_pb2_grpc.PlannerServiceStub(channel), operation.id)
    assert ended.state == planner_pb2.OPERATION_STATE_SUCCEEDED


@on_both
async def test_what_a_server_that_died_left_the_next_one_does(
    start_server: StartServer, own_settings: Settings
) -> None:
    """On PostgreSQL the dead server's claim ends first."""
    first = await start_server()
    async with open_channel(first.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        done = await create_plan(planner, chain_bytes())
        plan = await get(planner, done.id)
    await first.stop(0)
    database = Database(own_settings.database)
    async with database.session() as session:
        left = PlanOperation(
            id="plan-left",
            graph_id=plan.graph_id,
            inventory_id=(await session.execute(select(InventoryRow.id).limit(1))).scalar_one(),
            options=PlanOptions(mode=CutMode(module_paths=("layers.0",))),
            created_at=datetime.now(UTC),
        )
        await add_operation(session, left)
        assert await claim_operation(session, "dead", 0.1, datetime.now(UTC)) is not None
    await database.close()
    second = await start_server()
    async with open_channel(second.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        assert (await wait_plan(planner, "plan-left")).state == planner_pb2.OPERATION_STATE_SUCCEEDED
        assert (await get(planner, "plan-left")).options.HasField("cut")
        assert await get(planner, done.id) == plan


@on_both
async def test_list_and_filters(planner: PlannerServiceStub, name: str) -> None:
    four = chain_bytes(name=name)
    two = (await create_plan(planner, four)).id
    one = (await create_plan(planner, four, balanced(1))).id
    cut = plan_pb2.PlanOptions(cut=plan_pb2.CutMode(module_paths=["layers.0"]))
    other = (await create_plan(planner, chain_bytes(num_layers=2, name=name), cut)).id
    graph_id, other_graph_id = (await get(planner, two)).graph_id, (await get(planner, other)).graph_id
    assert (await list_ids(planner))[:3] == [other, one, two]
    assert (await list_ids(planner, mode="cut"))[0] == other
    assert await list_ids(planner, mode="cut", graph_id=graph_id) == []
    assert await list_ids(planner, graph_id=graph_id) == [one, two]
    assert await list_ids(planner, graph_id=other_graph_id[:12], mode="cut") == [other]
    used = {device_id for stage in (await get(planner, two)).stages for device_id in stage.device_ids}
    assert used == {"node/cpu0", "node/cpu1"}
    [single] = (await get(planner, one)).stages
    unused = (used - set(single.device_ids)).pop()
    assert await list_ids(planner, graph_id=graph_id, device_id=unused) == [two]
    assert await list_ids(planner, device_id="node/cpu9") == []
    assert await list_ids(planner, mode="%") == []
    page = await planner.ListPlans(planner_pb2.ListPlansRequest(page_size=2), timeout=WAIT_SECONDS)
    with refused("INVALID_ARGUMENT"):
        await list_ids(planner, page_token=page.next_page_token, mode="cut")
    assert (await list_ids(planner, page_token=page.next_page_token))[0] == two
    assert page.plans[0].num_stages == len((await get(planner, other)).stages)


@on_both
async def test_delete(planner: PlannerServiceStub, shared: SharedServer, name: str) -> None:
    plan_id = (await create_plan(planner, chain_bytes(name=name))).id
    graph_id = (await get(planner, plan_id)).graph_id
    database = Database(shared.settings.database)
    await _put_deployment(database, name, plan_id, graph_id, "ready")
    with refused("CONFLICT") as refusal:
        await planner.DeletePlan(planner_pb2.DeletePlanRequest(plan_id=plan_id), timeout=WAIT_SECONDS)
    assert refusal.metadata["deployment"] == name
    async with database.session() as session:
        (await session.get_one(DeploymentRow, name)).state = "stopped"
    await database.close()
    await planner.DeletePlan(planner_pb2.DeletePlanRequest(plan_id=plan_id), timeout=WAIT_SECONDS)
    with refused("NOT_FOUND") as refusal:
        await get(planner, plan_id)
    assert "deleted" in refusal.message
    assert await list_ids(planner, graph_id=graph_id) == []
    with refused("NOT_FOUND"):
        await planner.DeletePlan(planner_pb2.DeletePlanRequest(plan_id=plan_id), timeout=WAIT_SECONDS)


async def _slow_graph(planner: PlannerServiceStub, num_nodes: int = 40_000) -> str:
    """Id of a graph whose planning takes a second or more, where it has a quarter of the nodes half of one."""
    digest = await upload(planner, many_nodes(num_nodes))
    request = planner_pb2.CreateGraphRequest(sha256=digest)
    return (await planner.CreateGraph(request, timeout=WAIT_SECONDS)).id


async def _until_running(planner: PlannerServiceStub, operation_id: str) -> None:
    request = planner_pb2.GetPlanOperationRequest(operation_id=operation_id)
    async with asyncio.timeout(WAIT_SECONDS):
        operation = await planner.GetPlanOperation(request, timeout=WAIT_SECONDS)
        while operation.state == planner_pb2.OPERATION_STATE_PENDING:
            await asyncio.sleep(0.01)
            operation = await planner.GetPlanOperation(request, timeout=WAIT_SECONDS)
    assert operation.state == planner_pb2.OPERATION_STATE_RUNNING


async def _put_deployment(database: Database, deployment_id: str, plan_id: str, graph_id: str, state: str) -> None:
    async with database.session() as session:
        session.add(
            DeploymentRow(
                id=deployment_id,
                plan_id=plan_id,
                asked_plan_id=plan_id,
                plan_reason="",
                graph_id=graph_id,
                state=state,
                generation=1,
                recovery="manual",
                input_address="",
                output_address="",
                created_at=datetime.now(UTC) - timedelta(seconds=1),
            )
        )
