"""A local folder of Hugging Face (config.json and safetensors) as a graph and the places of its weights.

The module is built on the meta device, and the weights stay where they are: no tensor of the checkpoint is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.client.weight_files import files_of_folder
from planner.client.weight_layout import TensorSource, stored_tensors
from planner.errors import InvalidArgument, NotFound, UnsupportedModule
from planner.graph.ir import Graph

if TYPE_CHECKING:
    from planner.client.export.exported_model import ExportedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCheckpoint:
    """`tensors` says where the bytes of each state are, once for a tie group, under the first name of it."""

    graph: Graph
    tensors: Mapping[str, TensorSource]


def export_checkpoint(
    folder: Path | str, name: str | None = None, *, cache_length: int | None = None, batch_size: int | None = None
) -> ExportedCheckpoint:
    """The model that config.json names, in evaluation, for batches and lengths of any size.

    With `cache_length` a causal language model that generates token by token: it keeps keys and values of so many
    positions, of `batch_size` sequences (1), in buffers, and takes `input_ids` [batch, tokens] and `cache_position`
    [tokens].

    Tensors that the checkpoint stores under other names, tied, or apart (each expert by itself) are found as
    transformers finds them. Raises NotFound, InvalidArgument, Corrupt, or UnsupportedModule.
    """
    from planner.client.export.cached_model import CacheSize
    from planner.client.export.meta_model import build_on_meta, export_on_meta

    folder, cache_size = Path(folder), None
    if cache_length is not None:
        cache_size = CacheSize(length=cache_length, batch_size=1 if batch_size is None else batch_size)
    elif batch_size is not None:
        raise InvalidArgument(
            "batch_size is of a cache, and there is none without cache_length: batches are of any size"
        )
    if not (folder / "config.json").is_file():
        raise NotFound(f"{folder}: no config.json; needs a folder as save_pretrained writes it")
    stored = dict(tensor for path in files_of_folder(folder) for tensor in stored_tensors(path))
    model = build_on_meta(folder, cache_size)
    sources = model.sources(stored)
    model.check(sources, folder)
    exported = export_on_meta(model, name or folder.resolve().name)
    return ExportedCheckpoint(graph=exported.graph, tensors=dict(_tensors(exported, model.exported_sources(sources))))


def _tensors(exported: ExportedModel, sources: Mapping[str, TensorSource]) -> Iterator[tuple[str, TensorSource]]:
    """Each state's bytes under the name that the server looks for; of tied states any may be the one stored."""
    groups: dict[object, list[str]] = {}
    for state in exported.graph.states:
        groups.setdefault(state.tie_group or state.name, []).append(state.name)
    for names in groups.values():
        source = next((sources[name] for name in names if name in sources), None)
        if source is None:
            raise UnsupportedModule(
                f"{names[0]!r}: a tensor that the model's code makes; load it with from_pretrained, submit the module"
            )
        yield names[0], source
