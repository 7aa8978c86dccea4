"""A stage's program as torch.compile can take it."""

from __future__ import annotations

import torch
from torch import fx

from stage_daemon.loader.contexts import enter
from stage_daemon.loader.higher_order import run_custom_function
from stage_daemon.randomness import start_node


def compilable_program(program: fx.GraphModule) -> fx.GraphModule:
    """A copy that reads the same states; they have to be in their places already.

    What switches modes, seeds generators or has a backward of its own is called between compiled parts: torch.compile
    cannot see what it does.
    """
    copied = fx.Graph()
    copied.output(copied.graph_copy(program.graph, {}))
    for node in copied.nodes:
        if node.target in (enter, start_node, run_custom_function):
            node.target = torch.compiler.disable(node.target)  # type: ignore[no-untyped-call]
    return fx.GraphModule(program, copied, "CompilableProgram")
