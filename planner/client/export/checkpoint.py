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
class CacheSize:
    """Keys and values of `length` positions, of `batch_size` sequences side by side, in each of `num_slots`: the stages
    work on the batches of as many slots at once. Raises InvalidArgument for sizes that are none.

    With `has_beams` a batch says which row each of its rows goes on from, as a search by beams does; with `has_padding`
    which positions of each row are padding. A decoder that reads what an encoder gives also keeps the keys and values
    of `encoded_length` positions of that.
    """

    length: int
    batch_size: int = 1
    num_slots: int = 1
    has_beams: bool = False
    has_padding: bool = False
    encoded_length: int = 0

    def __post_init__(self) -> None:
        if self.length < 2 or self.batch_size < 1 or self.num_slots < 1 or self.encoded_length < 0:
            raise InvalidArgument(
                f"a cache of {self.length} positions and {self.encoded_length} encoded ones, for {self.batch_size}"
                f" sequences in {self.num_slots} slots: needs at least 2 and 0, for at least 1, in at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCheckpoint:
    """`tensors` says where the bytes of each state are, once for a tie group, under the first name of it."""

    graph: Graph
    tensors: Mapping[str, TensorSource]


def export_checkpoint(
    folder: Path | str, name: str | None = None, *, cache: CacheSize | None = None
) -> ExportedCheckpoint:
    """The model that config.json names, in evaluation, for batches and lengths of any size.

    With a `cache` a causal language model that generates token by token: keys and values are in its buffers, and it
    takes `input_ids` [batch, tokens], `cache_position` [tokens], where there are several slots the number of a `slot`,
    with beams `beam_idx` [batch], and with padding `attention_mask` [batch, positions] and, where the model has them,
    `position_ids` [batch, tokens].

    Tensors that the checkpoint stores under other names, tied, or apart (each expert by itself) are found as
    transformers finds them. Raises NotFound, InvalidArgument, Corrupt, or UnsupportedModule.
    """
    from planner.client.export.meta_model import build_on_meta, export_on_meta

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise NotFound(f"{folder}: no config.json; needs a folder as save_pretrained writes it")
    stored = dict(tensor for path in files_of_folder(folder) for tensor in stored_tensors(path))
    model = build_on_meta(folder, cache)
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
