"""What runs in a profiling process: it reads one request, tells of each distinct node, and ends with its supervisor.

The first answer lists the distinct nodes, so that the supervisor knows which one a process died of. `sequence` of the
request is the distinct node to start from: a process that takes over from a dead one leaves out what that one did. One
that is to keep the host busy says once that it does, and runs on.
"""

from __future__ import annotations

import os
import signal
import socket
import threading

from access.files import TlsFiles
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.worker.frames import Frame, FrameKind, read_frame, write_frame
from stage_daemon.worker.lifetime import die_with_parent
from stage_daemon.worker.own_device import own_device


def run(
    connection: socket.socket,
    device: str,
    tls: TlsFiles | None = None,
    operators: tuple[CustomOperator, ...] = (),
) -> None:
    """Never returns."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = read_frame(connection)
    if request is None:
        os._exit(0)
    threading.Thread(target=_end_with_supervisor, args=(connection,), daemon=True).start()
    # Not at the top: the supervisor imports this module too, and has no use for torch.
    from stage_daemon.loader.operators import allow_operators
    from stage_daemon.worker.failures import failure_from_error
    from stage_daemon.worker.profile.session import Session

    try:
        allow_operators(operators)
        Session(connection, own_device(device), tls).run(request)
    except Exception as error:
        write_frame(connection, Frame(kind=FrameKind.FAILED, body=failure_from_error(error).SerializeToString()))
        os._exit(1)
    os._exit(0)


def _end_with_supervisor(connection: socket.socket) -> None:
    """It says nothing more; the socket's end is its own, or that it has lost interest."""
    while read_frame(connection) is not None:
        pass
    os._exit(0)
