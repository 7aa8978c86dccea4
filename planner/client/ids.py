"""Ids that callers hand over: where a record is handed over instead, protobuf's words for it help nobody."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isfunction, signature
from typing import Any, TypeVar

from planner.errors import InvalidArgument

_Calls = TypeVar("_Calls", bound=type[Any])


def checks_ids(calls: _Calls) -> _Calls:
    """A class whose public methods refuse an `..._id` that is no string, and say whose id is wanted."""
    for name, method in tuple(vars(calls).items()):
        if isfunction(method) and not name.startswith("_"):
            parameters = list(signature(method).parameters)
            if ids := {one: parameters.index(one) for one in parameters if one.endswith("_id")}:
                setattr(calls, name, _checking(method, ids))
    return calls


def _checking(method: Callable[..., Any], ids: dict[str, int]) -> Callable[..., Any]:
    @wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name, position in ids.items():
            value = args[position] if position < len(args) else kwargs.get(name)
            if value is not None and not isinstance(value, str):
                remedy = ": give its id" if hasattr(value, "id") else ""
                raise InvalidArgument(f"{name} is a {type(value).__name__}, needs str{remedy}")
        return method(*args, **kwargs)

    return checked
