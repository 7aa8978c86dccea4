"""How long, and where, what holds connections can be used: until it is closed, in the process that opened it."""

from __future__ import annotations

import os
from typing import Any

from planner.errors import Conflict


class Lifetime:
    """Of one object, which messages call `what`.

    A forked process has the object too, but no thread of it, and sockets that are still its parent's: what it asked
    would never be answered, and what it closed would be closed for the parent.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process_id = os.getpid()
        self._is_closed = False

    def check(self) -> None:
        """Raises Conflict where the object cannot be used any more, or not here."""
        if not self._is_of_this_process():
            raise Conflict(
                f"{self._what} was opened by process {self._process_id}, from which this one was forked without its"
                " connections; open one here, after the fork"
            )
        if self._is_closed:
            raise Conflict(f"{self._what} is closed; open another to go on")

    def end(self) -> bool:
        """From now on it is closed. Whether its connections are this process's, to be closed with it."""
        self._is_closed = True
        return self._is_of_this_process()

    def _is_of_this_process(self) -> bool:
        return os.getpid() == self._process_id


class NotPickled:
    """Of what holds connections: neither a copy nor another process would have them."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"a {type(self).__name__} is not copied or pickled, for its connections are this process's: share it"
            " between threads, and open one in each process"
        )
