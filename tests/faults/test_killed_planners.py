"""Several planners on one PostgreSQL, killed in turn while plans are asked for: each is made, and once."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from planner.client import PlannerClient
from planner.client.plans import PlanOperation
from planner.client.uploads import blob_of_bytes, upload_blob
from planner.plan.options import BalancedMode
from planner.wire.inventory import inventory_from_proto
from protos.v1 import planner_pb2
from tests.contract.calls import inventory_message
from tests.contract.graphs import chain_bytes, sha256
from tests.contract.postgresql import postgresql
from tests.faults.planners import WAIT_SECONDS, PlannerProcess, running_planners
from tests.faults.scale import IS_SOAK, random_moments, scaled, tell

pytestmark = [pytest.mark.services, pytest.mark.slow]
NUM_PLANS = scaled(12, 200)
NUM_PLANNERS = 3 if IS_SOAK else 2
MOST_SECONDS_BETWEEN_KILLS = 2.0 if IS_SOAK else 0.3
NUM_KILLS = scaled(1, 20)


@pytest.mark.timeout(600)
def test_each_plan_that_was_asked_for_is_stored_once(tmp_path: Path) -> None:
    with (
        bare_database() as url,
        running_planners(NUM_PLANNERS, tmp_path, url, claim_seconds="1") as planners,
        PlannerClient([planner.address for planner in planners], timeout_seconds=WAIT_SECONDS) as client,
    ):
        graph_id = create_graph(client)
        operations: list[PlanOperation] = []
        asking = threading.Thread(target=ask_for_plans, args=(client, graph_id, operations))
        asking.start()
        kill_in_turn(planners)
        asking.join(WAIT_SECONDS)
        assert len(operations) == NUM_PLANS
        plan_ids = [operation.wait(WAIT_SECONDS).id for operation in operations]
        assert len(set(plan_ids)) == NUM_PLANS
        assert {summary.id for summary in client.list_plans()} == set(plan_ids)
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT state, count(*) FROM plan_operations GROUP BY state").fetchall()
        assert rows == [("succeeded", NUM_PLANS)]
    tell(f"{NUM_PLANS} plans asked for under {NUM_KILLS} kills of {NUM_PLANNERS} planners: each made and stored once")


@contextmanager
def bare_database() -> Iterator[str]:
    """Without tables."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgresql().execute(f'CREATE DATABASE "{name}"')
    yield postgresql().url(name)
    postgresql().execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def create_graph(client: PlannerClient) -> str:
    content = chain_bytes()
    upload_blob(client._connection, blob_of_bytes("graph", content))
    request = planner_pb2.CreateGraphRequest(sha256=sha256(content))
    client._connection.call(client._connection.stub.CreateGraph, request)
    return sha256(content).hex()


def ask_for_plans(client: PlannerClient, graph_id: str, operations: list[PlanOperation]) -> None:
    inventory = inventory_from_proto(inventory_message())
    for _ in range(NUM_PLANS):
        operations.append(client.start_plan(graph_id, BalancedMode(num_stages=2), inventory=inventory))


def kill_in_turn(planners: list[PlannerProcess]) -> None:
    moments = random_moments()
    for index in range(NUM_KILLS):
        time.sleep(moments.uniform(0.0, MOST_SECONDS_BETWEEN_KILLS))
        planner = planners[index % len(planners)]
        planner.kill()
        planner.start()
