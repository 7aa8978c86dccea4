"""What the daemon's operator may write about custom operators, and what comes of it in a process that runs stages."""

from __future__ import annotations

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.custom_operators import CustomOperator, parse_custom_operators
from stage_daemon.errors import InvalidRequest, UnsupportedOperator
from stage_daemon.loader.operators import allow_operators, find_operator
from stage_daemon.settings import Settings
from tests.builders.custom_operators import ALLOWED, MODULE, UNKNOWN


def custom(name: str) -> pb.Operator:
    return pb.Operator(kind=pb.OPERATOR_KIND_CUSTOM, name=name, overload="default")


def test_operators_are_named_by_the_module_that_registers_them() -> None:
    assert parse_custom_operators("a.b=x::y,x::z.fast  c=u::v") == (
        CustomOperator(module="a.b", name="x::y"),
        CustomOperator(module="a.b", name="x::z", overload="fast"),
        CustomOperator(module="c", name="u::v"),
    )
    assert parse_custom_operators("") == ()


@pytest.mark.parametrize("text", ["a", "a=", "a=b", "=x::y", "a=x::y,", "a=aten::mm", "a;b=x::y", "a=x::y.z.w"])
def test_what_names_no_operator_keeps_a_daemon_from_starting(text: str) -> None:
    with pytest.raises(ValueError, match="write MODULE=NAMESPACE::NAME"):
        Settings(device="cpu", custom_operators=text)


def test_only_what_is_allowed_is_found() -> None:
    allow_operators(parse_custom_operators(f"{MODULE}={ALLOWED}"))
    operator = find_operator(custom(ALLOWED))
    assert operator.function is torch.ops.planner_tests.scaled_gelu.default
    assert (operator.argument_names, operator.num_required) == (("x", "scale"), 1)
    # Registered by the same module, and not named.
    with pytest.raises(UnsupportedOperator, match=f"--custom-operators MODULE='?{UNKNOWN}"):
        find_operator(custom(UNKNOWN))
    with pytest.raises(UnsupportedOperator):
        find_operator(pb.Operator(kind=pb.OPERATOR_KIND_ATEN, name=ALLOWED, overload="default"))
    with pytest.raises(UnsupportedOperator):
        find_operator(custom("aten::mm"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no.such.module=x::y", "module no.such.module cannot be imported where stages run: No module named 'no'"),
        (f"{MODULE}=planner_tests::other", "registers no operator planner_tests::other.default"),
        (f"{MODULE}={ALLOWED}.fast", "registers no operator planner_tests::scaled_gelu.fast"),
    ],
)
def test_what_is_not_there_is_named_with_the_setting(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        allow_operators(parse_custom_operators(text))
    assert "--custom-operators" in refused.value.message
