"""Inventories, and the devices that have registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from planner.client.arguments import checks_arguments
from planner.client.connection import Connection
from planner.client.messages import inventory_record_from_proto, registered_device_from_proto
from planner.client.records import InventoryRecord, RegisteredDevice
from planner.client.request_ids import new_request_id
from planner.cost.inventory import Inventory
from planner.wire.inventory import inventory_to_proto
from protos.v1 import planner_pb2


@checks_arguments
class InventoryCalls:
    _connection: Connection

    def list_devices(self, *, kind: str = "", host: str = "") -> tuple[RegisteredDevice, ...]:
        """Devices of the daemons that hold a lease now. Empty filters let everything through."""
        request = planner_pb2.ListDevicesRequest(kind=kind, host=host)
        answer = self._connection.call(self._connection.stub.ListDevices, request)
        return tuple(map(registered_device_from_proto, answer.devices))

    def drain_device(self, device_id: str, *, undo: bool = False) -> Mapping[str, str]:
        """Puts nothing new on the device until its daemon has been started again, or `undo`; moves what can move.

        The deployments that are there still, and why each stays; empty for one that is about to leave: ask again.
        """
        request = planner_pb2.DrainDeviceRequest(device_id=device_id, undo=undo)
        answer = self._connection.call(self._connection.stub.DrainDevice, request)
        return {one.deployment_id: one.stays_because for one in answer.deployments}

    def create_inventory(self, inventory: Inventory, name: str = "", request_id: str | None = None) -> InventoryRecord:
        """Stores devices and links to plan over; raises InvalidArgument naming what is wrong with them.

        Asked for again with the same `request_id`, it is the same one.
        """
        request = planner_pb2.CreateInventoryRequest(
            request_id=request_id or new_request_id(), name=name, inventory=inventory_to_proto(inventory)
        )
        return inventory_record_from_proto(self._connection.call(self._connection.stub.CreateInventory, request))

    def get_inventory(self, inventory_id: str) -> InventoryRecord:
        """Raises NotFound."""
        request = planner_pb2.GetInventoryRequest(inventory_id=inventory_id)
        return inventory_record_from_proto(self._connection.call(self._connection.stub.GetInventory, request))

    def list_inventories(
        self, *, name: str = "", owner: str = "", created_since: datetime | None = None
    ) -> Iterator[InventoryRecord]:
        """Newest first, page by page. Empty filters let everything through; `owner` is the holder of a token."""
        request = planner_pb2.ListInventoriesRequest(name=name)
        stub = self._connection.stub
        for page in self._connection.pages(stub.ListInventories, request, owner=owner, created_since=created_since):
            yield from map(inventory_record_from_proto, page.inventories)

    def delete_inventory(self, inventory_id: str) -> str:
        """The id of what is gone. Raises Conflict naming the plans over it."""
        request = planner_pb2.DeleteInventoryRequest(inventory_id=inventory_id)
        return str(self._connection.call(self._connection.stub.DeleteInventory, request).id)
