"""Fetches the tensors that a stage holds: sizes checked, then allocated, then filled from byte ranges and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from protos.v1 import graph_pb2 as pb
from protos.v1 import stage_daemon_pb2 as daemon_pb
from stage_daemon.errors import InsufficientMemory, StateMismatch
from stage_daemon.loader.bounds import shown
from stage_daemon.loader.declared import Declared
from stage_daemon.loader.kept_states import KeptStates, Place
from stage_daemon.loader.parse import declared_state

# (file's sha256, offset in bytes, length in bytes) to the bytes, in chunks.
ReadRange = Callable[[bytes, int, int], Iterator[bytes]]
# (bytes loaded, bytes in all)
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class StateToLoad:
    """`names`: the states that share the tensor, the first of which its bytes are fetched for."""

    names: tuple[str, ...]
    declared: Declared
    sha256: bytes
    location: daemon_pb.StateLocation


def find_states(graph: pb.Graph, locations: Sequence[daemon_pb.StateLocation]) -> list[StateToLoad]:
    """One entry per distinct tensor. Raises StateMismatch for a state without a place or of another size there."""
    values = {value.id: value for value in graph.values}
    by_name = {location.name: location for location in locations}
    groups: dict[tuple[str, int], list[pb.State]] = {}
    for index, state in enumerate(graph.states):
        key = ("tied", state.tie_group) if state.tie_group else ("alone", index)
        groups.setdefault(key, []).append(state)
    return [_find(group, declared_state(group[0], values[group[0].value]), by_name) for group in groups.values()]


def _find(group: Sequence[pb.State], declared: Declared, by_name: Mapping[str, daemon_pb.StateLocation]) -> StateToLoad:
    names = tuple(state.name for state in group)
    location = next((by_name[name] for name in names if name in by_name), None)
    if location is None:
        raise StateMismatch(f"state {shown(names[0])}: no weight file is named for it", state=names[0])
    if location.length_bytes != declared.size_bytes:
        raise StateMismatch(
            f"state {shown(names[0])}: its place in the weights has {location.length_bytes} bytes, "
            f"{declared.dtype} {list(declared.dims)} needs {declared.size_bytes}",
            state=names[0],
        )
    return StateToLoad(names, declared, group[0].sha256, location)


def load_states(
    states: Iterable[StateToLoad],
    read_range: ReadRange,
    device: torch.device,
    on_progress: OnProgress,
    kept_states: KeptStates | None = None,
) -> dict[str, torch.Tensor]:
    """Each state's tensor by name, on the device, in the declared strides; tied names share one tensor.

    Those among `kept_states` are not read; the others are added to them.
    """
    states = tuple(states)
    total_bytes = sum(state.declared.size_bytes for state in states)
    loaded_bytes = 0

    def advance(num_bytes: int) -> None:
        nonlocal loaded_bytes
        loaded_bytes += num_bytes
        on_progress(loaded_bytes, total_bytes)

    tensors: dict[str, torch.Tensor] = {}
    for state in states:
        tensors.update(dict.fromkeys(state.names, _load(state, read_range, device, advance, kept_states)))
    return tensors


def _load(
    state: StateToLoad,
    read_range: ReadRange,
    device: torch.device,
    advance: Callable[[int], None],
    kept_states: KeptStates | None,
) -> torch.Tensor:
    # Other strides are a copy, beside which what is kept would take memory twice.
    if kept_states is not None and state.declared.is_contiguous and state.declared.size_bytes:
        filled = _load_kept(state, read_range, device, advance, kept_states)
    else:
        with _refusing_too_large(state, device):
            filled = torch.empty(state.declared.dims, dtype=state.declared.dtype, device="cpu")
        _fill(_memory_of(filled), state, read_range, advance)
    with _refusing_too_large(state, device):
        return _restrided(filled, state.declared).to(device)


def _load_kept(
    state: StateToLoad,
    read_range: ReadRange,
    device: torch.device,
    advance: Callable[[int], None],
    kept_states: KeptStates,
) -> torch.Tensor:
    location, declared = state.location, state.declared
    place = Place(location.file_sha256, location.offset_bytes, location.length_bytes)
    memory = kept_states.find(place)
    if memory is not None:
        advance(declared.size_bytes)
    else:
        with _refusing_too_large(state, device):
            shared = kept_states.grow(place)
        _fill(memoryview(shared), state, read_range, advance)
        kept_states.add(place)
        memory = kept_states.find(place)
        assert memory is not None
    return torch.frombuffer(memory, dtype=torch.uint8).view(declared.dtype).reshape(declared.dims)


def _memory_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(bytearray())


@contextmanager
def _refusing_too_large(state: StateToLoad, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        # torch reports a failed allocation on the CPU, and a size that overflows, as plain RuntimeErrors; the system
        # reports one of memory to keep as an OSError.
        raise InsufficientMemory(
            f"state {shown(state.names[0])}: {state.declared.size_bytes} bytes do not fit {device}; "
            "give the stage a device with more memory or cut the model in smaller stages",
            state=state.names[0],
        ) from error


def _fill(memory: memoryview, state: StateToLoad, read_range: ReadRange, advance: Callable[[int], None]) -> None:
    """Straight into the memory; the only copy is out of the chunk."""
    name, size_bytes, location = state.names[0], state.declared.size_bytes, state.location
    digest = hashlib.sha256()
    position = 0
    for chunk in read_range(location.file_sha256, location.offset_bytes, size_bytes) if size_bytes else ():
        if position + len(chunk) > size_bytes:
            raise StateMismatch(f"state {shown(name)}: more than the {size_bytes} bytes that it has", state=name)
        memory[position : position + len(chunk)] = chunk
        digest.update(chunk)
        position += len(chunk)
        advance(len(chunk))
    if position != size_bytes:
        raise StateMismatch(
            f"state {shown(name)}: truncated, {position} of {size_bytes} bytes; upload the weights again", state=name
        )
    if state.sha256 and digest.digest() != state.sha256:
        raise StateMismatch(
            f"state {shown(name)}: its bytes hash to {digest.hexdigest()}, the graph says {state.sha256.hex()}; "
            "attach the weights that the graph was exported with",
            state=name,
        )
    if state.declared.dtype is torch.bool and size_bytes and int(torch.frombuffer(memory, dtype=torch.uint8).max()) > 1:
        raise StateMismatch(f"state {shown(name)}: a bool is neither 0 nor 1", state=name)


def _restrided(tensor: torch.Tensor, declared: Declared) -> torch.Tensor:
    """The tensor in the declared strides. A stride-0 dimension is stored once; strides with gaps are made dense."""
    if declared.is_contiguous:
        return tensor
    for dimension, stride in enumerate(declared.strides):
        if stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    compact = Declared(declared.dtype, tuple(tensor.shape), declared.strides)
    if compact.storage_elements > tensor.numel():
        result = tensor.contiguous()
    else:
        result = torch.empty_strided(compact.dims, compact.strides, dtype=compact.dtype).copy_(tensor)
    return result.expand(declared.dims)
