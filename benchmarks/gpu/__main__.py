"""All that has to hold on GPUs, measured beside its peer in one command, without a network.

    python -m benchmarks.gpu [--device cuda | cpu] [--quick] [suite ...]

On one GPU both daemons share it, and what crosses goes through the host; on two it goes over NCCL. `--device cpu` runs
the same suites without a GPU, to show that they run. Ends with 1 where an output is not the module's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.pipeline import Batch, Pipeline
from planner.plan.options import BalancedMode
from stage_daemon.transport.streams import Copies, Event, copies_of
from tests.builders.registry import FAMILIES

MEMORY_BYTES = 2 << 30
IN_FLIGHT = 6


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
    device: torch.device
    cluster: LocalCluster
    client: PlannerClient
    num_windows: int
    families: tuple[str, ...]
    sizes_bytes: tuple[int, ...]

    def seconds(self, call: Callable[[], object]) -> float:
        """Of a call, the median; the device is done at the end of each."""
        call()
        seconds = []
        for _ in range(self.num_windows):
            self.finish()
            before = time.perf_counter()
            call()
            self.finish()
            seconds.append(time.perf_counter() - before)
        return statistics.median(seconds)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def outputs(bench: Bench) -> Iterator[Row]:
    """Every family over two stages: the same as the unsplit module gives on the same device."""
    for family in bench.families:
        case = FAMILIES[family]()
        module = case.module.eval()
        batch = Batch(args=case.args, kwargs=dict(case.kwargs))
        expected = pytree.tree_leaves(_run(module.to(bench.device), batch, bench.device))
        module.to("cpu")
        output = _through(bench, module, batch)
        apart = max(map(_apart, output, expected))
        yield Row(
            suite="outputs",
            name=family,
            figure="bitwise the module's" if apart == 0 else f"off by {apart:.1e}",
            is_right=len(output) == len(expected) and apart < 1e-4,
        )


def copies(bench: Bench) -> Iterator[Row]:
    """Through pinned memory on a stream of their own, beside torch's pageable copies."""
    copier = copies_of(bench.device) or Copies(NoStreams(), bench.device)
    for size in bench.sizes_bytes:
        on_host = torch.zeros(size, dtype=torch.uint8)
        on_device = on_host.to(bench.device)
        for name, ours, torchs in (
            ("to the device", partial(copier.to_device, [on_host]), partial(on_host.to, bench.device, copy=True)),
            ("to the host", partial(copier.to_host, [on_device]), partial(on_device.to, "cpu", copy=True)),
        ):
            seconds = bench.seconds(ours)
            yield Row(
                suite="copies",
                name=f"{size >> 10} KiB {name}",
                figure=_shown(seconds),
                peer="pageable",
                ratio=seconds / bench.seconds(torchs),
            )


class NoStreams:
    """A CPU's: it is done with a call when it returns, and all memory is its own."""

    compute = None

    def new_stream(self) -> None:
        pass

    def use(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self, stream: Any) -> NoStreams:
        return self

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any, event: Event) -> None:
        pass

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        pass

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like)


def pipelines(bench: Bench) -> Iterator[Row]:
    """Two stages between a client and itself, beside both of them in this process; and what the plan said."""
    for size in bench.sizes_bytes:
        module, sample = _layers(size)
        graph = bench.client.submit(export(module, (sample,)))
        bench.client.profile_graph(graph.id, device_ids=[bench.cluster.device_id(0)])
        plan = bench.client.create_plan(graph.id, BalancedMode(num_stages=2))
        deployment = bench.client.deploy(plan.id)
        batches = [sample] * 4 * IN_FLIGHT
        with bench.client.pipeline(deployment.id) as pipeline:
            seconds = bench.seconds(partial(_run_all, pipeline, batches)) / len(batches)
        bench.client.stop(deployment.id)
        with torch.no_grad():
            peer = bench.seconds(partial(module.to(bench.device), sample.to(bench.device)))
        yield Row(
            suite="pipelines",
            name=f"{size >> 10} KiB across",
            figure=f"{_shown(seconds)} a microbatch",
            peer="unsplit",
            ratio=seconds / peer,
        )
        yield Row(
            suite="pipelines",
            name=f"{size >> 10} KiB across",
            figure=f"{_shown(plan.bottleneck_seconds)} predicted",
            peer="real",
            ratio=plan.bottleneck_seconds / seconds,
        )


SUITES: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "outputs": outputs,
    "copies": copies,
    "pipelines": pipelines,
}


def _layers(size_bytes: int) -> tuple[nn.Module, torch.Tensor]:
    """Eight layers whose activations are so large."""
    width = 512
    rows = max(1, size_bytes // (4 * width))
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(8)))
    return module.eval(), torch.randn(rows, width)


def _run_all(pipeline: Pipeline, batches: list[torch.Tensor]) -> None:
    for _ in pipeline.run(batches, window=IN_FLIGHT):
        pass


def _run(module: nn.Module, batch: Batch, device: torch.device) -> Any:
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda one: one.to(device), (batch.args, dict(batch.kwargs)))
    with torch.no_grad():
        return module(*args, **kwargs)


def _through(bench: Bench, module: nn.Module, batch: Batch) -> list[Any]:
    graph = bench.client.submit(export(module, batch.args, dict(batch.kwargs)))
    deployment = bench.client.deploy(bench.client.create_plan(graph.id, BalancedMode(num_stages=2)).id)
    try:
        with bench.client.pipeline(deployment.id) as pipeline:
            [output] = pipeline.run([batch])
    finally:
        bench.client.stop(deployment.id)
    return pytree.tree_leaves(output)


def _apart(output: Any, expected: Any) -> float:
    """The largest difference as a share of the largest element."""
    if not isinstance(expected, torch.Tensor):
        return float(output != expected)
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    ours, theirs = output.cpu().to(torch.float64), expected.cpu().to(torch.float64)
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


@contextmanager
def bench_on(device: str, *, quick: bool) -> Iterator[Bench]:
    """Two daemons: on two GPUs where there are two, else on one device."""
    alone = device == "cuda" and torch.cuda.device_count() < 2
    with (
        tempfile.TemporaryDirectory(prefix="planner-") as folder,
        LocalCluster(
            data_dir=Path(folder),
            memory_bytes=(MEMORY_BYTES, MEMORY_BYTES),
            device=device,
            # The last of two options counts.
            daemon_arguments=("--gpu", "0") if alone else (),
            environment={"OMP_NUM_THREADS": "1"} if device == "cpu" else None,
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        yield Bench(
            device=torch.device(device),
            cluster=cluster,
            client=client,
            num_windows=1 if quick else 9,
            families=("mixture",) if quick else tuple(sorted(FAMILIES)),
            sizes_bytes=(1 << 12,) if quick else (1 << 12, 1 << 18, 1 << 20, 1 << 24),
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="one small problem of each suite, once")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="suite", help=", ".join(SUITES))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu runs the same suites without one")
    if options.device == "cpu":
        torch.set_num_threads(1)
    print("| suite | what | figure | peer | times the peer's |")
    print("|---|---|---|---|---|")
    are_right = True
    with bench_on(options.device, quick=options.quick) as bench:
        for name in options.suites or SUITES:
            for row in SUITES[name](bench):
                ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
                figure = row.figure if row.is_right else f"WRONG: {row.figure}"
                print(" | ".join([f"| {row.suite}", row.name, figure, row.peer, ratio]), "|", flush=True)
                are_right = are_right and row.is_right
    return 0 if are_right else 1


if __name__ == "__main__":
    sys.exit(main())
