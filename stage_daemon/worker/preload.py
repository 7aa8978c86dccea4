"""What the forkserver does once, so that a forked worker need not: no threads, no CUDA, no channels."""

from __future__ import annotations

import threading
from typing import Any

import torch

# Checking a stage on the meta device would import it, at over a second for each worker.
import torch._dynamo
import torch.hub

from stage_daemon.loader.operators import operator_table
from stage_daemon.worker import worker

operator_table()
# torch.fx makes a progress bar even where it shows none, and a process's first makes a semaphore of the machine, which
# would stay in /dev/shm until the daemon ends. Without tqdm torch has a bar of its own, which has no lock.
_progress_bar: Any = vars(torch.hub)["tqdm"]
if hasattr(_progress_bar, "set_lock"):
    _progress_bar.set_lock(threading.RLock())

__all__ = ["torch", "worker"]
