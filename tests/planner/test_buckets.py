"""Plans over several shape buckets: the mean of the seconds, the largest of the bytes."""

import math
from dataclasses import replace

import pytest

from planner.cost.inventory import Device, Inventory
from planner.errors import Infeasible, OptionsError, PlanInvariantError
from planner.plan.options import Mode, PlanOptions, ShapeBucket, SizeBasedMode
from planner.plan.plan import Plan
from planner.plan.verify import verify_plan
from planner.planning import make_plan
from tests.builders.random_graphs import random_graph

GRAPH = random_graph(3, 30)


def inventory(memory_bytes: int = 1 << 30) -> Inventory:
    return Inventory(devices=(Device(id="d", kind="cpu", host="h", memory_bytes=memory_bytes),))


def bucket(weight: float = 1.0, **symbol_values: int) -> ShapeBucket:
    return ShapeBucket(symbol_values=tuple(sorted(symbol_values.items())), weight=weight)


def plan_for(*buckets: ShapeBucket, memory_bytes: int = 1 << 30, mode: Mode = SizeBasedMode(), **symbols: int) -> Plan:  # noqa: B008  frozen
    options = PlanOptions(mode=mode, buckets=buckets, symbol_values=tuple(sorted(symbols.items())))
    return make_plan(GRAPH, "id", inventory(memory_bytes), options)


def compute_seconds(plan: Plan) -> float:
    return sum(stage.compute_seconds for stage in plan.stages)


def test_one_bucket_is_a_setting() -> None:
    plan, expected = plan_for(bucket(batch=9)), plan_for(batch=9)
    assert (plan.stages, plan.symbol_values) == (expected.stages, expected.symbol_values)


def test_seconds_are_the_weighted_mean_and_bytes_the_largest() -> None:
    small, large = plan_for(batch=1), plan_for(batch=64)
    mixed = plan_for(bucket(3.0, batch=1), bucket(1.0, batch=64))
    assert math.isclose(compute_seconds(mixed), 0.75 * compute_seconds(small) + 0.25 * compute_seconds(large))
    assert mixed.stages[0].memory == large.stages[0].memory
    assert dict(mixed.symbol_values) == {"batch": 64}


def test_order_of_buckets_does_not_matter() -> None:
    one = plan_for(bucket(2.0, batch=64), bucket(1.0, batch=2))
    other = plan_for(bucket(1.0, batch=2), bucket(2.0, batch=64))
    assert one.symbol_values == other.symbol_values
    assert math.isclose(compute_seconds(one), compute_seconds(other))
    assert one.stages[0].memory == other.stages[0].memory


def test_memory_has_to_fit_in_every_bucket() -> None:
    needed = plan_for(batch=64).stages[0].memory.peak_bytes
    assert plan_for(bucket(1e6, batch=1), bucket(batch=64), memory_bytes=needed)
    with pytest.raises(Infeasible):
        plan_for(bucket(1e6, batch=1), bucket(batch=64), memory_bytes=needed - 1)


def test_bucket_leaves_other_dimensions_as_the_options_say() -> None:
    assert dict(plan_for(bucket(), batch=17).symbol_values) == {"batch": 17}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (bucket(bach=2), r"buckets\[1\].symbol_values: the graph has no dynamic dimension 'bach'; it has 'batch'"),
        (bucket(batch=65), r"buckets\[1\].symbol_values: batch is 65, and the graph was exported for 1 to 64"),
    ],
)
def test_wrong_bucket_is_named(wrong: ShapeBucket, says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        plan_for(bucket(batch=2), wrong)


def test_plan_that_forgets_its_largest_bucket_does_not_verify() -> None:
    plan = plan_for(bucket(batch=1), bucket(batch=64))
    small = plan_for(batch=1)
    wrong = replace(plan, stages=small.stages)
    with pytest.raises(PlanInvariantError):
        verify_plan(wrong, GRAPH)
