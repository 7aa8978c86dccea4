"""safetensors files that somebody gives for a graph: looked at here, before gigabytes of them are on their way."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from planner.client.weight_layout import INDEX_FILE, TensorSource, stored_tensors
from planner.errors import Corrupt, InvalidArgument, NotFound, PlannerWarning, few_of
from planner.graph.ir import Graph
from planner.store.weights import fit_states

_PATTERN = "*.safetensors"
_SINGLE_FILE = "model.safetensors"
_NAMED = 3


def weight_files(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """Each is a file, or a folder of such. Raises NotFound where there is none, Corrupt for an index that is none."""
    files = list[Path]()
    for path in [Path(one) for one in ([given] if isinstance(given, (str, Path)) else given)]:
        if path.is_dir():
            files += files_of_folder(path)
        elif path.is_file():
            files.append(path)
        else:
            raise NotFound(f"{path}: no such file")
    return files


def files_of_folder(folder: Path) -> list[Path]:
    """As transformers reads it: those of its index, else model.safetensors, else all. Beside them others may hold the
    same weights under other names, as consolidated.safetensors does.

    Raises NotFound where there is none, Corrupt for an index that is none.
    """
    if (folder / INDEX_FILE).is_file():
        return _indexed(folder)
    if (folder / _SINGLE_FILE).is_file():
        return [folder / _SINGLE_FILE]
    files = sorted(one for one in folder.glob(_PATTERN) if one.is_file())
    if not files:
        raise NotFound(f"{folder}: no safetensors files in it; save_pretrained, or safetensors.torch, writes them")
    return files


def _indexed(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Corrupt(f"{index}: no index of weights ({error!r}); download it again") from error
    for file in names:
        if not isinstance(file, str) or Path(file).name != file:
            raise Corrupt(f"{index}: names {file!r}, which is no file of the folder")
        if not (folder / file).is_file():
            raise NotFound(f"{folder}: {file} of its index is missing; download it again")
    return sorted(folder / file for file in names)


def check_weights(graph: Graph, files: Sequence[Path], *, stacklevel: int) -> None:
    """Reads headers alone. Warns of what the graph has no use for.

    Raises NotFound for a tensor that is in none of them, InvalidArgument for one that does not fit or is in two of
    them, Corrupt for a file that is not sound; a whole one may still have other bytes than it had.
    """
    tensors: dict[str, TensorSource] = {}
    places: dict[str, Path] = {}
    for file in files:
        for name, tensor in stored_tensors(file):
            if name in places:
                raise InvalidArgument(f"tensor {name!r} is in {places[name]} and in {file}: give one of them")
            tensors[name], places[name] = tensor, file
    fit_states(graph, tensors)
    unused = sorted(tensors.keys() - {state.name for state in graph.states})
    if unused:
        warnings.warn(
            f"the graph has no use for {len(unused)} of the {len(tensors)} stored tensors"
            f" ({few_of(unused, _NAMED)}): are they of this model?",
            PlannerWarning,
            stacklevel=stacklevel,
        )
