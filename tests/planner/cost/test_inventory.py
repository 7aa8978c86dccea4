"""Devices, links and inventories: what they may hold, and what is told of what they may not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.cost.inventory import DEFAULT_LINK, MAX_DEVICES, Device, Inventory, LinkSpeed
from planner.errors import InventoryError

A = Device(id="a", kind="h200", host="n1", memory_bytes=2**53 + 1)
B, C = replace(A, id="b"), replace(A, id="c")
FAST = LinkSpeed(bytes_per_second=4e11, latency_seconds=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "a device has no id"),
        ({"kind": "x" * 257}, "device 'a': its kind needs at most 256 printable characters"),
        ({"host": "n\n1"}, "device 'a': its host needs at most 256 printable"),
        ({"id": 7}, "device 7: its id is 7, needs str"),
        ({"host": None}, "device 'a': its host is None, needs str"),
        ({"memory_bytes": 1e9}, "device 'a': memory_bytes is 1000000000.0, needs int"),
        ({"memory_bytes": "80GiB"}, "device 'a': memory_bytes is '80GiB', needs int"),
        ({"memory_bytes": 0}, "memory_bytes is 0, needs more than 0"),
        ({"memory_bytes": 2**63}, r"memory_bytes is more than 2\^63 - 1"),
        ({"flops_per_second": -1.0}, "flops_per_second is -1.0, needs a finite number of at least 0"),
        ({"flops_per_second": math.inf}, "flops_per_second is inf, needs a finite number"),
        ({"flops_per_second": 9e-4}, "flops_per_second is 0.0009, needs 0.001 to 1e\\+24, or 0"),
        ({"memory_bytes_per_second": 2e24}, "memory_bytes_per_second is 2e\\+24, needs 0.001 to 1e\\+24"),
    ],
)
def test_impossible_device_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        replace(A, **change)  # type: ignore[arg-type]


def test_bounds_themselves_are_allowed() -> None:
    widest = replace(A, kind="x" * 256, memory_bytes=2**63 - 1, flops_per_second=1e24, memory_bytes_per_second=1e-3)
    assert widest.memory_bytes == 9_223_372_036_854_775_807
    assert len(Inventory(devices=tuple(replace(A, id=str(index)) for index in range(MAX_DEVICES))).devices) == 4096


@pytest.mark.parametrize(
    ("rate", "latency", "says"),
    [
        (0.5, 0.0, "bytes_per_second is 0.5, needs a finite number of at least 1"),
        (math.nan, 0.0, "bytes_per_second is nan"),
        (1.0, -1e-9, "latency_seconds is -1e-09"),
        (1.0, 2e9, r"latency_seconds is 2e\+09, needs 0 to 1e\+09"),
    ],
)
def test_impossible_link_is_refused(rate: float, latency: float, says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        LinkSpeed(bytes_per_second=rate, latency_seconds=latency)


def test_transfer_takes_its_latency_and_its_bytes() -> None:
    speed = LinkSpeed(bytes_per_second=1e6, latency_seconds=0.25)
    assert speed.transfer_seconds(0) == 0.25
    assert speed.transfer_seconds(3_000_000) == 3.25
    assert LinkSpeed(bytes_per_second=1.0, latency_seconds=1e9).transfer_seconds(1) == 1e9 + 1


def test_link_holds_in_its_direction_and_others_are_the_default() -> None:
    inventory = Inventory(devices=(A, B), links={("a", "b"): FAST})
    assert inventory.link("a", "b") == FAST
    assert inventory.link("b", "a") == DEFAULT_LINK == LinkSpeed(bytes_per_second=1e10, latency_seconds=5e-5)
    slow = LinkSpeed(bytes_per_second=1.0, latency_seconds=0.0)
    assert replace(inventory, default_link=slow).link("b", "a") == slow


def test_inventory_that_cannot_be_is_refused() -> None:
    with pytest.raises(InventoryError, match="two devices share an id, 'a'"):
        Inventory(devices=(A, B, A))
    with pytest.raises(InventoryError, match="link 'a' to 'x': no device is called 'x'"):
        Inventory(devices=(A, B), links={("a", "x"): FAST})
    with pytest.raises(InventoryError, match="has 4,097 devices, needs at most 4,096"):
        Inventory(devices=tuple(replace(A, id=str(index)) for index in range(MAX_DEVICES + 1)))


def test_device_that_is_left_out_takes_its_links_along() -> None:
    links = {("a", "b"): FAST, ("b", "c"): FAST, ("c", "a"): FAST}
    slow = LinkSpeed(bytes_per_second=1.0, latency_seconds=0.0)
    left = Inventory(devices=(A, B, C), links=links, default_link=slow).without(["b"])
    assert left == Inventory(devices=(A, C), links={("c", "a"): FAST}, default_link=slow)
    with pytest.raises(InventoryError, match="no device is called 'd'; there are 'a', 'b'"):
        Inventory(devices=(A, B)).without(["a", "d"])
