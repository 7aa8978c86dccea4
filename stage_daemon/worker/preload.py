"""What the forkserver imports once, so that a forked worker need not: no threads, no CUDA, no channels."""

from __future__ import annotations

import torch.distributed

from stage_daemon.worker import worker

__all__ = ["torch", "worker"]
