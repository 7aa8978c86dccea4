"""Outputs of daemons beside the module's own on the same device, and what a microbatch takes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.gpu.bench import Bench, Layers, Row, apart, how_far, shown
from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.client.pipeline import Pipeline
from planner.errors import UnsupportedModule
from planner.plan.options import BalancedMode, Mode, SingleMode
from tests.builders.case import Case
from tests.builders.registry import FAMILIES

IN_FLIGHT = 6
# Their floats can be halves from end to end.
_HALVED = ("gpt2", "llama", "vit")


def outputs(bench: Bench) -> Iterator[Row]:
    """Every family over two stages, batches of several sizes: what the unsplit module gives on the same device."""
    families = [(name, torch.float32) for name in FAMILIES] + [(name, torch.bfloat16) for name in _HALVED]
    for family, dtype in families[4:5] if bench.quick else families:
        name = family if dtype is torch.float32 else f"{family}, bfloat16"
        case = FAMILIES[family]()
        module, batches = case.module.eval().to(dtype), _batches(case, dtype)
        try:
            given = _through(bench.client, module, case, batches)
        except UnsupportedModule as error:
            yield Row(suite="outputs", name=name, figure=f"no graph: {error}"[:120], is_right=False)
            continue
        with torch.no_grad():
            module.to(bench.device)
            expected = [module(*bench.put(batch.args), **bench.put(dict(batch.kwargs))) for batch in batches]
        leaves = zip(pytree.tree_leaves(given), pytree.tree_leaves(expected), strict=True)
        distance = max(itertools.starmap(apart, leaves))
        yield Row(
            suite="outputs",
            name=name,
            figure=how_far(distance),
            is_right=distance < (1e-4 if dtype is torch.float32 else 2e-2),
        )


def pipelines(bench: Bench) -> Iterator[Row]:
    """Two stages between a client and itself, beside both of them in this process; and what the plan said."""
    columns = 512
    for size in (1 << 12,) if bench.quick else (1 << 12, 1 << 20, 1 << 24):
        module = Layers(max(1, size // (4 * columns)), columns, 8)
        yield from _profiled(bench, "pipelines", f"{size >> 10} KiB across", module, BalancedMode(num_stages=2))


def stages(bench: Bench) -> Iterator[Row]:
    """One stage beside the bare module, whose outputs come back to the host as well; and what the plan said."""
    kinds = {
        "small kernels": Layers(64, 1024, 2 if bench.quick else 16),
        "large kernels": Layers(1024, 4096, 48, torch.bfloat16),
        "long": Layers(4096, 4096, 96, torch.bfloat16),
    }
    for name, module in list(kinds.items())[: 1 if bench.quick else None]:
        yield from _profiled(bench, "stages", name, module, SingleMode())


def compiled(bench: Bench) -> Iterator[Row]:
    """A compiled stage beside the same one uncompiled."""
    client = bench.client
    module = Layers(256, 1024, 2 if bench.quick else 16)
    plan = client.create_plan(client.submit(export(module, (module.sample,))).id, SingleMode())
    plain, compiled = (_open(client, plan.id, compile=compile) for compile in (False, True))
    calls = [partial(_run_all, pipeline, [module.sample] * 4 * IN_FLIGHT) for pipeline in (plain, compiled)]
    without, with_it = bench.seconds_of_each(calls)
    distance = apart(compiled(module.sample), plain(module.sample))
    for pipeline in (plain, compiled):
        client.stop(pipeline.deployment_id)
    yield Row(
        suite="compiled",
        name="16 layers",
        figure=how_far(distance),
        peer="uncompiled",
        ratio=with_it / without,
        is_right=distance < 1e-2,
    )


def _profiled(bench: Bench, suite: str, name: str, module: Layers, mode: Mode) -> Iterator[Row]:
    client = bench.client
    graph = client.submit(export(module, (module.sample,)))
    client.profile_graph(graph.id, device_ids=[bench.cluster.device_id(0)])
    plan = client.create_plan(graph.id, mode)
    seconds, peer = _streamed(bench, client, plan.id, module)
    figure, predicted = f"{shown(seconds)} a microbatch", plan.bottleneck_seconds
    yield Row(suite=suite, name=name, figure=figure, peer="bare module", ratio=seconds / peer)
    yield Row(suite=suite, name=name, figure=f"{shown(predicted)} predicted", peer="real", ratio=predicted / seconds)


def _streamed(bench: Bench, client: PlannerClient, plan_id: str, module: Layers) -> tuple[float, float]:
    """Seconds of a microbatch that has others before and behind it, over daemons and in this process."""
    num = 4 * IN_FLIGHT
    pipeline = _open(client, plan_id)
    with torch.no_grad(), pipeline:
        module.to(bench.device)

        def here() -> None:
            for _ in range(num):
                module(module.sample.to(bench.device)).cpu()

        batches = [module.sample] * num
        ours, peer = bench.seconds_of_each([partial(_run_all, pipeline, batches), here])
    client.stop(pipeline.deployment_id)
    return ours / num, peer / num


def _open(client: PlannerClient, plan_id: str, *, compile: bool = False) -> Pipeline:
    return client.pipeline(client.deploy(plan_id, compile=compile).id)


def _run_all(pipeline: Pipeline, batches: list[torch.Tensor]) -> None:
    for _ in pipeline.run(batches, window=IN_FLIGHT):
        pass


def _batches(case: Case, dtype: torch.dtype) -> list[Batch]:
    def cast(one: torch.Tensor) -> torch.Tensor:
        return one.to(dtype) if one.is_floating_point() else one

    return [
        Batch(*pytree.tree_map_only(torch.Tensor, cast, (batch.args, dict(batch.kwargs))))
        for batch in (case.example, *case.other_batches)
    ]


def _through(client: PlannerClient, module: nn.Module, case: Case, batches: Sequence[Batch]) -> list[Any]:
    exported = export(module, batches[0].args, dict(batches[0].kwargs), dynamic_shapes=case.dynamic_shapes)
    deployment = client.deploy(client.create_plan(client.submit(exported).id, BalancedMode(num_stages=2)).id)
    try:
        with client.pipeline(deployment.id) as pipeline:
            return list(pipeline.run(batches))
    finally:
        client.stop(deployment.id)
