"""What every suite for GPUs measures with: daemons on the device, a clock that waits for it, and rows of one table."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster

NUM_DAEMONS = 4
MEMORY_BYTES = 4 << 30
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`figure` in words; `ratio` to the peer that it names, where there is one."""

    suite: str
    name: str
    figure: str
    peer: str = ""
    ratio: float | None = None
    is_right: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """`quick` is for trying a suite out: its smallest problem, once."""

    device: torch.device
    quick: bool
    cluster: LocalCluster
    client: PlannerClient

    @property
    def num_windows(self) -> int:
        return 1 if self.quick else 5

    def seconds_of_each(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """The median of each, the device done at its end. They take turns: what else the machine does meets all."""
        for call in calls:
            call()
        seconds: list[list[float]] = [[] for _ in calls]
        for _ in range(self.num_windows):
            for call, own in zip(calls, seconds, strict=True):
                self.finish()
                before = time.perf_counter()
                call()
                self.finish()
                own.append(time.perf_counter() - before)
        return [statistics.median(own) for own in seconds]

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def put(self, value: Any) -> Any:
        """The tensors in it on the device."""
        return pytree.tree_map_only(torch.Tensor, lambda one: one.to(self.device), value)


@contextmanager
def bench_on(device: str, *, quick: bool) -> Iterator[Bench]:
    """Daemons each on a GPU of its own where there are as many; else they share them."""
    num_gpus = torch.cuda.device_count() if device == "cuda" else 0
    with (
        tempfile.TemporaryDirectory(prefix="planner-") as folder,
        LocalCluster(
            data_dir=Path(folder),
            memory_bytes=(MEMORY_BYTES,) * NUM_DAEMONS,
            device=device,
            gpus=[index % num_gpus for index in range(NUM_DAEMONS)] if num_gpus else None,
            environment=ONE_THREAD,
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        yield Bench(device=torch.device(device), quick=quick, cluster=cluster, client=client)


# Their weights together do not fit a GPU's cache.
_NUM_DISTINCT = 4


class Layers(nn.Module):
    """As many of a linear layer and tanh, some of them the same; `sample` [rows, columns] is an input."""

    sample: torch.Tensor

    def __init__(self, rows: int, columns: int, num_layers: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        distinct = [nn.Sequential(nn.Linear(columns, columns, dtype=dtype), nn.Tanh()) for _ in range(_NUM_DISTINCT)]
        self.layers = nn.Sequential(*(distinct[number % _NUM_DISTINCT] for number in range(num_layers)))
        self.sample = torch.randn(rows, columns, dtype=dtype)
        self.eval()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(hidden)
        return output


def apart(output: Any, expected: Any) -> float:
    """The largest difference as a share of the largest element."""
    if not isinstance(expected, torch.Tensor):
        return float(output != expected)
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    ours, theirs = output.cpu().to(torch.float64), expected.cpu().to(torch.float64)
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def how_far(distance: float) -> str:
    return "bitwise the module's" if distance == 0 else f"off by {distance:.1e}"


def shown(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"
