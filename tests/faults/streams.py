"""A stream through a real deployment in the middle of which its processes are killed."""

from __future__ import annotations

import itertools
import math
import os
import queue
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from planner.client import PlannerClient, RecoveryPolicy
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState
from planner.errors import Unavailable
from tests.contract.postgresql import postgresql
from tests.faults.history import History
from tests.waiting import WAIT_SECONDS, wait_for
from tests.worker_processes import worker_at

BATCHES_PER_PIPELINE = 50
# Batches in flight under kills.
WINDOW = 8
# What ends the generation that runs, and what does not. A "device" is a daemon that is not started again.
BREAKS = frozenset({"worker", "hung worker", "daemon", "device"})
BREAKS_NOTHING = frozenset({"stopped daemon", "planner", "stopped planner", "database", "stopped database"})
STILL_SECONDS = 2.0
# Of batches. A run goes on with the session of the one before.
_RUN_LENGTHS = (1, 30, 2, 100)


def stream_under_kills(
    cluster: LocalCluster,
    client: PlannerClient,
    plan_id: str,
    module: torch.nn.Module,
    *,
    kills: Sequence[str],
    num_batches: int,
    moments: random.Random,
    recovery: RecoveryPolicy = RecoveryPolicy.RESTART,
    database: str = "",
) -> list[tuple[str, float]]:
    """Streams batches, before some of which one of BREAKS or BREAKS_NOTHING is killed or stands still, of any stage.

    `database` is the cluster's on PostgreSQL. Asserts that each batch was answered once, in order and bit for bit.
    Returns each kill with the seconds from it to the answer to the batch that was asked for next. Left out are those
    with less than a window of batches to the next kill or from the one before: the stream comes to the second without
    having taken the answer to the first, and both then wait for both.
    """
    history, due = History(), _KillsDue(sorted(moments.sample(range(1, num_batches), len(kills))))
    deployment = client.deploy(plan_id, recovery=recovery)

    def stream() -> list[float]:
        answered_at = []
        try:
            with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():
                for run in _runs(_batches(history, num_batches, due)):
                    for answer in pipeline.run(run, WINDOW):
                        history.answered.append((len(history.answered), answer))
                        answered_at.append(time.monotonic())
        finally:
            due.end()
        return answered_at

    generation, killed_at = 1, []
    # The services that are started end with the thread that started them, so the stream has the other one.
    with ThreadPoolExecutor(1) as pool:
        streamed = pool.submit(stream)
        for kill, _ in zip(kills, due, strict=False):
            wait_until_ready(client, deployment.id, generation)
            generation += kill in BREAKS
            killed_at.append(time.monotonic())
            with _killed(kill, cluster, client, deployment.id, moments, database):
                due.done()
        answered_at = streamed.result()
    assert len(history.answered) == num_batches
    with torch.no_grad():
        assert history.faults(lambda x, y: torch.equal(module(x), y)) == []
    # A database that was killed last may still be away.
    wait_until_ready(client, deployment.id, generation)
    assert client.get_deployment(deployment.id).generation == generation
    client.stop(deployment.id)
    gaps = [following - batch for batch, following in itertools.pairwise((-math.inf, *due.batches, math.inf))]
    is_alone = [min(around) >= WINDOW for around in itertools.pairwise(gaps)]
    waits = (answered_at[batch] - at for batch, at in zip(due.batches, killed_at, strict=True))
    return list(itertools.compress(zip(kills, waits, strict=True), is_alone))


@contextmanager
def streaming(client: PlannerClient, deployment_id: str, module: torch.nn.Module, width: int) -> Iterator[None]:
    """Batches go through the deployment, of a pipeline of their own every few, for as long as the block runs.

    Asserts then that each was answered once, in order and bit for bit.
    """
    history, is_over = History(), threading.Event()

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(BATCHES_PER_PIPELINE):
            history.asked.append(torch.randn(1 + len(history.asked) % 5, width))
            yield history.asked[-1]
            time.sleep(0.01)

    def stream() -> None:
        while not is_over.is_set():
            with client.pipeline(deployment_id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():
                for answer in pipeline.run(batches()):
                    history.answered.append((len(history.answered), answer))

    # The services that the block starts end with the thread that started them, so this is the other one.
    with ThreadPoolExecutor(1) as pool:
        streamed = pool.submit(stream)
        try:
            yield
        finally:
            is_over.set()
        streamed.result()
    with torch.no_grad():
        assert history.faults(lambda x, y: torch.equal(module(x), y)) == []
    assert history.asked


class _KillsDue:
    """Iterates once the stream has come to the next batch before which something is killed; the stream waits."""

    def __init__(self, batches: Sequence[int]) -> None:
        self.batches = tuple(batches)
        self._due: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._done = threading.Semaphore(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._due.get, None)

    def wait_for(self, batch: int) -> None:
        self._due.put(batch)
        assert self._done.acquire(timeout=2 * WAIT_SECONDS), "nothing was killed"

    def done(self) -> None:
        self._done.release()

    def end(self) -> None:
        self._due.put(None)


def _runs(batches: Iterator[torch.Tensor]) -> Iterator[Iterator[torch.Tensor]]:
    """Each run's first batch is asked for between two runs, and so is killed what is killed before it."""
    for first, length in zip(batches, itertools.cycle(_RUN_LENGTHS), strict=False):
        yield itertools.chain((first,), itertools.islice(batches, length - 1))


def _batches(history: History, num_batches: int, due: _KillsDue) -> Iterator[torch.Tensor]:
    """All in the same memory, with a kill before some of them."""
    memory = torch.zeros(5, 8)
    for number in range(num_batches):
        if number in due.batches:
            due.wait_for(number)
        memory.normal_()
        batch = memory[: 1 + number % 5]
        history.asked.append(batch.clone())
        yield batch


def wait_until_ready(client: PlannerClient, deployment_id: str, generation: int) -> None:
    """So that each kill is one of its own."""

    def is_ready() -> bool:
        try:
            deployment = client.get_deployment(deployment_id)
        except Unavailable:
            return False
        return deployment.generation >= generation and deployment.state is DeploymentState.READY

    wait_for(is_ready, f"generation {generation}")


def wait_until_planned_ahead(folder: Path, deployment: Deployment) -> None:
    """For the loss of each of its devices."""
    count = (
        "SELECT count(*) FROM spare_plans JOIN plan_operations ON id = operation_id "
        "WHERE deployment_id = ? AND generation = ? AND ended_at IS NOT NULL"
    )
    num_devices = len({place.device_id for place in deployment.stages})
    ends_at = time.monotonic() + WAIT_SECONDS
    with sqlite3.connect(folder / "planner.db") as database:
        while database.execute(count, (deployment.id, deployment.generation)).fetchone() != (num_devices,):
            assert time.monotonic() < ends_at
            time.sleep(0.05)


@contextmanager
def _killed(
    what: str,
    cluster: LocalCluster,
    client: PlannerClient,
    deployment_id: str,
    moments: random.Random,
    database: str,
) -> Iterator[None]:
    """It is killed, or stands still, before the block; it is started again, or goes on, after the block."""
    assert cluster.planner is not None
    place = moments.choice(client.get_deployment(deployment_id).stages)
    if what in ("worker", "hung worker"):
        number = signal.SIGKILL if what == "worker" else signal.SIGSTOP
        os.kill(worker_at(place.daemon_address, deployment_id), number)
        yield
    elif what in ("daemon", "device"):
        cluster.daemons[place.device_id].kill()
        yield
        if what == "daemon":
            cluster.start_daemon(list(cluster.daemons).index(place.device_id))
    elif what == "planner":
        cluster.planner.kill()
        yield
        cluster.start_planner()
    elif what == "database":
        postgresql().crash()
        yield
    else:
        with _standing_still(what, cluster, place.device_id, database):
            yield
            time.sleep(STILL_SECONDS)


def _standing_still(what: str, cluster: LocalCluster, device_id: str, database: str) -> AbstractContextManager[None]:
    assert cluster.planner is not None
    if what == "stopped database":
        return postgresql().stopped(database)
    service = cluster.planner if what == "stopped planner" else cluster.daemons[device_id]
    return stopped(service.process_id)


@contextmanager
def stopped(process_id: int) -> Iterator[None]:
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)
