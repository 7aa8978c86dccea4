"""A microbatch that does not fit is refused with the name of its input, before any worker sees it."""

from __future__ import annotations

import pytest

from protos.v1 import graph_pb2, stage_daemon_pb2
from stage_daemon.control.microbatches import check_microbatch
from stage_daemon.errors import InvalidMicrobatch

INPUTS = (
    stage_daemon_pb2.EdgeValue(
        value=1,
        kind=graph_pb2.VALUE_KIND_TENSOR,
        dtype=graph_pb2.DTYPE_FLOAT32,
        dims=[graph_pb2.Expression(symbol=1), graph_pb2.Expression(constant=2)],
        name="x",
    ),
    stage_daemon_pb2.EdgeValue(value=2, kind=graph_pb2.VALUE_KIND_SYM_INT, name="steps"),
)


def tensor(dims: tuple[int, ...] = (3, 2), dtype: int = graph_pb2.DTYPE_FLOAT32, size: int = 24) -> dict[str, object]:
    return {"tensor": stage_daemon_pb2.Tensor(dtype=dtype, dims=dims, data=bytes(size))}


def microbatch(*values: dict[str, object], sequence: int = 1) -> stage_daemon_pb2.Microbatch:
    return stage_daemon_pb2.Microbatch(sequence=sequence, values=[stage_daemon_pb2.Datum(**value) for value in values])


def test_what_fits_passes_with_any_dynamic_dim() -> None:
    check_microbatch(microbatch(tensor(), {"integer": 4}), INPUTS, 1)
    check_microbatch(microbatch(tensor((0, 2), size=0), {"integer": -1}), INPUTS, 1)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (microbatch(tensor(), {"integer": 4}, sequence=2), "microbatch 2 came where 1 was due"),
        (microbatch(tensor()), "has 1 values, the deployment takes 2: x, steps"),
        (microbatch({"integer": 1}, {"integer": 4}), "input 'x': integer came, a value of kind tensor"),
        (microbatch(tensor(), tensor()), "input 'steps': tensor came"),
        (microbatch(tensor(), {}), "input 'steps': nothing came"),
        (microbatch(tensor(dtype=graph_pb2.DTYPE_INT64, size=48), {"integer": 4}), "dtype int64, needs float32"),
        (microbatch(tensor(dtype=99, size=48), {"integer": 4}), "dtype 99, needs float32"),
        (microbatch(tensor((3, 3), size=36), {"integer": 4}), r"dims \[3, 3\], needs \[any, 2\]"),
        (microbatch(tensor((6,)), {"integer": 4}), r"dims \[6\], needs"),
        (microbatch(tensor((2**62, 2), size=8), {"integer": 4}), "8 bytes came"),
    ],
)
def test_what_does_not_fit_is_named(found: stage_daemon_pb2.Microbatch, message: str) -> None:
    with pytest.raises(InvalidMicrobatch, match=message):
        check_microbatch(found, INPUTS, 1)
