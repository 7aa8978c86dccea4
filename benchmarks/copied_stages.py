"""Results per second with copies of a slow stage beside those without, through the same daemons in turns.

    python -m benchmarks.copied_stages [windows]

Stages wait instead of computing, so that copies can be measured on a machine of few cores: what is seen is routing,
order and hand-over, not arithmetic. What crosses is 16 KiB. The ideal is the plan's own prediction.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import waiting_operator
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.pipeline import Pipeline
from planner.cost.measured import MeasuredTimes
from planner.plan.options import OptimalMode, PlanOptions

SHORT_SECONDS, LONG_SECONDS = 0.005, 0.020
NUM_DEVICES = 5
MICROBATCHES = 100
WARM_UP = 10
DEFAULT_WINDOWS = 5
MEMORY_BYTES = 1 << 29
# Which stage is slow, and on how many devices each of the three stages is to run.
CASES: Sequence[tuple[int, tuple[int, ...]]] = (
    (1, (1, 1, 1)),
    (1, (1, 2, 1)),
    (1, (1, 3, 1)),
    (0, (1, 1, 1)),
    (0, (2, 1, 1)),
    (2, (1, 1, 1)),
    (2, (1, 1, 2)),
)


class Waiting(torch.nn.Module):
    def __init__(self, slow: int) -> None:
        super().__init__()
        self.seconds = [LONG_SECONDS if stage == slow else SHORT_SECONDS for stage in range(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for seconds in self.seconds:
            x = torch.ops.planner_benchmarks.wait(x, seconds)
        return x


def deployed(client: PlannerClient, stack: ExitStack, slow: int, counts: tuple[int, ...]) -> tuple[Pipeline, float]:
    """A pipeline, and the seconds between results that its plan predicts."""
    module = Waiting(slow)
    graph = client.submit(export(module, (torch.zeros(64, 64),)))
    client.import_times(
        MeasuredTimes(graph_id=graph.id, device_kind="cpu", seconds=tuple(enumerate(module.seconds))), graph.id
    )
    device_ids = [one.device.id for one in client.list_devices()][: sum(counts)]
    options = PlanOptions(mode=OptimalMode(num_stages=3, replicate=True))
    plan = client.create_plan(graph.id, options, device_ids=device_ids)
    copies = tuple(len(stage.device_ids) for stage in plan.stages)
    assert copies == counts, f"the plan has {copies} copies, {counts} were wanted"
    deployment = client.deploy(plan.id)
    stack.callback(client.stop, deployment.id)
    return stack.enter_context(client.pipeline(deployment.id)), plan.bottleneck_seconds


def window(pipeline: Pipeline) -> float:
    """Seconds between results of a stream, without those in which it fills."""
    batch, ends = torch.randn(64, 64), []
    for _ in pipeline.run(batch for _ in range(MICROBATCHES + WARM_UP)):
        ends.append(time.monotonic())
    return (ends[-1] - ends[WARM_UP - 1]) / MICROBATCHES


def main() -> None:
    num_windows = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_WINDOWS
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(
                data_dir=Path(stack.enter_context(TemporaryDirectory())),
                memory_bytes=(MEMORY_BYTES,) * NUM_DEVICES,
                daemon_arguments=("--custom-operators", f"{waiting_operator.MODULE}={waiting_operator.NAME}"),
                environment={"OMP_NUM_THREADS": "1"},
            )
        )
        client = stack.enter_context(PlannerClient(cluster.planner_address))
        cases = {case: deployed(client, stack, *case) for case in CASES}
        seconds: dict[tuple[int, tuple[int, ...]], list[float]] = {case: [] for case in CASES}
        for _ in range(num_windows):
            for case, (pipeline, _) in cases.items():
                seconds[case].append(window(pipeline))
    for slow, counts in CASES:
        mine, alone = seconds[slow, counts], seconds[slow, (1, 1, 1)]
        ratios = [base / own for base, own in zip(alone, mine, strict=True)]
        print(
            f"stage {slow} slow, copies {counts}: {1 / statistics.median(mine):.1f} results/s "
            f"({min(1 / one for one in mine):.1f} to {max(1 / one for one in mine):.1f}), "
            f"{statistics.median(ratios):.2f} times one copy ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"{cases[slow, counts][1] / statistics.median(mine):.2f} of predicted"
        )


if __name__ == "__main__":
    main()
