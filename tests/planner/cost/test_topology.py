"""Links from hosts, islands and matrices, as inventory files give them."""

from __future__ import annotations

import pytest
import yaml

from planner.cli.inventory_file import parse_inventory
from planner.cost.inventory import Device, LinkSpeed
from planner.cost.topology import Island, Topology, matrix_links
from planner.errors import InventoryError

DEVICES = "devices: [" + ", ".join(f"{{id: g{i}, host: n{i // 2}, memory: 1GiB}}" for i in range(4)) + "]\n"


def parse(text: str) -> dict[tuple[str, str], float]:
    inventory = parse_inventory(yaml.safe_load(DEVICES + text))
    names = [device.id for device in inventory.devices]
    return {(a, b): inventory.link(a, b).bytes_per_second for a in names for b in names if a != b}


def test_the_more_particular_speed_wins() -> None:
    topology = parse(
        "topology:\n"
        "  same_host: {bytes_per_second: 2}\n"
        "  islands: [{devices: [g1, g2, g3], bytes_per_second: 3}]\n"
        "links: [{source: g3, target: g2, bytes_per_second: 4}]\n"
        "default_link: {bytes_per_second: 1}\n"
    )
    assert topology["g0", "g1"] == topology["g1", "g0"] == 2
    assert topology["g1", "g2"] == topology["g2", "g3"] == topology["g3", "g1"] == 3
    assert topology["g3", "g2"] == 4
    assert topology["g0", "g2"] == topology["g3", "g0"] == 1


def test_matrix() -> None:
    rows = [[0 if row == column else 10 * row + column + 1 for column in range(4)] for row in range(4)]
    topology = parse(f"matrix: {{bytes_per_second: {rows}, latency_seconds: 0.5}}\n")
    assert topology["g2", "g1"] == 22
    assert topology["g1", "g2"] == 13


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topology: {islands: [{devices: [g0, g9], bytes_per_second: 1}]}", "no device is called 'g9'"),
        ("topology: {islands: [{devices: [g0], bytes_per_second: 1}]}", "needs two devices or more"),
        ("topology: {islands: [{devices: [g0, g1], bytes_per_second: -1}]}", "needs a finite number"),
        ("topology: {rack: 1}", "unknown key 'rack'"),
        ("matrix: {bytes_per_second: [[0, 1], [1, 0]]}", "needs 4 by 4"),
        ("matrix: {bytes_per_second: fast}", "needs a list of lists of numbers"),
        (
            "matrix: {bytes_per_second: [[0,1,1,1],[1,0,1,1],[1,1,0,0],[1,1,1,0]]}",
            "'g2' to 'g3': bytes_per_second",
        ),
        ("matrix: {bytes_per_second: []}\ntopology: {}", "give one of them"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        parse(text)


def devices(*hosts: str) -> tuple[Device, ...]:
    return tuple(Device(id=f"g{at}", kind="h200", host=host, memory_bytes=1) for at, host in enumerate(hosts))


def test_links_of_a_matrix_have_the_row_as_source() -> None:
    rates, latencies = [[0, 2, 3], [4, 0, 5], [6, 7, 0]], [[9, 0.2, 0.3], [0.4, 9, 0.5], [0.6, 0.7, 9]]
    links = matrix_links(devices("n", "n", "n"), rates, latencies)
    assert len(links) == 6
    assert links["g0", "g2"] == LinkSpeed(bytes_per_second=3, latency_seconds=0.3)
    assert links["g2", "g0"] == LinkSpeed(bytes_per_second=6, latency_seconds=0.6)
    with pytest.raises(InventoryError, match=r"latency_seconds has 2 rows of \[2\] numbers, needs 3 by 3"):
        matrix_links(devices("n", "n", "n"), rates, [[0, 1], [1, 0]])


def test_host_links_its_devices_only_and_the_last_island_wins() -> None:
    slow, fast, fastest = (LinkSpeed(bytes_per_second=rate, latency_seconds=0.0) for rate in (1.0, 2.0, 3.0))
    islands = (
        Island(device_ids=("g0", "g1", "g2"), speed=fast),
        Island(device_ids=("g1", "g2"), speed=fastest),
    )
    links = Topology(same_host=slow, islands=islands).links(devices("n0", "n0", "n1", "n1"))
    assert links["g1", "g2"] == links["g2", "g1"] == fastest
    assert links["g0", "g1"] == links["g2", "g0"] == fast
    assert links["g2", "g3"] == links["g3", "g2"] == slow
    assert ("g0", "g3") not in links
    assert Topology().links(devices("n0", "n0")) == {}


def test_island_of_one_device_twice_is_refused() -> None:
    island = Island(device_ids=("g0", "g0"), speed=LinkSpeed(bytes_per_second=1.0, latency_seconds=0.0))
    with pytest.raises(InventoryError, match=r"an island of \['g0', 'g0'\], needs two devices or more"):
        Topology(islands=(island,)).links(devices("n0", "n0"))
