"""What the measured timeline costs a lane: the same microbatches with and without it, in windows that take turns.

    python -m benchmarks.timeline_cost [windows]

A lane takes inputs, runs a stage and gives outputs in this process, on one thread; CPU seconds of the process. The last
row is of actions that do nothing: what is left there is the loop itself, and what the timeline adds to any lane.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from stage_daemon.runtime.action_loop import ActionLoop
from stage_daemon.runtime.actions import Action, Kind
from stage_daemon.runtime.egress import Egress
from stage_daemon.runtime.environment import Environment
from stage_daemon.runtime.ingress import Ingress, Submission
from stage_daemon.runtime.interpreter import LaneInterpreter, Surroundings
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import Timeline, timed

LANE = (Action(Kind.TAKE_INPUT, 0), Action(Kind.FORWARD, 0), Action(Kind.GIVE_OUTPUT, 0))
EMPTY_LANE = (Action(Kind.RECEIVE, 0), Action(Kind.FORWARD, 0), Action(Kind.SEND, 0), Action(Kind.SEND, 1))
WINDOW_SECONDS = 0.05


def _run_without_timeline(self: ActionLoop, number: int, environments: Sequence[Environment]) -> None:
    for do, index, place, dead in self._bound:
        environment = environments[place]
        do(index, environment)
        environment.drop(dead)


_RUNS = {"with": ActionLoop.run, "without": _run_without_timeline}


def main(windows: int = 80) -> None:
    torch.set_num_threads(1)
    print("| stage | µs per microbatch without | µs added | with / without |")
    print("|---|---|---|---|")
    for name, rows, columns, layers in (("near-empty", 1, 1024, 0), ("0.3 ms", 8, 768, 1), ("2 ms", 32, 768, 3)):
        _compare(name, _lane(rows, columns, layers), windows)
    _compare("four actions that do nothing", _nothing(), windows)


def _compare(name: str, run: Callable[[int], None], windows: int) -> None:
    run(10)
    began = time.process_time()
    run(10)
    num = max(10, round(10 * WINDOW_SECONDS / max(1e-6, time.process_time() - began)))
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for window in range(windows):
        for kind in sorted(_RUNS, reverse=window % 2 == 0):
            ActionLoop.run = _RUNS[kind]  # type: ignore[method-assign]
            began = time.process_time()
            run(num)
            seconds[kind].append((time.process_time() - began) / num)
    without, with_timeline = _undisturbed(seconds["without"]), _undisturbed(seconds["with"])
    added = with_timeline - without
    print(f"| {name} | {without * 1e6:.1f} | {added * 1e6:.1f} | {with_timeline / without:.3f} |")


def _undisturbed(windows: Sequence[float]) -> float:
    """Other work on the machine only ever adds: the median of the quickest quarter."""
    return statistics.median(sorted(windows)[: max(1, len(windows) // 4)])


def _lane(rows: int, columns: int, layers: int) -> Callable[[int], None]:
    linears = [torch.nn.Linear(columns, columns) for _ in range(layers)]
    sample = torch.randn(rows, columns)

    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor]:
        for linear in linears:
            hidden = torch.tanh(linear(hidden))
        return (hidden * 1.0001,)

    ingress = Ingress(lambda submission: None)
    stage = Stage(index=0, device_id="cpu", run=forward, input_ids=(1,), output_ids=(2,))
    around = Surroundings(
        deployment_id="dep-bench",
        stages={0: stage},
        edges={},
        senders={},
        receivers={},
        metrics={0: StageMetrics()},
        input_ids=(1,),
        output_ids=(2,),
        ingress=ingress,
        egress=Egress(1, lambda result: True),
    )
    interpreter = LaneInterpreter(LANE, around)

    def run(num: int) -> None:
        with torch.no_grad():
            for sequence in range(num):
                ingress.submit(Submission(session_id=1, sequence=sequence, read=lambda: (sample,), acknowledged=False))
                interpreter._run_microbatch()

    return run


def _nothing() -> Callable[[int], None]:
    doers = dict.fromkeys((action.kind for action in EMPTY_LANE), lambda index, environment: None)
    timeline = Timeline(timed(EMPTY_LANE, [0] * 4))
    loop = ActionLoop(EMPTY_LANE, doers, [0] * 4, [()] * 4, timeline, range(4))
    environments = (Environment(microbatch=1),)

    def run(num: int) -> None:
        for number in range(num):
            loop.run(number, environments)

    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
