"""Several planners on one PostgreSQL, killed or restarted in turn: no request fails, each plan is made, and once."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
PAUSE_SECONDS = 0.05
MOST_SECONDS_BETWEEN_KILLS = 2.0 if IS_SOAK else 0.3
# Every other one is a restart in order, after SIGTERM.
NUM_KILLS = scaled(2, 40)


@pytest.mark.timeout(600)
def test_each_plan_that_was_asked_for_is_stored_once(tmp_path: Path) -> None:
    with (
        bare_database() as url,
        running_planners(NUM_PLANNERS, tmp_path, url, claim_seconds="1") as planners,
        PlannerClient([planner.address for planner in planners], timeout_seconds=WAIT_SECONDS) as client,
    ):
        graph_id = create_graph(client)
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, client, graph_id, is_over)
            try:
                kill_in_turn(planners)
            finally:
                is_over.set()
            operations = asking.result(WAIT_SECONDS)
        assert len(operations) == NUM_PLANS
        plan_ids = [operation.wait(WAIT_SECONDS).id for operation in operations]
        assert len(set(plan_ids)) == NUM_PLANS
        assert {summary.id for summary in client.list_plans()} == set(plan_ids)
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT state, count(*) FROM plan_operations GROUP BY state").fetchall()
        assert rows == [("succeeded", NUM_PLANS)]
    what = f"{NUM_KILLS} kills and restarts of {NUM_PLANNERS} planners"
    tell(f"{NUM_PLANS} plans asked for under {what}: no request failed, each was made and stored once")


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


def ask(client: PlannerClient, graph_id: str, is_over: threading.Event) -> list[PlanOperation]:
    """For so many plans, then for lists, until it is told to end. Whatever is refused is raised."""
    inventory = inventory_from_proto(inventory_message())
    operations = [
        client.start_plan(graph_id, BalancedMode(num_stages=2), inventory=inventory) for _ in range(NUM_PLANS)
    ]
    while not is_over.is_set():
        assert next(iter(client.list_graphs())).id == graph_id
        time.sleep(PAUSE_SECONDS)
    return operations


def kill_in_turn(planners: list[PlannerProcess]) -> None:
    moments = random_moments()
    for index in range(NUM_KILLS):
        time.sleep(moments.uniform(0.0, MOST_SECONDS_BETWEEN_KILLS))
        planner = planners[index % len(planners)]
        end = planner.stop if index % 2 else planner.kill
        end()
        planner.start()
