"""Runs torch.export and says in our terms why a module cannot be captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from planner.client.export.changed_states import changed_states
from planner.client.export.custom_functions import custom_functions
from planner.client.export.data_sizes import sizes_by_data
from planner.client.export.gradient_hooks import gradient_hooks
from planner.client.export.inference_mode import inference_mode_as_no_grad
from planner.client.export.keyword_inputs import named_keywords
from planner.client.export.passes.named_states import use_named_states
from planner.client.export.passes.written_out_attention import flex_attention_anywhere
from planner.client.export.plain_weights import with_plain_weights
from planner.client.export.random_numbers import python_draws, torch_draws
from planner.client.export.remedies import line_that_asks, remedy, remedy_for_data
from planner.client.export.unchanged import unchanged
from planner.errors import UnsupportedModule

# How torch's messages go on, about tools that are not ours.
_ADVICE = "The error above occurred when calling torch.export.export"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """The raw program in the training IR. `custom_backwards`: custom functions of which it has the forward alone, and
    gradient hooks."""

    program: ExportedProgram
    custom_backwards: tuple[str, ...]


def capture(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, strict: bool
) -> Captured:
    """Raises UnsupportedModule."""
    what, is_trained = type(module).__name__, any(part.training for part in module.modules())
    _refuse_ambient_autocast(what)
    args, kwargs = _distinct((args, kwargs))
    module = with_plain_weights(module)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            sizes_by_data(),
            custom_functions(what, is_trained=is_trained) as functions,
            gradient_hooks(module, what, is_trained=is_trained) as hooks,
        ):
            with (
                _lines_of_errors_alone(),
                torch_draws((*module.parameters(), *module.buffers())),
                python_draws(),
                inference_mode_as_no_grad(),
                flex_attention_anywhere(),
                unchanged(module),
                named_keywords(module, kwargs),
                changed_states(module, what, is_trained=is_trained, strict=strict),
            ):
                program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
            _complete_users(program)
            use_named_states(program, what, is_trained=module.training and not strict)
            _forget_gradients(program)
            program = _for_whole_batches(program, what, is_trained=is_trained)
            functions.put_in(program)
        return Captured(program=program, custom_backwards=(*functions.inlined, *hooks))
    except UnsupportedModule:
        raise
    except GuardOnDataDependentSymNode as error:
        raise UnsupportedModule(
            f"{what}: a branch or shape depends on what a tensor holds{line_that_asks(error)} ({_first_line(error)}); "
            f"{remedy_for_data(error, module)}"
        ) from error
    except Exception as error:
        raise UnsupportedModule(
            f"{what}: torch.export cannot capture it: {_first_lines(error)}\n{remedy(error, module)}"
        ) from error


@contextmanager
def _lines_of_errors_alone() -> Iterator[None]:
    """torch.export notes of each node which lines of the model made it, in a tenth of its time. Nothing here reads
    that: errors hold the line at fault themselves."""
    before = fx.config.do_not_emit_stack_traces
    fx.config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        fx.config.do_not_emit_stack_traces = before


def _complete_users(program: ExportedProgram) -> None:
    """Where the forward opens a region (autocast, no_grad), torch.export forgets of a node before it that nothing in
    the region reads, such as a slice whose size alone is asked for, that it is a user of what it reads.
    """
    for part in program.graph_module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                for source in node.all_input_nodes:
                    source.users.setdefault(node)


def _forget_gradients(program: ExportedProgram) -> None:
    """Tensors that torch.export found by no name and saw written have a past in autograd since, and else no change."""
    for tensor in program.constants.values():
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            tensor.detach_()


def _for_whole_batches(program: ExportedProgram, what: str, *, is_trained: bool) -> ExportedProgram:
    """With what torch.vmap maps written for the whole batch, as it runs.

    One that writes its inputs or buffers would no longer write them itself: it stays as it is, and is refused later.
    Regions without gradients would not be such any more: in training they are refused here.
    """
    if not any(getattr(node.target, "__name__", "") == "_add_batch_dim" for node in program.graph.nodes):
        return program
    if is_trained and _has_regions_without_gradients(program):
        raise UnsupportedModule(
            f"{what}: torch.vmap and torch.no_grad in one module in training: what is written for the "
            "whole batch has its gradients everywhere; call detach() on what no_grad makes, or write the function that "
            "vmap maps for the whole batch"
        )
    plain = program.run_decompositions({})
    written = {**plain.graph_signature.buffers_to_mutate, **plain.graph_signature.user_inputs_to_mutate}
    return program if written else plain


def _has_regions_without_gradients(program: ExportedProgram) -> bool:
    """Those that stop the gradients of a weight; rotary embeddings, for one, are made of positions alone."""
    weights = program.graph_signature.inputs_to_parameters
    with_gradients = {node for node in program.graph.find_nodes(op="placeholder") if node.name in weights}
    for node in program.graph.nodes:
        if not with_gradients.isdisjoint(node.all_input_nodes):
            if any(map(_is_region_without_gradients, _inside(program.graph_module, node))):
                return True
            if _may_have_gradients(node):
                with_gradients.add(node)
    return False


def _inside(module: fx.GraphModule, node: fx.Node) -> Iterator[fx.Node]:
    """The node, and those of the parts that it calls."""
    yield node
    for source in node.all_input_nodes:
        part = getattr(module, str(source.target)) if source.op == "get_attr" else None
        if isinstance(part, fx.GraphModule):
            for inner in part.graph.nodes:
                yield from _inside(part, inner)


def _is_region_without_gradients(node: fx.Node) -> bool:
    return node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and node.args[0] is False


def _may_have_gradients(node: fx.Node) -> bool:
    """What is no tensor may hold some."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return not isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def _refuse_ambient_autocast(what: str) -> None:
    for device_class in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device_class):
            raise UnsupportedModule(
                f"{what}: autocast is on around export and would be lost; open it inside the module's forward"
            )


def _distinct(inputs: Any) -> Any:
    """A tensor that stands for two inputs is cloned for the second.

    torch.export takes both for one: its program would read the second wherever the module reads the first.
    """
    seen: set[int] = set()

    def distinct(leaf: torch.Tensor) -> torch.Tensor:
        if id(leaf) in seen:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        seen.add(id(leaf))
        return leaf

    return pytree.tree_map_only(torch.Tensor, distinct, inputs)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _first_lines(error: Exception, most: int = 12) -> str:
    text = str(error).partition(_ADVICE)[0]
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:most]) or type(error).__name__
