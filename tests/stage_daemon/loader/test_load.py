"""A stage's bytes become a program that computes what the graph says, with the weights that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import ShapeMismatch, StateMismatch
from stage_daemon.loader.load import StageProgram, load_stage
from stage_daemon.loader.states import ReadRange
from tests.builders.graph_messages import FILE_SHA256, file_bytes, locations, small_message, small_module_outputs

CPU = torch.device("cpu")


def _reader(data: bytes, chunk_bytes: int = 7) -> ReadRange:
    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        assert sha256 == FILE_SHA256
        piece = data[offset : offset + length]
        for start in range(0, len(piece), chunk_bytes):
            yield piece[start : start + chunk_bytes]

    return read


def _load(
    graph: pb.Graph, read: ReadRange | None = None, on_progress: Callable[[int, int], None] = lambda loaded, total: None
) -> StageProgram:
    return load_stage(graph.SerializeToString(), locations(), read or _reader(file_bytes()), CPU, on_progress)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_computes_what_the_graph_says(flag: bool, batch: int) -> None:
    program = _load(small_message())
    x = torch.randn(batch, 3)
    first, second = program.module(x, torch.tensor(flag))
    expected_first, expected_second = small_module_outputs(x, flag)
    assert torch.equal(first, expected_first)
    assert torch.equal(second, expected_second)


def test_says_which_values_go_in_and_come_out() -> None:
    program = _load(small_message())
    assert program.input_ids == (1, 9)
    assert program.output_ids == (8, 7)


def test_tied_states_share_one_tensor() -> None:
    states = _load(small_message()).module.states()
    assert states["linear.weight"] is states["tied.weight"]
    assert isinstance(states["linear.weight"], torch.nn.Parameter)


def test_tells_its_progress_in_bytes() -> None:
    progress: list[tuple[int, int]] = []
    _load(small_message(), on_progress=lambda loaded, total: progress.append((loaded, total)))
    assert progress[-1] == (64, 64)
    assert progress == sorted(progress)


def test_constant_inputs_and_outputs_are_not_passed() -> None:
    graph = small_message()
    graph.inputs.add(name="scale").constant.integer = 3
    graph.outputs.add(name="nothing").constant.none.SetInParent()
    program = _load(graph)
    assert len(program.module(torch.ones(2, 3), torch.tensor(True))) == 2


def test_truncated_weights_are_refused() -> None:
    with pytest.raises(StateMismatch, match=r"'linear.bias': truncated, 12 of 16 bytes"):
        _load(small_message(), _reader(file_bytes()[:-4]))


def test_other_bytes_are_refused() -> None:
    data = bytearray(file_bytes())
    data[3] ^= 1
    with pytest.raises(StateMismatch, match=r"'linear.weight': its bytes hash to"):
        _load(small_message(), _reader(bytes(data)))


def test_more_bytes_than_asked_for_are_refused() -> None:
    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        yield file_bytes()[offset : offset + length] + b"more"

    with pytest.raises(StateMismatch, match="more than the 48 bytes"):
        _load(small_message(), read)


def test_a_place_of_another_size_is_refused_before_anything_is_read() -> None:
    places = locations()
    places[1].length_bytes = 8

    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        raise AssertionError("read before the sizes were checked")

    with pytest.raises(StateMismatch, match=r"'linear.bias': its place in the weights has 8 bytes"):
        load_stage(small_message().SerializeToString(), places, read, CPU, lambda loaded, total: None)


def test_a_state_without_a_place_is_refused() -> None:
    with pytest.raises(StateMismatch, match=r"'linear.bias': no weight file"):
        load_stage(
            small_message().SerializeToString(),
            locations()[:1],
            _reader(file_bytes()),
            CPU,
            lambda loaded, total: None,
        )


def test_a_graph_captured_without_weights_has_no_digests_to_check() -> None:
    graph = small_message()
    for state in graph.states:
        state.sha256 = b""
    data = bytes(len(file_bytes()))
    first, _ = _load(graph, _reader(data)).module(torch.ones(2, 3), torch.tensor(True))
    assert torch.equal(first, torch.zeros(2, 2))


def test_declared_shapes_must_be_what_the_stage_gives() -> None:
    graph = small_message()
    graph.values[4].dims[1].constant = 5
    with pytest.raises(ShapeMismatch, match=r"value 5 \('active'\): the rebuilt stage gives torch\.float32 \[2, 4\]"):
        _load(graph)


def test_declared_dtypes_must_be_what_the_stage_gives() -> None:
    graph = small_message()
    graph.values[3].dtype = pb.DTYPE_FLOAT16
    with pytest.raises(ShapeMismatch, match=r"value 4 \('hidden'\)"):
        _load(graph)


def test_both_branches_are_tried_out() -> None:
    graph = small_message()
    graph.subgraphs[1].values[1].dims[1].constant = 3
    with pytest.raises(ShapeMismatch, match=r"subgraph 1, value 2 \('result'\)"):
        _load(graph)
