"""`train`: a module from a factory, batches from a loader, steps over the daemons, weights into a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table

from planner.cli.factory import call_factory, callable_at, export_from_factory
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.plan_options import ActivationsOption
from planner.cli.progress import rollout_bars, training_bar, upload_bars
from planner.cli.tensor_files import check_writable, write_tensors
from planner.client.batches import batch_of, flatten_batch
from planner.client.microbatches import carried
from planner.client.records import RecoveryPolicy
from planner.client.tensors import named_to_raw
from planner.client.training import (
    Checkpointing,
    StepResult,
    Trainer,
    bytes_per_parameter,
    cosine,
    optimizer_from_text,
)
from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import OptimalMode, PlanOptions
from planner.schedule.prediction import idle_share, predict


def train(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="package.module:factory, as `submit` takes it.")],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="LOADER",
            help="package.module:loader, a callable that returns batches: tuples or lists of arguments, or dicts of"
            " named ones.",
        ),
    ],
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=1, help="How many, with those of a resumed checkpoint; batches begin anew when they run out."
        ),
    ],
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="sgd, adam, adamw or adafactor with options: adamw:lr=3e-4,eps=1e-8.")
    ] = "adamw:lr=3e-4",
    master_weights: Annotated[
        bool,
        typer.Option(
            "--master-weights", help="Step float32 copies of bfloat16 and float16 weights, and add gradients up so."
        ),
    ] = False,
    loss: Annotated[
        str | None, typer.Option("--loss", help="Output to train on; the only scalar one if left out.")
    ] = None,
    reduction: Annotated[
        str,
        typer.Option(
            "--reduction",
            help="The loss is a mean (over rows, or a cross entropy's targets), a sum, or a mean over what "
            "package.module:function counts in a microbatch's inputs.",
        ),
    ] = "mean",
    schedule: Annotated[PipelineSchedule, typer.Option("--schedule")] = PipelineSchedule.ONE_F_ONE_B,
    microbatches: Annotated[int, typer.Option("--microbatches", min=1, help="Of each batch.")] = 8,
    stages: Annotated[int, typer.Option("--stages", min=0, help="0: as many as help.")] = 0,
    replicate: Annotated[bool, typer.Option("--replicate", help="Idle devices may run copies of stages.")] = False,
    activations: ActivationsOption = Activations.KEPT,
    clip_norm: Annotated[float | None, typer.Option("--clip-norm", help="Clip gradients to this norm.")] = None,
    warmup: Annotated[
        int | None, typer.Option("--cosine", metavar="STEPS", help="Cosine decay, after a warmup of so many steps.")
    ] = None,
    seed: Annotated[str, typer.Option("--seed", help="Decides what dropout draws.")] = "",
    run: Annotated[
        str, typer.Option("--run", metavar="NAME", help="Save checkpoints with the planner, under this name.")
    ] = "",
    every: Annotated[
        int,
        typer.Option(
            "--every", min=0, help="Steps from one checkpoint to the next. 0: before the first and after the last."
        ),
    ] = 0,
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many checkpoints of the run stay.")] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's latest checkpoint, if there is one.")
    ] = False,
    recovery: Annotated[
        RecoveryPolicy | None,
        typer.Option(
            "--recovery",
            help="What follows the loss of a worker or a daemon: with restart or replan, training goes on from the last"
            " checkpoint. Left out: restart with --run, else manual.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write the weights: .npz or .safetensors.")
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Export, plan and deploy a module, train it, and write its weights down."""
    if out is not None:
        check_writable(out)
    if not run and (every or resume or recovery not in (None, RecoveryPolicy.MANUAL)):
        raise InvalidArgument("--every, --resume and --recovery need checkpoints; name their run by --run NAME")
    checkpoints = Checkpointing(run=run, every=every, keep=keep) if run else None
    optimizer_settings = replace(optimizer_from_text(optimizer), master_weights=master_weights)
    batches = _batches(data)
    counted = _reduction(reduction)
    exported = export_from_factory(source, None)
    options = PlanOptions(
        mode=OptimalMode(num_stages=stages, replicate=replicate),
        objective=Objective.STEP_TIME,
        training=Training(
            schedule=schedule,
            microbatches=microbatches,
            activations=activations,
            optimizer_bytes_per_parameter=bytes_per_parameter(optimizer_settings, exported.graph),
        ),
    )
    with connect(server) as client:
        start = client.latest_checkpoint(run) if resume else None
        if start is not None and start.progress.num_steps >= steps:
            raise InvalidArgument(
                f"checkpoint {start.id} of run {run} has {start.progress.num_steps} steps, --steps {steps} asks for no"
                " more; ask for more"
            )
        with upload_bars() as on_progress:
            graph = client.submit(exported, on_progress=on_progress)
        plan = client.create_plan(graph.id, options)
        with rollout_bars() as on_event:
            deployment = client.deploy(plan.id, on_event=on_event, recovery=recovery or _recovery(checkpoints))
        try:
            with client.train(
                deployment.id,
                optimizer_settings,
                loss=loss,
                reduction=counted,
                clip_norm=clip_norm,
                schedule=None if warmup is None else cosine(steps, warmup_steps=warmup),
                seed=seed,
                outputs=(),
                checkpoints=checkpoints,
                resume=start.id if start else None,
            ) as trainer:
                document = _run(trainer, batches, steps)
                if checkpoints is not None and not checkpoints.is_due(steps):
                    trainer.save()
                if out is not None:
                    _write(out, trainer)
        finally:
            client.stop(deployment.id)
    document |= {
        "plan_id": plan.id,
        "num_stages": len(plan.stages),
        "predicted_bubble_share": idle_share(plan, predict(plan)),
        "path": str(out) if out else None,
        "resumed_from": start.id if start else None,
    }
    emit(document, output, lambda: _table(document))


def _reduction(text: str) -> str | Callable[..., float]:
    if ":" in text:
        return callable_at(text)
    if text not in ("mean", "sum"):
        raise InvalidArgument(f"--reduction {text} is not known, needs mean, sum or package.module:function")
    return text


def _batches(target: str) -> Iterable[Any]:
    batches = call_factory(target)
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes):
        raise InvalidArgument(f"{target} returned {type(batches).__name__}, needs batches that can be iterated over")
    return batches


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Begins anew at the end; an iterator that cannot is remembered as it passes."""
    seen = []
    for batch in batches:
        seen.append(batch)
        yield batch
    if not seen:
        raise InvalidArgument("--data: there is no batch")
    while True:
        yield from seen


def _recovery(checkpoints: Checkpointing | None) -> RecoveryPolicy:
    return RecoveryPolicy.MANUAL if checkpoints is None else RecoveryPolicy.RESTART


def _run(trainer: Trainer, batches: Iterable[Any], steps: int) -> dict[str, Any]:
    """Up to step `steps`; batches of steps that a checkpoint has done are passed over."""
    done = trainer.num_steps
    results: list[StepResult] = []
    num_tokens, started = 0, time.monotonic()
    with training_bar(steps) as show:
        for _, given in zip(range(done, steps), islice(_endless(batches), done, None), strict=False):
            batch = batch_of(trainer.graph, given)
            results.append(trainer.step(*batch.args, **batch.kwargs))
            num_tokens += _num_tokens(trainer.graph, flatten_batch(trainer.graph, batch))
            show(results[-1], num_tokens / (time.monotonic() - started))
    step_seconds = [result.seconds for result in results]
    return {
        "steps": len(results),
        "first_loss": results[0].loss,
        "last_loss": results[-1].loss,
        "losses": [result.loss for result in results],
        "tokens_per_second": num_tokens / sum(step_seconds),
        "seconds_per_step": sum(step_seconds) / len(step_seconds),
        "bubble_share": sum(result.bubble_share * result.seconds for result in results) / sum(step_seconds),
    }


def _num_tokens(graph: Graph, leaves: Sequence[object]) -> int:
    """Elements of the first input that is integers of two dimensions; rows of the first one where none is."""
    values = graph.values_by_id()
    shapes: list[tuple[int, ...]] = [tuple(getattr(leaf, "shape", ())) for leaf in leaves]
    for shape, (_, value_id) in zip(shapes, carried(graph.inputs), strict=False):
        dtype = values[value_id].dtype
        if len(shape) == 2 and dtype is not None and dtype.name.startswith("INT"):
            return shape[0] * shape[1]
    return next((shape[0] for shape in shapes if shape), 1)


def _write(path: Path, trainer: Trainer) -> None:
    values = trainer.graph.values_by_id()
    dtypes = {state.name: values[state.value_id].dtype for state in trainer.graph.states}
    tensors = {}
    for name, tensor in trainer.state_dict().items():
        dtype = dtypes[name]
        assert dtype is not None
        tensors[name] = named_to_raw(name, tensor, dtype)
    write_tensors(path, tensors)


def _table(document: dict[str, Any]) -> RenderableType:
    table = Table("", "", box=box.SIMPLE, show_header=False)
    table.add_row("loss", f"{document['first_loss']:.4f} to {document['last_loss']:.4f} in {document['steps']} steps")
    table.add_row("tokens per second", f"{document['tokens_per_second']:.0f}")
    table.add_row("seconds per step", f"{document['seconds_per_step']:.4f}")
    predicted = document["predicted_bubble_share"]
    table.add_row("bubble share", f"{document['bubble_share']:.1%} measured, {predicted:.1%} predicted")
    table.add_row("weights", document["path"] or "not kept (--out FILE keeps them)")
    return table
