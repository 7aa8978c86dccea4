"""Where the next generation of a deployment runs: where it was, or by another plan on the devices that are left.

With the policy `replan` there is a plan for the loss of each single device, asked for in the background as soon as a
generation is ready: nothing has to be searched when one is lost. What else is lost is planned for at that time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.inventory import Inventory
from planner.dispatch.admission import admit
from planner.dispatch.daemon_client import UNREACHABLE, DaemonCallFailed, DaemonClient
from planner.dispatch.leadership import Leadership
from planner.dispatch.stage_modules import StageRequests
from planner.errors import (
    DeviceFull,
    DeviceGone,
    Infeasible,
    NotFound,
    PlannerError,
    ResourceExhausted,
    Unavailable,
)
from planner.partition.describe import describe_bytes, describe_seconds
from planner.partition.objective import Objective
from planner.plan.plan import Plan
from planner.store.claims import database_now
from planner.store.daemons import list_usable_daemons
from planner.store.database import Database
from planner.store.deployment_records import Daemon, Deployment, RecoveryPolicy
from planner.store.deployments import promised_bytes
from planner.store.graphs import GraphRecord, get_graph
from planner.store.inventories import InventoryRecord, get_inventory
from planner.store.operations import OperationState, PlanOperation, hurry
from planner.store.plans import get_plan
from planner.store.profiles import serving_profiles
from planner.store.spare_plans import add_spare, drop_obsolete_spares, find_spare, list_spares, lock_spares

# From one look for the daemons of a deployment that recovers to the next.
PLACE_PERIOD_SECONDS = 0.25
# Losses of one generation that are planned for ahead: those of its first devices.
MOST_AHEAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a generation runs, and what its daemons are told. `clients` and `requests` are by device id."""

    deployment: Deployment
    clients: Mapping[str, DaemonClient]
    requests: StageRequests


class BeingPlanned(PlannerError):
    """There will be a plan; a device that comes back meanwhile is used all the same."""

    reason = "BEING_PLANNED"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prospects:
    """What a deployment may be placed on. `live` are all devices whose daemons hold a lease and are not drained,
    `promised` the bytes that other deployments have there."""

    plan: Plan
    asked_plan: Plan
    graph: GraphRecord
    live: Mapping[str, Daemon]
    promised: Mapping[str, Mapping[str, int]]

    def left(self, device_ids: Iterable[str]) -> Inventory:
        """Of the devices that the plan asked for may use, those named, with the memory that others leave them."""
        present = set(device_ids)
        memory = {
            device.id: min(device.memory_bytes, self._free_bytes(device.id))
            for device in self.asked_plan.inventory.devices
            if device.id in present and device.id in self.live
        }
        gone = [device.id for device in self.asked_plan.inventory.devices if memory.get(device.id, 0) <= 0]
        left = self.asked_plan.inventory.without(gone)
        return replace(left, devices=tuple(replace(device, memory_bytes=memory[device.id]) for device in left.devices))

    def _free_bytes(self, device_id: str) -> int:
        return self.live[device_id].device.memory_bytes - sum(self.promised.get(device_id, {}).values())


class Placer:
    """`prepare` makes what daemons are told; `ask` wakes who computes plans."""

    def __init__(
        self,
        database: Database,
        leadership: Leadership,
        recovery_seconds: float,
        client_of: Callable[[str, str], DaemonClient],
        prepare: Callable[[Deployment, Plan, GraphRecord], Awaitable[StageRequests]],
        ask: Callable[[], None],
    ) -> None:
        self._database = database
        self._leadership = leadership
        self._recovery_seconds = recovery_seconds
        self._client_of = client_of
        self._prepare = prepare
        self._ask = ask

    async def place(self, deployment: Deployment, tell: Callable[[str], Awaitable[None]]) -> Placement:
        """The next generation, once all the daemons that it needs answer. `tell` hears why it has to wait.

        Raises DeviceGone, DeviceFull or Infeasible where that is still so after `recovery_seconds`. Time in which the
        database was away or full is none of them: nobody could look.
        """
        ends_at, last_reason = time.monotonic() + self._recovery_seconds, ""
        while True:
            looked_at = time.monotonic()
            try:
                return await self._place_now(deployment)
            except BeingPlanned:
                pass
            except (ResourceExhausted, Unavailable):
                ends_at += time.monotonic() - looked_at + PLACE_PERIOD_SECONDS
            except (DeviceGone, DeviceFull, Infeasible) as error:
                if time.monotonic() > ends_at:
                    raise
                if isinstance(error, Infeasible) and error.message != last_reason:
                    last_reason = error.message
                    await tell(f"{last_reason}; it waits for a device to come back")
            await asyncio.sleep(PLACE_PERIOD_SECONDS)

    async def plan_ahead(self, deployment: Deployment) -> None:
        """Asks for a plan for each single loss that has none yet, and calls off what earlier generations asked for."""
        now = datetime.now(UTC)
        async with self._database.session() as session:
            await self._leadership.check(session)
            await lock_spares(session, deployment)
            await drop_obsolete_spares(session, now)
            already_asked = await list_spares(session, deployment)
            prospects = await _prospects(session, deployment)
            for device_id in deployment.device_ids()[:MOST_AHEAD]:
                inventory = prospects.left(prospects.live.keys() - {device_id})
                if frozenset({device_id}) not in already_asked and inventory.devices:
                    await _add(session, deployment, prospects, (device_id,), inventory, background=True)
        self._ask()

    async def forget_ended(self) -> None:
        """Calls off what was asked for by deployments that have ended."""
        async with self._database.session() as session:
            await self._leadership.check(session)
            await drop_obsolete_spares(session, datetime.now(UTC))

    async def check_can_move(self, deployment: Deployment) -> None:
        """Whether it can leave the devices that are drained. Raises BeingPlanned, Infeasible, DeviceFull ..."""
        async with self._database.reading() as session:
            prospects = await _prospects(session, deployment)
        _, plan = await self._replan(deployment, prospects)
        admit(plan, tuple(prospects.live.values()), prospects.promised)

    async def _place_now(self, deployment: Deployment) -> Placement:
        async with self._database.reading() as session:
            prospects = await _prospects(session, deployment)
        if deployment.recovery is RecoveryPolicy.REPLAN:
            deployment, plan = await self._replan(deployment, prospects)
        else:
            plan = prospects.plan
        stages = admit(plan, tuple(prospects.live.values()), prospects.promised)
        successor = replace(deployment, generation=deployment.generation + 1, stages=stages)
        clients = clients_of(successor, self._client_of)
        await asyncio.gather(*(_check_answers(successor, client) for client in clients.values()))
        requests = await self._prepare(successor, plan, prospects.graph)
        return Placement(deployment=successor, clients=clients, requests=requests)

    async def _replan(self, deployment: Deployment, prospects: _Prospects) -> tuple[Deployment, Plan]:
        """The same plan where all of its devices are there. Raises BeingPlanned or Infeasible where none is there."""
        present = await self._answering(prospects)
        lost = tuple(device_id for device_id in deployment.device_ids() if device_id not in present)
        if not lost:
            return deployment, prospects.plan
        inventory = prospects.left(present)
        if not inventory.devices:
            raise Infeasible(
                f"without {', '.join(lost)} no device is left of those that the plan may use", device=lost[0]
            )
        operation = await self._ended_operation(deployment, prospects, lost, inventory)
        if operation.failure is not None:
            raise _nothing_fits(lost, inventory, operation)
        async with self._database.reading() as session:
            plan, _ = await get_plan(session, operation.id)
        reason = _reason(lost, operation, prospects.plan, plan)
        return replace(deployment, plan_id=operation.id, plan_reason=reason), plan

    async def _ended_operation(
        self, deployment: Deployment, prospects: _Prospects, lost: tuple[str, ...], left: Inventory
    ) -> PlanOperation:
        """The one whose plan serves, or that found none. Raises BeingPlanned where it has not ended yet."""
        async with self._database.session() as session:
            await self._leadership.check(session)
            await lock_spares(session, deployment)
            operation = await find_spare(session, deployment, lost)
            if operation is None or not await _serves(session, operation, left):
                await _add(session, deployment, prospects, lost, left, background=False)
            elif operation.state.ended:
                return operation
            else:
                await hurry(session, operation.id)
        self._ask()
        raise BeingPlanned("a plan for the devices left is being made")

    async def _answering(self, prospects: _Prospects) -> frozenset[str]:
        """The devices that the plan asked for may use and whose daemons are there.

        Raises DeviceGone where one is silent while its lease lasts: it may be busy, and is waited for.
        """
        daemons = [
            prospects.live[device.id]
            for device in prospects.asked_plan.inventory.devices
            if device.id in prospects.live
        ]
        answers = await asyncio.gather(*(self._answers(daemon) for daemon in daemons))
        return frozenset(daemon.device.id for daemon, is_there in zip(daemons, answers, strict=True) if is_there)

    async def _answers(self, daemon: Daemon) -> bool:
        try:
            status = await self._client_of(daemon.device.id, daemon.address).status()
        except DaemonCallFailed as error:
            if error.failure.reason == UNREACHABLE:
                return False
            raise DeviceGone(error.failure.message, device_id=daemon.device.id) from None
        return status.incarnation_id == daemon.incarnation_id


def clients_of(deployment: Deployment, client_of: Callable[[str, str], DaemonClient]) -> dict[str, DaemonClient]:
    return {
        placement.device_id: client_of(placement.device_id, placement.daemon_address) for placement in deployment.stages
    }


async def _prospects(session: AsyncSession, deployment: Deployment) -> _Prospects:
    plan, _ = await get_plan(session, deployment.plan_id)
    asked_plan = (
        plan
        if deployment.asked_plan_id == deployment.plan_id
        else (await get_plan(session, deployment.asked_plan_id))[0]
    )
    live = {daemon.device.id: daemon for daemon in await list_usable_daemons(session, await database_now(session))}
    promised = await promised_bytes(session, {*live, *deployment.device_ids()})
    return _Prospects(
        plan=plan,
        asked_plan=asked_plan,
        graph=await get_graph(session, deployment.graph_id),
        live=live,
        promised={
            device_id: {holder: size for holder, size in holders.items() if holder != deployment.id}
            for device_id, holders in promised.items()
        },
    )


async def _serves(session: AsyncSession, operation: PlanOperation, left: Inventory) -> bool:
    """Whether its plan, made or to be made, fits the devices left; where there is none, whether nothing has changed."""
    if operation.state is OperationState.CANCELLED:
        return False
    planned_for = (await get_inventory(session, operation.inventory_id)).inventory
    if operation.state is not OperationState.SUCCEEDED:
        return planned_for == left
    free = {device.id: device.memory_bytes for device in left.devices}
    try:
        plan, _ = await get_plan(session, operation.id)
    except NotFound:
        return False
    return all(peak_bytes <= free.get(device_id, 0) for device_id, peak_bytes in plan.device_peak_bytes.items())


async def _add(
    session: AsyncSession,
    deployment: Deployment,
    prospects: _Prospects,
    lost: tuple[str, ...],
    inventory: Inventory,
    *,
    background: bool,
) -> None:
    now = datetime.now(UTC)
    kinds = [device.kind for device in inventory.devices]
    options = prospects.asked_plan.options
    serving = await serving_profiles(session, options.rates_from_profiles, kinds)
    record = InventoryRecord(
        id=f"inv-{secrets.token_hex(6)}", name="", inventory=inventory, created_at=now, listed=False
    )
    operation = PlanOperation(
        id=f"plan-{secrets.token_hex(6)}",
        graph_id=deployment.graph_id,
        inventory_id=record.id,
        options=replace(options, rates_from_profiles=serving),
        created_at=now,
        background=background,
        replaced_plan_id=deployment.plan_id,
    )
    await add_spare(session, deployment, lost, operation, record)


async def _check_answers(deployment: Deployment, client: DaemonClient) -> None:
    """Raises DeviceGone unless the daemon that the deployment is placed on answers: a lease outlives its daemon."""
    [incarnation_id] = {placement.incarnation_id for placement in deployment.stages_on(client.device_id)}
    try:
        status = await client.status()
    except DaemonCallFailed as error:
        raise DeviceGone(error.failure.message, device_id=client.device_id) from None
    if status.incarnation_id != incarnation_id:
        raise DeviceGone(f"the daemon of {client.device_id} has not registered yet", device_id=client.device_id)


def _nothing_fits(lost: tuple[str, ...], left: Inventory, operation: PlanOperation) -> Infeasible:
    assert operation.failure is not None
    devices = ", ".join(f"{device.id} ({describe_bytes(device.memory_bytes)})" for device in left.devices)
    metadata = {**operation.failure.metadata, "lost_device_ids": ",".join(lost)}
    return Infeasible(f"without {', '.join(lost)} nothing fits on {devices}: {operation.failure.message}", **metadata)


def _reason(lost: tuple[str, ...], operation: PlanOperation, before: Plan, after: Plan) -> str:
    when = "planned ahead" if operation.background else "planned when it was needed"
    return (
        f"without {', '.join(lost)}, {when}: {describe_bytes(operation.moved_bytes or 0)} of weights move, predicted "
        f"{after.options.objective.value} {_value(after)} instead of {_value(before)}"
    )


def _value(plan: Plan) -> str:
    is_share = plan.options.objective is Objective.MEMORY
    return f"{plan.objective_value:.0%}" if is_share else describe_seconds(plan.objective_value)
