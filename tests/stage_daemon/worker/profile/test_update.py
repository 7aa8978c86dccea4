"""What a profile runs of a step's end: each trained state once, on gradients of one microbatch, changing nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from stage_daemon.worker.profile import update
from stage_daemon.worker.profile.clock import Effort
from stage_daemon.worker.profile.rehearsal import trained_program
from stage_daemon.worker.profile.update import UpdateSeconds, rehearse_update
from stage_daemon.worker.profile.values import ValueTable
from tests.stage_daemon.worker.profile.test_rehearsal import CPU, ScriptedMarks, message_of


class Tied(nn.Module):
    """Ten layers of one shape, the last with the first one's weight; another that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(10))
        self.layers[9].weight = self.layers[0].weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.frozen(x).sum()


def test_norms_and_steps_are_of_each_trained_state_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = message_of(Tied(), torch.ones(2, 4))
    program = trained_program(graph, ValueTable(graph, {}), CPU)
    before = {name: state.clone() for name, state in program.module.states().items()}
    marks = ScriptedMarks([100.0, 100.0], [1.0, 4.0], [2.0, 5.0], [3.0, 6.0])
    monkeypatch.setattr(update, "marks_on", lambda _: marks)
    rounds: list[None] = []
    seconds = rehearse_update(graph, program, CPU, Effort(repetitions=3), lambda: rounds.append(None))
    # The first round warms up.
    assert seconds == UpdateSeconds(norms=2.0, optimizer=5.0)
    assert len(rounds) == 4
    assert set(marks.num_marks) == {3}
    for name, state in program.module.states().items():
        assert torch.equal(state, before[name])


def test_tied_states_count_once_and_frozen_ones_not() -> None:
    graph = message_of(Tied(), torch.ones(2, 4))
    weights = update._weights(graph, trained_program(graph, ValueTable(graph, {}), CPU))
    assert sorted(name for weight in weights for name in weight.names) == [f"layers.{i}.weight" for i in range(9)]


def test_what_stands_for_several_states_is_stepped_as_often() -> None:
    graph = message_of(Tied(), torch.ones(2, 4))
    first, *others = update._weights(graph, trained_program(graph, ValueTable(graph, {}), CPU))
    alike = [replace(first, names=(name,)) for name in ("second", "third")]
    several = list(update._without_repeats([first, *others, *alike]))
    assert [[weight.names[0] for weight in weights] for weights in several[1:]] == [["second"], ["third"]]
    assert len(several[0]) == 9
