"""What is saved on one plan goes on on any other as if nothing had been between."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.client.export.exported_model import ExportedModel
from planner.client.training import Checkpointing, LossScaling, Optimizer, ParameterGroup, Trainer, cosine
from planner.errors import Corrupt, InvalidArgument, NotFound, StepNotApplied, Unavailable
from planner.graph.checkpoint import Checkpoint
from planner.partition.objective import PipelineSchedule
from stage_daemon import errors as daemon_errors
from stage_daemon.runtime.training import snapshot
from stage_daemon.worker import shards
from tests.random_examples import random_seeds
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.modules import BATCH, Layers, Normed, Tied, rows, tokens
from tests.stage_daemon.runtime.training.test_step import SHAPES, cut_into
from tests.stage_daemon.runtime.training.trainers import SavedHere, ThreadStreams, trainer_on
from tests.waiting import WAIT_SECONDS

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
    program, module = exported(name)
    return train_on_threads(
        module,
        MODULES[name][1](4, 99),
        stage_of_node=cut_into(len(devices)),
        devices=devices,
        schedule=schedule,
        exported=program,
    )


def steps(trainer: Trainer, name: str, numbers: Sequence[int]) -> list[tuple[float, ...]]:
    return [trainer.step(*MODULES[name][1](10, number)).losses for number in numbers]


def saved_by(trainer: Trainer, saved: SavedHere, run: str = "run") -> dict[str, bytes]:
    """By tensor of a checkpoint that it writes now: its dtype, dims and bytes, whichever file it is in."""
    return bytes_of(saved.tensors(trainer.save(run).result().id))


def bytes_of(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {
        name: f"{one.dtype} {list(one.shape)} ".encode() + one.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name, one in tensors.items()
    }


def by_first_names(tensors: dict[str, bytes]) -> dict[str, bytes]:
    """Which of its names a tied tensor has depends on the stages."""
    return {name.replace("head.weight", "table.weight"): content for name, content in tensors.items()}


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(6))
def test_what_is_saved_on_one_plan_goes_on_on_another(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    name, optimizer = chosen.choice(list(MODULES)), chosen.choice(OPTIMIZERS)
    places = [chosen.choice(PLACES) for _ in range(2)]
    schedules = [chosen.choice((PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)) for _ in range(2)]
    num_done = chosen.randint(0, 2)
    monkeypatch.setattr(shards, "MAX_FILE_BYTES", chosen.choice((1, 500, 1 << 20)))
    saved = SavedHere()

    first, _ = trainer_on(cluster_of(name, places[0], schedules[0]), optimizer, monkeypatch, clip_norm=1.0, saved=saved)
    steps(first, name, range(num_done))
    checkpoint = saved_by(first, saved)
    expected = steps(first, name, (7, 8))

    second, streams = trainer_on(
        cluster_of(name, places[1], schedules[1]),
        optimizer,
        monkeypatch,
        clip_norm=1.0,
        seed="another",
        saved=saved,
    )
    steps(second, name, range(chosen.randint(0, 1)))
    second.load("run")
    assert by_first_names(saved_by(second, saved, "again")) == by_first_names(checkpoint)
    assert_own_bytes_only(streams)
    losses = steps(second, name, (7, 8))
    if name == "tied":
        # Where the head's stage and the table's are two devices, their gradients have another order of sums.
        assert losses == [pytest.approx(step, rel=1e-6) for step in expected]
    else:
        assert losses == expected
        assert saved_by(second, saved) == saved_by(first, saved)


def assert_own_bytes_only(streams: ThreadStreams) -> None:
    """What a device has read is what it holds, tied states once."""
    for device_id, device in streams.devices.items():
        own_states = device._states.select((name for name, _ in device._states.read()), device.interpreter)
        assert streams.blobs[device_id].read_bytes <= sum(tensor.nbytes for tensor in own_states.values())


def test_a_tie_over_two_devices_is_written_once_and_read_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    first, _ = trainer_on(cluster_of("tied", (0, 1, 2)), "adamw:lr=0.01", monkeypatch, saved=saved)
    steps(first, "tied", range(3))
    saved_moments = {name for name in by_first_names(saved_by(first, saved)) if name.startswith("exp_avg/")}
    assert saved_moments == {f"exp_avg/{name}" for name, _ in exported("tied")[1].named_parameters()}
    second, streams = trainer_on(cluster_of("tied", (0, 1, 2)), "adamw:lr=0.01", monkeypatch, saved=saved)
    second.load("run")
    moments = [
        one
        for device in streams.devices.values()
        for key, one in device._states.select(device._states.names, device.interpreter).items()
        if key.optimizer_tensor == "exp_avg" and key.state in ("table.weight", "head.weight")
    ]
    assert len(moments) == 2
    assert torch.equal(*moments)
    alone, streams = trainer_on(cluster_of("tied", (0, 0, 0)), "adamw:lr=0.01", monkeypatch, saved=saved)
    alone.load("run")
    assert_own_bytes_only(streams)


def test_the_trainers_counters_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()

    def made(**options: Any) -> Trainer:
        scaling = LossScaling(initial=2.0, growth_steps=2)
        return trainer_on(
            cluster_of("layers", (0, 1)),
            "sgd:lr=0.1",
            monkeypatch,
            schedule=cosine(10, warmup_steps=2),
            loss_scaling=scaling,
            saved=saved,
            **options,
        )[0]

    first, second, third = made(), made(seed="another"), made()
    steps(first, "layers", range(3))
    second.load(first.save().result().id)
    assert (second._scale, second._num_grown, second._seed) == (4.0, 1, first._seed)
    one, other = (trainer.step(*rows(8, 5)) for trainer in (first, second))
    assert (one.number, one.learning_rate, one.losses) == (4, other.learning_rate, other.losses)
    assert other.number == 4
    first.learning_rate = 0.03
    third.load(first.save().result().id)
    assert third.learning_rate == 0.03


def test_what_another_client_left_adds_to_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients add up in the weights themselves, those of the next one in masters; or the other way round."""

    def batch(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(one.bfloat16() for one in rows(8, seed))

    torch.manual_seed(0)
    module = Layers().bfloat16()
    program = export(module, batch(0), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    optimizers = [Optimizer(name="sgd", learning_rate=0.1, master_weights=masters) for masters in (False, True)]
    for before, after in (optimizers, reversed(optimizers)):
        states = []
        for is_left in (True, False):
            cluster = train_on_threads(
                copy.deepcopy(module), batch(0), stage_of_node=cut_into(2), devices=(0, 1), exported=program
            )
            if is_left:
                trainer_on(cluster, before, monkeypatch)[0].accumulate(*batch(1))
            trainer = trainer_on(cluster, after, monkeypatch)[0]
            trainer.step(*batch(2))
            states.append({name: one.clone() for name, one in trainer.state_dict().items()})
        assert all(torch.equal(states[0][name], one) for name, one in states[1].items())


def test_masters_are_kept_where_bfloat16_would_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Layers().bfloat16()
    saved = SavedHere()

    def batch(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(one.bfloat16() for one in rows(8, seed))

    program = export(module, batch(0), dynamic_shapes=({0: BATCH}, {0: BATCH}))
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
            module, batch(0), stage_of_node=cut_into(len(devices)), devices=devices, exported=program
        )
        trainers.append(trainer_on(cluster, optimizer, monkeypatch, saved=saved)[0])
    first, second = trainers
    for number in range(3):
        first.step(*batch(number))
    assert sum(name.startswith("master/") for name in saved_by(first, saved)) == 8
    second.load("run")
    for number in range(3):
        assert first.step(*batch(number)).losses == second.step(*batch(number)).losses
    # One weight that is pushed leaves the masters of all others.
    before = saved_by(first, saved)
    first.load_state_dict({"layers.0.bias": torch.zeros(8, dtype=torch.bfloat16)})
    changed = {name for name, content in saved_by(first, saved).items() if before[name] != content}
    assert changed == {"layers.0.bias", "master/layers.0.bias"}


def damage_a_byte(saved: SavedHere, checkpoint: Checkpoint) -> None:
    tensor = checkpoint.tensors[-1]
    content = bytearray(saved.blobs[tensor.file_sha256])
    content[tensor.offset_bytes] ^= 1
    saved.blobs[tensor.file_sha256] = bytes(content)


def lose_a_file(saved: SavedHere, checkpoint: Checkpoint) -> None:
    del saved.blobs[checkpoint.record.files[-1].sha256]


def take_another_shape(saved: SavedHere, checkpoint: Checkpoint) -> None:
    tensors = (replace(one, dims=(9,)) if one.name == "layers.1.bias" else one for one in checkpoint.tensors)
    saved.checkpoints[0] = replace(checkpoint, tensors=tuple(tensors))


def take_a_moments_shape(saved: SavedHere, checkpoint: Checkpoint) -> None:
    tensors = (replace(one, dims=(9,)) if one.optimizer_tensor == "exp_avg" else one for one in checkpoint.tensors)
    saved.checkpoints[0] = replace(checkpoint, tensors=tuple(tensors))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (damage_a_byte, Corrupt, "the checkpoint is damaged, its bytes are not those that were saved"),
        (lose_a_file, NotFound, "is not here"),
        (take_another_shape, InvalidArgument, r"'layers.1.bias' is float32 \[9\] in it"),
        (take_a_moments_shape, InvalidArgument, r"found exp_avg of torch.float32 \[9\]"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    damage: Callable[[SavedHere, Checkpoint], None],
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = SavedHere()
    trainer, _ = trainer_on(cluster_of("layers", (0, 1)), "adamw:lr=0.01", monkeypatch, saved=saved)
    steps(trainer, "layers", range(2))
    checkpoint = saved.find_checkpoint(trainer.save("damaged").result().id)
    steps(trainer, "layers", range(1))
    before = saved_by(trainer, saved)
    damage(saved, checkpoint)
    with pytest.raises(error, match=words):
        trainer.load(checkpoint.record.id)
    assert saved_by(trainer, saved) == before


@pytest.mark.parametrize(
    ("name", "optimizer", "words"),
    [
        ("tied", "adamw:lr=0.01", "of another module: state 'layers.2.weight' is only in the checkpoint"),
        ("layers", "sgd:lr=0.01", "the checkpoint is of adamw, this trainer has sgd"),
        ("layers", "adamw:lr=0.01,amsgrad=true", "'layers.0.weight': found the optimizer's exp_avg, exp_avg_sq, step,"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    name: str, optimizer: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = SavedHere()
    saving, _ = trainer_on(cluster_of("layers", (0, 1)), "adamw:lr=0.01", monkeypatch, saved=saved)
    steps(saving, "layers", range(1))
    checkpoint = saving.save("other").result()
    trainer, _ = trainer_on(cluster_of(name, (0, 1)), optimizer, monkeypatch, saved=saved)
    steps(trainer, name, range(2))
    before = saved_by(trainer, saved)
    with pytest.raises(InvalidArgument, match=words):
        trainer.load(checkpoint.id)
    assert saved_by(trainer, saved) == before


def test_a_state_that_is_missing_or_not_tied_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    trainer, _ = trainer_on(cluster_of("tied", (0, 1)), "sgd:lr=0.1", monkeypatch, saved=saved)
    whole = saved.find_checkpoint(trainer.save("run").result().id)
    saved.checkpoints[0] = replace(whole, tensors=whole.tensors[1:])
    with pytest.raises(InvalidArgument, match=f"state '{whole.tensors[0].name}' is only in the graph"):
        trainer.load("run")
    tied = ("head.weight", "table.weight")
    [one] = [tensor for tensor in whole.tensors if tensor.name in tied]
    both = tuple(replace(one, name=name) for name in tied)
    saved.checkpoints[0] = replace(whole, tensors=(*(set(whole.tensors) - {one}), *both))
    with pytest.raises(InvalidArgument, match="are two in it, and tied in the graph"):
        trainer.load("run")


def test_what_no_stage_reads_is_read_back_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pooler whose result nobody uses: a state_dict without it would not load into the module."""
    module, saved = Layers(), SavedHere()
    module.pooler = nn.Linear(3, 2)
    saved.weights = {name: one.clone() for name, one in module.state_dict().items()}
    cluster = train_on_threads(module, rows(4, 99), stage_of_node=cut_into(2), devices=(0, 1), dynamic_shapes=SHAPES)
    trainer, _ = trainer_on(cluster, "sgd:lr=0.1", monkeypatch, saved=saved)
    trainer.step(*rows(8, 1))
    states = trainer.state_dict()
    assert torch.equal(states["pooler.weight"], saved.weights["pooler.weight"])
    assert not torch.equal(states["layers.0.weight"], saved.weights["layers.0.weight"])
    module.load_state_dict(states)
    trainer.save("run").result()
    trainer.load("run")


def test_so_many_of_a_run_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    trainer, _ = trainer_on(cluster_of("layers", (0,)), "sgd:lr=0.1", monkeypatch, saved=saved)
    with pytest.raises(NotFound):
        trainer.load("run")
    with pytest.raises(InvalidArgument, match="keep is 0"):
        trainer.save(keep=0)
    with pytest.raises(InvalidArgument, match="run 'a b': needs"):
        trainer.save("a b")
    other = trainer.save("other").result()
    for number in range(4):
        trainer.save("run", keep=2).result()
        steps(trainer, "layers", (number,))
    assert [one.progress.num_steps for one in saved.list_checkpoints(run="run")] == [2, 3]
    assert trainer.save().result().run == "dep-test"
    # One that was just written stays, also where it has the fewest steps.
    trainer.load(other.id)
    written = trainer.save("run", keep=1).result()
    assert list(saved.list_checkpoints(run="run")) == [written]
    assert other in saved.list_checkpoints(run="other")


def test_steps_go_on_while_states_are_copied_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying ends no sooner than the next step wants to write, and writing only once that step is done."""
    saved = SavedHere()
    trainer, streams = trainer_on(cluster_of("dropout", (0, 1)), "adamw:lr=0.01", monkeypatch, saved=saved)
    steps(trainer, "dropout", range(2))
    expected = saved_by(trainer, saved)
    # What the next snapshot does not wait for any more.
    for device in streams.devices.values():
        device._settle()
    wants_to_write, stepped = threading.Event(), threading.Event()
    copy, settle, save = snapshot._copy, snapshot.Snapshot.settle, shards.save

    def copy_late(tensor: torch.Tensor) -> torch.Tensor:
        if threading.current_thread().name == "snapshot":
            assert wants_to_write.wait(WAIT_SECONDS)
        return copy(tensor)

    def settle_noting(one: snapshot.Snapshot) -> None:
        wants_to_write.set()
        settle(one)

    def save_late(*arguments: Any) -> Any:
        assert stepped.wait(WAIT_SECONDS)
        return save(*arguments)

    monkeypatch.setattr(snapshot, "_copy", copy_late)
    monkeypatch.setattr(snapshot.Snapshot, "settle", settle_noting)
    monkeypatch.setattr(shards, "save", save_late)
    written = trainer.save("run")
    steps(trainer, "dropout", (2,))
    assert not written.done()
    assert len(saved.checkpoints) == 1
    stepped.set()
    assert bytes_of(saved.tensors(written.result(WAIT_SECONDS).id)) == expected
    assert saved_by(trainer, saved) != expected


def test_what_cannot_be_written_is_told_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    trainer, streams = trainer_on(cluster_of("layers", (0, 1)), "sgd:lr=0.1", monkeypatch, saved=saved)
    steps(trainer, "layers", (0,))
    blobs = next(iter(streams.blobs.values()))
    with monkeypatch.context() as patched:
        patched.setattr(blobs, "upload", lambda *_: (_ for _ in ()).throw(Unavailable("no planner takes it")))
        written = trainer.save("run")
        with pytest.raises(Unavailable, match="no planner takes it"):
            written.result(WAIT_SECONDS)
    assert not saved.checkpoints
    steps(trainer, "layers", (1,))
    with pytest.raises(Unavailable, match="no planner takes it"):
        trainer.save("run")
    assert trainer.save("run").result().progress.num_steps == 2
    with pytest.raises(daemon_errors.Conflict, match="no snapshot was taken"):
        next(iter(streams.devices.values())).save_snapshot()


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("lost_at", [3, 5, 6, 7, 9, 10])
def test_what_a_lost_generation_did_is_done_again(lost_at: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other stages, from the last checkpoint on: steps, one that is not applied, and weights that were pushed."""

    def run(trainer: Trainer) -> tuple[list[Any], dict[str, bytes]]:
        trainer.save().result()
        losses: list[Any] = steps(trainer, "dropout", (0, 1))
        x, y = rows(8, 3)
        with pytest.raises(StepNotApplied, match="the loss is nan"):
            trainer.step(x * float("nan"), y)
        trainer.load_state_dict({"layers.0.bias": torch.full((8,), 0.5)})
        losses.append(trainer.step(x, y).losses)
        # A batch is the caller's, who may write over it.
        x.zero_()
        trainer.learning_rate = 0.02
        losses += steps(trainer, "dropout", (4, 5))
        return losses, bytes_of(trainer.state_dict())

    cluster, later = cluster_of("dropout", (0, 1)), cluster_of("dropout", (0, 0, 1))
    checkpoints = Checkpointing(run="run", every=every, keep=1)
    expected = run(trainer_on(cluster_of("dropout", (0, 1)), "adamw:lr=0.01", monkeypatch, checkpoints=checkpoints)[0])
    saved = SavedHere()
    trainer, streams = trainer_on(
        cluster, "adamw:lr=0.01", monkeypatch, checkpoints=checkpoints, saved=saved, later=[later]
    )
    streams.lost_at = lost_at
    assert run(trainer) == expected
    assert trainer._generation == 2
    trainer.close()
    assert [one.progress.num_steps for one in saved.list_checkpoints(run="run")] == [6 if every else 0]


def test_a_loss_that_none_follows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, later = cluster_of("layers", (0,)), cluster_of("layers", (0,))
    checkpoints = Checkpointing(run="run")
    trainer, streams = trainer_on(cluster, "sgd:lr=0.1", monkeypatch, checkpoints=checkpoints, later=[later])
    # Nothing was saved yet that it could go back to.
    streams.lost_at = 0
    with pytest.raises(Unavailable, match="no daemon answers"):
        steps(trainer, "layers", (0,))
    streams.lost_at = None
    trainer.save().result()
    monkeypatch.setattr(trainer, "_find_next", lambda *_: None)
    streams.lost_at = 0
    with pytest.raises(Unavailable, match="no daemon answers"):
        steps(trainer, "layers", (0,))
