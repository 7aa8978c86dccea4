"""Progress bars on stderr, for uploads, rollouts and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from planner.cli.output import messages
from planner.client.records import DeploymentEvent, ProfileProgress, UploadProgress

if TYPE_CHECKING:
    from planner.client.training import StepResult


@contextmanager
def upload_bars() -> Iterator[Callable[[UploadProgress], None]]:
    """One bar per file."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=messages()) as progress:
        tasks: dict[str, TaskID] = {}

        def show(upload: UploadProgress) -> None:
            if upload.name not in tasks:
                tasks[upload.name] = progress.add_task(upload.name, total=upload.total_bytes)
            progress.update(tasks[upload.name], completed=upload.sent_bytes)

        yield show


@contextmanager
def rollout_bars() -> Iterator[Callable[[DeploymentEvent], None]]:
    """One bar per stage, of bytes loaded, above the deployment's state."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages()) as progress:
        tasks: dict[int, TaskID] = {}

        def show(event: DeploymentEvent) -> None:
            if event.stage is None or not event.total_bytes:
                progress.console.print(event_text(event), markup=False)
                return
            if event.stage not in tasks:
                description = f"stage {event.stage} on {event.device_id}"
                tasks[event.stage] = progress.add_task(description, total=event.total_bytes)
            progress.update(tasks[event.stage], completed=event.loaded_bytes)

        yield show


@contextmanager
def profile_bars() -> Iterator[Callable[[ProfileProgress], None]]:
    """One bar per device, of distinct nodes."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages()) as progress:
        tasks: dict[str, TaskID] = {}

        def show(step: ProfileProgress) -> None:
            if step.device_id not in tasks:
                tasks[step.device_id] = progress.add_task(step.device_id, total=step.num_distinct)
            progress.update(tasks[step.device_id], completed=step.num_done)

        yield show


@contextmanager
def batch_bar(num_batches: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("batches"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages()) as progress:
        task = progress.add_task("batches", total=num_batches)
        yield lambda: progress.advance(task)


@contextmanager
def training_bar(num_steps: int) -> Iterator[Callable[[StepResult, float], None]]:
    """Takes each step's result, and tokens per second so far."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages()) as progress:
        task = progress.add_task("loss", total=num_steps)

        def show(result: StepResult, tokens_per_second: float) -> None:
            description = f"loss {result.loss:.4f}  {tokens_per_second:.0f} tokens/s  bubble {result.bubble_share:.0%}"
            progress.update(task, advance=1, description=description)

        yield show


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """Only where it can be seen turning."""
    console = messages()
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(description, total=None)
        yield


def event_text(event: DeploymentEvent) -> str:
    where = "" if event.stage is None else f" stage {event.stage}"
    on = f" on {event.device_id}" if event.device_id else ""
    loaded = f" {event.loaded_bytes}/{event.total_bytes} bytes" if event.total_bytes else ""
    message = event.message or (event.failure.message if event.failure else "")
    reason = f": {message}" if message and message != event.state.value else ""
    return f"{event.state.value}{where}{on}{loaded}{reason}"
