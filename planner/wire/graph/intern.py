"""A table of distinct records, named by index: nodes share operators, contexts and module paths."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Record = TypeVar("Record", bound=Hashable)


class InternTable(Generic[Record]):
    """Records in order of first appearance."""

    def __init__(self) -> None:
        self._index: dict[Record, int] = {}

    def index(self, record: Record) -> int:
        return self._index.setdefault(record, len(self._index))

    def records(self) -> tuple[Record, ...]:
        return tuple(self._index)
