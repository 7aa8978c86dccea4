"""The operators that a graph may hold, and what is known of each besides its schema: the wire contract's fixed list.

A row of operators.txt beside the protos is `kind name overload fact...`; its head says what each fact means. Facts that
are about running an operator are the stage daemon's to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from planner.graph.ir import OperatorKind

OperatorName = tuple[OperatorKind, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """What the fact of each name means is at the head of operators.txt. "" and False: the row does not say so."""

    flops: str = ""
    operand_rate: bool = False
    reads: str = ""
    returns: str = ""
    copies: str = ""
    embedding: bool = False
    detaches: bool = False
    uninitialised: bool = False
    lone_operand: bool = False
    dropout: bool = False
    evaluation: str = ""
    statistics: bool = False
    converts: bool = False
    saves: str = ""
    keeps: str = ""
    reduction: str = ""

    @property
    def saves_inputs(self) -> bool:
        return self.saves in ("", "inputs")

    @property
    def saves_outputs(self) -> bool:
        return self.saves in ("", "outputs")

    @property
    def returned_positions(self) -> tuple[int, ...]:
        return (int(self.returns),) if self.returns else ()


_UNKNOWN = OperatorFacts()
_NAMES = frozenset(field.name for field in fields(OperatorFacts))


@cache
def load_vocabulary() -> frozenset[OperatorName]:
    """(kind, name, overload) of every operator that can be deployed."""
    return frozenset((OperatorKind(kind), name, overload) for kind, name, overload, _ in _rows())


def facts_of(name: str) -> OperatorFacts:
    """By the operator's name, whatever the overload; of one that is not in the list nothing is known."""
    return load_facts().get(name, _UNKNOWN)


@cache
def load_facts() -> Mapping[str, OperatorFacts]:
    return {name: _facts_from(words) for _, name, _, words in _rows()}


def _facts_from(words: tuple[str, ...]) -> OperatorFacts:
    pairs = (word.partition("=") for word in words)
    return OperatorFacts(**{name: value if equals else True for name, equals, value in pairs if name in _NAMES})  # type: ignore[arg-type]


def _rows() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(kind, name, overload, facts)"""
    text = files("protos.v1").joinpath("operators.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        kind, name, *words = line.split()
        overload = words.pop(0) if kind == OperatorKind.ATEN.value else ""
        yield kind, name, overload, tuple(words)
