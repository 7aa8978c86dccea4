"""The program as data: what the client exported, in frozen records that know neither torch nor protobuf.

`planner.graph.check` says whether a graph is sound; these records only hold it. The fields mean what their namesakes in
protos/v1/graph.proto mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from planner.graph.expression import Expression, evaluate

SCHEMA_VERSION = 1


class OperatorKind(Enum):
    ATEN = "aten"
    HIGHER_ORDER = "higher_order"
    PYTHON = "python"
    OPAQUE = "opaque"
    # Of torch.library. Daemons run those that their operators let them.
    CUSTOM = "custom"


class ValueKind(Enum):
    TENSOR = "tensor"
    SYM_INT = "sym_int"
    SYM_FLOAT = "sym_float"
    SYM_BOOL = "sym_bool"
    OPAQUE = "opaque"


class StateKind(Enum):
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"


class Dtype(Enum):
    """Element types, by torch's own names."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    # Members are what they are identical to; Enum's own hash is a call of Python, several times for each microbatch.
    __hash__ = object.__hash__

    @property
    def facts(self) -> DtypeFacts:
        return _DTYPE_FACTS[self]

    @property
    def size_bytes(self) -> int:
        return _DTYPE_FACTS[self].size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeFacts:
    """What the planner knows of an element type; a new one is a member of Dtype and a row below.

    `safetensors` and `numpy` are its names there, "" where there is none. `rate` is the element type at whose rate a
    device computes it, as `planner.cost.device_kinds` names rates.
    """

    size_bytes: int
    safetensors: str = ""
    numpy: str = ""
    rate: str = "FLOAT32"
    differentiable: bool = False


_DTYPE_FACTS: Mapping[Dtype, DtypeFacts] = {
    Dtype.FLOAT64: DtypeFacts(size_bytes=8, safetensors="F64", numpy="<f8", rate="FLOAT64", differentiable=True),
    Dtype.FLOAT32: DtypeFacts(size_bytes=4, safetensors="F32", numpy="<f4", differentiable=True),
    Dtype.FLOAT16: DtypeFacts(size_bytes=2, safetensors="F16", numpy="<f2", rate="FLOAT16", differentiable=True),
    Dtype.BFLOAT16: DtypeFacts(size_bytes=2, safetensors="BF16", rate="FLOAT16", differentiable=True),
    Dtype.FLOAT8_E4M3FN: DtypeFacts(size_bytes=1, safetensors="F8_E4M3", rate="FLOAT8", differentiable=True),
    Dtype.FLOAT8_E5M2: DtypeFacts(size_bytes=1, safetensors="F8_E5M2", rate="FLOAT8", differentiable=True),
    Dtype.INT64: DtypeFacts(size_bytes=8, safetensors="I64", numpy="<i8"),
    Dtype.INT32: DtypeFacts(size_bytes=4, safetensors="I32", numpy="<i4"),
    Dtype.INT16: DtypeFacts(size_bytes=2, safetensors="I16", numpy="<i2"),
    Dtype.INT8: DtypeFacts(size_bytes=1, safetensors="I8", numpy="i1", rate="FLOAT8"),
    Dtype.UINT8: DtypeFacts(size_bytes=1, safetensors="U8", numpy="u1", rate="FLOAT8"),
    Dtype.BOOL: DtypeFacts(size_bytes=1, safetensors="BOOL", numpy="?"),
    Dtype.COMPLEX64: DtypeFacts(size_bytes=8, safetensors="C64", numpy="<c8", differentiable=True),
    Dtype.COMPLEX128: DtypeFacts(size_bytes=16, numpy="<c16", rate="FLOAT64", differentiable=True),
}
SAFETENSORS_DTYPES: Mapping[str, Dtype] = {
    facts.safetensors: dtype for dtype, facts in _DTYPE_FACTS.items() if facts.safetensors
}


class Layout(Enum):
    STRIDED = "strided"


class MemoryFormat(Enum):
    CONTIGUOUS = "contiguous_format"
    PRESERVE = "preserve_format"
    CHANNELS_LAST = "channels_last"
    CHANNELS_LAST_3D = "channels_last_3d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A dynamic dimension. `lower` and `upper` are inclusive; no upper bound means unbounded."""

    id: int
    name: str
    lower: int
    upper: int | None
    hint: int
    unbacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An exact overload. Argument positions are in schema order."""

    kind: OperatorKind
    name: str
    overload: str = ""
    mutated_arguments: tuple[int, ...] = ()
    aliased_arguments: tuple[int, ...] = ()
    random: bool = False

    @property
    def qualified_name(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    device_class: str
    enabled: bool
    dtype: Dtype
    cache_enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    grad_enabled: bool = True
    autocasts: tuple[Autocast, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor or scalar that some node, input or state gives. Empty strides mean contiguous."""

    id: int
    kind: ValueKind
    dtype: Dtype | None = None
    dims: tuple[Expression, ...] = ()
    strides: tuple[Expression, ...] = ()
    device_class: str = "cpu"
    expression: Expression | None = None
    opaque_bytes: int = 0
    name: str = ""
    requires_grad: bool = False

    def num_elements(self, symbol_values: Mapping[int, int]) -> int:
        return math.prod(evaluate(dim, symbol_values) for dim in self.dims)

    def size_bytes(self, symbol_values: Mapping[int, int]) -> int:
        """Bytes of the whole tensor, stride-0 dimensions expanded; 8 for a scalar."""
        if self.kind is ValueKind.OPAQUE:
            return self.opaque_bytes
        if self.dtype is None:
            return 8
        return self.num_elements(symbol_values) * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class ValueReference:
    value_id: int


@dataclass(frozen=True, slots=True)
class SubgraphReference:
    subgraph_index: int


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A device without a number ("cpu", "cuda", "meta"): the daemon puts its own in its place."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentList:
    """A list argument; a tuple argument is a plain tuple. Schemas tell the two apart."""

    items: tuple[Argument, ...]


Argument = (
    None
    | bool
    | int
    | float
    | complex
    | str
    | ValueReference
    | SubgraphReference
    | Dtype
    | DeviceClass
    | Layout
    | MemoryFormat
    | ArgumentList
    | tuple["Argument", ...]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One call. `outputs` holds value ids; 0 stands for None or for a result that nobody reads.

    `flops` and `bytes_moved`: what a custom operator's cost function says of the call; None where there is none.
    """

    operator: Operator
    arguments: tuple[Argument, ...]
    keyword_arguments: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[int, ...]
    returns_tuple: bool = False
    module_path: str = ""
    context: Context = field(default_factory=Context)
    name: str = ""
    opaque_seconds: tuple[tuple[str, float], ...] = ()
    flops: Expression | None = None
    bytes_moved: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A parameter, buffer or constant. States with one tie group other than 0 share storage."""

    name: str
    value_id: int
    kind: StateKind
    sha256: bytes = b""
    tie_group: int = 0
    requires_grad: bool = False
    persistent: bool = True
    mutated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """`content` is a ValueReference, or the constant that every call must pass."""

    name: str
    content: Argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    name: str
    content: Argument


@dataclass(frozen=True, slots=True)
class TreeLeaf:
    pass


@dataclass(frozen=True, slots=True)
class TreeNone:
    pass


@dataclass(frozen=True, slots=True)
class TreeList:
    items: tuple[PyTree, ...]


@dataclass(frozen=True, slots=True)
class TreeTuple:
    items: tuple[PyTree, ...]


@dataclass(frozen=True, slots=True)
class TreeDict:
    keys: tuple[str, ...]
    items: tuple[PyTree, ...]


@dataclass(frozen=True, slots=True)
class TreeObject:
    """A registered container. `type_name` is a label: nothing is ever imported by it."""

    type_name: str
    keys: tuple[str, ...]
    items: tuple[PyTree, ...]


PyTree = TreeLeaf | TreeNone | TreeList | TreeTuple | TreeDict | TreeObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A program, or one stage of it. Nodes stand in program order: each reads only what stands before it.

    `custom_backwards`: autograd functions of which the forward is here and the backward is not, and gradient hooks, of
    which nothing is; it cannot be trained.
    """

    torch_version: str
    name: str
    symbols: tuple[Symbol, ...] = ()
    values: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()
    subgraphs: tuple[Graph, ...] = ()
    states: tuple[State, ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    input_tree: PyTree = TreeLeaf()
    output_tree: PyTree = TreeLeaf()
    training: bool = False
    custom_backwards: tuple[str, ...] = ()

    def values_by_id(self) -> dict[int, Value]:
        return {value.id: value for value in self.values}

    def hints(self) -> dict[int, int]:
        """Each symbol's value in the example inputs."""
        return {symbol.id: symbol.hint for symbol in self.symbols}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    sha256: bytes
    size_bytes: int


def values_in(argument: Argument) -> tuple[int, ...]:
    """Ids of the values that an argument holds, in order, with repetitions."""
    if isinstance(argument, ValueReference):
        return (argument.value_id,)
    items = argument.items if isinstance(argument, ArgumentList) else argument
    if not isinstance(items, tuple):
        return ()
    return tuple(value_id for item in items for value_id in values_in(item))


def values_read(node: Node) -> tuple[int, ...]:
    """Ids of the values that a node reads, in argument order, without repetitions."""
    arguments = (*node.arguments, *(argument for _, argument in node.keyword_arguments))
    return tuple(dict.fromkeys(value_id for argument in arguments for value_id in values_in(argument)))
