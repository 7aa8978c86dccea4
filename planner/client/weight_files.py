"""safetensors files that somebody gives for a graph: looked at here, before gigabytes of them are on their way."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from planner.client.weight_layout import TensorSource, stored_tensors
from planner.errors import InvalidArgument, NotFound, PlannerWarning, few_of
from planner.graph.ir import Graph
from planner.store.weights import fit_states

_PATTERN = "*.safetensors"
_NAMED = 3


def weight_files(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """Each is a file, or a folder of such. Raises NotFound where there is none."""
    paths = [Path(one) for one in ([given] if isinstance(given, (str, Path)) else given)]
    files = list[Path]()
    for path in paths:
        among = sorted(path.glob(_PATTERN)) if path.is_dir() else [path]
        if not among or not all(one.is_file() for one in among):
            raise NotFound(f"{path}: {'no safetensors files in it' if path.is_dir() else 'no such file'}")
        files += among
    return files


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
