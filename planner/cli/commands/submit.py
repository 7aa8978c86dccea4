"""`submit` and `export`: a module, or a graph exported before, to the server or into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.factory import export_from_factory
from planner.cli.graph_names import find_graph
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit, say
from planner.cli.progress import spinner, upload_bars
from planner.cli.tables import graphs_table
from planner.client.export import CacheSize, ExportedCheckpoint, ExportedModel, export_checkpoint
from planner.errors import InvalidArgument

CHECKPOINT_PREFIX = "hf:"

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="package.module:factory, a callable that returns (module, args[, kwargs[, dynamic_shapes]]); "
        "the folder of an exported graph; or hf:FOLDER, with config.json and safetensors.",
    ),
]
NameOption = Annotated[str | None, typer.Option("--name", help="For display; other commands take it too.")]
CompareOption = Annotated[
    bool,
    typer.Option(
        "--compare/--no-compare",
        help="Run a factory's module, and what was captured of it, on the example inputs, and warn where they differ.",
    ),
]
CacheLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Of hf:FOLDER: generates token by token, with keys and values of so many positions in its buffers."
    ),
]
BatchSizeOption = Annotated[
    int | None, typer.Option(help="With --cache-length: how many sequences side by side; else one.")
]
SlotsOption = Annotated[
    int | None,
    typer.Option(help="With --cache-length: how many such caches, so that stages work on as many batches at once."),
]
BeamsOption = Annotated[
    bool, typer.Option("--beams", help="With --cache-length: a batch says which row each of its rows goes on from.")
]
PaddingOption = Annotated[
    bool, typer.Option("--padding", help="With --cache-length: a batch says which positions of each row are padding.")
]


def submit(
    source: SourceArgument,
    name: NameOption = None,
    compare: CompareOption = True,
    cache_length: CacheLengthOption = None,
    batch_size: BatchSizeOption = None,
    slots: SlotsOption = None,
    beams: BeamsOption = False,
    padding: PaddingOption = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Upload a model's graph and weights; what the server has already is not sent again."""
    exported = _source(source, name, compare, _cache_size(cache_length, batch_size, slots, beams, padding))
    with connect(server) as client, upload_bars() as on_progress:
        record = client.submit(exported, name=name, on_progress=on_progress)
    emit(record, output, lambda: graphs_table([record]))
    if not record.deployable:
        say(f"It can be planned, but not deployed: {record.not_deployable_reason}")


def export(
    source: SourceArgument,
    target: Annotated[Path, typer.Argument(help="Folder to write: graph.pb and its weights.")],
    name: NameOption = None,
    compare: CompareOption = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Export a module into a folder, without a server; `submit` takes it later."""
    exported = _source(source, name, compare)
    if not isinstance(exported, ExportedModel):
        what = "is exported already; copy the folder, or submit it"
        raise InvalidArgument(f"{source} {what if isinstance(exported, Path) else 'holds its weights; submit it'}")
    exported.save(target)
    files = sorted(target.iterdir())
    document = {
        "path": str(target),
        "name": exported.graph.name,
        "num_nodes": len(exported.graph.nodes),
        "files": [{"name": file.name, "size_bytes": file.stat().st_size} for file in files],
    }
    emit(document, output, lambda: f"{target}: {len(exported.graph.nodes)} nodes, {len(files)} files")


def attach_weights(
    graph: Annotated[str, typer.Argument(help="Graph id, its first six digits or more, or its name.")],
    files: Annotated[list[Path], typer.Argument(help="The safetensors files, or their folder.", exists=True)],
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give a graph that was submitted without weights its tensors."""
    with connect(server) as client, upload_bars() as on_progress:
        record = client.attach_weights(find_graph(client, graph).id, files, on_progress)
    emit(record, output, lambda: graphs_table([record]))


def _cache_size(
    length: int | None, batch_size: int | None, slots: int | None, beams: bool, padding: bool
) -> CacheSize | None:
    if length is None:
        if (batch_size, slots, beams, padding) != (None, None, False, False):
            raise InvalidArgument(
                "--batch-size, --slots, --beams and --padding are of a cache: give its --cache-length"
            )
        return None
    given = {"batch_size": batch_size, "num_slots": slots}
    counts = {name: count for name, count in given.items() if count is not None}
    return CacheSize(length=length, has_beams=beams, has_padding=padding, **counts)


def _source(
    source: str, name: str | None, compare: bool, cache: CacheSize | None = None
) -> ExportedModel | ExportedCheckpoint | Path:
    path = Path(source)
    is_exported = path.exists()
    is_checkpoint = not is_exported and source.startswith(CHECKPOINT_PREFIX)
    if cache and not is_checkpoint:
        raise InvalidArgument(
            f"{source}: --cache-length is of {CHECKPOINT_PREFIX}FOLDER; what a factory returns has a cache where its"
            " module has"
        )
    if is_exported:
        return path
    with spinner(f"exporting {source}"):
        if is_checkpoint:
            return export_checkpoint(source.removeprefix(CHECKPOINT_PREFIX), name, cache=cache)
        return export_from_factory(source, name, compare=compare)
