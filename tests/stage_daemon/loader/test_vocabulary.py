"""What the daemon reads of operators.txt: rules that exist, and arguments that the operators take."""

from __future__ import annotations

import torch

from stage_daemon.loader.vocabulary import OperatorFacts, facts_of, rows
from stage_daemon.worker.profile.indices import RULES


def test_rules_are_those_that_there_are() -> None:
    assert {facts_of(name).indices for _, name, _, _ in rows()} == {"", *RULES}


def test_evaluation_sets_an_argument_of_the_operator() -> None:
    set_in_evaluation = [(name, overload) for _, name, overload, _ in rows() if facts_of(name).evaluation]
    assert set_in_evaluation
    for name, overload in set_in_evaluation:
        function = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload)
        types = {argument.name: str(argument.type) for argument in function._schema.arguments}
        argument, value = facts_of(name).evaluation
        assert types[argument] in (type(value).__name__, f"Optional[{type(value).__name__}]"), name


def test_an_operator_has_the_facts_of_its_row() -> None:
    assert facts_of("aten::dropout") == OperatorFacts(returns_argument=True, evaluation=("train", False))
    assert facts_of("aten::scaled_dot_product_attention") == OperatorFacts(
        evaluation=("dropout_p", 0.0), arithmetic=True
    )
    assert facts_of("aten::index_add_") == OperatorFacts(indices="along")
    assert facts_of("aten::detach") == OperatorFacts(detaches=True)
    assert facts_of("aten::add") == facts_of("aten::unheard_of") == OperatorFacts()
