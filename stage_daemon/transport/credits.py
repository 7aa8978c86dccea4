"""What goes back along an edge: how many parcels were received since, or just that the receiver lives."""

from __future__ import annotations

import torch

from stage_daemon.transport.edge import Edge
from stage_daemon.transport.header import MAGIC, BadHeader

_NUM_WORDS = 5


def new_buffer() -> torch.Tensor:
    return torch.zeros(_NUM_WORDS, dtype=torch.int64)


def encode(edge: Edge, count: int) -> torch.Tensor:
    return torch.tensor([MAGIC, edge.deployment_hash, edge.generation, edge.id, count], dtype=torch.int64)


def decode(edge: Edge, buffer: torch.Tensor) -> int:
    """Raises BadHeader if it is not from this edge's receiver."""
    *origin, count = buffer.tolist()
    needed = [MAGIC, edge.deployment_hash, edge.generation, edge.id]
    if origin != needed or count < 0:
        raise BadHeader(f"receipt {[*origin, count]}, needs {needed} and a count of at least 0")
    return int(count)
