"""What two checkouts have deployed, in windows that take turns: before and after.

    python -m benchmarks.checkouts_in_turns OTHER_CHECKOUT [windows [shape ...]]

A shape of `pipeline_peers` is named by a part of its name; `training` is the step of `training_peers`. Each checkout
has processes of its own, which are there all the time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DEFAULT_WINDOWS = 9
TRAINING = "training"
SHAPES = ("near-empty", "2 ms", "8 ms", "1 MiB", TRAINING)
# Runs in either checkout, on what that one has.
_WINDOWS = """
import sys
import torch
from benchmarks.pipeline_peers import SHAPES, deployed

torch.set_num_threads(1)
shape = next(shape for shape in SHAPES if sys.argv[1] in shape.name)
with deployed(shape) as window:
    print(flush=True)
    while sys.stdin.readline():
        spent = window(shape.microbatches)
        print(spent.wall / shape.microbatches, spent.cpu / shape.microbatches, flush=True)
"""
_STEPS = """
import sys
import torch
from benchmarks.training_peers import MICROBATCHES, Deployed

torch.set_num_threads(1)
with Deployed().window() as window:
    print(flush=True)
    while sys.stdin.readline():
        spent = window(1)
        print(spent.wall / MICROBATCHES, spent.cpu / MICROBATCHES, flush=True)
"""


@contextmanager
def pipeline_of(checkout: Path, shape: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _STEPS if shape == TRAINING else _WINDOWS, shape],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        _answer(process)
        yield process


def next_window(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Seconds per microbatch on the clock, and of CPU in all of the checkout's processes."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wall, cpu = map(float, _answer(process).split())
    return wall, cpu


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise SystemExit(f"{process.args}: ended with {process.wait()}")
    return line


def main(other: str, num_windows: int = DEFAULT_WINDOWS, *shapes: str) -> None:
    checkouts = {"other": Path(other).resolve(), "this": Path(__file__).resolve().parent.parent}
    print("µs per microbatch: median and least window on the clock, and mean of CPU in all processes")
    for shape in shapes or SHAPES:
        with ExitStack() as stack:
            processes = {name: stack.enter_context(pipeline_of(path, shape)) for name, path in checkouts.items()}
            windows: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
            for _ in range(1 + num_windows):
                for name, process in processes.items():
                    windows[name].append(next_window(process))
        for name, each in windows.items():
            walls, cpus = zip(*each[1:], strict=True)
            print(
                f"| {shape}, {name} | {statistics.median(walls) * 1e6:,.0f}, {min(walls) * 1e6:,.0f} "
                f"| {statistics.fmean(cpus) * 1e6:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1], *[int(sys.argv[2])] if len(sys.argv) > 2 else [], *sys.argv[3:])
