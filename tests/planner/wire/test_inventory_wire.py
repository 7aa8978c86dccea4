"""Inventories come back from the wire as they went, and what is wrong is named."""

from __future__ import annotations

import math

import pytest

from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.errors import InventoryError
from planner.wire.inventory import MAX_LINKS, inventory_from_proto, inventory_to_proto
from protos.v1 import inventory_pb2

FAST = LinkSpeed(bytes_per_second=4e11, latency_seconds=1e-6)
SLOW = LinkSpeed(bytes_per_second=1e9, latency_seconds=1e-4)


def device(name: str, **changes: object) -> inventory_pb2.Device:
    fields: dict[str, object] = {"id": name, "kind": "h200", "host": "node1", "memory_bytes": 2**37}
    return inventory_pb2.Device(**{**fields, **changes})  # type: ignore[arg-type]


def inventory(*links: inventory_pb2.Link) -> inventory_pb2.Inventory:
    return inventory_pb2.Inventory(devices=[device("a"), device("b")], links=links)


def link(source: str, target: str, *, both: bool = False, rate: float = 1e9, wait: float = 0.0) -> inventory_pb2.Link:
    return inventory_pb2.Link(
        source=source, target=target, bytes_per_second=rate, latency_seconds=wait, bidirectional=both
    )


def test_an_inventory_comes_back() -> None:
    original = Inventory(
        devices=(
            Device(id="a", kind="h200", host="n1", memory_bytes=2**53 + 1, flops_per_second=9e14),
            Device(id="b", kind="cpu", host="n2", memory_bytes=2**63 - 1, shares_cores=True),
        ),
        links={("a", "b"): FAST, ("b", "a"): SLOW},
        default_link=SLOW,
    )
    message = inventory_to_proto(original)
    assert inventory_from_proto(inventory_pb2.Inventory.FromString(message.SerializeToString())) == original


def test_equal_inventories_give_equal_bytes() -> None:
    devices = inventory_from_proto(inventory()).devices
    links = {("a", "b"): FAST, ("b", "a"): SLOW}
    one = inventory_to_proto(Inventory(devices=devices, links=links))
    other = inventory_to_proto(Inventory(devices=devices, links=dict(reversed(links.items()))))
    assert one.SerializeToString() == other.SerializeToString()
    assert [(link.source, link.target) for link in one.links] == [("a", "b"), ("b", "a")]


def test_link_to_itself_is_one_also_both_ways() -> None:
    assert inventory_from_proto(inventory(link("a", "a", both=True))).links.keys() == {("a", "a")}


def test_what_is_not_said_is_the_default() -> None:
    parsed = inventory_from_proto(inventory())
    assert parsed.default_link == DEFAULT_LINK
    assert parsed.link("a", "b") == DEFAULT_LINK


def test_a_link_both_ways_is_two() -> None:
    parsed = inventory_from_proto(inventory(link("a", "b", both=True)))
    assert parsed.links.keys() == {("a", "b"), ("b", "a")}
    assert inventory_from_proto(inventory(link("a", "b"))).links.keys() == {("a", "b")}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (inventory_pb2.Inventory(), r"inventory\.devices is empty"),
        (inventory_pb2.Inventory(devices=[device("a"), device("")]), r"inventory\.devices\[1\]: a device has no id"),
        (inventory_pb2.Inventory(devices=[device("a"), device("a")]), "share an id"),
        (inventory_pb2.Inventory(devices=[device("a", memory_bytes=0)]), r"devices\[0\]: .*memory_bytes is 0"),
        (inventory_pb2.Inventory(devices=[device("a", memory_bytes=2**63)]), r"devices\[0\]\.memory_bytes is 9223"),
        (inventory_pb2.Inventory(devices=[device("a", flops_per_second=math.nan)]), r"flops_per_second is nan"),
        (inventory_pb2.Inventory(devices=[device("a", memory_bytes_per_second=-1.0)]), r"bytes_per_second is -1\.0"),
        (inventory(link("a", "c")), r"inventory\.links\[0\]\.target: no device is called 'c'; there are \['a', 'b'\]"),
        (inventory(link("x", "b")), r"inventory\.links\[0\]\.source: no device is called 'x'"),
        (inventory(link("a", "b"), link("a", "b")), r"inventory\.links\[1\]: 'a' to 'b' has a link already"),
        (inventory(link("a", "b", both=True), link("b", "a")), r"inventory\.links\[1\]: 'b' to 'a' has a link"),
        (inventory(link("a", "b", rate=0.0)), r"inventory\.links\[0\]: bytes_per_second is 0\.0"),
        (inventory(link("a", "b", rate=math.nan)), r"inventory\.links\[0\]: bytes_per_second is nan"),
        (inventory(link("a", "b", wait=-1.0)), r"inventory\.links\[0\]: latency_seconds is -1\.0"),
        (
            inventory_pb2.Inventory(devices=[device("a")], default_link=link("", "", rate=math.inf)),
            r"inventory\.default_link: bytes_per_second is inf",
        ),
    ],
)
def test_what_is_wrong_is_named(message: inventory_pb2.Inventory, says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        inventory_from_proto(message)


def test_more_links_than_a_plan_can_use_are_refused_before_they_are_read() -> None:
    link = inventory_pb2.Link(source="nobody", target="nobody")
    message = inventory_pb2.Inventory(devices=[inventory_pb2.Device(id="d0")], links=[link] * (MAX_LINKS + 1))
    with pytest.raises(InventoryError, match=r"inventory\.links has 65,537 entries, needs at most 65,536"):
        inventory_from_proto(message)
