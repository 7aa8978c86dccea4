"""Parameter groups that mean nothing are refused, with what may have been meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.client.training.groups import check_groups
from planner.client.training.optimizers import ParameterGroup
from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from tests.builders.random_graphs import GraphWriter

NAMES = ("encoder.layers.0.weight", "encoder.layers.0.bias", "encoder.layers.1.weight", "head.weight")
FROZEN = "embedding.weight"


def graph() -> Graph:
    writer = GraphWriter()
    writer.multiply(writer.input(), *(writer.state() for _ in (*NAMES, FROZEN)))
    written = writer.graph(writer.multiply(writer.input()))
    states = tuple(
        replace(state, name=name, requires_grad=name != FROZEN)
        for state, name in zip(written.states, (*NAMES, FROZEN), strict=True)
    )
    return replace(written, states=states)


def refusal(pattern: str) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        check_groups([ParameterGroup(pattern="*.bias"), ParameterGroup(pattern=pattern)], graph())
    assert caught.value.metadata["pattern"] == pattern
    return caught.value


@pytest.mark.parametrize("pattern", ["*.bias", "encoder.*", "head.weight", "*", "", "encoder.layers.[01].weight"])
def test_what_fits_a_trained_parameter_is_taken(pattern: str) -> None:
    check_groups([ParameterGroup(pattern=pattern)], graph())


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("encodr.*", "'encoder.*'"),
        ("encoder.layer.1.weight", "'encoder.layers.1.weight'"),
        ("Head.weight", "'head.weight'"),
        ("encoder.layer.0.*", "'encoder.layers.0.*'"),
    ],
)
def test_what_fits_nothing_is_refused_with_what_is_near(pattern: str, meant: str) -> None:
    message = refusal(pattern).message
    assert f"{pattern!r} fits none of the 4 trained parameters; is " in message
    assert meant in message


def test_where_nothing_is_near_an_example_is_given() -> None:
    assert refusal("xyz").message.endswith("they are called as 'encoder.layers.0.weight' is")


def test_what_fits_frozen_parameters_alone_is_told_as_that() -> None:
    message = refusal("embedding.*").message
    assert "such as 'embedding.weight', is frozen; take the group away" in message
