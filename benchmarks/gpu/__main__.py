"""All that has to hold on GPUs, measured beside its peer in one command, without a network.

    python -m benchmarks.gpu [--device cuda | cpu] [--quick] [suite ...]

On one GPU all daemons share it, and what crosses goes through the host; on two it goes over NCCL. `--device cpu` runs
the same suites without a GPU, to show that they run. Ends with 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.gpu.bench import Bench, Row, bench_on
from benchmarks.gpu.copies import copies
from benchmarks.gpu.faults import faults
from benchmarks.gpu.inference import compiled, outputs, pipelines, stages
from benchmarks.gpu.nccl import nccl
from benchmarks.gpu.training import steps, trainings

SUITES: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "outputs": outputs,
    "copies": copies,
    "nccl": nccl,
    "stages": stages,
    "pipelines": pipelines,
    "compiled": compiled,
    "faults": faults,
    "steps": steps,
    "trainings": trainings,
}


def rows(name: str, bench: Bench) -> Iterator[Row]:
    """Of one suite. What breaks it is a row of it: the others are still worth running."""
    try:
        yield from SUITES[name](bench)
    except Exception as error:
        traceback.print_exc()
        yield Row(suite=name, name="it broke", figure=f"{type(error).__name__}: {error}"[:300], is_right=False)


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
            began = time.monotonic()
            for row in rows(name, bench):
                ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
                figure = row.figure if row.is_right else f"WRONG: {row.figure}"
                print(" | ".join([f"| {row.suite}", row.name, figure, row.peer, ratio]), "|", flush=True)
                are_right = are_right and row.is_right
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0 if are_right else 1


if __name__ == "__main__":
    sys.exit(main())
