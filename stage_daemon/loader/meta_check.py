"""Tries a rebuilt stage out without data: every value must have the dtype and dims that the graph declares.

Runs on fake tensors of the stage's own device, at the graph's symbol hints: no memory is taken, nothing is computed.
A call whose sizes depend on data is taken to be as declared where the hints of those sizes do not fit together; so is
one that reads a float which another stage makes of sizes, since a graph does not say what that is.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import DaemonError, InvalidGraph, ShapeMismatch
from stage_daemon.loader.bounds import shown
from stage_daemon.loader.contexts import leave_as_found
from stage_daemon.loader.declared import Declared, declared_tensor, symbol_hints
from stage_daemon.loader.expressions import evaluate, symbols_in
from stage_daemon.loader.higher_order import run_cond, run_custom_function
from stage_daemon.loader.rebuild import LABEL, VALUE_ID
from stage_daemon.loader.stage_module import StageModule

_SCALARS: Mapping[int, Any] = {
    pb.VALUE_KIND_SYM_INT: 1,
    pb.VALUE_KIND_SYM_FLOAT: 1.0,
    pb.VALUE_KIND_SYM_BOOL: True,
}


def check_shapes(module: StageModule, graph: pb.Graph, device: torch.device) -> None:
    """Raises ShapeMismatch, naming the value, or InvalidGraph, naming the node that torch refuses."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), leave_as_found():
        _Trial(module.program, graph, device, "", {}).run_all()


class _Trial(fx.Interpreter):
    """Interprets one program node by node, comparing as it goes."""

    def __init__(
        self,
        program: fx.GraphModule,
        graph: pb.Graph,
        device: torch.device,
        where: str,
        outer_hints: Mapping[int, int],
        outer_unbacked: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(program)
        self._program = program
        self.extra_traceback = False
        self._where = where
        self._device = device
        self._hints = dict(outer_hints) | symbol_hints(where, graph)
        self._unbacked = outer_unbacked | {symbol.id for symbol in graph.symbols if symbol.unbacked}
        self._values = {value.id: value for value in graph.values}
        self._subgraphs = graph.subgraphs
        self._unknown_floats = {node for node in program.graph.find_nodes(op="placeholder") if self._is_float(node)}

    def run_all(self) -> tuple[Any, ...]:
        placeholders = self._program.graph.find_nodes(op="placeholder")
        outputs: tuple[Any, ...] = self.run(*[self._example(node.meta[VALUE_ID]) for node in placeholders])
        return outputs

    def run_node(self, n: fx.Node) -> Any:
        value_id = n.meta.get(VALUE_ID)
        if n.op == "get_attr":
            return super().run_node(n) if value_id is None else self._example(value_id)
        try:
            result = super().run_node(n)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._stand_in(n)
        except DaemonError:
            raise
        except Exception as error:
            if self._depends_on_data(n):
                return self._stand_in(n)
            reason = f"{type(error).__name__}: {str(error)[:500]}"
            raise InvalidGraph(f"{n.meta.get(LABEL, n.name)}: torch refuses the call ({reason})") from error
        if self._is_float(n) and self._reads_unknown_float(n):
            self._unknown_floats.add(n)
        if value_id is not None and n.op == "call_function":
            try:
                self._compare(value_id, result)
            except ShapeMismatch:
                if self._depends_on_data(n):
                    return self._example(value_id)
                raise
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is run_cond:
            return self._run_both_branches(*args)
        if target is run_custom_function:
            return self._run_both_passes(*args)
        if inspect.unwrap(target) is torch.ops.aten._grouped_mm.default and args[0].dtype is not torch.bfloat16:
            return _grouped_product(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def _run_both_branches(
        self, condition: Any, if_true: StageModule, if_false: StageModule, operands: Sequence[Any]
    ) -> Any:
        self._run_body(if_true, operands)
        return self._run_body(if_false, operands)

    def _run_both_passes(
        self,
        forward: StageModule,
        backward: StageModule,
        operands: Sequence[Any],
        kept: Sequence[int],
        with_gradient: Sequence[int],
        differentiable: Sequence[bool],
    ) -> Any:
        returned = self._run_body(forward, operands)
        results, saved = returned[: len(differentiable)], returned[len(differentiable) :]
        gradients = self._run_body(backward, (*(operands[position] for position in kept), *saved, *results))
        if len(gradients) != len(with_gradient):
            raise ValueError(f"its backward gives {len(gradients)} gradients, for {len(with_gradient)} operands")
        return results

    def _run_body(self, body: StageModule, operands: Sequence[Any]) -> Any:
        index = next(index for index in range(len(self._subgraphs)) if getattr(self._program, f"g{index}") is body)
        where = f"{self._where}subgraph {index}, "
        trial = _Trial(body.program, self._subgraphs[index], self._device, where, self._hints, self._unbacked)
        return trial.run(*operands)

    def _depends_on_data(self, node: fx.Node) -> bool:
        """Whether a call reads or gives a number that only a run tells: such hints fit together by chance."""
        if self._reads_unknown_float(node):
            return True
        if not self._unbacked:
            return False
        results = (node,) if VALUE_ID in node.meta else node.users
        ids = {other.meta.get(VALUE_ID) for other in (*results, *node.all_input_nodes)}
        return any(self._is_unbacked(self._values[value_id]) for value_id in ids if value_id is not None)

    def _reads_unknown_float(self, node: fx.Node) -> bool:
        return any(read in self._unknown_floats for read in node.all_input_nodes)

    def _is_float(self, node: fx.Node) -> bool:
        value_id = node.meta.get(VALUE_ID)
        return value_id is not None and self._values[value_id].kind == pb.VALUE_KIND_SYM_FLOAT

    def _is_unbacked(self, value: pb.Value) -> bool:
        sizes = (*value.dims, *value.strides, value.expression)
        return any(symbol in self._unbacked for size in sizes for symbol in symbols_in(size))

    def _stand_in(self, node: fx.Node) -> Any:
        """What depends on data cannot be tried out; it is taken to be as declared."""
        if VALUE_ID in node.meta:
            return self._example(node.meta[VALUE_ID])
        items: dict[Any, Any] = {
            user.args[1]: self._example(user.meta[VALUE_ID]) for user in node.users if VALUE_ID in user.meta
        }
        return items

    def _example(self, value_id: int) -> Any:
        value = self._values[value_id]
        if value.kind != pb.VALUE_KIND_TENSOR:
            return self._scalar(value)
        declared = self._declared(value)
        if declared.strides:
            return torch.empty_strided(declared.dims, declared.strides, dtype=declared.dtype, device=self._device)
        return torch.empty(declared.dims, dtype=declared.dtype, device=self._device)

    def _scalar(self, value: pb.Value) -> Any:
        if value.kind not in _SCALARS:
            raise InvalidGraph(f"{self._name(value)}: has no type that can be run")
        if value.HasField("expression"):
            return evaluate(self._name(value), value.expression, self._hints)
        return _SCALARS[value.kind]

    def _compare(self, value_id: int, result: Any) -> None:
        value = self._values[value_id]
        if value.kind == pb.VALUE_KIND_TENSOR:
            declared = self._declared(value)
            needed = f"{declared.dtype} {list(declared.dims)}"
            result_text = (
                f"{result.dtype} {list(result.shape)}" if isinstance(result, torch.Tensor) else repr(result)[:80]
            )
        else:
            needed = str(self._scalar(value)) if value.HasField("expression") else type(self._scalar(value)).__name__
            result_text = str(result) if value.HasField("expression") else type(result).__name__
        if result_text != needed:
            raise ShapeMismatch(
                f"{self._name(value)}: the rebuilt stage gives {result_text}, the graph declares {needed}; "
                "export the model again"
            )

    def _declared(self, value: pb.Value) -> Declared:
        return declared_tensor(self._where, value, self._hints)

    def _name(self, value: pb.Value) -> str:
        return f"{self._where}value {value.id} ({shown(value.name)})"


def _grouped_product(rows: torch.Tensor, experts: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """[rows, in] with [experts, in, out]: torch tries bfloat16 only, though its kernels take float32 and float16."""
    fits = rows.dim() == 2 and experts.dim() == 3 and rows.shape[1] == experts.shape[1] and rows.dtype == experts.dtype
    if not fits or list(offsets.shape) != [experts.shape[0]] or offsets.dtype is not torch.int32:
        operands = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in (rows, experts, offsets))
        raise ValueError(f"needs [rows, in], [experts, in, out] and an int32 offset for each expert, not {operands}")
    return rows.new_empty(rows.shape[0], experts.shape[2])
