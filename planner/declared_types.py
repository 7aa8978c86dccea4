"""Whether the fields of options hold what they are declared to hold: they are typed by hand, and what is not noticed
where they are made comes to light far from there, or never."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from planner.errors import OptionsError

MOST_INTEGER = (1 << 63) - 1


def check_declared(options: Any, where: str) -> None:
    """Raises OptionsError for the first field of a dataclass that holds something else."""
    for name, declared in _declared_types(type(options)):  # type: ignore[arg-type]
        value = getattr(options, name)
        if not _fits(value, declared):
            raise OptionsError(f"{where}.{name} is {value!r:.80}, needs {_words(declared)}")
        if not _can_be_sent(value):
            raise OptionsError(f"{where}.{name} is {value!r:.80}, needs integers of at most 64 bits, and text of UTF-8")


@cache
def _declared_types(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _fits(value: Any, declared: Any) -> bool:
    """Of what such options are made of: classes, numbers, tuples and unions of these."""
    parts = get_args(declared)
    if get_origin(declared) in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if get_origin(declared) is tuple:
        if not isinstance(value, tuple):
            return False
        declared_items = [parts[0]] * len(value) if parts[1:] == (...,) else parts
        return len(value) == len(declared_items) and all(map(_fits, value, declared_items))
    if declared is int or declared is float:
        return isinstance(value, Integral if declared is int else Real) and not isinstance(value, bool)
    return isinstance(value, declared)


def _can_be_sent(value: Any) -> bool:
    """Other numbers are looked at by what their field means."""
    if isinstance(value, tuple):
        return all(map(_can_be_sent, value))
    if isinstance(value, str):
        return is_utf8(value)
    return not isinstance(value, Integral) or -MOST_INTEGER <= int(value) <= MOST_INTEGER


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _words(declared: Any) -> str:
    parts = get_args(declared)
    if get_origin(declared) in (Union, UnionType):
        return " or ".join(map(_words, parts))
    if get_origin(declared) is tuple:
        return f"tuple of {_words(parts[0])}" if parts[1:] == (...,) else f"({', '.join(map(_words, parts))})"
    if declared is NoneType:
        return "None"
    return f"one of {', '.join(map(str, declared))}" if issubclass(declared, Enum) else str(declared.__name__)
