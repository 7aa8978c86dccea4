"""Flags as planning options: training's own, shapes and constraints, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cli import plan_options as given
from planner.errors import OptionsError
from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import PlanOptions, Routing, ShapeBucket, SingleMode


def test_training_is_what_is_given() -> None:
    assert given.training_of(PipelineSchedule.GPIPE, 4, 12.0, 1.5) == Training(
        schedule=PipelineSchedule.GPIPE, microbatches=4, optimizer_bytes_per_parameter=12.0, backward_ratio=1.5
    )
    training = given.training_of(PipelineSchedule.GPIPE, 4, 8.0, 2.0, Activations.AS_NEEDED)
    assert training == Training(schedule=PipelineSchedule.GPIPE, microbatches=4, activations=Activations.AS_NEEDED)
    usual = Training()
    assert (
        given.training_of(None, usual.microbatches, usual.optimizer_bytes_per_parameter, usual.backward_ratio) is None
    )


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ((9, 8.0, 2.0), "--microbatches"),
        ((8, 9.0, 2.0), "--optimizer-bytes"),
        ((8, 8.0, 3.0), "--backward-ratio"),
        ((8, 8.0, 2.0, Activations.RECOMPUTED), "--activations"),
    ],
)
def test_training_flags_need_a_schedule(values: tuple[Any, ...], flag: str) -> None:
    with pytest.raises(OptionsError, match=f"^{flag} without --schedule"):
        given.training_of(None, *values)


def test_a_dimension_and_its_size() -> None:
    assert given.symbol_value("batch=8") == ("batch", 8)
    assert given.symbol_value(f"b={10**17}") == ("b", 10**17)
    assert given.symbol_values(["b=2", "a=1", "b=2"]) == (("b", 2), ("a", 1))
    with pytest.raises(OptionsError, match="--symbol: b is to be 2 and 3; name one"):
        given.symbol_values(["b=2", "b=3"])


@pytest.mark.parametrize("text", ["batch", "=8", "batch=", "batch=-1", "batch=1.5", f"b={10**18}", "batch=x"])
def test_what_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match="is no NAME=VALUE with a whole number"):
        given.symbol_value(text)


def test_a_bucket_has_sizes_and_perhaps_a_weight() -> None:
    assert given.shape_bucket("seq=128,batch=8:0.5") == ShapeBucket(
        symbol_values=(("batch", 8), ("seq", 128)), weight=0.5
    )
    assert given.shape_bucket("batch=8") == ShapeBucket(symbol_values=(("batch", 8),))


@pytest.mark.parametrize("text", ["", "batch=8:heavy", "batch=8:-1", "batch=8,:1", "8:1"])
def test_what_is_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=r"--bucket .* is no NAME=VALUE,…\[:WEIGHT\]"):
        given.shape_bucket(text)


def test_modules_are_put_on_a_device() -> None:
    assert given.fixed_module("encoder.0=n1/gpu0") == ("encoder.0", "n1/gpu0")
    for text in ("encoder", "=gpu", "encoder="):
        with pytest.raises(OptionsError, match="is no MODULE=DEVICE"):
            given.fixed_module(text)


def test_modules_are_kept_together() -> None:
    assert given.modules_together("a,b,,c") == ("a", "b", "c")
    assert given.modules_together("layers.*") == ("layers.*",)
    for text, count in (("a", 1), ("", 0), ("a,", 1)):
        with pytest.raises(OptionsError, match=f"names {count} modules, needs two or more"):
            given.modules_together(text)


def test_all_options_arrive() -> None:
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=4)
    assert given.plan_options(
        SingleMode(),
        objective=Objective.STEP_TIME,
        training=training,
        routing=Routing.RELAY,
        in_flight=3,
        symbols=["batch=2"],
        buckets=["batch=2", "batch=4:3"],
        fixed=["m=d"],
        together=["a,b"],
        saturate_host=True,
    ) == PlanOptions(
        mode=SingleMode(),
        objective=Objective.STEP_TIME,
        training=training,
        routing=Routing.RELAY,
        microbatches_in_flight=3,
        symbol_values=(("batch", 2),),
        buckets=(ShapeBucket(symbol_values=(("batch", 2),)), ShapeBucket(symbol_values=(("batch", 4),), weight=3.0)),
        fixed=(("m", "d"),),
        together=(("a", "b"),),
        saturate_host=True,
    )
