"""operators.txt: each fact is one that its head explains and a service reads, and says the same of every overload."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from importlib.resources import files

from planner.cost.flops import FORMULAS
from planner.graph.operators import OperatorFacts, facts_of

TEXT = files("protos.v1").joinpath("operators.txt").read_text(encoding="utf-8")
ROWS = [line.split() for line in TEXT.splitlines() if not line.startswith("#")]
# The stage daemon's: tests/stage_daemon/loader/test_vocabulary.py.
OF_THE_DAEMON = {"indices", "evaluation", "arithmetic"}


def words_of(row: list[str]) -> list[str]:
    return row[3:] if row[0] == "aten" else row[2:]


def explained() -> set[str]:
    """The first word of each line of the head's second paragraph."""
    paragraph = TEXT.split("#\n")[1].split("\naten", maxsplit=1)[0]
    return {line.split()[1].partition("=")[0] for line in paragraph.splitlines()}


def test_every_fact_is_explained_and_read() -> None:
    used = {word.partition("=")[0] for row in ROWS for word in words_of(row)}
    assert used == explained()
    assert used == {field.name for field in fields(OperatorFacts)} | OF_THE_DAEMON


def test_overloads_of_a_name_say_the_same() -> None:
    facts_of = defaultdict(set)
    for row in ROWS:
        facts_of[row[1]].add(tuple(words_of(row)))
    assert {name: facts for name, facts in facts_of.items() if len(facts) > 1} == {}


def test_no_row_is_there_twice() -> None:
    names = [tuple(row[: 3 if row[0] == "aten" else 2]) for row in ROWS]
    assert len(set(names)) == len(names)


def test_values_are_those_that_are_read() -> None:
    facts = [facts_of(row[1]) for row in ROWS]
    assert {one.flops for one in facts} == {"", *FORMULAS}
    assert {one.reads for one in facts} == {"", "rows", "bags", "experts"}
    assert {one.copies for one in facts} == {"", "strided", "restrided"}
    assert {one.returned_positions for one in facts} == {(), (0,), (1,)}
    assert {one.saves for one in facts} == {"", "nothing", "inputs", "outputs"}
    assert {one.keeps for one in facts} == {"", "noise", "indices"}
    assert {one.reduction for one in facts} == {"", "2", "3", "4", "5", "7"}


def test_an_operator_has_the_facts_of_its_row() -> None:
    assert facts_of("aten::linear") == OperatorFacts(flops="linear", saves="inputs")
    assert facts_of("aten::einsum") == OperatorFacts(flops="einsum", returns="1", lone_operand=True)
    assert facts_of("aten::detach") == OperatorFacts(detaches=True)
    assert facts_of("aten::add") == OperatorFacts(saves="nothing")
    assert facts_of("add") == facts_of("aten::unheard_of") == OperatorFacts()
