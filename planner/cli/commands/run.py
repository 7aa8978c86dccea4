"""`run`: named inputs from a file through a deployment, named outputs into a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import batch_bar
from planner.cli.tensor_files import check_writable, join_rows, read_tensors, split_rows, write_tensors
from planner.client.microbatches import carried
from planner.client.outputs import ChosenOutput, every_output
from planner.client.tensors import RawTensor, named_to_raw
from planner.errors import InvalidArgument, MicrobatchFailed
from planner.graph.ir import Dtype, Graph, Value, ValueKind


def run(
    deployment: Annotated[
        str, typer.Argument(metavar="DEPLOYMENT", help="Deployment id, or its first six digits or more.")
    ],
    inputs: Annotated[Path, typer.Argument(metavar="INPUTS", help=".npz or .safetensors with the inputs, by name.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write the outputs: .npz or .safetensors.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=0, help="Cut the inputs into batches of so many rows; 0: one batch.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="OUTPUT",
            help="Take this output alone, or a part: logits, 'logits[:, -1]', 'logits[:, -1].argmax(-1)'; repeat.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, help="Batches in flight.", show_default="as many as keep all stages busy"),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a file of inputs through a deployment."""
    if out is not None:
        check_writable(out)
    tensors = read_tensors(inputs)
    with connect(server) as client, client.pipeline(deployment, outputs=only or ()) as pipeline:
        batches = _batches(pipeline.graph, _leaves(pipeline.graph, tensors), batch_size)
        results = []
        with batch_bar(len(batches)) as advance:
            for result in pipeline.run_leaves(batches, window):
                if isinstance(result, MicrobatchFailed):
                    raise result
                results.append(result)
                advance()
    outputs = _join(pipeline.chosen or every_output(pipeline.graph), results)
    if out is not None:
        write_tensors(out, outputs)
    document = _document(deployment, len(batches), outputs, out)
    emit(document, output, lambda: _outputs_table(document))


def _leaves(graph: Graph, tensors: Mapping[str, Any]) -> list[object]:
    """The graph's inputs in order, from the file's entries of those names."""
    inputs = _carried_values(graph)
    needed = [name for name, _ in inputs]
    lacking, unknown = sorted(set(needed) - set(tensors)), sorted(set(tensors) - set(needed))
    if lacking or unknown:
        problem = f"the file lacks input {lacking[0]!r}" if lacking else f"the graph has no input {unknown[0]!r}"
        raise InvalidArgument(f"{problem}; it takes {', '.join(needed)}")
    return [_leaf(name, value, tensors[name]) for name, value in inputs]


def _leaf(name: str, value: Value, entry: Any) -> object:
    if value.kind is ValueKind.TENSOR:
        assert value.dtype is not None
        return named_to_raw(name, entry, value.dtype)
    if not hasattr(entry, "item") or entry.size != 1:
        raise InvalidArgument(f"input {name!r} is one number: give it in a .npz, as an array without dimensions")
    return entry.item()


def _batches(graph: Graph, leaves: Sequence[object], batch_size: int) -> list[list[object]]:
    """`leaves` cut into batches of `batch_size` rows; what has no batch dimension is in each of them."""
    if batch_size == 0:
        return [list(leaves)]
    rows = _batch_dimension(graph, leaves)
    sizes = {leaf.dims[0] for leaf, cut in zip(leaves, rows, strict=True) if cut and isinstance(leaf, RawTensor)}
    if len(sizes) != 1 or sizes == {0}:
        raise InvalidArgument(f"--batch-size: the inputs have {sorted(sizes) or 'no'} rows, needs one number of them")
    num_batches = -(-sizes.pop() // batch_size)
    parts = [
        split_rows(leaf, batch_size) if cut and isinstance(leaf, RawTensor) else [leaf] * num_batches
        for leaf, cut in zip(leaves, rows, strict=True)
    ]
    return [list(batch) for batch in zip(*parts, strict=True)]


def _batch_dimension(graph: Graph, leaves: Sequence[object]) -> list[bool]:
    """Which leaves are cut: those that begin with the first dynamic first dimension; if there is none, every tensor."""
    firsts = [value.dims[0] if value.dims else None for _, value in _carried_values(graph)]
    dynamic = next((first for first in firsts if first is not None and not isinstance(first, int)), None)
    if dynamic is not None:
        return [first == dynamic for first in firsts]
    return [isinstance(leaf, RawTensor) and bool(leaf.dims) for leaf in leaves]


def _join(outputs: Sequence[ChosenOutput], results: Sequence[Sequence[object]]) -> dict[str, RawTensor]:
    return {
        output.text: _join_output(output.text, output.dtype, [result[index] for result in results])
        for index, output in enumerate(outputs)
    }


def _join_output(name: str, dtype: Dtype | None, parts: Sequence[object]) -> RawTensor:
    """A number becomes a tensor of one number per batch."""
    if dtype is not None:
        return join_rows(name, [named_to_raw(name, part, dtype) for part in parts])
    numbers = np.asarray(parts)
    return named_to_raw(name, numbers, Dtype(numbers.dtype.name))


def _carried_values(graph: Graph) -> list[tuple[str, Value]]:
    values = graph.values_by_id()
    return [(name, values[value_id]) for name, value_id in carried(graph.inputs)]


def _document(deployment: str, num_batches: int, outputs: Mapping[str, RawTensor], out: Path | None) -> dict[str, Any]:
    return {
        "deployment_id": deployment,
        "num_batches": num_batches,
        "outputs": [{"name": name, "dtype": raw.dtype.value, "dims": list(raw.dims)} for name, raw in outputs.items()],
        "path": str(out) if out else None,
    }


def _outputs_table(document: Mapping[str, Any]) -> RenderableType:
    written = f", written to {document['path']}" if document["path"] else " (--out FILE keeps them)"
    table = Table("output", "dtype", "dims", box=box.SIMPLE_HEAD)
    for entry in document["outputs"]:
        table.add_row(entry["name"], entry["dtype"], str(entry["dims"]))
    num_batches = document["num_batches"]
    count = "1 batch" if num_batches == 1 else f"{num_batches} batches"
    return Group(Text(f"{count}{written}", style="bold"), table)
