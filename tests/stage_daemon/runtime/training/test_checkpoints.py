"""What is saved on one plan goes on on any other as if nothing had been between."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from planner.client.export import export
from planner.client.export.exported_model import ExportedModel
from planner.client.training import LossScaling, Optimizer, ParameterGroup, Trainer, checkpoints, cosine, latest
from planner.client.training.checkpoints import MANIFEST, CheckpointWriter, Progress, read_checkpoint
from planner.errors import Corrupt, InvalidArgument, NotFound
from planner.partition.objective import PipelineSchedule
from tests.random_examples import random_seeds
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.modules import BATCH, Layers, Normed, Tied, rows, tokens
from tests.stage_daemon.runtime.training.test_step import SHAPES, cut_into
from tests.stage_daemon.runtime.training.trainers import ThreadStreams, trainer_on

MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Any]]] = {
    "layers": (Layers, rows),
    "dropout": (lambda: Normed(dropout=0.5), rows),
    "tied": (Tied, tokens),
}
OPTIMIZERS = (
    "sgd:lr=0.1,momentum=0.9",
    "sgd:lr=0.1",
    "adamw:lr=0.01,weight_decay=0.1,amsgrad=true",
    "adam:lr=0.01",
    "adafactor:lr=0.01",
)
PLACES = ((0,), (0, 1), (0, 1, 2), (0, 1, 0), (0, 1, 1, 2), (0, 0, 1, 1))


@cache
def exported(name: str) -> tuple[ExportedModel, nn.Module]:
    make, batch = MODULES[name]
    torch.manual_seed(0)
    module = make()
    return export(module, batch(4, 99), dynamic_shapes=SHAPES), module


def cluster_of(name: str, devices: Sequence[int], schedule: PipelineSchedule = PipelineSchedule.GPIPE) -> Cluster:
    found, module = exported(name)
    return train_on_threads(
        module,
        MODULES[name][1](4, 99),
        stage_of_node=cut_into(len(devices)),
        devices=devices,
        schedule=schedule,
        exported=found,
    )


def steps(trainer: Trainer, name: str, numbers: Sequence[int]) -> list[tuple[float, ...]]:
    return [trainer.step(*MODULES[name][1](10, number)).losses for number in numbers]


def files_of(folder: Path) -> dict[str, bytes]:
    """By tensor: its dtype, dims and bytes, wherever it is stored."""
    found = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            found[name] = f"{tensor.dtype} {list(tensor.shape)} ".encode() + data
    return found


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(12))
def test_what_is_saved_on_one_plan_goes_on_on_another(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = random.Random(seed)
    name, optimizer = chosen.choice(list(MODULES)), chosen.choice(OPTIMIZERS)
    places = [chosen.choice(PLACES) for _ in range(2)]
    schedules = [chosen.choice((PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)) for _ in range(2)]
    num_done = chosen.randint(0, 2)
    monkeypatch.setattr(checkpoints, "MAX_FILE_BYTES", chosen.choice((1, 500, 1 << 20)))

    first, _ = trainer_on(cluster_of(name, places[0], schedules[0]), optimizer, monkeypatch, clip_norm=1.0)
    steps(first, name, range(num_done))
    saved = first.save(tmp_path)
    wanted = steps(first, name, (7, 8))

    second, streams = trainer_on(
        cluster_of(name, places[1], schedules[1]), optimizer, monkeypatch, clip_norm=1.0, seed="another"
    )
    steps(second, name, range(chosen.randint(0, 1)))
    second.load(tmp_path)
    again = second.save(tmp_path / "again")
    assert files_of(again) == files_of(saved)
    assert_own_bytes_only(streams, second)
    found = steps(second, name, (7, 8))
    if name == "tied":
        # Where the head's stage and the table's are two devices, their gradients have another order of sums.
        assert found == [pytest.approx(losses, rel=1e-6) for losses in wanted]
    else:
        assert found == wanted
        assert files_of(second.save(tmp_path / "end")) == files_of(first.save(tmp_path / "end" / "first"))


def assert_own_bytes_only(streams: ThreadStreams, trainer: Trainer) -> None:
    """What a device was sent is what it holds."""
    for device_id, received in streams.received_bytes.items():
        held = sum(len(raw.data) for _, _, raw in trainer._read(device_id, with_optimizer=True))
        assert received <= held


def test_a_tie_over_two_devices_is_written_once_and_read_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = trainer_on(cluster_of("tied", (0, 0, 0)), "adamw:lr=0.01", monkeypatch)
    steps(first, "tied", range(3))
    saved = first.save(tmp_path)
    kept = {name for name in files_of(saved) if name.startswith("exp_avg/")}
    assert kept == {f"exp_avg/{name}" for name, _ in exported("tied")[1].named_parameters()}
    apart = cluster_of("tied", (0, 1, 2))
    second, streams = trainer_on(apart, "adamw:lr=0.01", monkeypatch)
    second.load(saved)
    table, head = (
        raw.data
        for device_id in streams.device_ids
        for name, kind, raw in second._read(device_id, with_optimizer=True)
        if kind == "exp_avg" and name in ("table.weight", "head.weight")
    )
    assert table == head


def test_the_weights_alone_are_a_state_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_on(cluster_of("tied", (0, 1, 2)), "adamw:lr=0.01", monkeypatch)
    steps(trainer, "tied", range(1))
    monkeypatch.setattr(checkpoints, "MAX_FILE_BYTES", 300)
    folder = trainer.save(tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 1
    states = {name: load_file(folder / file)[name] for name, file in index.items()}
    module = Tied()
    module.load_state_dict(states)
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)


def test_the_trainers_counters_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**options: Any) -> Trainer:
        scaling = LossScaling(initial=2.0, growth_steps=2)
        return trainer_on(
            cluster_of("layers", (0, 1)),
            "sgd:lr=0.1",
            monkeypatch,
            schedule=cosine(10, warmup_steps=2),
            loss_scaling=scaling,
            **options,
        )[0]

    first, second, third = made(), made(seed="another"), made()
    steps(first, "layers", range(3))
    second.load(first.save(tmp_path))
    assert (second._scale, second._num_grown, second._seed) == (4.0, 1, first._seed)
    one, other = (trainer.step(*rows(8, 5)) for trainer in (first, second))
    assert (one.number, one.learning_rate, one.losses) == (4, other.learning_rate, other.losses)
    assert other.number == 4
    first.learning_rate = 0.03
    third.load(first.save(tmp_path))
    assert third.learning_rate == 0.03


def test_masters_are_kept_where_bfloat16_would_lose_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Layers().bfloat16()

    def batch(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(one.bfloat16() for one in rows(8, seed))

    found = export(module, batch(0), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    optimizer = Optimizer(
        name="sgd",
        learning_rate=1e-3,
        options={"momentum": 0.9},
        groups=(ParameterGroup(pattern="*.bias", options={"momentum": 0.0}),),
        master_weights=True,
    )
    trainers = []
    for devices in ((0, 1), (0, 0, 1)):
        cluster = train_on_threads(
            module, batch(0), stage_of_node=cut_into(len(devices)), devices=devices, exported=found
        )
        trainers.append(trainer_on(cluster, optimizer, monkeypatch)[0])
    first, second = trainers
    for number in range(3):
        first.step(*batch(number))
    saved = first.save(tmp_path)
    assert sum(name.startswith("master/") for name in files_of(saved)) == 8
    second.load(saved)
    for number in range(3):
        assert first.step(*batch(number)).losses == second.step(*batch(number)).losses
    # One weight that is pushed leaves the masters of all others.
    before = first.save(tmp_path / "before")
    first.load_state_dict({"layers.0.bias": torch.zeros(8, dtype=torch.bfloat16)})
    changed = {
        name for name, data in files_of(first.save(tmp_path / "after")).items() if files_of(before)[name] != data
    }
    assert changed == {"layers.0.bias", "master/layers.0.bias"}


def damage_a_byte(folder: Path) -> None:
    path = folder / "training-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def cut_short(folder: Path) -> None:
    path = folder / "model-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def take_the_graphs_shape(folder: Path) -> None:
    document = json.loads((folder / MANIFEST).read_text())
    document["states"]["layers.1.bias"][1] = [9]
    (folder / MANIFEST).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda folder: (folder / "model-00001.safetensors").unlink(), Corrupt, "model-00001.safetensors is missing"),
        (cut_short, Corrupt, "bytes, needs"),
        (damage_a_byte, Corrupt, "training-00001.safetensors is damaged"),
        (lambda folder: (folder / MANIFEST).unlink(), NotFound, "no checkpoint here that was written to its end"),
        (lambda folder: (folder / MANIFEST).write_text("{"), Corrupt, "no manifest of a checkpoint"),
        (lambda folder: (folder / MANIFEST).write_text('{"format": 2}'), Corrupt, "format 2 found, 1 needed"),
        (take_the_graphs_shape, InvalidArgument, r"'layers.1.bias' is float32 \[9\] in it"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    damage: Callable[[Path], Any], error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _ = trainer_on(cluster_of("layers", (0, 1)), "adamw:lr=0.01", monkeypatch)
    steps(trainer, "layers", range(2))
    folder = trainer.save(tmp_path)
    steps(trainer, "layers", range(1))
    before = files_of(trainer.save(tmp_path / "before"))
    damage(folder)
    with pytest.raises(error, match=words):
        trainer.load(folder)
    assert files_of(trainer.save(tmp_path / "after")) == before


@pytest.mark.parametrize(
    ("name", "optimizer", "words"),
    [
        ("tied", "adamw:lr=0.01", "of another module: state 'head.weight' is only in the graph"),
        ("layers", "sgd:lr=0.01", "the checkpoint is of adamw, this trainer has sgd"),
        ("layers", "adamw:lr=0.01,amsgrad=true", "'layers.0.weight': found the optimizer's exp_avg, exp_avg_sq, step,"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    name: str, optimizer: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, _ = trainer_on(cluster_of("layers", (0, 1)), "adamw:lr=0.01", monkeypatch)
    steps(saving, "layers", range(1))
    folder = saving.save(tmp_path)
    trainer, _ = trainer_on(cluster_of(name, (0, 1)), optimizer, monkeypatch)
    steps(trainer, name, range(2))
    before = files_of(trainer.save(tmp_path / "before"))
    with pytest.raises(InvalidArgument, match=words):
        trainer.load(folder)
    assert files_of(trainer.save(tmp_path / "after")) == before


def test_so_many_are_kept_and_the_latest_is_the_one_of_most_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _ = trainer_on(cluster_of("layers", (0,)), "sgd:lr=0.1", monkeypatch)
    assert latest(tmp_path / "nowhere") is None
    with pytest.raises(NotFound, match="no checkpoint here"):
        trainer.load(tmp_path)
    with pytest.raises(InvalidArgument, match="keep is 0"):
        trainer.save(tmp_path, keep=0)
    for number in range(4):
        folder = trainer.save(tmp_path, keep=2)
        assert latest(tmp_path) == folder
        steps(trainer, "layers", (number,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    # An older one gone on from: what it writes stays, and takes the place of one of as many steps.
    trainer.load(tmp_path / "step-00000002")
    steps(trainer, "layers", (9,))
    before = files_of(tmp_path / "step-00000003")
    assert files_of(trainer.save(tmp_path)) != before
    trainer.load(tmp_path / "step-00000002")
    assert trainer.save(tmp_path, keep=1).name == "step-00000002"
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_a_save_that_is_cut_short_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each file that it writes; what a killed process leaves is no checkpoint, and gone with the next save."""
    trainer, _ = trainer_on(cluster_of("layers", (0, 1)), "adamw:lr=0.01", monkeypatch)
    steps(trainer, "layers", range(1))
    good = trainer.save(tmp_path)
    wanted = files_of(good)
    steps(trainer, "layers", range(1))
    write = checkpoints._write

    for file in ("model-00001.safetensors", "training-00001.safetensors", MANIFEST):

        def full(path: Path, *parts: bytes | memoryview, file: str = file) -> tuple[int, str]:
            if path.name == file:
                path.write_bytes(b"half")
                raise OSError("no space left on device")
            return write(path, *parts)

        with monkeypatch.context() as patched:
            patched.setattr(checkpoints, "_write", full)
            patched.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)
            with pytest.raises(OSError, match="no space left"):
                trainer.save(tmp_path)
        assert latest(tmp_path) == good
        assert files_of(good) == wanted
    assert len(list(tmp_path.iterdir())) == 2 + 2
    trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_manifest_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    graph = exported("layers")[0].graph
    progress = Progress(num_steps=1, seed="", loss_scale=1.0, num_grown=0, learning_rate=None)
    with CheckpointWriter(tmp_path, graph) as writer:
        folder = writer.finish(checkpoints.manifest_of(graph, "graph", "sgd", progress))
    outside = tmp_path / "model-outside.safetensors"
    outside.write_bytes(b"secret")
    document = json.loads((folder / MANIFEST).read_text())
    digest = hashlib.sha256(b"secret").hexdigest()
    document["files"] = {"../model-outside.safetensors": {"size_bytes": 6, "sha256": digest}}
    (folder / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(Corrupt, match="is missing"):
        read_checkpoint(folder)
