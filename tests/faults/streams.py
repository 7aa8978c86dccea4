"""A stream through a real deployment in the middle of which its processes are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import torch

from planner.client import PlannerClient, RecoveryPolicy
from planner.client.local_cluster import LocalCluster
from planner.client.records import DeploymentState
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.faults.history import History
from tests.waiting import WAIT_SECONDS, wait_for

BATCHES_PER_PIPELINE = 50


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
) -> list[float]:
    """Streams batches with a kill before some of them: of a "worker", a "daemon" or a "device", of any stage.

    A daemon that is killed is started again, that of a device is not. Asserts that each batch was answered once, in
    order and bit for bit. Returns the longest seconds between two answers, one for each kill.
    """
    history, waits = History(), [0.0]
    deployment = client.deploy(plan_id, recovery=recovery)
    with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():
        answered_at = time.monotonic()
        for answer in pipeline.run(_batches(history, cluster, client, deployment.id, kills, num_batches, moments)):
            waits.append(time.monotonic() - answered_at)
            history.answered.append((len(history.answered), answer))
            answered_at = time.monotonic()
        assert history.faults(lambda x, y: torch.equal(module(x), y)) == []
    assert len(history.answered) == num_batches
    assert client.get_deployment(deployment.id).generation == 1 + len(kills)
    client.stop(deployment.id)
    return sorted(waits)[-len(kills) :]


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


def _batches(
    history: History,
    cluster: LocalCluster,
    client: PlannerClient,
    deployment_id: str,
    kills: Sequence[str],
    num_batches: int,
    moments: random.Random,
) -> Iterator[torch.Tensor]:
    """All in the same memory, with a kill before some of them."""
    memory = torch.zeros(5, 8)
    kill_at = dict(zip(sorted(moments.sample(range(1, num_batches), len(kills))), kills, strict=True))
    generation = 1
    for number in range(num_batches):
        if number in kill_at:
            wait_until_ready(client, deployment_id, generation)
            generation += 1
            _kill(kill_at[number], cluster, client, deployment_id, moments)
        memory.normal_()
        batch = memory[: 1 + number % 5]
        history.asked.append(batch.clone())
        yield batch


def wait_until_ready(client: PlannerClient, deployment_id: str, generation: int) -> None:
    """So that each kill is one of its own."""

    def is_ready() -> bool:
        found = client.get_deployment(deployment_id)
        return found.generation >= generation and found.state is DeploymentState.READY

    wait_for(is_ready, f"generation {generation}")


def _kill(what: str, cluster: LocalCluster, client: PlannerClient, deployment_id: str, moments: random.Random) -> None:
    place = moments.choice(client.get_deployment(deployment_id).stages)
    if what == "worker":
        os.kill(_worker_process_id(place.daemon_address, deployment_id), signal.SIGKILL)
        return
    cluster.daemons[place.device_id].kill()
    if what == "daemon":
        cluster.start_daemon(list(cluster.daemons).index(place.device_id))


def _worker_process_id(address: str, deployment_id: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
        ends_at = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < ends_at:
            status = stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=WAIT_SECONDS)
            for stage in status.stages:
                if stage.deployment_id == deployment_id:
                    return stage.worker_process_id
    raise AssertionError(f"the worker of {deployment_id} at {address} says nothing")
