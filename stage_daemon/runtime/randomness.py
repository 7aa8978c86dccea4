"""Random numbers that depend on what is computed, not on when or where: the same microbatch drops the same units."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Torch's generators are the process's; two lanes that draw would take from each other.
_GENERATORS = threading.Lock()


@contextmanager
def drawing(deployment_id: str, stage: int, microbatch: int | str) -> Iterator[None]:
    """Torch's default generators start from a state that these three alone decide; one caller at a time."""
    digest = hashlib.sha256(f"{deployment_id}/{stage}/{microbatch}".encode()).digest()
    with _GENERATORS:
        torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        yield
