"""Folders of Hugging Face: the graph and the bytes are those of the module that from_pretrained makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from planner.client.export import CacheSize, ExportedCheckpoint, export_checkpoint
from planner.client.uploads import CHUNK_BYTES
from planner.client.weight_layout import INDEX_FILE, weight_blobs
from planner.errors import Corrupt, InvalidArgument, NotFound, PlannerError, PlannerWarning, UnsupportedModule
from tests.builders.case import Batch
from tests.builders.cuts import even_cuts
from tests.builders.plans import plan_of
from tests.builders.reload import assert_bitwise_equal
from tests.builders.staged import load_stages, run_stages
from tests.builders.weight_files import WeightFiles
from tests.models.architectures import CAUSAL, SEQ2SEQ, VISION, Architecture

# Each builds models of transformers.
pytestmark = pytest.mark.slow

TIED_EXPERTS = Architecture(model_type="mixtral", kind=CAUSAL, sizes={"tie_word_embeddings": True, "head_dim": 8})


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """Shards of 40 kB; each expert's matrices are apart, under names that the module does not have."""
    module: Any = TIED_EXPERTS.module()
    folder = tmp_path_factory.mktemp("mixtral")
    module.save_pretrained(folder, max_shard_size="40KB")
    return module, folder


@pytest.fixture
def folder(stored: tuple[nn.Module, Path], tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(stored[1], tmp_path / "copy"))


def results(checkpoint: ExportedCheckpoint, folder: Path, batches: list[Batch]) -> list[Any]:
    """Through the daemon's loader, in several stages, from weights as they would be uploaded."""
    paths = []
    for blob in weight_blobs(checkpoint.tensors, 50_000):
        paths.append(folder / blob.name)
        with blob.open() as file:
            paths[-1].write_bytes(b"".join(iter(lambda: file.read(CHUNK_BYTES), b"")))
    graph = checkpoint.graph
    stages = load_stages(graph, plan_of(graph, even_cuts(graph)), WeightFiles.of(paths))
    with torch.no_grad():
        return [run_stages(graph, stages, batch) for batch in batches]


def test_merged_renamed_and_tied_parameters_are_those_of_the_module(
    stored: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    module, folder = stored
    names = {name for file in folder.glob("*.safetensors") for name in load_file(file)}
    assert "model.layers.0.mlp.experts.gate_up_proj" not in names
    assert "lm_head.weight" not in names
    batches = [Batch(kwargs=CAUSAL.batch(scale)) for scale in (1, 2)]

    outputs = results(export_checkpoint(folder, "tied"), tmp_path, batches)

    for batch, result in zip(batches, outputs, strict=True):
        with torch.no_grad():
            assert_bitwise_equal(result, module(**batch.kwargs))


def test_caches_are_kept_beside_what_is_stored(
    stored: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences in a slot: a prompt, a token behind it, and a shorter prompt in the place of both; between them
    others in the other slots. While it is captured transformers attends by other kernels, which round otherwise."""
    from transformers import GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    from planner.client.export import meta_model

    monkeypatch.setattr(meta_model, "_ZEROS", bytes(100))
    prompts = torch.tensor([[[5, 9, 33, 12], [3, 4, 8, 21]], [[7, 41, 2, 60], [11, 12, 13, 14]]])
    positions = [(prompts[0], 0), (prompts[1][:, :1], 4), (prompts[1][:, :2], 0)]
    inputs = [{"input_ids": ids, "cache_position": torch.arange(at, at + ids.shape[1])} for ids, at in positions]
    batches = [
        Batch(kwargs={**one, "input_ids": one["input_ids"] + moved, "slot": slot})
        for one in inputs
        for slot, moved in ((0, 1), (1, 0), (2, 3))
    ]

    checkpoint = export_checkpoint(stored[1], cache=CacheSize(length=16, batch_size=2, num_slots=3))
    outputs = results(checkpoint, tmp_path, batches)

    model: Any = TIED_EXPERTS.module()
    model.config.use_cache = True
    model.generation_config = GenerationConfig(use_cache=True, cache_implementation="static")
    module = TorchExportableModuleWithStaticCache(model, batch_size=2, max_cache_len=16)
    written = {state.name for state in checkpoint.graph.states if state.mutated}
    assert written == {f"{name}_cache_{index}" for name in ("key", "value") for index in range(2)}
    for one, result in zip(inputs, outputs[1::3], strict=True):
        with torch.no_grad():
            torch.testing.assert_close(result, module(**one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "cache", "error", "words"),
    [
        (
            "llama",
            {"length": 1},
            InvalidArgument,
            "a cache of 1 positions and 0 encoded ones, for 1 sequences in 1 slots: needs at least 2",
        ),
        ("llama", {"length": 8, "batch_size": 0}, InvalidArgument, "for 0 sequences in 1 slots: .* for at least 1"),
        ("llama", {"length": 8, "num_slots": 0}, InvalidArgument, "in 0 slots: .* in at least 1"),
        ("llama", {"length": 65}, InvalidArgument, r"LlamaForCausalLM has 64 \(max_position_embeddings\)"),
        (
            "mamba",
            {"length": 8},
            UnsupportedModule,
            "layer 0 keeps a LinearAttentionLayer, .*submit it without a cache",
        ),
        (
            "mpt",
            {"length": 8},
            UnsupportedModule,
            "(?s)MptForCausalLM with a cache: .*submit it without one",
        ),
        ("llama", {"length": 8, "encoded_length": -1}, InvalidArgument, "and -1 encoded ones, .* at least 2 and 0"),
        ("llama", {"length": 8, "encoded_length": 8}, InvalidArgument, "8 encoded positions, .*LlamaFor.* no encoder"),
        ("t5", {"length": 8}, InvalidArgument, r"T5.* has an encoder: .*CacheSize\(length=8, encoded_length=512\)"),
        ("t5", {"length": 8, "encoded_length": 8}, UnsupportedModule, "needs weights; load it with from_pretrained"),
        ("vit", {"length": 8}, UnsupportedModule, "ViTForImageClassification: a cache is of models that go on"),
    ],
)
def test_where_there_is_no_cache_it_is_said(
    tmp_path: Path, model_type: str, cache: dict[str, int], error: type[PlannerError], words: str
) -> None:
    kind = {"vit": VISION, "t5": SEQ2SEQ}.get(model_type, CAUSAL)
    module: Any = Architecture(model_type=model_type, kind=kind).module()
    module.save_pretrained(tmp_path)
    with pytest.raises(error, match=words):
        export_checkpoint(tmp_path, cache=CacheSize(**cache))


def test_what_is_stored_for_nothing_is_told(folder: Path) -> None:
    """Not what the module computes by itself, as checkpoints of earlier versions have it."""
    shard = sorted(folder.glob("*.safetensors"))[0]
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.position_ids", "model.layers.9.norm.weight"]
    save_file({**load_file(shard), **{name: torch.zeros(4) for name in names}}, shard)
    with pytest.warns(PlannerWarning, match=r"no use for 1 of the \d+ stored tensors \(model.layers.9.norm.weight\)"):
        export_checkpoint(folder)


def test_images(tmp_path: Path) -> None:
    module: Any = Architecture(model_type="vit", kind=VISION).module()
    module.save_pretrained(tmp_path / "vit")
    batch = Batch(kwargs=VISION.batch(2))

    checkpoint = export_checkpoint(tmp_path / "vit")
    (output,) = results(checkpoint, tmp_path, [batch])

    assert checkpoint.graph.name == "vit"
    with torch.no_grad():
        assert_bitwise_equal(output, module(**batch.kwargs))


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _with_settings(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def _without_weights(folder: Path) -> None:
    for file in (*folder.glob("*.safetensors"), folder / INDEX_FILE):
        file.unlink()


def _without_a_shard(folder: Path) -> None:
    next(folder.glob("*.safetensors")).unlink()


def _outside(folder: Path) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))


def _no_index(folder: Path) -> None:
    (folder / INDEX_FILE).write_text("[]")


def _truncated(folder: Path) -> None:
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:9])


def _change(folder: Path, part: str, tensor: torch.Tensor | None) -> None:
    """Of the tensors whose names have that part, the first is another, or none."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        name = next((name for name in tensors if part in name), None)
        if name is not None:
            del tensors[name]
            save_file(tensors if tensor is None else tensors | {name: tensor}, file)
            return
    raise AssertionError(part)


@pytest.mark.parametrize(
    ("break_it", "error", "words"),
    [
        (_without_config, NotFound, "no config.json; needs a folder as save_pretrained writes it"),
        (lambda at: _with_settings(at, architectures=["MadeUp"]), InvalidArgument, "'MadeUp'.* its code is not run"),
        (lambda at: _with_settings(at, model_type="made-up"), InvalidArgument, "makes nothing of its config.json"),
        (lambda at: _with_settings(at, quantization_config={"quant_method": "gptq"}), InvalidArgument, "are quantised"),
        (_without_weights, NotFound, "no safetensors files in it; save_pretrained, or"),
        (_without_a_shard, NotFound, "of its index is missing; download it again"),
        (_outside, Corrupt, "which is no file of the folder"),
        (_no_index, Corrupt, "no index of weights"),
        (_truncated, Corrupt, "safetensors: its header .*truncated or not in the safetensors format"),
        (lambda at: _change(at, "norm", None), NotFound, r"has no tensor for '.*norm.*'; the checkpoint is of another"),
        (lambda at: _change(at, "norm", torch.ones(31)), InvalidArgument, r"float32 \[31\], the model needs .* \[32\]"),
        (lambda at: _change(at, ".w1.", torch.ones(3, 3)), UnsupportedModule, "is made of 8 stored .*MergeModulelist"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    folder: Path, break_it: Any, error: type[PlannerError], words: str
) -> None:
    break_it(folder)

    with pytest.raises(error, match=words):
        export_checkpoint(folder)
