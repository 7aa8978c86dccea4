"""Which bytes of which file are a tensor: safetensors headers, read without trusting them and without torch.

Format: 8 bytes of header length, little-endian; a JSON object of name → {dtype, shape, data_offsets}; the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from planner.errors import InvalidArgument, NotFound, few_of
from planner.graph.expression import evaluate
from planner.graph.ir import SAFETENSORS_DTYPES, Dtype, Graph, State, WeightFile

# The format's own limit.
MAX_HEADER_BYTES = 100_000_000
MAX_DIM = 1 << 40
MAX_RANK = 64

# What torch.save writes: an archive, or before torch 1.6 a pickle.
_OF_TORCH = (b"PK", b"\x80")
_NAMED = 2

# (sha256, offset_bytes, length_bytes) to chunks: BlobStore.read_range.
ReadRange = Callable[[bytes, int, int], Iterable[bytes]]


class Stored(Protocol):
    """A tensor that is in a weight file."""

    @property
    def dtype(self) -> Dtype: ...

    @property
    def dims(self) -> tuple[int, ...]: ...


_Stored = TypeVar("_Stored", bound=Stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """A tensor's bytes in a weight file; `offset_bytes` counts from the start of the file."""

    file_sha256: bytes
    offset_bytes: int
    length_bytes: int
    dtype: Dtype
    dims: tuple[int, ...]


def index_safetensors(read_range: ReadRange, file: WeightFile, at: str = "") -> dict[str, TensorLocation]:
    """Every tensor of the file by name. Raises InvalidArgument, naming the file, as `at` does, and the tensor."""
    at = at or f"weight file {file.sha256.hex()[:12]}"
    if file.size_bytes < 8:
        raise InvalidArgument(f"{at}: {file.size_bytes} bytes, a safetensors file has at least 8; upload a whole one")
    beginning = _read(read_range, file, 0, 8)
    header_bytes = int.from_bytes(beginning, "little")
    if header_bytes > min(MAX_HEADER_BYTES, file.size_bytes - 8):
        if beginning.startswith(_OF_TORCH):
            raise InvalidArgument(
                f"{at}: it is what torch.save writes, needs the safetensors format: write the state_dict with"
                " safetensors.torch.save_file"
            )
        raise InvalidArgument(
            f"{at}: its header would have {header_bytes} bytes, the file has {file.size_bytes}; "
            "it is truncated or not in the safetensors format"
        )
    header = _parse(_read(read_range, file, 8, header_bytes) if header_bytes else b"", at)
    start = 8 + header_bytes
    locations = {name: _location(name, entry, file, start, at) for name, entry in header.items()}
    _check_apart(locations, at)
    return locations


def locate_states(graph: Graph, files: Sequence[WeightFile], read_range: ReadRange) -> dict[str, TensorLocation]:
    """Where each state's bytes are; tied states share the first name of their group. Raises naming the tensor."""
    tensors: dict[str, TensorLocation] = {}
    for file in files:
        tensors.update(index_safetensors(read_range, file))
    return fit_states(graph, tensors)


def fit_states(graph: Graph, tensors: Mapping[str, _Stored]) -> dict[str, _Stored]:
    """The stored tensor of each state, as `locate_states`."""
    first_names = _first_names(graph)
    values = graph.values_by_id()
    hints = graph.hints()
    return {
        state.name: _match(
            state,
            tensors,
            first_names.get(state.tie_group, state.name),
            values[state.value_id].dtype,
            tuple(evaluate(dim, hints) for dim in values[state.value_id].dims),
        )
        for state in graph.states
    }


def _first_names(graph: Graph) -> dict[int, str]:
    names: dict[int, str] = {}
    for state in graph.states:
        if state.tie_group:
            names.setdefault(state.tie_group, state.name)
    return names


def _match(
    state: State, tensors: Mapping[str, _Stored], key: str, dtype: Dtype | None, dims: tuple[int, ...]
) -> _Stored:
    location = tensors.get(key) or tensors.get(state.name)
    if location is None:
        near = [name for name in tensors if name.endswith(f".{key}") or key.endswith(f".{name}")]
        there = few_of([f"{name!r:.80}" for name in near or sorted(tensors)], _NAMED) or "no tensors"
        raise NotFound(
            f"tensor {key!r} is in none of the weight files, which have {there}; the graph needs it", tensor=key
        )
    if location.dtype is not dtype or location.dims != dims:
        needed = dtype.value if dtype else "no tensor"
        raise InvalidArgument(
            f"tensor {key!r}: the weights have {location.dtype.value} {list(location.dims)}, "
            f"the graph needs {needed} {list(dims)}; attach the weights that it was exported with",
            tensor=key,
        )
    return location


def _read(read_range: ReadRange, file: WeightFile, offset: int, length: int) -> bytes:
    return b"".join(read_range(file.sha256, offset, length))


def _parse(content: bytes, at: str) -> dict[str, Any]:
    try:
        header = json.loads(content, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{at}: its header is not sound JSON ({error}); it is no safetensors file") from None
    if not isinstance(header, dict):
        raise InvalidArgument(f"{at}: its header is not an object; it is no safetensors file")
    header.pop("__metadata__", None)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name stands twice")
    return entries


def _location(name: str, entry: Any, file: WeightFile, start: int, at: str) -> TensorLocation:
    at = f"{at}: tensor {name[:200]!r}"
    if not isinstance(entry, dict):
        raise InvalidArgument(f"{at}: its header entry is not an object")
    dtype = SAFETENSORS_DTYPES.get(str(entry.get("dtype")))
    if dtype is None:
        raise InvalidArgument(
            f"{at}: dtype {str(entry.get('dtype'))[:40]!r}, needs one of {', '.join(SAFETENSORS_DTYPES)}"
        )
    dims = _integers(entry.get("shape"), MAX_DIM, f"{at}: shape")
    offsets = _integers(entry.get("data_offsets"), file.size_bytes - start, f"{at}: data_offsets")
    if len(dims) > MAX_RANK or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InvalidArgument(f"{at}: {len(dims)} dimensions at data_offsets {list(offsets)[:4]}")
    length = offsets[1] - offsets[0]
    if math.prod(dims) * dtype.size_bytes != length:
        raise InvalidArgument(f"{at}: {dtype.value} {list(dims)} does not fill {length} bytes")
    return TensorLocation(
        file_sha256=file.sha256, offset_bytes=start + offsets[0], length_bytes=length, dtype=dtype, dims=dims
    )


def _integers(content: Any, most: int, at: str) -> tuple[int, ...]:
    if not isinstance(content, list) or not all(type(item) is int and 0 <= item <= most for item in content):
        raise InvalidArgument(f"{at}: {str(content)[:80]}, needs a list of integers from 0 to {most}")
    return tuple(content)


def _check_apart(locations: Mapping[str, TensorLocation], at: str) -> None:
    end = 0
    for name, location in sorted(locations.items(), key=lambda item: (item[1].offset_bytes, item[1].length_bytes)):
        if location.offset_bytes < end:
            raise InvalidArgument(f"{at}: tensor {name[:200]!r} overlaps the one before it")
        end = location.offset_bytes + location.length_bytes
