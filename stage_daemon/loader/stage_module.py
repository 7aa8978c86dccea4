"""A rebuilt stage as a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from stage_daemon.loader.accumulation import accumulating_program
from stage_daemon.loader.compilable import compilable_program
from stage_daemon.loader.contexts import leave_as_found
from stage_daemon.loader.direct_calls import direct_function
from stage_daemon.loader.evaluation import evaluation_program
from stage_daemon.loader.returned_states import returned_states


class StageModule(nn.Module):
    """Takes the flat non-constant inputs and gives a tuple of the non-constant outputs, in the graph's order.

    `state_names` maps each state's own name to the attribute of `program` that holds it: wire strings never become
    identifiers. Tied states are one tensor under several names. A run writes the states `written_names`, a step those
    that are parameters; an output that is one of either is a copy, which stays what it was.
    """

    def __init__(
        self,
        program: fx.GraphModule,
        state_names: Mapping[str, str],
        *,
        switches_context: bool,
        written_names: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.program = program
        self.state_names = dict(state_names)
        self._switches_context = switches_context
        self.written_names = written_names
        written = {state_names[name] for name in written_names}
        written |= {name for name in state_names.values() if isinstance(getattr(program, name), nn.Parameter)}
        self._copied = returned_states(program, written)
        self._compiled: Callable[..., tuple[Any, ...]] | None = None

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        return self._called(self._compiled or self._fetching, inputs)

    @cached_property
    def _fetching(self) -> Callable[..., tuple[Any, ...]]:
        """On the states that are there at each call."""
        return direct_function(self.program, binds_states=False)

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """What a call of this module does, without the calls in between, on the states that are there now: for who puts
        no others in their places."""
        if self._compiled is not None:
            return self.forward
        run = direct_function(self.program, binds_states=True)
        return (lambda *inputs: self._called(run, inputs)) if self._switches_context or self._copied else run

    def _called(self, run: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        with leave_as_found() if self._switches_context else nullcontext():
            outputs = run(*inputs)
        if not self._copied:
            return outputs
        return tuple(one.clone() if position in self._copied else one for position, one in enumerate(outputs))

    def states(self) -> dict[str, torch.Tensor]:
        """Every state under its own name."""
        return {name: getattr(self.program, attribute) for name, attribute in self.state_names.items()}

    def set_states(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Puts tensors in the places of the states of those names. A parameter stays one, trainable or not.

        The same tensor under two names becomes the same parameter.
        """
        parameters: dict[int, nn.Parameter] = {}
        for name, tensor in tensors.items():
            attribute = self.state_names[name]
            placeholder = getattr(self.program, attribute)
            if isinstance(placeholder, nn.Parameter):
                fresh = nn.Parameter(tensor, requires_grad=placeholder.requires_grad)
                setattr(self.program, attribute, parameters.setdefault(id(tensor), fresh))
            else:
                setattr(self.program, attribute, tensor)

    def share(self, name: str, parameter: nn.Parameter) -> None:
        """Makes a parameter of another module, that is tied to this one, this one too."""
        setattr(self.program, self.state_names[name], parameter)

    def written_states(self) -> dict[str, torch.Tensor]:
        """Copies of what the next run will write over; tied ones are one copy."""
        written = {name: tensor for name, tensor in self.states().items() if name in self.written_names}
        copies = {id(tensor): tensor.detach().clone() for tensor in written.values()}
        return {name: copies[id(tensor)] for name, tensor in written.items()}

    @contextmanager
    def standing_in(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Runs inside read and write these where the states of those names are; those stay as they are."""
        own = {name: getattr(self.program, self.state_names[name]) for name in tensors}
        try:
            for name, tensor in tensors.items():
                setattr(self.program, self.state_names[name], tensor)
            yield
        finally:
            for name, tensor in own.items():
                setattr(self.program, self.state_names[name], tensor)

    def evaluating(self) -> StageModule:
        """The same program on the same states, which it leaves as they are, without what is done in training only."""
        written = {self.state_names[name] for name in self.written_names}
        return self.with_program(evaluation_program(self.program, written))

    def accumulating(self) -> StageModule:
        """The same program on the same states, whose large linear layers add to their weights' gradients as they are
        computed, to the same bits. Its backward passes have to be whole: see `accumulation`."""
        program = accumulating_program(self.program)
        for attribute in self.state_names.values():
            # Those that no node reads are not taken over.
            setattr(program, attribute, getattr(self.program, attribute))
        return self.with_program(program)

    def compiled(self) -> StageModule:
        """The same program on the same states, compiled as it is run: for each kind of sizes that comes."""
        module = self.with_program(compilable_program(self.program))
        module._compiled = torch.compile(module.program.forward, dynamic=True)
        return module

    def with_program(self, program: fx.GraphModule) -> StageModule:
        """Another form of the same program, on the same states."""
        return StageModule(
            program, self.state_names, switches_context=self._switches_context, written_names=self.written_names
        )
