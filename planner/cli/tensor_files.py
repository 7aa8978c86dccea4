"""Named tensors in .npz and .safetensors files, bit for bit where the format can (bfloat16 and float8: safetensors)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from planner.client.tensors import RawTensor, TensorKind, from_raw
from planner.errors import InvalidArgument
from planner.graph.ir import SAFETENSORS_DTYPES


def check_writable(path: Path) -> None:
    """Before the work is done rather than after. Raises InvalidArgument for a format that cannot be written."""
    if path.suffix not in (".npz", ".safetensors"):
        raise InvalidArgument(f"{path}: a file of tensors ends with .npz or .safetensors")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path}: there is no folder {path.parent}")


def read_tensors(path: Path) -> dict[str, RawTensor | np.ndarray[Any, Any]]:
    """numpy arrays of an .npz, raw tensors of a .safetensors; by name, in the file's order."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        if path.suffix == ".safetensors":
            entries = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
            return {name: _raw(name, entry) for name, entry in entries}
    except (OSError, ValueError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise InvalidArgument(f"{path}: {error}") from None
    raise InvalidArgument(f"{path}: inputs come from a .npz or .safetensors file")


def write_tensors(path: Path, tensors: Mapping[str, RawTensor]) -> None:
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: from_raw(raw, TensorKind.NUMPY) for name, raw in tensors.items()}
        np.savez(path, **arrays)
        return
    path.write_bytes(_safetensors(tensors))


def _safetensors(tensors: Mapping[str, RawTensor]) -> bytes:
    """The format is its header's length, a JSON header, and the tensors' bytes one after another."""
    header, offset = {}, 0
    for name, raw in tensors.items():
        safetensors_dtype = raw.dtype.facts.safetensors
        if not safetensors_dtype:
            raise InvalidArgument(f"output {name!r} is {raw.dtype.value}: safetensors has no such dtype; use .npz")
        end = offset + len(raw.data)
        header[name] = {"dtype": safetensors_dtype, "shape": list(raw.dims), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(raw.data for raw in tensors.values())


def split_rows(raw: RawTensor, batch_size: int) -> list[RawTensor]:
    """Along the first dimension; the last part may be smaller."""
    rows = raw.dims[0]
    row_bytes = len(raw.data) // rows if rows else 0
    starts = range(0, rows, batch_size)
    return [
        RawTensor(
            dtype=raw.dtype,
            dims=(min(batch_size, rows - start), *raw.dims[1:]),
            data=raw.data[start * row_bytes : (start + batch_size) * row_bytes],
        )
        for start in starts
    ]


def join_rows(name: str, parts: Sequence[RawTensor]) -> RawTensor:
    """The parts after one another along the first dimension."""
    if len(parts) == 1:
        return parts[0]
    if any(not part.dims or part.dims[1:] != parts[0].dims[1:] for part in parts):
        shapes = sorted({str(list(part.dims)) for part in parts})
        raise InvalidArgument(
            f"output {name!r} has shapes {', '.join(shapes)} from batch to batch and cannot be joined; "
            "run without --batch-size"
        )
    rows = sum(part.dims[0] for part in parts)
    return RawTensor(dtype=parts[0].dtype, dims=(rows, *parts[0].dims[1:]), data=b"".join(part.data for part in parts))


def _raw(name: str, entry: Mapping[str, Any]) -> RawTensor:
    dtype = SAFETENSORS_DTYPES.get(entry["dtype"])
    if dtype is None:
        raise InvalidArgument(f"tensor {name!r}: dtype {entry['dtype']} cannot be sent")
    return RawTensor(dtype=dtype, dims=tuple(entry["shape"]), data=bytes(entry["data"]))
