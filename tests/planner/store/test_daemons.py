"""Daemons and their leases, on both databases."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from planner.store.daemons import find_daemon, list_daemons, list_live_daemons, renew_lease, save_daemon
from planner.store.database import Database
from planner.store.deployment_records import Daemon
from planner.store.tables import DaemonRow
from tests.planner.store.records import MOST, NOW, daemon, device, later

pytestmark = pytest.mark.services


async def save(database: Database, *daemons: Daemon) -> None:
    async with database.session() as session:
        for record in daemons:
            await save_daemon(session, record, NOW)


async def find(database: Database, device_id: str) -> Daemon | None:
    async with database.session() as session:
        return await find_daemon(session, device_id)


async def test_a_daemon_is_kept_as_it_registered(database: Database) -> None:
    there = later(5).astimezone(timezone(timedelta(hours=9)))
    numbers = {
        "memory_bytes": MOST,
        "flops_per_second": 1e15 / 3,
        "memory_bytes_per_second": 4.8e12,
        "shares_cores": True,
    }
    record = daemon(
        "rack/gpu0",
        device=device("rack/gpu0", kind="H200", host="rack", **numbers),
        lease_expires_at=there,
    )
    await save(database, record)
    loaded = await find(database, "rack/gpu0")
    assert loaded == record
    assert loaded.lease_expires_at.tzinfo is UTC
    assert await find(database, "rack/gpu1") is None
    async with database.session() as session:
        assert (await session.get_one(DaemonRow, "rack/gpu0")).registered_at == NOW


async def test_the_one_that_registers_last_takes_the_device(database: Database) -> None:
    anew = daemon("a", device=device("a", memory_bytes=7), address="elsewhere:2", incarnation_id="second")
    await save(database, daemon("a"), daemon("b"))
    await save(database, anew)
    async with database.session() as session:
        assert await list_daemons(session) == (anew, daemon("b"))


async def test_lists_are_by_device_and_a_lease_that_ends_now_has_ended(database: Database) -> None:
    await save(database, daemon("c", lease_expires_at=later(2)), daemon("a", lease_expires_at=later(1)), daemon("b"))
    async with database.session() as session:
        assert [record.device.id for record in await list_daemons(session)] == ["a", "b", "c"]
        assert [record.device.id for record in await list_live_daemons(session, later(1))] == ["b", "c"]
        assert [record.device.id for record in await list_live_daemons(session, later(1.999999))] == ["b", "c"]
        assert [record.device.id for record in await list_live_daemons(session, later(2))] == ["b"]


async def test_a_renewal_sets_the_lease_of_this_incarnation_and_of_no_other(database: Database) -> None:
    await save(database, daemon("a"), daemon("b"))
    async with database.session() as session:
        await renew_lease(session, "a", "incarnation of a", later(10.000001))
        await renew_lease(session, "b", "incarnation of a", later(20))
        await renew_lease(session, "nobody", "incarnation of a", later(20))
    assert await find(database, "a") == daemon("a", lease_expires_at=later(10.000001))
    assert await find(database, "b") == daemon("b")
