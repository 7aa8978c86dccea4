"""`solve`: a profiled cost graph from a file, without a server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from planner.cli.document_file import read_document
from planner.cli.instance_file import parse_instance
from planner.cli.options import OutputOption
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner
from planner.cli.quantities import format_gap, parse_bytes
from planner.errors import InvalidArgument, PlannerError
from planner.partition.modes.table import MAX_EFFORT
from planner.partition.objective import Objective

if TYPE_CHECKING:
    from planner.cost_graphs.limits import Limits
    from planner.cost_graphs.solve import Answer

# What rounding leaves of a gap.
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
    effort: Annotated[
        float,
        typer.Option("--effort", metavar="X", min=0.001, max=MAX_EFFORT, help="Scales the steps of the searches."),
    ] = 1.0,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="S",
            min=0.1,
            help="Seconds after which the search ends with the best so far; without it steps alone end it.",
        ),
    ] = None,
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
    from planner.cost_graphs.limits import Limits

    limits = Limits(effort=effort, seconds=time_limit)
    if out is not None:
        _check_writable(out)
    document = read_document(instance)
    overrides = _Overrides(devices=devices, memory=memory, bandwidth=bandwidth)
    try:
        with spinner(f"solving {instance.name}"):
            answer, is_contiguous = _answer(document, Objective(objective.value), overrides, limits, contiguous)
    except PlannerError as error:
        raise type(error)(f"{instance}: {error.message}", **error.metadata) from None
    if out is not None:
        _write(out, answer.document)
    solution = Solution(
        instance=instance.name,
        objective=objective.value,
        contiguous=is_contiguous,
        value=answer.value,
        lower_bound=answer.lower_bound,
        gap=answer.gap,
        proven=answer.is_proven,
        cut=answer.is_cut,
        seconds=time.monotonic() - limits.started_seconds,
        assignment=str(out) if out else "",
    )
    emit(solution, output, lambda: Text(_summary(solution)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overrides:
    """What counts instead of what a training profile says."""

    devices: int | None = None
    memory: str | None = None
    bandwidth: str | None = None


def _refuse(is_given: bool, option: str, why: str) -> None:
    if is_given:
        raise InvalidArgument(f"{option}: {why}; leave it out")


def _answer(
    document: Any, objective: Objective, overrides: _Overrides, limits: Limits, contiguous: bool
) -> tuple[Answer, bool]:
    """And whether it is contiguous: a training pipeline always is."""
    from planner.cost_graphs.cost_graph import is_cost_graph
    from planner.cost_graphs.solve import solve_cost_graph, solve_instance, solve_training_profile
    from planner.cost_graphs.training_profile import is_training_profile

    if is_training_profile(document):
        _refuse(objective is Objective.LATENCY, "--objective latency", "a plan for training is for throughput")
        memory, bandwidth = overrides.memory, overrides.bandwidth
        answer = solve_training_profile(
            document,
            limits,
            num_devices=overrides.devices,
            memory_bytes=None if memory is None else parse_bytes(memory),
            bandwidth=None if bandwidth is None else parse_bytes(bandwidth),
        )
        return answer, True
    _refuse(overrides != _Overrides(), "--devices, --memory and --bandwidth", "the devices are those of the file")
    if is_cost_graph(document):
        return solve_cost_graph(document, objective, limits, contiguous=contiguous), contiguous
    instance = parse_instance(document)
    answer = solve_instance(
        instance.graph, instance.inventory, instance.node_ids, objective, limits, contiguous=contiguous
    )
    return answer, contiguous


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
    exact = "proven optimal" if solution.gap <= EXACT_GAP else f"proven optimal to {solution.gap:.0e}"
    proof = exact if solution.proven else f"gap {format_gap(solution.gap)}"
    numbers = f"value {_number(solution.value)}, lower bound {_number(solution.lower_bound)}"
    cut = ", cut by the time limit" if solution.cut else ""
    written = f"; written to {solution.assignment}" if solution.assignment else ""
    return f"{numbers} ({proof}), {solution.seconds:.1f} s{cut}{written}"


def _number(number: float) -> str:
    """Six places, or as many digits where those would show little or take a line."""
    return f"{number:.6f}" if number == 0 or 1e-3 <= number < 1e9 else f"{number:.6e}"
