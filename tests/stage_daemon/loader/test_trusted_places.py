"""What kernels of torch trust is looked at: what lies outside is refused, and what is right is as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.operators import find_operator
from stage_daemon.loader.trusted_places import with_checks

WEIGHT = torch.linspace(-1, 1, 40).reshape(10, 4)
INDICES = torch.tensor([1, 2, 3, 4])
LOGITS = torch.linspace(-1, 1, 144).reshape(12, 2, 6).log_softmax(-1)
PACKED = torch.linspace(-1, 1, 32).reshape(8, 4)
ROWS, GROUPS = torch.linspace(-1, 1, 96).reshape(6, 16), torch.linspace(-1, 1, 128).reshape(2, 16, 4)


NAN, INF = float("nan"), float("inf")


def sampled(place: float, mode: int, padding: int) -> tuple[Any, ...]:
    grid = torch.zeros(1, 3, 4, 2)
    grid[0, 1, 2, 0] = place
    return torch.linspace(-1, 1, 50).reshape(1, 2, 5, 5), grid, mode, padding, False


def call(name: str, overload: str, *args: Any, **kwargs: Any) -> Any:
    operator = pb.Operator(kind=pb.OPERATOR_KIND_ATEN, name=f"aten::{name}", overload=overload)
    return find_operator(operator).function(*args, **kwargs)


def bags(*offsets: int) -> tuple[Any, ...]:
    return WEIGHT, INDICES, torch.tensor(offsets)


def loss(labels: list[Any], lengths: tuple[int, int] = (4, 2)) -> tuple[Any, ...]:
    return LOGITS, torch.tensor(labels), torch.tensor([12, 9]), torch.tensor(lengths)


def padded(*sizes: int) -> tuple[Any, ...]:
    return PACKED, torch.tensor(sizes), False, 0.0, 5


def groups(*ends: int, left: torch.Tensor = ROWS, right: torch.Tensor = GROUPS) -> tuple[Any, ...]:
    return left, right, torch.tensor(ends, dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "overload", "args"),
    [
        ("embedding_bag", "default", bags(0, 0, 3)),
        ("embedding_bag", "padding_idx", (*bags(0, 2), False, 0, False, None, False, 1)),
        ("_embedding_bag", "default", bags(0, 4)),
        ("ctc_loss", "Tensor", loss([[1, 2, 3, 5], [1, 0, -100, 10**9]])),
        ("ctc_loss", "Tensor", loss([1, 2, 3, 5, 1, 4])),
        ("_pad_packed_sequence", "default", padded(3, 3, 2)),
        ("_grouped_mm", "default", groups(2, 6)),
        ("_grouped_mm", "default", (torch.ones(2, 3, 16), torch.ones(2, 16, 4))),
        ("grid_sampler", "default", sampled(0.5, 0, 1)),
        ("grid_sampler_2d", "default", sampled(-1e30, 0, 2)),
        ("grid_sampler", "default", sampled(INF, 0, 0)),
        ("grid_sampler", "default", sampled(INF, 1, 2)),
        ("linalg_eigvals", "default", (torch.eye(3),)),
    ],
)
def test_what_lies_inside_is_computed_as_torch_does(name: str, overload: str, args: tuple[Any, ...]) -> None:
    results = call(name, overload, *args)

    expected = getattr(getattr(torch.ops.aten, name), overload)(*args)
    for result, one in zip(
        *(each if isinstance(each, tuple) else (each,) for each in (results, expected)), strict=True
    ):
        assert torch.equal(result.nan_to_num(7.0), one.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("name", "overload", "args", "why"),
    [
        ("embedding_bag", "default", bags(0, -(10**9), 2), "offsets descend"),
        ("embedding_bag", "default", bags(0, 10**9, 2), "offsets descend"),
        ("embedding_bag", "padding_idx", (*bags(0, -5), False, 0, False, None, False, 1), "offsets descend"),
        ("_embedding_bag", "default", bags(0, -(10**9)), "offsets descend"),
        ("ctc_loss", "Tensor", loss([[1, 2, 3, 6], [1, 0, 0, 0]]), "a label is none of those that log_probs has"),
        ("ctc_loss", "Tensor", loss([[1, 2, 3, 5], [1, -100, 0, 0]]), "a label is none of those that log_probs has"),
        ("ctc_loss", "Tensor", loss([1, 2, 3, 5, 1, 10**9]), "a label is none of those that log_probs has"),
        ("_pad_packed_sequence", "default", padded(3, -(10**9)), "a batch size is below 0, or above the one before"),
        ("_pad_packed_sequence", "default", padded(3, 2, 3), "above the one before"),
        ("_grouped_mm", "default", groups(2, 10**9), "offsets descend, or lie outside of the rows"),
        ("_grouped_mm", "default", groups(4, 2), "offsets descend"),
        ("_grouped_mm", "default", groups(-1, 6), "lie outside of the rows"),
        ("_grouped_mm", "default", groups(2, 7, left=ROWS.t()[:8], right=ROWS[:, :8]), "that they part"),
        ("_grouped_mm", "default", groups(2, 5, left=torch.ones(2, 3, 16), right=torch.ones(16, 4)), "that they part"),
        ("grid_sampler", "default", sampled(NAN, 0, 1), "a place on the grid is not finite"),
        ("grid_sampler_2d", "default", sampled(INF, 0, 2), "a place on the grid is not finite"),
        ("linalg_eigvals", "default", (torch.full((3, 3), NAN),), "an element of the matrix is not finite"),
    ],
)
def test_what_lies_outside_is_refused(name: str, overload: str, args: tuple[Any, ...], why: str) -> None:
    with pytest.raises(RuntimeError, match=rf"aten::{name}: .*{why}"):
        call(name, overload, *args)


def test_arguments_may_be_given_by_name() -> None:
    weight, indices, offsets = bags(0, 10**9, 2)
    with pytest.raises(RuntimeError, match="offsets descend"):
        call("embedding_bag", "default", weight, indices=indices, offsets=offsets)


def test_what_trusts_nothing_is_called_itself() -> None:
    assert with_checks("aten::add", torch.add, ["self", "other"]) is torch.add
