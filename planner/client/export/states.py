"""Parameters, buffers and constants of a captured program: where their bytes are, and which share them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from planner.client.export.dtypes import dtype_of
from planner.client.export.remedies import NO_NESTED_TENSORS
from planner.errors import UnsupportedModule
from planner.graph.ir import StateKind

_KINDS = {
    InputKind.PARAMETER: StateKind.PARAMETER,
    InputKind.BUFFER: StateKind.BUFFER,
    InputKind.CONSTANT_TENSOR: StateKind.CONSTANT,
}
_DEVICE_CLASSES = ("cpu", "cuda", "meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedState:
    """`tie_group` 0 means not tied. `placeholder` stands for it in the program."""

    name: str
    kind: StateKind
    tensor: torch.Tensor
    placeholder: fx.Node
    persistent: bool
    tie_group: int
    sha256: bytes


def captured_states(program: ExportedProgram) -> tuple[CapturedState, ...]:
    """In signature order. Raises UnsupportedModule for a tensor that cannot be carried."""
    declared = list(_declared_states(program))
    for name, _, tensor, _, _ in declared:
        check_tensor(tensor, f"{name!r}")
    groups = _tie_groups([tensor for _, _, tensor, _, _ in declared])
    digests: dict[int, bytes] = {}
    states = []
    for index, (name, kind, tensor, placeholder, persistent) in enumerate(declared):
        group = groups[index]
        digest = digests.get(group, b"") if group else b""
        digest = digest or digests.setdefault(group, sha256_of(tensor)) if group else sha256_of(tensor)
        states.append(
            CapturedState(
                name=name,
                kind=kind,
                tensor=tensor,
                placeholder=placeholder,
                persistent=persistent,
                tie_group=group,
                sha256=digest,
            )
        )
    return tuple(states)


def _declared_states(program: ExportedProgram) -> Iterator[tuple[str, StateKind, torch.Tensor, fx.Node, bool]]:
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        if isinstance(program.constants.get(str(spec.target)), torch.Generator):
            raise UnsupportedModule(
                "the forward draws from a torch.Generator, which no program holds: leave generator= out, and daemons "
                "draw by the seed of the session or the training"
            )
        if spec.kind not in _KINDS or spec.target is None:
            raise UnsupportedModule(
                f"{spec.target or spec.arg.name!r}: a module that holds a {spec.kind.name.lower()} cannot be carried; "
                "hold only tensors"
            )
        persistent = bool(spec.persistent) if spec.kind is InputKind.BUFFER else spec.kind is InputKind.PARAMETER
        yield spec.target, _KINDS[spec.kind], tensor_of(program, spec), placeholders[spec.arg.name], persistent


def tensor_of(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    """The parameter, buffer or constant that an input of the program stands for."""
    name = str(spec.target)
    tensor: torch.Tensor = (program.state_dict if name in program.state_dict else program.constants)[name]
    return tensor


def check_tensor(tensor: torch.Tensor, where: str) -> None:
    """Raises UnsupportedModule for what is not a plain strided tensor of a dtype that can be carried."""
    if tensor.is_nested:
        raise UnsupportedModule(f"{where}: is a nested tensor; {NO_NESTED_TENSORS}")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise UnsupportedModule(f"{where}: is a {type(tensor).__name__}; only plain tensors can be carried, convert it")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise UnsupportedModule(f"{where}: is inside a torch.func transform, which cannot be carried; write it out")
    if tensor.is_quantized or tensor.layout is not torch.strided:
        layout = "quantised" if tensor.is_quantized else str(tensor.layout)
        raise UnsupportedModule(f"{where}: is {layout}; only dense tensors can be carried, dequantise or densify it")
    if tensor.device.type not in _DEVICE_CLASSES:
        raise UnsupportedModule(
            f"{where}: is on {tensor.device}; move the module to one of {', '.join(_DEVICE_CLASSES)}"
        )
    dtype_of(tensor.dtype, where)


def sha256_of(tensor: torch.Tensor) -> bytes:
    """Of the contiguous little-endian bytes; empty for a tensor on meta."""
    if tensor.device.type == "meta":
        return b""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).digest()


def _tie_groups(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor the number, from 1, of the group that views the same elements; 0 if it is alone."""
    keys = [identity_of(tensor) for tensor in tensors]
    shared = [key for key, count in Counter(keys).items() if count > 1]
    numbers = {key: number for number, key in enumerate(shared, start=1)}
    return [numbers.get(key, 0) for key in keys]


def identity_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same elements in the same order."""
    if tensor.numel() == 0:
        return (id(tensor),)
    return (storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def storage_of(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage, on meta too, where no address tells."""
    return int(tensor.untyped_storage()._cdata)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether some byte of the storage that they share may be of both: what lies between a tensor's first and last
    element counts as its own."""
    if not one.numel() or not other.numel():
        return False
    (first, first_end), (second, second_end) = _span(one), _span(other)
    return first < second_end and second < first_end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.storage_offset()
    return int(begin) * tensor.itemsize, int(begin + last + 1) * tensor.itemsize
