"""Arguments of every kind become what a call takes."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader import arguments
from stage_daemon.loader.arguments import ArgumentReader
from stage_daemon.loader.bounds import MAX_ARGUMENT_DEPTH

DEVICE = torch.device("meta")
SUBGRAPHS = [fx.Graph().placeholder("first"), fx.Graph().placeholder("second")]
READER = ArgumentReader({5: "value five"}, SUBGRAPHS, DEVICE)


def items(*arguments_: pb.Argument) -> pb.Argument:
    return pb.Argument(list=pb.ArgumentSequence(items=arguments_))


def none() -> pb.Argument:
    argument = pb.Argument()
    argument.none.SetInParent()
    return argument


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (none(), None),
        (pb.Argument(value=5), "value five"),
        (pb.Argument(integer=-3), -3),
        (pb.Argument(floating=0.5), 0.5),
        (pb.Argument(boolean=True), True),
        (pb.Argument(text="mean"), "mean"),
        (pb.Argument(dtype=pb.DTYPE_BFLOAT16), torch.bfloat16),
        (pb.Argument(device_class="cuda"), DEVICE),
        (pb.Argument(device_class="cpu"), DEVICE),
        (pb.Argument(layout=pb.LAYOUT_STRIDED), torch.strided),
        (pb.Argument(memory_format=pb.MEMORY_FORMAT_CHANNELS_LAST), torch.channels_last),
        (pb.Argument(subgraph=1), SUBGRAPHS[1]),
        (items(), []),
        (items(pb.Argument(integer=1), items(pb.Argument(value=5))), [1, ["value five"]]),
        (pb.Argument(tuple=pb.ArgumentSequence(items=[pb.Argument(integer=1), none()])), (1, None)),
    ],
    ids=str,
)
def test_each_kind(argument: pb.Argument, expected: object) -> None:
    value = READER.read("here", argument)
    assert value == expected
    assert type(value) is type(expected)


def test_a_complex_number() -> None:
    argument = pb.Argument()
    argument.complex.real, argument.complex.imaginary = 1.5, -2.0
    assert READER.read("here", argument) == complex(1.5, -2.0)
    argument.complex.imaginary = float("inf")
    with pytest.raises(InvalidGraph, match=r"^here: a complex argument is not finite"):
        READER.read("here", argument)


def nested(depth: int) -> pb.Argument:
    argument = pb.Argument(integer=1)
    for _ in range(depth):
        argument = items(argument)
    return argument


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (pb.Argument(), "an argument is empty"),
        (pb.Argument(value=6), "reads value 6, which nothing before it gives"),
        (pb.Argument(subgraph=2), "speaks of subgraph 2; the graph has 2"),
        (pb.Argument(device_class="tpu"), r"device class 'tpu', needs one of \['cpu', 'cuda', 'meta'\]"),
        (pb.Argument(dtype=99), "dtype 99"),
        (items(pb.Argument(integer=1), pb.Argument()), "an argument is empty"),
        (nested(MAX_ARGUMENT_DEPTH + 1), "nested more than 16 deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_by_name(argument: pb.Argument, words: str) -> None:
    with pytest.raises(InvalidGraph, match=f"^here: .*{words}"):
        READER.read("here", argument)


def test_the_deepest_and_longest_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    value = READER.read("here", nested(MAX_ARGUMENT_DEPTH))
    for _ in range(MAX_ARGUMENT_DEPTH):
        [value] = value
    assert value == 1
    monkeypatch.setattr(arguments, "MAX_ARGUMENT_ITEMS", 3)
    three = [pb.Argument(integer=1)] * 3
    assert READER.read("here", items(*three)) == [1, 1, 1]
    with pytest.raises(InvalidGraph, match="an argument of 4 items, at most 3 are allowed"):
        READER.read("here", items(*three, three[0]))
