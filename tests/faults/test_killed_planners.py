"""Several planners on one PostgreSQL, killed or restarted in turn: no request fails, each plan is made, and once."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
NUM_PLANNERS = 3 if IS_SOAK else 2
PAUSE_SECONDS = 0.05
# One kill every two seconds in a soak.
MOST_SECONDS_BETWEEN_KILLS = 4.0 if IS_SOAK else 0.3
# Every other one is a restart in order, after SIGTERM.
NUM_KILLS = scaled(2, 40)
PLANS_PER_KILL = 5
NUM_PLANS = NUM_KILLS * PLANS_PER_KILL


@pytest.mark.timeout(600)
def test_each_plan_that_was_asked_for_is_stored_once(tmp_path: Path) -> None:
    with (
        bare_database() as url,
        running_planners(NUM_PLANNERS, tmp_path, url, claim_seconds="1") as planners,
        # On a busy machine all of them may be starting at once, for longer than a client waits by itself.
        PlannerClient(
            [planner.address for planner in planners], timeout_seconds=WAIT_SECONDS, restart_seconds=WAIT_SECONDS
        ) as client,
    ):
        graph_id = create_graph(client)
        is_over, may_ask = threading.Event(), threading.Semaphore(0)
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, client, graph_id, may_ask, is_over)
            try:
                kill_in_turn(planners, may_ask)
            finally:
                is_over.set()
            operations = asking.result(WAIT_SECONDS)
        killing_seconds = time.monotonic() - begun
        assert len(operations) == NUM_PLANS
        plan_ids = [operation.wait(WAIT_SECONDS).id for operation in operations]
        assert len(set(plan_ids)) == NUM_PLANS
        assert {summary.id for summary in client.list_plans()} == set(plan_ids)
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT state, count(*) FROM plan_operations GROUP BY state").fetchall()
        assert rows == [("succeeded", NUM_PLANS)]
    what = f"{NUM_KILLS} kills and restarts of {NUM_PLANNERS} planners in {killing_seconds:.0f} s"
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


def ask(
    client: PlannerClient, graph_id: str, may_ask: threading.Semaphore, is_over: threading.Event
) -> list[PlanOperation]:
    """For as many plans as the semaphore allows, and meanwhile for lists. Whatever is refused is raised."""
    inventory = inventory_from_proto(inventory_message())
    operations: list[PlanOperation] = []
    while True:
        if may_ask.acquire(timeout=PAUSE_SECONDS):
            operations.append(client.start_plan(graph_id, BalancedMode(num_stages=2), inventory=inventory))
        elif is_over.is_set():
            return operations
        else:
            assert next(iter(client.list_graphs())).id == graph_id


def kill_in_turn(planners: list[PlannerProcess], may_ask: threading.Semaphore) -> None:
    """Starts each again beside the next kills, and has plans asked for around each."""
    moments = random_moments()
    with ThreadPoolExecutor(len(planners)) as pool:
        starts: dict[int, Future[None]] = {}
        for index in range(NUM_KILLS):
            may_ask.release(PLANS_PER_KILL)
            time.sleep(moments.uniform(0.0, MOST_SECONDS_BETWEEN_KILLS))
            number = index % len(planners)
            if number in starts:
                starts.pop(number).result(WAIT_SECONDS)
            planner = planners[number]
            end = planner.stop if index % 2 else planner.kill
            end()
            planner.launch()
            starts[number] = pool.submit(planner.wait_until_ready)
        for start in starts.values():
            start.result(WAIT_SECONDS)
