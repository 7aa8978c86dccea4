"""The survey of torch's operators tells what comes through from what does not; `make survey` runs it whole."""

from __future__ import annotations

import pytest
import torch

from planner.graph import operators
from tests.models.operators import OneCall, outcome_of

# Each exports a module.
pytestmark = pytest.mark.slow


def test_what_comes_through_and_what_is_refused() -> None:
    matrix = torch.eye(3) + 0.1
    assert outcome_of(OneCall(torch.linalg.inv, (matrix,), {})) == ""
    assert outcome_of(OneCall(torch.isin, (matrix,), {"test_elements": torch.ones(2)})) == ""
    assert outcome_of(OneCall(torch.rand_like, (matrix,), {})) == ""
    assert "aten::as_strided.default" in (outcome_of(OneCall(torch.as_strided, (matrix, (2,), (1,)), {})) or "")


def test_what_torch_does_not_run_is_no_finding() -> None:
    assert outcome_of(OneCall(torch.linalg.inv, (torch.ones(2, 3),), {})) is None


def test_a_result_that_shares_an_inputs_storage_has_to_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    call = OneCall(torch.atleast_3d, (torch.ones(2, 3, 4),), {})
    assert outcome_of(call) == ""
    facts = {name: facts for name, facts in operators.load_facts().items() if name != "aten::atleast_3d"}
    monkeypatch.setattr(operators, "load_facts", lambda: facts)
    assert "shares storage" in (outcome_of(call) or "")
