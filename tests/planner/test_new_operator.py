"""An operator is added by one row of operators.txt, and is then exported, planned for and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os

import torch

import planner
from planner.client.export import export
from planner.cost.flops import node_flops
from planner.cost.shapes import shapes_of
from planner.graph.check import check_graph
from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.operators import find_operator


class Model(torch.nn.Module):
    def forward(self, bias, left, right):
        return torch.ops.aten._addmm_activation(bias, left, right)


assert planner.__file__.startswith(os.getcwd()), planner.__file__
graph = export(Model(), (torch.ones(5), torch.ones(3, 4), torch.ones(4, 5))).graph
check_graph(graph)
(node,) = graph.nodes
operator = pb.Operator(kind=pb.OPERATOR_KIND_ATEN, name=node.operator.name, overload=node.operator.overload)
assert find_operator(operator).function is torch.ops.aten._addmm_activation.default
print(node.operator.name, node_flops(node, shapes_of(graph, {})))
"""


@pytest.mark.services
@pytest.mark.slow
def test_an_operator_of_one_row_is_exported_planned_for_and_run(tmp_path: Path) -> None:
    for package in ("planner", "protos", "stage_daemon"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "protos" / "v1" / "operators.txt").open("a") as rows:
        rows.write("aten aten::_addmm_activation default flops=added_product\n")
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == f"aten::_addmm_activation {2 * 3 * 4 * 5}"
