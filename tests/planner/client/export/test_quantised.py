"""Weights in fewer bits are states of their own dtypes, and planned by the bytes that they take."""

from __future__ import annotations

import pytest

from planner.client.export import export
from planner.graph.ir import Dtype
from planner.plan.options import PlanOptions, SingleMode
from planner.planning import make_plan
from tests.builders.corners import CORNERS
from tests.builders.plans import inventory_of


@pytest.mark.slow
def test_quantised_weights_are_planned_by_their_bytes() -> None:
    case = CORNERS["quantised_weights"](False)
    graph = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes).graph
    values = graph.values_by_id()
    dtypes = {state.name: values[state.value_id].dtype for state in graph.states}
    assert (dtypes["eight"], dtypes["four"], dtypes["floating"]) == (Dtype.INT8, Dtype.UINT8, Dtype.FLOAT8_E4M3FN)
    plan = make_plan(graph, "id", inventory_of(1), PlanOptions(mode=SingleMode()))
    assert plan.stages[0].memory.state_bytes == sum(buffer.nbytes for buffer in case.module.buffers())
