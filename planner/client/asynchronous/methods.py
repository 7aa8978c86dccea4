"""From methods of a synchronous class to awaited ones of an asynchronous class: same parameters, same docstrings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial, wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from planner.client.asynchronous.threads import Threads
from planner.client.lifetime import NotPickled
from planner.graph.ir import Graph

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Wrapped = TypeVar("_Wrapped")
_Synchronous = TypeVar("_Synchronous")
_Synchronous_co = TypeVar("_Synchronous_co", covariant=True)

# A parameter of this beginning takes a function that is told of events.
_CALLBACK = "on_"


class Asynchronous(NotPickled, Generic[_Synchronous_co]):
    """A synchronous object, and the threads that its methods are called in."""

    def __init__(self, synchronous: _Synchronous_co, threads: Threads) -> None:
        self._synchronous = synchronous
        self._threads = threads


class _Closable(Protocol):
    def close(self) -> None: ...


_Closable_co = TypeVar("_Closable_co", bound=_Closable, covariant=True)


class AsynchronousResource(Asynchronous[_Closable_co]):
    """One that has to be closed; use it as an asynchronous context manager."""

    async def close(self) -> None:
        await self._threads.call(self._synchronous.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class _OnDeployment(_Closable, Protocol):
    @property
    def graph(self) -> Graph: ...

    @property
    def deployment_id(self) -> str: ...


_OnDeployment_co = TypeVar("_OnDeployment_co", bound=_OnDeployment, covariant=True)


class DeploymentResource(AsynchronousResource[_OnDeployment_co]):
    """One that is about a graph and a deployment of it."""

    @property
    def graph(self) -> Graph:
        return self._synchronous.graph

    @property
    def deployment_id(self) -> str:
        return self._synchronous.deployment_id


def awaited(
    method: Callable[Concatenate[_Synchronous, _Parameters], _Result],
) -> Callable[Concatenate[Asynchronous[_Synchronous], _Parameters], Coroutine[Any, Any, _Result]]:
    """Called in a thread; the functions that it tells of events are called on the event loop."""
    bind = _bind(method)

    @wraps(method)
    async def call(
        self: Asynchronous[_Synchronous], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        return await self._threads.call(bind(self._synchronous, args, kwargs))

    return call


def iterated(
    method: Callable[Concatenate[_Synchronous, _Parameters], Iterator[_Result]],
) -> Callable[Concatenate[Asynchronous[_Synchronous], _Parameters], AsyncGenerator[_Result]]:
    """Each item is waited for in a thread."""
    bind = _bind(method)

    @wraps(method)
    def call(
        self: Asynchronous[_Synchronous], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> AsyncGenerator[_Result]:
        return self._threads.iterate(bind(self._synchronous, args, kwargs))

    return call


def wrapped(
    method: Callable[Concatenate[_Synchronous, _Parameters], _Result],
    wrapper: Callable[[_Result, Threads], _Wrapped],
    discard: Callable[[_Result], object] = lambda result: None,
) -> Callable[Concatenate[Asynchronous[_Synchronous], _Parameters], Coroutine[Any, Any, _Wrapped]]:
    """As awaited, where what the method gives has methods that block; `discard` lets go of one that nobody gets."""
    bind = _bind(method)

    @wraps(method)
    async def call(
        self: Asynchronous[_Synchronous], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Wrapped:
        result = await self._threads.call(bind(self._synchronous, args, kwargs), discard=discard)
        return wrapper(result, self._threads)

    return call


def _bind(method: Callable[..., _Result]) -> Callable[[Any, Sequence[Any], Mapping[str, Any]], Callable[[], _Result]]:
    """From the method, its object and arguments to a call without arguments, for a thread."""
    names = tuple(signature(method).parameters)[1:]

    def bind(synchronous: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], _Result]:
        positional = (*names[: len(args)], *("" for _ in args[len(names) :]))
        return partial(
            method,
            synchronous,
            *(_for_thread(name, value) for name, value in zip(positional, args, strict=True)),
            **{name: _for_thread(name, value) for name, value in kwargs.items()},
        )

    return bind


def _for_thread(name: str, value: Any) -> Any:
    if not name.startswith(_CALLBACK) or not callable(value):
        return value
    return partial(asyncio.get_running_loop().call_soon_threadsafe, value)
