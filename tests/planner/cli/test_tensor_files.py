"""Files of tensors: read and written bit for bit, cut into batches and joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from planner.cli.tensor_files import check_writable, join_rows, read_tensors, split_rows, write_tensors
from planner.client.tensors import RawTensor, TensorKind, from_raw, to_raw
from planner.errors import InvalidArgument
from planner.graph.ir import Dtype


def raw(tensor: torch.Tensor) -> RawTensor:
    return to_raw(tensor, Dtype(str(tensor.dtype).removeprefix("torch.")))


TENSORS = {
    "bfloat16": torch.randn(4, 3).bfloat16(),
    "float8": torch.randn(2, 2).to(torch.float8_e4m3fn),
    "int64": torch.arange(5),
    "bool": torch.tensor([True, False]),
    "number": torch.tensor(3.5),
    "empty": torch.zeros(0, 7),
}


def test_safetensors_keep_every_bit(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "in.safetensors")
    read = read_tensors(tmp_path / "in.safetensors")
    assert read == {name: raw(tensor) for name, tensor in TENSORS.items()}
    write_tensors(tmp_path / "out.safetensors", {name: to_raw(leaf, leaf.dtype) for name, leaf in read.items()})
    written = load_file(tmp_path / "out.safetensors")
    for name, tensor in TENSORS.items():
        assert written[name].dtype == tensor.dtype
        assert raw(written[name]) == raw(tensor)


def test_npz(tmp_path: Path) -> None:
    write_tensors(tmp_path / "out.npz", {name: raw(tensor) for name, tensor in TENSORS.items()})
    read = read_tensors(tmp_path / "out.npz")
    for name, tensor in TENSORS.items():
        expected = tensor.float() if name in ("bfloat16", "float8") else tensor
        np.testing.assert_array_equal(read[name], expected.numpy())


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 24])
def test_what_is_cut_is_joined_again(rows: int) -> None:
    tensor = torch.randn(rows, 3, 2)
    parts = split_rows(raw(tensor), 8)
    assert [part.dims[0] for part in parts] == [min(8, rows - start) for start in range(0, rows, 8)]
    assert torch.equal(from_raw(parts[0], TensorKind.TORCH), tensor[:8])
    assert join_rows("x", parts) == raw(tensor)


def test_outputs_of_other_shapes_are_not_joined() -> None:
    with pytest.raises(InvalidArgument, match=r"'y'.*\[2, 3\], \[2, 4\]"):
        join_rows("y", [raw(torch.zeros(2, 3)), raw(torch.zeros(2, 4))])
    with pytest.raises(InvalidArgument, match="without --batch-size"):
        join_rows("y", [raw(torch.tensor(1.0)), raw(torch.tensor(1.0))])


@pytest.mark.parametrize(
    "name", ["missing.npz", "missing.safetensors", "wrong.txt", "broken.npz", "broken.safetensors"]
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not a file of tensors")
    with pytest.raises(InvalidArgument, match=name):
        read_tensors(tmp_path / name)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InvalidArgument, match="allow_pickle=False"):
        read_tensors(tmp_path / "objects.npz")


def test_where_nothing_can_be_written_is_known_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.npz")
    with pytest.raises(InvalidArgument, match=r"\.npz or \.safetensors"):
        check_writable(tmp_path / "out.txt")
    with pytest.raises(InvalidArgument, match="no folder"):
        check_writable(tmp_path / "missing" / "out.npz")
