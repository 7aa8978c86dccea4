"""Inventories: devices and links as rows, written once and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.errors import NotFound
from planner.store.many_rows import ROWS_AT_ONCE, TableRow, add_rows
from planner.store.operations import IS_OPEN, delete_ended
from planner.store.owners import forget_owners
from planner.store.paging import PageRequest
from planner.store.references import refuse_while_needed
from planner.store.tables import InventoryDeviceRow, InventoryLinkRow, InventoryRow, PlanOperationRow, PlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRecord:
    """`listed` is false for one that came inside a plan's request."""

    id: str
    name: str
    inventory: Inventory
    created_at: datetime
    listed: bool = True


async def add_inventory(session: AsyncSession, record: InventoryRecord) -> None:
    inventory = record.inventory
    session.add(
        InventoryRow(
            id=record.id,
            name=record.name,
            listed=record.listed,
            default_bytes_per_second=inventory.default_link.bytes_per_second,
            default_latency_seconds=inventory.default_link.latency_seconds,
            created_at=record.created_at,
        )
    )
    await session.flush()
    session.add_all(
        InventoryDeviceRow(
            inventory_id=record.id,
            position=position,
            device_id=device.id,
            kind=device.kind,
            host=device.host,
            memory_bytes=device.memory_bytes,
            flops_per_second=device.flops_per_second,
            memory_bytes_per_second=device.memory_bytes_per_second,
            shares_cores=device.shares_cores,
        )
        for position, device in enumerate(inventory.devices)
    )
    await session.flush()
    await add_rows(session, _link_rows(record.id, inventory.links))


async def get_inventory(session: AsyncSession, inventory_id: str) -> InventoryRecord:
    return (await _records(session, [await _row(session, inventory_id)]))[0]


async def delete_inventory(session: AsyncSession, inventory_id: str) -> None:
    """Raises NotFound, and Conflict while a plan needs it."""
    row = await _row(session, inventory_id, lock=True)
    needed_by = {
        "plan": select(PlanRow.id).where(PlanRow.inventory_id == inventory_id),
        "plan operation": select(PlanOperationRow.id).where(PlanOperationRow.inventory_id == inventory_id, IS_OPEN),
    }
    await refuse_while_needed(session, f"inventory {inventory_id}", needed_by, "delete those first")
    await delete_ended(session, PlanOperationRow.inventory_id == inventory_id)
    await session.execute(delete(InventoryRow).where(InventoryRow.id == row.id))
    await forget_owners(session, "inventory", inventory_id)


async def list_inventories(
    session: AsyncSession, page: PageRequest, *, name: str = ""
) -> tuple[tuple[InventoryRecord, ...], str]:
    """Newest first; an empty name lets everything through."""
    query = select(InventoryRow).where(InventoryRow.listed)
    if name:
        query = query.where(InventoryRow.name == name)
    rows = (await session.scalars(page.select(query, InventoryRow.created_at, InventoryRow.id))).all()
    return page.cut(await _records(session, rows))


async def _row(session: AsyncSession, inventory_id: str, *, lock: bool = False) -> InventoryRow:
    row = await session.get(InventoryRow, inventory_id, with_for_update=lock or None)
    if row is None:
        raise NotFound(f"no inventory has the id {inventory_id[:80]!r}; list the inventories to see which there are")
    return row


async def _records(session: AsyncSession, rows: Sequence[InventoryRow]) -> list[InventoryRecord]:
    ids = [row.id for row in rows]
    devices = await _devices(session, ids)
    links = await _links(session, ids)
    return [
        InventoryRecord(
            id=row.id,
            name=row.name,
            inventory=Inventory(
                devices=tuple(devices.get(row.id, ())),
                links=links.get(row.id, {}),
                default_link=LinkSpeed(
                    bytes_per_second=row.default_bytes_per_second, latency_seconds=row.default_latency_seconds
                ),
            ),
            created_at=row.created_at,
            listed=row.listed,
        )
        for row in rows
    ]


def _link_rows(inventory_id: str, links: Mapping[tuple[str, str], LinkSpeed]) -> Iterator[TableRow]:
    for position, ((source, target), speed) in enumerate(links.items()):
        columns = {
            "inventory_id": inventory_id,
            "position": position,
            "source_device_id": source,
            "target_device_id": target,
            "bytes_per_second": speed.bytes_per_second,
            "latency_seconds": speed.latency_seconds,
        }
        yield InventoryLinkRow, columns


async def _devices(session: AsyncSession, ids: list[str]) -> dict[str, list[Device]]:
    query = select(InventoryDeviceRow).where(InventoryDeviceRow.inventory_id.in_(ids))
    by_inventory: dict[str, list[Device]] = {}
    for row in await session.scalars(query.order_by(InventoryDeviceRow.position)):
        device = Device(
            id=row.device_id,
            kind=row.kind,
            host=row.host,
            memory_bytes=row.memory_bytes,
            flops_per_second=row.flops_per_second,
            memory_bytes_per_second=row.memory_bytes_per_second,
            shares_cores=row.shares_cores,
        )
        by_inventory.setdefault(row.inventory_id, []).append(device)
    return by_inventory


async def _links(session: AsyncSession, ids: list[str]) -> dict[str, dict[tuple[str, str], LinkSpeed]]:
    row = InventoryLinkRow
    key = tuple_(row.inventory_id, row.position)
    query = (
        select(
            *(row.inventory_id, row.position, row.source_device_id, row.target_device_id),
            *(row.bytes_per_second, row.latency_seconds),
        )
        .where(row.inventory_id.in_(ids))
        .order_by(row.inventory_id, row.position)
        .limit(ROWS_AT_ONCE)
    )
    by_inventory: dict[str, dict[tuple[str, str], LinkSpeed]] = {}
    # Pages rather than a cursor on the server, which takes several statements where there is one link or none.
    page = (await session.execute(query)).all()
    while page:
        for inventory_id, _, source, target, rate, latency in page:
            speed = LinkSpeed(bytes_per_second=rate, latency_seconds=latency)
            by_inventory.setdefault(inventory_id, {})[source, target] = speed
        if len(page) < ROWS_AT_ONCE:
            break
        last = tuple_(*(literal(part) for part in page[-1][:2]))
        page = (await session.execute(query.where(key > last))).all()
    return by_inventory
