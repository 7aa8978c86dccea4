"""`solve` on files: the published format and our own, in a process that must not load torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import exit_codes
from planner.cli.commands import solve
from planner.cli.commands.solve import Solution
from planner.cli.instance_file import parse_instance
from planner.cost_graphs.cost_graph import read_cost_graph
from planner.cost_graphs.placement.costs import device_bytes, device_loads
from tests.planner.cli.conftest import RunCli

INSTANCES = Path(__file__).parents[3] / "benchmarks" / "instances"
MANY_IDEALS = INSTANCES / "throughput" / "OperatorGraphs_bert_l-3_training.json"
BERT = INSTANCES / "throughput" / "LayerGraphs_bert24_inference.json"


def test_contiguous_optimum_is_proven_and_written(bare_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "placed.json"
    solution = bare_cli("solve", BERT, "--contiguous", "--out", out, "-o", "json").document()
    assert solution["value"] == pytest.approx(17.789906, abs=1e-6)
    assert solution["proven"]
    assert not solution["cut"]
    assert solution["lower_bound"] <= solution["value"]
    graph = read_cost_graph(json.loads(BERT.read_text()))
    placed = json.loads(out.read_text())
    names = ["cpu0", *(f"fpga{index}" for index in range(6))]
    devices = [names.index(placed[str(node_id)]) for node_id in graph.node_ids]
    assert device_loads(graph.problem, devices).max() == pytest.approx(solution["value"])
    assert (device_bytes(graph.problem, devices)[1:] <= graph.problem.class_bytes[1]).all()


def test_a_search_that_the_time_limit_ends_says_so(bare_cli: RunCli) -> None:
    solution = bare_cli("solve", MANY_IDEALS, "--objective", "latency", "--time-limit", "0.1", "-o", "json").document()
    assert solution["cut"]
    assert not solution["proven"]


@pytest.mark.services
def test_neither_torch_nor_a_server_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from planner.cli.__main__ import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    arguments = ["solve", str(BERT), "--time-limit", "0.5", "--out", str(tmp_path / "placed.json")]
    finished = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("value ")
    assert "lower bound" in finished.stdout


OWN = {
    "devices": [{"id": "a", "kind": "big", "memory": "1MiB"}, {"id": "b", "kind": "small", "memory": "1MiB"}],
    "default_link": {"bytes_per_second": 1e9, "latency_seconds": 0},
    "nodes": [
        {"id": "end", "seconds": {"big": 0.5, "small": 1}, "inputs": ["split/right", "start"], "weights": {"w": 8}},
        {"id": "start", "seconds": {"big": 1, "small": 2}, "output_bytes": 1000, "weights": {"w": 8}},
        {"id": "split", "seconds": {"big": 1, "small": 1}, "inputs": ["start"], "outputs": {"left": 5, "right": 6}},
    ],
}


def test_our_own_format(bare_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(OWN))
    out = tmp_path / "placed.json"
    solution = bare_cli("solve", path, "--out", out, "-o", "json").document()
    assert solution["value"] == pytest.approx(1.5, rel=1e-3)
    assert set(json.loads(out.read_text())) == {"start", "split", "end"}


def test_a_node_stays_where_it_can_run(bare_cli: RunCli, tmp_path: Path) -> None:
    nodes = [{"id": "only", "seconds": {"small": 1}}, {"id": "any", "seconds": {"*": 2}, "inputs": ["only"]}]
    path, out = tmp_path / "instance.json", tmp_path / "placed.json"
    path.write_text(json.dumps(OWN | {"nodes": nodes}))
    bare_cli("solve", path, "--contiguous", "--out", out, "-o", "json").document()
    assert json.loads(out.read_text())["only"] == "b"
    path.write_text(json.dumps(OWN | {"nodes": [{"id": "nowhere", "seconds": {"other": 1}}]}))
    refused = bare_cli("solve", path)
    assert refused.status == exit_codes.INVALID_INPUT
    assert "nowhere" in refused.stderr


def test_nodes_are_put_in_order_and_shared_weights_counted_once() -> None:
    instance = parse_instance(OWN)
    assert instance.node_ids == ("start", "split", "end")
    assert [state.name for state in instance.graph.states] == ["w"]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([], "no nodes"),
        ("x", "no list of nodes"),
        ([{"seconds": {"k": 1}}], "needs a mapping with an id"),
        ([{"id": "n", "seconds": {"k": 1}}] * 2, "a node 'n' exists already"),
        ([{"id": "n", "seconds": {"k": -1}}], r"seconds\.k is -1, needs a finite number"),
        ([{"id": "n", "seconds": {"k": float("nan")}}], r"seconds\.k is nan"),
        ([{"id": "n"}], "seconds is None, needs a mapping"),
        ([{"id": "n", "seconds": {"k": 1}, "inputs": ["m"]}], "reads 'm', and no node has that id"),
        ([{"id": "n", "seconds": {"k": 1}, "output_bytes": -5}], "output_bytes is -5"),
        ([{"id": "n", "seconds": {"k": 1}, "bytes": 5}], "unknown key 'bytes'"),
        (
            [{"id": "n", "seconds": {"k": 1}, "inputs": ["m"]}, {"id": "m", "seconds": {"k": 1}, "inputs": ["n"]}],
            "the nodes form a cycle: 'm' → 'n' → 'm', each read by the next",
        ),
        (
            [
                {"id": "n", "seconds": {"k": 1}, "outputs": {"a": 1}},
                {"id": "m", "seconds": {"k": 1}, "inputs": ["n/b"]},
            ],
            "reads 'n/b'; 'n' has outputs n/a",
        ),
    ],
)
def test_what_is_wrong_in_an_instance_is_named(bare_cli: RunCli, tmp_path: Path, nodes: object, says: str) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({"devices": OWN["devices"], "nodes": nodes}))
    finished = bare_cli("solve", path)
    assert finished.status == exit_codes.INVALID_INPUT
    assert "Traceback" not in finished.stderr
    assert re.search(says, " ".join(finished.stderr.split())), finished.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"maxFPGAs": 1}'])
def test_files_that_are_no_instance_are_refused(bare_cli: RunCli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "instance.json"
    path.write_text(text)
    finished = bare_cli("solve", path)
    assert finished.status == exit_codes.INVALID_INPUT
    assert "instance.json" in finished.stderr


def solution(**changes: object) -> Solution:
    usual = Solution(
        instance="i",
        objective="throughput",
        contiguous=False,
        value=1.5,
        lower_bound=1.5,
        gap=0.0,
        proven=True,
        cut=False,
        seconds=2.04,
        assignment="",
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "value 1.500000, lower bound 1.500000 (proven optimal), 2.0 s"),
        ({"gap": 1e-6}, "value 1.500000, lower bound 1.500000 (proven optimal to 1e-06), 2.0 s"),
        (
            {"gap": 0.25, "proven": False, "lower_bound": 1.125},
            "value 1.500000, lower bound 1.125000 (gap 25.00%), 2.0 s",
        ),
        (
            {"gap": 0.25, "proven": False, "cut": True, "lower_bound": 1.125},
            "value 1.500000, lower bound 1.125000 (gap 25.00%), 2.0 s, cut by the time limit",
        ),
        (
            {"value": 2e9, "lower_bound": 1e-4, "assignment": "out.json"},
            "value 2.000000e+09, lower bound 1.000000e-04 (proven optimal), 2.0 s; written to out.json",
        ),
        ({"value": 0.0, "lower_bound": 0.0}, "value 0.000000, lower bound 0.000000 (proven optimal), 2.0 s"),
    ],
)
def test_a_solution_in_a_line(changes: dict[str, object], line: str) -> None:
    assert solve._summary(solution(**changes)) == line


def test_latency_and_contiguity_of_our_own_format(bare_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(OWN))
    solution = bare_cli("solve", path, "--objective", "latency", "--contiguous", "-o", "json").document()
    assert (solution["objective"], solution["contiguous"], solution["assignment"]) == ("latency", True, "")
    # All on the faster device.
    assert solution["value"] == pytest.approx(2.5)
    assert solution["lower_bound"] <= solution["value"]
