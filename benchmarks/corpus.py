"""Plans of networks and chains on clusters, by every objective: what one checkout makes beside what another one made.

From the root of the one, then of the other (a copy of this file and of what it imports will do there):

    python -m benchmarks.corpus --save before.csv
    python -m benchmarks.corpus --against before.csv

A row is a program, a cluster and an objective, in mode `optimal`: value in seconds (of memory the fullest device's
share), proven bound and seconds of CPU. Against others, rows that differ are printed; it ends with 1 if any value is
more, so that a change that makes some plan worse is seen.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from benchmarks.chains_on_clusters import FAMILIES, problems_of, random_case
from benchmarks.nets_on_clusters import NETS, problem_of, trained
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.score import score

CLUSTERS = ((16, "wholes"), (32, "halves"), (64, "sizes"))
RANDOM_CHAINS = 12
# Relative: what rounding may change.
SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    value: float
    bound: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    arguments = parser.parse_args()
    before = _read(arguments.against) if arguments.against else {}
    answers: dict[str, Answer] = {}
    for name, objective, make in rows():
        if arguments.only in name:
            answers[name] = answer = _planned(make(), objective)
            if not before or _is_changed(before.get(name), answer):
                print(_line(name, answer, before.get(name)), flush=True)
    if arguments.save:
        with arguments.save.open("w", newline="") as file:
            csv.writer(file).writerows((name, *astuple(answer)) for name, answer in answers.items())
    if before:
        sys.exit(_compare(before, answers))


def rows() -> Iterator[tuple[str, Objective, Callable[[], PartitionProblem]]]:
    """Name, objective, and what makes the problem."""
    for net in NETS:
        for devices, hosts in CLUSTERS:
            for memory in (0.0, 1.1):
                make = partial(problem_of, net, devices, hosts, memory)
                name = f"{net} on {devices} {hosts}" + (f", memory {memory:g}" if memory else "")
                yield f"{name}: throughput", Objective.THROUGHPUT, make
                if devices < 64:
                    yield f"{name}: latency", Objective.LATENCY, make
            name, make = f"{net} on {devices} {hosts}", partial(problem_of, net, devices, hosts, 0.0)
            yield f"{name}: memory", Objective.MEMORY, make
            yield f"{name}: step_time", Objective.STEP_TIME, lambda make=make: trained(make())
    for family in FAMILIES:
        for number, (_, problem) in enumerate(problems_of(family)):
            yield f"chain {family} {number}: throughput", Objective.THROUGHPUT, lambda problem=problem: problem
    for seed in range(RANDOM_CHAINS):
        yield f"chain random {seed}: throughput", Objective.THROUGHPUT, lambda seed=seed: random_case(seed)[1]


def _planned(problem: PartitionProblem, objective: Objective) -> Answer:
    started = time.process_time()
    plan = optimal(problem, Request(mode="optimal", objective=objective))
    seconds = time.process_time() - started
    return Answer(
        value=score(problem, plan, objective).value, bound=plan.lower_bound_seconds or 0.0, cpu_seconds=seconds
    )


def _read(path: Path) -> dict[str, Answer]:
    with path.open(newline="") as file:
        lines = [(name, *map(float, numbers)) for name, *numbers in csv.reader(file)]
    return {name: Answer(value=value, bound=bound, cpu_seconds=cpu) for name, value, bound, cpu in lines}


def _is_changed(before: Answer | None, now: Answer) -> bool:
    return before is None or any(
        abs(one - other) > SAME * other for one, other in ((now.value, before.value), (now.bound, before.bound))
    )


def _line(name: str, answer: Answer, before: Answer | None) -> str:
    line = f"{name:<52}{answer.value:>12.6g}{1 - answer.bound / answer.value:>9.2%}{answer.cpu_seconds:>8.1f} s"
    if before is None:
        return line
    return f"{line}   value {answer.value / before.value - 1:+.2%}, gap before {1 - before.bound / before.value:.2%}"


def _compare(before: Mapping[str, Answer], now: Mapping[str, Answer]) -> int:
    """The exit code, and a summary."""
    both = [(before[name], answer) for name, answer in now.items() if name in before]
    more = sum(answer.value > other.value * (1 + SAME) for other, answer in both)
    less = sum(answer.value < other.value * (1 - SAME) for other, answer in both)
    weaker = sum(answer.bound < other.bound * (1 - SAME) for other, answer in both)
    cpu = [sum(side) for side in zip(*((other.cpu_seconds, answer.cpu_seconds) for other, answer in both), strict=True)]
    print(
        f"{len(both)} rows: value more in {more}, less in {less}; bound weaker in {weaker}; "
        f"CPU {cpu[0]:.0f} before, {cpu[1]:.0f} s now"
    )
    return 1 if more else 0


if __name__ == "__main__":
    main()
