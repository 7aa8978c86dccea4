"""`export` warns where the captured program gives other numbers than the module, and leaves the module as it was."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from planner.client.export import example_runs, export
from planner.errors import PlannerWarning

FEATURES = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


class Asks(nn.Module):
    """Goes another way where it is captured, by `difference` of what it gives."""

    def __init__(self, difference: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=dtype)
        self.factor = 1.0 + difference

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.linear(features)
        return {"same": hidden, "logits": hidden * (self.factor if torch.compiler.is_exporting() else 1.0)}


def told_by(module: nn.Module, *args: torch.Tensor, compare: bool = True, dynamic_shapes: Any = None) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        export(module, args, compare=compare, dynamic_shapes=dynamic_shapes)
    return [str(one.message) for one in told if issubclass(one.category, PlannerWarning)]


def test_it_names_the_output_and_how_far_it_is_off() -> None:
    module = Asks(0.5)
    largest = float(module(FEATURES)["logits"].detach().abs().max())

    (told,) = told_by(module, FEATURES)

    assert "Asks: on the example inputs" in told
    assert f"output['logits'] is off by {0.5 * largest:.2g}, its largest value being {1.5 * largest:.2g}" in told


def test_of_several_outputs_the_one_is_told_that_is_farthest_off_for_its_size() -> None:
    def body(features: torch.Tensor) -> dict[str, torch.Tensor]:
        is_off = torch.compiler.is_exporting()
        return {"large": features * (1000 + is_off), "small": features * (1 + is_off)}

    (told,) = told_by(Draws(body), FEATURES)

    assert "output['small'] is off by 1, its largest value being 2" in told


def test_it_is_told_at_the_line_that_exports() -> None:
    with pytest.warns(PlannerWarning) as told:
        export(Asks(0.5), (FEATURES,))

    assert [one.filename for one in told if issubclass(one.category, PlannerWarning)] == [__file__]


@pytest.mark.parametrize(
    ("difference", "dtype", "is_told"),
    [
        (1e-5, torch.float32, False),
        (1e-3, torch.float32, True),
        (1e-3, torch.bfloat16, False),
        (0.5, torch.bfloat16, True),
        (1e-5, torch.float64, True),
    ],
)
def test_what_other_roundings_explain_is_not_told(difference: float, dtype: torch.dtype, is_told: bool) -> None:
    assert bool(told_by(Asks(difference, dtype), FEATURES.to(dtype))) == is_told


def test_it_can_be_left_out() -> None:
    assert told_by(Asks(0.5), FEATURES, compare=False) == []


class Counts(nn.Module):
    """Writes a buffer and its input in place, and reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))
        self.last: torch.Tensor | None = None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        if not torch.compiler.is_exporting():
            self.last = features
        features.mul_(2)
        normed = self.norm(features)
        self.mean.copy_(normed.mean(0))
        return normed * self.calls


def test_buffers_attributes_and_inputs_are_as_they_were() -> None:
    module, features = Counts().train(), FEATURES.clone()
    states = {name: one.clone() for name, one in module.state_dict().items()}
    buffers = dict(module.named_buffers())

    assert told_by(module, features) == []

    assert all(torch.equal(one, states[name]) for name, one in module.state_dict().items())
    assert all(buffers[name] is one and not one.requires_grad for name, one in module.named_buffers())
    assert module.last is None
    assert torch.equal(features, FEATURES)


class Remembers(nn.Module):
    """Works its tables out in the first call, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None
        self.tables: dict[str, Any] = {"by size": {}, "all": []}

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        by_size = self.tables["by size"]
        if features.shape[1] not in by_size:
            by_size[features.shape[1]] = torch.arange(features.shape[1])
            self.tables["all"].append(by_size[features.shape[1]])
            self.register_buffer("bias", torch.ones(features.shape[1]), persistent=False)
        self.last = self.bias * by_size[features.shape[1]]
        return features + self.last


@pytest.mark.filterwarnings("ignore:The tensor attribute")
@pytest.mark.parametrize("compare", [True, False])
def test_what_a_forward_keeps_for_the_next_is_not_kept_of_an_export(compare: bool) -> None:
    module = Remembers()

    assert told_by(module, FEATURES, compare=compare) == []

    assert module.last is None
    assert module.tables == {"by size": {}, "all": []}
    assert not list(module.buffers())
    assert torch.equal(module(FEATURES), FEATURES + torch.arange(4))


class Draws(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        drawn: torch.Tensor = self.body(features)
        return drawn


def dropout(features: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(features, 0.5)


def noise_beside_the_capture(features: torch.Tensor) -> torch.Tensor:
    return features + (0.0 if torch.compiler.is_exporting() else torch.rand(()))


def noise_in_the_capture(features: torch.Tensor) -> torch.Tensor:
    return features + (torch.rand(()) if torch.compiler.is_exporting() else 0.0)


def noise_from_a_seed_of_its_own(features: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return features + torch.rand(())


def mask_beside_dropout(features: torch.Tensor) -> torch.Tensor:
    return dropout(features if torch.compiler.is_exporting() else features.relu())


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        (dropout, False),
        (noise_beside_the_capture, True),
        (noise_in_the_capture, True),
        (noise_from_a_seed_of_its_own, True),
        (mask_beside_dropout, True),
    ],
)
def test_what_draws_random_numbers_is_compared_from_one_seed_and_takes_none_of_the_callers(
    body: Any, is_told: bool
) -> None:
    torch.manual_seed(3)
    generator = torch.get_rng_state()

    assert bool(told_by(Draws(body), FEATURES)) == is_told
    assert torch.equal(torch.get_rng_state(), generator)


def noise_from_the_seed_that_most_take(features: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return features + torch.rand(())


def test_a_forward_that_sets_the_usual_seed_is_told() -> None:
    assert "Or it sets the seed" in told_by(Draws(noise_from_the_seed_that_most_take), FEATURES)[0]


def noise_from_ever_another_seed(features: torch.Tensor) -> torch.Tensor:
    """Two of one value each may be as close as roundings are, one time in many."""
    if not torch.compiler.is_exporting():
        torch.seed()
    return features + torch.rand(features.shape)


def test_what_does_not_agree_with_itself_is_not_compared() -> None:
    assert told_by(Draws(noise_from_ever_another_seed), FEATURES) == []


def runs_only_when_captured(features: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_exporting():
        raise RuntimeError("no kernel for this machine")
    return features * 2


def test_what_does_not_run_here_is_exported_all_the_same() -> None:
    assert told_by(Draws(runs_only_when_captured), FEATURES) == []


def not_a_number(features: torch.Tensor) -> torch.Tensor:
    return features.log() if torch.compiler.is_exporting() else features.abs().log()


def test_a_program_that_does_not_run_is_told() -> None:
    """torch.export looks at no dtypes of a matrix product, and at no index."""
    with pytest.warns(PlannerWarning, match="Linear: .* cannot be run on the example inputs here.* must have the same"):
        export(nn.Linear(4, 4), (torch.ones(3, 4, dtype=torch.float64),))
    with pytest.warns(
        PlannerWarning, match="Embedding: .* only if their devices make the difference: IndexError: index"
    ):
        export(nn.Embedding(4, 4), (torch.tensor([1, 7]),))


def test_numbers_that_are_none_count_where_only_one_has_them() -> None:
    assert "is off by inf" in told_by(Draws(not_a_number), FEATURES)[0]
    assert told_by(Draws(torch.log), FEATURES) == []
    assert told_by(Draws(lambda features: features / 0.0), FEATURES) == []


def test_another_shape_is_told() -> None:
    body = lambda features: features if torch.compiler.is_exporting() else features[:2]  # noqa: E731

    assert "is off by inf" in told_by(Draws(body), FEATURES)[0]


def test_nothing_runs_for_a_module_on_meta() -> None:
    with torch.device("meta"):
        module = Asks(0.5)

    assert told_by(module, FEATURES.to("meta")) == []


class Cools(nn.Module):
    """Each call is colder than the one before, as it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = nn.Module()
        self.schedule.calls = 0  # type: ignore[assignment]
        self.schedule.seen = {"rows": []}  # type: ignore[assignment]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.schedule.calls += 1  # type: ignore[operator]
        self.schedule.seen["rows"].append(features.shape[0])  # type: ignore[index]
        return features * 0.9**self.schedule.calls  # type: ignore[operator]


def test_numbers_that_change_from_call_to_call_are_told_by_what_they_are_counted_in() -> None:
    module = Cools()

    (told,) = told_by(module, FEATURES)

    assert (
        "Cools: on the same inputs, output is off by 0.09 from one call to another, its largest value being 0.9" in told
    )
    assert "The forward keeps schedule.calls, schedule.seen in Python" in told
    assert module.schedule.calls == 0
    assert module.schedule.seen == {"rows": []}


class Tallies(Cools):
    """Beside what a program holds too: where torch's random numbers begin, and a buffer that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule.register_buffer("factor", torch.ones(()))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        super().forward(features)
        self.schedule.factor = self.schedule.factor * 0.9
        return nn.functional.dropout(features) * self.schedule.factor


def test_what_is_counted_for_nothing_that_is_computed_is_not_told() -> None:
    assert told_by(Tallies(), FEATURES) == []


@pytest.mark.parametrize(
    "body",
    [
        lambda features: features if random.random() < 0.5 else -features,
        lambda features: nn.functional.dropout(features) * np.random.uniform(1, 2),
    ],
    ids=["Python", "numpy"],
)
def test_what_python_draws_is_told(body: Any) -> None:
    """From a seed: nine calls may draw the same half by chance."""
    random.seed(3)
    np.random.seed(3)

    (told,) = told_by(Draws(body), FEATURES)

    assert (
        "The forward draws Python's or numpy's random numbers, and what torch.export captured has what it met" in told
    )


def test_what_python_draws_for_nothing_is_not_told() -> None:
    def body(features: torch.Tensor) -> torch.Tensor:
        return features * 2 if random.random() < 1 else features

    assert told_by(Draws(body), FEATURES) == []


def test_numbers_of_the_caller_go_on_as_if_nothing_had_run() -> None:
    def body(features: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return features * (random.random() + np.random.rand())

    def drawn() -> tuple[Any, ...]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    def seed() -> None:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)

    seed()
    expected = drawn()
    seed()
    export(Draws(body), (FEATURES,), compare=False)
    assert drawn() == expected
    seed()
    told_by(Draws(body), FEATURES)
    assert drawn() == expected


class Detaches(nn.Module):
    """Gives the same where it is captured, and stops gradients there."""

    def __init__(self, finish: Any = torch.softmax) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.finish = finish

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = self.first(features)
        out: torch.Tensor = self.finish(self.last(hidden.detach() if torch.compiler.is_exporting() else hidden), -1)
        return out


def test_in_training_it_names_the_gradient_that_is_off() -> None:
    module = Detaches().train()
    module.last.bias.grad, before = torch.ones(4), {name: one.clone() for name, one in module.state_dict().items()}

    (told,) = told_by(module, FEATURES)

    assert "Detaches: on the example inputs, what torch.export captured is trained otherwise than the module" in told
    assert "the gradient of first." in told
    assert told_by(module.eval(), FEATURES) == []
    assert told_by(module.train().requires_grad_(False), FEATURES) == []
    assert module.first.weight.grad is None
    assert torch.equal(module.last.bias.grad, torch.ones(4))
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


@pytest.mark.parametrize(("most_bytes", "is_told"), [(351, False), (352, True)])
def test_gradients_that_would_need_much_memory_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, is_told: bool
) -> None:
    """Two layers of 80 bytes each, and what four calls make of three rows, as many as the example has: 48 each."""
    monkeypatch.setattr(example_runs, "_MAX_TRAINED_BYTES", most_bytes)
    module = Detaches().train()

    assert bool(told_by(module, FEATURES, dynamic_shapes=({0: Dim("rows", max=1 << 30)},))) == is_told


class Doubled(torch.autograd.Function):
    """Whose backward is another one where it is captured."""

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor) -> torch.Tensor:
        return features * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * (3 if torch.compiler.is_exporting() else 2)


class Clamped(Doubled):
    """The same in both, and not what autograd would make of its forward."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].clamp(-0.1, 0.1)


@pytest.mark.parametrize(("function", "is_told"), [(Doubled, True), (Clamped, False)])
def test_gradients_of_custom_functions_are_compared(function: type[torch.autograd.Function], is_told: bool) -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.last(function.apply(self.first(features)))
            return hidden

    told = told_by(Calls().train(), FEATURES)
    assert [one for one in told if "gradient of first." in one] == told
    assert bool(told) == is_told


def test_gradients_of_nothing_but_roundings_are_the_same() -> None:
    """Of a bias before a norm, which takes it away again."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, features: torch.Tensor) -> Any:
            linear = self.linear
            exporting = torch.compiler.is_exporting()
            hidden = linear(features) if exporting else (linear.weight @ features.t()).t() + linear.bias
            return self.norm(hidden)

    assert told_by(Normed().train(), FEATURES) == []


class Averages(nn.Module):
    """A teacher of parameters that follow those of what it teaches, in a region of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for one, other in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                other.mul_(0.9).add_(one, alpha=0.1)
        out: torch.Tensor = self.student(features) - self.teacher(features)
        return out


@pytest.mark.parametrize("training", [False, True])
def test_parameters_that_a_forward_writes_are_as_they_were(training: bool) -> None:
    module = Averages().train(training)
    before = {name: one.clone() for name, one in module.state_dict().items()}

    assert told_by(module, FEATURES) == []

    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


class ForgetsToCount(nn.Module):
    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.calls, self.mean = nn.Buffer(torch.tensor(3)), nn.Buffer(torch.ones(4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting():
            (self.calls if self.counts else self.mean).add_(1)
        return 2 * features


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_it_names_the_buffer_that_a_call_leaves_otherwise(counts: bool, training: bool) -> None:
    module = ForgetsToCount(counts=counts).train(training)

    (told,) = told_by(module, FEATURES)

    name = (
        "'calls' is off by 1, its largest value being 4" if counts else "'mean' is off by 1, its largest value being 2"
    )
    assert f"buffer {name}" in told
    assert "Somewhere the forward writes it in a way that torch.export does not capture" in told
    assert int(module.calls) == 3
    assert torch.equal(module.mean, torch.ones(4))
