"""torch's structures of nested containers as trees of ours."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any

from torch.utils import _pytree
from torch.utils._pytree import TreeSpec

from planner.client.pytree import remember_container
from planner.errors import UnsupportedModule
from planner.graph.ir import PyTree, TreeDict, TreeLeaf, TreeList, TreeObject, TreeTuple


def tree_of(spec: TreeSpec) -> PyTree:
    """Raises UnsupportedModule for a dict whose keys are not strings."""
    if spec.is_leaf():
        return TreeLeaf()
    items = tuple(tree_of(child) for child in spec.children())
    if spec.type is list:
        return TreeList(items)
    if spec.type is tuple:
        return TreeTuple(items)
    if spec.type is dict:
        return TreeDict(_string_keys(spec.context, "dict"), items)
    type_name = _type_name(spec.type, spec.context)
    keys = _object_keys(spec, type_name)
    definition = _pytree.SUPPORTED_NODES[spec.type]
    remember_container(type_name, keys, lambda values: definition.unflatten_fn(values, spec.context))
    return TreeObject(type_name, keys, items)


def leaf_names(tree: PyTree, prefix: str = "") -> tuple[str, ...]:
    """A name for each leaf, of the keys on the way to it: "logits", "past.0.1"; "output" for a lone leaf."""
    if isinstance(tree, TreeLeaf):
        return (prefix or "output",)
    items = getattr(tree, "items", ())
    keys = getattr(tree, "keys", None) or [str(index) for index in range(len(items))]
    names: list[str] = []
    for key, item in zip(keys, items, strict=True):
        names.extend(leaf_names(item, f"{prefix}.{key}" if prefix else key))
    return tuple(names)


def _type_name(kind: type, context: Any) -> str:
    registered = _pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    name = getattr(registered, "serialized_type_name", None)
    # torch gives every type that was registered without a name this one, those of torch.return_types too.
    if isinstance(name, str) and name != _pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        named = context if isinstance(context, type) else kind
        return name if named is kind else f"{named.__module__}.{named.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _object_keys(spec: TreeSpec, type_name: str) -> tuple[str, ...]:
    context = spec.context
    if isinstance(context, type) and hasattr(context, "_fields"):
        return tuple(context._fields)
    if spec.type is defaultdict:
        return _string_keys(context[1], type_name)
    if spec.type is OrderedDict:
        return _string_keys(context, type_name)
    if spec.type is not deque and isinstance(context, list | tuple):
        keys = context[0] if context and isinstance(context[0], list | tuple) else context
        if len(keys) == spec.num_children and all(isinstance(key, str) for key in keys):
            return tuple(keys)
    return tuple(str(index) for index in range(spec.num_children))


def _string_keys(keys: Any, type_name: str) -> tuple[str, ...]:
    other = next((key for key in keys if not isinstance(key, str)), None)
    if other is not None:
        raise UnsupportedModule(f"a {type_name} has the key {other!r}; only string keys can be carried, use strings")
    return tuple(keys)
