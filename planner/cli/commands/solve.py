"""`solve`: a profiled cost graph from a file, without a server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from planner.cli.document_file import read_document
from planner.cli.instance_file import Instance, parse_instance
from planner.cli.options import OutputOption
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner
from planner.cli.quantities import format_gap, parse_bytes
from planner.errors import InvalidArgument, PlannerError
from planner.partition.hybrid.profile import is_training_profile
from planner.partition.objective import Objective
from planner.partition.placement.cost_graph import is_cost_graph, placement_document, read_cost_graph

# A plan's searches count steps, not seconds: so many are what they usually take.
USUAL_SECONDS = 30.0


# As a share: what the integer programmes' tolerances leave open.
PROVEN_GAP = 3e-6
EXACT_GAP = 1e-9


class SolveObjective(Enum):
    THROUGHPUT = "throughput"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`gap` is how far the value may be above the optimum, as a share of the value.

    `cut`: the time limit ended the search, so that a quicker machine may come to another value.
    """

    instance: str
    objective: str
    contiguous: bool
    value: float
    lower_bound: float
    gap: float
    proven: bool
    cut: bool
    seconds: float
    assignment: str


def solve(
    instance: Annotated[Path, typer.Argument(help="A cost graph, JSON or YAML.", exists=True, dir_okay=False)],
    objective: Annotated[
        SolveObjective, typer.Option("--objective", help="Least maximum load, or one pass's time.")
    ] = SolveObjective.THROUGHPUT,
    contiguous: Annotated[
        bool, typer.Option("--contiguous", help="Devices can be put in an order that every edge follows.")
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="S",
            min=0.1,
            help="Seconds to search; of our own format, steps that take about so long.",
        ),
    ] = 60.0,
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="N", help="Of a training profile: instead of the file's number.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="BYTES", help="Of each device, such as 8GiB; likewise.")
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", metavar="BYTES", help="Bytes per unit of time of the profile; likewise."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write {node: device}, or a profile's stages; else not written."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Place a profiled cost graph on its devices. Needs no server and no torch.

    A training profile in Piper's format gets a pipeline whose stages choose their copies, the devices of each copy, and
    an alternative for each node; the value is its time per sample.
    """
    started = time.monotonic()
    if out is not None:
        _check_writable(out)
    document = read_document(instance)
    goal = Objective(objective.value)
    overrides = _Overrides(devices=devices, memory=memory, bandwidth=bandwidth)
    try:
        with spinner(f"solving {instance.name}"):
            if is_training_profile(document):
                _refuse(goal is Objective.LATENCY, "--objective latency", "a plan for training is for throughput")
                found = _solve_profile(document, overrides, started, time_limit)
            else:
                given = any(value is not None for value in (devices, memory, bandwidth))
                _refuse(given, "--devices, --memory and --bandwidth", "the devices are those of the file")
                found = (_solve_cost_graph if is_cost_graph(document) else _solve_instance)(
                    document, goal, contiguous, started, time_limit
                )
    except PlannerError as error:
        raise type(error)(f"{instance}: {error.message}", **error.metadata) from None
    value, bound, assignment, cut = found
    if out is not None:
        _write(out, assignment)
    gap = max(0.0, 1.0 - bound / value) if value else 0.0
    solution = Solution(
        instance=instance.name,
        objective=objective.value,
        contiguous=contiguous or is_training_profile(document),
        value=value,
        lower_bound=bound,
        gap=gap,
        proven=gap <= PROVEN_GAP,
        cut=cut,
        seconds=time.monotonic() - started,
        assignment=str(out) if out else "",
    )
    emit(solution, output, lambda: Text(_summary(solution)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overrides:
    """What counts instead of what a training profile says."""

    devices: int | None
    memory: str | None
    bandwidth: str | None


def _refuse(is_given: bool, option: str, why: str) -> None:
    if is_given:
        raise InvalidArgument(f"{option}: {why}; leave it out")


class _Clock:
    """Tells a search that its time is over, and remembers that it did."""

    def __init__(self, started_seconds: float, limit_seconds: float) -> None:
        self._end_seconds = started_seconds + limit_seconds
        self.has_cut = False

    def __call__(self) -> bool:
        self.has_cut = self.has_cut or time.monotonic() > self._end_seconds
        return self.has_cut


def _solve_profile(
    document: Mapping[str, Any], overrides: _Overrides, started: float, time_limit: float
) -> tuple[float, float, dict[str, Any], bool]:
    from planner.partition.hybrid.profile import plan_document, read_training_profile
    from planner.partition.hybrid.search import best_hybrid

    profile = read_training_profile(
        document,
        num_devices=overrides.devices,
        memory_bytes=None if overrides.memory is None else parse_bytes(overrides.memory),
        bandwidth=None if overrides.bandwidth is None else parse_bytes(overrides.bandwidth),
    )
    clock = _Clock(started, time_limit)
    plan = best_hybrid(profile.problem, clock)
    return plan.seconds_per_sample, plan.lower_bound_seconds, plan_document(profile, plan), clock.has_cut


def _solve_cost_graph(
    document: Mapping[str, object], objective: Objective, contiguous: bool, started: float, time_limit: float
) -> tuple[float, float, dict[str, str], bool]:
    from planner.cost_graphs.two_searches import place_by_two
    from planner.partition.placement.solve import solve as solve_placement

    graph, clock = read_cost_graph(document), _Clock(started, time_limit)
    if objective is Objective.THROUGHPUT and not contiguous:
        placement = place_by_two(graph.problem, started_seconds=started, limit_seconds=time_limit)
        # Both go on until they have a proof.
        cut = placement.gap > PROVEN_GAP
    else:
        placement = solve_placement(graph.problem, objective, contiguous=contiguous, out_of_time=clock)
        cut = clock.has_cut
    return placement.value_seconds, placement.lower_bound_seconds, placement_document(graph, placement), cut


def _solve_instance(
    document: Any, objective: Objective, contiguous: bool, _: float, time_limit: float
) -> tuple[float, float, dict[str, str], bool]:
    from planner.plan.options import OptimalMode, PlanOptions
    from planner.planning import make_plan

    instance = parse_instance(document)
    mode = OptimalMode(free=not contiguous, effort=min(1000.0, time_limit / USUAL_SECONDS))
    plan = make_plan(instance.graph, "", instance.inventory, PlanOptions(mode=mode, objective=objective))
    value = plan.latency_seconds if objective is Objective.LATENCY else plan.bottleneck_seconds
    return value, plan.lower_bound_seconds or 0.0, _devices(instance, plan.stages), False


def _devices(instance: Instance, stages: Any) -> dict[str, str]:
    return {
        instance.node_ids[index]: stage.device_ids[0]
        for stage in stages
        for start, end in stage.node_ranges
        for index in range(start, end)
    }


def _check_writable(path: Path) -> None:
    """Before the search, which may be long."""
    reason = None
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "no permission to write there"
    if reason is not None:
        raise InvalidArgument(f"--out {path}: {reason}; name a file that can be written")


def _write(path: Path, assignment: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(assignment, indent=1) + "\n")
    except OSError as error:
        raise InvalidArgument(f"--out {path}: {error.strerror}") from None


def _summary(solution: Solution) -> str:
    exact = "proven optimal" if solution.gap <= EXACT_GAP else f"proven optimal to {PROVEN_GAP:g}"
    proof = exact if solution.proven else f"gap {format_gap(solution.gap)}"
    numbers = f"value {_number(solution.value)}, lower bound {_number(solution.lower_bound)}"
    cut = ", cut by the time limit" if solution.cut else ""
    written = f"; written to {solution.assignment}" if solution.assignment else ""
    return f"{numbers} ({proof}), {solution.seconds:.1f} s{cut}{written}"


def _number(found: float) -> str:
    """Six places, or as many digits where those would show little or take a line."""
    return f"{found:.6f}" if found == 0 or 1e-3 <= found < 1e9 else f"{found:.6e}"
