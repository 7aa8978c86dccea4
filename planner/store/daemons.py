"""Daemons in the database: who registered, and until when each holds its lease."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.inventory import Device
from planner.store.deployment_records import Daemon
from planner.store.tables import DaemonRow


async def save_daemon(session: AsyncSession, daemon: Daemon, now: datetime) -> None:
    """Adds it, or puts it in the place of the one that had its device id. One that is there already stays drained."""
    before = await session.get(DaemonRow, daemon.device.id, with_for_update=True)
    stays_drained = before is not None and before.incarnation_id == daemon.incarnation_id and before.draining
    columns = {field.name: getattr(daemon.device, field.name) for field in fields(Device) if field.name != "id"}
    row = DaemonRow(
        device_id=daemon.device.id,
        address=daemon.address,
        incarnation_id=daemon.incarnation_id,
        torch_version=daemon.torch_version,
        registered_at=now,
        lease_expires_at=daemon.lease_expires_at,
        draining=daemon.draining or stays_drained,
        **columns,
    )
    await session.merge(row)


async def find_daemon(session: AsyncSession, device_id: str) -> Daemon | None:
    row = await session.get(DaemonRow, device_id)
    return None if row is None else _record(row)


async def list_daemons(session: AsyncSession) -> tuple[Daemon, ...]:
    """All that ever registered, by device id; the caller asks each whether it is live."""
    rows = await session.scalars(select(DaemonRow).order_by(DaemonRow.device_id))
    return tuple(_record(row) for row in rows)


async def list_live_daemons(session: AsyncSession, now: datetime) -> tuple[Daemon, ...]:
    return tuple(daemon for daemon in await list_daemons(session) if daemon.live_at(now))


async def list_usable_daemons(session: AsyncSession, now: datetime) -> tuple[Daemon, ...]:
    """Those that hold a lease and are not drained."""
    return tuple(daemon for daemon in await list_live_daemons(session, now) if not daemon.draining)


async def set_draining(session: AsyncSession, device_id: str, incarnation_id: str, draining: bool = True) -> None:
    """Until another incarnation registers."""
    await session.execute(
        update(DaemonRow)
        .where(DaemonRow.device_id == device_id, DaemonRow.incarnation_id == incarnation_id)
        .values(draining=draining)
        .execution_options(synchronize_session=False)
    )


async def renew_lease(session: AsyncSession, device_id: str, incarnation_id: str, expires_at: datetime) -> None:
    """Does nothing where another incarnation has the device now."""
    await session.execute(
        update(DaemonRow)
        .where(DaemonRow.device_id == device_id, DaemonRow.incarnation_id == incarnation_id)
        .values(lease_expires_at=expires_at)
        .execution_options(synchronize_session=False)
    )


def _record(row: DaemonRow) -> Daemon:
    device = Device(
        id=row.device_id,
        kind=row.kind,
        host=row.host,
        memory_bytes=row.memory_bytes,
        flops_per_second=row.flops_per_second,
        memory_bytes_per_second=row.memory_bytes_per_second,
        shares_cores=row.shares_cores,
    )
    return Daemon(
        device=device,
        address=row.address,
        incarnation_id=row.incarnation_id,
        torch_version=row.torch_version,
        lease_expires_at=row.lease_expires_at,
        draining=row.draining,
    )
