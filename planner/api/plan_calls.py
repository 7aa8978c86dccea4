"""Plans and plan operations over gRPC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from access.pieces import serialize_in_pieces
from planner.api.identity import fingerprint, new_id
from planner.api.pages import page_of
from planner.api.plan_runner import PlanRunner
from planner.api.principals import CALLER
from planner.api.recent_plans import RecentPlans
from planner.api.records import operation_to_proto, plan_summary_to_proto
from planner.api.threads import in_thread
from planner.cost.inventory import Inventory
from planner.errors import InvalidArgument, NotFound, ResourceExhausted
from planner.plan.options import PlanOptions, RatesFrom
from planner.plan.plan import Plan
from planner.settings import Settings
from planner.store.claims import database_now
from planner.store.daemons import list_usable_daemons
from planner.store.database import Database
from planner.store.graphs import get_graph
from planner.store.inventories import InventoryRecord, add_inventory, get_inventory
from planner.store.operations import OperationState, PlanOperation, add_operation, count_open, get_operation
from planner.store.plans import PlanFilter, delete_plan, get_plan, has_plan, list_plans
from planner.store.profiles import calibrations_for
from planner.store.quotas import RETRY_SECONDS, check_plans
from planner.store.request_ids import create_once
from planner.wire.inventory import inventory_from_proto
from planner.wire.options import options_from_proto
from planner.wire.plan import plan_to_proto
from protos.v1 import planner_pb2

MAX_WAIT_SECONDS = 60.0
# Nodes times devices, roughly: it only orders what waits.
STEPS_PER_SECOND = 20_000
# However large a problem is, small ones that come later than this wait for it.
MOST_HEAD_START_SECONDS = 60.0


class PlanCalls:
    _settings: Settings
    _database: Database
    _runner: PlanRunner
    _recent_plans: RecentPlans

    async def CreatePlan(self, request: planner_pb2.CreatePlanRequest, _: Any) -> planner_pb2.PlanOperation:
        options = options_from_proto(request.options)
        if request.WhichOneof("devices") is None:
            raise InvalidArgument("name the devices: inventory, inventory_id or registered")
        now = datetime.now(UTC)
        inventory = None
        if request.WhichOneof("devices") == "inventory":
            # A large one takes seconds, for which no transaction waits.
            inventory = await in_thread(inventory_from_proto, request.inventory)

        async def create(session: AsyncSession) -> str:
            return await self._add(session, request, options, inventory, now)

        operation_id, _ = await create_once(
            self._database, "CreatePlan", request.request_id, await fingerprint(request), now, create
        )
        self._runner.wake()
        return await self._operation(operation_id)

    async def GetPlanOperation(self, request: planner_pb2.GetPlanOperationRequest, _: Any) -> planner_pb2.PlanOperation:
        return await self._operation(request.operation_id)

    async def WaitPlanOperation(
        self, request: planner_pb2.WaitPlanOperationRequest, _: Any
    ) -> planner_pb2.PlanOperation:
        seconds = request.timeout_seconds
        if not math.isfinite(seconds) or seconds < 0:
            raise InvalidArgument(f"timeout_seconds is {seconds}, needs 0 to {MAX_WAIT_SECONDS:g}")
        operation = await self._runner.wait(request.operation_id, min(seconds, MAX_WAIT_SECONDS))
        return operation_to_proto(operation)

    async def CancelPlanOperation(
        self, request: planner_pb2.CancelPlanOperationRequest, _: Any
    ) -> planner_pb2.PlanOperation:
        return operation_to_proto(await self._runner.cancel(request.operation_id))

    async def GetPlan(self, request: planner_pb2.GetPlanRequest, _: Any) -> Any:
        """A serialized plan_pb2.Plan."""
        plan_id = request.plan_id
        async with self._database.reading() as session:
            content = self._recent_plans.get(plan_id)
            if content is not None and await has_plan(session, plan_id):
                return content
            self._recent_plans.forget(plan_id)
            try:
                plan, created_at = await get_plan(session, plan_id)
            except NotFound as error:
                raise await _why_no_plan(session, plan_id, error) from None
        content = await in_thread(_serialized, plan, plan_id, created_at)
        self._recent_plans.keep(plan_id, content)
        return content

    async def ListPlans(self, request: planner_pb2.ListPlansRequest, _: Any) -> planner_pb2.ListPlansResponse:
        plan_filter = PlanFilter(graph_id=request.graph_id, mode=request.mode, device_id=request.device_id)
        page = page_of(request, "plan", wanted=plan_filter)
        async with self._database.reading() as session:
            summaries, token = await list_plans(session, page, plan_filter)
        return planner_pb2.ListPlansResponse(
            plans=[plan_summary_to_proto(summary) for summary in summaries], next_page_token=token
        )

    async def DeletePlan(self, request: planner_pb2.DeletePlanRequest, _: Any) -> planner_pb2.DeletePlanResponse:
        async with self._database.session() as session:
            await delete_plan(session, request.plan_id)
        return planner_pb2.DeletePlanResponse(id=request.plan_id)

    async def _operation(self, operation_id: str) -> planner_pb2.PlanOperation:
        async with self._database.reading() as session:
            return operation_to_proto(await get_operation(session, operation_id))

    async def _add(
        self,
        session: AsyncSession,
        request: planner_pb2.CreatePlanRequest,
        options: PlanOptions,
        inventory_in_request: Inventory | None,
        now: datetime,
    ) -> str:
        await self._check_room(session)
        graph = await get_graph(session, request.graph_id)
        inventory_id, inventory = await _inventory(session, request, inventory_in_request, now)
        # Now, rather than when its turn comes: a profile that does not serve is refused as the other options are.
        kinds = [device.kind for device in inventory.devices]
        await calibrations_for(session, kinds, RatesFrom.OWN, options.rates_from_profiles)
        operation = PlanOperation(
            id=new_id("plan"),
            graph_id=graph.id,
            inventory_id=inventory_id,
            options=options,
            created_at=now,
            principal=CALLER.get(),
            due_at=now + _head_start(graph.num_nodes, len(inventory.devices)),
        )
        await add_operation(session, operation)
        return operation.id

    async def _check_room(self, session: AsyncSession) -> None:
        """Raises ResourceExhausted."""
        most = self._settings.max_pending_plans
        if await count_open(session) >= most:
            raise ResourceExhausted(
                f"{most} plans are waiting already; try again later", retry_after_seconds=RETRY_SECONDS
            )
        await check_plans(session, CALLER.get(), self._settings.max_pending_plans_per_caller)


def _head_start(num_nodes: int, num_devices: int) -> timedelta:
    """How much later than this one a tiny problem may come and still be planned before it: about what it takes."""
    return timedelta(seconds=min(MOST_HEAD_START_SECONDS, num_nodes * num_devices / STEPS_PER_SECOND))


async def _inventory(
    session: AsyncSession, request: planner_pb2.CreatePlanRequest, inventory_in_request: Inventory | None, now: datetime
) -> tuple[str, Inventory]:
    """Its id, and itself; `inventory_in_request` is the one in the request."""
    if request.WhichOneof("devices") == "inventory_id":
        stored = await get_inventory(session, request.inventory_id)
        return stored.id, stored.inventory
    inventory = inventory_in_request or await _registered(session, tuple(request.registered.device_ids))
    record = InventoryRecord(id=new_id("inv"), name="", inventory=inventory, created_at=now, listed=False)
    await add_inventory(session, record)
    return record.id, inventory


async def _registered(session: AsyncSession, device_ids: tuple[str, ...]) -> Inventory:
    """The devices whose daemons hold a lease now and are not drained; those asked for in the order asked for."""
    daemons = await list_usable_daemons(session, await database_now(session))
    live = {daemon.device.id: daemon.device for daemon in daemons}
    missing = [device_id for device_id in device_ids if device_id not in live]
    if missing:
        raise NotFound(
            f"device {missing[0]!r} has no daemon that holds a lease; "
            f"live now: {', '.join(sorted(live)) or 'none'}; start its stage-daemon",
            device_id=missing[0],
        )
    if not live:
        raise NotFound("no daemon holds a lease; start a stage-daemon, or give an inventory")
    return Inventory(devices=tuple(live[device_id] for device_id in device_ids or live))


def _serialized(plan: Plan, plan_id: str, created_at: datetime) -> bytes:
    return serialize_in_pieces(plan_to_proto(plan, plan_id=plan_id, created_at=created_at))


async def _why_no_plan(session: AsyncSession, plan_id: str, unknown: NotFound) -> NotFound:
    """A better answer where an operation has the id."""
    try:
        operation = await get_operation(session, plan_id)
    except NotFound:
        return unknown
    if operation.state is OperationState.SUCCEEDED:
        return NotFound(f"plan {plan_id} was deleted", plan_id=plan_id)
    if operation.failure is not None:
        return NotFound(f"plan {plan_id} failed: {operation.failure.message}", plan_id=plan_id)
    return NotFound(f"plan {plan_id} is {operation.state.value}; WaitPlanOperation tells when it is done")
