"""What the forkserver does once, so that a forked worker need not: no threads, no CUDA, no channels."""

from __future__ import annotations

import gc
import threading
from typing import Any

from stage_daemon.allocator import keep_freed_memory

# Activations that a stage frees, and takes again for the next microbatch.
KEPT_BYTES = 1 << 28


def preload() -> None:
    """Without garbage collections, which would be a quarter of the time that all this takes."""
    keep_freed_memory(KEPT_BYTES)
    gc.disable()
    try:
        # A process's first call on a fake tensor imports these two.
        import torch.distributed.tensor
        import torch.fx.experimental.symbolic_shapes
        import torch.hub
        from torch._subclasses.fake_tensor import FakeTensorMode

        from stage_daemon.loader.operators import operator_table
        from stage_daemon.loader.vocabulary import load_facts
        from stage_daemon.worker import entry, worker  # noqa: F401
        from stage_daemon.worker.deferred_dynamo import defer_dynamo

        load_facts()
        operator_table()
        defer_dynamo()
        # Made for what it imports. Entering it would ask the driver for GPUs, which no fork could use from then on.
        FakeTensorMode()
        # torch.fx makes a progress bar even where it shows none, and a process's first makes a semaphore of the
        # machine, which would stay in /dev/shm until the daemon ends. Without tqdm torch has a bar of its own, which
        # has no lock.
        progress_bar: Any = vars(torch.hub)["tqdm"]
        if hasattr(progress_bar, "set_lock"):
            progress_bar.set_lock(threading.RLock())
        # What was imported stays: workers need not look through it, nor copy its pages as they do. Little of it is
        # garbage: less than a megabyte, which a collection takes a fifth of a second to find.
        gc.freeze()
    finally:
        gc.enable()


preload()
