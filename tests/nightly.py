"""Parameters of a test that only `make test-nightly` runs, beside those that every run has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def nightly(values: Iterable[Any]) -> list[Any]:
    """`values` for `parametrize`, each marked; a tuple is one case of several parameters."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly) for value in values
    ]
