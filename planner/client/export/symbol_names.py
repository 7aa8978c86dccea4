"""Names that the caller gave to dynamic dimensions, by torch's symbol."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import nn
from torch.utils._pytree import tree_leaves


def symbol_names(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any, fakes: Sequence[Any]
) -> dict[sympy.Symbol, str]:
    """`fakes` holds what stands in the program for each leaf of (args, kwargs), in order."""
    if not dynamic_shapes:
        return {}
    leaf_of = {id(leaf): fake for leaf, fake in zip(tree_leaves((args, dict(kwargs))), fakes, strict=False)}
    names: dict[sympy.Symbol, str] = {}
    for tensor, dimension, name in _named_dimensions(_by_parameter(module, args, kwargs), dynamic_shapes):
        size = leaf_of[id(tensor)].shape[dimension]
        if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
            names.setdefault(size.node.expr, name)
    return names


def _by_parameter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by parameter of forward, as dynamic_shapes speaks of them; those of **kwargs by their own names."""
    signature = inspect.signature(module.forward)
    bound = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(parameter.name, {})
    return bound


def _named_dimensions(tree: Any, spec: Any) -> Iterator[tuple[torch.Tensor, int, str]]:
    """(tensor, dimension, name) for every dimension that the spec names."""
    if spec is None:
        return
    if isinstance(tree, torch.Tensor):
        dimensions = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for dimension, dynamic in dimensions:
            name = dynamic if isinstance(dynamic, str) else getattr(dynamic, "__name__", None)
            if isinstance(name, str):
                yield tree, dimension, name
        return
    pairs: Any = ()
    if isinstance(spec, Mapping) and isinstance(tree, Mapping):
        pairs = ((tree[key], spec[key]) for key in spec if key in tree)
    elif isinstance(spec, list | tuple):
        items = tree.values() if isinstance(tree, Mapping) else tree
        pairs = zip(items, spec, strict=False)
    for item, item_spec in pairs:
        yield from _named_dimensions(item, item_spec)
