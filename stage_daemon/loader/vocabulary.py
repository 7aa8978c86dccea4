"""The operators that a graph may hold, and what is known of each for running it: the wire contract's fixed list.

A row of operators.txt beside the protos is `kind name overload fact...`; its head says what each fact means. Facts that
are about planning are the planner's to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_MAY_RETURN_ARGUMENT = frozenset({"returns", "lone_operand", "dropout"})
# What an argument may be in evaluation.
_VALUES: Mapping[str, Any] = {"false": False, "0": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """`indices`: the rule for indices that it takes, or "". `returns_argument`: may be an argument or a view of it.
    `evaluation`: an argument and its value in evaluation."""

    indices: str = ""
    detaches: bool = False
    arithmetic: bool = False
    returns_argument: bool = False
    evaluation: tuple[str, Any] | None = None


_UNKNOWN = OperatorFacts()


def facts_of(name: str) -> OperatorFacts:
    """By the operator's name, whatever the overload; of one that is not in the list nothing is known."""
    return load_facts().get(name, _UNKNOWN)


def rows() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(kind, name, overload, facts)"""
    text = files("protos.v1").joinpath("operators.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        kind, name, *words = line.split()
        overload = words.pop(0) if kind == "aten" else ""
        yield kind, name, overload, tuple(words)


@cache
def load_facts() -> Mapping[str, OperatorFacts]:
    return {name: _facts_from(words) for _, name, _, words in rows()}


def _facts_from(words: tuple[str, ...]) -> OperatorFacts:
    values = {name: value for name, _, value in (word.partition("=") for word in words)}
    argument, _, value = values.get("evaluation", "").partition(":")
    return OperatorFacts(
        indices=values.get("indices", ""),
        detaches="detaches" in values,
        arithmetic="arithmetic" in values,
        returns_argument=not _MAY_RETURN_ARGUMENT.isdisjoint(values),
        evaluation=(argument, _VALUES[value]) if argument else None,
    )
