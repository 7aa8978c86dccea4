"""Copies between a device and slots of shared memory, beside torch's own between it and memory of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from access.ring import Ring, create_ring
from benchmarks.gpu.bench import Bench, Row, shown
from stage_daemon.transport.streams import Copies, Event, copies_of


class NoStreams:
    """A CPU's: it is done with a call when it returns, and all memory is its own."""

    compute = current = None

    def new_stream(self) -> None:
        pass

    def use(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self, stream: Any, *, timed: bool = False) -> NoStreams:
        return self

    def seconds_between(self, before: Event, after: Event) -> float:
        return 0.0

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any, event: Event) -> None:
        pass

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        pass

    def pin(self, address: int, num_bytes: int) -> bool:
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return True

    def unpin(self, address: int) -> None:
        pass


def copies(bench: Bench) -> Iterator[Row]:
    copier = copies_of(bench.device) or Copies(NoStreams(), bench.device)
    for size in (1 << 12,) if bench.quick else (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 24):
        ring, descriptor = create_ring(1, size)
        os.close(descriptor)
        is_pinned = copier.pin(ring, 0, size)
        content = torch.randint(256, (size,), dtype=torch.uint8)
        on_host = torch.frombuffer(ring.memory_of(0), dtype=torch.uint8, count=size) if is_pinned else content
        on_host.copy_(content)
        on_device = content.to(bench.device)

        def to_slot(source: torch.Tensor = on_device, ring: Ring = ring) -> None:
            copier.to_slot([source], ring, 0)

        def to_host(source: torch.Tensor = on_device, ring: Ring = ring) -> None:
            """As it goes to a slot that is not pinned."""
            [copied] = copier.to_host([source])
            ring.write(0, 0, copied.data_ptr(), copied.nbytes)

        where = "slot" if is_pinned else "host"
        for name, ours, torchs in (
            (f"from the {where}", partial(copier.to_device, [on_host]), partial(content.to, bench.device, copy=True)),
            (f"to the {where}", to_slot if is_pinned else to_host, partial(on_device.to, "cpu", copy=True)),
        ):
            seconds, peer = bench.seconds_of_each([ours, torchs])
            yield Row(
                suite="copies",
                name=f"{size >> 10} KiB {name}",
                figure=shown(seconds),
                peer="torch",
                ratio=seconds / peer,
            )
        arrived = torch.frombuffer(ring.memory_of(0), dtype=torch.uint8, count=size)
        is_right = torch.equal(arrived, content) and torch.equal(copier.to_device([on_host])[0].cpu(), content)
        if not is_right:
            yield Row(suite="copies", name=f"{size >> 10} KiB", figure="other bytes", is_right=False)
