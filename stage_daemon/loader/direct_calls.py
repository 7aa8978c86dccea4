"""A program as a function that calls its operators directly, and finds its states where they are.

What torch.fx generates looks each operator up by four names, goes through the call of an `OpOverload` and fetches each
state by `nn.Module.__getattr__`: of small operators, a third of the time that they take.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

_PROGRAM = "program"
_LITERALS = (int, bool, type(None))


def direct_function(program: fx.GraphModule, *, binds_states: bool) -> Callable[..., tuple[Any, ...]]:
    """Gives what `program.forward` does. Where it `binds_states`, those are the ones that are there now; else they are
    fetched at each call, for who puts others in their places."""
    return _Source(program, binds_states).function()


class _Source:
    def __init__(self, program: fx.GraphModule, binds_states: bool) -> None:
        self._program = program
        self._binds_states = binds_states
        # What the source refers to by name, besides its own variables.
        self._names: dict[str, Any] = {_PROGRAM: program}
        self._name_of: dict[int, str] = {}

    def function(self) -> Callable[..., tuple[Any, ...]]:
        nodes = list(self._program.graph.nodes)
        inputs = [node.name for node in nodes if node.op == "placeholder"]
        dropped = _dropped_after(nodes)
        lines = [f"def run({', '.join(inputs)}):"]
        for node in nodes:
            if (line := self._line(node)) is not None:
                lines.append(f"    {line}")
            if names := [one.name for one in dropped.get(node, ()) if not self._is_bound(one)]:
                lines.append(f"    {' = '.join(names)} = None")
        exec(compile("\n".join(lines), "<stage>", "exec"), self._names)  # noqa: S102  its own names, and references
        function: Callable[..., tuple[Any, ...]] = self._names["run"]
        return function

    def _is_bound(self, node: fx.Node) -> bool:
        return self._binds_states and node.op == "get_attr"

    def _line(self, node: fx.Node) -> str | None:
        if node.op == "get_attr":
            assert isinstance(node.target, str)
            if self._binds_states:
                self._names[node.name] = getattr(self._program, node.target)
                return None
            return f"{node.name} = {_PROGRAM}.{node.target}"
        if node.op == "output":
            return f"return {self._shown(node.args[0])}"
        if node.op == "placeholder":
            return None
        if node.op == "call_method":
            whole, *rest = node.args
            return f"{node.name} = {self._shown(whole)}.{node.target}({self._listed(rest, node.kwargs)})"
        if node.target is operator.getitem:
            whole, index = node.args
            return f"{node.name} = {self._shown(whole)}[{self._shown(index)}]"
        return f"{node.name} = {self._named(_callee(node.target))}({self._listed(node.args, node.kwargs)})"

    def _listed(self, arguments: Iterable[Any], keywords: dict[str, Any]) -> str:
        return ", ".join(
            [*map(self._shown, arguments), *(f"{name}={self._shown(one)}" for name, one in keywords.items())]
        )

    def _shown(self, argument: Any) -> str:
        """An argument as source. What stands for no node is referred to, so nothing of the wire becomes source."""
        if isinstance(argument, fx.Node):
            return argument.name
        if type(argument) in _LITERALS:
            return repr(argument)
        if isinstance(argument, tuple) and not hasattr(argument, "_fields"):
            return f"({''.join(f'{self._shown(one)}, ' for one in argument)})"
        if isinstance(argument, list):
            return f"[{', '.join(map(self._shown, argument))}]"
        if isinstance(argument, slice):
            return f"{self._named(slice)}({self._listed((argument.start, argument.stop, argument.step), {})})"
        assert not _has_nodes(argument), f"{type(argument).__name__} of nodes"
        return self._named(argument)

    def _named(self, value: Any) -> str:
        """Of an object that the source refers to, and that is kept for it."""
        name = self._name_of.get(id(value))
        if name is None:
            name = self._name_of[id(value)] = f"_{len(self._names)}"
            self._names[name] = value
        return name


def _callee(target: Any) -> Any:
    """What the call of an operator would call."""
    return target._op if type(target) is torch._ops.OpOverload else target


def _dropped_after(nodes: Iterable[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Nodes by the one after which nobody reads them: their memory can go."""
    last: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        last[node] = node
        for read in node.all_input_nodes:
            last[read] = node
    dropped: dict[fx.Node, list[fx.Node]] = {}
    for read, node in last.items():
        if node.op != "output":
            dropped.setdefault(node, []).append(read)
    return dropped


def _has_nodes(argument: Any) -> bool:
    nodes: list[fx.Node] = []
    fx.map_arg(argument, nodes.append)
    return bool(nodes)
