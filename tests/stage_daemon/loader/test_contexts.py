"""Contexts hold for their nodes and for nothing else, whatever happens in between."""

from __future__ import annotations

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.contexts import context_arguments, enter, leave_as_found
from stage_daemon.loader.rebuild import rebuild_module
from stage_daemon.loader.stage_module import StageModule

CPU = torch.device("cpu")


def _autocast_module() -> StageModule:
    """x @ x outside, inside and again outside of autocast to bfloat16; the last reads a value that may not fit."""
    graph = pb.Graph(schema_version=1)
    graph.operators.add(kind=pb.OPERATOR_KIND_ATEN, name="aten::matmul", overload="default")
    graph.contexts.add(grad_enabled=True)
    inside = graph.contexts.add(grad_enabled=False)
    inside.autocasts.add(device_class="cpu", enabled=True, dtype=pb.DTYPE_BFLOAT16, cache_enabled=True)
    for value_id in (1, 2, 3, 4):
        dtype = pb.DTYPE_BFLOAT16 if value_id == 3 else pb.DTYPE_FLOAT32
        value = graph.values.add(id=value_id, kind=pb.VALUE_KIND_TENSOR, dtype=dtype, device_class="cpu")
        value.dims.add(constant=4)
        value.dims.add(constant=4)
    graph.inputs.add(name="x", value=1)
    for output, context in ((2, 0), (3, 1), (4, 0)):
        node = graph.nodes.add(operator=0, outputs=[output], context=context)
        node.arguments.add(value=1)
        node.arguments.add(value=1)
        graph.outputs.add(name=str(output), value=output)
    return rebuild_module(graph, CPU)


def test_autocast_and_no_grad_hold_for_their_nodes_only() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    before, inside, after = _autocast_module()(x)
    assert (before.dtype, inside.dtype, after.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    assert (before.requires_grad, inside.requires_grad, after.requires_grad) == (True, False, True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(inside, x @ x)


def test_a_graph_never_turns_gradients_on() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    with torch.no_grad():
        assert not any(output.requires_grad for output in _autocast_module()(x))


def test_a_microbatch_that_raises_leaves_nothing_behind() -> None:
    module = _autocast_module()
    with pytest.raises(RuntimeError):
        module(torch.ones(4, 4, dtype=torch.int64).reshape(2, 8))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_modes_are_put_back_after_an_exception() -> None:
    def fail() -> None:
        with leave_as_found():
            torch._C._set_grad_enabled(False)
            torch.set_autocast_enabled("cpu", True)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_of_the_exporting_device_becomes_the_stages_own() -> None:
    context = pb.Context(grad_enabled=True)
    context.autocasts.add(device_class="cpu", enabled=True, dtype=pb.DTYPE_BFLOAT16)
    context.autocasts.add(device_class="cuda", enabled=False, dtype=pb.DTYPE_FLOAT16)
    _, autocasts = context_arguments("context 0", context, "cpu", torch.device("cuda", 0))
    assert autocasts == (("cuda", True, torch.bfloat16, False),)


def test_autocast_of_an_unknown_device_is_refused() -> None:
    context = pb.Context(grad_enabled=True)
    context.autocasts.add(device_class="tpu", enabled=True, dtype=pb.DTYPE_BFLOAT16)
    with pytest.raises(InvalidGraph, match=r"^context 3: autocast for 'tpu', needs one of"):
        context_arguments("context 3", context, "cpu", CPU)


def test_autocast_of_another_device_stays_that_ones() -> None:
    context = pb.Context(grad_enabled=False)
    context.autocasts.add(device_class="cuda", enabled=True, dtype=pb.DTYPE_FLOAT16, cache_enabled=True)
    context.autocasts.add(device_class="cpu", enabled=False, dtype=pb.DTYPE_BFLOAT16)
    grad_enabled, autocasts = context_arguments("context 0", context, "cpu", CPU)
    assert not grad_enabled
    assert autocasts == (("cpu", False, torch.bfloat16, False), ("cuda", True, torch.float16, True))


def test_each_context_is_what_was_found_and_its_own_only() -> None:
    """Not what the one before it has set."""
    bfloat16 = ("cpu", True, torch.bfloat16, False)
    with leave_as_found():
        enter(False, (bfloat16,))
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_cache_enabled()
        assert not torch.is_grad_enabled()
        enter(True, ())
        assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_cache_enabled()
        assert torch.is_grad_enabled()
    with torch.autocast("cpu", dtype=torch.float16), leave_as_found():
        enter(True, ())
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.float16


def test_dtype_and_cache_of_autocast_are_put_back() -> None:
    before = torch.get_autocast_dtype("cpu")
    with leave_as_found():
        enter(True, (("cpu", True, torch.float16, False),))
        assert torch.get_autocast_dtype("cpu") is torch.float16
    assert torch.get_autocast_dtype("cpu") is before
    assert torch.is_autocast_cache_enabled()
