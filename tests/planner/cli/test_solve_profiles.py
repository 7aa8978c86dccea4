"""`solve` on training profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import exit_codes
from tests.planner.cli.conftest import RunCli
from tests.planner.cost_graphs.hybrid.documents import profile

BERT = Path(__file__).parents[3] / "benchmarks" / "instances" / "training" / "bert32a100.json"


def test_solve_takes_a_profile_with_other_devices(bare_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ("--devices", "32", "--memory", "80GiB", "--bandwidth", "25GiB", "--out", out, "-o", "json")
    solution = bare_cli("solve", BERT, *arguments).document()
    assert solution["value"] == pytest.approx(0.0308440482, rel=1e-7)
    assert solution["proven"]
    assert solution["contiguous"]
    [stage] = json.loads(out.read_text())["stages"]
    assert (stage["data_parallel"], stage["tensor_parallel"], len(stage["nodes"])) == (32, 1, 37)


@pytest.mark.parametrize(
    ("document", "arguments", "says"),
    [
        (profile(maxMemoryPerDevice=1.0), (), "no pipeline fits 2 devices of 1 bytes"),
        (profile(), ("--objective", "latency"), "--objective latency: a plan for training is for throughput"),
        ({"maxFPGAs": 1}, ("--devices", "3"), "the devices are those of the file"),
    ],
)
def test_solve_says_what_does_not_go(
    bare_cli: RunCli, tmp_path: Path, document: dict[str, Any], arguments: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    finished = bare_cli("solve", path, *arguments)
    assert finished.status in (exit_codes.INVALID_INPUT, exit_codes.INFEASIBLE)
    assert says in finished.stderr
    assert len(finished.stderr.splitlines()) == 1
