"""What export gives, and its file form: a folder of one graph and its weights as safetensors. Nothing is unpickled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import Corrupt, NotFound
from planner.graph.ir import Graph
from planner.wire.graph import graph_from_bytes, graph_to_bytes

if TYPE_CHECKING:
    import torch

GRAPH_FILE = "graph.pb"
WEIGHTS_PATTERN = "weights-*.safetensors"
DEFAULT_MAX_FILE_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """`tensors` holds each state's bytes once, under the first name of its tie group; none that is on meta."""

    graph: Graph
    tensors: Mapping[str, torch.Tensor]

    def save_weights(self, directory: Path | str, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> tuple[Path, ...]:
        """Writes weights-00001.safetensors, ... of at most `max_file_bytes` of tensors each, or one larger tensor."""
        from safetensors.torch import save_file

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(WEIGHTS_PATTERN):
            stale.unlink()
        paths = []
        for index, shard in enumerate(_shards(self.tensors, max_file_bytes), start=1):
            path = folder / f"weights-{index:05d}.safetensors"
            save_file(_apart(shard), path)
            paths.append(path)
        return tuple(paths)

    def save(self, path: Path | str, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> Path:
        """Writes the folder that `load_exported` reads, over what an earlier save left there."""
        folder = Path(path)
        self.save_weights(folder, max_file_bytes)
        (folder / GRAPH_FILE).write_bytes(graph_to_bytes(self.graph))
        return folder


def read_exported(path: Path | str) -> tuple[Graph, tuple[Path, ...]]:
    """The graph and the weight files of a saved model, without loading a tensor.

    Raises NotFound if there is none, GraphError if its graph is not one.
    """
    folder = Path(path)
    if not (folder / GRAPH_FILE).is_file():
        raise NotFound(
            f"{folder}: no exported graph; needs a folder with {GRAPH_FILE}, as ExportedModel.save writes it"
        )
    return graph_from_bytes((folder / GRAPH_FILE).read_bytes()), tuple(sorted(folder.glob(WEIGHTS_PATTERN)))


def load_exported(path: Path | str) -> ExportedModel:
    """A saved model. Raises NotFound, GraphError, or Corrupt for weights that cannot be read or do not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    graph, files = read_exported(path)
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except SafetensorError as error:
            raise Corrupt(f"{file}: not a safetensors file ({error}); export the module again") from error
    _check_complete(graph, tensors, Path(path))
    return ExportedModel(graph=graph, tensors=tensors)


def _check_complete(graph: Graph, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    values = graph.values_by_id()
    seen_groups: set[int] = set()
    for state in graph.states:
        if not state.sha256 or (state.tie_group and state.tie_group in seen_groups):
            continue
        seen_groups.add(state.tie_group)
        if state.name not in tensors:
            raise Corrupt(f"{path}: the weights lack {state.name!r}; export the module again")
        dims, needed = tuple(tensors[state.name].shape), values[state.value_id].dims
        if dims != needed:
            raise Corrupt(f"{path}: {state.name!r} is {list(dims)}, the graph says {list(needed)}")


def _apart(shard: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of the tensors that share a storage: safetensors refuses those that overlap in memory."""
    from planner.client.export.states import storage_of

    num_owners = Counter(storage_of(tensor) for tensor in shard.values())
    contiguous = {name: tensor.detach().contiguous() for name, tensor in shard.items()}
    return {
        name: tensor.clone() if num_owners[storage_of(tensor)] > 1 else tensor for name, tensor in contiguous.items()
    }


def _shards(tensors: Mapping[str, torch.Tensor], max_file_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    filled = 0
    for name, tensor in tensors.items():
        size_bytes = tensor.numel() * tensor.element_size()
        if shard and filled + size_bytes > max_file_bytes:
            yield shard
            shard, filled = {}, 0
        shard[name] = tensor
        filled += size_bytes
    if shard:
        yield shard
