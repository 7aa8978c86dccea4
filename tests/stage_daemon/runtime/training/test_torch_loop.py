"""Loops written for torch run over devices as they are, with the weights that one process has."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.client.training import ParameterGroup, Trainer, cosine, optimizer_from_text
from planner.client.training.optimizers import Optimizer
from planner.client.training.torch_loop import PipelinedModule, PipelinedOptimizer
from planner.errors import Conflict, InvalidArgument, PlannerWarning, StepNotApplied
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.modules import BATCH, ROWS, WIDTH, Normed, Tied, rows, tokens
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
    patch: pytest.MonkeyPatch,
    optimizer: Optimizer | str = ADAMW,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[Trainer, nn.Module]:
    torch.manual_seed(0)
    module = Labelled().to(dtype)
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
        rtol, atol = (1e-12, 1e-13) if expected.dtype is torch.float64 else (1e-6, 1e-7)
        torch.testing.assert_close(states[name], expected, rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loop_of_torch_runs_as_it_is(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    own = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    losses, expected = list(loop(model, optimizer, accumulate)), list(loop(module, own, accumulate))
    assert losses == pytest.approx(expected, rel=1e-6)
    assert_same_weights(trainer, module)
    assert optimizer.result is not None
    assert (optimizer.result.number, trainer.num_steps) == (4, 4)
    assert optimizer.result.loss == pytest.approx(sum(expected[-accumulate:]), rel=1e-6)
    assert optimizer.result.learning_rate == pytest.approx(0.01 / 4)
    assert 0 <= optimizer.result.bubble_share < 1


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


Steps = Callable[[nn.Module, torch.optim.Optimizer], Iterator[object]]


def clipping(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """Some steps are clipped, some are not."""
    for step in range(4):
        optimizer.zero_grad()
        for part in range(2):
            (model(**named(6, 10 * step + part))["loss"] / 2).backward()
        yield float(torch.nn.utils.clip_grad_norm_(model.parameters(), (0.3, 1e3, 0.1, 0.0)[step]))
        optimizer.step()


def scaling(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(**named(6, step))["loss"]).backward()
        if step:
            scaler.unscale_(optimizer)
            yield float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2))
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale()


def zeroing_late(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    for step in range(3):
        loss = model(**named(6, step))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def by_closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    for step in range(3):

        def losses(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(**named(6, step))["loss"]
            loss.backward()
            return loss

        yield optimizer.step(losses).item()  # type: ignore[arg-type,attr-defined]


def two_at_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """Also uphill, and twice back."""
    for step in range(3):
        optimizer.zero_grad()
        first, second = (model(**named(6, 10 * step + part))["loss"] for part in range(2))
        loss = -(first + second)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        yield loss.item()


def zeroed_by_a_module_around(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """Which sets each parameter's gradient to None, and looks at it before."""
    around = nn.ModuleList([model])
    for step in range(3):
        model(**named(6, step))["loss"].backward()
        if step < 2:
            yield float(torch.nn.utils.clip_grad_norm_(around.parameters(), 0.1))
        optimizer.step()
        if step < 2:
            # A gradient that was read stays until it is zeroed.
            yield float(torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None]))
        around.zero_grad()
        assert all(one.grad is None for one in model.parameters())


def compiled(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """Of batches of three sizes, which torch would compile anew, and then for all sizes."""
    quick = torch.compile(model, backend="eager")
    for step in range(3):
        loss = quick(**named(6 - step, step))["loss"]
        loss.backward()
        optimizer.step()
        quick.zero_grad()
        yield loss.item()


@pytest.mark.parametrize(
    "steps", [clipping, scaling, zeroing_late, zeroed_by_a_module_around, by_closure, two_at_once, compiled]
)
def test_loops_are_written_in_many_ways(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch, "sgd:lr=0.5,momentum=0.9", torch.float64)
    model = PipelinedModule(trainer)
    seen = list(steps(model, PipelinedOptimizer(model)))
    expected = list(steps(module, torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)))
    assert seen == pytest.approx(expected, rel=1e-12)
    assert_same_weights(trainer, module)


def test_a_step_that_a_loop_leaves_out_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GradScaler does where gradients are not finite: here they would be, but for the loop's factor."""
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"))
    scaler.scale(model(**named(6, 1))["loss"]).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()
    assert trainer.num_steps == 0
    assert_same_weights(trainer, module)


def test_clipping_follows_the_norm_of_what_a_loop_has_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the deployment clips as well, and whether or not the loop has asked for the norm before."""
    for asks in (False, True):
        trainer, module = trainer_of(monkeypatch, "sgd:lr=0.5", clip_norm=0.3)
        model = PipelinedModule(trainer)
        optimizer = PipelinedOptimizer(model)
        (4.0 * model(**named(6, 1))["loss"]).backward()
        (4.0 * module(**named(6, 1))["loss"]).backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
        if asks:
            assert model.stand_in.grad is not None
            assert float(model.stand_in.grad.norm()) == pytest.approx(float(norm), rel=1e-6)
        optimizer.step()
        torch.optim.SGD(module.parameters(), lr=0.5).step()
        assert optimizer.result is not None
        assert optimizer.result.gradient_norm == pytest.approx(float(norm), rel=1e-6)
        assert_same_weights(trainer, module)


def test_what_a_loop_throws_away_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    model(**named(6, 77))["loss"].backward()
    optimizer.zero_grad()
    forgotten = model(**named(6, 79))["loss"]
    optimizer.zero_grad()
    model(**named(6, 78))["loss"].backward()
    with pytest.raises(Conflict, match="the gradients of this loss are forgotten"):
        forgotten.backward()
    # A whole step in between forgets it too.
    trainer.step(**named(6, 1))
    own = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    module(**named(6, 1))["loss"].backward()
    own.step()
    assert_same_weights(trainer, module)
    with pytest.raises(Conflict, match="nothing was accumulated"):
        trainer.apply()
    with pytest.raises(Conflict, match="nothing was accumulated"):
        trainer.gradient_norm()


def test_what_a_pipeline_cannot_follow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedHere()
    trainer, module = trainer_of(monkeypatch, saved=saved)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    (model(**named(6, 1))["loss"] / 2).backward()
    other = model(**named(6, 2))["loss"]
    assert model.stand_in.grad is None
    with pytest.raises(Conflict, match="2 batches ran forward since the last step and 1 backward"):
        optimizer.step()
    other.backward()
    with pytest.raises(InvalidArgument, match=r"are scaled by 0\.5 and by 1: their gradients"):
        optimizer.step()
    with pytest.raises(Conflict, match="which no checkpoint has"):
        trainer.save("run")
    optimizer.zero_grad()
    trainer.save("run").result()
    outputs = model(**named(6, 1))
    with pytest.raises(InvalidArgument, match="a loss is made of output 'logits' outside of the module"):
        (outputs["loss"] + outputs["logits"].square().mean()).backward()
    optimizer.zero_grad()
    model(**named(6, 1))["loss"].backward()
    assert trainer.gradient_norm() == trainer.gradient_norm()
    with pytest.raises(Conflict, match="apply or discard it before the next batch"):
        model(**named(6, 1))
    with pytest.raises(InvalidArgument, match="of type 2, and not of inf"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    with pytest.raises(InvalidArgument, match="as clip_grad_value_ does"):
        optimizer.step()
    with pytest.raises(InvalidArgument, match="a loop can scale them, and not set them"):
        model.stand_in.grad = torch.ones(2)
    optimizer.zero_grad()
    (0.0 * model(**named(6, 1))["loss"]).backward()
    optimizer.step()
    model(**named(6, 1))["loss"].backward()
    with pytest.raises(Conflict, match="zero_grad was not called since the last step"):
        optimizer.step()
    trainer.load_state_dict(module.state_dict())
    with pytest.raises(InvalidArgument, match="share is -1"):
        trainer.accumulate(share=-1.0, **named(6, 1))
    with pytest.raises(InvalidArgument, match="gradient_factor is inf"):
        trainer.accumulate(**named(6, 1)), trainer.apply(gradient_factor=float("inf"))
    trainer.discard()
    with pytest.raises(InvalidArgument, match="num_items_in_batch is given, and what this loss"):
        PipelinedModule(trainer_of(monkeypatch, reduction="sum")[0])(**named(6, 1), num_items_in_batch=3)
    assert_same_weights(trainer, module)
    assert trainer.num_steps == 1


def test_what_a_loop_would_change_on_this_side_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_of(monkeypatch)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    with pytest.raises(InvalidArgument, match="parameters of this process need another"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(InvalidArgument, match="dtypes of a pipelined module are those that it was exported in"):
        nn.ModuleList([model]).to(torch.bfloat16)
    assert model.to("cpu", torch.float32) is model
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="is not copied or pickled, for its weights are on the daemons"):
            copied(model)
    model(**named(6, 1))["loss"].backward()
    optimizer.param_groups[0].update(weight_decay=0.5, initial_lr=1.0)
    with pytest.raises(
        InvalidArgument, match="the learning rate of a pipelined optimizer, and no weight_decay: that is"
    ):
        optimizer.step()
    del optimizer.param_groups[0]["weight_decay"]
    optimizer.step()


def test_what_a_pipelined_module_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PipelinedModule(trainer_of(monkeypatch)[0])
    with pytest.raises(
        AttributeError, match=r"\[Labelled\] has no 'table': it has the forward pass and .* may be set on"
    ):
        _ = model.table
    with pytest.raises(
        AttributeError, match=r"What is computed again is said by the plan: Training\(activations=\.\.\.\)"
    ):
        model.gradient_checkpointing_enable()
    assert not hasattr(model, "config")
    model.config = {"layers": 3}
    assert model.config == {"layers": 3}


def test_a_schedule_beside_the_loops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first rate, small while it warms up, would have been the loop's for ever."""
    trainer, _ = trainer_of(monkeypatch, schedule=cosine(10, warmup_steps=5))
    with pytest.raises(InvalidArgument, match="leave out one of both"):
        PipelinedOptimizer(PipelinedModule(trainer))
    trainer.learning_rate = 0.1
    assert PipelinedOptimizer(PipelinedModule(trainer)).param_groups[0]["lr"] == 0.1


def test_a_rate_that_is_none_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    model(**named(6, 1))["loss"].backward()
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(InvalidArgument, match="the learning rate is to be nan times the optimizer's"):
        optimizer.step()
    assert_same_weights(trainer, module)
    scheduled, _ = trainer_of(monkeypatch, schedule=lambda step: math.nan if step else 1.0)
    scheduled.step(**named(6, 1))
    before = scheduled.state_dict()
    with pytest.raises(InvalidArgument, match="look at what schedules it"):
        scheduled.step(**named(6, 2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in scheduled.state_dict().items())
    assert scheduled.num_steps == 1


def test_a_closed_trainer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_of(monkeypatch)
    trainer.close()
    for ask in (lambda: trainer.step(**named(6, 1)), trainer.state_dict, lambda: trainer.save("run")):
        with pytest.raises(Conflict, match=r"this trainer of .* is closed; open another"):
            ask()


def test_an_input_that_requires_a_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Normed()
    cluster = train_on_threads(
        module, (), stage_of_node=cut_into(2), devices=(0, 1), exported=export(module, rows(4, 0)), loss="output"
    )
    model = PipelinedModule(trainer_on(cluster, ADAMW, monkeypatch)[0])
    hidden, targets = rows(4, 1)
    with pytest.raises(InvalidArgument, match="requires a gradient, and none comes back"):
        model(hidden.requires_grad_(), targets)


def test_loops_read_from_its_class_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hugging Face's Trainer finds labels, and which columns of a dataset to leave out."""
    model = PipelinedModule(trainer_of(monkeypatch)[0])
    assert list(inspect.signature(type(model).forward).parameters) == ["self", "input_ids", "labels"]
    assert isinstance(model, PipelinedModule)
    assert type(model).__name__ == "PipelinedModule[Labelled]"
    assert type(PipelinedModule(trainer_of(monkeypatch)[0])) is not type(model)


def test_another_optimizer_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hugging Face's Trainer makes one where it is given none: no stage would ever be trained."""
    model = PipelinedModule(trainer_of(monkeypatch)[0])
    other = torch.optim.AdamW(model.parameters())
    model(**named(6, 1))["loss"].backward()
    other.step()
    model.zero_grad()
    with pytest.raises(Conflict, match="an optimizer of this process has stepped"):
        model(**named(6, 2))


def test_autocast_around_the_module_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PipelinedModule(trainer_of(monkeypatch)[0])
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(PlannerWarning, match="does not reach its stages"):
        assert model(**named(6, 1))["logits"].dtype is torch.float32


def test_a_module_that_was_exported_in_eval_mode_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, is_told in ((Normed(dropout=0.5).eval(), True), (Normed(dropout=0.5).train(), False)):
        program = export(module, rows(4, 0))
        cluster = train_on_threads(module, (), stage_of_node=cut_into(1), devices=(0,), exported=program)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer_on(cluster, ADAMW, monkeypatch)
        messages = [str(one.message) for one in told if one.category is PlannerWarning]
        assert [one for one in messages if "exported in eval mode, and module 'norms.0'" in one] == messages
        assert bool(messages) == is_told


def test_weights_go_in_and_out_as_of_any_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Within another module too; and tied ones go into files, which take no memory that is shared."""
    torch.manual_seed(0)
    module = Tied()
    cluster = train_on_threads(
        module, (), stage_of_node=cut_into(2), devices=(0, 1), exported=export(module, tokens(4, 0)), loss="output"
    )
    model = PipelinedModule(trainer_on(cluster, ADAMW, monkeypatch)[0])
    around = nn.ModuleDict({"model": model, "other": nn.Linear(2, 2)})
    states = around.state_dict()
    expected = {f"model.{name}": one for name, one in module.state_dict().items()}
    assert states.keys() == {*expected, "other.weight", "other.bias"}
    for name, one in expected.items():
        assert torch.equal(states[name], one)
    save_file(states, tmp_path / "states.safetensors")
    around.load_state_dict({name: one * 2 for name, one in states.items()})
    assert all(torch.equal(one, module.state_dict()[name] * 2) for name, one in model.state_dict().items())
    first = next(iter(module.state_dict()))
    with pytest.raises(RuntimeError, match=f'Missing key.*"{first}"'):
        model.load_state_dict({name: one for name, one in module.state_dict().items() if name != first})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"nobody"'):
        model.load_state_dict({**module.state_dict(), "nobody": torch.ones(1)})
    with pytest.raises(RuntimeError, match=f"state '{first}' has dims"):
        model.load_state_dict({**module.state_dict(), first: torch.ones(1)})
    assert set(model.load_state_dict({}, strict=False).missing_keys) == module.state_dict().keys()


def test_the_optimizers_states_are_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a loop saves of its optimizer, and loads again, has the moments of all stages."""
    saved = SavedHere()
    trainer, module = trainer_of(monkeypatch, saved=saved)
    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model, keep=1)
    # As accelerate does before the first step.
    at_first = optimizer.state_dict()
    optimizer.load_state_dict(at_first)
    assert not saved.checkpoints
    list(loop(model, optimizer, 1, num_steps=2))
    optimizer.state_dict()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert [one.record.id for one in saved.checkpoints] == ["ckpt-2"]
    with pytest.raises(Conflict, match="from before the first step"):
        optimizer.load_state_dict(at_first)
    own = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    with pytest.raises(InvalidArgument, match="the states of another optimizer"):
        optimizer.load_state_dict(own.state_dict())

    later, _ = trainer_of(monkeypatch, saved=saved)
    model = PipelinedModule(later)
    optimizer = PipelinedOptimizer(model)
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
    list(loop(module, own, 1, num_steps=2))
    assert optimizer.param_groups[0]["lr"] == own.param_groups[0]["lr"] < 0.01
    for one, stepping in ((model, optimizer), (module, own)):
        stepping.zero_grad()
        one(**named(6, 50))["loss"].backward()
        stepping.step()
    assert later.num_steps == 3
    assert_same_weights(later, module)


def test_a_batch_that_fails_or_is_not_finite_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, module = trainer_of(monkeypatch)
    trainer.accumulate(**named(6, 1))
    with pytest.raises(StepNotApplied, match="index out of range"):
        trainer.accumulate(input_ids=torch.full((6, 5), ROWS), labels=torch.zeros(6, 5, dtype=torch.int64))
    with pytest.raises(Conflict, match="nothing was accumulated"):
        trainer.apply()
    states = {"head.bias": torch.full((ROWS,), float("nan"))}
    trainer.load_state_dict(states)
    for asks in (False, True):
        trainer.accumulate(**named(6, 1))
        if asks:
            assert math.isnan(trainer.gradient_norm())
        with pytest.raises(StepNotApplied, match="the loss is nan"):
            trainer.apply()
    trainer.load_state_dict({"head.bias": module.state_dict()["head.bias"]})
    assert_same_weights(trainer, module)


class Causal(nn.Module):
    """Moves labels by one place, as language models of Hugging Face do, and takes what their Trainer gives them."""

    loss_type = "ForCausalLM"

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.head = nn.Linear(WIDTH, ROWS)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        scores, targets = self.head(self.table(input_ids))[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if num_items_in_batch is None:
            return {"loss": functional.cross_entropy(scores, targets)}
        return {"loss": functional.cross_entropy(scores, targets, reduction="sum") / num_items_in_batch}

    accepts_loss_kwargs = True


@pytest.mark.slow
def test_the_trainer_of_hugging_face_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is configured by default: it clips, counts the targets of a step's batches, logs norms, saves states. The
    last step of each epoch has fewer batches than the others, and a batch is of padding alone."""
    import transformers

    data = [{name: one[0] for name, one in named(1, number).items()} for number in range(40)]
    for number, row in enumerate(data):
        row["labels"][1 + number % 5 :] = -100
    for row in data[4:8]:
        row["labels"].fill_(-100)
    torch.manual_seed(0)
    module = Causal()
    batch = {"input_ids": {0: BATCH}, "labels": {0: BATCH}}
    cluster = train_on_threads(
        module,
        (),
        stage_of_node=cut_into(2),
        devices=(0, 1),
        exported=export(module, (), named(4, 99), dynamic_shapes=batch),
        loss="loss",
    )
    trainer, _ = trainer_on(cluster, ADAMW, monkeypatch)
    module, model = copy.deepcopy(module), PipelinedModule(trainer)
    logs = {}
    for one, optimizer in (
        (model, PipelinedOptimizer(model)),
        (module, torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)),
    ):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / type(one).__name__),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
            learning_rate=0.01,
            # By default 1, which this module's gradients need not come to.
            max_grad_norm=0.1,
            train_sampling_strategy="sequential",
            save_steps=3,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        loop_of = transformers.Trainer(model=one, args=arguments, train_dataset=data, optimizers=(optimizer, None))
        loop_of.train()
        logs[one] = [(entry["loss"], entry["grad_norm"]) for entry in loop_of.state.log_history if "loss" in entry]
    assert len(logs[model]) == 8
    assert logs[model] == [pytest.approx(one, rel=1e-5) for one in logs[module]]
    assert max(norm for _, norm in logs[module]) > 0.1
    assert_same_weights(trainer, module)
    assert load_file(tmp_path / type(model).__name__ / "checkpoint-8" / "model.safetensors").keys() == {
        *module.state_dict()
    }
