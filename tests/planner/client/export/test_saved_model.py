"""Exported models as folders: complete, sharded, and clear about what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from planner.client.export import ExportedModel, export, load_exported, read_exported
from planner.errors import Corrupt, GraphError, NotFound
from planner.graph.ir import Graph


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(16, 4, dtype=torch.bfloat16)
        self.head = nn.Linear(4, 16, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids)).float() * self.scale


@pytest.fixture
def model() -> ExportedModel:
    return export(Tied(), (torch.tensor([1, 2]),))


def test_loads_as_it_was_saved(model: ExportedModel, tmp_path: Path) -> None:
    loaded = load_exported(model.save(tmp_path / "tied.ppgraph"))

    assert loaded.graph == model.graph
    assert loaded.tensors.keys() == model.tensors.keys() == {"embedding.weight", "scale"}
    for name, tensor in model.tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert loaded.tensors[name].dtype == tensor.dtype


def test_weights_are_split_into_files_of_the_asked_size(model: ExportedModel, tmp_path: Path) -> None:
    paths = model.save_weights(tmp_path, max_file_bytes=8)

    assert [path.name for path in paths] == ["weights-00001.safetensors", "weights-00002.safetensors"]
    assert [path.name for path in model.save_weights(tmp_path)] == ["weights-00001.safetensors"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("sizes", "most", "files"),
    [
        ([40] * 5, 100, [[0, 1], [2, 3], [4]]),
        ([40] * 5, 80, [[0, 1], [2, 3], [4]]),
        ([40] * 5, 79, [[0], [1], [2], [3], [4]]),
        ([40, 400, 40, 40], 100, [[0], [1], [2, 3]]),
        ([0, 40, 0], 40, [[0, 1, 2]]),
        ([], 40, []),
    ],
)
def test_each_file_holds_as_many_tensors_as_fit(
    tmp_path: Path, sizes: list[int], most: int, files: list[list[int]]
) -> None:
    tensors = {str(index): torch.zeros(size // 4) for index, size in enumerate(sizes)}
    paths = ExportedModel(graph=Graph(torch_version="", name=""), tensors=tensors).save_weights(tmp_path, most)
    assert [sorted(map(int, load_file(path))) for path in paths] == files


def test_weights_of_another_shape(model: ExportedModel, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "tied.ppgraph")
    tensors = {**model.tensors, "embedding.weight": torch.zeros(4, 16, dtype=torch.bfloat16)}
    save_file(tensors, folder / "weights-00001.safetensors")
    with pytest.raises(Corrupt, match=r"'embedding.weight' is \[4, 16\], the graph says \[16, 4\]"):
        load_exported(folder)


def test_reading_without_tensors(model: ExportedModel, tmp_path: Path) -> None:
    graph, files = read_exported(model.save(tmp_path / "tied.ppgraph"))

    assert graph == model.graph
    assert [file.name for file in files] == ["weights-00001.safetensors"]


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no exported graph"):
        load_exported(tmp_path)


@pytest.mark.parametrize(
    "damage", [b"", b"\x80\x04 not a graph", bytes(range(256)) * 8], ids=["empty", "pickle", "noise"]
)
def test_a_graph_that_does_not_parse(model: ExportedModel, tmp_path: Path, damage: bytes) -> None:
    folder = model.save(tmp_path / "tied.ppgraph")
    (folder / "graph.pb").write_bytes(damage)
    with pytest.raises(GraphError):
        load_exported(folder)


def test_weights_that_do_not_parse(model: ExportedModel, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "tied.ppgraph")
    (folder / "weights-00001.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(Corrupt, match="not a safetensors file"):
        load_exported(folder)


def test_weights_that_are_missing(model: ExportedModel, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "tied.ppgraph")
    (folder / "weights-00001.safetensors").unlink()
    with pytest.raises(Corrupt, match=r"lack 'embedding.weight'"):
        load_exported(folder)
