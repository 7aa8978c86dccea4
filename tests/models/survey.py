"""Takes architectures through export, a plan, the daemon's loader, and runs, trains and generates in stages.

    python -m tests.models.survey [NAME ...] [--write docs/models.md]

Without names all of them whose library is installed, one after the other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from planner.client.export import export
from planner.errors import PlannerWarning, UnsupportedModule
from planner.graph.ir import Graph, ValueReference
from planner.plan.options import BalancedMode, PlanOptions
from planner.planning import make_plan
from tests.builders.case import Batch
from tests.builders.plans import inventory_of
from tests.builders.reload import assert_bitwise_equal
from tests.builders.staged import load_stages, run_stages
from tests.builders.weight_files import WeightFiles
from tests.models.architectures import ARCHITECTURES, Architecture, Inputs
from tests.models.trains import trains_as

STAGES = 4
GENERATING = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText",
)
MARKER = "<!-- rows by python -m tests.models.survey --write docs/models.md -->"
HEADINGS = (
    "| architecture | stages | gap | bitwise equal to | trains as | generates as | dynamic sizes |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`why_not` is empty for an architecture that comes through; `is_ours` says that torch.export itself carries it.

    `equal_to` is "eager", or "torch.export" where its own program rounds otherwise than the module, or gives other
    numbers, of which `export` warns. `trains` is what `trains_as` says, or why there is no training of it, and
    `generates` what `generates_as` says of one that goes on with tokens.
    """

    architecture: Architecture
    nodes: int = 0
    stages: int = 0
    gap: float | None = None
    equal_to: str = ""
    trains: str = ""
    generates: str = ""
    dynamic: tuple[str, ...] = ()
    why_not: str = ""
    is_ours: bool = False


def survey(architecture: Architecture) -> Finding:
    """Every dimension may change that torch.export lets change; then the run is tried at two sizes."""
    example, larger = architecture.kind.batch(1), architecture.kind.batch(2)
    try:
        module = architecture.module()
    except Exception as error:
        return Finding(architecture=architecture, why_not=f"its small configuration: {_reason(error)}", is_ours=True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", PlannerWarning)
            exported = export(module, (), dict(example), dynamic_shapes=_all_dynamic(example))
    except UnsupportedModule as error:
        return Finding(architecture=architecture, why_not=_reason(error), is_ours=not _is_torchs(error))
    graph = exported.graph
    dynamic = _dynamic_dimensions(graph)
    try:
        plan = make_plan(graph, "graph", inventory_of(STAGES), PlanOptions(mode=BalancedMode(num_stages=STAGES)))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            stages = load_stages(graph, plan, WeightFiles.of(exported.save_weights(Path(folder))))
            batches = (example, _of_dynamic_sizes(example, larger, dynamic))
            results = [run_stages(graph, stages, Batch(kwargs=batch)) for batch in batches]
            equal_to = _equal_to(module, batches, results)
    except Exception as error:
        return Finding(architecture=architecture, why_not=_reason(error), is_ours=True)
    if any(issubclass(one.category, PlannerWarning) for one in told):
        equal_to += ", other numbers than eager"
    trains, training_is_ours = _told(lambda: trains_as(architecture.module(), example))
    generates, generation_is_ours = "", False
    if architecture.kind.auto_class in GENERATING and _goes_on_with_tokens(module):
        # Here: tests collect this module without importing transformers.
        from tests.models.generates import generates_as

        generates, generation_is_ours = _told(lambda: generates_as(architecture.module()))
    return Finding(
        architecture=architecture,
        nodes=len(graph.nodes),
        stages=len(plan.stages),
        gap=plan.gap,
        equal_to=equal_to,
        trains=trains,
        generates=generates,
        is_ours=training_is_ours or generation_is_ours,
        dynamic=tuple(f"{name}[{dimension}]" for name, dimension in sorted(dynamic)),
    )


def _goes_on_with_tokens(module: Any) -> bool:
    return module.config.is_encoder_decoder or module.main_input_name == "input_ids"


def _told(trial: Callable[[], str]) -> tuple[str, bool]:
    """What a trial says, or why there is none, and whether that is ours."""
    try:
        return trial(), False
    except UnsupportedModule as error:
        is_torchs = _is_torchs(error) or "custom torch.autograd.Function" in str(error)
        return f"not: {_reason(error).partition(';')[0]}", not is_torchs
    except Exception as error:
        return f"not: {_reason(error)}", True


def _is_torchs(error: UnsupportedModule) -> bool:
    reasons = (
        "torch.export cannot capture",
        "depends on what a tensor holds",
        "it does not go on from keys and values in buffers",
        "and not only keys and values",
        "gives other logits than without",
        "its attention to what is encoded is of another kind",
        "some of its layers keep nothing of what is encoded",
    )
    return any(reason in str(error) for reason in reasons)


def _equal_to(module: nn.Module, batches: Sequence[Inputs], results: Sequence[Any]) -> str:
    """Raises AssertionError where the results are neither what the module gives nor what torch.export makes of it."""
    try:
        for batch, output in zip(batches, results, strict=True):
            assert_bitwise_equal(output, module(**batch))
    except AssertionError:
        with torch.enable_grad():
            program = torch.export.export(module, (), dict(batches[0]), dynamic_shapes=_all_dynamic(batches[0]))
        for batch, output in zip(batches, results, strict=True):
            assert_bitwise_equal(output, program.module()(**batch))
        return "torch.export"
    return "eager"


def _all_dynamic(example: Inputs) -> dict[str, dict[int, object]]:
    return {name: dict.fromkeys(range(tensor.dim()), Dim.AUTO) for name, tensor in example.items()}


def _dynamic_dimensions(graph: Graph) -> set[tuple[str, int]]:
    values = graph.values_by_id()
    return {
        (input_.name, dimension)
        for input_ in graph.inputs
        if isinstance(input_.content, ValueReference)
        for dimension, size in enumerate(values[input_.content.value_id].dims)
        if not isinstance(size, int)
    }


def _of_dynamic_sizes(example: Inputs, larger: Inputs, dynamic: set[tuple[str, int]]) -> Inputs:
    """The larger batch, cut to the example's size where a dimension is fixed."""
    cut = {}
    for name, tensor in larger.items():
        for dimension, size in enumerate(example[name].shape):
            tensor = tensor if (name, dimension) in dynamic else tensor.narrow(dimension, 0, size)
        cut[name] = tensor.contiguous()
    return cut


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.replace("|", "/")[:300]


def row(finding: Finding) -> str:
    if finding.why_not:
        return f"| {_title(finding.architecture)} | | | {finding.why_not} | | | |"
    gap = "" if finding.gap is None else f"{100 * finding.gap:.0f} %"
    sizes = ", ".join(finding.dynamic)
    title, results = _title(finding.architecture), (finding.equal_to, finding.trains, finding.generates)
    cells = (title, str(finding.stages), gap, *results, sizes)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def write_rows(path: Path, findings: Iterable[Finding]) -> None:
    """Behind the file's marker; rows of architectures that were not surveyed stay as they are."""
    head, _, old = path.read_text(encoding="utf-8").partition(MARKER)
    rows = {line.split(" | ")[0]: line for line in old.splitlines() if line.startswith("| ")}
    rows |= {f"| {_title(finding.architecture)}": row(finding) for finding in findings}
    listed = [rows[title] for one in ARCHITECTURES if (title := f"| {_title(one)}") in rows]
    path.write_text("\n".join([head + MARKER, "", *HEADINGS, *listed, ""]), encoding="utf-8")


def _title(architecture: Architecture) -> str:
    return f"{architecture.kind.title} `{architecture.model_type}`"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="kind or kind/model_type; all where none is named")
    parser.add_argument("--write", type=Path, help="puts each row behind the marker of this file")
    options = parser.parse_args(arguments)
    # Here: tests collect this module without importing transformers.
    from transformers import logging

    logging.set_verbosity_error()
    chosen = [
        one
        for one in ARCHITECTURES
        if (not options.names or {one.name, one.kind.title} & set(options.names)) and find_spec(one.kind.library)
    ]
    findings = []
    for architecture in chosen:
        finding = survey(architecture)
        findings.append(finding)
        if options.write is not None:
            write_rows(options.write, findings)
        outcome = (
            finding.why_not or f"{finding.stages} stages, trains: {finding.trains}, generates: {finding.generates}"
        )
        print(f"{architecture.name}: {'OURS ' if finding.is_ours else ''}{outcome}", flush=True)
    return int(any(finding.is_ours for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
