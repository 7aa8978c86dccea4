"""Buffers and parameters that a forward reaches otherwise than by their names, such as through a cache that holds them.

torch.export takes such a tensor for a constant beside the buffer that it is: a key-value cache that is written would be
no buffer, and a parameter would not be trained.
"""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from planner.client.export.states import check_tensor, identity_of, tensor_of
from planner.errors import UnsupportedModule


def use_named_states(program: ExportedProgram, what: str, *, is_trained: bool) -> None:
    """After it no constant of the program is the same elements as one of its buffers.

    Raises UnsupportedModule for a state that cannot be carried, and, where `is_trained`, for a constant that is a
    parameter's: whether it was detached of the parameter, torch.export does not say.
    """
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    buffers: dict[tuple[object, ...], fx.Node] = {}
    parameters: dict[tuple[object, ...], str] = {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.BUFFER:
            buffers[_identity_of(program, spec)] = placeholders[spec.arg.name]
        if spec.kind is InputKind.PARAMETER and program.state_dict[str(spec.target)].requires_grad:
            parameters[_identity_of(program, spec)] = str(spec.target)
    for spec in [spec for spec in signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR]:
        identity, placeholder = _identity_of(program, spec), placeholders[spec.arg.name]
        if is_trained and identity in parameters:
            raise UnsupportedModule(
                f"{what}: the forward reaches parameter {parameters[identity]!r} otherwise than by its name, as in a "
                "list that holds it, and torch.export takes it for a constant, which is not trained; read it by its "
                "name, or export with strict=True"
            )
        if identity in buffers:
            placeholder.replace_all_uses_with(buffers[identity])
            program.graph.erase_node(placeholder)
            signature.input_specs.remove(spec)


def _identity_of(program: ExportedProgram, spec: InputSpec) -> tuple[object, ...]:
    tensor = tensor_of(program, spec)
    check_tensor(tensor, repr(spec.target))
    return identity_of(tensor)
