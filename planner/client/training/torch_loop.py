"""A deployment that trains in the place of a module and its optimizer: a loop written for torch runs as it is.

    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    for batch in loader:
        loss = model(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

`model(...)` runs both passes on the daemons, since a pipeline runs them in one another; `backward` says that the
gradients are wanted, and by what factor, and `step` has all stages apply them. Where a loop does something else than
that, this raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any, Self

import torch
from torch import nn

from planner.client.autocast import AutocastWarning
from planner.client.microbatches import carried
from planner.client.pytree import argument_names, flatten_inputs, unflatten_outputs
from planner.client.training.stand_in import StandIn
from planner.client.training.trainer import BatchResult, StepResult, Trainer
from planner.errors import Conflict, InvalidArgument
from planner.graph.ir import Dtype, Graph
from planner.graph.state_names import StateNames

# Factors of one step's batches are rounded in the losses' own precision.
_TOLERANCE = 1e-5
_NUM_ITEMS = "num_items_in_batch"
# What a group of a torch optimizer may have beside its rate.
_OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adafactor)
_OPTIONS = frozenset(name for one in _OPTIMIZERS for name in signature(one).parameters) - {"params", "lr"}
_RECOMPUTED = "What is computed again is said by the plan: Training(activations=...), --activations"
# What loops ask of a module that is done in another way here.
_ELSEWHERE = {
    "activation_checkpointing_enable": _RECOMPUTED,
    "gradient_checkpointing_enable": _RECOMPUTED,
    "generate": "Load its state_dict into the module, or generate over another deployment of it: docs/generation.md",
    "save_pretrained": "Load its state_dict into the module, and save that",
}
_CHECKPOINT = "checkpoint"


@dataclass(slots=True, eq=False)
class _Batch:
    """`factor`: what its gradients count, once its loss was gone back through."""

    factor: float | None = None
    is_forgotten: bool = False


class PipelinedModule(nn.Module):
    """Takes batches as the module does that was exported, and returns what it returned, the loss of the whole batch.

    In eval mode, or without gradients, it evaluates. Loops that look at parameters find one, `stand_in`, which never
    changes: its gradient has the norm of all gradients, and a loop that scales it, as clipping does, scales them.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer
        values = trainer.graph.values_by_id()
        dtypes = {values[state.value_id].dtype for state in trainer.graph.states if state.requires_grad}
        dtype = torch.float64 if Dtype.FLOAT64 in dtypes else torch.float32
        self.stand_in = StandIn.of(self._find_norm, self.zero_grad, dtype)
        self._batches: list[_Batch] = []
        # Whether they may be forgotten: no loss of theirs was gone back through when gradients were zeroed.
        self._is_zeroed = False
        # In torch the last step's gradients would still be there.
        self._has_stepped = False
        self._autocast = AutocastWarning("a pipelined module")
        # Whether a number of items is Hugging Face's Trainer's, and not an input of the graph.
        self._is_told_items = _NUM_ITEMS not in argument_names(trainer.graph)
        counted = trainer.counted
        # Of Hugging Face's Trainer: whether it says over how many targets all batches of a step are.
        self.accepts_loss_kwargs = (
            counted is not None
            and counted.ignored == -100
            and not counted.weights
            and counted.name in ("labels", "shift_labels")
        )
        # And whether the first target of each row is none, for the module shifts them.
        self.loss_type = "ForCausalLM" if counted is not None and counted.is_cut else None
        # Loops read from a class what its forward takes, and from its name what is to be made of that.
        self.__class__ = _class_of_inputs(type(self), trainer.graph)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # What runs here is messages: there is nothing to compile.
            return torch.compiler.disable(self._run)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        trainer = self.trainer
        count = kwargs.pop(_NUM_ITEMS, None) if self._is_told_items else None
        leaves = flatten_inputs(trainer.graph, args, kwargs)
        share = 1.0 if count is None else self._share(leaves, float(count))
        self._autocast.look(stacklevel=4)
        if not (self.training and torch.is_grad_enabled()):
            done = trainer.evaluate_batch(*args, **kwargs)
            return unflatten_outputs(trainer.graph, _joined(done, share, self.stand_in.device))
        self._check_trained(leaves)
        if self._is_zeroed:
            self._forget()
        done = trainer.accumulate(*args, share=share, **kwargs)
        outputs = self._to_go_back_through(_joined(done, share, self.stand_in.device), done.loss_position)
        return unflatten_outputs(trainer.graph, outputs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what was gone back through and not stepped. A loss that was not still may, until the next batch."""
        if any(batch.factor is not None for batch in self._batches):
            self._forget()
        self.stand_in.forget()
        self._is_zeroed, self._has_stepped = bool(self._batches), False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            remedy = _ELSEWHERE.get(name, "What a loop reads besides, such as a config, may be set on it")
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}: it has the forward pass and the weights of a module that runs"
                f" on the daemons. {remedy}",
                name=name,
                obj=self,
            ) from None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a pipelined module is not copied or pickled, for its weights are on the daemons: use state_dict"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        if fn(self.stand_in.data).dtype != self.stand_in.dtype:
            raise InvalidArgument(
                "the dtypes of a pipelined module are those that it was exported in: export it in others"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def end_step(self) -> float:
        """What the gradients of the batches since the last step are to be multiplied by. For PipelinedOptimizer."""
        num_backward = sum(batch.factor is not None for batch in self._batches)
        if num_backward != len(self._batches):
            raise Conflict(
                f"{len(self._batches)} batches ran forward since the last step and {num_backward} backward: the"
                " gradients of all would count; evaluate under no_grad, or call zero_grad before the step's first batch"
            )
        if self._has_stepped and self._batches:
            raise Conflict(
                "zero_grad was not called since the last step: its gradients would count in this one, and are gone"
            )
        factor = self._factor() * self.stand_in.factor()
        self._batches, self._is_zeroed, self._has_stepped = [], False, True
        self.stand_in.end_step()
        return factor

    def _share(self, leaves: Sequence[Any], count: float) -> float:
        """Of all targets that the step has."""
        if self.trainer.counted is None or self.trainer.counted.weights:
            raise InvalidArgument(
                f"{_NUM_ITEMS} is given, and what this loss is a mean over is not counted; leave it out"
            )
        return self.trainer.counted.count(leaves) / count if count else 0.0

    def _check_trained(self, leaves: Sequence[Any]) -> None:
        for leaf, (name, _) in zip(leaves, carried(self.trainer.graph.inputs), strict=True):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                raise InvalidArgument(
                    f"input {name!r} requires a gradient, and none comes back from the daemons: export what made it as"
                    " a part of the module, or detach it"
                )
        if self.stand_in.any():
            raise Conflict(
                "an optimizer of this process has stepped the pipelined module, which changes no stage: give the loop"
                " PipelinedOptimizer(model), as Trainer(..., optimizers=(PipelinedOptimizer(model), None)) does"
            )

    def _to_go_back_through(self, outputs: Sequence[Any], loss_position: int) -> list[Any]:
        """The outputs of a batch whose gradients have been added up, and which counts from now on."""
        batch = _Batch()
        self._batches.append(batch)
        floats = {index: one for index, one in enumerate(outputs) if isinstance(one, torch.Tensor) and _is_float(one)}
        passed = _Passed.apply(  # type: ignore[no-untyped-call]
            self.stand_in,
            lambda gradients: self._take_back(batch, loss_position, dict(zip(floats, gradients, strict=True))),
            *floats.values(),
        )
        known = dict(zip(floats, passed, strict=True))
        return [known.get(index, one) for index, one in enumerate(outputs)]

    def _take_back(self, batch: _Batch, loss_position: int, gradients: Mapping[int, torch.Tensor | None]) -> None:
        names = [name for name, _ in carried(self.trainer.graph.outputs)]
        for position, gradient in gradients.items():
            if gradient is not None and position != loss_position:
                raise InvalidArgument(
                    f"a loss is made of output {names[position]!r} outside of the module, whose gradient does not go"
                    f" back: add it to {names[loss_position]!r} within, and export that"
                )
        if batch.is_forgotten:
            raise Conflict(
                "the gradients of this loss are forgotten: zero_grad was called, and another batch ran since"
            )
        loss = gradients[loss_position]
        assert loss is not None
        batch.factor, self._is_zeroed = (batch.factor or 0.0) + float(loss), False
        self.stand_in.forget()

    def _factor(self) -> float:
        """Of all batches since the last step, whose gradients have been added up."""
        factors = [1.0 if batch.factor is None else batch.factor for batch in self._batches] or [1.0]
        for factor in factors:
            if abs(factor - factors[0]) > _TOLERANCE * abs(factors[0]):
                raise InvalidArgument(
                    f"the losses of a step's batches are scaled by {factors[0]:g} and by {factor:g}: their gradients"
                    " have been added up by then, so all need the same factor"
                )
        return factors[0]

    def _forget(self) -> None:
        for batch in self._batches:
            batch.is_forgotten = True
        self._batches, self._is_zeroed = [], False
        self.stand_in.forget()
        self.trainer.discard()

    def _find_norm(self) -> float | None:
        if not self._batches or any(batch.factor is None for batch in self._batches):
            return None
        return abs(self._factor()) * self.trainer.gradient_norm()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Read from the daemons, under the module's own names; tied ones each by itself, as files take them."""
        for name, tensor in self.trainer.state_dict().items():
            destination[prefix + name] = tensor

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Written to the daemons."""
        own = StateNames(self.trainer.graph)
        given = {name.removeprefix(prefix): one for name, one in state_dict.items() if name.startswith(prefix)}
        if strict:
            missing_keys += [prefix + name for name in own.saved if name not in given]
            unexpected_keys += [prefix + name for name in given if name not in own]
        try:
            self.trainer.load_state_dict({name: one for name, one in given.items() if name in own})
        except InvalidArgument as error:
            error_msgs.append(str(error))


class PipelinedOptimizer(torch.optim.Optimizer):
    """Its learning rate is what schedulers change; groups of the deployment's optimizer keep their ratio to it.

    `keep`: of the checkpoints that `state_dict` has the planner keep, how many stay, the latest; None: all.
    """

    def __init__(self, model: PipelinedModule, *, keep: int | None = None) -> None:
        if model.trainer.has_schedule:
            raise InvalidArgument(
                "the learning rate of a loop counts, and client.train was given a schedule: leave out one of both"
            )
        self._model = model
        self._keep = keep
        self.result: StepResult | None = None
        super().__init__([model.stand_in], {"lr": model.trainer.learning_rate})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise InvalidArgument(
                "the optimizer of a pipelined module is that of the daemons: parameters of this process need another"
            )
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies what ran since the last step, and what `closure` runs, whose result it returns. `result` has what
        Trainer.step returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        [group] = self.param_groups
        if options := sorted(_OPTIONS & group.keys()):
            raise InvalidArgument(
                f"a loop sets the learning rate of a pipelined optimizer, and no {', '.join(options)}: that is said"
                " once, in client.train(..., optimizer)"
            )
        factor = self._model.end_step()
        self.result = self._model.trainer.apply(learning_rate=group["lr"], gradient_factor=factor)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._model.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Names the checkpoint that it has the planner keep, of the weights and of what each stage's optimizer keeps;
        none before the first step."""
        trainer = self._model.trainer
        kept = trainer.save(keep=self._keep).result().id if trainer.num_steps else ""
        return {**super().state_dict(), _CHECKPOINT: kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from the checkpoint that it names, on whatever plan."""
        if _CHECKPOINT not in state_dict:
            raise InvalidArgument("these are the states of another optimizer: they name no checkpoint of a planner")
        trainer = self._model.trainer
        if state_dict[_CHECKPOINT]:
            trainer.load(state_dict[_CHECKPOINT])
        elif trainer.num_steps:
            raise Conflict(
                "these states are from before the first step, and no checkpoint was kept of that: train anew"
            )
        super().load_state_dict(dict(state_dict))


class _Passed(torch.autograd.Function):
    """Outputs whose passes have run: going back through them gives nothing but word that it was gone through."""

    @staticmethod
    def forward(
        ctx: Any,
        stand_in: torch.Tensor,
        take_back: Callable[[Sequence[torch.Tensor | None]], None],
        *outputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.take_back = take_back
        ctx.set_materialize_grads(False)
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        ctx.take_back(gradients)
        return None, None, *(None for _ in gradients)


def _joined(done: BatchResult, share: float, device: torch.device) -> list[Any]:
    """Leaves of the whole batch, on the device: the loss times its share, tensors one after another along their first
    dimension, those without one stacked where there are several microbatches."""
    leaves: list[Any] = []
    for position, parts in enumerate(zip(*done.outputs, strict=True)):
        if position == done.loss_position:
            leaves.append(torch.tensor(done.loss * share, dtype=parts[0].dtype))
        elif len(parts) == 1 or not isinstance(parts[0], torch.Tensor):
            # A number; None, where it was not chosen.
            leaves.append(parts[0])
        else:
            leaves.append(torch.cat(parts) if parts[0].dim() else torch.stack(parts))
    return [one.to(device) if isinstance(one, torch.Tensor) else one for one in leaves]


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _class_of_inputs(base: type[Any], graph: Graph) -> type[Any]:
    """A class of its own for a graph, which has its name and whose forward names its inputs."""

    def forward(self: PipelinedModule, *args: Any, **kwargs: Any) -> Any:
        return base.forward(self, *args, **kwargs)

    own = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *argument_names(graph))]
    forward.__signature__ = Signature(own)  # type: ignore[attr-defined]
    return type(f"{base.__name__}[{graph.name}]", (base,), {"forward": forward, "__module__": base.__module__})
