"""A plan in the making, awaited."""

from __future__ import annotations

from planner.client.asynchronous.methods import Asynchronous, awaited
from planner.client.plans import PlanOperation
from planner.client.records import OperationState


class AsyncPlanOperation(Asynchronous[PlanOperation]):
    """A plan in the making. `id` is the plan's too."""

    refresh = awaited(PlanOperation.refresh)
    cancel = awaited(PlanOperation.cancel)
    wait = awaited(PlanOperation.wait)

    @property
    def id(self) -> str:
        return self._synchronous.id

    @property
    def state(self) -> OperationState:
        """As of the last answer."""
        return self._synchronous.state
