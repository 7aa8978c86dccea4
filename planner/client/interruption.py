"""Ending from one thread what another one waits for, as Ctrl-C ends what the main thread waits for.

Whatever waits in this package does so by `pause` and `one_answer`, or within `interruptible`. An interruption belongs
to a context (contextvars): where there is none, these wait as time.sleep and a plain call do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any


class Interrupted(BaseException):
    """Raised where the wait was. As KeyboardInterrupt it is no Exception: nothing goes on in spite of it."""


class Interruption:
    """Sent once, from any thread; from then on each wait under it raises Interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = threading.Event()
        self._ends: list[Callable[[], object]] = []

    @property
    def is_sent(self) -> bool:
        return self._sent.is_set()

    def send(self) -> None:
        with self._lock:
            self._sent.set()
            ends = tuple(self._ends)
        for end in ends:
            end()

    @contextlib.contextmanager
    def covering(self) -> Iterator[None]:
        """What waits in this context meanwhile, waits under this interruption."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def pause(self, seconds: float) -> None:
        if self._sent.wait(seconds):
            raise Interrupted

    @contextlib.contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            if self.is_sent:
                raise Interrupted
            self._ends.append(end)
        try:
            yield
        except Exception:
            if self.is_sent:
                raise Interrupted from None
            raise
        finally:
            with self._lock:
                self._ends.remove(end)


_current: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
# One for all waits that nothing can interrupt.
_NOTHING = contextlib.nullcontext()


def pause(seconds: float) -> None:
    """time.sleep, until an interruption."""
    interruption = _current.get()
    if interruption is None:
        time.sleep(seconds)
    else:
        interruption.pause(seconds)


def interruptible(end: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    """Within it, an interruption calls `end` from its own thread; what that makes fail here is raised as Interrupted.

    `end` may be called after what it ends is over.
    """
    interruption = _current.get()
    return _NOTHING if interruption is None else interruption.ending(end)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """For what still has to be said after an interruption."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def one_answer(method: Any, request: object, **options: Any) -> Any:
    """`method(request, **options)` of a gRPC stub, for a method that answers once; an interruption cancels the call."""
    if _current.get() is None:
        return method(request, **options)
    call = method.future(request, **options)
    with interruptible(call.cancel):
        return call.result()
