"""What is read of a message without its tensors' bytes is what the parser reads, or nothing."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from access.tensor_fields import MOST_BYTES, MOST_FIELDS
from protos.v1 import stage_daemon_pb2
from stage_daemon.control.skimming import skim_microbatch
from tests.random_examples import random_examples

SCALARS = st.one_of(
    st.just({}),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: {"integer": value}),
    st.floats(allow_nan=False).map(lambda value: {"floating": value}),
    st.booleans().map(lambda value: {"boolean": value}),
)
TENSORS = st.builds(
    lambda dtype, dims, data: {"tensor": stage_daemon_pb2.Tensor(dtype=dtype, dims=dims, data=data)},
    st.integers(0, 40),
    st.lists(st.integers(0, 2**64 - 1), max_size=4),
    st.binary(max_size=200),
)
MICROBATCHES = st.builds(
    lambda sequence, values: stage_daemon_pb2.Microbatch(
        sequence=sequence, values=[stage_daemon_pb2.Datum(**value) for value in values]
    ),
    st.integers(0, 2**64 - 1),
    st.lists(st.one_of(TENSORS, SCALARS), max_size=4),
)


def serialized(microbatch: stage_daemon_pb2.Microbatch) -> bytes:
    return stage_daemon_pb2.SendInputsRequest(microbatch=microbatch).SerializeToString()


def assert_the_parser_reads_the_same(content: bytes) -> None:
    skimmed = skim_microbatch(content)
    microbatch = stage_daemon_pb2.SendInputsRequest.FromString(content).microbatch
    assert stage_daemon_pb2.Microbatch.FromString(skimmed.content).SerializeToString() == microbatch.SerializeToString()
    assert list(skimmed.data_bytes) == [len(value.tensor.data) for value in microbatch.values]
    for value in microbatch.values:
        if value.HasField("tensor"):
            value.tensor.ClearField("data")
    # Not by `==`: there is a number that is none.
    assert skimmed.microbatch.SerializeToString() == microbatch.SerializeToString()


@random_examples(200)
@given(MICROBATCHES)
def test_what_a_client_sends(microbatch: stage_daemon_pb2.Microbatch) -> None:
    assert_the_parser_reads_the_same(serialized(microbatch))


@pytest.mark.slow
@random_examples(400)
@given(MICROBATCHES, st.data())
def test_what_was_changed_on_the_way(microbatch: stage_daemon_pb2.Microbatch, data: st.DataObject) -> None:
    content = bytearray(serialized(microbatch))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        until = data.draw(st.integers(at, min(len(content), at + 2)))
        content[at:until] = data.draw(st.binary(max_size=3))
    try:
        skim_microbatch(bytes(content))
    except DecodeError:
        return
    assert_the_parser_reads_the_same(bytes(content))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "field 2 stands there 0 times"),
        (b"\x0a\x00", "field 2 stands there 0 times"),
        (b"\x12\x00\x12\x00", "field 2 stands there 2 times"),
        (b"\x12\x00\x0a\x00", "field 2 is not alone"),
        (b"\x12\x04\x12\x02\x0a\x01", "longer than its message"),
        (b"\x12\x06\x12\x04\x0a\x00\x0a\x00", "a value is two"),
        (b"\x12\x08\x12\x06\x0a\x04\x1a\x00\x1a\x00", "bytes of a tensor stand twice"),
        (b"\x12\x02\x10\x00", "field 2 says no length"),
        (b"\x12\x01\x0b", "wire type 3"),
        (b"\x12\x82\x80\x02" + b"\x08\x01" * ((1 << 14) + 1), f"more than {MOST_FIELDS:,} fields"),
        (b"\x12\x85\x80\x04\x1a\x81\x80\x04" + bytes(MOST_BYTES + 1), f"more than {MOST_BYTES:,} bytes"),
    ],
)
def test_what_the_parser_would_merge_or_take_long_for_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        skim_microbatch(content)
