"""How far the predicted bottlenecks of profiled plans are from real ones: twelve small models on two CPU daemons.

    python -m benchmarks.predicted_stage_times [model ...]

A plan of two stages is made from a profile and run with a full pipeline. Real is what the busiest worker spends for a
microbatch: CPU time of its process, which other work on the machine disturbs less, and beside it the clock between two
results. Each model has several rounds of a profile, a plan and a run, and the median of its errors counts: the machine
may be quicker during one than during the other.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from torch import nn

from benchmarks.one_thread_daemons import one_thread_daemons
from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.client.local_cluster import LocalCluster
from planner.plan.options import BalancedMode
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.builders.bert import bert
from tests.builders.dlrm import dlrm
from tests.builders.gpt2 import gpt2
from tests.builders.images import image_batch
from tests.builders.llama import llama
from tests.builders.mixture import mixture
from tests.builders.resnet50 import resnet50
from tests.builders.t5 import t5
from tests.builders.tokens import token_batch
from tests.builders.unet import unet
from tests.builders.vit import vit

MEMORY_BYTES = 1 << 30
NUM_ROUNDS = 3
NUM_WINDOWS = 5
WINDOW_SECONDS = 0.3
LEAST_BATCHES, MOST_BATCHES = 20, 1000
IN_FLIGHT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    module: nn.Module
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Seconds per microbatch."""

    predicted: float
    cpu: float
    clock: float


def _tokens(module: nn.Module, batch: int, sequence: int, **more: Any) -> Model:
    return Model(module=module.eval(), batch=Batch(kwargs={**token_batch(batch, sequence), **more}))


def _args(module: nn.Module, *args: Any) -> Model:
    return Model(module=module.eval(), batch=Batch(args=args))


def _layers(count: int, width: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)))


def _t5() -> Model:
    case = t5(layers=3, width=256)
    return Model(module=case.module.eval(), batch=Batch(kwargs=case.kwargs))


def _dlrm() -> Model:
    case = dlrm(rows=(5000, 2000, 10000), width=64)
    return Model(module=case.module.eval(), batch=Batch(args=case.args))


MODELS: Mapping[str, Callable[[], Model]] = {
    "bert, 4 x 64": lambda: _tokens(bert(layers=6, width=256).module, 4, 64),
    "bert, 1 x 16": lambda: _tokens(bert(layers=6, width=256).module, 1, 16),
    "gpt2": lambda: _tokens(gpt2(layers=6, width=256).module, 2, 32, use_cache=False),
    "llama": lambda: _tokens(llama(layers=4, width=256).module, 2, 32, use_cache=False),
    "t5": _t5,
    "vit": lambda: Model(
        module=vit(layers=6, width=192).module.eval(), batch=Batch(kwargs={"pixel_values": image_batch(4, 16)})
    ),
    "dlrm": _dlrm,
    "mixture": lambda: _args(mixture(width=128, blocks=4, experts=4).module, torch.randn(4, 32, 128)),
    "resnet50": lambda: _args(resnet50(width=16).module, image_batch(2, 64)),
    "unet": lambda: _args(unet(width=16, depth=3).module, image_batch(4, 32)),
    "layers, 64 x 1024": lambda: _args(_layers(8, 1024), torch.randn(64, 1024)),
    "layers, 1 x 256": lambda: _args(_layers(16, 256), torch.randn(1, 256)),
}


def main(*names: str) -> None:
    torch.manual_seed(0)
    print("| model | predicted | CPU | off by | clock | off by |")
    print("|---|---|---|---|---|---|")
    errors: dict[str, list[float]] = {"cpu": [], "clock": []}
    with one_thread_daemons(2, MEMORY_BYTES) as (cluster, client):
        for name in names or MODELS:
            model = MODELS[name]()
            graph = client.submit(export(model.module, model.batch.args, dict(model.batch.kwargs)))
            rounds = [measured(graph.id, model.batch, cluster, client) for _ in range(NUM_ROUNDS)]
            cells = [f"{_median(rounds, 'predicted') * 1e3:.3f} ms"]
            for real, of_all in errors.items():
                off = statistics.median(one.predicted / getattr(one, real) - 1 for one in rounds)
                of_all.append(abs(off))
                cells += [f"{_median(rounds, real) * 1e3:.3f} ms", f"{off:+.1%}"]
            print(" | ".join([f"| {name}", *cells]), "|", flush=True)
    for real, of_all in errors.items():
        p95 = float(np.percentile(of_all, 95))
        print(f"off by, {real}: median {statistics.median(of_all):.1%}, p95 {p95:.1%}")


def _median(rounds: list[Bottleneck], name: str) -> float:
    return statistics.median(getattr(one, name) for one in rounds)


def measured(graph_id: str, batch: Batch, cluster: LocalCluster, client: PlannerClient) -> Bottleneck:
    client.profile_graph(graph_id, device_ids=[cluster.device_id(0)])
    plan = client.create_plan(graph_id, BalancedMode(num_stages=2))
    deployment = client.deploy(plan.id)
    workers = _workers({stage.daemon_address for stage in deployment.stages})
    num = int(min(MOST_BATCHES, max(LEAST_BATCHES, WINDOW_SECONDS / plan.bottleneck_seconds)))
    cpu: list[list[float]] = []
    clock: list[float] = []
    with client.pipeline(deployment.id) as pipeline:
        for _ in range(1 + NUM_WINDOWS):
            before, began = [cpu_seconds(worker) for worker in workers], time.perf_counter()
            for _ in pipeline.run([batch] * num, window=IN_FLIGHT):
                pass
            clock.append((time.perf_counter() - began) / num)
            cpu.append([(cpu_seconds(worker) - old) / num for worker, old in zip(workers, before, strict=True)])
    client.stop(deployment.id)
    return Bottleneck(
        predicted=plan.bottleneck_seconds,
        cpu=max(statistics.median(of_worker) for of_worker in zip(*cpu[1:], strict=True)),
        clock=statistics.median(clock[1:]),
    )


def cpu_seconds(process_id: int) -> float:
    """That all threads of the process have spent."""
    nanoseconds = 0
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds * 1e-9


def _workers(addresses: set[str]) -> list[int]:
    """Process ids by stage."""
    workers: dict[int, int] = {}
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            status = stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=10)
        workers |= {stage.stage: stage.worker_process_id for stage in status.stages}
    return [process_id for _, process_id in sorted(workers.items())]


if __name__ == "__main__":
    main(*sys.argv[1:])
