"""What a planner's metrics say of the plans that it computes."""

from __future__ import annotations

from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from planner.api.metrics import PlanMetrics


def test_workers_are_busy_while_they_compute() -> None:
    metrics = PlanMetrics(CollectorRegistry(), 3)

    def told() -> dict[str, float]:
        return {sample.name: sample.value for family in metrics.workers() for sample in family.samples}

    with metrics.observe(datetime.now(UTC)), metrics.observe(datetime.now(UTC)):
        assert told() == {"planner_plan_workers": 3, "planner_plan_workers_busy": 2}
    assert told() == {"planner_plan_workers": 3, "planner_plan_workers_busy": 0}
