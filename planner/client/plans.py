"""Asking for plans, waiting for them, and looking them up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from planner.client.arguments import checks_arguments
from planner.client.connection import Connection
from planner.client.interruption import Interrupted, pause, uninterrupted
from planner.client.messages import (
    failure_from_proto,
    operation_state_from_proto,
    plan_summary_from_proto,
    stored_plan_from_proto,
)
from planner.client.records import OperationState, PlanSummary, StoredPlan
from planner.client.request_ids import new_request_id
from planner.client.status import error_from_failure
from planner.cost.inventory import Inventory
from planner.errors import Cancelled, OptionsError, PlannerError, Unavailable
from planner.plan.options import Mode, PlanOptions
from planner.wire.inventory import inventory_to_proto
from planner.wire.plan import options_to_proto
from protos.v1 import planner_pb2

# How long one call waits; the server allows 60.
WAIT_CALL_SECONDS = 20.0
PAUSE_SECONDS = 0.5


class PlanOperation:
    """A plan in the making. `id` is the plan's too."""

    def __init__(self, connection: Connection, message: planner_pb2.PlanOperation) -> None:
        self._connection = connection
        self._message = message

    @property
    def id(self) -> str:
        """As get_plan takes it."""
        return self._message.id

    @property
    def state(self) -> OperationState:
        """As of the last answer."""
        return operation_state_from_proto(self._message.state)

    def refresh(self) -> OperationState:
        """Asks the server how it stands. Raises NotFound."""
        request = planner_pb2.GetPlanOperationRequest(operation_id=self.id)
        self._message = self._connection.call(self._connection.stub.GetPlanOperation, request)
        return self.state

    def cancel(self) -> OperationState:
        """Ends its computation; one that has ended stays as it is. Raises NotFound."""
        request = planner_pb2.CancelPlanOperationRequest(operation_id=self.id)
        self._message = self._connection.call(self._connection.stub.CancelPlanOperation, request)
        return self.state

    def wait(self, timeout_seconds: float | None = None) -> StoredPlan:
        """The plan, once it is made. None waits for ever.

        Raises what the planning raised (Infeasible, OptionsError ...), Cancelled, or Unavailable when time is up.
        """
        ends_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.state.has_ended:
            remaining = WAIT_CALL_SECONDS if ends_at is None else ends_at - time.monotonic()
            if remaining <= 0:
                raise Unavailable(f"plan {self.id} is not ready after {timeout_seconds:g} s; wait for it again")
            asked_at = time.monotonic()
            self._wait_once(min(remaining, WAIT_CALL_SECONDS))
            # A server that answers too early is not asked again at once.
            waited_seconds = time.monotonic() - asked_at
            if not self.state.has_ended and waited_seconds < min(remaining, PAUSE_SECONDS):
                pause(min(remaining, PAUSE_SECONDS) - waited_seconds)
        return self._result()

    def _wait_once(self, seconds: float) -> None:
        request = planner_pb2.WaitPlanOperationRequest(operation_id=self.id, timeout_seconds=seconds)
        # A restart in the middle leaves time to wait once more.
        timeout_seconds = self._connection.timeout_seconds + self._connection.restart_seconds + 2 * seconds
        self._message = self._connection.call(
            self._connection.stub.WaitPlanOperation, request, timeout_seconds=timeout_seconds
        )

    def _result(self) -> StoredPlan:
        if self.state is OperationState.CANCELLED:
            raise Cancelled(f"plan {self.id} was cancelled before it was made")
        if self.state is OperationState.FAILED:
            raise error_from_failure(failure_from_proto(self._message.failure), otherwise=PlannerError)
        request = planner_pb2.GetPlanRequest(plan_id=self.id)
        return stored_plan_from_proto(self._connection.call(self._connection.stub.GetPlan, request))


@checks_arguments
class PlanCalls:
    _connection: Connection

    def create_plan(
        self,
        graph_id: str,
        options: PlanOptions | Mode,
        *,
        inventory: Inventory | None = None,
        inventory_id: str | None = None,
        device_ids: Sequence[str] = (),
        request_id: str | None = None,
        timeout_seconds: float | None = None,
    ) -> StoredPlan:
        """A plan, waited for; given up on (Ctrl-C), it is cancelled on the server too.

        Over `inventory`, or the stored one, or the registered devices (those named, or all).
        """
        start = partial(
            self.start_plan,
            graph_id,
            options,
            inventory=inventory,
            inventory_id=inventory_id,
            device_ids=device_ids,
            request_id=request_id or new_request_id(),
        )
        operation: PlanOperation | None = None
        try:
            operation = start()
            return operation.wait(timeout_seconds)
        except (KeyboardInterrupt, Interrupted):
            # A server that does not answer now cannot be told.
            with uninterrupted(), suppress(PlannerError):
                # Where its id had not come yet: one request id is one operation, however often it is asked for.
                (operation or start()).cancel()
            raise

    def start_plan(
        self,
        graph_id: str,
        options: PlanOptions | Mode,
        *,
        inventory: Inventory | None = None,
        inventory_id: str | None = None,
        device_ids: Sequence[str] = (),
        request_id: str | None = None,
    ) -> PlanOperation:
        """As create_plan, without waiting."""
        if sum((inventory is not None, inventory_id is not None, bool(device_ids))) > 1:
            raise OptionsError("give one of inventory, inventory_id and device_ids, not several")
        request = planner_pb2.CreatePlanRequest(
            request_id=request_id or new_request_id(),
            graph_id=graph_id,
            options=options_to_proto(options if isinstance(options, PlanOptions) else PlanOptions(mode=options)),
        )
        if inventory is not None:
            request.inventory.CopyFrom(inventory_to_proto(inventory))
        elif inventory_id is not None:
            request.inventory_id = inventory_id
        else:
            request.registered.SetInParent()
            request.registered.device_ids.extend(device_ids)
        return PlanOperation(self._connection, self._connection.call(self._connection.stub.CreatePlan, request))

    def get_plan_operation(self, operation_id: str) -> PlanOperation:
        """To wait for, or to cancel, what another process asked for. Raises NotFound."""
        request = planner_pb2.GetPlanOperationRequest(operation_id=operation_id)
        return PlanOperation(self._connection, self._connection.call(self._connection.stub.GetPlanOperation, request))

    def get_plan(self, plan_id: str) -> StoredPlan:
        """Raises NotFound, which says how the operation stands where the plan is not made yet."""
        request = planner_pb2.GetPlanRequest(plan_id=plan_id)
        return stored_plan_from_proto(self._connection.call(self._connection.stub.GetPlan, request))

    def list_plans(
        self,
        *,
        graph_id: str = "",
        mode: str = "",
        device_id: str = "",
        owner: str = "",
        created_since: datetime | None = None,
        page_size: int = 0,
    ) -> Iterator[PlanSummary]:
        """Newest first, page by page. Empty filters let everything through; `owner` is the holder of a token."""
        request = planner_pb2.ListPlansRequest(graph_id=graph_id, mode=mode, device_id=device_id, page_size=page_size)
        stub = self._connection.stub
        for page in self._connection.pages(stub.ListPlans, request, owner=owner, created_since=created_since):
            yield from map(plan_summary_from_proto, page.plans)

    def delete_plan(self, plan_id: str) -> str:
        """The id of what is gone. Raises Conflict naming the deployments of it that have not ended."""
        request = planner_pb2.DeletePlanRequest(plan_id=plan_id)
        return str(self._connection.call(self._connection.stub.DeletePlan, request).id)
