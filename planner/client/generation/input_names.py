"""What the inputs of a language model's graph are called, and what the graph says of their sizes."""

from __future__ import annotations

from planner.graph.expression import Expression, SymbolReference
from planner.graph.ir import Graph, Value, ValueReference

IDS, MASK, POSITIONS, CACHE_POSITION = "input_ids", "attention_mask", "position_ids", "cache_position"
SLOT, ROWS = "slot", "beam_idx"
DECODED, MASK_OF_DECODER = "decoder_input_ids", "decoder_attention_mask"
# What a decoder with a cache is given of its encoder, and where that goes.
STATES, STATES_POSITION = "encoder_hidden_states", "encoder_position"


def num_slots(graph: Graph) -> int:
    """As many as the numbers that its input may have."""
    slot = _input_of(graph, SLOT)
    upper = _upper(graph, slot.expression if slot is not None else None)
    return 1 if upper is None else 1 + upper


def largest(graph: Graph, name: str, axis: int = 0) -> int:
    """The most that an input's dimension may be; 0 without it."""
    value = _input_of(graph, name)
    dim = value.dims[axis] if value is not None and len(value.dims) > axis else 0
    return dim if isinstance(dim, int) else _upper(graph, dim) or 0


def fixed_rows(graph: Graph, name: str) -> int | None:
    """Of an input [rows, ...]; None where their number may change."""
    value = _input_of(graph, name)
    rows = value.dims[0] if value is not None and value.dims else None
    return rows if isinstance(rows, int) else None


def _upper(graph: Graph, number: Expression | None) -> int | None:
    return next((one.upper for one in graph.symbols if number == SymbolReference(one.id)), None)


def _input_of(graph: Graph, name: str) -> Value | None:
    """None where it has no such input."""
    content = next((entry.content for entry in graph.inputs if entry.name == name), None)
    return graph.values_by_id()[content.value_id] if isinstance(content, ValueReference) else None
