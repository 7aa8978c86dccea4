"""What an optimizer does not take is refused when a training opens: a step that raises ends its worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.training.optimizers import StageOptimizer
from stage_daemon.runtime.training.records import OptimizerSettings, ParameterGroup

INFINITY = float("inf")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lion", {}, "optimizer 'lion' is not known, needs one of sgd, adam, adamw, adafactor"),
        ("sgd", {"betas": (0.9, 0.99)}, "sgd has no option 'betas', it has dampening"),
        ("adam", {"betas": 0.9}, "adam does not take betas=0.9: "),
        ("adam", {"betas": (0.9,)}, r"adam does not take betas=\(0.9,\): "),
        ("adamw", {"betas": (0.9, 0.99, 0.999)}, r"adamw does not take betas=\(0.9, 0.99, 0.999\): "),
        ("adam", {"betas": (0.9, 1.5)}, "Invalid beta parameter at index 1: 1.5"),
        ("adam", {"eps": (1e-8, 1e-8)}, "adam does not take eps="),
        ("adamw", {"eps": -1.0}, "Invalid epsilon value"),
        ("adamw", {"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
        ("sgd", {"momentum": -1.0}, "Invalid momentum value: -1.0"),
        ("sgd", {"nesterov": True}, "sgd does not take nesterov=True: Nesterov momentum requires a momentum"),
        ("sgd", {"weight_decay": (0.1, 0.2)}, "sgd does not take weight_decay="),
        ("adafactor", {"eps": 1e-8}, "adafactor does not take eps=1e-08: "),
        ("adafactor", {"d": INFINITY, "beta2_decay": 3.0}, "adafactor does not take d=inf, beta2_decay=3.0: "),
        ("sgd", {"weight_decay": INFINITY}, "sgd with weight_decay=inf makes nan of a gradient of 1"),
        ("adam", {"eps": float("nan")}, "adam does not take eps=nan"),
    ],
)
def test_options_are_tried_out(name: str, options: dict[str, Any], words: str) -> None:
    settings = OptimizerSettings(
        name=name, groups=(ParameterGroup(pattern="*", options=options), ParameterGroup(pattern="*"))
    )
    with pytest.raises(InvalidRequest, match=words):
        StageOptimizer(settings, [])


def test_options_that_torch_takes_are_taken_and_draw_nothing() -> None:
    before = torch.get_rng_state()
    for name, options in (
        ("sgd", {"momentum": 0.9, "nesterov": True, "dampening": 0.0, "maximize": True}),
        ("adam", {"betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}),
        ("adamw", {}),
        ("adafactor", {"eps": (1e-30, 1e-3), "d": 2.0, "beta2_decay": -0.5}),
    ):
        StageOptimizer(OptimizerSettings(name=name, groups=(ParameterGroup(pattern="*", options=options),)), [])
    assert torch.equal(before, torch.get_rng_state())
