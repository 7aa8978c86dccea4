"""`plan export`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any

import typer
from rich.text import Text

from planner.cli.commands.plan.group import PlanArgument, app
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.deepspeed import deepspeed_parts
from planner.plan.exports.device_map import device_map
from planner.plan.exports.exo import exo_shards
from planner.plan.exports.llama_cpp import llama_cpp_tensor_split
from planner.plan.exports.megatron import megatron_layout
from planner.plan.exports.mlx import mlx_split
from planner.plan.exports.nanotron import nanotron_ranks
from planner.plan.exports.torch_pipelining import split_spec, torchtitan_parts
from planner.plan.exports.vllm import vllm_layer_partition
from planner.plan.plan import Plan


class ExportFormat(Enum):
    VLLM = "vllm"
    TORCH_PIPELINING = "torch-pipelining"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    DEVICE_MAP = "device-map"
    LLAMA_CPP = "llama-cpp"
    EXO = "exo"
    DEEPSPEED = "deepspeed"
    NANOTRON = "nanotron"
    MLX = "mlx"


_NO_NEAREST = (ExportFormat.TORCH_PIPELINING, ExportFormat.TORCHTITAN)
# What stands before the split where it is written for a shell.
PREFIXES = {
    ExportFormat.VLLM: "VLLM_PP_LAYER_PARTITION=",
    ExportFormat.MEGATRON: "--pipeline-model-parallel-layout ",
    ExportFormat.LLAMA_CPP: "--tensor-split ",
}


@app.command("export")
def export(
    plan: PlanArgument,
    format_: Annotated[ExportFormat, typer.Option("--format", help="Whose words to write the cuts in.")],
    nearest: Annotated[
        bool,
        typer.Option("--nearest", help="What is cut goes where most of it runs; not torch-pipelining, torchtitan."),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="DEVICE=NAME", help="device-map: what to call a device; else 0, 1, … Repeat."),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """A plan's cuts for another system: an environment variable, a flag, or JSON."""
    if nearest and format_ in _NO_NEAREST:
        takes = ", ".join(one.value for one in ExportFormat if one not in _NO_NEAREST)
        raise OptionsError(f"--nearest with --format {format_.value}: only {takes} move what is cut")
    names = dict(map(_device_name, name or []))
    with connect(server) as client:
        stored_plan = client.get_plan(plan)
        content = _EXPORTS[format_](client.read_graph(stored_plan.graph_id), stored_plan, nearest, names)
    emit({"format": format_.value, "content": content}, output, lambda: Text(_line(format_, content)))


_EXPORTS: Mapping[ExportFormat, Callable[[Graph, Plan, bool, Mapping[str, int | str]], Any]] = {
    ExportFormat.VLLM: lambda graph, plan, nearest, _: vllm_layer_partition(graph, plan, nearest=nearest),
    ExportFormat.TORCH_PIPELINING: lambda graph, plan, *_: split_spec(graph, plan),
    ExportFormat.TORCHTITAN: lambda graph, plan, *_: torchtitan_parts(graph, plan),
    ExportFormat.MEGATRON: lambda graph, plan, nearest, _: megatron_layout(graph, plan, nearest=nearest),
    ExportFormat.LLAMA_CPP: lambda graph, plan, nearest, _: llama_cpp_tensor_split(graph, plan, nearest=nearest),
    ExportFormat.EXO: lambda graph, plan, nearest, _: exo_shards(graph, plan, nearest=nearest),
    ExportFormat.DEEPSPEED: lambda graph, plan, nearest, _: deepspeed_parts(graph, plan, nearest=nearest),
    ExportFormat.NANOTRON: lambda graph, plan, nearest, _: nanotron_ranks(graph, plan, nearest=nearest),
    ExportFormat.MLX: lambda graph, plan, nearest, _: mlx_split(graph, plan, nearest=nearest),
    ExportFormat.DEVICE_MAP: lambda graph, plan, nearest, names: device_map(graph, plan, names, nearest=nearest),
}


def _line(format_: ExportFormat, content: Any) -> str:
    if format_ not in PREFIXES:
        return json.dumps(content, indent=2)
    quoted = f'"{content}"' if "|" in content else content
    return f"{PREFIXES[format_]}{quoted}"


def _device_name(text: str) -> tuple[str, int | str]:
    device, _, name = text.partition("=")
    if not device or not name:
        raise OptionsError(f"--name {text!r} is no DEVICE=NAME, such as node1/gpu0=0")
    return device, int(name) if name.isdecimal() else name
