"""Inventories, and the devices that have registered."""

from __future__ import annotations

from collections.abc import Iterator

from planner.client.connection import Connection
from planner.client.messages import inventory_record_from_proto, registered_device_from_proto
from planner.client.records import InventoryRecord, RegisteredDevice
from planner.client.request_ids import new_request_id
from planner.cost.inventory import Inventory
from planner.wire.inventory import inventory_to_proto
from protos.v1 import planner_pb2


class InventoryCalls:
    _connection: Connection

    def list_devices(self) -> tuple[RegisteredDevice, ...]:
        """Devices of the daemons that hold a lease now."""
        answer = self._connection.call(self._connection.stub.ListDevices, planner_pb2.ListDevicesRequest())
        return tuple(map(registered_device_from_proto, answer.devices))

    def create_inventory(self, inventory: Inventory, name: str = "", request_id: str | None = None) -> InventoryRecord:
        request = planner_pb2.CreateInventoryRequest(
            request_id=request_id or new_request_id(), name=name, inventory=inventory_to_proto(inventory)
        )
        return inventory_record_from_proto(self._connection.call(self._connection.stub.CreateInventory, request))

    def get_inventory(self, inventory_id: str) -> InventoryRecord:
        request = planner_pb2.GetInventoryRequest(inventory_id=inventory_id)
        return inventory_record_from_proto(self._connection.call(self._connection.stub.GetInventory, request))

    def list_inventories(self) -> Iterator[InventoryRecord]:
        request = planner_pb2.ListInventoriesRequest()
        for page in self._connection.pages(self._connection.stub.ListInventories, request):
            yield from map(inventory_record_from_proto, page.inventories)

    def delete_inventory(self, inventory_id: str) -> str:
        """The id of what is gone. Raises Conflict naming the plans over it."""
        request = planner_pb2.DeleteInventoryRequest(inventory_id=inventory_id)
        return str(self._connection.call(self._connection.stub.DeleteInventory, request).id)
