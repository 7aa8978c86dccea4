"""Names of attributes: looked up in the module that is split, and made for the modules it is split into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from planner.fx_compat.splitting.errors import TargetNotFound


def attribute_at(module: nn.Module, qualified_name: str) -> Any:
    attribute: Any = module
    for atom in qualified_name.split("."):
        if not hasattr(attribute, atom):
            raise TargetNotFound(
                f"Node target {qualified_name} not found! {type(attribute).__name__} has no attribute {atom!r}",
                target=qualified_name,
            )
        attribute = getattr(attribute, atom)
    return attribute


def flat_names(qualified_names: Iterable[str], taken: Iterable[str] = ()) -> Mapping[str, str]:
    """A name without dots for each: "a.b" becomes "a_b". Where two become one, the later is numbered.

    Names in `taken` are not given out.
    """
    names = dict.fromkeys(qualified_names)
    natural = {name.replace(".", "_") for name in names}
    flat_of: dict[str, str] = {}
    used = set(taken)
    for name in names:
        flat = name.replace(".", "_")
        flat_of[name] = _numbered(flat, used | natural) if flat in used else flat
        used.add(flat_of[name])
    return flat_of


def _numbered(name: str, used: set[str]) -> str:
    number = 1
    while f"{name}_{number}" in used:
        number += 1
    return f"{name}_{number}"
