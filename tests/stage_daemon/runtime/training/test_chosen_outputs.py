"""What comes back with a step: nothing but its losses, or some outputs and parts of them; the step is the same."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from planner.client.training import trainer as trainer_module
from planner.client.training.torch_loop import PipelinedModule, PipelinedOptimizer
from planner.errors import InvalidArgument
from stage_daemon.runtime.training.step import StepInterpreter
from tests.stage_daemon.runtime.training.modules import ROWS
from tests.stage_daemon.runtime.training.test_torch_loop import named, trainer_of

LENGTH = 5
LAST, GREATEST = "logits[:, -1]", "logits[:, -1].argmax(-1)"


def test_chosen_outputs_are_those_of_a_step_that_gives_all(monkeypatch: pytest.MonkeyPatch) -> None:
    everything, _ = trainer_of(monkeypatch)
    some, _ = trainer_of(monkeypatch, outputs=[LAST, GREATEST, "logits"])
    nothing, _ = trainer_of(monkeypatch, outputs=[])
    for seed in (1, 2):
        whole, parts, none = (one.step(**named(7, seed)) for one in (everything, some, nothing))
        assert whole.losses == parts.losses == none.losses
        assert whole.gradient_norm == parts.gradient_norm == none.gradient_norm
        assert none.outputs == ({},) * 4
        for output, given in zip(whole.outputs, parts.outputs, strict=True):
            assert list(given) == [LAST, GREATEST, "logits"]
            assert torch.equal(given[LAST], output["logits"][:, -1])
            assert torch.equal(given[GREATEST], output["logits"][:, -1].argmax(-1))
            assert torch.equal(given["logits"], output["logits"])


def test_a_part_keeps_no_memory_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    keep = StepInterpreter._keep_outputs

    def noting(self: StepInterpreter, place: int, outputs: tuple[Any, ...]) -> None:
        kept.extend(outputs)
        keep(self, place, outputs)

    monkeypatch.setattr(StepInterpreter, "_keep_outputs", noting)
    trainer, _ = trainer_of(monkeypatch, outputs=[LAST])
    trainer.step(**named(8, 1))
    assert [(one.shape, one.untyped_storage().nbytes()) for one in kept] == 4 * [((), 4), ((2, ROWS), 2 * ROWS * 4)]


def test_a_part_that_no_microbatch_has_changes_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_of(monkeypatch, outputs=[f"logits[0, {LENGTH}]"])
    before = trainer.state_dict()
    with pytest.raises(InvalidArgument, match="the chosen part of an output: index 5 is out of bounds"):
        trainer.step(**named(6, 1))
    after = trainer.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_loop_of_torch_gets_none_for_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_of(monkeypatch, outputs=[])
    whole, _ = trainer_of(monkeypatch)
    chosen, _ = trainer_of(monkeypatch, outputs=["logits"])
    losses = []
    for one in (trainer, whole, chosen):
        model = PipelinedModule(one)
        optimizer = PipelinedOptimizer(model)
        output = model(**named(6, 1))
        assert (output["logits"] is None) == (one is trainer)
        losses.append(output["loss"].item())
        output["loss"].backward()
        optimizer.step()
    assert losses[0] == losses[1] == losses[2]


def test_gradients_are_accumulated_with_whole_outputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_of(monkeypatch, outputs=[LAST])
    with pytest.raises(InvalidArgument, match="is a part, and gradients are accumulated with whole outputs only"):
        trainer.accumulate(**named(6, 1))


def test_large_outputs_that_nobody_chose_are_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits_bytes = 8 * LENGTH * ROWS * 4
    monkeypatch.setattr(trainer_module, "LARGE_OUTPUT_BYTES", logits_bytes + 4 * 4)
    trainer, _ = trainer_of(monkeypatch)
    chosen, _ = trainer_of(monkeypatch, outputs=["logits"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(**named(7, 1))
        chosen.step(**named(8, 1))
    with pytest.warns(UserWarning, match=r"most of it 'logits': give client\.train outputs=\[\]") as told:
        trainer.step(**named(8, 1))
    [warning] = told
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(**named(8, 1))
