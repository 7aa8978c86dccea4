"""Arguments of public calls: one that is no value of its declared type is refused by its name, where protobuf's words
for it, or an error from deep within, would help nobody."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import wraps
from inspect import isfunction, signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from planner.declared_types import MOST_INTEGER, is_utf8
from planner.errors import InvalidArgument

_Check = Callable[[str, object], None]
_Calls = TypeVar("_Calls", bound=type[Any])
_OPTIONAL = " | None"
MOST_COUNT = (1 << 32) - 1


def checks_arguments(calls: _Calls) -> _Calls:
    """A class whose public methods raise InvalidArgument for texts, numbers, moments, collections of them, and objects
    of a class, that are none. What may be of several classes its receiver checks."""
    for name, method in tuple(vars(calls).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(calls, name, _checking(method))
    return calls


def _checking(method: Callable[..., Any]) -> Callable[..., Any]:
    checks: list[tuple[int, str, _Check, bool]] = []
    for position, (name, parameter) in enumerate(signature(method).parameters.items()):
        declared = str(parameter.annotation)
        kind = declared.removesuffix(_OPTIONAL)
        named = method.__globals__.get(kind)
        # One that is imported for types alone its receiver knows.
        if kind in _CHECKS:
            checks.append((position, name, _CHECKS[kind], declared != kind))
        elif isinstance(named, type):
            checks.append((position, name, _of_class(named), declared != kind))

    @wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for position, name, check, is_optional in checks:
            if position < len(args):
                value = args[position]
            elif name in kwargs:
                value = kwargs[name]
            else:
                continue
            if not (is_optional and value is None):
                check(name, value)
        return method(*args, **kwargs)

    return checked


def _of_class(kind: type[Any]) -> _Check:
    needed = " or ".join(f"{kind.__name__}.{one.name}" for one in kind) if issubclass(kind, Enum) else kind.__name__

    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise InvalidArgument(f"{name} is {value!r:.80}, needs {needed}")

    return check


def _check_text(name: str, value: object) -> None:
    """Where a record is handed over in place of its id, it says so."""
    if not isinstance(value, str):
        remedy = ": give its id" if hasattr(value, "id") else ""
        raise InvalidArgument(f"{name} is a {type(value).__name__}, needs str{remedy}")
    if not is_utf8(value):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs text that UTF-8 can write")


def _check_count(name: str, value: object) -> None:
    """Of bytes, or of a sequence of events, there may be more than of anything else."""
    most = MOST_INTEGER if name.endswith(("_bytes", "_sequence")) else MOST_COUNT
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) <= most:
        raise InvalidArgument(f"{name} is {value!r:.80}, needs int from 0 to {most}")


def check_number(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs a number")
    try:
        is_number = float(value) == float(value)
    except OverflowError:
        is_number = False
    if not is_number:
        raise InvalidArgument(f"{name} is {value!r:.80}, needs a number that a float can hold")


def _check_truth(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs True or False")


def _check_moment(name: str, value: object) -> None:
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs datetime")
    try:
        value.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{name} is {value}, which UTC has no date for") from None


def _check_texts(name: str, value: object) -> None:
    """Nothing is taken from what can be read only once."""
    if isinstance(value, str):
        raise InvalidArgument(f"{name} is the text {value!r:.80}, needs several: write [{value!r:.80}]")
    if not isinstance(value, Iterable):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs a sequence of str")
    for index, one in enumerate(value if isinstance(value, Collection) else ()):
        _check_text(f"{name}[{index}]", one)


def _check_path(name: str, value: object) -> None:
    if not isinstance(value, (str, Path)):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs a path")


def _check_paths(name: str, value: object) -> None:
    several = isinstance(value, Collection) and not isinstance(value, (str, bytes))
    for one in value if several else (value,):  # type: ignore[attr-defined]
        _check_path(name, one)


def _check_integer_of_each(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} is {value!r:.80}, needs a dict, as {{'batch': 8}}")
    for key, one in value.items():
        _check_text(f"a name in {name}", key)
        if not isinstance(one, Integral) or isinstance(one, bool) or abs(int(one)) > MOST_INTEGER:
            raise InvalidArgument(f"{name}[{key!r}] is {one!r:.80}, needs int of at most 64 bits")


# By the declaration as it is written, which `from __future__ import annotations` leaves as text.
_CHECKS: Mapping[str, _Check] = {
    "str": _check_text,
    "int": _check_count,
    "float": check_number,
    "bool": _check_truth,
    "datetime": _check_moment,
    "Sequence[str]": _check_texts,
    "Iterable[str]": _check_texts,
    "Mapping[str, int]": _check_integer_of_each,
    "bytes": _of_class(bytes),
    "Path | str": _check_path,
    "str | Path | Sequence[str | Path]": _check_paths,
}
