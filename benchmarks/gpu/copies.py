"""Copies between host and device through pinned memory on a stream of their own, beside torch's pageable ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

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

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like)


def copies(bench: Bench) -> Iterator[Row]:
    copier = copies_of(bench.device) or Copies(NoStreams(), bench.device)
    for size in (1 << 12,) if bench.quick else (1 << 12, 1 << 18, 1 << 20, 1 << 24):
        on_host = torch.randint(256, (size,), dtype=torch.uint8)
        on_device = on_host.to(bench.device)
        for name, ours, torchs in (
            ("to the device", partial(copier.to_device, [on_host]), partial(on_host.to, bench.device, copy=True)),
            ("to the host", partial(copier.to_host, [on_device]), partial(on_device.to, "cpu", copy=True)),
        ):
            [copied] = ours()
            seconds, peer = bench.seconds_of_each([ours, torchs])
            yield Row(
                suite="copies",
                name=f"{size >> 10} KiB {name}",
                figure=shown(seconds),
                peer="pageable",
                ratio=seconds / peer,
                is_right=torch.equal(copied.cpu(), on_host),
            )
