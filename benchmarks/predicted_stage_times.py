"""How far predicted stage times are from real ones, before and after a profile: a small encoder on two CPU daemons.

    python -m benchmarks.predicted_stage_times [batch] [sequence]

Real are the seconds that each stage says it was busy per microbatch, in a pipeline that runs one batch at a time.
"""

from __future__ import annotations

import sys

import grpc
import torch
from transformers import BertConfig, BertModel

from benchmarks.one_thread_daemons import one_thread_daemons
from planner.client import PlannerClient, export
from planner.client.pipeline import Batch
from planner.client.records import StoredPlan
from planner.plan.options import CutMode
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

BATCHES = 30
MEMORY_BYTES = 1 << 30


def main(batch: int = 4, sequence: int = 128) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=5000
    )
    module = BertModel(config).eval()
    inputs = {
        "input_ids": torch.randint(0, config.vocab_size, (batch, sequence)),
        "attention_mask": torch.ones(batch, sequence, dtype=torch.int64),
    }
    with one_thread_daemons(2, MEMORY_BYTES) as (cluster, client):
        graph = client.submit(export(module, kwargs=inputs))
        mode = CutMode(module_paths=("encoder.layer.1",))
        before = client.create_plan(graph.id, mode)
        (profile,) = client.profile_graph(graph.id, device_ids=[cluster.device_id(0)])
        after = client.create_plan(graph.id, mode)
        real = _busy_seconds(client, after, Batch(kwargs=inputs))
    print(f"batch {batch}, sequence {sequence}; {profile.calibration}")
    print("| stage | real | roofline | off by | profiled | off by |")
    for stage, (rough, good, found) in enumerate(zip(_compute(before), _compute(after), real, strict=True)):
        cells = [f"{found * 1e3:.2f} ms", f"{rough * 1e3:.2f} ms", f"{rough / found - 1:+.0%}"]
        print(" | ".join([f"| {stage}", *cells, f"{good * 1e3:.2f} ms", f"{good / found - 1:+.0%} |"]))


def _compute(plan: StoredPlan) -> list[float]:
    return [stage.compute_seconds for stage in plan.stages]


def _busy_seconds(client: PlannerClient, plan: StoredPlan, batch: Batch) -> list[float]:
    deployment = client.deploy(plan.id)
    addresses = {stage.daemon_address for stage in deployment.stages}
    with client.pipeline(deployment.id) as pipeline:
        list(pipeline.run([batch] * 3, window=1))
        first = _metrics(addresses)
        list(pipeline.run([batch] * BATCHES, window=1))
        last = _metrics(addresses)
    client.stop(deployment.id)
    return [(last[stage] - first[stage]) / BATCHES for stage in sorted(last)]


def _metrics(addresses: set[str]) -> dict[int, float]:
    busy: dict[int, float] = {}
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            status = stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=10)
        busy |= {stage.stage: stage.busy_seconds for stage in status.stages}
    return busy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
