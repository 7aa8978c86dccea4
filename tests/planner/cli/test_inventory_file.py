"""Inventories as people write them: units, defaults, and which of a topology, a matrix and the links counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli.inventory_file import inventory_path, parse_inventory, read_inventory
from planner.cost.inventory import DEFAULT_LINK, Device, LinkSpeed
from planner.errors import InventoryError

TWO = [{"id": "a", "host": "h", "memory": "1KiB"}, {"id": "b", "host": "h", "memory": "1KiB"}]


def speed(rate: float, latency: float = DEFAULT_LINK.latency_seconds) -> LinkSpeed:
    return LinkSpeed(bytes_per_second=rate, latency_seconds=latency)


@pytest.mark.parametrize(
    ("entry", "device"),
    [
        ({"id": "a", "memory": "1.5KiB"}, Device(id="a", kind="cpu", host="localhost", memory_bytes=1536)),
        ({"id": "a", "memory": 7}, Device(id="a", kind="cpu", host="localhost", memory_bytes=7)),
        (
            {"id": "a", "memory": 7, "shares_cores": True},
            Device(id="a", kind="cpu", host="localhost", memory_bytes=7, shares_cores=True),
        ),
        (
            {"id": "a", "memory_bytes": 2**53 + 1},
            Device(id="a", kind="cpu", host="localhost", memory_bytes=2**53 + 1),
        ),
        (
            {"id": "a", "memory_bytes": str(2**53 + 1)},
            Device(id="a", kind="cpu", host="localhost", memory_bytes=2**53 + 1),
        ),
        (
            {
                "id": 3,
                "kind": "h100",
                "host": 7,
                "memory": "1B",
                "flops_per_second": "1e12",
                "memory_bytes_per_second": 3,
            },
            Device(
                id="3",
                kind="h100",
                host="7",
                memory_bytes=1,
                flops_per_second=1e12,
                memory_bytes_per_second=3.0,
            ),
        ),
    ],
)
def test_a_device(entry: dict[str, Any], device: Device) -> None:
    inventory = parse_inventory({"devices": [entry]})
    assert inventory.devices == (device,)
    assert (inventory.links, inventory.default_link) == ({}, DEFAULT_LINK)


def test_a_link_has_a_direction_unless_it_says_otherwise() -> None:
    one = {"source": "a", "target": "b", "bytes_per_second": 1e9}
    assert parse_inventory({"devices": TWO, "links": [one]}).links == {("a", "b"): speed(1e9)}
    both = {**one, "bidirectional": True, "latency_seconds": 0}
    assert parse_inventory({"devices": TWO, "links": [both]}).links == {
        ("a", "b"): speed(1e9, 0.0),
        ("b", "a"): speed(1e9, 0.0),
    }


def test_a_link_wins_over_an_island_and_an_island_over_the_host() -> None:
    three = [*TWO, {"id": "c", "host": "h", "memory": 1}]
    inventory = parse_inventory(
        {
            "devices": three,
            "topology": {
                "same_host": {"bytes_per_second": 1e9},
                "islands": [{"devices": ["a", "b"], "bytes_per_second": 2e9, "latency_seconds": 1e-6}],
            },
            "links": [{"source": "b", "target": "a", "bytes_per_second": 3e9}],
            "default_link": {"bytes_per_second": 5, "latency_seconds": 6},
        }
    )
    assert inventory.links["a", "c"] == inventory.links["c", "b"] == speed(1e9)
    assert inventory.links["a", "b"] == speed(2e9, 1e-6)
    assert inventory.links["b", "a"] == speed(3e9)
    assert inventory.default_link == speed(5, 6)


@pytest.mark.parametrize(("latency", "there", "back"), [([[0, 1], [2, 0]], 1.0, 2.0), (0.5, 0.5, 0.5)])
def test_a_matrix_is_from_row_to_column_and_a_link_wins_over_it(latency: object, there: float, back: float) -> None:
    matrix = {"bytes_per_second": [[0, 10], [20, 0]], "latency_seconds": latency}
    assert parse_inventory({"devices": TWO, "matrix": matrix}).links == {
        ("a", "b"): speed(10.0, there),
        ("b", "a"): speed(20.0, back),
    }
    link = {"source": "a", "target": "b", "bytes_per_second": 30}
    both = parse_inventory({"devices": TWO, "matrix": matrix, "links": [link]})
    assert both.links["a", "b"].bytes_per_second == 30
    without = parse_inventory({"devices": TWO, "matrix": {"bytes_per_second": [[0, 10], [20, 0]]}})
    assert without.links["a", "b"] == speed(10.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"matrix": {"bytes_per_second": []}, "topology": {}}, "has a matrix and a topology; give one of them"),
        ({"matrix": {}}, "matrix.bytes_per_second is None, needs a list of lists of numbers"),
        ({"matrix": {"bytes_per_second": [1, 2]}}, "needs a list of lists of numbers"),
        ({"matrix": {"bytes_per_second": [[0, 1], [1]]}}, "has 2 rows of 1 or 2 numbers, needs 2 by 2"),
        ({"matrix": {"bytes_per_second": []}}, "has 0 rows of 0 numbers, needs 2 by 2"),
        ({"matrix": {"bytes_per_second": [[0, "fast"], [1, 0]]}}, "matrix.bytes_per_second[0][1] is 'fast'"),
        (
            {"matrix": {"bytes_per_second": [[0, 1], [1, 0]], "latency_seconds": [[0, 1]]}},
            "matrix.latency_seconds has 1 rows",
        ),
        ({"matrix": {"bytes_per_second": [[0, 1], [1, 0]], "latency_seconds": "x"}}, "matrix.latency_seconds is 'x'"),
        ({"topology": {"same_host": 3}}, "topology.same_host is 3, needs a mapping"),
        ({"topology": {"same_host": {"bytes_per_second": 0}}}, "topology.same_host: bytes_per_second is 0.0"),
        ({"topology": {"rings": []}}, "topology: unknown key 'rings'; known: islands, same_host"),
        ({"topology": {"islands": [{"devices": ["a", None]}]}}, "topology.islands[0].devices is None, needs a text"),
        ({"topology": {"islands": [{"devices": ["a", "z"]}]}}, "no device is called 'z'"),
        ({"links": {}}, "links is {}, needs a list"),
        ({"links": [{"source": "a"}]}, "links[0] needs a source and a target"),
        ({"links": [{"source": "a", "target": "b", "bidirectional": 1}]}, "links[0].bidirectional is 1"),
        ({"devices": [{"id": "a", "memory": 7, "shares_cores": "no"}]}, "devices[0].shares_cores is 'no'"),
        ({"links": [{"source": "a", "target": "b", "speed": 1}]}, "links[0]: unknown key 'speed'"),
        (
            {
                "links": [
                    {"source": "a", "target": "b", "bidirectional": True},
                    {"source": "b", "target": "a"},
                ]
            },
            "links[1]: 'b' to 'a' has a link already; name each direction once",
        ),
        ({"devices": [{"memory": 1}]}, "devices[0] has no id"),
        ({"devices": [{"id": "a", "memory": 1.5}]}, "devices[0].memory is 1.5, needs whole bytes"),
        ({"devices": [{"id": "a", "memory": "1 parsec"}]}, "devices[0].memory: '1 parsec' is no size"),
        ({"devices": [{"id": "a", "kind": True, "memory": 1}]}, "devices[0].kind is True, needs a text"),
        ({"devices": [{"id": "a", "memory": 0}]}, "devices[0]: device 'a': memory_bytes is 0"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InventoryError) as raised:
        parse_inventory({"devices": TWO, **changes})
    assert says in raised.value.message


def test_a_file_is_named_before_what_is_wrong_in_it(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump({"devices": [{"id": "a"}]}))
    with pytest.raises(InventoryError, match=r"inventory\.yaml: devices\[0\] has no memory"):
        read_inventory(path)
    path.write_text(yaml.safe_dump({"devices": TWO}))
    assert [device.id for device in read_inventory(path).devices] == ["a", "b"]


def test_a_file_or_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two").touch()
    assert inventory_path("two") == Path("two")
    assert inventory_path("inv-0123") is None
    assert inventory_path("x" * 5000) is None
    for lost in ("two.yaml", "folder/two"):
        with pytest.raises(InventoryError, match=f"'{lost}': there is no such file"):
            inventory_path(lost)
