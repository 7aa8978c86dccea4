"""Parts of results, by session."""

from __future__ import annotations

import pytest
import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.choices import Choice, Choices
from stage_daemon.runtime.egress import Egress, Result
from stage_daemon.transport.parcel import MicrobatchFailure
from stage_daemon.worker.choices_wire import MAX_CHOICES, MAX_DIMS, choices_from_proto

TENSOR = torch.arange(12).reshape(3, 4)


def result(session_id: int = 1) -> Result:
    return Result(session_id=session_id, sequence=1, items=(TENSOR, 7))


def test_each_session_is_given_what_it_chose() -> None:
    choices = Choices()
    choices.choose(1, (Choice(index=1), Choice(index=0, dims=(slice(None), -1))))
    choices.choose(3, (Choice(index=1),))
    number, part = choices.apply(result()).items
    assert number == 7
    assert isinstance(part, torch.Tensor)
    assert part.tolist() == [3, 7, 11]
    # A view: what is not chosen is not copied.
    assert part.data_ptr() == TENSOR[:, -1].data_ptr()
    assert choices.apply(result(session_id=2)).items == result().items
    assert choices.apply(result(session_id=3)).items == (7,)
    choices.choose(1, ())
    assert choices.apply(result()).items == result().items


@pytest.mark.parametrize(
    "choice",
    [Choice(index=0, dims=(3,)), Choice(index=0, argmax_dim=2), Choice(index=1, dims=(0,)), Choice(index=5)],
)
def test_a_part_that_is_not_there_is_a_failure_of_its_microbatch(choice: Choice) -> None:
    choices = Choices()
    choices.choose(1, (choice,))
    failed = choices.apply(result())
    assert failed.items == ()
    assert failed.failure is not None
    assert failed.failure.reason == InvalidRequest.reason


def test_a_failure_stays_what_it_is() -> None:
    choices = Choices()
    choices.choose(1, (Choice(index=0),))
    failed = Result(session_id=1, sequence=1, failure=MicrobatchFailure(reason="STAGE_FAILED", message="no"))
    assert choices.apply(failed) is failed


def test_results_are_chosen_before_they_wait() -> None:
    choices = Choices()
    choices.choose(1, (Choice(index=1),))
    egress = Egress(1, choose=choices.apply)
    egress.give(result())
    waiting = egress.take()
    assert waiting is not None
    assert waiting.items == (7,)


def test_a_message_beyond_bounds_is_refused() -> None:
    chosen = stage_daemon_pb2.ChosenOutput
    dimension, part = stage_daemon_pb2.ChosenDimension, stage_daemon_pb2.Slice
    for messages, says in (
        ([chosen(index=2)], r"outputs\[0\]: output 2 of a graph that gives 2"),
        ([chosen()] * (MAX_CHOICES + 1), "at most can be"),
        ([chosen(dims=[dimension(index=0)] * (MAX_DIMS + 1))], "at most can be named"),
        ([chosen(dims=[dimension()])], "neither an index nor a slice"),
        ([chosen(dims=[dimension(slice=part(step=0))])], "step of at least 1"),
        ([chosen(dims=[dimension(slice=part(step=2**63))])], "step of at least 1"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            choices_from_proto(messages, num_outputs=2)
