"""The text of a choice: what it means, and that whatever else it says is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.client.outputs import ChosenOutput, choose_outputs
from planner.errors import InvalidArgument
from planner.graph.ir import Dtype, Graph, Output, TreeDict, TreeLeaf, Value, ValueKind, ValueReference
from protos.v1 import stage_daemon_pb2
from stage_daemon.worker.choices_wire import choices_from_proto
from tests.random_examples import random_examples


def graph(**outputs: Value) -> Graph:
    return Graph(
        torch_version="2.13.0",
        name="g",
        values=tuple(outputs.values()),
        outputs=tuple(
            Output(name=name.replace("_", "."), content=ValueReference(value.id)) for name, value in outputs.items()
        ),
        output_tree=TreeDict(tuple(outputs), tuple(TreeLeaf() for _ in outputs)),
    )


def tensor(number: int, *dims: int, dtype: Dtype = Dtype.FLOAT32) -> Value:
    return Value(id=number, kind=ValueKind.TENSOR, dtype=dtype, dims=dims, name=f"v{number}")


GRAPH = graph(
    logits=tensor(1, 4, 6, 10),
    cache_0=tensor(2, 3, dtype=Dtype.BFLOAT16),
    count=Value(id=3, kind=ValueKind.SYM_INT, name="count"),
    mask=tensor(4, 4, dtype=Dtype.BOOL),
)


def chosen(text: str, of: Graph = GRAPH) -> ChosenOutput:
    [choice] = choose_outputs(of, [text])
    return choice


def test_outputs_are_chosen_by_name_in_the_order_given() -> None:
    choices = choose_outputs(GRAPH, ["count", "cache.0", "logits"])
    assert [(choice.text, choice.index, choice.dtype) for choice in choices] == [
        ("count", 2, None),
        ("cache.0", 1, Dtype.BFLOAT16),
        ("logits", 0, Dtype.FLOAT32),
    ]


@pytest.mark.parametrize(
    ("text", "dims", "argmax_dim"),
    [
        ("logits[:, -1]", (slice(None, None, 1), -1), None),
        ("logits[ 1:3 , ::2, -5:]", (slice(1, 3, 1), slice(None, None, 2), slice(-5, None, 1)), None),
        ("logits[:, -1].argmax(-1)", (slice(None, None, 1), -1), -1),
        ("logits.argmax(dim=2)", (), 2),
    ],
)
def test_of_a_tensor_a_part(text: str, dims: tuple[Any, ...], argmax_dim: int | None) -> None:
    choice = chosen(text)
    assert (choice.dims, choice.argmax_dim) == (dims, argmax_dim)
    assert choice.dtype is (Dtype.FLOAT32 if argmax_dim is None else Dtype.INT64)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loss", "'loss' is none of the graph's; it gives logits, cache.0, count, mask"),
        ("logits[:, -1", "none of the graph's"),
        ("logits.__class__", "none of the graph's"),
        ("logits[:, -1].max(-1)", "none of the graph's"),
        ("logits[x]", "'x' is no index and no slice"),
        ("logits[]", "'' is no index and no slice"),
        ("logits[::0]", "step 0"),
        ("logits[0, 0, 0, 0]", "names 4 dimensions of 3"),
        ("logits[0].argmax(2)", "argmax over dimension 2 of 2"),
        (f"logits[{'9' * 5000}]", "beyond any dimension"),
        ("count[0]", "one number"),
        ("mask.argmax(0)", "no argmax of bool"),
    ],
)
def test_what_cannot_be_chosen_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        chosen(text)


def test_a_choice_is_made_once_and_in_a_sequence() -> None:
    with pytest.raises(InvalidArgument, match="'logits' is chosen twice"):
        choose_outputs(GRAPH, ["logits", "count", "logits"])
    with pytest.raises(InvalidArgument, match="needs a sequence"):
        choose_outputs(GRAPH, "logits")


def test_the_longest_name_that_fits_is_meant() -> None:
    nested = Graph(
        torch_version="2.13.0",
        name="g",
        values=(tensor(1, 2, 2), tensor(2, 3)),
        outputs=(Output(name="a", content=ValueReference(1)), Output(name="a[0]", content=ValueReference(2))),
        output_tree=TreeDict(("a", "b"), (TreeLeaf(), TreeLeaf())),
    )
    assert chosen("a[0]", nested).index == 1
    assert (chosen("a[1]", nested).index, chosen("a[1]", nested).dims) == (0, (1,))
    assert chosen("a[0][1]", nested).dims == (1,)


BOUNDS = st.none() | st.integers(-4, 4)
PARTS = st.integers(-2, 1) | st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(1, 3))


def written(part: int | slice) -> str:
    if isinstance(part, int):
        return str(part)
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends) + ("" if part.step is None else f":{part.step}")


@random_examples(60)
@given(st.lists(PARTS, min_size=1, max_size=3), st.booleans())
def test_a_daemon_takes_the_part_that_python_would(parts: list[int | slice], argmax: bool) -> None:
    """From the text over the wire to the tensor: as the expression in Python."""
    whole = torch.arange(2 * 3 * 4).reshape(2, 3, 4) % 7
    expected = whole[tuple(parts)]
    argmax = argmax and expected.dim() > 0 and expected.numel() > 0
    text = f"x[{', '.join(map(written, parts))}]" + (".argmax(-1)" if argmax else "")
    opened = stage_daemon_pb2.OpenSession()
    chosen(text, graph(x=tensor(1, 2, 3, 4, dtype=Dtype.INT64))).fill(opened.outputs.add())
    [choice] = choices_from_proto(opened.outputs, num_outputs=1)
    assert torch.equal(choice.of([whole]), expected.argmax(-1) if argmax else expected)  # type: ignore[arg-type]
