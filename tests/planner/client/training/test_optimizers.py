"""Optimizers as text and as messages; learning rates over the steps."""

from __future__ import annotations

import math

import pytest
import torch

from planner.client.training import Optimizer, ParameterGroup, constant, cosine, linear, optimizer_from_text
from planner.client.training.optimizers import optimizer_to_proto
from planner.errors import InvalidArgument
from stage_daemon.runtime.training.records import OptimizerSettings
from stage_daemon.runtime.training.records import ParameterGroup as GroupOnDaemon
from stage_daemon.worker.training_wire import optimizer_from_proto


def test_text_says_what_the_keyword_arguments_would() -> None:
    assert optimizer_from_text("adamw:lr=3e-4,betas=0.9/0.95,amsgrad=true") == Optimizer(
        name="adamw", learning_rate=3e-4, options={"betas": (0.9, 0.95), "amsgrad": True}
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lion:lr=1", "'lion' is not known, needs one of sgd, adam, adamw, adafactor"),
        ("sgd", "has no learning rate"),
        ("sgd:lr=fast", "'fast' is no number"),
        ("sgd:lr", "'lr' is no option"),
        ("sgd:lr=-1", "a learning rate of -1.0"),
        ("sgd:lr=nan", "a learning rate of nan"),
    ],
)
def test_text_that_is_no_optimizer_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        optimizer_from_text(text)


def test_daemons_are_told_each_groups_options_and_the_rest_last() -> None:
    optimizer = Optimizer(
        name="adamw",
        learning_rate=0.1,
        options={"weight_decay": 0.5, "betas": (0.8, 0.9)},
        groups=(ParameterGroup(pattern="*.bias", learning_rate=0.2, options={"weight_decay": 0.0}),),
        master_weights=True,
    )
    assert optimizer_from_proto(optimizer_to_proto(optimizer)) == OptimizerSettings(
        name="adamw",
        groups=(
            GroupOnDaemon(pattern="*.bias", options={"weight_decay": 0.0, "betas": (0.8, 0.9)}),
            GroupOnDaemon(pattern="*", options={"weight_decay": 0.5, "betas": (0.8, 0.9)}),
        ),
        master_weights=True,
    )
    assert optimizer.learning_rates(0.5) == [0.1, 0.05]


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -0.5])
def test_a_schedule_that_makes_no_rate_is_refused(factor: float) -> None:
    with pytest.raises(InvalidArgument, match=f"is to be {factor:g} times the optimizer's, needs 0 or more"):
        optimizer_from_text("sgd:lr=0.1").learning_rates(factor)


def test_learning_rates_rise_and_fall() -> None:
    assert [constant(3)(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert [linear(4, floor=0.2)(step) for step in range(6)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.1)
    ours = cosine(12, warmup_steps=2, floor=0.1)
    assert [ours(0), ours(1)] == pytest.approx([1 / 3, 2 / 3])
    for step in range(2, 12):
        assert math.isclose(ours(step), optimizer.param_groups[0]["lr"], rel_tol=1e-9)
        optimizer.step()
        theirs.step()
    with pytest.raises(InvalidArgument, match="a warmup of 4 steps of 4"):
        linear(4, warmup_steps=4)
