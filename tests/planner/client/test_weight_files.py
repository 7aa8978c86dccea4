"""Weight files that do not fit their graph are told of before they are sent, each mistake by what it is."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from planner.client.weight_files import check_weights, weight_files
from planner.errors import Corrupt, InvalidArgument, NotFound, PlannerError, PlannerWarning
from tests.contract.graphs import chain_weights, linear_chain

NAMES = ("layers.0.weight", "layers.1.weight")
Tensors = dict[str, np.ndarray]


def folder_of(tmp_path: Path, *files: Tensors) -> Path:
    for number, tensors in enumerate(files):
        save_file(tensors, tmp_path / f"w{number}.safetensors")
    return tmp_path


@pytest.fixture
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    whole = tmp_path_factory.mktemp("whole") / "w.safetensors"
    whole.write_bytes(chain_weights(2))
    loaded: Tensors = load_file(whole)
    assert loaded.keys() == set(NAMES)
    return loaded


def test_files_and_folders_of_them_are_taken(tmp_path: Path, tensors: Tensors) -> None:
    first, second = NAMES
    folder = folder_of(tmp_path, {first: tensors[first]}, {second: tensors[second]})
    files = weight_files(folder)
    assert [file.name for file in files] == ["w0.safetensors", "w1.safetensors"]
    assert weight_files([*map(str, files)]) == files
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_weights(linear_chain(2), files, stacklevel=1)


def test_of_a_folder_of_hugging_face_only_what_it_loads_itself_is_taken(tmp_path: Path, tensors: Tensors) -> None:
    """Many hold the same weights once more, under other names."""
    first, second = NAMES
    folder = folder_of(tmp_path, {first: tensors[first]}, {second: tensors[second]})
    save_file({f"consolidated.{name}": tensor for name, tensor in tensors.items()}, folder / "consolidated.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {first: "w0.safetensors", second: "w1.safetensors"}}))
    assert [file.name for file in weight_files(folder)] == ["w0.safetensors", "w1.safetensors"]
    save_file(tensors, folder / "model.safetensors")
    assert [file.name for file in weight_files(folder)] == ["w0.safetensors", "w1.safetensors"]
    index.unlink()
    assert weight_files([str(folder), folder / "w0.safetensors"]) == [
        folder / "model.safetensors",
        folder / "w0.safetensors",
    ]
    index.write_text("{}")
    with pytest.raises(Corrupt, match="no index of weights"):
        weight_files(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda all_: {name: all_[name] for name in NAMES[:1]}, NotFound, "layers.1.weight' is in none of the weight"),
        (
            lambda all_: {f"model.{name}": tensor for name, tensor in all_.items()},
            NotFound,
            "'layers.0.weight' is in none of the weight files, which have 'model.layers.0.weight'; the graph",
        ),
        (
            lambda all_: {name: tensor.astype(np.float16) for name, tensor in all_.items()},
            InvalidArgument,
            "the weights have float16",
        ),
        (lambda all_: {}, NotFound, "none of the weight files, which have no tensors;"),
        (lambda all_: {"z" * 5000: all_[NAMES[0]]}, NotFound, f"which have '{'z' * 79}; the graph needs it"),
    ],
)
def test_tensors_that_do_not_fit_are_told_of(
    tmp_path: Path, tensors: Tensors, change: Callable[[Tensors], Tensors], error: type[PlannerError], message: str
) -> None:
    with pytest.raises(error) as raised:
        check_weights(linear_chain(2), weight_files(folder_of(tmp_path, change(tensors))), stacklevel=1)
    assert message in str(raised.value)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    """Which of them is meant depended on the order of the files."""
    with pytest.raises(InvalidArgument, match=r"'layers.0.weight' is in .*w0.safetensors and in .*w1.safetensors"):
        check_weights(linear_chain(2), weight_files(folder_of(tmp_path, tensors, tensors)), stacklevel=1)


def test_tensors_of_no_use_are_warned_of(tmp_path: Path, tensors: Tensors) -> None:
    folder = folder_of(tmp_path, tensors, {"head": np.zeros(1, np.float32)})
    with pytest.warns(PlannerWarning, match=r"no use for 1 of the 3 stored tensors \(head\)") as told:
        check_weights(linear_chain(2), weight_files(folder), stacklevel=2)
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4" + b"\0" * 60, "it is what torch.save writes"),
        (b"\x80\x02" + b"." * 60, "it is what torch.save writes"),
        (chain_weights(2)[:-8], "data_offsets"),
        (b"", "0 bytes"),
    ],
)
def test_a_file_that_is_not_sound_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=message) as raised:
        check_weights(linear_chain(2), weight_files(path), stacklevel=1)
    assert str(raised.value).startswith(f"{path}: ")
    assert "weight file" not in str(raised.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no safetensors files in it"):
        weight_files([tmp_path])
    with pytest.raises(NotFound, match="gone: no such file"):
        weight_files([tmp_path / "gone"])
