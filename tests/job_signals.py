"""Commands as a terminal or a script starts them: what their signals do is chosen, not inherited from our own shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_BECOME = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
for name in filter(None, sys.argv[1].split(",")):
    signal.signal(signal.Signals[name], signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[2:])
"""


def in_foreground(command: Sequence[str]) -> list[str]:
    """Ctrl-C reaches it, also where this process was started by nohup or as a background job."""
    return [sys.executable, "-ISc", _BECOME, "", *command]


def in_background(command: Sequence[str]) -> list[str]:
    """It is started to ignore SIGINT and SIGHUP, as `nohup COMMAND &` in a script does."""
    return [sys.executable, "-ISc", _BECOME, "SIGINT,SIGHUP", *command]
