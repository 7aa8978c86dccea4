"""A pipeline of stages that only wait: with and without a large value that the first gives the last, and with one of
them beside all the others instead of in front of them.

From the repository's root: `.venv/bin/python -m benchmarks.skipped_stages [--stages 6] [--milliseconds 30]
[--mebibytes 2]`. One daemon for each stage. Ideal is a stage's own time, and the pipeline filled once. Ratios are of
windows in turns: the stages wait, so that two cores are enough for all of them.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from itertools import repeat

import torch
from torch import nn

from benchmarks.naps import nap
from benchmarks.waiting_layers import waiting_daemons
from planner.client import Pipeline, PlannerClient, export
from planner.plan.options import CutMode

WINDOWS, MICROBATCHES = 3, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--milliseconds", type=float, default=30.0)
    parser.add_argument("--mebibytes", type=int, default=2)
    arguments = parser.parse_args()
    stages, seconds = arguments.stages, arguments.milliseconds / 1e3
    batch = torch.zeros(8), torch.ones(arguments.mebibytes << 18)
    with ExitStack() as stack:
        _, client = stack.enter_context(waiting_daemons(stages, memory_bytes=None))
        pipelines = {
            name: stack.enter_context(_deployed(client, Waiting(stages, seconds, name), batch))
            for name in ("plain", "skipped", "beside")
        }
        ideal = seconds * (1 + (stages - 1) / MICROBATCHES)
        print(f"{stages} stages of {arguments.milliseconds:g} ms, {arguments.mebibytes} MiB from the first to the last")
        print(f"{'':<10}{'ms per microbatch':>20}{'of ideal':>10}")
        taken: dict[str, list[float]] = {name: [] for name in pipelines}
        for _ in range(WINDOWS + 1):
            for name, pipeline in pipelines.items():
                taken[name].append(_window(pipeline, batch))
        for name, windows in taken.items():
            least = min(windows[1:])
            print(f"{name:<10}{least * 1e3:>20.1f}{least / ideal:>10.2f}")


class Waiting(nn.Module):
    """Each stage waits. `way` "skipped": the last one adds up what the first has made of `mask`; "beside": what the
    second has, and the third reads nothing of it; else the first does."""

    def __init__(self, stages: int, seconds: float, way: str) -> None:
        super().__init__()
        self.way = way
        self.stages = nn.ModuleList(Nap(seconds) for _ in range(stages))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        first, second, *others = self.stages
        doubled = mask * 2
        x = first(x if self.way != "plain" else x + doubled.sum())
        if self.way == "beside":
            doubled = second(doubled)
        else:
            x = second(x)
        for stage in others[:-1]:
            x = stage(x)
        return others[-1](x if self.way == "plain" else x + doubled.sum())


class Nap(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nap(x, self.seconds)


def _deployed(client: PlannerClient, module: Waiting, batch: tuple[torch.Tensor, ...]) -> Pipeline:
    graph = client.submit(export(module.eval(), batch))
    cuts = tuple(f"stages.{index}" for index in range(len(module.stages) - 1))
    plan = client.create_plan(graph.id, CutMode(module_paths=cuts))
    return client.pipeline(client.deploy(plan.id).id)


def _window(pipeline: Pipeline, batch: tuple[torch.Tensor, ...]) -> float:
    started = time.monotonic()
    assert len(list(pipeline.run(repeat(batch, MICROBATCHES)))) == MICROBATCHES
    return (time.monotonic() - started) / MICROBATCHES


if __name__ == "__main__":
    main()
