"""A microbatch that does not fit is refused with the name of its input, before any worker sees it."""

from __future__ import annotations

import math

import pytest

from access.pieces import PIECE_BYTES
from protos.v1 import graph_pb2, stage_daemon_pb2
from stage_daemon.control.callers import LISTS_BYTES
from stage_daemon.control.microbatches import (
    MOST_ROUNDS,
    check_microbatch,
    check_training_bytes,
    most_input_bytes,
    most_training_bytes,
    parse_inputs,
    read_microbatch,
)
from stage_daemon.errors import InvalidMicrobatch, InvalidRequest

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


def check(microbatch: stage_daemon_pb2.Microbatch) -> None:
    content = stage_daemon_pb2.SendInputsRequest(microbatch=microbatch).SerializeToString()
    read = read_microbatch(content, math.inf)
    assert stage_daemon_pb2.Microbatch.FromString(read.content) == microbatch
    check_microbatch(read, INPUTS, 1)


def test_what_fits_passes_with_any_dynamic_dim() -> None:
    check(microbatch(tensor(), {"integer": 4}))
    check(microbatch(tensor((0, 2), size=0), {"integer": -1}))
    check(microbatch(tensor((PIECE_BYTES, 2), size=8 * PIECE_BYTES), {"integer": 4}))


def test_a_large_one_is_checked_without_its_bytes() -> None:
    large = microbatch(tensor((PIECE_BYTES, 3), size=8 * PIECE_BYTES), {"integer": 4})
    content = stage_daemon_pb2.SendInputsRequest(microbatch=large).SerializeToString()
    assert read_microbatch(content, math.inf).microbatch.values[0].tensor.data == b""
    with pytest.raises(InvalidMicrobatch, match=r"needs \[any, 2\]"):
        check(large)
    with pytest.raises(InvalidMicrobatch, match=f"{8 * PIECE_BYTES + 1} bytes came"):
        check(microbatch(tensor((PIECE_BYTES, 2), size=8 * PIECE_BYTES + 1), {"integer": 4}))
    with pytest.raises(InvalidMicrobatch, match="at most 8 are taken"):
        read_microbatch(content, 8)
    with pytest.raises(InvalidRequest, match="a large message holds one `microbatch`"):
        read_microbatch(content + content, math.inf)


@pytest.mark.parametrize(
    ("unfit", "message"),
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
def test_what_does_not_fit_is_named(unfit: stage_daemon_pb2.Microbatch, message: str) -> None:
    with pytest.raises(InvalidMicrobatch, match=message):
        check(unfit)


@pytest.mark.parametrize("upper", [None, 0, 7, 2**40])
def test_no_message_that_fits_is_larger_than_its_bound(upper: int | None) -> None:
    symbol = graph_pb2.Symbol(id=1, upper=upper)
    bound = most_input_bytes(stage_daemon_pb2.ConnectStagesRequest(inputs=INPUTS, symbols=[symbol]))
    assert (bound == math.inf) is (upper is None)
    rows = min(upper or 0, 1000)
    largest = microbatch(tensor((rows, 2), size=8 * rows), {"integer": -(2**63)}, sequence=2**32 - 1)
    content = stage_daemon_pb2.SendInputsRequest(microbatch=largest).SerializeToString()
    assert parse_inputs(content, bound).microbatch == largest
    assert upper == 2**40 or bound == math.inf or bound < len(content) + 256


def test_an_expression_has_no_bound_that_is_known() -> None:
    dim = graph_pb2.Expression(operation=graph_pb2.Expression.Operation())
    declared = stage_daemon_pb2.EdgeValue(kind=graph_pb2.VALUE_KIND_TENSOR, dtype=graph_pb2.DTYPE_INT8, dims=[dim])
    assert most_input_bytes(stage_daemon_pb2.ConnectStagesRequest(inputs=[declared])) == math.inf


def test_what_is_too_large_is_refused_unparsed() -> None:
    with pytest.raises(InvalidMicrobatch, match="a message of 9 bytes came, and at most 8 are taken"):
        parse_inputs(b"\xff" * 9, 8)
    with pytest.raises(InvalidRequest, match="cannot be parsed"):
        parse_inputs(b"\xff" * 8, 8)


def test_a_training_message_may_hold_all_rounds_of_a_step_or_all_states() -> None:
    fixed = stage_daemon_pb2.EdgeValue(
        kind=graph_pb2.VALUE_KIND_TENSOR, dtype=graph_pb2.DTYPE_FLOAT32, dims=[graph_pb2.Expression(constant=1 << 20)]
    )
    connection = stage_daemon_pb2.ConnectStagesRequest(inputs=[fixed])
    connection.training.microbatches = 3
    step_bytes = MOST_ROUNDS * 3 * (4 << 20)
    without_states = most_training_bytes(connection, stage_daemon_pb2.LoadStagesRequest())
    assert LISTS_BYTES + step_bytes < without_states < LISTS_BYTES + 1.01 * step_bytes

    def with_states(length_bytes: int) -> float:
        states = [stage_daemon_pb2.StateLocation(name="weight", length_bytes=length_bytes)] * 2
        module = stage_daemon_pb2.StageModule(states=states)
        return most_training_bytes(connection, stage_daemon_pb2.LoadStagesRequest(stages=[module]))

    assert with_states(100) == without_states
    assert LISTS_BYTES + 4 * step_bytes < with_states(2 * step_bytes) < LISTS_BYTES + 4.01 * step_bytes
    check_training_bytes(b"xx", 2.0)
    with pytest.raises(InvalidRequest, match="a message of 3 bytes came, and at most 2"):
        check_training_bytes(b"xxx", 2.0)
