"""Custom torch.autograd.Functions: in evaluation their forward, in training both of their passes as programs.

torch.export inlines a custom function's forward and forgets its backward. In training a call is captured as one of an
operator that stands for it, while forward and backward run once on tensors without numbers; what they call is written
down as two programs. The forward program returns the function's results, then what else the backward pass reads of it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import Function, _SingleLevelFunction, once_differentiable
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

from planner.client.export.dtypes import has_fractions
from planner.client.export.effects import draws_random
from planner.client.export.storage import StorageRoots
from planner.errors import UnsupportedModule
from planner.graph import subgraphs

_NAMESPACE = "planner_custom_functions"
# What strict=True makes of a custom function.
_OF_STRICT_CAPTURE = "ApplyTemplate"
_numbers = itertools.count()


class _CustomFunction(HigherOrderOperator):
    """`kept` are the operands that the backward program reads, `with_gradient` those that it gives a gradient for;
    `differentiable` has a bool for each result of the function.
    """

    def __init__(self) -> None:
        super().__init__(subgraphs.CUSTOM_FUNCTION)  # type: ignore[no-untyped-call]

    def __call__(
        self,
        forward: Callable[..., Sequence[Any]],
        backward: Callable[..., Sequence[Any]],
        operands: Sequence[torch.Tensor],
        kept: Sequence[int],
        with_gradient: Sequence[int],
        differentiable: Sequence[bool],
    ) -> tuple[Any, ...]:
        """With the backward pass that it has, so that a captured program can be compared with its module."""
        bodies = _Bodies(forward, backward, kept, with_gradient, differentiable)
        return tuple(_OfBodies.apply(bodies, *operands))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Bodies:
    forward: Callable[..., Sequence[Any]]
    backward: Callable[..., Sequence[Any]]
    kept: Sequence[int]
    with_gradient: Sequence[int]
    differentiable: Sequence[bool]


class _OfBodies(torch.autograd.Function):
    """Both bodies say in which element types they compute, whatever autocast is on around them."""

    @staticmethod
    def forward(ctx: Any, bodies: _Bodies, *operands: Any) -> tuple[Any, ...]:
        with torch._C._DisableAutocast():
            returned = tuple(bodies.forward(*operands))
        num_results = len(bodies.differentiable)
        ctx.bodies, ctx.num_operands = bodies, len(operands)
        ctx.for_backward = (*(operands[position] for position in bodies.kept), *returned[num_results:])
        results = returned[:num_results]
        marked = (one for one, has_gradient in zip(results, bodies.differentiable, strict=True) if not has_gradient)
        ctx.mark_non_differentiable(*marked)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        with torch._C._DisableAutocast():
            given = ctx.bodies.backward(*ctx.for_backward, *gradients)
        of_operands = dict(zip(ctx.bodies.with_gradient, given, strict=True))
        return None, *(of_operands.get(position) for position in range(ctx.num_operands))


CUSTOM_FUNCTION = _CustomFunction()


class CustomFunctions:
    """Those that a module calls while it is captured; `inlined` are the names of those whose backward is lost."""

    def __init__(self, what: str, *, is_trained: bool) -> None:
        self.inlined: dict[str, None] = {}
        self._what = what
        self._is_trained = is_trained
        self._library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
        self._calls: dict[Any, _Call] = {}

    def apply(self, function: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = f"{function.__module__}.{function.__qualname__}"
        if not self._is_trained:
            self.inlined[name] = None
        needs_gradient = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
        if not (self._is_trained and needs_gradient and torch.is_grad_enabled()):
            return super(_SingleLevelFunction, function).apply(*args, **kwargs)  # type: ignore[misc]
        call = _Call(function, args, kwargs, f"{self._what}: calls {name}, a custom torch.autograd.Function")
        stand_in = self._stand_in(call)
        self._calls[stand_in] = call
        return call.in_their_places(stand_in(call.operands))

    def put_in(self, program: ExportedProgram) -> None:
        """The two programs of each call in the place of the operator that stands for it."""
        for part in list(program.graph_module.modules()):
            if isinstance(part, fx.GraphModule):
                for node in list(part.graph.nodes):
                    if node.target in self._calls:
                        self._calls[node.target].put_in(part, node)

    def close(self) -> None:
        self._library._destroy()  # type: ignore[no-untyped-call]

    def _stand_in(self, call: _Call) -> Any:
        name = f"call_{next(_numbers)}"
        self._library.define(f"{name}(Tensor[] operands) -> Tensor[]")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda _: call.new_results(), lib=self._library)
        # So that the results require a gradient, as the function's do; it is never called.
        torch.library.register_autograd(f"{_NAMESPACE}::{name}", lambda *_: None, lib=self._library)
        return getattr(getattr(torch.ops, _NAMESPACE), name).default


@contextlib.contextmanager
def custom_functions(what: str, *, is_trained: bool) -> Iterator[CustomFunctions]:
    """Meanwhile this thread's calls of custom functions are captured, both passes where a part of the module trains."""
    calls, exporting = CustomFunctions(what, is_trained=is_trained), threading.get_ident()

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:
            return _checkpointed(*args)
        is_torchs = cls.__module__.startswith("torch.") and cls.__name__ != _OF_STRICT_CAPTURE
        if is_torchs or threading.get_ident() != exporting:
            return super(_SingleLevelFunction, cls).apply(*args, **kwargs)  # type: ignore[misc]
        return calls.apply(cls, args, kwargs)

    # Below Function.apply, which a module may have taken hold of before: `double = Doubling.apply`.
    below: Any = _SingleLevelFunction
    below.apply = classmethod(apply)
    try:
        yield calls
    finally:
        del below.apply
        calls.close()


class _Context:
    """What stands for `ctx`: it takes whatever the forward leaves for the backward."""

    def __init__(self, needs_input_grad: tuple[bool, ...], where: str) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self._where = where

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        return self.saved_tensors

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """For forward-mode gradients, which nothing asks for."""

    def mark_non_differentiable(self, *results: Any) -> None:
        self.non_differentiable = results

    def set_materialize_grads(self, value: bool) -> None:
        """The backward gets a tensor of zeros in any case, of which a missing one means the same."""

    def mark_dirty(self, *_: Any) -> None:
        raise UnsupportedModule(f"{self._where}, which writes its input in place; have it return a new tensor")


def _checkpointed(function: Callable[..., Any], _: bool, *args: Any) -> Any:
    """What torch.utils.checkpoint computes with use_reentrant=True: as ever, but for that there is no gradient where no
    argument has one. Plans say themselves what is computed again."""
    if any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
        return function(*args)
    with torch.no_grad():
        return function(*args)


class _Call:
    """One call, of which both passes are written down at once, while autocast is as the forward has it."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> None:
        self.operands = [one for one in args if isinstance(one, torch.Tensor)]
        self._function = function
        self._args = args
        self._where = where
        if kwargs:
            raise UnsupportedModule(f"{where}, with keyword arguments; give them by position")
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                self._returned, self._differentiable, self._parts = self._trace()
        except UnsupportedModule:
            raise
        except Exception as error:
            raise UnsupportedModule(
                f"{where}, and what its passes do cannot be written down as a program "
                f"({str(error).strip().partition(chr(10))[0][:300]}); write it with torch's own operators, or call "
                "eval() on the module to export what it computes"
            ) from error
        self._parts.check(where)

    def new_results(self) -> list[torch.Tensor]:
        """Tensors like its results, without numbers and of storage of their own."""
        return [one.new_empty_strided(one.size(), one.stride()) for one in _tensors(self._returned)]

    def in_their_places(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the function returns, with these in the places of its tensors."""
        given = iter(tensors)
        if not isinstance(self._returned, tuple):
            return next(given)
        return tuple(next(given) if isinstance(one, torch.Tensor) else one for one in self._returned)

    def put_in(self, part: fx.GraphModule, node: fx.Node) -> None:
        with part.graph.inserting_before(node):
            bodies = []
            for name, body in (("forward", self._parts.forward), ("backward", self._parts.backward)):
                target = f"{name}_of_{node.name}"
                setattr(part, target, body)
                bodies.append(part.graph.get_attr(target))
            operands: Any = node.args[0]
            parts = self._parts
            arguments: Any = (*bodies, tuple(operands), parts.kept, parts.with_gradient, self._differentiable)
            call = part.graph.call_function(CUSTOM_FUNCTION, arguments)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        part.graph.erase_node(node)

    def _trace(self) -> tuple[Any, tuple[bool, ...], _Parts]:
        of_forward: set[str] = set()

        def both(operands: list[torch.Tensor], gradients: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
            context, returned = self._run_forward(operands)
            mode = get_proxy_mode()
            assert mode is not None
            of_forward.update(node.name for node in mode.tracer.graph.nodes)
            return _tensors(returned), self._run_backward(context, returned, gradients)

        mode = detect_fake_mode(self.operands)
        assert mode is not None
        with torch.no_grad(), mode:
            context, returned = self._run_forward(self.operands)
            marked = {id(one) for one in context.non_differentiable}
            results = _tensors(returned)
            differentiable = tuple(has_fractions(one) and id(one) not in marked for one in results)
            joint = make_fx(both)(self.operands, [torch.empty_like(one) for one in results])
        return returned, differentiable, _Parts(joint, len(self.operands), len(results), of_forward)

    def _run_forward(self, operands: Sequence[torch.Tensor]) -> tuple[_Context, Any]:
        given = iter(operands)
        args = tuple(next(given) if isinstance(one, torch.Tensor) else one for one in self._args)
        context = _Context(tuple(isinstance(one, torch.Tensor) and has_fractions(one) for one in args), self._where)
        if self._function.setup_context is _SingleLevelFunction.setup_context:
            return context, self._function.forward(context, *args)
        returned = self._function.forward(*args)
        self._function.setup_context(context, args, returned)
        return context, returned

    def _run_backward(self, context: _Context, returned: Any, gradients: Sequence[torch.Tensor]) -> list[Any]:
        """A gradient, or None, for each operand. Autocast is off, as it is where autograd runs it."""
        given = iter(gradients)
        places = returned if isinstance(returned, tuple) else (returned,)
        by_place = [next(given) if isinstance(one, torch.Tensor) else None for one in places]
        own_vjp = self._function.vjp is not Function.vjp
        with torch._C._DisableAutocast():
            back = (self._function.vjp if own_vjp else self._function.backward)(context, *by_place)
        back = back if isinstance(back, tuple) else (back,)
        by_argument = itertools.zip_longest(self._args, back[: len(self._args)])
        return [one for arg, one in by_argument if isinstance(arg, torch.Tensor)]


class _Parts:
    """A program of both passes, parted where the backward begins."""

    def __init__(self, joint: fx.GraphModule, num_operands: int, num_results: int, of_forward: set[str]) -> None:
        self._joint = joint
        nodes = [node for node in joint.graph.nodes if node.op != "output"]
        placeholders = [node for node in nodes if node.op == "placeholder"]
        operands, gradients = placeholders[:num_operands], placeholders[num_operands:]
        calls = [node for node in nodes if node.op != "placeholder"]
        before = [node for node in calls if node.name in of_forward]
        after = [node for node in calls if node.name not in of_forward]
        returned = next(node for node in joint.graph.nodes if node.op == "output").args[0]
        results, of_operands = returned[:num_results], returned[num_results:]
        read = {source for node in after for source in node.all_input_nodes}
        read.update(one for one in of_operands if isinstance(one, fx.Node))
        saved = [node for node in before if node in read]
        self.kept = tuple(position for position, node in enumerate(operands) if node in read)
        self.with_gradient = tuple(position for position, one in enumerate(of_operands) if one is not None)
        self.forward = self._program(operands, before, [*results, *saved])
        inputs = [*(operands[position] for position in self.kept), *saved, *gradients]
        self.backward = self._program(inputs, after, [of_operands[position] for position in self.with_gradient])

    def check(self, where: str) -> None:
        """Raises UnsupportedModule for what a program beside the graph cannot do."""
        for body in (self.forward, self.backward):
            roots = StorageRoots()
            for node in body.graph.nodes:
                roots.add(node)
                if any(root.op == "placeholder" for root in roots.written_by(node)):
                    raise UnsupportedModule(f"{where}, which writes what it is given in place; have it write a copy")
                if node.op == "get_attr" and isinstance(getattr(body, str(node.target)), FakeTensor):
                    raise UnsupportedModule(
                        f"{where}, which reads a tensor other than its arguments, such as a parameter; pass it"
                    )
        if any(draws_random(node) for node in self.backward.graph.nodes):
            raise UnsupportedModule(f"{where}, whose backward draws random numbers; have its forward draw them")

    def _program(self, inputs: Sequence[fx.Node], calls: Sequence[fx.Node], outputs: Sequence[Any]) -> fx.GraphModule:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in calls:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(pytree.tree_map_only(fx.Node, copies.__getitem__, list(outputs))))
        return fx.GraphModule(self._joint, graph)


def _tensors(returned: Any) -> list[torch.Tensor]:
    places = returned if isinstance(returned, tuple) else (returned,)
    return [one for one in places if isinstance(one, torch.Tensor)]
