"""What runs in the child: frames in, frames out, one deployment's stages in between."""

from __future__ import annotations

import os
import signal
import socket

from access.files import TlsFiles
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.loader.kept_states import KeptStates
from stage_daemon.worker.lifetime import die_with_parent
from stage_daemon.worker.own_device import own_device


def nothing() -> None:
    """What a process does that is forked to see that the server forks."""


def run(
    connection: socket.socket,
    deployment_id: str,
    generation: int,
    device: str,
    blob_address: str,
    tls: TlsFiles | None = None,
    operators: tuple[CustomOperator, ...] = (),
    kept_states: KeptStates | None = None,
) -> None:
    """Serves the supervisor until its end of `connection` closes. Never returns. `device`: see `own_device`."""
    die_with_parent()
    # The supervisor decides when a worker ends; a terminal's Ctrl-C is for the supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not at the top: the supervisor imports this module too, and has no use for torch.
    from stage_daemon.worker.worker import Worker

    Worker(
        connection,
        deployment_id=deployment_id,
        generation=generation,
        device=own_device(device),
        blob_address=blob_address,
        tls=tls,
        operators=operators,
        kept_states=kept_states,
    ).serve()
    os._exit(0)
