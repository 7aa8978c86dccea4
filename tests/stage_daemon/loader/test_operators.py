"""The operator table holds the wire contract's list, and nothing that reaches past the arguments of a call."""

from __future__ import annotations

from importlib.resources import files

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.operators import find_operator, operator_table

FORBIDDEN = {
    "aten::from_file",
    "aten::set_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::as_strided_",
    "aten::set_data",
}


def test_every_line_of_the_list_has_an_entry() -> None:
    lines = files("protos.v1").joinpath("operators.txt").read_text(encoding="utf-8").splitlines()
    assert len(operator_table()) == sum(not line.startswith("#") for line in lines)


def test_no_entry_writes_an_argument_out_or_takes_storage() -> None:
    for kind, name, overload in operator_table():
        assert name not in FORBIDDEN
        if kind == pb.OPERATOR_KIND_ATEN:
            arguments = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload)._schema.arguments
            assert not any(argument.is_out or "Storage" in str(argument.type) for argument in arguments), (
                name,
                overload,
            )


def test_an_entry_is_the_exact_overload() -> None:
    operator = pb.Operator(kind=pb.OPERATOR_KIND_ATEN, name="aten::add", overload="Scalar")
    assert find_operator(operator).function is torch.ops.aten.add.Scalar


def test_what_a_call_may_give_is_the_schemas() -> None:
    """add.Tensor(self, other, *, alpha=1)"""
    operator = find_operator(pb.Operator(kind=pb.OPERATOR_KIND_ATEN, name="aten::add", overload="Tensor"))
    assert operator.argument_names == ("self", "other", "alpha")
    assert (operator.num_positional, operator.num_required) == (2, 2)
    scalar = find_operator(pb.Operator(kind=pb.OPERATOR_KIND_PYTHON, name="round"))
    assert (scalar.num_positional, scalar.num_required) == (2, 1)
    cond = find_operator(pb.Operator(kind=pb.OPERATOR_KIND_HIGHER_ORDER, name="cond"))
    assert (cond.num_positional, cond.num_required) == (4, 4)


def test_cond_takes_the_branch_that_the_condition_says() -> None:
    cond = find_operator(pb.Operator(kind=pb.OPERATOR_KIND_HIGHER_ORDER, name="cond")).function
    for condition in (True, False, torch.tensor(True), torch.tensor([False])):
        branch = cond(condition, lambda a, b: ("true", a, b), lambda a, b: ("false", a, b), (1, 2))
        assert branch == ("true" if bool(condition) else "false", 1, 2)
