"""Training profiles as files: what is read, what is refused and how, and plans as the format's judge reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost_graphs.hybrid.limit_search import best_hybrid
from planner.cost_graphs.hybrid.problem import stage_costs
from planner.cost_graphs.training_profile import plan_document, read_training_profile
from planner.errors import PlannerError
from tests.planner.cost_graphs.hybrid.documents import alternative, profile

PROFILES = Path(__file__).parents[3] / "benchmarks" / "instances" / "training"
BERT = PROFILES / "bert32a100.json"
GIB = 1 << 30


def test_published_profile_at_the_published_value() -> None:
    """Tarnawski et al. 2021: their program finds 0.16585575 for 8 devices of 8 GiB."""
    document = json.loads(BERT.read_text())
    read = read_training_profile(document, num_devices=8, memory_bytes=8.0 * GIB, bandwidth=25.0 * GIB)
    plan = best_hybrid(read.problem)
    assert plan.seconds_per_sample == pytest.approx(0.16585575, rel=1e-7)
    assert plan.lower_bound_seconds == pytest.approx(0.16585575, rel=1e-7)
    assert max(cost.held_bytes for cost in stage_costs(read.problem, plan.stages)) <= 8 * GIB


def test_a_plan_names_nodes_and_alternatives_as_the_file_does() -> None:
    document = profile()
    document["nodes"][1]["TMPCs"]["1"] = [alternative("slow", timePerSample=9.0), alternative("lean", memoryUsageA=0.5)]
    read = read_training_profile(document)
    stages = plan_document(read, best_hybrid(read.problem))["stages"]
    assert [set(stage) for stage in stages] == [{"nodes", "data_parallel", "tensor_parallel", "alternatives"}] * len(
        stages
    )
    assert sorted(node for stage in stages for node in stage["nodes"]) == [3, 7]
    assert {key: value for stage in stages for key, value in stage["alternatives"].items()} == {
        "3": "lean",
        "7": "plain",
    }
    assert sum(stage["data_parallel"] * stage["tensor_parallel"] for stage in stages) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": []}, "has no nodes"),
        ({"nodes": 3}, "nodes is 3, needs a list"),
        ({"nodes": [{"id": 1}], "edges": []}, "node 1: TMPCs is None"),
        ({"nodes": [{"id": 1, "TMPCs": {}}], "edges": []}, "node 1 has no alternatives"),
        ({"nodes": [{"id": 1, "TMPCs": {"two": []}}], "edges": []}, "needs a number of devices"),
        ({"nodes": [{"id": 1, "TMPCs": {"1": [3]}}], "edges": []}, "needs a list of up to 16 mappings"),
        (
            {"nodes": [{"id": 1, "TMPCs": {"1": [alternative(timePerSample=-1.0)]}}], "edges": []},
            "timePerSample is -1.0",
        ),
        (
            {"nodes": [{"id": 1, "TMPCs": {"1": [alternative(memoryUsageA="big")]}}], "edges": []},
            "memoryUsageA is 'big'",
        ),
        ({"edges": [{"sourceId": 7, "destId": 9}]}, "edges[0].destId is 9, and no node has that id"),
        ({"edges": [{"sourceId": 7, "destId": 3, "communicationCost": float("nan")}]}, "communicationCost is nan"),
        ({"edges": [{"sourceId": 7, "destId": 7, "communicationCost": 1.0}]}, "the edges form a cycle"),
        ({"mbsInBatch": 0}, "mbsInBatch is 0"),
        ({"maxDevices": True}, "maxDevices is True"),
        ({"bandwidth": 0}, "bandwidth is 0, needs more"),
        ({"nodes": [{"id": 7, "TMPCs": {"1": [alternative()]}}] * 2}, "two nodes have id 7"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PlannerError) as caught:
        read_training_profile(profile(**change))
    assert says in caught.value.message
