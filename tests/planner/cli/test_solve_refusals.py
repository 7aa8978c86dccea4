"""Cost graphs that cannot be placed: what was found, what was needed, one line, at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import exit_codes
from tests.planner.cli.conftest import RunCli


def node(node_id: object, **more: object) -> dict[str, object]:
    return {"id": node_id, "size": 1.0, "cpuLatency": 1.0, "fpgaLatency": 0.5, "supportedOnFpga": 1, **more}


def edge(source: object, target: object, cost: object = 0.1) -> dict[str, object]:
    return {"sourceId": source, "destId": target, "cost": cost}


def cost_graph(**more: object) -> dict[str, object]:
    chain = {"nodes": [node(index) for index in range(4)], "edges": [edge(index, index + 1) for index in range(3)]}
    return {"maxFPGAs": 2, "maxSizePerFPGA": 100.0, "maxCPUs": 1, **chain, **more}


def refused(cli: RunCli, folder: Path, document: object, *arguments: str) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps(document))
    finished = cli("solve", path, "--time-limit", "1", *arguments)
    assert finished.status in (exit_codes.INVALID_INPUT, exit_codes.INFEASIBLE), finished.stdout
    assert finished.stderr.startswith(f"error: {path}")
    assert len(finished.stderr.splitlines()) == 1
    assert len(finished.stderr) < 800
    return finished.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": []}, "has no nodes"),
        ({"nodes": {"0": node(0)}}, "needs a list of objects"),
        ({"nodes": [3]}, "nodes[0] is 3, needs an object"),
        ({"nodes": [node(0), node(0)]}, "two nodes have id 0"),
        ({"nodes": [node("a")]}, "node 0: id is 'a', needs a whole number"),
        ({"edges": [edge(0, 1), edge(1, 2), edge(2, 1)]}, "the edges form a cycle: 2 → 1 → 2"),
        ({"edges": [edge(3, 3)]}, "the edges form a cycle: 3 → 3"),
        ({"edges": [edge(0, 9)]}, "destId is 9, and no node has that id"),
        ({"edges": [edge(0, 1, float("nan"))]}, "edge 0: cost is nan"),
        ({"edges": [edge(0, 1, 1), edge(0, 2, 2)]}, "node 0 has output costs 1.0 and 2.0"),
        ({"edges": None}, "edges is None, needs a list"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "there has to be a device"),
        ({"maxFPGAs": -1}, "maxFPGAs is -1, needs 0 to 1024"),
        ({"maxFPGAs": 10**9}, "maxFPGAs is 1000000000, needs 0 to 1024"),
        ({"maxSizePerFPGA": "big"}, "maxSizePerFPGA is 'big'"),
        ({"maxCPUs": 0, "nodes": [node(0, supportedOnFpga=0)], "edges": []}, "node '0'"),
        ({"maxCPUs": 0, "nodes": [node(0, size=150)], "edges": []}, "150 bytes"),
    ],
)
def test_what_is_wrong_in_a_cost_graph_is_named(
    bare_cli: RunCli, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    assert says in refused(bare_cli, tmp_path, cost_graph(**changes))


@pytest.mark.parametrize("field", ["size", "cpuLatency", "fpgaLatency"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 10**400, 1e300, None, "1", [], True])
def test_no_number_that_is_none_passes(bare_cli: RunCli, tmp_path: Path, field: str, value: object) -> None:
    message = refused(bare_cli, tmp_path, cost_graph(nodes=[node(0, **{field: value})], edges=[]))
    assert f"node 0: {field} is " in message
    assert "needs a finite number" in message


@pytest.mark.services
@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_nodes_that_cost_nothing_are_placed(bare_cli: RunCli, tmp_path: Path, objective: str) -> None:
    free = [node(index, size=0, cpuLatency=0, fpgaLatency=0) for index in range(4)]
    path = tmp_path / "free.json"
    path.write_text(json.dumps(cost_graph(nodes=free, edges=[edge(index, index + 1, 0) for index in range(3)])))
    solution = bare_cli("solve", path, "--objective", objective, "-o", "json").document()
    assert solution["value"] == 0
    assert solution["proven"]


def test_too_many_nodes_are_refused(bare_cli: RunCli, tmp_path: Path) -> None:
    nodes = [{"id": index} for index in range(250_001)]
    assert "nodes has 250,001 entries, and at most 250,000 can be placed" in refused(
        bare_cli, tmp_path, {"maxFPGAs": 1, "nodes": nodes, "edges": []}
    )
    message = refused(bare_cli, tmp_path, {"devices": [{"id": "a", "memory": 1}], "nodes": nodes})
    assert "the instance has 250,001 nodes, and at most 250,000 can be placed" in message


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"id": ""}, "nodes[0]: id is '', needs a text"),
        ({"id": [1]}, "nodes[0]: id is [1], needs a text"),
        ({"id": "n", "seconds": {"k": 10**400}}, "needs a finite number from 0"),
        ({"id": "n", "seconds": {"other": 1}}, "no device can run it"),
        ({"id": "n", "inputs": [["m"]]}, "inputs[0] is ['m'], needs a text"),
        ({"id": "n", "inputs": "m"}, "needs a list of node ids"),
        ({"id": "n", "module": None}, "module is None, needs a text"),
        ({"id": "n", "trained": "no", "weight_bytes": 4}, "needs true or false"),
        ({"id": "n", "weight_bytes": []}, "weight_bytes is [], needs whole bytes"),
        ({"id": "n", "outputs": {"a": 1}, "output_bytes": 1}, "give one of them"),
        ({"id": "n", "weights": {"n.weight": 1}, "weight_bytes": 1}, "give one"),
        ({"id": "n\x1b[31m"}, "cannot be printed"),
        ({"id": "x" * 100_000}, "characters long, at most 4096"),
        ({"id": "n", "inputs": ["n"]}, "the nodes form a cycle: 'n' → 'n'"),
    ],
)
def test_what_is_wrong_in_an_instance_is_named(
    bare_cli: RunCli, tmp_path: Path, entry: dict[str, object], says: str
) -> None:
    devices = [{"id": "a", "kind": "k", "memory": "1MiB"}]
    assert says in refused(bare_cli, tmp_path, {"devices": devices, "nodes": [{"seconds": {"k": 1}, **entry}]})


def test_a_long_cycle_is_shown_in_part(bare_cli: RunCli, tmp_path: Path) -> None:
    nodes = [{"id": index, "seconds": {"k": 1}, "inputs": [(index - 1) % 500]} for index in range(500)]
    message = refused(bare_cli, tmp_path, {"devices": [{"id": "a", "kind": "k", "memory": 1}], "nodes": nodes})
    assert "(489 more)" in message


@pytest.mark.parametrize(("out", "says"), [(".", "it is a folder"), ("nowhere/placed.json", "there is no folder")])
def test_where_nothing_can_be_written_nothing_is_searched(
    bare_cli: RunCli, tmp_path: Path, out: str, says: str
) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(cost_graph()))
    finished = bare_cli("solve", path, "--out", out)
    assert finished.status == exit_codes.INVALID_INPUT
    assert says in finished.stderr


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "soon"])
def test_a_time_limit_has_to_be_one(bare_cli: RunCli, tmp_path: Path, limit: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(cost_graph()))
    finished = bare_cli("solve", path, "--time-limit", limit)
    assert finished.status == exit_codes.USAGE
    assert "--time-limit" in finished.stderr
