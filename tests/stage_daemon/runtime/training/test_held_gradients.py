"""Gradients whose norm is told before they are applied: the step is the same as one that nobody asked about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from planner.client.training import Checkpointing, LossScaling, Trainer
from planner.errors import Conflict, InvalidArgument
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.training.mail import Mail
from tests.stage_daemon.runtime.training.test_checkpoints import MODULES
from tests.stage_daemon.runtime.training.test_copies import cluster_of
from tests.stage_daemon.runtime.training.trainers import SavedHere, trainer_on

ALONE = ((0, 1), ())
PLACES: dict[str, list[tuple[Sequence[int], Sequence[Sequence[int]]]]] = {
    "layers": [ALONE, ((0, 1), ((2,), (3,)))],
    "tied": [((0, 0, 1), ((2,), (), ())), ((0, 1, 2), ((3,), (), (4, 5)))],
}


def apply_steps(trainer: Trainer, name: str, *, asks: bool, num_steps: int = 3) -> list[float]:
    """The norms that are told, of two batches each, by other factors."""
    norms = []
    for number in range(num_steps):
        for part in range(2):
            trainer.accumulate(*MODULES[name][1](6, 10 * number + part))
        factor = (0.5, -2.0, 1.0)[number]
        asked = trainer.gradient_norm() * abs(factor) if asks else None
        told = trainer.apply(gradient_factor=factor).gradient_norm
        assert asked in (None, told)
        norms.append(told)
    return norms


@pytest.mark.parametrize(("name", "places"), [(name, one) for name, places in PLACES.items() for one in places])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.4}, {"loss_scaling": LossScaling(initial=64.0)}])
def test_a_step_that_was_asked_about_is_the_same(
    name: str, places: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {}
    for asks in (True, False):
        trainer, _ = trainer_on(cluster_of(name, *places), "adamw:lr=0.01", monkeypatch, **options)
        told[asks] = apply_steps(trainer, name, asks=asks), trainer.state_dict()
    (norms, states), (expected, expected_states) = told[True], told[False]
    assert norms == expected
    assert min(norms) > 0.0
    for state, tensor in expected_states.items():
        assert torch.equal(states[state], tensor)


def test_what_was_heard_of_the_norm_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that a message has come in is written again before the step is applied."""
    heard: list[torch.Tensor] = []
    receive = Mail.receive

    def heeded(mail: Mail, *message: Any) -> Any:
        parcel, num_bytes = receive(mail, *message)
        heard.extend(one for one in parcel.items if isinstance(one, torch.Tensor) and one.is_floating_point())
        return parcel, num_bytes

    states = {}
    for is_written in (True, False):
        trainer, _ = trainer_on(cluster_of("layers", *PLACES["layers"][1]), "sgd:lr=0.1", monkeypatch, clip_norm=0.1)
        monkeypatch.setattr(Mail, "receive", heeded)
        trainer.accumulate(*MODULES["layers"][1](6, 1))
        trainer.gradient_norm()
        assert heard
        for tensor in heard if is_written else ():
            tensor.detach().fill_(float("nan"))
        trainer.apply()
        states[is_written] = trainer.state_dict()
        monkeypatch.setattr(Mail, "receive", receive)
        heard.clear()
    assert all(torch.equal(states[True][name], one) for name, one in states[False].items())


def test_a_norm_does_not_wait_for_what_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_on(cluster_of("layers", *PLACES["layers"][1]), "sgd:lr=0.1", monkeypatch)
    before = trainer.state_dict()
    trainer.accumulate(*MODULES["layers"][1](6, 1))
    norm = trainer.gradient_norm()
    trainer.discard()
    assert all(torch.equal(before[name], one) for name, one in trainer.state_dict().items())
    trainer.accumulate(*MODULES["layers"][1](6, 1))
    assert trainer.gradient_norm() == norm
    with pytest.raises(Conflict, match="apply or discard it before the next batch"):
        trainer.accumulate(*MODULES["layers"][1](6, 2))


def test_daemons_refuse_more_batches_behind_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies hold the sum of all by then, and a second sum would count each of them again."""
    trainer, streams = trainer_on(cluster_of("layers", *PLACES["layers"][1]), "sgd:lr=0.1", monkeypatch)
    trainer.accumulate(*MODULES["layers"][1](6, 1))
    trainer.gradient_norm()
    for more in (
        stage_daemon_pb2.TrainingStep(first_microbatch=4, weights=[1.0], is_partial=True),
        stage_daemon_pb2.TrainingStep(first_microbatch=4, is_held=True),
    ):
        more.number, more.learning_rates[:] = 1, [0.1]
        request = stage_daemon_pb2.TrainRequest(step=more)
        with pytest.raises(InvalidArgument, match="they can be applied or forgotten"):
            streams.ask(dict.fromkeys(streams.device_ids, request))
    assert trainer.apply().applied


def test_a_generation_that_is_lost_between_norm_and_step_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trainer_on(cluster_of("layers", *ALONE), "adamw:lr=0.01", monkeypatch)
    norms = apply_steps(expected, "layers", asks=False)
    clusters = [cluster_of("layers", *ALONE) for _ in range(2)]
    checkpoints = Checkpointing(run="run", every=10)
    trainer, streams = trainer_on(
        clusters[0], "adamw:lr=0.01", monkeypatch, saved=SavedHere(), later=clusters[1:], checkpoints=checkpoints
    )
    trainer.save().result()
    first = trainer.accumulate(*MODULES["layers"][1](6, 0))
    assert first.loss > 0.0
    trainer.accumulate(*MODULES["layers"][1](6, 1))
    trainer.gradient_norm()
    streams.lost_at = 0
    assert trainer.apply(gradient_factor=0.5).gradient_norm == norms[0]
    assert trainer.num_steps == 1
