"""Random numbers that depend on what is computed, not on when or where: the same microbatch drops the same units."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

# Torch's generators are the process's; two lanes that draw would take from each other.
_GENERATORS = threading.Lock()
_drawn_for: ContextVar[str] = ContextVar("drawn_for")


@contextmanager
def drawing(deployment_id: str, microbatch: int | str) -> Iterator[None]:
    """What nodes draw inside is decided by these two and the node alone; one caller at a time."""
    with _GENERATORS:
        token = _drawn_for.set(f"{deployment_id}/{microbatch}")
        try:
            yield
        finally:
            _drawn_for.reset(token)


def start_node(value_id: int) -> None:
    """Torch's default generators start anew for the node that gives this value, whichever stage it is in."""
    drawn_for = _drawn_for.get(None)
    if drawn_for is not None:
        digest = hashlib.sha256(f"{drawn_for}/{value_id}".encode()).digest()
        seed = int.from_bytes(digest[:8], "little") >> 1
        # As torch.manual_seed, which takes a hundred times as long: it looks for devices of every kind.
        for generator in (torch.default_generator, *torch.cuda.default_generators):
            generator.manual_seed(seed)
