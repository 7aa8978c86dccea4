"""Stages compiled by torch.compile as they are loaded, and tried out on made-up inputs: no microbatch waits for it.

Outputs of a compiled stage are within a tolerance of the uncompiled one's: operators are fused, and sums have another
order.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from stage_daemon.errors import NotCompiled
from stage_daemon.loader.draws import draws_random
from stage_daemon.loader.expressions import symbols_in
from stage_daemon.loader.load import StageProgram
from stage_daemon.loader.stage_module import StageModule
from stage_daemon.randomness import drawing
from stage_daemon.transport.parcel import Item
from stage_daemon.worker.profile.indices import narrowest_ranges
from stage_daemon.worker.profile.inputs import make_values
from stage_daemon.worker.profile.values import ValueTable

# Where torch keeps what it compiles; whoever sets it trusts whoever may write there.
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStage:
    """`difference`: the largest of an output's elements, as a share of the output's largest element."""

    module: StageModule
    difference: float


@contextmanager
def compiling() -> Iterator[None]:
    """Stages may be compiled inside, once in a process. Afterwards, what a stage was not compiled for runs uncompiled.

    Raises NotCompiled where the host lacks a compiler.
    """
    from torch._inductor import config
    from torch.fx.experimental import _config as shapes_config

    _check_compiler()
    with ExitStack() as stack:
        if CACHE_VARIABLE not in os.environ:
            # Torch's own place has a name that every user of the host knows, and code is loaded from it.
            os.environ[CACHE_VARIABLE] = stack.enter_context(tempfile.TemporaryDirectory(prefix="compiled-stages-"))
        # Else a size of 1 would be a kind of its own.
        stack.enter_context(shapes_config.patch(backed_size_oblivious=True))  # type: ignore[attr-defined]
        stack.enter_context(
            config.patch(
                # A worker that is killed leaves no processes behind that compile.
                compile_threads=1,
                # Dropout draws as it does uncompiled.
                fallback_random=True,
                # They take longer than a stage does.
                cpp_cache_precompile_headers=False,
            )
        )
        yield
    # A microbatch of another kind of sizes must not keep its neighbours waiting past their deadline.
    torch.compiler.set_stance("eager_on_recompile")


def compile_stage(program: StageProgram, device: torch.device) -> CompiledStage:
    """Raises NotCompiled."""
    inputs = _made_up_inputs(program, device)
    expected = _tried(program, program.module, inputs, "the stage cannot be tried on made-up inputs")
    _mark_constant(program, inputs)
    compiled = program.module.compiled()
    outputs = _tried(program, compiled, inputs, "torch.compile refuses the stage")
    return CompiledStage(module=compiled, difference=max(map(_difference, outputs, expected), default=0.0))


def _check_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        compiler = os.environ.get("CXX") or "g++"
        raise NotCompiled(
            f"compile needs a C++ compiler on the daemon's host, and {compiler} is not there; install g++, or name"
            " another one in the daemon's environment by CXX, or deploy without compile"
        ) from None


def _made_up_inputs(program: StageProgram, device: torch.device) -> tuple[Any, ...]:
    """At the hints of the graph's symbols. None is a view: what is compiled for one asks later ones for such a base."""
    table = ValueTable(program.graph, {})
    described = {value_id: table.describe(value_id) for value_id in program.input_ids}
    values = make_values(described, narrowest_ranges(program.graph, table), device, _SEED)
    inputs = (values[value_id] for value_id in program.input_ids)
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)


def _mark_constant(program: StageProgram, inputs: Sequence[Any]) -> None:
    """Dims that the graph declares as constant are compiled as such, all others for any size."""
    values = {value.id: value for value in program.graph.values}
    for value_id, item in zip(program.input_ids, inputs, strict=True):
        if isinstance(item, torch.Tensor):
            for dim, size in enumerate(values[value_id].dims):
                if not any(True for _ in symbols_in(size)):
                    torch._dynamo.mark_static(item, dim)


def _tried(program: StageProgram, module: StageModule, inputs: Sequence[Any], refusal: str) -> Sequence[Item]:
    """As a lane runs it; what a run writes is put back."""
    before = module.written_states()
    drawn = drawing("compile", 0) if draws_random(program.graph) else nullcontext()
    try:
        with torch.no_grad(), drawn:
            outputs: Sequence[Item] = module(*inputs)
            for name, state in before.items():
                module.states()[name].copy_(state)
            return outputs
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        raise NotCompiled(f"{refusal} ({type(error).__name__}: {first}); deploy without compile") from error


def _difference(output: Item, expected: Item) -> float:
    if not isinstance(output, torch.Tensor) or not isinstance(expected, torch.Tensor) or not expected.numel():
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        return float((output != expected).any())
    wide = torch.complex128 if expected.is_complex() else torch.float64
    apart = (output.to(wide) - expected.to(wide)).abs().nan_to_num()
    largest = expected.to(wide).abs().nan_to_num().max().item()
    return float(apart.max().item() / (largest or 1.0))
