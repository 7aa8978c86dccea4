"""What a microbatch that a device cannot run does to those before and behind it, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.gpu.bench import Bench, Row
from planner.client import PlannerClient, export
from planner.client.records import Deployment, RecoveryPolicy
from planner.errors import PlannerError
from planner.plan.options import CutMode

_WIDTH = 256
_NUM_ROWS = 8
_RECOVERY_SECONDS = 120.0


class Lookup(nn.Module):
    """A row outside of the table is what a GPU's kernel asserts against: its whole context is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_WIDTH, _WIDTH)
        self.table = nn.Embedding(_NUM_ROWS, _WIDTH)

    def forward(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.first(hidden) + self.table(rows)
        return output


class Growing(nn.Module):
    """Takes as many times its hidden values' memory as its second input has elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, hidden: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = (self.first(hidden)[:, :, None] + times).mean(-1)
        return output


def faults(bench: Bench) -> Iterator[Row]:
    yield _row_out_of_range(bench.client)
    if bench.device.type == "cuda":
        yield _out_of_memory(bench)


def _row_out_of_range(client: PlannerClient) -> Row:
    """The stage that looked it up is named, and the deployment answers again."""
    module = Lookup().eval()
    hidden = torch.randn(4, _WIDTH)
    good, bad = torch.zeros(4, dtype=torch.int64), torch.full((4,), _NUM_ROWS + 1)
    deployment = _deployed(client, module, (hidden, good), cut="first")
    said = ""
    with client.pipeline(deployment.id) as pipeline:
        try:
            pipeline(hidden, bad)
        except PlannerError as error:
            said = str(error)
    answer = _next_answer(client, deployment, (hidden, good))
    client.stop(deployment.id)
    expected = module(hidden, good)
    return Row(
        suite="faults",
        name="a row out of range",
        figure=_first_line(said),
        is_right="stage 1" in said and torch.allclose(answer, expected, atol=1e-3),
    )


def _out_of_memory(bench: Bench) -> Row:
    """It fails alone."""
    client = bench.client
    module = Growing().eval()
    hidden, few = torch.randn(_WIDTH, _WIDTH), torch.zeros(8)
    free_bytes, _ = torch.cuda.mem_get_info(bench.device)
    many = torch.zeros(2 * free_bytes // (hidden.numel() * hidden.itemsize))
    length = torch.export.Dim("length", min=2, max=1 << 40)
    deployment = _deployed(client, module, (hidden, few), cut="first", dynamic_shapes=(None, {0: length}))
    with client.pipeline(deployment.id) as pipeline:
        failed, answer = pipeline.run([(hidden, many), (hidden, few)], raise_failures=False)
    client.stop(deployment.id)
    return Row(
        suite="faults",
        name="a microbatch too large",
        figure=_first_line(failed),
        is_right="OutOfMemory" in str(failed) and torch.allclose(answer, module(hidden, few), atol=1e-3),
    )


def _first_line(text: object) -> str:
    return str(text).partition("\n")[0][:200]


def _deployed(
    client: PlannerClient, module: nn.Module, args: tuple[torch.Tensor, ...], *, cut: str, dynamic_shapes: object = None
) -> Deployment:
    graph = client.submit(export(module, args, dynamic_shapes=dynamic_shapes))
    plan = client.create_plan(graph.id, CutMode(module_paths=(cut,)))
    return client.deploy(plan.id, recovery=RecoveryPolicy.RESTART)


def _next_answer(client: PlannerClient, deployment: Deployment, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    until = time.monotonic() + _RECOVERY_SECONDS
    while True:
        try:
            with client.pipeline(deployment.id) as pipeline:
                answer: torch.Tensor = pipeline(*args)
                return answer
        except PlannerError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
