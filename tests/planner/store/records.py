"""Records to store: each function gives one whose fields are all told apart, with whatever a test changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from planner.cost.inventory import Device, Inventory
from planner.plan.options import BalancedMode, Mode, PlanOptions
from planner.plan.plan import Plan, Stage, StageMemory
from planner.store.database import Database
from planner.store.deployment_records import (
    Daemon,
    Deployment,
    DeploymentEvent,
    DeploymentState,
    StagePlacement,
)
from planner.store.deployments import add_deployment, append_event
from planner.store.graphs import GraphRecord, add_graph
from planner.store.inventories import InventoryRecord, add_inventory
from planner.store.plans import add_plan

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
GRAPH_ID = "ab" * 32
MOST = 2**63 - 1


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def graph(graph_id: str = GRAPH_ID, **changes: Any) -> GraphRecord:
    fields: dict[str, Any] = {
        "name": "Größe ∞ 模型",
        "torch_version": "2.13.0",
        "size_bytes": MOST,
        "num_nodes": 17,
        "num_states": 5,
        "state_bytes": MOST - 1,
        "weights": (),
        "not_deployable_reason": "it has no weights",
        "created_at": NOW,
    }
    return GraphRecord(id=graph_id, **fields | changes)


def device(device_id: str, **changes: Any) -> Device:
    fields: dict[str, Any] = {"kind": "cpu", "host": "node", "memory_bytes": 1 << 30}
    return Device(id=device_id, **fields | changes)


def inventory(inventory_id: str = "inv-1", **changes: Any) -> InventoryRecord:
    fields: dict[str, Any] = {
        "name": "rack",
        "inventory": Inventory(devices=(device("a"), device("b"), device("c"))),
        "created_at": NOW,
    }
    return InventoryRecord(id=inventory_id, **fields | changes)


def stage(index: int, *device_ids: str, peak_bytes: int = 60) -> Stage:
    return Stage(
        index=index,
        node_ranges=((index, index + 1),),
        device_ids=device_ids,
        states=(f"state{index}",),
        liveness=(),
        outputs=(index,),
        compute_seconds=0.5,
        communication_seconds=0.25,
        flops=1e9,
        memory=StageMemory(state_bytes=peak_bytes - 3, activation_bytes=2, buffer_bytes=1),
        reason="",
    )


def plan(*stages: Stage, graph_id: str = GRAPH_ID, mode: Mode = BalancedMode(num_stages=2), **changes: Any) -> Plan:  # noqa: B008  frozen
    fields: dict[str, Any] = {
        "graph_name": "t5",
        "num_nodes": 17,
        "options": PlanOptions(mode=mode),
        "inventory": inventory().inventory,
        "stages": stages or (stage(0, "a"), stage(1, "b")),
        "edges": (),
        "tie_groups": (),
        "bottleneck_seconds": 0.75,
        "latency_seconds": 1.5,
        "lower_bound_seconds": None,
        "symbol_values": (),
    }
    return Plan(graph_id=graph_id, **fields | changes)


def daemon(device_id: str, **changes: Any) -> Daemon:
    fields: dict[str, Any] = {
        "device": device(device_id),
        "address": f"{device_id}:1",
        "incarnation_id": f"incarnation of {device_id}",
        "torch_version": "2.13.0",
        "lease_expires_at": later(10),
    }
    return Daemon(**fields | changes)


def placement(index: int, device_id: str) -> StagePlacement:
    return StagePlacement(
        stage=index, device_id=device_id, daemon_address=f"{device_id}:1", incarnation_id=f"incarnation of {device_id}"
    )


def deployment(deployment_id: str = "dep-1", **changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "plan_id": "plan-1",
        "graph_id": GRAPH_ID,
        "state": DeploymentState.PENDING,
        "generation": 1,
        "stages": (placement(0, "b"), placement(1, "a"), placement(2, "b")),
        "created_at": NOW,
    }
    return Deployment(id=deployment_id, **fields | changes)


def event(state: DeploymentState, **changes: Any) -> DeploymentEvent:
    fields: dict[str, Any] = {"sequence": 0, "occurred_at": later(1), "message": state.value}
    return DeploymentEvent(state=state, **fields | changes)


async def fill(database: Database, *records: GraphRecord | InventoryRecord | Deployment) -> None:
    """Adds each in the order given, in transactions of their own."""
    for record in records:
        async with database.session() as session:
            match record:
                case GraphRecord():
                    await add_graph(session, record)
                case InventoryRecord():
                    await add_inventory(session, record)
                case Deployment():
                    await add_deployment(session, record)


async def fill_plan(database: Database, plan_id: str, record: Plan, created_at: datetime = NOW) -> None:
    async with database.session() as session:
        await add_plan(session, plan_id, record, "inv-1", created_at)


async def append(database: Database, deployment_id: str, record: DeploymentEvent) -> DeploymentEvent:
    async with database.session() as session:
        return await append_event(session, deployment_id, record)
