"""Weights that outlive their worker: read once, whole or not there, and the same whatever a stage wrote to them."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator

import pytest
import torch

from protos.v1 import stage_daemon_pb2 as daemon_pb
from stage_daemon.errors import StateMismatch
from stage_daemon.loader.declared import Declared
from stage_daemon.loader.kept_states import KeptStates, Place
from stage_daemon.loader.states import StateToLoad, load_states
from tests.builders.graph_messages import tensor_bytes

PAGE = mmap.PAGESIZE
TENSORS = [
    torch.arange(3 * PAGE, dtype=torch.float32),
    torch.tensor(7.5),
    torch.rand(5, 7).to(torch.float8_e4m3fn),
    torch.tensor([True, False]),
    torch.rand(3, 4, dtype=torch.complex64),
]


class Files:
    """Where the bytes of tensors come from, one file each; `num_read` counts how often one was asked for."""

    def __init__(self) -> None:
        self.num_read = 0
        self._contents: dict[bytes, bytes] = {}

    def state(self, tensor: torch.Tensor, content_served: bytes | None = None) -> StateToLoad:
        """`content_served` is what is read in place of its bytes."""
        content = tensor_bytes(tensor)
        digest = hashlib.sha256(content).digest()
        self._contents[digest] = content if content_served is None else content_served
        return StateToLoad(
            names=("state",),
            declared=Declared(tensor.dtype, tuple(tensor.shape), tensor.stride()),
            sha256=digest,
            location=daemon_pb.StateLocation(name="state", file_sha256=digest, length_bytes=len(content)),
        )

    def read(self, sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        self.num_read += 1
        yield self._contents[sha256][offset : offset + length]


def load(files: Files, state: StateToLoad, states: KeptStates) -> torch.Tensor:
    return load_states([state], files.read, torch.device("cpu"), lambda loaded, total: None, states)["state"]


def as_the_next_worker(states: KeptStates) -> KeptStates:
    return KeptStates(os.dup(states._descriptor))


def memory_bytes(states: KeptStates) -> int:
    return os.fstat(states._descriptor).st_blocks * 512


def place(state: StateToLoad) -> Place:
    return Place(state.location.file_sha256, 0, state.location.length_bytes)


def test_the_next_worker_reads_nothing_and_sees_no_write_of_the_one_before() -> None:
    files, shelf = Files(), KeptStates.create()
    states = [files.state(tensor) for tensor in TENSORS]
    for _ in range(3):
        worker = as_the_next_worker(shelf)
        for tensor, state in zip(TENSORS, states, strict=True):
            loaded = load(files, state, worker)
            assert (loaded.dtype, loaded.shape, loaded.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
            assert tensor_bytes(loaded) == tensor_bytes(tensor)
            loaded.zero_()
    assert files.num_read == len(TENSORS)


def test_what_is_empty_or_in_other_strides_is_read_each_time() -> None:
    files, states = Files(), KeptStates.create()
    transposed = torch.rand(3, 4).t()
    for _ in range(2):
        assert torch.equal(load(files, files.state(transposed), states), transposed)
        assert load(files, files.state(torch.empty(0, 4)), states).shape == (0, 4)
    assert (files.num_read, states.size_bytes) == (2, 0)


def test_bytes_that_did_not_all_come_are_not_there_and_are_taken_for_nothing_else() -> None:
    """The next record ends where bytes lay that a record's head could be read from."""
    files, states = Files(), KeptStates.create()
    heads = torch.ones(4 * PAGE, dtype=torch.uint8)
    with pytest.raises(StateMismatch, match="truncated"):
        load(files, files.state(heads, content_served=bytes(heads[:-1].tolist())), states)
    worker = as_the_next_worker(states)
    assert worker.size_bytes == 0
    small = torch.rand(4)
    load(files, files.state(small), worker)
    assert as_the_next_worker(states).size_bytes == 16
    assert torch.equal(load(files, files.state(heads), worker), heads)


def test_the_memory_of_what_has_moved_away_is_given_back() -> None:
    files, states = Files(), KeptStates.create()
    large, small = files.state(torch.rand(64 * PAGE)), files.state(torch.rand(4))
    for state in (large, small):
        load(files, state, states)
    assert memory_bytes(states) > 256 * PAGE
    states.keep_only({place(small)})
    assert memory_bytes(states) < 8 * PAGE
    worker = as_the_next_worker(states)
    assert (worker.find(place(large)), worker.size_bytes) == (None, 16)
    load(files, small, worker)
    assert files.num_read == 2
    load(files, large, worker)
    assert files.num_read == 3
