"""Fetches, checks and rebuilds a worker's stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import DaemonError
from stage_daemon.loader.draws import draws_random
from stage_daemon.loader.foreign_inputs import foreign_inputs
from stage_daemon.loader.kept_states import KeptStates, Place
from stage_daemon.loader.load import StageProgram, load_stage
from stage_daemon.runtime.stage import Stage
from stage_daemon.worker.blobs import BlobClient
from stage_daemon.worker.compilation import compile_stage, compiling
from stage_daemon.worker.memory import available_bytes, check_states_fit

OnProgress = Callable[[stage_daemon_pb2.LoadStagesResponse], None]

# Progress is for people and for the planner's patience.
_PROGRESS_SECONDS = 0.1
_REPEAT_SECONDS = 5.0


def load_stages(
    request: stage_daemon_pb2.LoadStagesRequest,
    reader: BlobClient,
    device: torch.device,
    on_progress: OnProgress,
    kept_states: KeptStates | None = None,
) -> dict[int, Stage]:
    """Stages by index. Raises what the loader raises, naming the stage.

    `kept_states` lets go of those of other stages, and keeps what these need.
    """
    places = {
        Place(state.file_sha256, state.offset_bytes, state.length_bytes)
        for module in request.stages
        for state in module.states
    }
    if kept_states is not None:
        kept_states.keep_only(places)
        if not _may_keep(places, kept_states, device):
            kept_states.keep_only(frozenset())
            kept_states = None
    check_states_fit(
        request.stages, device, kept_states.size_bytes if kept_states is not None and device.type == "cpu" else 0
    )
    with compiling() if request.compile else nullcontext():
        return {
            module.stage: _load(module, reader, device, on_progress, kept_states, compile=request.compile)
            for module in request.stages
        }


def _may_keep(places: Set[Place], kept_states: KeptStates, device: torch.device) -> bool:
    """Beside a GPU's memory they take as much of the host's, of which as much again has to be left."""
    available = available_bytes(torch.device("cpu"))
    needed_bytes = sum(place.length_bytes for place in places)
    return device.type == "cpu" or available is None or available + kept_states.size_bytes >= 2 * needed_bytes


def _load(
    module: stage_daemon_pb2.StageModule,
    reader: BlobClient,
    device: torch.device,
    on_progress: OnProgress,
    kept_states: KeptStates | None,
    *,
    compile: bool,
) -> Stage:
    progress = _Progress(module.stage, on_progress)
    try:
        graph_bytes = reader.read_whole(module.graph_sha256)
        program = load_stage(graph_bytes, module.states, reader.read_range, device, progress.advance, kept_states)
        stage = stage_from_program(module.stage, program, str(device))
        if compile:
            with progress.going_on():
                compiled = compile_stage(program, device)
            # What is compiled may read an input again where the program reads what it has made of it.
            stage = replace(stage, run=compiled.module, foreign_input_ids=frozenset())
            progress.compiled(compiled.difference)
    except DaemonError as error:
        error.stage = module.stage
        raise
    progress.tell()
    return replace(stage, copy=module.copy if module.HasField("copy") else None)


def stage_from_program(index: int, program: StageProgram, device_id: str) -> Stage:
    return Stage(
        index=index,
        device_id=device_id,
        run=program.module,
        input_ids=program.input_ids,
        output_ids=program.output_ids,
        draws_random=draws_random(program.graph),
        module=program.module,
        foreign_input_ids=frozenset(program.input_ids[position] for position in foreign_inputs(program.module.program)),
    )


class _Progress:
    def __init__(self, stage: int, on_progress: OnProgress) -> None:
        self._state = stage_daemon_pb2.LoadStagesResponse(stage=stage, num_threads=torch.get_num_threads())
        self._on_progress = on_progress
        self._told_at = 0.0

    def advance(self, loaded_bytes: int, total_bytes: int) -> None:
        self._state.loaded_bytes, self._state.total_bytes = loaded_bytes, total_bytes
        if time.monotonic() - self._told_at >= _PROGRESS_SECONDS:
            self.tell()

    def compiled(self, difference: float) -> None:
        self._state.compiled_difference = difference

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Told again and again meanwhile: who follows takes silence for a hang."""
        done = threading.Event()

        def repeat() -> None:
            while not done.wait(_REPEAT_SECONDS):
                self.tell()

        teller = threading.Thread(target=repeat, name="progress", daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()

    def tell(self) -> None:
        self._told_at = time.monotonic()
        self._on_progress(self._state)
