"""Inventories over gRPC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from planner.api.identity import fingerprint, new_id
from planner.api.pages import page_of
from planner.api.records import checked_name, inventory_record_to_proto
from planner.api.threads import in_thread
from planner.store.database import Database
from planner.store.inventories import InventoryRecord, add_inventory, delete_inventory, get_inventory, list_inventories
from planner.store.request_ids import create_once
from planner.wire.inventory import inventory_from_proto
from protos.v1 import planner_pb2


class InventoryCalls:
    _database: Database

    async def CreateInventory(self, request: planner_pb2.CreateInventoryRequest, _: Any) -> planner_pb2.InventoryRecord:
        now = datetime.now(UTC)
        record = InventoryRecord(
            id=new_id("inv"),
            name=checked_name(request.name),
            inventory=await in_thread(inventory_from_proto, request.inventory),
            created_at=now,
        )

        async def create(session: AsyncSession) -> str:
            await add_inventory(session, record)
            return record.id

        inventory_id, _made = await create_once(
            self._database, "CreateInventory", request.request_id, await fingerprint(request), now, create
        )
        return await self._inventory(inventory_id)

    async def GetInventory(self, request: planner_pb2.GetInventoryRequest, _: Any) -> planner_pb2.InventoryRecord:
        return await self._inventory(request.inventory_id)

    async def ListInventories(
        self, request: planner_pb2.ListInventoriesRequest, _: Any
    ) -> planner_pb2.ListInventoriesResponse:
        page = page_of(request, "inventory", name=request.name)
        async with self._database.reading() as session:
            records, token = await list_inventories(session, page, name=request.name)
        return planner_pb2.ListInventoriesResponse(
            inventories=[inventory_record_to_proto(record) for record in records], next_page_token=token
        )

    async def DeleteInventory(
        self, request: planner_pb2.DeleteInventoryRequest, _: Any
    ) -> planner_pb2.DeleteInventoryResponse:
        async with self._database.session() as session:
            await delete_inventory(session, request.inventory_id)
        return planner_pb2.DeleteInventoryResponse(id=request.inventory_id)

    async def _inventory(self, inventory_id: str) -> planner_pb2.InventoryRecord:
        async with self._database.reading() as session:
            record = await get_inventory(session, inventory_id)
        return await in_thread(inventory_record_to_proto, record)
