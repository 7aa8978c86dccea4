"""What each call of an fx graph does besides returning: what it writes in place, shares, draws or sets.

`certain` parts what is known (a schema, a flag, a name that ends in "_") from what merely may be: a dropout that does
not draw now but would in training, a foreign function that may return its argument. An order of partitions must keep
the first and keeps the second where it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import fx, nn

from planner.fx_compat.splitting.operators import Signature, only_views, signature_of
from planner.fx_compat.splitting.regions import AUTOCAST_NODES

_MODE_SETTERS = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.set_grad_enabled,
        torch.autograd.grad_mode._enter_inference_mode,
        torch.autograd.grad_mode._exit_inference_mode,
    }
)

_RANDOM_STATE = frozenset({torch.manual_seed, torch.seed, torch.set_rng_state, torch.get_rng_state})

_DROPOUT_MODULES = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)

# Leaf modules whose result may be, or be a view of, what they are given.
_VIEWING_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.modules.dropout._DropoutNd)


class Ambient(Enum):
    """What every call can see although no argument says so."""

    RANDOM = "the random generator"
    MODE = "the grad or inference mode"
    CONSOLE = "what is printed"


Resource = fx.Node | torch.Tensor | Ambient


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    resource: Resource
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """The call's result may share storage with `source`."""

    source: fx.Node
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Of one call. `reads`: modules whose states it reads, besides its arguments. `only_views`: it reads no argument's
    contents.
    """

    writes: tuple[Write, ...] = ()
    aliases: tuple[Alias, ...] = ()
    reads: tuple[nn.Module, ...] = ()
    only_views: bool = False


def effects_of_function(node: fx.Node) -> Effects:
    """Of a call_function or call_method that calls no graph."""
    if node.target in AUTOCAST_NODES:
        return Effects()
    if node.target in _MODE_SETTERS:
        return Effects(writes=(Write(resource=Ambient.MODE),))
    if node.target in _RANDOM_STATE:
        return Effects(writes=(Write(resource=Ambient.RANDOM),))
    if node.target is print:
        return Effects(writes=(Write(resource=Ambient.CONSOLE, certain=False),))
    signature = signature_of(node)
    if signature.is_plain and "out" not in node.kwargs:
        return Effects(only_views=only_views(node))
    written = {*signature.nodes(node, signature.written), *_written_by_flag(node, signature)}
    aliased = {*signature.nodes(node, signature.aliased), *written}
    unsure = () if signature.known else tuple(item for item in node.all_input_nodes if item not in aliased)
    return Effects(
        writes=(
            *(Write(resource=item) for item in node.all_input_nodes if item in written),
            *((Write(resource=Ambient.RANDOM),) if signature.draws and _draws_now(node, signature) else ()),
        ),
        aliases=(
            *(Alias(source=item) for item in node.all_input_nodes if item in aliased),
            *(Alias(source=item, certain=False) for item in unsure),
        ),
        only_views=only_views(node),
    )


def _written_by_flag(node: fx.Node, signature: Signature) -> tuple[fx.Node, ...]:
    """What no schema declares: `inplace=True`, `out=`, and the running statistics of a norm in training."""
    written = list(signature.nodes(node, frozenset({"out"}))) if "out" in node.kwargs else []
    if signature.argument(node, "inplace") is True:
        written += node.all_input_nodes[:1]
    if "running_mean" in signature.parameters and _flag(node, signature, "training", "use_input_stats", "train"):
        written += signature.nodes(node, frozenset({"running_mean", "running_var"}))
    return tuple(written)


def _draws_now(node: fx.Node, signature: Signature) -> bool:
    """Whether the call's dropout probability and training flag, where it has them, let it draw."""
    trains = any(name in signature.parameters for name in ("training", "train"))
    names = ("p", "dropout_p", "dropout") if trains else ("dropout_p",)
    probabilities = [signature.argument(node, name) for name in names if name in signature.parameters]
    if any(isinstance(probability, int | float) and probability == 0 for probability in probabilities):
        return False
    return _flag(node, signature, "training", "train")


def _flag(node: fx.Node, signature: Signature, *names: str) -> bool:
    """True unless the first of these that the callable has is passed, or by default is, a constant that is false."""
    for name in names:
        if name in signature.parameters:
            return isinstance(flag := signature.argument(node, name), fx.Node) or bool(flag)
    return True


def effects_of_module(node: fx.Node, module: nn.Module) -> Effects:
    """Of a call_module whose module is no graph: read off the modules in it."""
    parts = tuple(module.modules())
    ours = all(type(part).__module__.startswith("torch.") for part in parts)
    inputs = node.all_input_nodes
    in_place = getattr(module, "inplace", False) is True
    may_return_given = isinstance(module, _VIEWING_MODULES) or len(parts) > 1 or not ours
    writes = [Write(resource=item) for item in inputs[:1] if in_place]
    if not in_place and any(getattr(part, "inplace", False) is True for part in parts):
        writes += [Write(resource=item, certain=False) for item in inputs]
    certain = in_place or isinstance(module, _VIEWING_MODULES)
    return Effects(
        writes=(*writes, *_drawn(parts), *_written_buffers(parts)),
        aliases=tuple(Alias(source=item, certain=certain) for item in inputs if in_place or may_return_given),
        reads=(module,),
        only_views=isinstance(module, nn.Identity),
    )


def _drawn(parts: tuple[nn.Module, ...]) -> Iterator[Write]:
    """One write of the generator, certain if some part would draw in the mode it is in."""
    drawing = [part for part in parts if _can_draw(part)]
    if drawing:
        yield Write(resource=Ambient.RANDOM, certain=any(part.training for part in drawing))


def _can_draw(part: nn.Module) -> bool:
    if isinstance(part, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return True
    probability = getattr(part, "p", None) if isinstance(part, nn.modules.dropout._DropoutNd) else None
    if probability is None and isinstance(part, _DROPOUT_MODULES):
        probability = getattr(part, "dropout", 0.0)
    return bool(probability)


def _written_buffers(parts: tuple[nn.Module, ...]) -> Iterator[Write]:
    """Running statistics; and, as nobody can know, the buffers of modules that are not torch's."""
    for part in parts:
        ours = type(part).__module__.startswith("torch.")
        tracks = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
        if tracks or not ours:
            for buffer in part.buffers(recurse=False):
                yield Write(resource=buffer, certain=tracks and part.training)
