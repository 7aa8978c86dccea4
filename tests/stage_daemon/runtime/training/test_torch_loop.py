"""Loops written for torch run over devices as they are, with the weights that one process has."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.client.training import ParameterGroup, Trainer, optimizer_from_text
from planner.client.training.optimizers import Optimizer
from planner.client.training.torch_loop import PipelinedModule, PipelinedOptimizer
from planner.errors import Conflict, InvalidArgument, StepNotApplied
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.modules import BATCH, ROWS, WIDTH, tokens
from tests.stage_daemon.runtime.training.test_step import cut_into
from tests.stage_daemon.runtime.training.trainers import SavedHere, trainer_on

ADAMW = "adamw:lr=0.01,weight_decay=0.1"


class Labelled(nn.Module):
    """Takes names and returns names, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, ROWS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.table(input_ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits = self.head(hidden)
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def named(count: int, seed: int) -> dict[str, torch.Tensor]:
    ids, labels = tokens(count, seed)
    return {"input_ids": ids, "labels": labels}


def trainer_of(
    patch: pytest.MonkeyPatch, optimizer: Optimizer | str = ADAMW, **options: Any
) -> tuple[Trainer, nn.Module]:
    torch.manual_seed(0)
    module = Labelled()
    batch = {"input_ids": {0: BATCH}, "labels": {0: BATCH}}
    cluster = train_on_threads(
        module,
        (),
        stage_of_node=cut_into(3),
        devices=(0, 1, 2),
        exported=export(module, (), named(4, 99), dynamic_shapes=batch),
        loss="loss",
    )
    return trainer_on(cluster, optimizer, patch, **options)[0], copy.deepcopy(module)


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, accumulate: int, num_steps: int = 4) -> Iterator[float]:
    """As it is written everywhere; the losses."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    for step in range(num_steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            output = model(**named(6, 10 * step + part))
            assert output["logits"].shape == (6, 5, ROWS)
            (output["loss"] / accumulate).backward()
            yield output["loss"].item()
        optimizer.step()
        scheduler.step()


def assert_same_weights(trainer: Trainer, module: nn.Module) -> None:
    states = trainer.state_dict()
    for name, expected in module.state_dict().items():
        torch.testing.assert_close(states[name], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loop_of_torch_runs_as_it_is(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer, accumulate=accumulate)
    optimizer = PipelinedOptimizer(model)
    own = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    losses, expected = list(loop(model, optimizer, accumulate)), list(loop(module, own, accumulate))
    assert losses == pytest.approx(expected, rel=1e-6)
    assert_same_weights(trainer, module)
    assert optimizer.result is not None
    assert (optimizer.result.number, trainer.num_steps) == (4, 4)
    assert optimizer.result.loss == pytest.approx(sum(expected[-accumulate:]) / accumulate, rel=1e-6)
    assert optimizer.result.learning_rate == pytest.approx(0.01 / 4)
    assert 0 <= optimizer.result.bubble_share < 1
    states = model.state_dict()
    model.load_state_dict({name: states[name] * 2 for name in states})
    assert torch.equal(trainer.state_dict()["head.bias"], states["head.bias"] * 2)
    with pytest.raises(InvalidArgument, match=r"state 'head\.bias' is missing"):
        model.load_state_dict({name: states[name] for name in states if name != "head.bias"})


def test_groups_keep_their_ratio_to_the_rate_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gradients whose norm is below the limit are not clipped."""
    spec = optimizer_from_text("sgd:lr=0.1")
    group = ParameterGroup(pattern="*.bias", learning_rate=0.02)
    optimizer = Optimizer(name="sgd", learning_rate=spec.learning_rate, groups=(group,))
    trainer, module = trainer_of(monkeypatch, optimizer, clip_norm=1e3)
    model = PipelinedModule(trainer)
    biases = [one for name, one in module.named_parameters() if name.endswith(".bias")]
    others = [one for name, one in module.named_parameters() if not name.endswith(".bias")]
    own = torch.optim.SGD([{"params": others, "lr": 0.1}, {"params": biases, "lr": 0.02}])
    list(loop(model, PipelinedOptimizer(model), 1))
    list(loop(module, own, 1))
    assert_same_weights(trainer, module)


def test_what_a_loop_throws_away_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    model(**named(6, 77))["loss"].backward()
    optimizer.zero_grad()
    model(**named(6, 78))["loss"].backward()
    # A whole step in between forgets it too.
    trainer.step(**named(6, 1))
    own = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    module(**named(6, 1))["loss"].backward()
    own.step()
    assert_same_weights(trainer, module)
    with pytest.raises(Conflict, match="nothing was accumulated"):
        trainer.apply()


def test_what_a_pipeline_cannot_follow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    trainer, _ = trainer_of(monkeypatch, saved=saved)
    model = PipelinedModule(trainer, accumulate=2)
    optimizer = PipelinedOptimizer(model)
    loss = model(**named(6, 1))["loss"]
    with pytest.raises(InvalidArgument, match=r"scaled by 1, and its passes ran with 0\.5"):
        loss.backward()
    with pytest.raises(Conflict, match="1 batches ran forward since the last step and 0 backward"):
        optimizer.step()
    with pytest.raises(Conflict, match="which no checkpoint has"):
        trainer.save("run")
    optimizer.zero_grad()
    trainer.save("run").result()
    with pytest.raises(InvalidArgument, match="a closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(InvalidArgument, match="accumulate is 0"):
        PipelinedModule(trainer, accumulate=0)
    with pytest.raises(InvalidArgument, match="share is 0"):
        trainer.accumulate(**named(6, 1), share=0.0)


def test_a_batch_that_fails_or_is_not_finite_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    trainer.accumulate(**named(6, 1))
    with pytest.raises(StepNotApplied, match="index out of range"):
        trainer.accumulate(input_ids=torch.full((6, 5), ROWS), labels=torch.zeros(6, 5, dtype=torch.int64))
    with pytest.raises(Conflict, match="nothing was accumulated"):
        trainer.apply()
    states = {"head.bias": torch.full((ROWS,), float("nan"))}
    trainer.load_state_dict(states)
    trainer.accumulate(**named(6, 1))
    with pytest.raises(StepNotApplied, match="the loss is nan"):
        trainer.apply()
    trainer.load_state_dict({"head.bias": module.state_dict()["head.bias"]})
    assert_same_weights(trainer, module)


@pytest.mark.slow
def test_the_trainer_of_hugging_face_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    data = [{name: one[0] for name, one in named(1, number).items()} for number in range(32)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        lr_scheduler_type="linear",
        # Clipping by the norm over all stages is the deployment's.
        max_grad_norm=0.0,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        remove_unused_columns=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer, accumulate=2)
    losses = {}
    for one, optimizer in (
        (model, PipelinedOptimizer(model)),
        (module, torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)),
    ):
        loop_of = transformers.Trainer(model=one, args=arguments, train_dataset=data, optimizers=(optimizer, None))
        loop_of.train()
        losses[one] = [entry["loss"] for entry in loop_of.state.log_history if "loss" in entry]
    assert losses[model] == pytest.approx(losses[module], rel=1e-4)
    assert len(losses[model]) == 4
    assert_same_weights(trainer, module)
