"""The classes of errors that users of pipelined training report and that no message tells of: each by its name.

1 a loss's smoothing over a part of the classes; 2 a mean of means where microbatches count unequally; 3 tied
weights whose gradients are not summed, or of which a checkpoint lacks one; 4 every stage given the first one's
layers by a checkpoint; 5 activations computed again from another stage's; 6 clipping by each stage's own norm; 7
frozen weights that move, or stop gradients; 8 dropout that is drawn anew when activations are, or alike for all
steps or microbatches; 9 a run that goes on otherwise on other stages; 10 accumulation that counts rounds instead of
rows; 11 an overflow that only its own stage heeds; 12 options of parameter groups that some stages lack; 13 an
evaluation that moves the training.

One process on the whole batch is the oracle. Three stages on three devices unless said otherwise; the language model
has a tied table, a frozen layer in the middle, and a loss per token that is not padding, with label smoothing.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.client.export.exported_model import ExportedModel
from planner.client.training import LossScaling, Optimizer, ParameterGroup, StepResult, Trainer
from planner.errors import PlannerWarning
from planner.partition.objective import Activations, PipelineSchedule
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.modules import ROWS, WIDTH, Normed, rows, tokens
from tests.stage_daemon.runtime.training.test_step import SHAPES, cut_into
from tests.stage_daemon.runtime.training.trainers import SavedHere, trainer_on

PADDING = 0
ADAMW = "adamw:lr=0.01,weight_decay=0.1"


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight
        self.layers[1].requires_grad_(False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits = self.head(self.norm(hidden))
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), label_smoothing=0.2, ignore_index=PADDING
        )


@cache
def language() -> tuple[nn.Module, ExportedModel]:
    torch.manual_seed(0)
    module = Language()
    return module, export(module, tokens(4, 99), dynamic_shapes=SHAPES)


@cache
def dropping() -> tuple[nn.Module, ExportedModel]:
    """With batch norms and dropout."""
    torch.manual_seed(0)
    module = Normed(dropout=0.5)
    return module, export(module, rows(4, 99), dynamic_shapes=SHAPES)


def sentences(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of lengths from one token to five: the later the row, the shorter."""
    ids, targets = tokens(count, seed)
    for row in range(count):
        targets[row, max(1, 5 - row) :] = PADDING
    targets[:, 0] = targets[:, 0].clamp(min=1)
    return ids, targets


def num_tokens(ids: torch.Tensor, targets: torch.Tensor) -> float:
    return float((targets != PADDING).sum())


def cluster_of(
    make: Callable[[], tuple[nn.Module, ExportedModel]],
    devices: Sequence[int] = (0, 1, 2),
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B,
    activations: Activations = Activations.KEPT,
) -> Cluster:
    module, exported = make()
    return train_on_threads(
        module,
        (),
        stage_of_node=cut_into(len(devices)),
        devices=devices,
        schedule=schedule,
        exported=exported,
        activations=activations,
    )


def trainer_of(
    patch: pytest.MonkeyPatch, cluster: Cluster | None = None, optimizer: Optimizer | str = ADAMW, **options: Any
) -> Trainer:
    options.setdefault("reduction", num_tokens if cluster is None else "mean")
    return trainer_on(cluster or cluster_of(language), optimizer, patch, **options)[0]


class OneProcess:
    """The whole batch at once, with torch's own AdamW."""

    def __init__(self, **groups: dict[str, Any]) -> None:
        self.module = copy.deepcopy(language()[0])
        trained = [(name, one) for name, one in self.module.named_parameters() if one.requires_grad]
        chosen = {name: [one for key, one in trained if key.endswith(name)] for name in groups}
        others = [one for key, one in trained if not key.endswith(tuple(groups) or "no name")]
        parameters = [{"params": chosen[name], **options} for name, options in groups.items()]
        self.optimizer = torch.optim.AdamW([*parameters, {"params": others}], lr=0.01, weight_decay=0.1)

    def step(self, batch: Sequence[torch.Tensor], clip_norm: float = math.inf) -> tuple[float, float]:
        """The loss, and the gradients' norm before they are clipped."""
        self.optimizer.zero_grad()
        loss = self.module(*batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
        self.optimizer.step()
        return float(loss.detach()), float(norm)


def assert_same_weights(trainer: Trainer, one: OneProcess) -> None:
    states = trainer.state_dict()
    for name, expected in one.module.state_dict().items():
        torch.testing.assert_close(states[name], expected, rtol=1e-5, atol=1e-6, msg=name)


def same_two_steps(trainer: Trainer, one: OneProcess, clip_norm: float = math.inf) -> list[StepResult]:
    results = []
    for number in range(2):
        batch = sentences(8, number)
        results.append(trainer.step(*batch))
        loss, norm = one.step(batch, clip_norm)
        assert results[-1].loss == pytest.approx(loss, rel=1e-6)
        assert results[-1].gradient_norm == pytest.approx(norm, rel=1e-5)
    assert_same_weights(trainer, one)
    return results


def test_01_label_smoothing_is_over_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    same_two_steps(trainer_of(monkeypatch), OneProcess())


@pytest.mark.parametrize("reduction", [num_tokens, "mean"], ids=["told", "found out"])
def test_02_a_loss_per_token_is_normalised_over_the_batch_and_not_by_microbatch(
    monkeypatch: pytest.MonkeyPatch, reduction: Any
) -> None:
    trainer, one, batch = trainer_of(monkeypatch, reduction=reduction), OneProcess(), sentences(6, 0)
    parts = list(zip(batch[0].split((1, 2, 3)), batch[1].split((1, 2, 3)), strict=True))
    assert len({num_tokens(*part) for part in parts}) > 1
    result = trainer.step_microbatches(parts)
    assert result.loss == pytest.approx(one.step(batch)[0], rel=1e-6)
    assert result.loss != pytest.approx(sum(result.losses) / 3, rel=1e-3)
    assert_same_weights(trainer, one)


@pytest.mark.parametrize("reduction", [num_tokens, "mean"], ids=["told", "found out"])
def test_02_a_microbatch_of_padding_alone_counts_nothing(monkeypatch: pytest.MonkeyPatch, reduction: Any) -> None:
    """Its own loss, the mean over no tokens, is NaN."""
    trainer, one, (ids, targets) = trainer_of(monkeypatch, reduction=reduction), OneProcess(), sentences(6, 0)
    targets[3:5] = PADDING
    result = trainer.step_microbatches(list(zip(ids.split((3, 2, 1)), targets.split((3, 2, 1)), strict=True)))
    assert math.isnan(result.losses[1])
    assert result.applied
    assert result.loss == pytest.approx(one.step((ids, targets))[0], rel=1e-6)
    assert_same_weights(trainer, one)


class Weighed(Language):
    """Each class counts differently."""

    def __init__(self) -> None:
        super().__init__()
        self.of_class = nn.Buffer(torch.linspace(0.1, 2.0, ROWS))

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.table(ids))).flatten(0, 1)
        return functional.cross_entropy(logits, targets.flatten(), self.of_class, ignore_index=PADDING)


class Chosen(Language):
    """Targets that are ignored by another rule than their own."""

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.table(ids))).flatten(0, 1)
        return functional.cross_entropy(logits, torch.where(targets > 3, targets, -100).flatten())


def test_02_classes_count_what_they_weigh_over_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, batch, saved = Weighed(), sentences(6, 0), SavedHere()
    saved.weights = module.state_dict()
    cluster = cluster_of(lambda: (module, export(module, tokens(4, 99), dynamic_shapes=SHAPES)))
    trainer = trainer_of(monkeypatch, cluster, reduction="mean", saved=saved)
    result = trainer.step(*batch)
    assert len(result.losses) > 1
    assert result.loss == pytest.approx(float(module(*batch).detach()), rel=1e-6)
    assert result.loss != pytest.approx(sum(result.losses) / len(result.losses), rel=1e-3)


def test_02_what_a_mean_is_over_and_is_not_found_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Chosen()
    cluster = cluster_of(lambda: (module, export(module, tokens(4, 99), dynamic_shapes=SHAPES)))
    with pytest.warns(PlannerWarning, match="microbatches count their rows"):
        trainer_of(monkeypatch, cluster, reduction="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlannerWarning)
        trainer_of(monkeypatch, cluster, reduction=num_tokens)


def test_02_a_sum_is_no_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def summing() -> tuple[nn.Module, ExportedModel]:
        class Summed(Language):
            def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                logits = self.head(self.norm(self.table(ids))).flatten(0, 1)
                return functional.cross_entropy(logits, targets.flatten(), reduction="sum")

        module = Summed()
        return module, export(module, tokens(4, 99), dynamic_shapes=SHAPES)

    trainer, batch = trainer_of(monkeypatch, cluster_of(summing), reduction="mean"), tokens(6, 0)
    result = trainer.step(*batch)
    assert len(result.losses) > 1
    assert result.loss == pytest.approx(sum(result.losses), rel=1e-12)


def test_03_tied_embeddings_sum_their_gradients_and_the_checkpoint_has_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = SavedHere()
    trainer, one = trainer_of(monkeypatch, saved=saved), OneProcess()
    same_two_steps(trainer, one)
    trainer.save("run").result()
    other = trainer_of(monkeypatch, cluster_of(language, (0, 1, 2, 3)), saved=saved)
    other.load("run")
    states = other.state_dict()
    assert torch.equal(states["head.weight"], states["table.weight"])
    assert states.keys() == one.module.state_dict().keys()
    assert_same_weights(other, one)


def test_04_later_stages_get_their_own_layers_from_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    first = trainer_of(monkeypatch, cluster_of(language, (0, 1)), saved=saved)
    weights = {f"layers.{index}.weight": torch.full((WIDTH, WIDTH), float(index)) for index in range(3)}
    first.load_state_dict(weights)
    second = trainer_of(monkeypatch, cluster_of(language, (0, 1, 2, 3)), saved=saved)
    second.load(first.save().result().id)
    states = second.state_dict()
    assert all(torch.equal(states[name], expected) for name, expected in weights.items())


def test_05_a_stage_computes_its_own_activations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(language, (0, 1, 0), PipelineSchedule.GPIPE, Activations.RECOMPUTED)
    same_two_steps(trainer_of(monkeypatch, cluster, reduction=num_tokens), OneProcess())


def test_06_gradients_are_clipped_by_the_norm_over_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    results = same_two_steps(trainer_of(monkeypatch, clip_norm=0.05), OneProcess(), clip_norm=0.05)
    assert all(result.gradient_norm > 0.05 for result in results)


def test_07_frozen_parameters_stay_and_let_gradients_through(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, before = trainer_of(monkeypatch), language()[0].state_dict()
    same_two_steps(trainer, OneProcess())
    changed = {name for name, tensor in trainer.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if not name.startswith("layers.1.")}


def losses(trainer: Trainer, numbers: Sequence[int]) -> list[tuple[float, ...]]:
    return [trainer.step(*rows(10, number)).losses for number in numbers]


def test_08_dropout_draws_the_same_when_activations_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, again = (
        trainer_of(monkeypatch, cluster_of(dropping, (0, 1), PipelineSchedule.GPIPE, activations))
        for activations in (Activations.KEPT, Activations.RECOMPUTED)
    )
    expected = losses(plain, (1, 1, 2))
    assert losses(again, (1, 1, 2)) == expected
    states = again.state_dict()
    assert all(torch.equal(states[name], tensor) for name, tensor in plain.state_dict().items())


def test_08_each_step_and_each_microbatch_drops_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows again and again, and weights that stay: only what is dropped differs."""
    trainer = trainer_of(monkeypatch, cluster_of(dropping, (0, 1)), "sgd:lr=0.0")
    losses = [trainer.step_microbatches([rows(4, 1)] * 4).losses for _ in range(2)]
    assert len({loss for losses_of_step in losses for loss in losses_of_step}) == 8


def test_09_a_run_goes_on_on_another_number_of_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    first = trainer_of(monkeypatch, cluster_of(dropping, (0, 1, 2)), saved=saved)
    losses(first, (1, 2))
    first.save("run").result()
    second = trainer_of(monkeypatch, cluster_of(dropping, (0,)), seed="another", saved=saved)
    second.load("run")
    assert losses(second, (3, 4)) == losses(first, (3, 4))


def test_10_gradients_accumulated_over_rounds_are_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven microbatches where the plan has four."""
    trainer, one, batch = trainer_of(monkeypatch), OneProcess(), sentences(7, 3)
    result = trainer.step_microbatches(list(zip(batch[0].split(1), batch[1].split(1), strict=True)))
    assert result.loss == pytest.approx(one.step(batch)[0], rel=1e-6)
    assert_same_weights(trainer, one)


def test_11_an_overflow_in_one_stage_keeps_every_stage_from_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(language)
    trainer = trainer_of(monkeypatch, cluster, reduction=num_tokens, loss_scaling=LossScaling(initial=1024.0))
    before = trainer.state_dict()
    [last] = [one.parameter for one in cluster.weights[cluster.last].all if "norm.bias" in one.names]
    overflowing = last.register_hook(lambda gradient: gradient * math.inf)
    assert not trainer.step(*sentences(8, 0)).applied
    states = trainer.state_dict()
    assert all(torch.equal(states[name], tensor) for name, tensor in before.items())
    overflowing.remove()
    same_two_steps(trainer, OneProcess())


def test_12_weight_decay_is_by_group_in_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = (
        ParameterGroup(pattern="*.bias", options={"weight_decay": 0.0}),
        ParameterGroup(pattern="*norm.weight", options={"weight_decay": 0.5}),
    )
    optimizer = Optimizer(name="adamw", learning_rate=0.01, options={"weight_decay": 0.1}, groups=groups)
    one = OneProcess(**{"bias": {"weight_decay": 0.0}, "norm.weight": {"weight_decay": 0.5}})
    same_two_steps(trainer_of(monkeypatch, optimizer=optimizer), one)


def test_13_an_evaluation_between_steps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [cluster_of(dropping) for _ in range(2)]
    plain, evaluated = (trainer_of(monkeypatch, cluster) for cluster in clusters)
    assert losses(plain, (1,)) == losses(evaluated, (1,))
    evaluate(clusters[1], rows(6, 5))
    assert losses(plain, (2, 3)) == losses(evaluated, (2, 3))
    states = evaluated.state_dict()
    assert all(torch.equal(states[name], tensor) for name, tensor in plain.state_dict().items())


def evaluate(cluster: Cluster, inputs: Sequence[torch.Tensor]) -> None:
    """As the lanes of a deployment do beside its training."""
    values = dict(zip(cluster.told[cluster.first].around.input_ids, inputs, strict=True))
    for _, stage in sorted(cluster.stages.items()):
        assert stage.module is not None
        with torch.no_grad():
            outputs = stage.module.evaluating()(*(values[value_id] for value_id in stage.input_ids))
        values.update(zip(stage.output_ids, outputs, strict=True))
