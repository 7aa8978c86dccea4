"""What the forkserver imports once, so that a forked worker need not: no threads, no CUDA, no channels."""

from __future__ import annotations

import google.protobuf.message
import grpc
import torch.distributed

from protos.v1 import graph_pb2, plan_pb2, planner_pb2, planner_pb2_grpc, stage_daemon_pb2

__all__ = [
    "google",
    "graph_pb2",
    "grpc",
    "plan_pb2",
    "planner_pb2",
    "planner_pb2_grpc",
    "stage_daemon_pb2",
    "torch",
]
