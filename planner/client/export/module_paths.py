"""Which submodule a captured call stood in."""

from __future__ import annotations

import re

from torch import fx

# torch.export marks the second and later calls of one module.
_REPEATED_CALL = re.compile(r"@\d+$")
# What it writes for calls that stand in no module, such as reading an input's sizes.
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"


def module_path(node: fx.Node) -> str:
    """ "encoder.block.11"; "" for the root."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    key, (path, _) = list(stack.items())[-1]
    if key == _NO_MODULE:
        return ""
    return ".".join(_REPEATED_CALL.sub("", part) for part in str(path).split("."))
