"""`make test` draws the same examples each time; a fuzzing seed draws others, and the same for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import random_examples as module
from tests.random_examples import random_examples, random_seeds


def drawn(count: int = 5) -> list[int]:
    numbers: list[int] = []

    @random_examples(count)
    @given(number=st.integers(0, 10**12))
    def test(number: int) -> None:
        numbers.append(number)

    test()
    return numbers


def test_examples_are_the_same_without_a_seed() -> None:
    assert drawn() == drawn()
    assert len(drawn(7)) == 7


def test_a_seed_draws_others_and_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = drawn()
    monkeypatch.setattr(module, "FUZZ_FACTOR", 3)
    monkeypatch.setattr(module, "FUZZ_SEED", 1)
    first = drawn()
    assert len(first) == 15
    assert first == drawn()
    assert not set(first) & set(fixed) - {0}
    monkeypatch.setattr(module, "FUZZ_SEED", 2)
    assert first != drawn()


def test_a_factor_alone_adds_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = drawn(), random_seeds(4)
    monkeypatch.setattr(module, "FUZZ_FACTOR", 3)
    more = drawn()
    assert len(more) == 15
    assert more == drawn()
    assert set(fixed[0]) & set(more)
    assert random_seeds(4) == range(12)
    assert set(fixed[1]) < set(random_seeds(4))


def test_seeds_of_two_fuzzing_runs_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert random_seeds(4) == range(4)
    monkeypatch.setattr(module, "FUZZ_FACTOR", 100)
    monkeypatch.setattr(module, "FUZZ_SEED", 1)
    first = random_seeds(40)
    monkeypatch.setattr(module, "FUZZ_SEED", 2)
    assert len(first) == 4000
    assert not set(first) & set(random_seeds(40))


def test_what_draws_at_random_is_marked_for_fuzzing() -> None:
    @random_examples(1)
    @given(st.none())
    def test(_: None) -> None: ...

    assert [mark.name for mark in test.pytestmark if mark.name == "fuzz"] == ["fuzz"]
