"""Which operators of torch.library the daemon's operator lets graphs use, and the modules that register them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*::[A-Za-z_]\w*)(?:\.(?P<overload>[A-Za-z_]\w*))?")
# These namespaces are torch's own, whose operators the wire contract lists.
_OF_TORCH = frozenset({"aten", "prim", "prims"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOperator:
    """`name` as in "mylib::gelu"; `module` is imported where stages run, and registers it."""

    module: str
    name: str
    overload: str = "default"


def parse_custom_operators(text: str) -> tuple[CustomOperator, ...]:
    """ "mylib.ops=mylib::gelu,mylib::norm.out_of_place other=other::sort", by module. Raises ValueError."""
    operators: list[CustomOperator] = []
    for part in text.split():
        module, _, names = part.partition("=")
        for name in names.split(","):
            match = _NAME.fullmatch(name)
            if not _MODULE.fullmatch(module) or match is None or match["name"].split("::")[0] in _OF_TORCH:
                raise ValueError(
                    f"{part!r} names no operators of a module; write MODULE=NAMESPACE::NAME[.OVERLOAD],..."
                )
            overload = match["overload"] or "default"
            operators.append(CustomOperator(module=module, name=match["name"], overload=overload))
    return tuple(operators)
