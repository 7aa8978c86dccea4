"""What the forkserver does once, so that a forked worker need not: no threads, no CUDA, no channels."""

from __future__ import annotations

import torch

# Checking a stage on the meta device would import it, at over a second for each worker.
import torch._dynamo

from stage_daemon.loader.operators import operator_table
from stage_daemon.worker import worker

operator_table()

__all__ = ["torch", "worker"]
