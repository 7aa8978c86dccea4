"""A checkpoint's tensors to daemons: each is asked what it has of them, and sent that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.client.microbatches import declare_tensor, fill_tensor
from planner.client.tensors import RawTensor
from planner.client.training.checkpoints import Checkpoint
from planner.client.training.state_names import StateNames
from planner.client.weight_layout import TensorSource
from protos.v1 import stage_daemon_pb2

# Large enough that round trips do not count, small enough to be held a few times over.
_MESSAGE_BYTES = 64 << 20

# A state's name, and which of the optimizer's tensors for it; empty for the state itself.
Key = tuple[str, str]


class Transfer:
    def __init__(self, checkpoint: Checkpoint, names: StateNames) -> None:
        self._names = names
        self._tensors: dict[Key, TensorSource] = {}
        for first, tensor in checkpoint.states.items():
            for name in names.tied(first):
                self._tensors[name, ""] = tensor
        for first, kept in checkpoint.kept.items():
            for name in names.tied(first):
                self._tensors |= {(name, kind): tensor for kind, tensor in kept.items()}

    def check(self) -> stage_daemon_pb2.TrainRequest:
        request = stage_daemon_pb2.TrainRequest()
        request.write_states.only_check = True
        for (name, kind), source in self._tensors.items():
            declared = request.write_states.states.add(name=name, optimizer_tensor=kind)
            declare_tensor(declared.tensor, source.dtype, source.dims)
        return request

    def writes(self, answers: Iterable[stage_daemon_pb2.TrainResponse]) -> Iterator[stage_daemon_pb2.TrainRequest]:
        """Of what a daemon answered to the check. All that belongs to a state is in one request."""
        by_state: dict[str, list[Key]] = {}
        for answer in answers:
            key = answer.state.name, answer.state.optimizer_tensor
            by_state.setdefault(self._names.first(key[0]), []).append(key)
        request, filled_bytes = stage_daemon_pb2.TrainRequest(), 0
        for keys in by_state.values():
            size = sum(self._tensors[key].size_bytes for key in keys)
            if filled_bytes and filled_bytes + size > _MESSAGE_BYTES:
                yield request
                request, filled_bytes = stage_daemon_pb2.TrainRequest(), 0
            filled_bytes += size
            for name, kind in keys:
                source = self._tensors[name, kind]
                state = request.write_states.states.add(name=name, optimizer_tensor=kind)
                fill_tensor(state.tensor, RawTensor(dtype=source.dtype, dims=source.dims, data=source.read()))
        if by_state:
            yield request
