"""Takes each operator of torch's own tests through export and the daemon's loader, and says which come through.

    python -m tests.models.operators [NAME ...] [--write docs/models.md]

torch's tests keep sample inputs of everything that torch computes (`torch.testing._internal`, "op_db"). Each sample
becomes a module that calls the operator once, and one that calls its in-place twin on a copy; what torch.export
captures of it is exported, loaded by the daemon's loader, and run beside the module: bitwise equal, or of equal shapes
and dtypes where it draws random numbers or leaves memory as it was. Without names all of them, some minutes on one
core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.client.export import ExportedModel, export
from planner.errors import PlannerError
from planner.graph.ir import Operator
from planner.graph.operators import facts_of
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program

MARKER = "<!-- list by python -m tests.models.operators --write docs/models.md -->"
END = "<!-- end of the list -->"
# Torch gives some operators hundreds of samples; the first and the last of a few differ most.
MOST_SAMPLES = 6


class OneCall(nn.Module):
    """`function(*args, **kwargs)`, where the tensors among the arguments are the module's inputs, in their order."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._function = function
        self._leaves, self._structure = pytree.tree_flatten((args, kwargs))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        results = pytree.tree_leaves(self._function(*args, **kwargs))
        return tuple(result for result in results if isinstance(result, torch.Tensor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`why_not` is empty for an operator whose samples come through."""

    name: str
    why_not: str = ""


def findings(names: Sequence[str] = ()) -> Iterator[Finding]:
    """One for each operator that has samples of dense tensors which torch.export captures."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db:
        name = operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")
        if names and name not in names:
            continue
        outcomes = [outcome for call in _calls(operator) if (outcome := outcome_of(call)) is not None]
        if outcomes:
            yield Finding(name=name, why_not=next((one for one in outcomes if one), ""))


def _calls(operator: Any) -> Iterator[OneCall]:
    dtypes = sorted(operator.supported_dtypes("cpu"), key=str)
    if not dtypes:
        return
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    samples = list(islice(operator.sample_inputs("cpu", dtype, requires_grad=False), MOST_SAMPLES))
    functions = [operator.op, *([_on_a_copy(operator.inplace_variant)] if operator.inplace_variant else [])]
    for function, sample in product(functions, samples[:1] + samples[1:][-1:]):
        call = OneCall(function, (sample.input, *sample.args), sample.kwargs).eval()
        if call.tensors() and all(tensor.layout is torch.strided for tensor in call.tensors()):
            yield call


def _on_a_copy(write: Callable[..., Any]) -> Callable[..., Any]:
    """What it returns, and what it has written to."""

    def written(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        copy = tensor.clone()
        return write(copy, *args, **kwargs), copy

    return written


def outcome_of(call: OneCall) -> str | None:
    """ "" where it comes through, else why not; None where torch itself neither runs nor exports it."""
    batch = Batch(args=call.tensors())
    try:
        expected = run_module(call, batch)
        torch.export.export(call, _copies(call))
    except Exception:
        return None
    if not expected:
        return None
    try:
        exported = export(call, _copies(call))
        with tempfile.TemporaryDirectory() as folder:
            outputs = run_program(exported, reload(exported, Path(folder)), batch)
        if any(_is_arbitrary(node.operator) for node in exported.graph.nodes):
            outputs, expected = pytree.tree_map(torch.zeros_like, (outputs, expected))
        assert_bitwise_equal(outputs, expected)
    except PlannerError as error:
        return str(error).splitlines()[0]
    except AssertionError:
        return "the loaded program gives other numbers"
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return (
        "a result shares storage with an input, and its operator does not say so"
        if _hides_alias(call, exported)
        else ""
    )


def _is_arbitrary(operator: Operator) -> bool:
    return operator.random or facts_of(operator.name).uninitialised


def _hides_alias(call: OneCall, exported: ExportedModel) -> bool:
    """Of a program of one node, whose results are the call's and whose inputs are the call's."""
    if len(exported.graph.nodes) != 1 or exported.graph.nodes[0].operator.aliased_arguments:
        return False
    tensors = _copies(call)
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
    with torch.no_grad():
        return any(result.numel() and result.untyped_storage().data_ptr() in addresses for result in call(*tensors))


def _copies(call: OneCall) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.detach().clone() for tensor in call.tensors())


def listed(findings: Sequence[Finding]) -> str:
    """The paragraph and list for docs/models.md."""
    left_out = [one for one in findings if one.why_not]
    reasons = Counter(_reason(one) for one in left_out)
    come_through = len(findings) - len(left_out)
    summary = (
        f"Of {len(findings)} operators of torch's own tests that torch.export captures, {come_through} come through."
    )
    lines = [summary, "The others are refused for:", ""] if left_out else [summary]
    lines += [f"- {count} × {reason}" for reason, count in sorted(reasons.items())]
    return "\n".join(lines)


def _reason(finding: Finding) -> str:
    operator = finding.why_not.partition(" in ")[0]
    return f"`{operator.removeprefix('operator ')}`" if operator.startswith("operator ") else finding.why_not[:150]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="as torch's tests name them; all where none is named")
    parser.add_argument("--write", type=Path, help="puts the list behind the marker of this file")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    results = []
    for finding in findings(options.names):
        results.append(finding)
        if finding.why_not:
            print(f"{finding.name}: {finding.why_not}", flush=True)
    print(f"{sum(not one.why_not for one in results)} of {len(results)} come through")
    if options.write is not None:
        head, _, rest = options.write.read_text(encoding="utf-8").partition(MARKER)
        tail = rest.partition(END)[2]
        options.write.write_text(f"{head}{MARKER}\n\n{listed(results)}\n\n{END}{tail}", encoding="utf-8")
    return int(any(one.why_not for one in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
