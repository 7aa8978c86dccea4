"""What operators.txt says that backward passes keep, against what torch keeps of its own sample inputs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from planner.graph.operators import facts_of, load_vocabulary

SAMPLES = 4
# Of operators of graphs.
NAMESAKES = ("masked.", "sparse.")
# Means, deviations and the like, which are kept beside.
FEW_BYTES = 64


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def storages(tensors: Iterator[torch.Tensor]) -> dict[int, int]:
    """Bytes by address."""
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


def too_much(operator: Any, sample: Any, name: str) -> int:
    """Bytes that the backward pass of this call keeps beyond what the table allows."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        made = operator(sample.input, *sample.args, **sample.kwargs)
    facts = facts_of(f"aten::{name}")
    given = [sample.input, sample.args, list(sample.kwargs.values())]
    allowed = storages(tensors_in(given)) if facts.saves_inputs else {}
    if facts.saves_outputs:
        allowed |= storages(tensors_in(made))
    within = bytes_within(facts.keeps, next(tensors_in(made)))
    return sum(storages(iter(kept)).values()) - sum(allowed.values()) - within - FEW_BYTES


def bytes_within(keeps: str, result: torch.Tensor) -> int:
    return {"": 0, "noise": result.nbytes, "indices": 8 * result.numel()}[keeps]


@pytest.mark.services
def test_no_operator_keeps_more_than_its_row_says() -> None:
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds to import

    names = {name.removeprefix("aten::") for _, name, _ in load_vocabulary() if facts_of(name).saves}
    num_samples: Counter[str] = Counter()
    for operator in op_db:
        name = next((one for one in (operator.aten_name, operator.name.rpartition(".")[2]) if one in names), None)
        if name is None or not operator.supports_autograd or operator.name.startswith(NAMESAKES):
            continue
        supported = operator.supported_dtypes("cpu")
        dtype = next((one for one in (torch.float32, torch.complex64) if one in supported), None)
        if dtype is None:
            continue
        torch.manual_seed(0)
        # Not `sample_inputs`, which first looks through the whole stack for who calls it.
        samples = operator.sample_inputs_func(operator, "cpu", dtype, requires_grad=True)
        # Of an uneven padding "same" a copy is made first, which is a little larger than the input.
        usual = (one for one in samples if one.kwargs.get("padding") != "same")
        for sample in itertools.islice(usual, SAMPLES):
            num_samples[name] += 1
            assert too_much(operator, sample, name) <= 0, (name, sample.input, sample.args, sample.kwargs)
    assert len(num_samples) > 100, num_samples
